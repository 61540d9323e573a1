//! One session of a client, from its start to its end, and the connections that act for it.
//!
//! Invariant: each connection acts for this session only. The newest connection sends the requests. The previous one
//! may stay open for a time; the client only reads from it, or checks that it is no longer attached.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use signalbox_model::{Milliseconds, Namespace};
use signalbox_protocol::Extended;
use tokio::time::{Instant, timeout, timeout_at};

use super::answers::{Answer, SessionEvidence, Via, check, is_not_stored};
use super::connection::{End, Pace, note_end};
use super::session_connection::{RequestKind, SessionConnection};
use super::session_view::{Operation, SessionView};
use crate::random::Random;
use crate::scene::{Phase, Scene};

/// How long a client that has half-closed its connection reads on. The simulated network may hold back the end behind
/// a full buffer.
const LEAVING_MS: u64 = 2000;

/// The client that owns the session, and how it sends.
#[derive(Clone)]
pub struct Connector {
    pub scene: Arc<Scene>,
    pub number: usize,
    pub machine: usize,
    pub bytewise_percent: u64,
}

pub struct ClientSession {
    pub connector: Connector,
    pub view: SessionView,
    /// The connection that was attached last.
    pub newest: Option<SessionConnection>,
    pub previous: Option<SessionConnection>,
    pub is_over: bool,
}

impl Connector {
    async fn connect(self, namespace: Namespace) -> Option<SessionConnection> {
        let scene = Arc::clone(&self.scene);
        let connection = SessionConnection::open(self.scene, self.number, self.machine, namespace).await?;
        // Connecting takes time. A client that connects late requests nothing, because the rest phase may have begun.
        (scene.phase() != Phase::Rest).then_some(connection)
    }

    fn conclude(&self, connection: &SessionConnection, end: End) {
        let connection_session = connection.connection_session;
        let is_revoked = connection_session.is_some_and(|connection_session| {
            let is_revoked = |state: &mut crate::grant_expectations::GrantExpectations, now_ms| {
                state.is_revoked(connection_session, now_ms)
            };
            self.scene.with_expectations(self.scene.life_of(connection.local), is_revoked).unwrap_or(true)
        });
        match end {
            End::Lost(_) if is_revoked => {
                self.scene.event(self.number, format_args!("is closed, having been revoked"));
            }
            end => note_end(&self.scene, self.number, self.machine, connection.opened_ms, end),
        }
    }

    fn pace(&self, bytes: usize, random: &mut Random) -> Pace {
        if bytes < 200 && random.percent(self.bytewise_percent) {
            Pace::Pieces(1)
        } else if random.percent(20) {
            Pace::Pieces(random.between(20, 200) as usize)
        } else {
            Pace::Whole
        }
    }
}

impl ClientSession {
    /// Connects and starts a session: a leased one, or the connection session if no time to live is given.
    pub async fn begin(connector: Connector, ttl_ms: Option<u32>, random: &mut Random) -> Option<Self> {
        let namespace = Namespace::ALL[random.between(0, 1) as usize];
        let says_hello = ttl_ms.is_none() || random.percent(80);
        let mut connection = connector.clone().connect(namespace).await?;
        match Self::start_on(&connector, &mut connection, says_hello, ttl_ms).await {
            Ok(view) => {
                Some(Self { connector, view, newest: Some(connection), previous: None, is_over: false })
            }
            Err(end) => {
                connector.conclude(&connection, end);
                None
            }
        }
    }

    async fn start_on(
        connector: &Connector,
        connection: &mut SessionConnection,
        says_hello: bool,
        ttl_ms: Option<u32>,
    ) -> Result<SessionView, End> {
        let scene = &connector.scene;
        if says_hello {
            let mut bytes = Vec::new();
            connection.compose_hello(&mut bytes);
            connection.send(&bytes, Pace::Whole).await?;
            let hello = connection.answer().await?.hello();
            let connection_session = hello.map_err(|_| End::Wrong("no Hello".to_owned()))?.session;
            connection.connection_session = Some(connection_session);
            let (local, life) = (connection.local, scene.life_of(connection.local));
            scene.add_session(life, connection_session).map_err(End::Wrong)?;
            scene.with_expectations(life, |expectations, _| {
                expectations.add_connection_session(connection_session, local)
            });
        }
        let Some(ttl_ms) = ttl_ms else {
            let connection_session =
                connection.connection_session.expect("the answer to Hello names the connection session");
            return Ok(SessionView::new(scene, connection, connection_session, None));
        };
        let sent_ms = scene.state().now_ms;
        let open = Extended::OpenSession { ttl: Some(Milliseconds(ttl_ms)), label: b"leased", key: None };
        // A notice may arrive before the answer, because other clients may revoke the connection session.
        let mut frame = connection.ask(&open, RequestKind::Open).await?;
        while frame.opcode != open.opcode().code() {
            frame = connection.answer().await?;
        }
        if is_not_stored(scene, &frame, sent_ms) {
            return Err(End::Left);
        }
        let opened = frame.opened().map_err(|_| End::Wrong("no session".to_owned()))?;
        if opened.ttl.0 != ttl_ms {
            return Err(End::Wrong(format!("requested {ttl_ms} ms and received {:?}", opened.ttl)));
        }
        connection.is_attached = true;
        scene.add_session(connection.life(), opened.session).map_err(End::Wrong)?;
        let view = SessionView::new(scene, connection, opened.session, Some((opened.key, ttl_ms)));
        view.renew(sent_ms, ttl_ms);
        Ok(view)
    }

    /// Attaches a leased session to a new connection, and repeats all requests without an answer.
    pub async fn attach(&mut self, random: &mut Random) {
        let Some(key) = self.view.key else { return };
        let namespace = Namespace::ALL[random.between(0, 1) as usize];
        let mut connecting = pin!(self.connector.clone().connect(namespace));
        let opened = loop {
            tokio::select! {
                biased;
                opened = &mut connecting => break opened,
                () = self.read_for_all(60_000) => {}
            }
        };
        let Some(mut connection) = opened else { return };
        if self.is_over {
            return;
        }
        let mut bytes = Vec::new();
        if random.percent(80) {
            connection.compose_hello(&mut bytes);
        }
        let life = connection.life();
        let mut repeated = self.view.unanswered();
        // A restarted server must know what it granted.
        if life != self.view.life {
            repeated.extend(self.view.granted().filter(|_| random.percent(30)));
        }
        self.view.attaches(life);
        let attach = Extended::AttachSession { session: self.view.session, key, repetitions: 0 };
        connection.compose(&attach, RequestKind::Attach, &mut bytes);
        for id in repeated {
            self.view.repeat(&mut connection, id, &mut bytes);
        }
        let Connector { scene, number, .. } = &self.connector;
        scene.event(number, format_args!("attaches {} to {}", connection.local, self.view.session));
        // Answers from before the restart no longer matter.
        self.previous = self.newest.replace(connection).filter(|previous| previous.life() == life);
        self.send(Via::Newest, &bytes, random).await;
    }

    fn connection(&mut self, via: Via) -> &mut Option<SessionConnection> {
        match via {
            Via::Newest => &mut self.newest,
            Via::Previous => &mut self.previous,
        }
    }

    /// Closes a connection.
    pub fn cut(&mut self, via: Via) {
        if let Some(connection) = self.connection(via).take() {
            self.connector.scene.event(self.connector.number, format_args!("cuts {}", connection.local));
        }
        self.update_over();
    }

    fn update_over(&mut self) {
        // A connection session ends with its connection.
        self.is_over |= self.newest.is_none() && !self.view.is_leased();
    }

    /// Sends one request without an id.
    pub async fn send_request(
        &mut self,
        via: Via,
        request: &Extended<'_>,
        kind: RequestKind,
        random: &mut Random,
    ) {
        let Some(connection) = self.connection(via) else { return };
        let mut bytes = Vec::new();
        connection.compose(request, kind, &mut bytes);
        self.send(via, &bytes, random).await;
    }

    /// Sends new requests with ids.
    pub async fn ask(&mut self, operations: Vec<Operation>, random: &mut Random) {
        let Some(connection) = &mut self.newest else { return };
        let mut bytes = Vec::new();
        for operation in operations {
            let forgets = random.percent(50);
            self.view.ask(connection, operation, forgets, &mut bytes);
        }
        self.send(Via::Newest, &bytes, random).await;
    }

    /// Sends a request again.
    pub async fn repeat(&mut self, id: u64, random: &mut Random) {
        let Some(connection) = &mut self.newest else { return };
        let mut bytes = Vec::new();
        self.view.repeat(connection, id, &mut bytes);
        self.send(Via::Newest, &bytes, random).await;
    }

    pub async fn send(&mut self, via: Via, bytes: &[u8], random: &mut Random) {
        let pace = self.connector.pace(bytes.len(), random);
        let Some(mut connection) = self.connection(via).take() else { return };
        let local = connection.local;
        self.connector
            .scene
            .event(self.connector.number, format_args!("sends {} bytes on {local}", bytes.len()));
        let sent = connection.send(bytes, pace).await;
        self.put_back(via, connection, sent);
    }

    /// Stores a connection again, or gives it up if it has ended. What arrived before that counts.
    fn put_back(&mut self, via: Via, mut connection: SessionConnection, result: Result<(), End>) {
        let checked = self.check(via, &mut connection);
        match checked.and(result) {
            Ok(()) => *self.connection(via) = Some(connection),
            Err(end) => self.connector.conclude(&connection, end),
        }
        self.update_over();
    }

    /// Checks what arrived.
    fn check(&mut self, via: Via, connection: &mut SessionConnection) -> Result<(), End> {
        while let Some((opaque, pending, frame)) = connection.next()? {
            let Connector { scene, number, .. } = &self.connector;
            scene.event(number, format_args!("{opaque}, {:?}: {:#04x}", pending.kind, frame.status));
            if via == Via::Newest && scene.was_undisturbed(self.connector.machine, connection.opened_ms) {
                pending.check_waited(&frame, scene.state().now_ms).map_err(End::Wrong)?;
            }
            let answer = Answer { opaque, pending, frame: &frame };
            let evidence = check(scene, &mut self.view, (via, connection), &answer).map_err(|what| {
                let text = frame.body.escape_ascii();
                End::Wrong(format!("{what}: {pending:?} is answered {:#04x}, \"{text}\"", frame.status))
            })?;
            self.is_over |= evidence == SessionEvidence::Ended;
            if matches!(evidence, SessionEvidence::Ended | SessionEvidence::Detached) {
                return Err(End::Left);
            }
        }
        Ok(())
    }

    /// Reads for a time, or until no connection is left.
    pub async fn read_for(&mut self, for_ms: u64) {
        let deadline = Instant::now() + Duration::from_millis(for_ms);
        while !self.is_over && Instant::now() <= deadline {
            let left_ms = deadline.duration_since(Instant::now()).as_millis() as u64;
            if (self.newest.is_none() && self.previous.is_none()) || !self.read_once(left_ms).await {
                break;
            }
        }
    }

    /// Reads for the whole time, even without a connection.
    async fn read_for_all(&mut self, for_ms: u64) {
        self.read_for(for_ms).await;
        tokio::time::sleep(Duration::from_millis(for_ms)).await;
    }

    /// Reads once. Returns whether bytes arrived.
    async fn read_once(&mut self, for_ms: u64) -> bool {
        let deadline = Instant::now() + Duration::from_millis(for_ms);
        let read = match (&mut self.newest, &mut self.previous) {
            (None, None) => return false,
            (Some(connection), None) => {
                timeout_at(deadline, async { (Via::Newest, connection.read().await) }).await
            }
            (None, Some(connection)) => {
                timeout_at(deadline, async { (Via::Previous, connection.read().await) }).await
            }
            (Some(newest), Some(previous)) => {
                let both = async {
                    tokio::select! {
                        biased;
                        read = newest.read() => (Via::Newest, read),
                        read = previous.read() => (Via::Previous, read),
                    }
                };
                timeout_at(deadline, both).await
            }
        };
        match read {
            Ok((via, read)) => {
                let connection = self.connection(via).take().expect("it was read");
                self.put_back(via, connection, read);
                true
            }
            Err(_) => {
                for via in [Via::Newest, Via::Previous] {
                    if let Some(connection) = self.connection(via).take() {
                        let in_time = connection.check_overdue();
                        self.put_back(via, connection, in_time);
                    }
                }
                false
            }
        }
    }

    /// Half-closes the newest connection and reads until it ends. A leased session continues without it.
    pub async fn half_close(&mut self) {
        // Owned here, so that nothing more can be sent on it.
        let Some(mut connection) = self.newest.take() else { return };
        let scene = &self.connector.scene;
        scene.event(self.connector.number, format_args!("has no more to ask on {}", connection.local));
        let reading = async {
            connection.half_close().await?;
            loop {
                self.check(Via::Newest, &mut connection)?;
                match connection.read().await {
                    Err(End::Lost(_)) if connection.has_answers() => return Err::<(), End>(End::Left),
                    read => read?,
                }
            }
        };
        let end = timeout(Duration::from_millis(LEAVING_MS), reading).await;
        self.connector.conclude(&connection, end.unwrap_or(Ok(())).err().unwrap_or(End::Left));
        self.update_over();
    }
}

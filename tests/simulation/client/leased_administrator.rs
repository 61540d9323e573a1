//! An administrator with a leased session. It repeats a request without an answer under the same request id, over
//! reconnections and restarts of the server, until it is answered.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use signalbox::client::{
    COUNTER_PORT, Declaration, DeclaredState, Error, ErrorKind, Milliseconds, SessionKey, Status, Transport,
};
use signalbox::protocol::{
    Declarations, EXTENDED_VERSION, Extended, Features, Opaque, OpenedSession, RequestId, RequestIds,
    ResponseCodec, ResponseFrame,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::applications::Application;
use super::change_requests::{ChangeRequest, random_change_request};
use super::changes::ChangeKind;
use super::expectations::ClientInfo;
use super::wire::{Simulated, WatchedStream};
use crate::network::SERVER;
use crate::random::Random;
use crate::scene::Phase;

/// The offset of the client numbers of leased administrators.
const NUMBER_OFFSET: usize = 1000;

/// How long an answer may take before the connection is given up.
const PATIENCE: Duration = Duration::from_secs(3);

/// A connection that acts for a session, and the session.
struct AdministratorConnection {
    stream: WatchedStream,
    input: BytesMut,
    session: OpenedSession,
    last_opaque: u32,
}

/// Why a connection cannot be used.
enum Failure {
    Lost,
    /// The session has ended, and the server no longer remembers its requests.
    SessionEnded,
}

impl Application {
    /// Requests changes one after the other, each until it is answered.
    pub async fn administer_leased(mut self, mut random: Random) {
        self.info = ClientInfo { client: self.info.client + NUMBER_OFFSET, ..self.info };
        let mut connection = None;
        let mut session = None;
        let mut number = 0;
        while self.expectations.scene.phase() == Phase::Work {
            sleep(Duration::from_millis(random.between(0, 3000))).await;
            let request = random_change_request(&self, &mut random);
            number = if session.is_none() { 1 } else { number + 1 };
            let requested_ms = self.now_ms();
            let changes = &self.expectations.declared.changes;
            let ChangeRequest { name, kind, expected } = &request;
            self.event(format_args!("requests as {number} {kind:?} of {}", name.escape_ascii()));
            let pending = changes.ask([(name.clone(), kind.clone())], expected.map(|expected| expected.0));
            let answer = self.request_until_answered(&request, number, &mut connection, &mut session).await;
            self.event(format_args!("is answered about {}: {answer:?}", name.escape_ascii()));
            let Some(answer) = answer else {
                (connection, session) = (None, None);
                continue;
            };
            let noted = match &answer {
                Ok(states) => pending.done(states),
                Err(_) => pending.refused(),
            };
            noted.unwrap_or_else(|what| self.fail(format_args!("{what}: {}", name.escape_ascii())));
            self.check_answer(&request, &answer, requested_ms);
        }
        if let Some(connection) = &mut connection {
            let _ = timeout(PATIENCE, connection.ask(Extended::CloseSession)).await;
        }
    }

    /// Repeats a request until there is an answer. `None`: the session has ended, and the outcome is unknown.
    async fn request_until_answered(
        &self,
        request: &ChangeRequest,
        number: u64,
        connection: &mut Option<AdministratorConnection>,
        session: &mut Option<OpenedSession>,
    ) -> Option<Result<Vec<DeclaredState>, Error>> {
        loop {
            let asking = async {
                let at = match connection {
                    Some(at) => at,
                    None => connection.insert(AdministratorConnection::open(self, *session).await?),
                };
                *session = Some(at.session);
                at.request(request, number).await
            };
            match timeout(PATIENCE, asking).await {
                Ok(Ok(answer)) => return Some(answer),
                Ok(Err(Failure::SessionEnded)) => return None,
                Ok(Err(Failure::Lost)) | Err(_) => *connection = None,
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}

impl AdministratorConnection {
    /// A new connection for this session, or for a new one.
    async fn open(program: &Application, session: Option<OpenedSession>) -> Result<Self, Failure> {
        let simulated = Simulated { expectations: Arc::clone(&program.expectations), info: program.info };
        let address = format!("{SERVER}:{COUNTER_PORT}").parse().expect("it is an address");
        let stream = simulated.connect(address, PATIENCE).await.map_err(|_| Failure::Lost)?;
        let ttl = Milliseconds(program.info.ttl_ms as u32);
        let none = OpenedSession { session: 0, key: SessionKey([0; 16]), ttl };
        let mut connection =
            Self { stream, input: BytesMut::new(), session: session.unwrap_or(none), last_opaque: 0 };
        connection
            .ask(Extended::Hello {
                version: EXTENDED_VERSION,
                label: b"admin",
                credentials: signalbox::protocol::Credentials(&[]),
                features: Features::default(),
            })
            .await?;
        match session {
            Some(OpenedSession { session, key, .. }) => {
                connection.ask(Extended::AttachSession { session, key, repetitions: 0 }).await?;
            }
            None => {
                let opened = connection
                    .ask(Extended::OpenSession { ttl: Some(ttl), label: b"admin", key: None })
                    .await?;
                connection.session = opened.opened().map_err(|_| Failure::Lost)?;
            }
        }
        Ok(connection)
    }

    async fn request(
        &mut self,
        request: &ChangeRequest,
        number: u64,
    ) -> Result<Result<Vec<DeclaredState>, Error>, Failure> {
        let own = RequestId(number);
        let ids = RequestIds { own, lowest_unanswered: own };
        let ChangeRequest { name, kind, expected } = request;
        let expected = *expected;
        let frame = match kind {
            ChangeKind::Declare { capacity, numbered, label, if_exists } => {
                let list = [Declaration { name, capacity: *capacity, numbered: *numbered, label }];
                let declarations = Declarations::new(&list).expect("it can be declared");
                self.ask(Extended::Declare { ids, if_exists: *if_exists, declarations }).await?
            }
            ChangeKind::Resize(how) => self.ask(Extended::Resize { ids, expected, how: *how, name }).await?,
            ChangeKind::Remove(how) => self.ask(Extended::Remove { ids, expected, how: *how, name }).await?,
            ChangeKind::Pause(how) => self.ask(Extended::Pause { ids, expected, how: *how, name }).await?,
            ChangeKind::SetSlot(how) => {
                self.ask(Extended::SetSlot { ids, expected, how: *how, name }).await?
            }
        };
        Ok(match (Status::from_code(frame.status), kind) {
            (Some(Status::NoError), ChangeKind::Declare { .. }) => frame.declared().map_err(Error::from),
            (
                Some(Status::NoError),
                ChangeKind::Resize(_) | ChangeKind::Pause(_) | ChangeKind::SetSlot(_),
            ) => frame.resized().map(|states| vec![states]).map_err(Error::from),
            (Some(Status::NoError), ChangeKind::Remove(_)) => Ok(Vec::new()),
            (status, _) => Err(ErrorKind::Status(status.unwrap_or(Status::UnknownCommand)).into()),
        })
    }

    /// Sends one request and waits for its answer.
    async fn ask(&mut self, request: Extended<'_>) -> Result<ResponseFrame, Failure> {
        self.last_opaque += 1;
        let opaque = Opaque(self.last_opaque.to_be_bytes());
        let mut bytes = BytesMut::new();
        request.compose(opaque, &mut bytes);
        self.stream.write_all(&bytes).await.map_err(|_| Failure::Lost)?;
        loop {
            let frame = self.read().await?;
            if frame.opaque != opaque {
                // A notice.
                continue;
            }
            if frame.status == Status::NoSuchSession.code() {
                return Err(Failure::SessionEnded);
            }
            return Ok(frame);
        }
    }

    async fn read(&mut self) -> Result<ResponseFrame, Failure> {
        loop {
            if let Some(frame) = ResponseCodec.decode(&mut self.input).map_err(|_| Failure::Lost)? {
                return Ok(frame);
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return Err(Failure::Lost),
            }
        }
    }
}

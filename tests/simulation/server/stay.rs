//! One session of a client, from its opening until it is over, and the connections that act for it.
//!
//! Each connection acts for this session alone. The one that was attached last does the work; the one before may stay
//! open for a while, and is only listened to, or asked whether it is still attached.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use signalbox::core::Namespace;
use signalbox::protocol::{Extended, Milliseconds};
use tokio::time::{Instant, timeout, timeout_at};

use super::connection::{End, Pace, note_end};
use super::line::{Line, Outcome};
use super::tenancy::{Errand, Tenancy};
use super::verdict::{Answer, Heard, Place, is_not_stored, judge};
use crate::random::Random;
use crate::scene::{Phase, Scene};

/// How long a client that has no more to ask reads on. The simulated network may hold the end back, as behind a full
/// buffer.
const LEAVING_MS: u64 = 2000;

/// Who it is that stays, and how it sends.
#[derive(Clone)]
pub struct Guest {
    pub scene: Arc<Scene>,
    pub number: usize,
    pub machine: usize,
    pub bytewise_percent: u64,
}

pub struct Stay {
    pub guest: Guest,
    pub tenancy: Tenancy,
    /// The connection that was attached last.
    pub newest: Option<Line>,
    pub left: Option<Line>,
    pub is_over: bool,
}

impl Guest {
    async fn connect(self, namespace: Namespace) -> Option<Line> {
        let scene = Arc::clone(&self.scene);
        let line = Line::open(self.scene, self.number, self.machine, namespace).await?;
        // Connecting takes time; whoever arrives late asks for nothing, since rest may have begun without him.
        (scene.phase() != Phase::Rest).then_some(line)
    }

    fn conclude(&self, line: &Line, end: End) {
        let own = line.own;
        let is_revoked = own.is_some_and(|own| {
            let is_taken = |state: &mut crate::claims::Claims, now_ms| state.is_taken(own, now_ms);
            self.scene.with_claims(self.scene.life_of(line.local), is_taken).unwrap_or(true)
        });
        match end {
            End::Lost(_) if is_revoked => {
                self.scene.event(self.number, format_args!("is closed, having been revoked"));
            }
            end => note_end(&self.scene, self.number, self.machine, line.opened_ms, end),
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

impl Stay {
    /// Connects and begins a session: a leased one, or where no time to live is given, the connection's own.
    pub async fn begin(guest: Guest, ttl_ms: Option<u32>, random: &mut Random) -> Option<Self> {
        let namespace = Namespace::ALL[random.between(0, 1) as usize];
        let says_hello = ttl_ms.is_none() || random.percent(80);
        let mut line = guest.clone().connect(namespace).await?;
        match Self::introduce(&guest, &mut line, says_hello, ttl_ms).await {
            Ok(tenancy) => Some(Self { guest, tenancy, newest: Some(line), left: None, is_over: false }),
            Err(end) => {
                guest.conclude(&line, end);
                None
            }
        }
    }

    async fn introduce(
        guest: &Guest,
        line: &mut Line,
        says_hello: bool,
        ttl_ms: Option<u32>,
    ) -> Result<Tenancy, End> {
        let scene = &guest.scene;
        if says_hello {
            let mut bytes = BytesMut::new();
            line.introduce(&mut bytes);
            line.send(&bytes, Pace::Whole).await?;
            let hello = line.answer().await?.hello();
            let own = hello.map_err(|_| End::Wrong("no Hello".to_owned()))?.session;
            line.own = Some(own);
            let (local, life) = (line.local, scene.life_of(line.local));
            scene.meet(life, own).map_err(End::Wrong)?;
            scene.with_claims(life, |claims, _| claims.introduce(own, local));
        }
        let Some(ttl_ms) = ttl_ms else {
            let own = line.own.expect("a session of its own is known by its Hello");
            return Ok(Tenancy::new(scene, line, own, None));
        };
        let sent_ms = scene.state().now_ms;
        let open = Extended::OpenSession { ttl: Some(Milliseconds(ttl_ms)), label: b"leased" };
        // A notice may come before the answer, as others may revoke the connection's own session.
        let mut frame = line.ask(&open, Outcome::Open).await?;
        while frame.opcode != open.opcode().code() {
            frame = line.answer().await?;
        }
        if is_not_stored(scene, &frame, sent_ms) {
            return Err(End::Left);
        }
        let opened = frame.opened().map_err(|_| End::Wrong("no session".to_owned()))?;
        if opened.ttl.0 != ttl_ms {
            return Err(End::Wrong(format!("asked for {ttl_ms} ms, and got {:?}", opened.ttl)));
        }
        line.is_attached = true;
        scene.meet(line.life(), opened.session).map_err(End::Wrong)?;
        let tenancy = Tenancy::new(scene, line, opened.session, Some((opened.key, ttl_ms)));
        tenancy.renew(sent_ms, ttl_ms);
        Ok(tenancy)
    }

    /// Takes a leased session to a new connection, with all that is not answered.
    pub async fn attach(&mut self, random: &mut Random) {
        let Some(key) = self.tenancy.key else { return };
        let namespace = Namespace::ALL[random.between(0, 1) as usize];
        let mut connecting = pin!(self.guest.clone().connect(namespace));
        let opened = loop {
            tokio::select! {
                biased;
                opened = &mut connecting => break opened,
                () = self.hear_something(60_000) => {}
            }
        };
        let Some(mut line) = opened else { return };
        if self.is_over {
            return;
        }
        let mut bytes = BytesMut::new();
        if random.percent(80) {
            line.introduce(&mut bytes);
        }
        let life = line.life();
        let mut repeated = self.tenancy.unanswered();
        // A server that was started again has to know what it granted.
        if life != self.tenancy.life {
            repeated.extend(self.tenancy.granted().filter(|_| random.percent(30)));
        }
        self.tenancy.attaches(life);
        let attach = Extended::AttachSession { session: self.tenancy.session, key };
        line.compose(&attach, Outcome::Attach, &mut bytes);
        for id in repeated {
            self.tenancy.repeat(&mut line, id, &mut bytes);
        }
        let Guest { scene, number, .. } = &self.guest;
        scene.event(number, format_args!("attaches {} to {}", line.local, self.tenancy.session));
        // What the server said before it was started again is not asked for any more.
        self.left = self.newest.replace(line).filter(|left| left.life() == life);
        self.send(Place::Newest, &bytes, random).await;
    }

    fn line(&mut self, place: Place) -> &mut Option<Line> {
        match place {
            Place::Newest => &mut self.newest,
            Place::Left => &mut self.left,
        }
    }

    /// Closes a connection.
    pub fn cut(&mut self, place: Place) {
        if let Some(line) = self.line(place).take() {
            self.guest.scene.event(self.guest.number, format_args!("cuts {}", line.local));
        }
        self.note_lost();
    }

    fn note_lost(&mut self) {
        // A connection's own session ends with it.
        self.is_over |= self.newest.is_none() && !self.tenancy.is_leased();
    }

    /// Sends one request without an id.
    pub async fn tell(&mut self, place: Place, request: &Extended<'_>, asked: Outcome, random: &mut Random) {
        let Some(line) = self.line(place) else { return };
        let mut bytes = BytesMut::new();
        line.compose(request, asked, &mut bytes);
        self.send(place, &bytes, random).await;
    }

    /// Sends new requests with ids.
    pub async fn ask(&mut self, errands: Vec<Errand>, random: &mut Random) {
        let Some(line) = &mut self.newest else { return };
        let mut bytes = BytesMut::new();
        for errand in errands {
            let forgets = random.percent(50);
            self.tenancy.ask(line, errand, forgets, &mut bytes);
        }
        self.send(Place::Newest, &bytes, random).await;
    }

    /// Sends a request once more.
    pub async fn repeat(&mut self, id: u64, random: &mut Random) {
        let Some(line) = &mut self.newest else { return };
        let mut bytes = BytesMut::new();
        self.tenancy.repeat(line, id, &mut bytes);
        self.send(Place::Newest, &bytes, random).await;
    }

    pub async fn send(&mut self, place: Place, bytes: &[u8], random: &mut Random) {
        let pace = self.guest.pace(bytes.len(), random);
        let Some(mut line) = self.line(place).take() else { return };
        let local = line.local;
        self.guest.scene.event(self.guest.number, format_args!("sends {} bytes on {local}", bytes.len()));
        let sent = line.send(bytes, pace).await;
        self.keep(place, line, sent);
    }

    /// Puts a connection back, or gives it up where it has ended. What had come by then counts.
    fn keep(&mut self, place: Place, mut line: Line, result: Result<(), End>) {
        let judged = self.judge(place, &mut line);
        match judged.and(result) {
            Ok(()) => *self.line(place) = Some(line),
            Err(end) => self.guest.conclude(&line, end),
        }
        self.note_lost();
    }

    /// Judges what came.
    fn judge(&mut self, place: Place, line: &mut Line) -> Result<(), End> {
        while let Some((opaque, awaited, frame)) = line.next()? {
            let Guest { scene, number, .. } = &self.guest;
            scene.event(number, format_args!("{opaque}, {:?}: {:#04x}", awaited.asked, frame.status));
            if place == Place::Newest && scene.was_undisturbed(self.guest.machine, line.opened_ms) {
                awaited.check_waited(&frame, scene.state().now_ms).map_err(End::Wrong)?;
            }
            let answer = Answer { opaque, awaited, frame: &frame };
            let heard = judge(scene, &mut self.tenancy, (place, line), &answer).map_err(|what| {
                let text = frame.body.escape_ascii();
                End::Wrong(format!("{what}: {awaited:?} is answered {:#04x}, \"{text}\"", frame.status))
            })?;
            self.is_over |= heard == Heard::NoSession;
            if matches!(heard, Heard::NoSession | Heard::Detached) {
                return Err(End::Left);
            }
        }
        Ok(())
    }

    /// Reads for a while, or until there is nothing to read from.
    pub async fn hear(&mut self, for_ms: u64) {
        let deadline = Instant::now() + Duration::from_millis(for_ms);
        while !self.is_over && Instant::now() <= deadline {
            let left_ms = deadline.duration_since(Instant::now()).as_millis() as u64;
            if (self.newest.is_none() && self.left.is_none()) || !self.hear_once(left_ms).await {
                break;
            }
        }
    }

    /// Reads for a while, connections or not.
    async fn hear_something(&mut self, for_ms: u64) {
        self.hear(for_ms).await;
        tokio::time::sleep(Duration::from_millis(for_ms)).await;
    }

    /// Reads once. Tells whether something came.
    async fn hear_once(&mut self, for_ms: u64) -> bool {
        let deadline = Instant::now() + Duration::from_millis(for_ms);
        let read = match (&mut self.newest, &mut self.left) {
            (None, None) => return false,
            (Some(line), None) => timeout_at(deadline, async { (Place::Newest, line.read().await) }).await,
            (None, Some(line)) => timeout_at(deadline, async { (Place::Left, line.read().await) }).await,
            (Some(newest), Some(left)) => {
                let both = async {
                    tokio::select! {
                        biased;
                        read = newest.read() => (Place::Newest, read),
                        read = left.read() => (Place::Left, read),
                    }
                };
                timeout_at(deadline, both).await
            }
        };
        match read {
            Ok((place, read)) => {
                let line = self.line(place).take().expect("it was read");
                self.keep(place, line, read);
                true
            }
            Err(_) => {
                for place in [Place::Newest, Place::Left] {
                    if let Some(line) = self.line(place).take() {
                        let in_time = line.check_overdue();
                        self.keep(place, line, in_time);
                    }
                }
                false
            }
        }
    }

    /// Says on the newest connection that nothing more will be asked, and reads on until it ends. A leased session goes
    /// on without it.
    pub async fn half_close(&mut self) {
        // Owned here, so that nothing can be sent on it any more.
        let Some(mut line) = self.newest.take() else { return };
        let scene = &self.guest.scene;
        scene.event(self.guest.number, format_args!("has no more to ask on {}", line.local));
        let reading = async {
            line.half_close().await?;
            loop {
                self.judge(Place::Newest, &mut line)?;
                match line.read().await {
                    Err(End::Lost(_)) if line.has_answers() => return Err::<(), End>(End::Left),
                    read => read?,
                }
            }
        };
        let end = timeout(Duration::from_millis(LEAVING_MS), reading).await;
        self.guest.conclude(&line, end.unwrap_or(Ok(())).err().unwrap_or(End::Left));
        self.note_lost();
    }
}

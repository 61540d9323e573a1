//! An administrator with a session of his own, who repeats under its number what was not answered, over one connection
//! after the other and across restarts of the server, until he knows what it came to.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use signalbox::client::{
    COUNTER_PORT, Declaration, DeclaredState, Error, Milliseconds, SessionKey, Status, Transport,
};
use signalbox::protocol::{
    Declarations, EXTENDED_VERSION, Extended, Opaque, OpenedSession, RequestId, RequestIds, ResponseCodec,
    ResponseFrame,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::beliefs::Who;
use super::changes::Wish;
use super::orders::{Order, some_order};
use super::programs::Program;
use super::wire::{Simulated, WatchedStream};
use crate::network::SERVER;
use crate::random::Random;
use crate::scene::Phase;

/// What is added to the numbers of clients for those of their clerks.
const CLERK: usize = 1000;

/// How long an answer may take before the connection is given up.
const PATIENCE: Duration = Duration::from_secs(3);

/// A connection that acts for a session, and the session.
struct Desk {
    stream: WatchedStream,
    input: BytesMut,
    session: OpenedSession,
    last_opaque: u32,
}

/// Why a connection is of no use.
enum Trouble {
    Lost,
    /// The session is gone, and with it what it asked for is remembered.
    Forgotten,
}

impl Program {
    /// Asks for changes, one after the other, each until it is answered.
    pub async fn clerk(mut self, mut random: Random) {
        self.who = Who { client: self.who.client + CLERK, ..self.who };
        let mut desk = None;
        let mut session = None;
        let mut number = 0;
        while self.beliefs.scene.phase() == Phase::Work {
            sleep(Duration::from_millis(random.between(0, 3000))).await;
            let order = some_order(&self, &mut random);
            number = if session.is_none() { 1 } else { number + 1 };
            let asked_ms = self.now_ms();
            let changes = &self.beliefs.declared.changes;
            let Order { name, wish, expected } = &order;
            self.event(format_args!("asks as {number} for {wish:?} of {}", name.escape_ascii()));
            let asked = changes.ask([(name.clone(), wish.clone())], expected.map(|expected| expected.0));
            let answer = self.insist(&order, number, &mut desk, &mut session).await;
            self.event(format_args!("is told of {}: {answer:?}", name.escape_ascii()));
            let Some(answer) = answer else {
                (desk, session) = (None, None);
                continue;
            };
            let noted = match &answer {
                Ok(settled) => asked.done(settled),
                Err(_) => asked.refused(),
            };
            noted.unwrap_or_else(|what| self.fail(format_args!("{what}: {}", name.escape_ascii())));
            self.judge(&order, &answer, asked_ms);
        }
        if let Some(desk) = &mut desk {
            let _ = timeout(PATIENCE, desk.ask(Extended::CloseSession)).await;
        }
    }

    /// Asks until there is an answer. `None`: the session is gone, and nobody knows what came of it.
    async fn insist(
        &self,
        order: &Order,
        number: u64,
        desk: &mut Option<Desk>,
        session: &mut Option<OpenedSession>,
    ) -> Option<Result<Vec<DeclaredState>, Error>> {
        loop {
            let asking = async {
                let at = match desk {
                    Some(at) => at,
                    None => desk.insert(Desk::open(self, *session).await?),
                };
                *session = Some(at.session);
                at.request(order, number).await
            };
            match timeout(PATIENCE, asking).await {
                Ok(Ok(answer)) => return Some(answer),
                Ok(Err(Trouble::Forgotten)) => return None,
                Ok(Err(Trouble::Lost)) | Err(_) => *desk = None,
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}

impl Desk {
    /// A new connection for a session, or for a new one.
    async fn open(program: &Program, session: Option<OpenedSession>) -> Result<Self, Trouble> {
        let simulated = Simulated { beliefs: Arc::clone(&program.beliefs), who: program.who };
        let address = format!("{SERVER}:{COUNTER_PORT}").parse().expect("it is an address");
        let stream = simulated.connect(address, PATIENCE).await.map_err(|_| Trouble::Lost)?;
        let ttl = Milliseconds(program.who.ttl_ms as u32);
        let none = OpenedSession { session: 0, key: SessionKey([0; 16]), ttl };
        let mut desk =
            Self { stream, input: BytesMut::new(), session: session.unwrap_or(none), last_opaque: 0 };
        desk.ask(Extended::Hello { version: EXTENDED_VERSION, label: b"clerk", credentials: &[] }).await?;
        match session {
            Some(OpenedSession { session, key, .. }) => {
                desk.ask(Extended::AttachSession { session, key }).await?;
            }
            None => {
                let opened = desk.ask(Extended::OpenSession { ttl: Some(ttl), label: b"clerk" }).await?;
                desk.session = opened.opened().map_err(|_| Trouble::Lost)?;
            }
        }
        Ok(desk)
    }

    async fn request(
        &mut self,
        order: &Order,
        number: u64,
    ) -> Result<Result<Vec<DeclaredState>, Error>, Trouble> {
        let own = RequestId(number);
        let ids = RequestIds { own, lowest_unanswered: own };
        let Order { name, wish, expected } = order;
        let expected = *expected;
        let frame = match wish {
            Wish::Declare { capacity, numbered, label, if_exists } => {
                let list = [Declaration { name, capacity: *capacity, numbered: *numbered, label }];
                let declarations = Declarations::new(&list).expect("it can be declared");
                self.ask(Extended::Declare { ids, if_exists: *if_exists, declarations }).await?
            }
            Wish::Resize(how) => self.ask(Extended::Resize { ids, expected, how: *how, name }).await?,
            Wish::Remove(how) => self.ask(Extended::Remove { ids, expected, how: *how, name }).await?,
        };
        Ok(match (Status::from_code(frame.status), wish) {
            (Some(Status::NoError), Wish::Declare { .. }) => frame.declared().map_err(Error::from),
            (Some(Status::NoError), Wish::Resize(_)) => {
                frame.resized().map(|settled| vec![settled]).map_err(Error::from)
            }
            (Some(Status::NoError), Wish::Remove(_)) => Ok(Vec::new()),
            (status, _) => Err(Error::Status(status.unwrap_or(Status::UnknownCommand))),
        })
    }

    /// Asks one thing, and waits for its answer.
    async fn ask(&mut self, request: Extended<'_>) -> Result<ResponseFrame, Trouble> {
        self.last_opaque += 1;
        let opaque = Opaque(self.last_opaque.to_be_bytes());
        let mut bytes = BytesMut::new();
        request.compose(opaque, &mut bytes);
        self.stream.write_all(&bytes).await.map_err(|_| Trouble::Lost)?;
        loop {
            let frame = self.read().await?;
            if frame.opaque != opaque {
                // A notice.
                continue;
            }
            if frame.status == Status::NoSuchSession.code() {
                return Err(Trouble::Forgotten);
            }
            return Ok(frame);
        }
    }

    async fn read(&mut self) -> Result<ResponseFrame, Trouble> {
        loop {
            if let Some(frame) = ResponseCodec.decode(&mut self.input).map_err(|_| Trouble::Lost)? {
                return Ok(frame);
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return Err(Trouble::Lost),
            }
        }
    }
}

//! A connection that speaks the extended operations: its answers may come in another order than its requests.
//!
//! It acts for one session from its first request to its end, so that there is never a doubt for which one an answer is.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use signalbox::core::Namespace;
use signalbox::protocol::{Extended, Opaque, ResponseFrame, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use turmoil::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::connection::{End, PATIENCE, Pace, connect, send};
use crate::scene::Scene;

/// What a client remembers of a request until it is answered.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    Hello,
    Open,
    Attach,
    KeepAlive,
    /// A KeepAlive of a connection after another one was told that it is attached.
    Outlived,
    Close,
    Cancel {
        id: u64,
    },
    Verify {
        grant: u64,
    },
    /// The holders of a name. Set where the client had all its answers when it asked.
    List {
        is_quiet: bool,
    },
    /// With the number of its last event.
    Watch {
        number: u64,
        is_live: bool,
    },
    Unwatch {
        watch: u32,
    },
    /// One with a request id; the wait is set where it may wait.
    Request {
        id: u64,
        wait_ms: Option<u32>,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct Awaited {
    pub asked: Outcome,
    pub opcode: u8,
    pub sent_ms: u64,
    /// Set where the answer may wait for the server's disk.
    is_stored: bool,
}

impl Awaited {
    /// Whether its answer comes in the order of the requests.
    fn is_in_order(&self) -> bool {
        match self.asked {
            _ if self.is_stored => false,
            Outcome::Watch { .. } => false,
            Outcome::Request { wait_ms, .. } => wait_ms.is_none(),
            _ => true,
        }
    }

    /// Whether one that waited in vain was told so soon after.
    pub fn check_waited(&self, frame: &ResponseFrame, now_ms: u64) -> Result<(), String> {
        let Outcome::Request { wait_ms: Some(wait_ms), .. } = self.asked else { return Ok(()) };
        let late_ms = now_ms.saturating_sub(self.sent_ms + u64::from(wait_ms));
        if Status::from_code(frame.status) == Some(Status::TimedOut) && late_ms > LATE_MS_MAX {
            return Err(format!("{self:?} is told that it timed out, {late_ms} ms late"));
        }
        Ok(())
    }

    /// When an answer is overdue.
    fn due_ms(&self) -> u64 {
        let wait_ms = match self.asked {
            Outcome::Request { wait_ms, .. } => wait_ms.unwrap_or(0),
            _ => 0,
        };
        self.sent_ms + u64::from(wait_ms) + PATIENCE.as_millis() as u64
    }
}

/// How long after its time a request that waited in vain is answered at most, with two ways through the network, and with
/// a client that reads nothing meanwhile.
const LATE_MS_MAX: u64 = 3000;

pub struct Line {
    scene: Arc<Scene>,
    pub local: SocketAddr,
    pub opened_ms: u64,
    /// The number of the connection's own session, once its Hello is answered.
    pub own: Option<u64>,
    pub says_hello: bool,
    /// Set when the server has told that it acts for the session.
    pub is_attached: bool,
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    input: BytesMut,
    serial: u32,
    pub awaited: BTreeMap<u32, Awaited>,
    in_order: VecDeque<u32>,
}

impl Line {
    pub async fn open(
        scene: Arc<Scene>,
        client: usize,
        machine: usize,
        namespace: Namespace,
    ) -> Option<Self> {
        let opened_ms = scene.state().now_ms;
        let (local, stream) = connect(&scene, client, machine, namespace).await?;
        let (reader, writer) = stream.into_split();
        Some(Self {
            scene,
            local,
            opened_ms,
            own: None,
            says_hello: false,
            is_attached: false,
            reader,
            writer,
            input: BytesMut::new(),
            serial: 0,
            awaited: BTreeMap::new(),
            in_order: VecDeque::new(),
        })
    }

    /// Appends a request to `bytes`, and gives the opaque that its answer will have.
    pub fn compose(&mut self, request: &Extended<'_>, asked: Outcome, bytes: &mut BytesMut) -> u32 {
        self.serial += 1;
        request.compose(Opaque(self.serial.to_be_bytes()), bytes);
        let sent_ms = self.scene.state().now_ms;
        let is_stored = matches!(asked, Outcome::Open | Outcome::Close | Outcome::Request { .. });
        let is_stored = is_stored && self.scene.disk.is_some();
        let awaited = Awaited { asked, opcode: request.opcode().code(), sent_ms, is_stored };
        if awaited.is_in_order() {
            self.in_order.push_back(self.serial);
        }
        self.awaited.insert(self.serial, awaited);
        self.serial
    }

    /// Appends a Hello to `bytes`.
    pub fn introduce(&mut self, bytes: &mut BytesMut) {
        self.says_hello = true;
        let hello = Extended::Hello { version: 1, label: b"lessee", credentials: &[] };
        self.compose(&hello, Outcome::Hello, bytes);
    }

    /// Sends, and reads meanwhile: two ends that only write would wait for each other.
    pub async fn send(&mut self, bytes: &[u8], pace: Pace) -> Result<(), End> {
        let Self { writer, reader, input, .. } = self;
        let write = timeout(PATIENCE, send(writer, bytes, pace));
        tokio::pin!(write);
        loop {
            tokio::select! {
                biased;
                sent = &mut write => {
                    return sent.unwrap_or_else(|_| Err(End::Lost("nothing was taken in time".to_owned())));
                }
                read = reader.read_buf(input) => {
                    if read? == 0 {
                        return Err(End::Lost("it was closed".to_owned()));
                    }
                }
            }
        }
    }

    /// Waits until something came.
    pub async fn read(&mut self) -> Result<(), End> {
        match self.reader.read_buf(&mut self.input).await? {
            0 => Err(End::Lost("it was closed".to_owned())),
            _ => Ok(()),
        }
    }

    /// Asks one thing while nothing else is awaited, and gives the answer.
    pub async fn ask(&mut self, request: &Extended<'_>, asked: Outcome) -> Result<ResponseFrame, End> {
        let mut bytes = BytesMut::new();
        self.compose(request, asked, &mut bytes);
        self.send(&bytes, Pace::Whole).await?;
        self.answer().await
    }

    /// The next response, which has to come in time.
    pub async fn answer(&mut self) -> Result<ResponseFrame, End> {
        loop {
            if let Some((_, _, frame)) = self.next()? {
                return Ok(frame);
            }
            let read = timeout(PATIENCE, self.read()).await;
            read.unwrap_or_else(|_| Err(End::Lost("no answer came in time".to_owned())))?;
        }
    }

    /// Says that nothing more will be asked, and gives what may still be read: nothing can be sent by it any more.
    pub async fn half_close(&mut self) -> Result<(), End> {
        Ok(self.writer.shutdown().await?)
    }

    /// The life of the server that the connection is to.
    pub fn life(&self) -> u64 {
        self.scene.life_of(self.local)
    }

    /// Whether all is answered that is answered in order.
    pub fn has_answers(&self) -> bool {
        self.in_order.is_empty()
    }

    /// Takes the next response of what came, with what it answers. The second one to a Hello and those after it
    /// are notices.
    pub fn next(&mut self) -> Result<Option<(u32, Awaited, ResponseFrame)>, End> {
        let Some(header) = self.input.first_chunk::<12>() else { return Ok(None) };
        let [magic, opcode, status, reserved, l0, l1, l2, l3, o0, o1, o2, o3] = *header;
        let body_bytes = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        if self.input.len() < 12 + body_bytes {
            return Ok(None);
        }
        self.input.advance(12);
        let body = self.input.split_to(body_bytes).freeze();
        let opaque = u32::from_be_bytes([o0, o1, o2, o3]);
        let awaited = self.awaited.get(&opaque).copied();
        let Some(awaited) = awaited.filter(|awaited| (magic, opcode, reserved) == (0x91, awaited.opcode, 0))
        else {
            return Err(End::Wrong(format!(
                "opcode {opcode:#x} with opaque {opaque} and status {status:#x} answers {awaited:?}"
            )));
        };
        let is_notice = matches!(awaited.asked, Outcome::Hello) && self.own.is_some();
        if awaited.is_in_order() && !is_notice && self.in_order.front() != Some(&opaque) {
            return Err(End::Wrong(format!("{awaited:?} is answered out of turn")));
        }
        let is_last = match awaited.asked {
            Outcome::Hello | Outcome::Watch { .. } => is_notice || status != 0,
            Outcome::List { .. } => status != 0 || body.is_empty(),
            _ => true,
        };
        if awaited.is_in_order() && !is_notice && (is_last || matches!(awaited.asked, Outcome::Hello)) {
            self.in_order.pop_front();
        }
        if is_last && !is_notice {
            self.awaited.remove(&opaque);
        }
        let opaque_bytes = Opaque([o0, o1, o2, o3]);
        Ok(Some((opaque, awaited, ResponseFrame { opcode, status, opaque: opaque_bytes, body })))
    }

    /// Whether every answer is in time. To be asked when nothing is there to be read.
    pub fn check_overdue(&self) -> Result<(), End> {
        let now_ms = self.scene.state().now_ms;
        let is_open = |awaited: &Awaited| match awaited.asked {
            Outcome::Hello => self.own.is_none(),
            Outcome::Watch { .. } => false,
            _ => true,
        };
        match self.awaited.values().find(|awaited| is_open(awaited) && awaited.due_ms() < now_ms) {
            Some(overdue) => Err(End::Lost(format!("no answer came in time to {overdue:?}"))),
            None => Ok(()),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.scene.closed(self.local);
    }
}

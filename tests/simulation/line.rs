//! A connection that speaks the extended operations: its answers may come in another order than its requests.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use signalbox::core::Namespace;
use signalbox::protocol::{Extended, Opaque, ResponseFrame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use turmoil::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::connection::{End, PATIENCE, Pace, connect, send};
use crate::scene::Scene;

/// What a client remembers of a request until it is answered.
#[derive(Clone, Copy, Debug)]
pub enum Asked {
    Hello,
    Open,
    Attach,
    KeepAlive,
    Close,
    Cancel,
    Verify {
        grant: u64,
    },
    /// The holders of a name. Set where the client had all its answers when it asked.
    List {
        is_quiet: bool,
    },
    Watch {
        number: u64,
        is_live: bool,
    },
    Unwatch {
        watch: u32,
    },
    /// One with a request id; set where it may wait.
    Request {
        id: u64,
        wait_ms: Option<u32>,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct Awaited {
    pub asked: Asked,
    pub opcode: u8,
    pub sent_ms: u64,
    /// The session it was for, and the attachment, as the client counts them.
    pub session: u64,
    pub epoch: u64,
}

impl Awaited {
    /// Whether its answer comes in the order of the requests.
    fn is_in_order(&self) -> bool {
        match self.asked {
            Asked::Watch { .. } => false,
            Asked::Request { wait_ms, .. } => wait_ms.is_none(),
            _ => true,
        }
    }

    /// When an answer is overdue.
    fn due_ms(&self) -> u64 {
        let wait_ms = match self.asked {
            Asked::Request { wait_ms, .. } => wait_ms.unwrap_or(0),
            _ => 0,
        };
        self.sent_ms + u64::from(wait_ms) + PATIENCE.as_millis() as u64
    }
}

pub struct Line {
    scene: Arc<Scene>,
    pub local: SocketAddr,
    /// How often the server had been stopped when it was opened.
    pub stops: u64,
    pub opened_ms: u64,
    /// The number of the connection's own session, once it is known.
    pub own: Option<u64>,
    pub says_hello: bool,
    /// Set when it was asked to act for a leased session: what is asked then is never for its own.
    pub was_leased: bool,
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    input: BytesMut,
    serial: u32,
    pub awaited: BTreeMap<u32, Awaited>,
    in_order: VecDeque<u32>,
    has_no_more: bool,
}

impl Line {
    pub async fn open(
        scene: &Arc<Scene>,
        client: usize,
        machine: usize,
        namespace: Namespace,
    ) -> Option<Self> {
        let (opened_ms, stops) = {
            let state = scene.state();
            (state.now_ms, state.server_stops)
        };
        let (local, stream) = connect(scene, client, machine, namespace).await?;
        let (reader, writer) = stream.into_split();
        Some(Self {
            scene: Arc::clone(scene),
            local,
            stops,
            opened_ms,
            own: None,
            says_hello: false,
            was_leased: false,
            reader,
            writer,
            input: BytesMut::new(),
            serial: 0,
            awaited: BTreeMap::new(),
            in_order: VecDeque::new(),
            has_no_more: false,
        })
    }

    /// Appends a request to `bytes`, and gives the opaque that its answer will have.
    pub fn compose(
        &mut self,
        request: &Extended<'_>,
        (asked, session, epoch): (Asked, u64, u64),
        bytes: &mut BytesMut,
    ) -> u32 {
        self.serial += 1;
        request.compose(Opaque(self.serial.to_be_bytes()), bytes);
        let sent_ms = self.scene.state().now_ms;
        self.was_leased |= matches!(asked, Asked::Open | Asked::Attach);
        let awaited = Awaited { asked, opcode: request.opcode().code(), sent_ms, session, epoch };
        if awaited.is_in_order() {
            self.in_order.push_back(self.serial);
        }
        self.awaited.insert(self.serial, awaited);
        self.serial
    }

    /// Sends, and reads meanwhile: two ends that only write would wait for each other.
    pub async fn send(&mut self, bytes: &[u8], pace: Pace) -> Result<(), End> {
        let Self { writer, reader, input, .. } = self;
        let write = tokio::time::timeout(PATIENCE, send(writer, bytes, pace));
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

    /// Says that nothing more will be asked.
    pub async fn half_close(&mut self) -> Result<(), End> {
        self.has_no_more = true;
        Ok(self.writer.shutdown().await?)
    }

    /// Waits until something came.
    pub async fn read(&mut self) -> Result<(), End> {
        match self.reader.read_buf(&mut self.input).await? {
            0 if self.has_no_more && self.in_order.is_empty() => Err(End::Left),
            0 => Err(End::Lost("it was closed".to_owned())),
            _ => Ok(()),
        }
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
        let is_notice = matches!(awaited.asked, Asked::Hello) && self.own.is_some();
        if awaited.is_in_order() && !is_notice && self.in_order.front() != Some(&opaque) {
            return Err(End::Wrong(format!("{awaited:?} is answered out of turn")));
        }
        let is_last = match awaited.asked {
            Asked::Hello | Asked::Watch { .. } => is_notice || status != 0,
            Asked::List { .. } => status != 0 || body.is_empty(),
            _ => true,
        };
        if awaited.is_in_order() && !is_notice && (is_last || matches!(awaited.asked, Asked::Hello)) {
            self.in_order.pop_front();
        }
        if is_last && !is_notice {
            self.awaited.remove(&opaque);
        }
        let opaque_bytes = Opaque([o0, o1, o2, o3]);
        Ok(Some((opaque, awaited, ResponseFrame { opcode, status, opaque: opaque_bytes, body })))
    }

    /// Whether every answer is in time.
    pub fn check_overdue(&self) -> Result<(), End> {
        let now_ms = self.scene.state().now_ms;
        let is_open = |awaited: &Awaited| match awaited.asked {
            Asked::Hello => self.own.is_none(),
            Asked::Watch { .. } => false,
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

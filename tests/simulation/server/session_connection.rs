//! A connection with extended operations, whose answers may arrive in another order than the requests.
//!
//! Invariant: it acts for one session from its first request to its end, so each answer belongs to a known session.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use signalbox_model::{Namespace, Status};
use signalbox_protocol::{Extended, Features, Opaque, ResponseFrame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use turmoil::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::connection::{End, PATIENCE, Pace, connect, send};
use crate::scene::Scene;

/// The kind of a request, with what the client needs to check its answer.
#[derive(Clone, Copy, Debug)]
pub enum RequestKind {
    Hello,
    Open,
    Attach,
    KeepAlive,
    /// A KeepAlive of a connection after another connection was attached.
    StaleKeepAlive,
    Close,
    Cancel {
        id: u64,
    },
    Verify {
        grant: u64,
    },
    /// The holders of a name. `is_quiet` is set if the client had all its answers when it sent the request.
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
    /// A request with an id. The wait is set if the request may wait.
    Request {
        id: u64,
        wait_ms: Option<u32>,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct PendingRequest {
    pub kind: RequestKind,
    pub opcode: u8,
    pub sent_ms: u64,
    /// Set if the server may defer the answer until its disk has stored the change.
    is_stored: bool,
}

impl PendingRequest {
    /// Whether its answer comes in the order of the requests.
    fn is_in_order(&self) -> bool {
        match self.kind {
            _ if self.is_stored => false,
            RequestKind::Watch { .. } => false,
            RequestKind::Request { wait_ms, .. } => wait_ms.is_none(),
            _ => true,
        }
    }

    /// Checks that a wait that timed out was answered in time.
    pub fn check_waited(&self, frame: &ResponseFrame, now_ms: u64) -> Result<(), String> {
        let RequestKind::Request { wait_ms: Some(wait_ms), .. } = self.kind else { return Ok(()) };
        let late_ms = now_ms.saturating_sub(self.sent_ms + u64::from(wait_ms));
        if Status::from_code(frame.status) == Some(Status::TimedOut) && late_ms > LATE_MS_MAX {
            return Err(format!("{self:?} was answered with a timeout, {late_ms} ms late"));
        }
        Ok(())
    }

    /// When an answer is overdue.
    fn due_ms(&self) -> u64 {
        let wait_ms = match self.kind {
            RequestKind::Request { wait_ms, .. } => wait_ms.unwrap_or(0),
            _ => 0,
        };
        self.sent_ms + u64::from(wait_ms) + PATIENCE.as_millis() as u64
    }
}

/// How late the answer to a wait that timed out may be: two ways through the network, and a client that does not read
/// for a time.
const LATE_MS_MAX: u64 = 3000;

pub struct SessionConnection {
    scene: Arc<Scene>,
    pub local: SocketAddr,
    pub opened_ms: u64,
    /// The number of the connection session, once its Hello is answered.
    pub connection_session: Option<u64>,
    pub says_hello: bool,
    /// Set when the server has confirmed that the connection acts for the session.
    pub is_attached: bool,
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    input: BytesMut,
    serial: u32,
    pub pending: BTreeMap<u32, PendingRequest>,
    in_order: VecDeque<u32>,
}

impl SessionConnection {
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
            connection_session: None,
            says_hello: false,
            is_attached: false,
            reader,
            writer,
            input: BytesMut::new(),
            serial: 0,
            pending: BTreeMap::new(),
            in_order: VecDeque::new(),
        })
    }

    /// Appends a request to `bytes`. Returns the opaque that its answer will have.
    pub fn compose(&mut self, request: &Extended<'_>, kind: RequestKind, bytes: &mut Vec<u8>) -> u32 {
        self.serial += 1;
        request.compose(Opaque(self.serial.to_be_bytes()), bytes);
        let sent_ms = self.scene.state().now_ms;
        let is_stored = matches!(kind, RequestKind::Open | RequestKind::Close | RequestKind::Request { .. });
        let is_stored = is_stored && self.scene.disk.is_some();
        let pending = PendingRequest { kind, opcode: request.opcode().code(), sent_ms, is_stored };
        if pending.is_in_order() {
            self.in_order.push_back(self.serial);
        }
        self.pending.insert(self.serial, pending);
        self.serial
    }

    /// Appends a Hello to `bytes`.
    pub fn compose_hello(&mut self, bytes: &mut Vec<u8>) {
        self.says_hello = true;
        let hello = Extended::Hello {
            version: 1,
            label: b"leased",
            credentials: signalbox_protocol::Credentials(&[]),
            features: Features::default(),
        };
        self.compose(&hello, RequestKind::Hello, bytes);
    }

    /// Sends and reads at the same time: two ends that only write would wait for each other.
    pub async fn send(&mut self, bytes: &[u8], pace: Pace) -> Result<(), End> {
        let Self { writer, reader, input, .. } = self;
        let write = timeout(PATIENCE, send(writer, bytes, pace));
        tokio::pin!(write);
        loop {
            tokio::select! {
                biased;
                sent = &mut write => {
                    return sent.unwrap_or_else(|_| Err(End::Lost("nothing was accepted in time".to_owned())));
                }
                read = reader.read_buf(input) => {
                    if read? == 0 {
                        return Err(End::Lost("it was closed".to_owned()));
                    }
                }
            }
        }
    }

    /// Waits until bytes arrive.
    pub async fn read(&mut self) -> Result<(), End> {
        match self.reader.read_buf(&mut self.input).await? {
            0 => Err(End::Lost("it was closed".to_owned())),
            _ => Ok(()),
        }
    }

    /// Sends one request while no other is pending, and returns the answer.
    pub async fn ask(&mut self, request: &Extended<'_>, kind: RequestKind) -> Result<ResponseFrame, End> {
        let mut bytes = Vec::new();
        self.compose(request, kind, &mut bytes);
        self.send(&bytes, Pace::Whole).await?;
        self.answer().await
    }

    /// The next response, which must arrive in time.
    pub async fn answer(&mut self) -> Result<ResponseFrame, End> {
        loop {
            if let Some((_, _, frame)) = self.next()? {
                return Ok(frame);
            }
            let read = timeout(PATIENCE, self.read()).await;
            read.unwrap_or_else(|_| Err(End::Lost("no answer arrived in time".to_owned())))?;
        }
    }

    /// Half-closes the connection: nothing more will be sent, and answers may still be read.
    pub async fn half_close(&mut self) -> Result<(), End> {
        Ok(self.writer.shutdown().await?)
    }

    /// The life of the server that accepted the connection.
    pub fn life(&self) -> u64 {
        self.scene.life_of(self.local)
    }

    /// Whether all answers that come in order have arrived.
    pub fn has_answers(&self) -> bool {
        self.in_order.is_empty()
    }

    /// Takes the next response from the input, with the request that it answers. After its answer, further frames for
    /// a Hello are notices.
    pub fn next(&mut self) -> Result<Option<(u32, PendingRequest, ResponseFrame)>, End> {
        let Some(header) = self.input.first_chunk::<12>() else { return Ok(None) };
        let [magic, opcode, status, reserved, l0, l1, l2, l3, o0, o1, o2, o3] = *header;
        let body_bytes = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        if self.input.len() < 12 + body_bytes {
            return Ok(None);
        }
        self.input.advance(12);
        let body = self.input.split_to(body_bytes).freeze();
        let opaque = u32::from_be_bytes([o0, o1, o2, o3]);
        let pending = self.pending.get(&opaque).copied();
        let Some(pending) = pending.filter(|pending| (magic, opcode, reserved) == (0x91, pending.opcode, 0))
        else {
            return Err(End::Wrong(format!(
                "opcode {opcode:#x} with opaque {opaque} and status {status:#x} answers {pending:?}"
            )));
        };
        let is_notice = matches!(pending.kind, RequestKind::Hello) && self.connection_session.is_some();
        if pending.is_in_order() && !is_notice && self.in_order.front() != Some(&opaque) {
            return Err(End::Wrong(format!("{pending:?} is answered out of order")));
        }
        let is_last = match pending.kind {
            RequestKind::Hello | RequestKind::Watch { .. } => is_notice || status != 0,
            RequestKind::List { .. } => status != 0 || body.is_empty(),
            _ => true,
        };
        if pending.is_in_order() && !is_notice && (is_last || matches!(pending.kind, RequestKind::Hello)) {
            self.in_order.pop_front();
        }
        if is_last && !is_notice {
            self.pending.remove(&opaque);
        }
        let opaque_bytes = Opaque([o0, o1, o2, o3]);
        Ok(Some((opaque, pending, ResponseFrame { opcode, status, opaque: opaque_bytes, body })))
    }

    /// Checks that no answer is overdue. The caller ensures that no input is left.
    pub fn check_overdue(&self) -> Result<(), End> {
        let now_ms = self.scene.state().now_ms;
        let is_open = |pending: &PendingRequest| match pending.kind {
            RequestKind::Hello => self.connection_session.is_none(),
            RequestKind::Watch { .. } => false,
            _ => true,
        };
        match self.pending.values().find(|pending| is_open(pending) && pending.due_ms() < now_ms) {
            Some(overdue) => Err(End::Lost(format!("no answer arrived in time to {overdue:?}"))),
            None => Ok(()),
        }
    }
}

impl Drop for SessionConnection {
    fn drop(&mut self) {
        self.scene.closed(self.local);
    }
}

//! A client's plain connection: it sends bytes, and checks each answer as it arrives.
//!
//! It works on bytes and does not use the product's own client or codec.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use signalbox_model::Namespace;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use turmoil::net::TcpStream;
use turmoil::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::accounting::{Accounting, Answer, Request};
use crate::network::{SERVER, port_of};
use crate::scene::{Scene, key};
use crate::support::INVALID;

/// How long a client waits for the next answer.
pub const PATIENCE: Duration = Duration::from_secs(8);

/// How long a client waits for the server to close a connection with an incomplete frame; the server does so after 10
/// s.
const STALL_PATIENCE: Duration = Duration::from_secs(12);

/// How long a client that has all its answers waits for the end of the connection. The simulated network may hold back
/// an end behind a full buffer until more is sent, which never happens; so an end that does not arrive is no failure.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// How long a slow reader waits between two reads.
const READ_PAUSE: Duration = Duration::from_millis(30);

/// The pieces in which a client sends, and how it reads.
#[derive(Clone, Copy)]
pub enum Pace {
    Whole,
    Pieces(usize),
    SlowReader { read_bytes: usize },
}

/// Why a connection is no longer used.
pub enum End {
    /// The client closed it.
    Left,
    /// It broke, or nothing arrived in time.
    Lost(String),
    /// The server violated the protocol or its guarantees.
    Wrong(String),
}

impl From<std::io::Error> for End {
    fn from(error: std::io::Error) -> Self {
        Self::Lost(error.to_string())
    }
}

pub struct Connection {
    writer: OwnedWriteHalf,
    inbox: Inbox,
    serial: u32,
}

/// The reading half, which interprets the answers.
struct Inbox {
    scene: Arc<Scene>,
    client: usize,
    machine: usize,
    namespace: Namespace,
    local: SocketAddr,
    reader: OwnedReadHalf,
    opened_ms: u64,
    accounting: Accounting,
    /// Unset when the client no longer counts on what it holds.
    is_expecting: bool,
}

impl Connection {
    pub async fn open(
        scene: &Arc<Scene>,
        client: usize,
        machine: usize,
        namespace: Namespace,
    ) -> Option<Self> {
        let opened_ms = scene.state().now_ms;
        let (local, stream) = connect(scene, client, machine, namespace).await?;
        let (reader, writer) = stream.into_split();
        let inbox = Inbox {
            scene: Arc::clone(scene),
            client,
            machine,
            namespace,
            local,
            reader,
            opened_ms,
            accounting: Accounting::new(namespace),
            is_expecting: true,
        };
        Some(Self { writer, inbox, serial: 0 })
    }

    /// Whether the client may count on resources of a name.
    pub fn holds(&self, name: &[u8]) -> bool {
        self.inbox.accounting.expected(name) > 0
    }

    /// Closes the connection, and reports a failure if there was one.
    pub fn conclude(self, end: End) {
        let Inbox { scene, client, machine, opened_ms, .. } = &self.inbox;
        note_end(scene, *client, *machine, *opened_ms, end);
    }

    /// The frames of requests, each with its own opaque.
    fn compose(&mut self, requests: Vec<Request>) -> (Vec<u8>, Vec<([u8; 4], Request)>) {
        let mut bytes = Vec::new();
        let mut pending = Vec::new();
        for request in requests {
            self.serial += 1;
            let opaque = self.serial.to_be_bytes();
            bytes.extend(request.bytes(opaque));
            self.inbox.accounting.sent(&request);
            self.inbox.update_expected(&request);
            pending.push((opaque, request));
        }
        let client = self.inbox.client;
        self.inbox
            .scene
            .event(client, format_args!("sends {} requests, {} bytes", pending.len(), bytes.len()));
        (bytes, pending)
    }

    /// Sends requests, then the rest, and checks the answers. If `leaves` is set, it half-closes the connection.
    pub async fn talk(
        &mut self,
        requests: Vec<Request>,
        rest: Vec<u8>,
        pace: Pace,
        leaves: bool,
    ) -> Result<(), End> {
        if leaves {
            self.inbox.stop_expecting();
        }
        let (mut bytes, pending) = self.compose(requests);
        bytes.extend(rest);
        let Self { writer, inbox, .. } = self;
        let write = async {
            send(writer, &bytes, pace).await?;
            if leaves {
                writer.shutdown().await?;
            }
            Ok::<_, End>(())
        };
        // At the same time: two ends that only write would wait for each other.
        let both = async { tokio::try_join!(write, inbox.receive(&pending, pace)) };
        both.await?;
        if leaves { timeout(END_PATIENCE, inbox.expect_end()).await.unwrap_or(Ok(())) } else { Ok(()) }
    }

    /// Sends requests and the rest, and does not wait for answers.
    pub async fn send_only(&mut self, requests: Vec<Request>, rest: &[u8]) -> Result<(), End> {
        self.inbox.stop_expecting();
        let (mut bytes, _) = self.compose(requests);
        bytes.extend_from_slice(rest);
        in_time(send(&mut self.writer, &bytes, Pace::Whole)).await
    }

    /// Sends requests and then bytes that are not a frame. The server answers the requests, refuses the rest and
    /// closes the connection.
    pub async fn send_garbage(&mut self, requests: Vec<Request>) -> Result<(), End> {
        self.inbox.stop_expecting();
        let (mut bytes, pending) = self.compose(requests);
        bytes.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
        in_time(send(&mut self.writer, &bytes, Pace::Whole)).await?;
        in_time(self.inbox.receive(&pending, Pace::Whole)).await?;
        let header = in_time(self.inbox.header()).await?;
        if (header[0], header[1], header[2]) != (0x91, b'E', INVALID) {
            return Err(End::Wrong(format!("bytes that are not a frame were answered by {header:x?}")));
        }
        let mut message = vec![0; body_bytes(&header)];
        in_time(async { Ok(self.inbox.reader.read_exact(&mut message).await?) }).await?;
        in_time(self.inbox.expect_end()).await
    }

    /// Starts a frame and waits until the server closes the connection.
    pub async fn stall(&mut self, part: &[u8]) -> Result<(), End> {
        self.inbox.stop_expecting();
        let client = self.inbox.client;
        self.inbox.scene.event(client, format_args!("stalls"));
        self.writer.write_all(part).await?;
        let end = timeout(STALL_PATIENCE, self.inbox.expect_end()).await;
        end.unwrap_or_else(|_| Err(End::Lost("the server waits too long for the rest of a frame".to_owned())))
    }
}

/// Connects to the port of a namespace.
pub async fn connect(
    scene: &Scene,
    client: usize,
    machine: usize,
    namespace: Namespace,
) -> Option<(SocketAddr, TcpStream)> {
    let connecting = TcpStream::connect((SERVER, port_of(namespace)));
    // One attempt at a time and with a long timeout: the simulated network fails with more than 64 attempts in its
    // queue.
    let Ok(Ok(stream)) = timeout(Duration::from_secs(60), connecting).await else { return None };
    let local = stream.local_addr().expect("a simulated stream knows its address");
    scene.event(client, format_args!("connects to {namespace:?} as {local}"));
    scene.opened(local, machine);
    Some((local, stream))
}

/// Records why a connection ended, and reports a failure if there was one.
pub fn note_end(scene: &Scene, client: usize, machine: usize, opened_ms: u64, end: End) {
    match end {
        End::Left => scene.event(client, format_args!("leaves")),
        End::Wrong(what) => scene.fail(format!("client {client}: {what}")),
        End::Lost(what) => {
            scene.event(client, format_args!("has lost its connection: {what}"));
            if scene.was_undisturbed(machine, opened_ms) {
                scene.fail(format!("client {client} lost its connection without a fault: {what}"));
            }
        }
    }
}

/// Limits how long a future may take.
async fn in_time<T>(work: impl Future<Output = Result<T, End>>) -> Result<T, End> {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| Err(End::Lost("nothing arrived in time".to_owned())))
}

pub async fn send(writer: &mut OwnedWriteHalf, bytes: &[u8], pace: Pace) -> Result<(), End> {
    let piece_bytes = if let Pace::Pieces(bytes) = pace { bytes } else { bytes.len().max(1) };
    for piece in bytes.chunks(piece_bytes) {
        writer.write_all(piece).await?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn body_bytes(header: &[u8; 12]) -> usize {
    u32::from_be_bytes([header[4], header[5], header[6], header[7]]) as usize
}

impl Inbox {
    fn stop_expecting(&mut self) {
        self.is_expecting = false;
        self.scene.expect_nothing(self.local);
    }

    /// Updates what the client expects to hold of the name of a request.
    fn update_expected(&self, request: &Request) {
        if let Some(name) = request.name()
            && self.is_expecting
        {
            self.scene.expect(self.local, &key(self.namespace, name), self.accounting.expected(name));
        }
    }

    async fn header(&mut self) -> Result<[u8; 12], End> {
        let mut header = [0; 12];
        self.reader.read_exact(&mut header).await?;
        Ok(header)
    }

    async fn answer(&mut self) -> Result<([u8; 12], Vec<u8>), End> {
        let header = self.header().await?;
        let mut body = vec![0; body_bytes(&header)];
        self.reader.read_exact(&mut body).await?;
        Ok((header, body))
    }

    /// Reads the answers to all requests; they come in order.
    async fn receive(&mut self, pending: &[([u8; 4], Request)], pace: Pace) -> Result<(), End> {
        let mut left_to_read = 0;
        for (opaque, request) in pending {
            loop {
                let (header, body) = in_time(self.answer()).await?;
                if let Pace::SlowReader { read_bytes } = pace {
                    left_to_read += header.len() + body.len();
                    if left_to_read >= read_bytes {
                        left_to_read = 0;
                        sleep(READ_PAUSE).await;
                    }
                }
                if (header[0], header[1], header[3], &header[8..]) != (0x91, request.opcode(), 0, &opaque[..])
                {
                    return Err(End::Wrong(format!(
                        "{request:?} with opaque {opaque:x?} was answered by {header:x?}"
                    )));
                }
                let answer = Answer { status: header[2], body };
                let has_more = self.accounting.apply(request, &answer).map_err(End::Wrong)?;
                self.scene.event(self.client, format_args!("{request:?}: {answer:?}"));
                self.update_expected(request);
                if !has_more {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Expects the end of the stream.
    async fn expect_end(&mut self) -> Result<(), End> {
        let mut byte = [0];
        match self.reader.read(&mut byte).await {
            // A reset is also an end: the server may close while bytes for it are in flight.
            Ok(0) | Err(_) => Ok(()),
            Ok(_) => Err(End::Wrong("bytes arrived after the last answer".to_owned())),
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.scene.closed(self.local);
    }
}

//! A task that panics ends only its own connection and releases what it held.
//!
//! No known request makes a task panic, so the stream panics instead.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use crate::support::{
    ACQUIRE, DUMP, GET, NOOP, NOT_AVAILABLE, NearServer, OK, PATIENCE, STATS, assert_books_balance, frame,
    named,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};

/// The operations in which a stream panics. The test enables them.
#[derive(Default)]
struct Faults {
    read: AtomicBool,
    write: AtomicBool,
}

/// The server's end of a connection within the process.
struct Fragile {
    inner: DuplexStream,
    faults: Arc<Faults>,
}

impl AsyncRead for Fragile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        assert!(
            !(read.is_ready() && self.faults.read.load(Ordering::Relaxed)),
            "injected by the test, in a read"
        );
        read
    }
}

impl AsyncWrite for Fragile {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        assert!(!self.faults.write.load(Ordering::Relaxed), "injected by the test, in a write");
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

fn connect(server: &NearServer<Fragile>) -> Peer {
    // Small enough that a Dump does not fit.
    let (near, far) = duplex(4096);
    let faults = Arc::new(Faults::default());
    server.accept(Fragile { inner: far, faults: Arc::clone(&faults) });
    Peer { stream: near, faults }
}

/// The client's end of a connection, and the faults of the server's end.
struct Peer {
    stream: DuplexStream,
    faults: Arc<Faults>,
}

impl Peer {
    async fn send(&mut self, opcode: u8, body: &[u8]) {
        self.stream.write_all(&frame(opcode, *b"test", body)).await.unwrap();
    }

    /// Status and body of the next answer.
    async fn answer(&mut self) -> (u8, Vec<u8>) {
        let mut header = [0; 12];
        soon(self.stream.read_exact(&mut header)).await.unwrap();
        let mut body = vec![0; u32::from_be_bytes(header[4..8].try_into().unwrap()) as usize];
        soon(self.stream.read_exact(&mut body)).await.unwrap();
        (header[2], body)
    }

    async fn ask(&mut self, opcode: u8, body: &[u8]) -> (u8, Vec<u8>) {
        self.send(opcode, body).await;
        self.answer().await
    }

    async fn acquire(&mut self, name: &[u8], resources: u32, maximum: u32) -> u8 {
        self.ask(ACQUIRE, &named(&[resources, maximum], name)).await.0
    }

    async fn consumption(&mut self, name: &[u8]) -> u32 {
        let (status, body) = self.ask(GET, &named(&[], name)).await;
        assert_eq!(status, OK);
        u32::from_be_bytes(body[..].try_into().unwrap())
    }

    async fn stat(&mut self, name: &str) -> u64 {
        let (_, body) = self.ask(STATS, &[]).await;
        let start = body.windows(name.len()).position(|part| part == name.as_bytes()).unwrap();
        let value_bytes = usize::from(u16::from_be_bytes([body[start - 2], body[start - 1]]));
        let value = &body[start + name.len()..][..value_bytes];
        str::from_utf8(value).unwrap().parse().unwrap()
    }

    async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        soon(self.stream.read_to_end(&mut rest)).await.is_ok()
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it completes in time")
}

#[tokio::test]
async fn a_task_that_panics_while_it_reads_releases_what_it_held() {
    let server = NearServer::start();
    let (mut broken, mut other) = (connect(&server), connect(&server));
    for name in [b"a", b"b"] {
        assert_eq!(broken.acquire(name, 2, 2).await, OK);
        assert_eq!(other.acquire(name, 1, 2).await, NOT_AVAILABLE);
    }
    broken.faults.read.store(true, Ordering::Relaxed);
    broken.send(NOOP, &[]).await;
    assert!(broken.is_closed().await);

    for name in [b"a", b"b"] {
        assert_eq!(other.acquire(name, 2, 2).await, OK, "others are served, and what it held is released");
    }
    assert_eq!(other.stat("panics").await, 1);
    assert_eq!(other.stat("curr_connections").await, 1);
    assert_books_balance(&server.server);
    assert_eq!(connect(&server).ask(NOOP, &[]).await.0, OK, "new connections are accepted");
}

#[tokio::test]
async fn a_task_that_panics_while_it_answers_releases_what_that_request_acquired() {
    let server = NearServer::start();
    let (mut broken, mut other) = (connect(&server), connect(&server));
    assert_eq!(broken.acquire(b"before", 1, 1).await, OK);
    broken.faults.write.store(true, Ordering::Relaxed);
    broken.send(ACQUIRE, &named(&[1, 1], b"within")).await;
    assert!(broken.is_closed().await);
    for name in [&b"before"[..], b"within"] {
        assert_eq!(other.consumption(name).await, 0);
        assert_eq!(other.acquire(name, 1, 1).await, OK);
    }
    assert_eq!(other.stat("panics").await, 1);
    assert_books_balance(&server.server);
}

#[tokio::test]
async fn a_task_that_panics_within_a_dump_leaves_nothing_behind() {
    let server = NearServer::start();
    let (mut broken, mut other) = (connect(&server), connect(&server));
    for serial in 0..100u32 {
        assert_eq!(broken.acquire(format!("{serial:0>200}").as_bytes(), 1, 1).await, OK);
    }
    broken.send(DUMP, &[]).await;
    assert_eq!(broken.answer().await.0, OK);
    broken.faults.write.store(true, Ordering::Relaxed);
    assert!(broken.is_closed().await);
    for serial in 0..100u32 {
        assert_eq!(other.acquire(format!("{serial:0>200}").as_bytes(), 1, 1).await, OK);
    }
    // The interrupted turn left output in a buffer that connections share; it must not reach another peer.
    assert_eq!(other.ask(NOOP, &[]).await, (OK, Vec::new()));
    assert_eq!(other.stat("panics").await, 1);
    assert_books_balance(&server.server);
}

#[tokio::test]
async fn each_of_many_panics_is_counted_and_ends_one_connection() {
    let server = NearServer::start();
    let mut other = connect(&server);
    for panics in 1..=20 {
        let mut broken = connect(&server);
        assert_eq!(broken.acquire(b"name", 1, 1).await, OK);
        broken.faults.read.store(true, Ordering::Relaxed);
        broken.send(NOOP, &[]).await;
        assert!(broken.is_closed().await);
        assert_eq!(other.consumption(b"name").await, 0);
        assert_eq!(other.stat("panics").await, panics);
    }
    assert_eq!(other.stat("curr_connections").await, 1);
}

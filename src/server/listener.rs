//! Accepts connections, refuses those above the limit, and retries when accepting fails. The socket of a service port
//! rests while a client opens connections without end, so that these cost little.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::admission::Admission;
use super::client_address::ClientAddress;
use super::port::port_name;
use super::state::Server;
use super::throttle::Rate;
use super::workers::Spawn;
use signalbox_model::Namespace;

/// The number of refusals per second above which the listener rests.
const MANY_REFUSALS: f64 = 1000.0;

/// How long new connections wait in the kernel's queue during a rest, to be accepted together. Otherwise each one wakes
/// the thread, which takes a core from a worker.
const REST: Duration = Duration::from_millis(5);

/// How many connections are accepted between two rests, so that a worker that needs the core waits for little more than
/// a millisecond. Above 50,000 connections a second the queue fills: the kernel drops further ones, and their clients try
/// again after a second.
const ACCEPTED_MAX: u32 = 256;

/// A source of connections: a socket or a simulated one.
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream: Send + 'static;

    /// Waits for the next connection and its peer's address.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;

    /// Notes that the connection that was accepted last was refused at once.
    fn note_refusal(&mut self) {}

    /// Sets the options of a connection's socket.
    fn prepare(_stream: &Self::Stream, _peer_timeout: Duration) -> io::Result<()> {
        Ok(())
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        TcpListener::accept(self).await
    }

    fn prepare(stream: &TcpStream, peer_timeout: Duration) -> io::Result<()> {
        prepare_connection(stream, peer_timeout)
    }
}

/// Accepts the connections of a port and starts to serve them, until the returned future is dropped.
pub async fn serve_port<L: Listener>(
    server: Arc<Server>,
    namespace: Namespace,
    listener: L,
    workers: impl Spawn<L::Stream>,
) {
    let port = server.port(namespace);
    let failed = || {
        port.metrics.failed_accepts.add(1);
        port.warnings.failed_accept.permits()
    };
    accept_all(listener, port_name(namespace), failed, |listener, stream, peer| {
        if !admit::<L>(&server, namespace, stream, ClientAddress::of_peer(peer), &workers) {
            listener.note_refusal();
        }
    })
    .await;
}

/// Accepts connections until the returned future is dropped, and passes each on to `take`.
///
/// It waits longer after each accept that failed: the connection stays in the queue of the kernel, so accepting it
/// again at once would be a busy loop. `failed` notes a failure, and returns whether a warning may be logged; `port` is
/// the name of the port in the warning.
pub(super) async fn accept_all<L: Listener>(
    mut listener: L,
    port: &'static str,
    failed: impl Fn() -> bool,
    mut take: impl FnMut(&mut L, L::Stream, SocketAddr),
) {
    let mut failures = 0_u32;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                failures = 0;
                take(&mut listener, stream, peer);
            }
            Err(error) if is_of_the_peer(&error) => {
                debug!(port, %error, "the peer closed a connection before it was accepted");
            }
            Err(error) => {
                if failed() {
                    warn!(
                        port,
                        %error,
                        "connections cannot be accepted and wait; if files ran out, raise LimitNOFILE (ulimit -n) or lower \
                         max_connections"
                    );
                }
                sleep(Duration::from_millis(10 << failures.min(6))).await;
                failures += 1;
            }
        }
    }
}

/// Hands a connection to a worker, unless the port or the client has reached its limit: then it is closed. Returns
/// whether it was admitted.
pub(super) fn admit<L: Listener>(
    server: &Arc<Server>,
    namespace: Namespace,
    stream: L::Stream,
    client: ClientAddress,
    workers: &impl Spawn<L::Stream>,
) -> bool {
    let peer = client.socket();
    // Dropping the stream refuses the connection: the peer sees it closed.
    let Ok(admission) = Admission::request(server, namespace, client) else {
        if server.port(namespace).warnings.refused_connection.permits() {
            warn!(
                port = port_name(namespace),
                %peer,
                "connections are refused: max_connections is reached; raise it, or find the client that opens so many"
            );
        }
        return false;
    };
    // The client has used up its share, which was logged.
    let Some(admission) = admission else { return false };
    match L::prepare(&stream, server.peer_timeout()) {
        Ok(()) => workers.spawn(admission, stream, client),
        Err(error) => debug!(%peer, %error, "connection lost before it was served"),
    }
    true
}

fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// A listening socket that rests while many connections are refused: it accepts some of those that wait, and looks for
/// more only after a while. Nothing wakes its thread in between, because the socket is then not registered with the
/// runtime.
#[derive(Debug)]
pub(super) struct RestingListener {
    socket: StdTcpListener,
    refusals: Rate,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Each connection wakes the thread. This is the same socket, registered with the runtime.
    Registered(TcpListener),
    /// Many connections are refused, so the socket rests again and again.
    Resting {
        /// The number of connections that were accepted since the last rest.
        accepted: u32,
        /// Whether many connections were refused since the last rest.
        must_rest: bool,
    },
}

impl RestingListener {
    /// Returns a listener on this socket, which must be non-blocking.
    pub(super) fn new(socket: StdTcpListener) -> io::Result<Self> {
        let state = State::registered(&socket)?;
        Ok(Self { socket, refusals: Rate::default(), state })
    }
}

impl Listener for RestingListener {
    /// Not registered with a runtime yet: the worker that serves the connection registers it with its own.
    type Stream = StdTcpStream;

    async fn accept(&mut self) -> io::Result<(StdTcpStream, SocketAddr)> {
        loop {
            let (accepted, must_rest) = match &mut self.state {
                State::Registered(socket) => {
                    let (stream, peer) = socket.accept().await?;
                    return Ok((stream.into_std()?, peer));
                }
                State::Resting { accepted, must_rest } => (accepted, *must_rest),
            };
            if *accepted < ACCEPTED_MAX {
                // The other tasks of the thread run in between.
                consume_budget().await;
                *accepted += 1;
                match self.socket.accept() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    result => return result,
                }
                if !must_rest {
                    self.state = State::registered(&self.socket)?;
                    continue;
                }
            }
            self.state = State::Resting { accepted: 0, must_rest: false };
            sleep(REST).await;
        }
    }

    fn note_refusal(&mut self) {
        let now = Instant::now();
        self.refusals.note(now, 1.0);
        if self.refusals.per_second(now) > MANY_REFUSALS {
            match &mut self.state {
                State::Registered(_) => self.state = State::Resting { accepted: 0, must_rest: true },
                State::Resting { must_rest, .. } => *must_rest = true,
            }
        }
    }

    fn prepare(stream: &StdTcpStream, peer_timeout: Duration) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        prepare_connection(stream, peer_timeout)
    }
}

impl State {
    fn registered(socket: &StdTcpListener) -> io::Result<Self> {
        Ok(Self::Registered(TcpListener::from_std(socket.try_clone()?)?))
    }
}

/// Makes the kernel detect a vanished peer within `peer_timeout`, and send responses without delay.
///
/// The kernel probes an idle connection after 2/7 of the timeout, and then every 1/7. Neither unanswered probes nor
/// unacknowledged data may last longer than 5/7: data may be sent just before the first probe, so both together stay
/// within the timeout. TCP_USER_TIMEOUT also ends a connection whose peer is alive but takes no output for that long.
pub(super) fn prepare_connection(stream: &impl AsFd, peer_timeout: Duration) -> io::Result<()> {
    let part = peer_timeout / 7;
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time((part * 2).max(Duration::from_secs(1)))
            .with_interval(part.max(Duration::from_secs(1)))
            .with_retries(3),
    )?;
    socket.set_tcp_user_timeout(Some(part * 5))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock stands still, except in a rest.
    #[tokio::test(start_paused = true)]
    async fn a_listener_rests_while_many_are_refused_and_accepts_everything() {
        let socket = StdTcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let mut listener = RestingListener::new(socket).unwrap();
        let connect = move || StdTcpStream::connect(address).unwrap();
        let mut accept = async |is_refused: bool| {
            let connected = connect();
            let (_, peer) = listener.accept().await.unwrap();
            assert_eq!(peer, connected.local_addr().unwrap());
            if is_refused {
                listener.note_refusal();
            }
            matches!(listener.state, State::Resting { .. })
        };
        assert!(!accept(false).await);
        for _ in 0..MANY_REFUSALS as u32 {
            assert!(!accept(true).await, "few are refused");
        }
        assert!(accept(true).await, "many are refused");
        let many = Instant::now();
        for _ in 0..ACCEPTED_MAX {
            assert!(accept(true).await);
        }
        assert_eq!(many.elapsed(), Duration::ZERO, "this many are accepted without a rest");
        accept(true).await;
        assert!(many.elapsed() >= REST);
        // The next one comes after the rest, and is awaited as usual.
        let connected = tokio::spawn(async move {
            sleep(REST * 2).await;
            connect()
        });
        let (_, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, connected.await.unwrap().local_addr().unwrap());
        assert!(matches!(listener.state, State::Registered(_)));
    }
}

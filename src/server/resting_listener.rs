//! The socket of a service port, which costs little while a client opens connections without end.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep};

use super::listener::Listener;
use super::rate::Rate;
use super::socket;

/// The number of refusals per second from which on the listener rests.
const MANY_REFUSALS: f64 = 1000.0;

/// For this time, new connections wait in the kernel's queue, and are accepted together. Otherwise each one wakes the thread,
/// which takes the core from a worker for it.
const REST: Duration = Duration::from_millis(5);

/// How many connections are accepted between two rests, so that a worker that needs the core waits for little more than a
/// millisecond. Above 50,000 connections a second the queue fills, and the kernel has further ones try again after a second.
const ACCEPTED_MAX: u32 = 256;

/// A listening socket that rests while many connections are refused: it accepts some of those that are there, and looks for
/// more only after a while. Nothing wakes its thread meanwhile, because the socket is not registered with the runtime then.
#[derive(Debug)]
pub(super) struct RestingListener {
    socket: TcpListener,
    refusals: Rate,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Each connection wakes the thread. This is the same socket, registered with the runtime.
    Registered(tokio::net::TcpListener),
    /// Many connections are refused, so it rests again and again.
    Resting {
        /// Connections that were accepted since the last rest.
        accepted: u32,
        /// Many connections were refused since the last rest.
        must_rest: bool,
    },
}

impl RestingListener {
    /// A listener of this socket, which does not block.
    pub(super) fn new(socket: TcpListener) -> io::Result<Self> {
        let state = State::registered(&socket)?;
        Ok(Self { socket, refusals: Rate::default(), state })
    }
}

impl Listener for RestingListener {
    /// It is registered with the runtime that serves it, and with no other one.
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
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

    fn prepare(stream: &TcpStream, peer_timeout: Duration) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        socket::prepare_connection(stream, peer_timeout)
    }
}

impl State {
    fn registered(socket: &TcpListener) -> io::Result<Self> {
        Ok(Self::Registered(tokio::net::TcpListener::from_std(socket.try_clone()?)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock stands still, except in a rest.
    #[tokio::test(start_paused = true)]
    async fn a_listener_rests_while_many_are_refused_and_accepts_everything() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let mut listener = RestingListener::new(socket).unwrap();
        let connect = move || TcpStream::connect(address).unwrap();
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
        assert_eq!(many.elapsed(), Duration::ZERO, "so many are accepted without a rest");
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

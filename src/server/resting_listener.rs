//! The socket of a service port, which costs little while a client opens connections without end.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep};

use super::listener::Listener;
use super::rate::Rate;
use super::socket;

/// From so many refusals a second on, the listener rests.
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
    /// The same socket, registered with the runtime. `None`: many connections are refused.
    registered: Option<tokio::net::TcpListener>,
    refusals: Rate,
    /// Connections that were accepted since the last rest.
    accepted: u32,
    /// Many connections were refused since the last rest.
    must_rest: bool,
}

impl RestingListener {
    /// A listener of this socket, which does not block.
    pub(super) fn new(socket: TcpListener) -> io::Result<Self> {
        let registered = Some(register(&socket)?);
        Ok(Self { socket, registered, refusals: Rate::default(), accepted: 0, must_rest: false })
    }
}

impl Listener for RestingListener {
    /// It is registered with the runtime that serves it, and with no other one.
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            if let Some(registered) = &self.registered {
                let (stream, peer) = registered.accept().await?;
                return Ok((stream.into_std()?, peer));
            }
            if self.accepted < ACCEPTED_MAX {
                // The other tasks of the thread run in between.
                consume_budget().await;
                self.accepted += 1;
                match self.socket.accept() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    accepted => return accepted,
                }
                if !self.must_rest {
                    self.registered = Some(register(&self.socket)?);
                    continue;
                }
            }
            (self.accepted, self.must_rest) = (0, false);
            sleep(REST).await;
        }
    }

    fn note_refusal(&mut self) {
        let now = Instant::now();
        self.refusals.note(now);
        if self.refusals.per_second(now) > MANY_REFUSALS {
            self.must_rest = true;
            if self.registered.take().is_some() {
                self.accepted = 0;
            }
        }
    }

    fn prepare(stream: &TcpStream, peer_timeout: Duration) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        socket::prepare_connection(stream, peer_timeout)
    }
}

fn register(socket: &TcpListener) -> io::Result<tokio::net::TcpListener> {
    tokio::net::TcpListener::from_std(socket.try_clone()?)
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
            listener.registered.is_none()
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
        assert!(listener.registered.is_some());
    }
}

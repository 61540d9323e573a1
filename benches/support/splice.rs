//! The least work that a relay can do: it polls, reads once from one side, and writes once to the other.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::process::exit;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

/// The argument that makes a benchmark's own binary this relay.
pub const ARGUMENT: &str = "--be-the-splice";

const READ_BYTES: usize = 16 * 1024;

/// Runs the relay if the arguments are `--be-the-splice ADDRESS`: it forwards all connections to that address, on one
/// thread. It prints its port on standard output and ends when its standard input ends.
pub fn become_if_asked() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(ARGUMENT) {
        let to = arguments.next().and_then(|to| to.parse().ok()).expect("an address follows");
        serve(to).unwrap_or_else(|error| panic!("the splice: {error}"));
    }
}

fn serve(to: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        exit(0);
    });
    let poll = Poll::new()?;
    let registry = poll.registry().try_clone()?;
    let (hand, handed) = channel();
    thread::spawn(move || work(poll, &handed));
    // The two ends of a connection have neighbouring numbers.
    let mut number = 0;
    loop {
        let (client, _) = listener.accept()?;
        let server = std::net::TcpStream::connect(to)?;
        for stream in [client, server] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            registry.register(&mut stream, Token(number), Interest::READABLE)?;
            number += 1;
            hand.send(stream).map_err(io::Error::other)?;
        }
    }
}

fn work(mut poll: Poll, handed: &Receiver<TcpStream>) -> io::Result<()> {
    let mut streams: Vec<TcpStream> = Vec::new();
    let mut events = Events::with_capacity(1024);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for event in &events {
            let number = event.token().0;
            // A stream is registered before it is handed over, and its other end after it.
            while streams.len() <= (number | 1) {
                streams.push(handed.recv().map_err(io::Error::other)?);
            }
            forward(&streams[number], &streams[number ^ 1], &mut buffer);
        }
    }
}

/// Forwards until there is nothing more. The load never fills a socket.
fn forward(mut from: &TcpStream, mut to: &TcpStream, buffer: &mut [u8]) {
    loop {
        match from.read(buffer) {
            Ok(0) => return drop(to.shutdown(Shutdown::Write)),
            Ok(read) => {
                if to.write_all(&buffer[..read]).is_err() {
                    return;
                }
                // A short read has emptied the socket.
                if read < buffer.len() {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

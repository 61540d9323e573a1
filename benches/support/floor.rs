//! The floor: the least work that a server of this protocol can do. It polls, reads once, writes once, and answers
//! every frame with a constant. It has no names, and stores nothing except an incomplete frame.
//!
//! The cost of a server above the floor is the cost of its rules; the floor itself is the cost of the kernel.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::process::exit;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

/// The argument that makes a benchmark's own binary this server.
pub const ARGUMENT: &str = "--be-the-floor";

const HEADER_BYTES: usize = 12;
const ACQUIRE: u8 = 2;
const READ_BYTES: usize = 64 * 1024;

/// Runs the floor if the arguments are `--be-the-floor THREADS`. It prints its port on standard output and ends when
/// its standard input ends, so that it never outlives the benchmark.
pub fn become_if_asked() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(ARGUMENT) {
        let threads = arguments.next().and_then(|threads| threads.parse().ok()).unwrap_or(2);
        serve(threads).unwrap_or_else(|error| panic!("the floor: {error}"));
    }
}

fn serve(threads: usize) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        exit(0);
    });
    let mut workers = Vec::new();
    for _ in 0..threads {
        let poll = Poll::new()?;
        let registry = poll.registry().try_clone()?;
        let (hand, handed) = channel();
        thread::spawn(move || work(poll, &handed));
        workers.push((registry, hand, 0));
    }
    for turn in (0..threads).cycle() {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        let (registry, hand, connections) = &mut workers[turn];
        registry.register(&mut stream, Token(*connections), Interest::READABLE)?;
        *connections += 1;
        hand.send(stream).map_err(io::Error::other)?;
    }
    Ok(())
}

struct Connection {
    /// `None` once it is closed.
    stream: Option<TcpStream>,
    incomplete: Vec<u8>,
}

fn work(mut poll: Poll, handed: &Receiver<TcpStream>) -> io::Result<()> {
    let mut connections: Vec<Connection> = Vec::new();
    let mut events = Events::with_capacity(1024);
    let mut buffer = vec![0; READ_BYTES];
    let mut answers = Vec::with_capacity(READ_BYTES);
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for event in &events {
            // A connection is registered before it is handed over, so its first event may arrive earlier than the
            // connection.
            while connections.len() <= event.token().0 {
                let stream = handed.recv().map_err(io::Error::other)?;
                connections.push(Connection { stream: Some(stream), incomplete: Vec::new() });
            }
            let connection = &mut connections[event.token().0];
            if connection.answer(&mut buffer, &mut answers).is_err() {
                connection.stream = None;
            }
        }
    }
}

impl Connection {
    /// One read and one write; more only if the buffer was too small for the received bytes.
    fn answer(&mut self, buffer: &mut [u8], answers: &mut Vec<u8>) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        loop {
            let read = match stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            answers.clear();
            if self.incomplete.is_empty() {
                let answered = answer_frames(&buffer[..read], answers);
                self.incomplete.extend_from_slice(&buffer[answered..read]);
            } else {
                self.incomplete.extend_from_slice(&buffer[..read]);
                let answered = answer_frames(&self.incomplete, answers);
                self.incomplete.drain(..answered);
            }
            // Clients of the benchmarks read their answers, so these fit into the socket's buffer.
            stream.write_all(answers)?;
            if read < buffer.len() {
                return Ok(());
            }
        }
    }
}

/// Appends an answer for every complete frame and returns the number of bytes of these frames.
pub fn answer_frames(bytes: &[u8], answers: &mut Vec<u8>) -> usize {
    let mut position = 0;
    while let Some(header) = bytes[position..].first_chunk::<HEADER_BYTES>() {
        let [_, opcode, _, _, b0, b1, b2, b3, o0, o1, o2, o3] = *header;
        let frame_bytes = HEADER_BYTES + u32::from_be_bytes([b0, b1, b2, b3]) as usize;
        if bytes.len() - position < frame_bytes {
            break;
        }
        position += frame_bytes;
        if opcode == ACQUIRE {
            answers.extend_from_slice(&[0x91, opcode, 0, 0, 0, 0, 0, 4, o0, o1, o2, o3, 0, 0, 0, 1]);
        } else {
            answers.extend_from_slice(&[0x91, opcode, 0, 0, 0, 0, 0, 0, o0, o1, o2, o3]);
        }
    }
    position
}

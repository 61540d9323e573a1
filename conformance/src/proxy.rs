//! The network between a driver and the server: a proxy with faults.
//!
//! It forwards plain HTTP request by request, so that a fault affects one request. It forwards other protocols and TLS
//! as the bytes arrive.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use crate::PATIENCE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Requests and answers are delayed by these times.
    Delay {
        up_ms: u64,
        down_ms: u64,
    },
    /// A request is not forwarded, and its connection is closed.
    DropBefore,
    /// An answer is not forwarded, and its connection is closed.
    DropAfter,
    /// An HTTP request arrives again after this time, over another connection.
    Duplicate {
        after_ms: u64,
    },
    /// Connections are closed, including new ones.
    Cut,
    /// Connections stay open, but nothing that is sent over them arrives, even after the fault has ended.
    HalfOpen,
    /// Nothing arrives until the fault has ended.
    Freeze,
}

#[derive(Debug)]
struct State {
    fault: Fault,
    /// Whether the fault has dropped something.
    has_dropped: bool,
    /// The number of the next connection.
    next: usize,
    /// Connections below this number no longer forward anything.
    dead_below: usize,
    /// Both streams of each connection that is open.
    open: HashMap<usize, [TcpStream; 2]>,
}

/// The state, and the condition variable that is notified when the fault changes or drops something.
#[derive(Debug)]
struct Shared(Mutex<State>, Condvar);

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no thread panics with the lock")
    }

    /// Waits while the network is frozen. Returns the fault in effect, or `None` if the connection no longer forwards
    /// anything.
    fn fault_of(&self, connection: usize) -> Option<Fault> {
        let mut state = self.state();
        loop {
            match state.fault {
                Fault::HalfOpen => return None,
                _ if connection < state.dead_below => return None,
                Fault::Freeze => state = self.1.wait(state).expect("no thread panics with the lock"),
                fault => return Some(fault),
            }
        }
    }

    /// Records that the fault has dropped something. Returns true, because its connection is to be closed.
    fn record_drop(&self) -> bool {
        self.state().has_dropped = true;
        self.1.notify_all();
        true
    }

    fn close(&self, connection: usize) {
        for stream in self.state().open.remove(&connection).into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The network of one driver.
#[derive(Debug)]
pub struct Network {
    /// The addresses of each node for HTTP and for the binary protocol, as the driver gets them.
    pub addresses: Vec<(SocketAddr, SocketAddr)>,
    shared: Arc<Shared>,
}

impl Network {
    /// Starts a proxy for each of the two ports of each node.
    pub fn to(nodes: &[(SocketAddr, SocketAddr)]) -> io::Result<Self> {
        let state =
            State { fault: Fault::None, has_dropped: false, next: 0, dead_below: 0, open: HashMap::new() };
        let shared = Arc::new(Shared(Mutex::new(state), Condvar::new()));
        let listen = |server, read_unit: ReadUnit| {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?;
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for near in listener.incoming().map_while(Result::ok) {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || connect(near, server, read_unit, shared));
                }
            });
            io::Result::Ok(address)
        };
        let addresses = nodes
            .iter()
            .map(|(http, binary)| Ok((listen(*http, read_request)?, listen(*binary, read_some)?)))
            .collect::<io::Result<_>>()?;
        Ok(Self { addresses, shared })
    }

    /// Replaces the fault.
    pub fn set(&self, fault: Fault) {
        let mut state = self.shared.state();
        if state.fault == Fault::HalfOpen {
            state.dead_below = state.next;
        }
        state.fault = fault;
        state.has_dropped = false;
        if fault == Fault::Cut {
            for stream in state.open.drain().flat_map(|(_, streams)| streams) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        self.shared.1.notify_all();
    }

    /// Waits until the fault has dropped a request or an answer.
    pub fn must_drop(&self) -> Result<(), String> {
        let condition = &self.shared.1;
        let waited = condition.wait_timeout_while(self.shared.state(), PATIENCE, |state| !state.has_dropped);
        if waited.expect("no thread panics with the lock").1.timed_out() {
            return Err("the driver has sent nothing that the network could drop".to_owned());
        }
        Ok(())
    }
}

type ReadUnit = fn(&mut TcpStream) -> io::Result<Vec<u8>>;

/// Connects to the server, and forwards in both directions until one of them ends.
fn connect(near: TcpStream, server: SocketAddr, read_unit: ReadUnit, shared: Arc<Shared>) {
    if shared.state().fault == Fault::Cut {
        shared.record_drop();
        return;
    }
    let Ok(far) = TcpStream::connect(server) else { return };
    let copy = |stream: &TcpStream| stream.try_clone().expect("the process has descriptors left");
    let pipe = {
        let mut state = shared.state();
        let number = state.next;
        state.next += 1;
        state.open.insert(number, [copy(&near), copy(&far)]);
        Pipe { number, server, shared: Arc::clone(&shared) }
    };
    let read_unit = if begins_with_tls(&near) { read_some } else { read_unit };
    let (answers, requests) = (pipe.clone(), pipe);
    let (far_reader, near_writer) = (copy(&far), copy(&near));
    thread::spawn(move || {
        if answers.forward(far_reader, near_writer, read_some, false) {
            answers.shared.close(answers.number);
        }
    });
    if requests.forward(near, far, read_unit, true) {
        requests.shared.close(requests.number);
    }
}

#[derive(Clone)]
struct Pipe {
    number: usize,
    server: SocketAddr,
    shared: Arc<Shared>,
}

impl Pipe {
    /// Forwards one direction until it ends, and returns whether the connection is to be closed then.
    fn forward(&self, mut from: TcpStream, mut to: TcpStream, read: ReadUnit, is_up: bool) -> bool {
        while let Ok(unit) = read(&mut from) {
            let Some(fault) = self.shared.fault_of(self.number) else { return false };
            match fault {
                Fault::Delay { up_ms, down_ms } => {
                    thread::sleep(Duration::from_millis(if is_up { up_ms } else { down_ms }));
                    // The fault may have changed meanwhile.
                    if self.shared.fault_of(self.number).is_none() {
                        return false;
                    }
                }
                Fault::DropBefore if is_up => return self.shared.record_drop(),
                Fault::DropAfter if !is_up => return self.shared.record_drop(),
                Fault::Cut => return self.shared.record_drop(),
                Fault::Duplicate { after_ms } if is_up && unit.starts_with(b"POST ") => {
                    let (server, unit) = (self.server, unit.clone());
                    thread::spawn(move || {
                        thread::sleep(Duration::from_millis(after_ms));
                        let mut stream = TcpStream::connect(server)?;
                        stream.write_all(&unit)?;
                        read_some(&mut stream)
                    });
                }
                _ => {}
            }
            if to.write_all(&unit).is_err() {
                return true;
            }
        }
        // A connection that forwards nothing does not forward its end either.
        self.shared.fault_of(self.number).is_some()
    }
}

/// Waits for the first byte of a connection, and returns whether it is that of a TLS handshake.
fn begins_with_tls(stream: &TcpStream) -> bool {
    let mut first = [0];
    stream.peek(&mut first).is_ok() && first == [0x16]
}

/// Reads the bytes that have arrived. The end of the stream is an error.
fn read_some(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 16 * 1024];
    let length = stream.read(&mut bytes)?;
    bytes.truncate(length);
    if length == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}

/// Reads one HTTP request. The client sends the next one only after the answer.
fn read_request(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut request = read_some(stream)?;
    while is_incomplete(&request) {
        request.extend(read_some(stream)?);
    }
    Ok(request)
}

fn is_incomplete(request: &[u8]) -> bool {
    let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { return true };
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    request.len() < end + 4 + length.unwrap_or(0)
}

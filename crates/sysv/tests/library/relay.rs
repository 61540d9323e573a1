//! A relay between the library and a server, with which a test loses connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Forwards connections to a server.
pub struct Relay {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    is_frozen: Arc<AtomicBool>,
}

struct State {
    /// `None`: connections are refused by closing them.
    server: Option<SocketAddr>,
    streams: Vec<TcpStream>,
}

impl Relay {
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { server: Some(server), streams: Vec::new() }));
        let shared = Arc::clone(&state);
        let is_frozen = Arc::new(AtomicBool::new(false));
        let frozen = Arc::clone(&is_frozen);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let mut state = shared.lock().unwrap();
                let Some(far) = state.server.and_then(|server| TcpStream::connect(server).ok()) else {
                    continue;
                };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let frozen = Arc::clone(&frozen);
                    std::thread::spawn(move || forward(from, to, &frozen));
                }
                // The server's side is reset first: a regular end of the client's would be passed on to it.
                state.streams.extend([far, near]);
            }
        });
        Self { address, state, is_frozen }
    }

    /// From now on, connections are open and silent, also new ones: those of a server whose process is stopped.
    pub fn freeze(&self) {
        self.is_frozen.store(true, Ordering::Relaxed);
    }

    /// Resets all connections, and forwards new ones to this server.
    pub fn reset(&self, server: Option<SocketAddr>) {
        let mut state = self.state.lock().unwrap();
        state.server = server;
        for stream in state.streams.drain(..) {
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let (option, bytes) = (&raw const linger, size_of::<libc::linger>() as libc::socklen_t);
            // SAFETY: the option's value is this structure.
            unsafe {
                libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, option.cast(), bytes);
                // Disconnects without a regular end, although the threads hold the socket as well.
                let unspecified = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
                let bytes = size_of::<libc::sockaddr>() as libc::socklen_t;
                libc::connect(stream.as_raw_fd(), &raw const unspecified, bytes);
            }
        }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, is_frozen: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if is_frozen.load(Ordering::Relaxed) {
            continue;
        }
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
    if !is_frozen.load(Ordering::Relaxed) {
        let _ = to.shutdown(Shutdown::Write);
    }
}

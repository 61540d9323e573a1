//! Ports for servers of the tests.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Ports that nobody listens on, on any address. Not of those that the kernel gives to clients: connecting to such a
/// one before anybody listens there may connect a client to itself.
pub fn free_ports<const N: usize>() -> [u16; N] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = 12_000 + (std::process::id() % 15_000) as u16;
    [(); N].map(|()| {
        loop {
            let port = start + NEXT.fetch_add(1, Ordering::Relaxed) % 5_000;
            if ["[::]", "0.0.0.0"]
                .iter()
                .any(|address| TcpListener::bind(format!("{address}:{port}")).is_ok())
            {
                return port;
            }
        }
    })
}

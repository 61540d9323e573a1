//! Ports for the servers of tests.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Ports on which no process listens, on any address. They are outside the kernel's ephemeral range: a client that
/// connects to an ephemeral port without a listener may connect to itself.
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

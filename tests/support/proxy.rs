//! A proxy between a client and a server, by which a test can interrupt the network.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::eventually;

/// How the proxy handles connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They are forwarded to this server.
    To(SocketAddr),
    /// Existing and new connections are closed.
    Cut,
    /// They stay open, and nothing is forwarded.
    Silent,
}

/// Forwards connections according to its mode. A change of the mode ends those that were forwarded before.
pub struct Proxy {
    pub address: SocketAddr,
    mode: watch::Sender<Mode>,
    /// The number of connections that are forwarded.
    forwarded: Arc<AtomicUsize>,
    /// The number of connections accepted so far.
    accepted: Arc<AtomicUsize>,
    runtime: Option<Runtime>,
}

impl Proxy {
    pub fn to(server: SocketAddr) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, modes) = watch::channel(Mode::To(server));
        let forwarded = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&forwarded);
        let accepted = Arc::new(AtomicUsize::new(0));
        let all = Arc::clone(&accepted);
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                all.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(pass(stream, modes.clone(), Arc::clone(&counter)));
            }
        });
        Self { address, mode, forwarded, accepted, runtime: Some(runtime) }
    }

    /// The number of connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Sets the mode. Bytes that are sent from now on are forwarded only if the new mode forwards them.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
        if !matches!(mode, Mode::To(_)) {
            eventually("nothing is forwarded", || self.forwarded.load(Ordering::SeqCst) == 0);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Does not block, because a test inside a runtime must not.
        self.runtime.take().expect("only taken here").shutdown_background();
    }
}

async fn pass(mut near: TcpStream, mut modes: watch::Receiver<Mode>, forwarded: Arc<AtomicUsize>) {
    let mut far = None;
    let first = *modes.borrow_and_update();
    if let Mode::To(server) = first {
        far = TcpStream::connect(server).await.ok();
        let Some(far) = &mut far else { return };
        forwarded.fetch_add(1, Ordering::SeqCst);
        let has_new_mode = tokio::select! {
            biased;
            changed = modes.changed() => changed.is_ok(),
            _ = copy_bidirectional(&mut near, far) => false,
        };
        forwarded.fetch_sub(1, Ordering::SeqCst);
        if !has_new_mode {
            return;
        }
    }
    // Both streams stay open while the proxy is silent.
    let _ = modes.wait_for(|mode| *mode != Mode::Silent).await;
    drop((near, far));
}

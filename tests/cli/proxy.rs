//! A relay in front of a server, which a test can disconnect and reconnect.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    /// The relayed connections, and whether new ones are allowed.
    is_open: Arc<watch::Sender<bool>>,
    relayed: Arc<watch::Sender<u32>>,
}

impl Proxy {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (is_open, relayed) = (Arc::new(watch::Sender::new(true)), Arc::new(watch::Sender::new(0)));
        let (open, count) = (Arc::clone(&is_open), Arc::clone(&relayed));
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut open = open.subscribe();
                if !*open.borrow() {
                    continue;
                }
                count.send_modify(|count| *count += 1);
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = open.wait_for(|is_open| !is_open) => {}
                    }
                });
            }
        });
        Self { address, is_open, relayed }
    }

    /// Ends all connections and refuses new ones.
    pub(crate) fn disconnect(&self) {
        self.is_open.send_replace(false);
    }

    pub(crate) fn reconnect(&self) {
        self.is_open.send_replace(true);
    }

    /// Waits until this many connections were relayed in total.
    pub(crate) async fn has_relayed(&self, connections: u32) {
        let mut relayed = self.relayed.subscribe();
        relayed.wait_for(|count| *count >= connections).await.unwrap();
    }
}

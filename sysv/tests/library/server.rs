//! A server within the test.

use std::net::SocketAddr;

use signalbox::config::Config;
use signalbox::core::{NameHasher, Namespace};
use signalbox::server::{Clock, Server, Workers, expire, serve_port};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

/// A server, which ends when it is dropped.
pub struct TestServer {
    pub address: SocketAddr,
    runtime: Option<Runtime>,
}

impl TestServer {
    pub fn start() -> Self {
        let server = Server::new(&Config::without_file(), Clock::system(), NameHasher::new());
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let workers = Workers::start(1.try_into().unwrap()).unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(serve_port(server.clone(), Namespace::Semaphores, listener, workers));
        runtime.spawn(expire(server));
        Self { address, runtime: Some(runtime) }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.runtime.take().expect("only taken here").shutdown_background();
    }
}

//! Shared by the tests and the benchmark: a server within the program, and the library for other programs.

#![allow(dead_code, reason = "each uses its own part of this")]

#[path = "../../../../tests/support/failing.rs"]
pub mod failing;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Wake, Waker};
use std::thread::{JoinHandle, Thread};

use signalbox::config::Config;
use signalbox::server::{Clock, Server, Workers, expire, serve_port};
use signalbox_core::NameHasher;
use signalbox_model::Namespace;
use signalbox_storage::{Memory, Storage};
use tokio::runtime::{Builder, Runtime};

use failing::{FailingStorage, Faults};

/// A server, which ends when it is dropped.
pub struct TestServer {
    pub address: SocketAddr,
    pub server: Arc<Server>,
    runtime: Option<Runtime>,
    writer: Option<Writer>,
}

/// The thread that stores the changes of durable sets.
struct Writer {
    bell: Arc<Bell>,
    thread: JoinHandle<()>,
}

/// Wakes the thread.
struct Bell {
    thread: Thread,
    is_over: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.thread.unpark();
    }
}

/// The keys of durable sets, on servers with a store.
pub const DURABLE_KEYS: std::ops::RangeInclusive<u32> = 1000..=1999;

impl TestServer {
    pub fn start() -> Self {
        Self::start_on(any_port(), &Config::default())
    }

    /// Serves this socket, which may be in another network namespace.
    pub fn start_on(listener: TcpListener, config: &Config) -> Self {
        Self::serve(listener, Server::new(config, Clock::system(), NameHasher::new()), None)
    }

    /// Restores what the memory has, and stores the sets with [`DURABLE_KEYS`] there.
    pub fn start_with(memory: &Memory, faults: Faults) -> Self {
        let mut config = Config::default();
        config.sysv.durable_keys = vec![DURABLE_KEYS];
        let server = Server::new(&config, Clock::system(), NameHasher::new());
        let mut storage = FailingStorage::new(memory.open(), faults);
        let (sender, bell) = std::sync::mpsc::channel::<Arc<Bell>>();
        let (ready, restored) = std::sync::mpsc::channel();
        let stored = Arc::clone(&server);
        let thread = std::thread::spawn(move || {
            let bell: Arc<Bell> = bell.recv().unwrap();
            stored.restore(&mut storage, Waker::from(Arc::clone(&bell))).unwrap();
            ready.send(()).unwrap();
            while !bell.is_over.load(Ordering::Acquire) {
                match stored.store(&mut storage as &mut dyn Storage) {
                    Ok(true) => {}
                    Ok(false) => std::thread::park(),
                    Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
                }
            }
        });
        let bell = Arc::new(Bell { thread: thread.thread().clone(), is_over: AtomicBool::new(false) });
        sender.send(Arc::clone(&bell)).unwrap();
        restored.recv().unwrap();
        Self::serve(any_port(), server, Some(Writer { bell, thread }))
    }

    fn serve(listener: TcpListener, server: Arc<Server>, writer: Option<Writer>) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let workers = Workers::start(1.try_into().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = runtime.block_on(async { tokio::net::TcpListener::from_std(listener) }).unwrap();
        runtime.spawn(serve_port(Arc::clone(&server), Namespace::Semaphores, listener, workers));
        runtime.spawn(expire(Arc::clone(&server)));
        Self { address, server, runtime: Some(runtime), writer }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(Writer { bell, thread }) = self.writer.take() {
            bell.is_over.store(true, Ordering::Release);
            bell.wake();
            assert!(thread.join().is_ok() || std::thread::panicking(), "the thread that stores panicked");
        }
        self.runtime.take().expect("only taken here").shutdown_background();
    }
}

fn any_port() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// A copy of the library, which cargo builds beside the tests and benchmarks: another build may replace that one while
/// programs load it.
fn library() -> PathBuf {
    static COPY: LazyLock<PathBuf> = LazyLock::new(|| {
        let program = std::env::current_exe().unwrap();
        let built = program.with_file_name("libsignalbox_sysv.so");
        let scratch = program.with_extension(format!("{}.so", std::process::id()));
        std::fs::copy(&built, &scratch).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        // In one step, so that the copy of an earlier run is replaced for programs that start, and for no others.
        let copy = program.with_extension("preload.so");
        std::fs::rename(&scratch, &copy).unwrap();
        copy
    });
    COPY.clone()
}

/// Has a program load the library, with settings for all keys.
pub fn preload(command: &mut Command, server: impl ToString) -> &mut Command {
    command.env("LD_PRELOAD", library());
    command.env("SIGNALBOX_SYSV_SERVER", server.to_string());
    command.env("SIGNALBOX_SYSV_KEYS", "all");
    command.env("SIGNALBOX_SYSV_TIMEOUT", "10s")
}

/// The first of 256 keys for this run of a test program. Others may use the kernel's semaphores at the same time.
pub fn first_unused_key() -> i32 {
    // Process ids have at most 22 bits.
    0x4000_0000 | std::process::id().cast_signed() << 8
}

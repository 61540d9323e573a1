//! The threads that connections run on.
//!
//! Each worker is a thread with a runtime of its own, and a connection stays where it was put: nothing is stolen, so
//! nothing has to be woken up across threads, and a connection's buffers stay in one core's cache. Measured against
//! a work-stealing runtime in `docs/decisions/0003-a-runtime-per-thread.md`.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::warn;

use super::admission::Admission;
use super::connection::serve;
use super::core_yield::yield_before_sleep;
use crate::core::Namespace;

/// Where a new connection runs.
pub trait Spawn<S>: Clone + Send + 'static {
    /// Starts to serve a connection that was admitted.
    fn spawn(&self, admission: Admission, stream: S, peer: SocketAddr);
}

/// Threads with a runtime each.
#[derive(Clone, Debug)]
pub struct Workers(Arc<[Worker]>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    connections: AtomicUsize,
    /// Dropped with the last handle of the workers, which ends the thread.
    _alive: oneshot::Sender<Infallible>,
}

impl Workers {
    /// Starts as many threads as asked for. They run until the last handle is dropped and their connections ended.
    pub fn start(count: NonZeroUsize) -> io::Result<Self> {
        (0..count.get()).map(Worker::start).collect::<io::Result<_>>().map(Self)
    }

    /// The thread for work in the background of a namespace: between its steps, the thread's connections have their turns.
    /// A thread of its own would take a core from all of them, for as long as the system lets it have one.
    pub(super) fn background(&self, namespace: Namespace) -> &Handle {
        &self.0[namespace as usize % self.0.len()].runtime
    }

    /// Waits until every thread has finished what it was at when asked, and sent what it had put off. Tells whether all
    /// did before the deadline.
    pub(super) async fn finish_turns(&self, deadline: Instant) -> bool {
        let turns: Vec<_> = self.0.iter().map(|worker| worker.runtime.spawn(behind_all())).collect();
        let all = async {
            for turn in turns {
                // Such a task neither panics nor is it aborted.
                let _ = turn.await;
            }
        };
        tokio::time::timeout_at(deadline, all).await.is_ok()
    }
}

/// Goes once behind all that its thread has to run now. A runtime of one thread runs what was woken on it in order: so
/// tokio does and says, though it does not promise it, and a test watches it.
async fn behind_all() {
    let mut is_behind = false;
    poll_fn(|context| {
        if is_behind {
            return Poll::Ready(());
        }
        is_behind = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Worker {
    fn start(index: usize) -> io::Result<Self> {
        let runtime = yield_before_sleep(&mut Builder::new_current_thread()).enable_all().build()?;
        let handle = runtime.handle().clone();
        let (alive, ended) = oneshot::channel();
        std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || runtime.block_on(ended))?;
        Ok(Self { runtime: handle, connections: AtomicUsize::new(0), _alive: alive })
    }
}

impl Spawn<TcpStream> for Workers {
    fn spawn(&self, admission: Admission, stream: TcpStream, peer: SocketAddr) {
        // Only the accepting thread adds, so the least is not passed by another addition meanwhile.
        let least =
            self.0.iter().enumerate().min_by_key(|(_, worker)| worker.connections.load(Ordering::Relaxed));
        let (index, worker) = least.expect("there is at least one worker");
        worker.connections.fetch_add(1, Ordering::Relaxed);
        let occupied = Occupied { workers: Arc::clone(&self.0), index };
        // The socket belongs to the runtime that accepted it; its worker takes it over.
        let stream = stream.into_std();
        worker.runtime.spawn(async move {
            let _occupied = occupied;
            match stream.and_then(TcpStream::from_std) {
                Ok(stream) => serve(admission, stream, peer).await,
                Err(error) => {
                    warn!(%peer, %error, "a connection could not be handed to its thread and was closed")
                }
            }
        });
    }
}

/// Counts a connection against its worker for as long as it lives.
struct Occupied {
    workers: Arc<[Worker]>,
    index: usize,
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.workers[self.index].connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs connections as tasks of the runtime that accepts them: in tests and simulations.
#[derive(Clone, Copy, Debug, Default)]
pub struct SameThread;

impl<S> Spawn<S> for SameThread
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn spawn(&self, admission: Admission, stream: S, peer: SocketAddr) {
        tokio::spawn(serve(admission, stream, peer));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn turns_are_finished_when_all_that_was_put_off_has_run() {
        const CONNECTIONS: usize = 200;
        let workers = Workers::start(NonZeroUsize::MIN).unwrap();
        let sent = Arc::new(AtomicUsize::new(0));
        let (begin, begun) = oneshot::channel();
        let connections = Arc::clone(&sent);
        workers.0[0].runtime.spawn(async move {
            for _ in 0..CONNECTIONS {
                let sent = Arc::clone(&connections);
                tokio::spawn(async move {
                    behind_all().await;
                    // Slow enough to be overtaken.
                    std::thread::sleep(Duration::from_millis(1));
                    sent.fetch_add(1, Ordering::Relaxed);
                });
            }
            // Now all of them have put off what they send.
            behind_all().await;
            begin.send(()).unwrap();
            // The thread is asked meanwhile.
            std::thread::sleep(Duration::from_millis(50));
        });
        begun.await.unwrap();
        assert!(workers.finish_turns(Instant::now() + Duration::from_secs(60)).await);
        assert_eq!(sent.load(Ordering::Relaxed), CONNECTIONS);
    }
}

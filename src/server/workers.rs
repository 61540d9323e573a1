//! The threads that serve connections.
//!
//! Each worker is a thread with a runtime of its own, and a connection stays on one worker. So no task is woken from
//! another thread, and the buffers of a connection stay in the cache of one core.
//! `docs/decisions/0003-a-runtime-per-thread.md` compares this with a work-stealing runtime.

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

/// Starts to serve connections, on threads or in a test.
pub trait Spawn<S>: Clone + Send + 'static {
    /// Starts to serve an admitted connection.
    fn spawn(&self, admission: Admission, stream: S, peer: SocketAddr);
}

/// Threads with a runtime each.
#[derive(Clone, Debug)]
pub struct Workers(Arc<[Worker]>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    connections: AtomicUsize,
    /// The thread ends when this is dropped, with the last handle of the workers.
    _alive: oneshot::Sender<Infallible>,
}

impl Workers {
    /// Starts `count` threads. They end when the last handle is dropped and their connections have ended.
    pub fn start(count: NonZeroUsize) -> io::Result<Self> {
        (0..count.get()).map(Worker::start).collect::<io::Result<_>>().map(Self)
    }

    /// The thread for background work of a namespace. Between its steps, the thread serves its connections. A separate
    /// thread would take a core from the workers for whole time slices.
    pub(super) fn background(&self, namespace: Namespace) -> &Handle {
        &self.0[namespace as usize % self.0.len()].runtime
    }

    /// Waits until every thread has finished the turns that were due, and has sent deferred output. Returns whether all
    /// did so before the deadline.
    pub(super) async fn finish_turns(&self, deadline: Instant) -> bool {
        let turns: Vec<_> = self.0.iter().map(|worker| worker.runtime.spawn(behind_all())).collect();
        let all = async {
            for turn in turns {
                // The task neither panics nor is aborted.
                let _ = turn.await;
            }
        };
        tokio::time::timeout_at(deadline, all).await.is_ok()
    }
}

/// Completes after all tasks that its thread has to run now. It relies on the order of tokio's current-thread runtime,
/// which runs tasks in the order in which they were woken. tokio documents this order but does not guarantee it; a test
/// checks it.
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
        // Only the accepting thread adds connections, so the minimum stays the minimum.
        let least =
            self.0.iter().enumerate().min_by_key(|(_, worker)| worker.connections.load(Ordering::Relaxed));
        let (index, worker) = least.expect("there is at least one worker");
        worker.connections.fetch_add(1, Ordering::Relaxed);
        let occupied = Occupied { workers: Arc::clone(&self.0), index };
        // The socket is registered with the runtime that accepted it, and has to move to the worker's.
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

/// Counts a connection of a worker, until it is dropped.
struct Occupied {
    workers: Arc<[Worker]>,
    index: usize,
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.workers[self.index].connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves connections as tasks of the accepting runtime, for tests and simulations.
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
    async fn turns_are_finished_when_all_deferred_output_was_sent() {
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
                    // Slow, so that a wrong order would show.
                    std::thread::sleep(Duration::from_millis(1));
                    sent.fetch_add(1, Ordering::Relaxed);
                });
            }
            // Now all of them have deferred their output.
            behind_all().await;
            begin.send(()).unwrap();
            // `finish_turns` is called in this time.
            std::thread::sleep(Duration::from_millis(50));
        });
        begun.await.unwrap();
        assert!(workers.finish_turns(Instant::now() + Duration::from_secs(60)).await);
        assert_eq!(sent.load(Ordering::Relaxed), CONNECTIONS);
    }
}

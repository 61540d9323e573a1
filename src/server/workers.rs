//! The threads that serve connections.
//!
//! Each worker is a thread with a runtime of its own, so that no task is woken from another thread, and the buffers of a
//! connection stay in the cache of one core. A new connection goes to the worker with the fewest, and stays there.
//! A worker that cannot keep up is reported. `docs/decisions/0003-a-runtime-per-thread.md` compares this with a
//! work-stealing runtime, and `docs/decisions/0031-a-fixed-number-of-workers.md` with a number that follows the load.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::warn;

use super::admission::Admission;
use super::bell::wait_for_end;
use super::client_address::ClientAddress;
use super::connection;
use super::lock;
use super::state::Server;

/// The time over which a worker's share of a core is measured. Shorter bursts are ordinary.
const MEASURED_PERIOD: Duration = Duration::from_secs(5);

/// A worker that uses at least this share of a core is saturated. The time that its thread waits for a core does not
/// count: if cores are lacking, another worker would wait too.
const SATURATED: f64 = 0.95;

/// A saturated worker stays saturated until it uses less than this share, so that a load that varies a little is reported
/// once.
const STILL_SATURATED: f64 = 0.8;

/// Starts to serve connections, on threads or in a test.
pub trait Spawn<S>: Clone + Send + 'static {
    /// Starts to serve an admitted connection.
    fn spawn(&self, admission: Admission, stream: S, peer: ClientAddress);
}

/// Threads with a runtime each.
#[derive(Clone, Debug)]
pub struct Workers(Arc<[Worker]>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    connections: AtomicUsize,
    /// The thread, and the sender at whose drop it ends; `None`: it was asked to end.
    alive: Mutex<Option<(oneshot::Sender<Infallible>, JoinHandle<()>)>>,
}

impl Workers {
    /// Starts `count` threads. They end when the last handle is dropped and their connections have ended.
    pub fn start(count: NonZeroUsize) -> io::Result<Self> {
        (0..count.get()).map(Worker::start).collect::<io::Result<_>>().map(Self)
    }

    /// Returns the runtime for background work. Its thread also serves connections between the steps of that work. A separate
    /// thread would take a core from the workers for whole time slices.
    pub(super) fn background(&self) -> &Handle {
        &self.0[0].runtime
    }

    /// Returns the runtime of each thread.
    pub(super) fn runtimes(&self) -> impl Iterator<Item = &Handle> {
        self.0.iter().map(|worker| &worker.runtime)
    }

    /// Ends the threads, and with them every connection that is left. Returns whether they have ended within the limit.
    pub(super) fn end(&self, limit: Duration) -> bool {
        wait_for_end(&self.0.iter().filter_map(Worker::end).collect::<Vec<_>>(), limit)
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
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (alive, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            // The wait ends with an error, because nothing is ever sent.
            let _ = runtime.block_on(ended);
        })?;
        Ok(Self {
            runtime: handle,
            connections: AtomicUsize::new(0),
            alive: Mutex::new(Some((alive, thread))),
        })
    }

    /// Asks the thread to end. Returns its handle; `None`: it was asked before.
    fn end(&self) -> Option<JoinHandle<()>> {
        let (_, thread) = lock(&self.alive).take()?;
        Some(thread)
    }
}

impl Spawn<TcpStream> for Workers {
    fn spawn(&self, admission: Admission, stream: TcpStream, peer: ClientAddress) {
        self.run(stream, move |stream| connection::serve(admission, stream, peer));
    }
}

impl Spawn<std::net::TcpStream> for Workers {
    fn spawn(&self, admission: Admission, stream: std::net::TcpStream, peer: ClientAddress) {
        self.start_task(Ok(stream), move |stream| connection::serve(admission, stream, peer));
    }
}

impl Workers {
    /// Starts a task that uses a connection, on the worker with the fewest connections. The task receives the
    /// connection's socket, registered with the worker's runtime. If that fails, the task is not started and the
    /// connection is closed.
    pub(super) fn run<F>(&self, stream: TcpStream, task: impl FnOnce(TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        // Deregisters the socket from the runtime that had it.
        self.start_task(stream.into_std(), task);
    }

    fn start_task<F>(
        &self,
        stream: io::Result<std::net::TcpStream>,
        task: impl FnOnce(TcpStream) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send,
    {
        let assigned = Assigned::to_least_busy(self);
        assigned.worker().runtime.clone().spawn(async move {
            let _assigned = assigned;
            match stream.and_then(TcpStream::from_std) {
                Ok(stream) => task(stream).await,
                Err(error) => warn!(%error, "a connection could not be handed to its thread and was closed"),
            }
        });
    }
}

/// A connection that is assigned to a worker: it counts as a connection of the worker until this is dropped.
struct Assigned {
    workers: Workers,
    index: usize,
}

impl Assigned {
    /// Assigns a connection to the worker with the fewest.
    fn to_least_busy(workers: &Workers) -> Self {
        let least_busy =
            workers.0.iter().enumerate().min_by_key(|(_, worker)| worker.connections.load(Ordering::Relaxed));
        let (index, worker) = least_busy.expect("there is at least one worker");
        worker.connections.fetch_add(1, Ordering::Relaxed);
        Self { workers: workers.clone(), index }
    }

    fn worker(&self) -> &Worker {
        &self.workers.0[self.index]
    }
}

impl Drop for Assigned {
    fn drop(&mut self) {
        self.worker().connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves connections as tasks of the accepting runtime, for tests and simulations.
#[derive(Clone, Copy, Debug)]
pub struct SameThread;

impl<S> Spawn<S> for SameThread
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn spawn(&self, admission: Admission, stream: S, peer: ClientAddress) {
        tokio::spawn(connection::serve(admission, stream, peer));
    }
}

/// Watches the worker that runs this task, until it is aborted: counts it in [`Server::saturated_workers`] while it is
/// saturated, and logs that once until it recovers.
pub(super) async fn watch_saturation(server: Arc<Server>, worker: usize, workers: usize) {
    let mut was_saturated = false;
    let mut measured = (Instant::now(), cpu_time());
    loop {
        tokio::time::sleep(MEASURED_PERIOD).await;
        let now = (Instant::now(), cpu_time());
        let share = (now.1 - measured.1).as_secs_f64() / (now.0 - measured.0).as_secs_f64();
        measured = now;
        let is_saturated = is_saturated(share, was_saturated);
        match (was_saturated, is_saturated) {
            (false, true) => {
                server.saturated_workers.fetch_add(1, Ordering::Relaxed);
                warn!(
                    worker,
                    workers,
                    "a worker thread is saturated, and its clients wait; if the machine has idle cores, set the key \
                     workers to a higher number and restart"
                );
            }
            (true, false) => {
                server.saturated_workers.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
        was_saturated = is_saturated;
    }
}

/// Returns the time that this thread has run on a core.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock").into()
}

fn is_saturated(share: f64, was_saturated: bool) -> bool {
    share >= if was_saturated { STILL_SATURATED } else { SATURATED }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_are_finished_when_all_deferred_output_was_sent() {
        const CONNECTIONS: usize = 200;
        let workers = Workers::start(NonZeroUsize::MIN).unwrap();
        let sent = Arc::new(AtomicUsize::new(0));
        let (begin, begun) = oneshot::channel();
        let connections = Arc::clone(&sent);
        workers.background().spawn(async move {
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

    #[test]
    fn a_new_connection_goes_to_the_worker_with_the_fewest() {
        let workers = Workers::start(NonZeroUsize::new(3).unwrap()).unwrap();
        let mut all: Vec<_> = (0..7).map(|_| Assigned::to_least_busy(&workers)).collect();
        let connections = || -> Vec<_> {
            workers.0.iter().map(|worker| worker.connections.load(Ordering::Relaxed)).collect()
        };
        assert_eq!(connections(), [3, 2, 2]);
        all.retain(|assigned| assigned.index != 1);
        assert_eq!(connections(), [3, 0, 2]);
        let next: Vec<_> = (0..3).map(|_| Assigned::to_least_busy(&workers)).collect();
        assert_eq!(next.iter().map(|assigned| assigned.index).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn a_worker_is_saturated_until_it_recovers() {
        let mut saturated = false;
        let shares = [0.5, 0.94, 0.95, 1.0, 0.8, 0.79, 0.94, 0.99];
        let course = shares.map(|share| {
            saturated = is_saturated(share, saturated);
            saturated
        });
        assert_eq!(course, [false, false, true, true, true, false, false, true]);
    }

    #[test]
    fn the_time_of_a_thread_grows_while_it_works() {
        let before = cpu_time();
        while cpu_time() < before + Duration::from_millis(1) {}
    }
}

//! The threads that serve connections.
//!
//! Each worker is a thread with a runtime of its own, so that no task is woken from another thread, and the buffers of a
//! connection stay in the cache of one core. As few workers as can keep up serve all connections; `placement` decides how
//! many, `balance` measures them, and `load` selects the connections that move.
//! `docs/decisions/0003-a-runtime-per-thread.md` compares this with a work-stealing runtime, and
//! `docs/decisions/0017-as-few-workers-as-keep-up.md` with a fixed assignment.

mod balance;
mod busy_time;
mod load;
mod placement;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::warn;

use super::admission::Admission;
use super::client_address::ClientAddress;
use super::connection::{Move, OpenConnection};
use super::core_yield::yield_before_sleep;
pub(super) use balance::balance;
use busy_time::BusyTime;
pub(super) use load::ConnectionLoad;
use load::Gauge;

/// Starts to serve connections, on threads or in a test.
pub trait Spawn<S>: Clone + Send + 'static {
    /// Starts to serve an admitted connection.
    fn spawn(&self, admission: Admission, stream: S, peer: ClientAddress);
}

/// Where a connection is served at present.
pub(super) trait Seat {
    /// Counts the connection's work, and returns the worker that it has to move to, if there is one. Called between turns
    /// while the connection has nothing in progress.
    fn next_worker(&mut self, load: &mut ConnectionLoad) -> Option<WorkerIndex>;
}

/// The number of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkerIndex(u32);

/// Threads with a runtime each.
#[derive(Clone, Debug)]
pub struct Workers(Arc<Threads>);

#[derive(Debug)]
struct Threads {
    threads: Box<[Worker]>,
    /// The first so many workers get new connections.
    active: AtomicUsize,
}

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    connections: AtomicUsize,
    gauge: Gauge,
    busy_time: io::Result<BusyTime>,
    /// The thread ends when this is dropped, with the last handle of the workers.
    alive: Mutex<Option<Alive>>,
}

/// The thread of a worker, which ends when this is dropped.
#[derive(Debug)]
struct Alive {
    _sender: oneshot::Sender<Infallible>,
    thread: JoinHandle<()>,
}

impl Workers {
    /// Starts `count` threads. They end when the last handle is dropped and their connections have ended.
    pub fn start(count: NonZeroUsize) -> io::Result<Self> {
        let threads = (0..count.get()).map(Worker::start).collect::<io::Result<_>>()?;
        Ok(Self(Arc::new(Threads { threads, active: AtomicUsize::new(1) })))
    }

    /// The thread for background work: the worker that always serves connections. It does so between the steps of the work.
    /// A separate thread would take a core from the workers for whole time slices.
    pub(super) fn background(&self) -> &Handle {
        &self.0.threads[0].runtime
    }

    fn set_active(&self, active: usize) {
        self.0.active.store(active, Ordering::Relaxed);
    }

    /// Ends the threads, and with them every connection that is left. Returns whether they have ended within the limit.
    pub(super) fn end(&self, limit: Duration) -> bool {
        let deadline = std::time::Instant::now() + limit;
        let threads: Vec<_> = self.0.threads.iter().filter_map(Worker::end).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            if std::time::Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Waits until every thread has finished the turns that were due, and has sent deferred output. Returns whether all
    /// did so before the deadline.
    pub(super) async fn finish_turns(&self, deadline: Instant) -> bool {
        let turns: Vec<_> = self.0.threads.iter().map(|worker| worker.runtime.spawn(behind_all())).collect();
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
        let (send_busy_time, busy_time) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            // The receiver waits for it.
            let _ = send_busy_time.send(BusyTime::of_this_thread());
            // It ends with an error: nothing is ever sent.
            let _ = runtime.block_on(ended);
        })?;
        let busy_time = busy_time.recv().map_err(io::Error::other)?;
        Ok(Self {
            runtime: handle,
            connections: AtomicUsize::new(0),
            gauge: Gauge::default(),
            busy_time,
            alive: Mutex::new(Some(Alive { _sender: alive, thread })),
        })
    }

    /// Has the thread end.
    fn end(&self) -> Option<JoinHandle<()>> {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner).take();
        alive.map(|alive| alive.thread)
    }

    /// Fails if the kernel does not count this time.
    fn busy_time(&self) -> io::Result<&BusyTime> {
        self.busy_time.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))
    }
}

impl Spawn<TcpStream> for Workers {
    fn spawn(&self, admission: Admission, stream: TcpStream, peer: ClientAddress) {
        // The socket is registered with the runtime that had it, and has to move to the worker's.
        self.spawn_active(stream.into_std(), Arrival::New { admission, peer });
    }
}

impl Spawn<std::net::TcpStream> for Workers {
    fn spawn(&self, admission: Admission, stream: std::net::TcpStream, peer: ClientAddress) {
        self.spawn_active(Ok(stream), Arrival::New { admission, peer });
    }
}

impl Workers {
    /// The worker with the fewest connections among the first `count`, which are at least one.
    fn with_fewest(&self, count: usize) -> WorkerIndex {
        let workers = self.0.threads[..count].iter().enumerate();
        let with_fewest = workers.min_by_key(|(_, worker)| worker.connections.load(Ordering::Relaxed));
        WorkerIndex::new(with_fewest.expect("there is at least one").0)
    }

    /// Starts a task that uses a connection, on the worker with the fewest connections. The task gets the connection's socket
    /// registered with the worker's runtime. It is not started if that fails, which closes the connection.
    pub(super) fn run<F>(&self, stream: TcpStream, task: impl FnOnce(TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        let index = self.with_fewest(self.0.threads.len());
        let seat = WorkerSeat::take(self, index);
        let stream = stream.into_std();
        self.0.threads[index.get()].runtime.spawn(async move {
            let _seat = seat;
            match stream.and_then(TcpStream::from_std) {
                Ok(stream) => task(stream).await,
                Err(error) => warn!(%error, "a connection could not be handed to its thread and was closed"),
            }
        });
    }

    /// Starts to serve a connection on one of the active workers.
    fn spawn_active(&self, stream: io::Result<std::net::TcpStream>, arrival: Arrival) {
        let active = self.0.active.load(Ordering::Relaxed);
        self.spawn_on(self.with_fewest(active), stream, arrival);
    }

    /// Starts to serve a connection on a worker.
    fn spawn_on(&self, index: WorkerIndex, stream: io::Result<std::net::TcpStream>, arrival: Arrival) {
        let mut seat = WorkerSeat::take(self, index);
        self.0.threads[index.get()].runtime.spawn(async move {
            let mut stream = match stream.and_then(TcpStream::from_std) {
                Ok(stream) => stream,
                Err(error) => {
                    warn!(%error, "a connection could not be handed to its thread and was closed");
                    if let Arrival::Moved(connection) = arrival {
                        connection.fail(error).await;
                    }
                    return;
                }
            };
            let Some(connection) = arrival.accept(&mut stream).await else { return };
            if let Some(Move { connection, stream, to }) = connection.serve(stream, &mut seat).await {
                seat.workers.spawn_on(to, stream.into_std(), Arrival::Moved(connection));
            }
        });
    }
}

/// A connection that a worker is to serve.
enum Arrival {
    New { admission: Admission, peer: ClientAddress },
    Moved(Box<OpenConnection>),
}

impl Arrival {
    /// Opens the connection if it is new; `None`: it was closed.
    async fn accept<S>(self, stream: &mut S) -> Option<Box<OpenConnection>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        match self {
            Self::New { admission, peer } => OpenConnection::accept(admission, stream, peer).await,
            Self::Moved(connection) => Some(connection),
        }
    }
}

/// A connection's place on a worker: it counts as a connection of the worker until it is dropped.
struct WorkerSeat {
    workers: Workers,
    index: WorkerIndex,
}

impl WorkerSeat {
    fn take(workers: &Workers, index: WorkerIndex) -> Self {
        let seat = Self { workers: workers.clone(), index };
        seat.worker().connections.fetch_add(1, Ordering::Relaxed);
        seat
    }

    fn worker(&self) -> &Worker {
        &self.workers.0.threads[self.index.get()]
    }
}

impl Seat for WorkerSeat {
    #[inline]
    fn next_worker(&mut self, load: &mut ConnectionLoad) -> Option<WorkerIndex> {
        self.worker().gauge.count(load)
    }
}

impl Drop for WorkerSeat {
    fn drop(&mut self) {
        self.worker().connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WorkerIndex {
    fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("there are not so many threads"))
    }

    fn get(self) -> usize {
        self.0 as usize
    }
}

/// Serves connections as tasks of the accepting runtime, for tests and simulations.
#[derive(Clone, Copy, Debug, Default)]
pub struct SameThread {
    turns_before_move: Option<NonZeroU32>,
}

impl SameThread {
    /// Each connection moves to another task after so many turns without anything in progress, as it would move to
    /// another thread.
    pub fn moving_after(turns: NonZeroU32) -> Self {
        Self { turns_before_move: Some(turns) }
    }

    fn spawn_task<S>(self, stream: S, arrival: Arrival)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        tokio::spawn(async move {
            let mut stream = stream;
            let Some(connection) = arrival.accept(&mut stream).await else { return };
            let mut seat = TaskSeat { turns_left: self.turns_before_move.map(NonZeroU32::get) };
            if let Some(Move { connection, stream, .. }) = connection.serve(stream, &mut seat).await {
                self.spawn_task(stream, Arrival::Moved(connection));
            }
        });
    }
}

impl<S> Spawn<S> for SameThread
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn spawn(&self, admission: Admission, stream: S, peer: ClientAddress) {
        self.spawn_task(stream, Arrival::New { admission, peer });
    }
}

/// A connection's place on a task.
struct TaskSeat {
    /// `None`: it stays.
    turns_left: Option<u32>,
}

impl Seat for TaskSeat {
    fn next_worker(&mut self, _load: &mut ConnectionLoad) -> Option<WorkerIndex> {
        let turns_left = self.turns_left.as_mut()?;
        if *turns_left == 0 {
            return Some(WorkerIndex(0));
        }
        *turns_left -= 1;
        None
    }
}

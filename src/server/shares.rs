//! The shares of clients: how many connections each has, its turns at long requests, and which clients are refused.
//!
//! The core divides sessions, waiters and watches by the same rule. A client has an entry as long as it has connections, and
//! longer if it has opened and closed many lately.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::warn;

use super::client_address::ClientAddress;
use super::metrics::Count;
use super::rate::Rate;
use super::recent::Recent;
use super::steps;
use crate::core::{ClientKey, ClientShare, Namespace};

/// The shares of the clients of a server.
#[derive(Debug, Default)]
pub(super) struct Shares {
    percent: AtomicU32,
    /// The connections that the process has files for.
    files_max: AtomicU64,
    /// How many short connections a second are divided into shares.
    short_connections_max: AtomicU32,
    /// Requests and connections that were refused because of a share.
    pub(super) refused: Count,
    clients: Mutex<Clients>,
    /// The clients that were refused recently, by the limit of which each has its share.
    refusals: Mutex<Recent<(ClientKey, &'static str), ()>>,
}

#[derive(Debug, Default)]
struct Clients {
    by_key: HashMap<ClientKey, Client>,
    /// The short connections of all clients.
    short_connections: Rate,
    /// With this many entries, those that are not needed any more are removed.
    sweep_at: usize,
}

#[derive(Debug, Default)]
struct Client {
    /// Its connections, by port.
    connections: [u32; Namespace::ALL.len()],
    /// Those of its connections that ended soon.
    short_connections: Rate,
    usage: Arc<ClientUsage>,
}

/// Of what a client has its share, so that a connection is closed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exhausted {
    /// Of the connections at a time.
    Connections,
    /// Of the [short](SHORT) connections in a second. This is the share.
    ShortConnections(usize),
}

/// What the connections of one client have together.
#[derive(Debug)]
pub(super) struct ClientUsage {
    /// One permit for each of its connections that may work on a long request.
    turns: Arc<Semaphore>,
    /// What its plain holdings take of the memory, in bytes. Each connection reports changes above
    /// [`BYTES_UNREPORTED_MAX`].
    bytes: AtomicUsize,
    /// Until when it is slowed down; `None`: it never was.
    slowed_until: Mutex<Option<Instant>>,
}

/// A connection that ends within this time is short. A client that opens and closes connections without end keeps the thread
/// busy that accepts them, and the workers. While they last longer, the limit on connections at a time is enough.
const SHORT: Duration = Duration::from_secs(10);

/// At so few short connections a second, a client is forgotten.
const FEW: f64 = 0.5;

/// Clients of which at most as many are remembered without a look at who still needs it.
const CLIENTS_LEAST: usize = 64;

/// By how much each request that a client should not have sent slows it down, over all of its connections together.
const REFUSAL_PAUSE: Duration = Duration::from_millis(1);

/// The longest pause of one connection. The server also notices its end only after that.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// How many bytes of its holdings a connection may not have reported yet, so that a pair of Acquire and Release reports
/// nothing.
const BYTES_UNREPORTED_MAX: usize = 4 * 1024;

impl Default for ClientUsage {
    fn default() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(steps::LONG_REQUESTS)),
            bytes: AtomicUsize::new(0),
            slowed_until: Mutex::new(None),
        }
    }
}

impl ClientUsage {
    /// Some requests were refused, or took the place of what the client had. Returns until when the connection that sent
    /// them reads nothing.
    fn slow_down(&self, requests: u32) -> Instant {
        let now = Instant::now();
        let mut slowed_until = lock(&self.slowed_until);
        let from = slowed_until.map_or(now, |until| until.max(now));
        let until = (from + REFUSAL_PAUSE.saturating_mul(requests)).min(now + PAUSE_MAX);
        *slowed_until = Some(until);
        until
    }
}

/// The pauses of one connection after requests that were refused because of a share or a right. All connections of a client share one
/// schedule, so that a client that asks in vain costs others no more over many connections than over one.
#[derive(Debug)]
pub(super) struct Pauses {
    usage: Arc<ClientUsage>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pauses {
    pub(super) fn new(usage: Arc<ClientUsage>) -> Self {
        Self { usage, timer: None }
    }

    /// The client is slowed down for so many requests of the connection.
    pub(super) fn begin(&mut self, requests: u32) {
        if requests > 0 {
            self.timer = Some(Box::pin(sleep_until(self.usage.slow_down(requests))));
        }
    }

    /// Pending while the connection must not read.
    #[inline]
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(timer) = &mut self.timer {
            ready!(timer.as_mut().poll(context));
            self.timer = None;
        }
        Poll::Ready(())
    }
}

/// What the plain holdings of a connection count for in the memory of its client, until it is dropped.
#[derive(Debug)]
pub(super) struct HoldingBytes {
    usage: Arc<ClientUsage>,
    /// A part of those of the client.
    reported: usize,
}

impl HoldingBytes {
    pub(super) fn new(usage: Arc<ClientUsage>) -> Self {
        Self { usage, reported: 0 }
    }

    /// The connection has so many now.
    pub(super) fn set(&mut self, bytes: usize) {
        if bytes.abs_diff(self.reported) > BYTES_UNREPORTED_MAX {
            self.report(bytes);
        }
    }

    fn report(&mut self, bytes: usize) {
        self.usage.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.usage.bytes.fetch_sub(self.reported, Ordering::Relaxed);
        self.reported = bytes;
    }

    /// Those of all connections of the client.
    pub(super) fn of_client(&self) -> usize {
        self.usage.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for HoldingBytes {
    fn drop(&mut self) {
        self.report(0);
    }
}

impl Shares {
    /// Changes the shares, and sets how many files the process may have open, and how many short connections a second are
    /// divided; 0: they are not.
    pub(super) fn set(&self, percent: u32, files_max: u64, short_connections_max: u32) {
        self.percent.store(percent, Ordering::Relaxed);
        self.files_max.store(files_max, Ordering::Relaxed);
        self.short_connections_max.store(short_connections_max, Ordering::Relaxed);
    }

    /// The share of a client.
    pub(super) fn share(&self) -> ClientShare {
        ClientShare::of_percent(self.percent())
    }

    /// In percent.
    pub(super) fn percent(&self) -> u32 {
        self.percent.load(Ordering::Relaxed)
    }

    /// The limit of which connections have shares where the port has no limit of its own.
    pub(super) fn files_max(&self) -> usize {
        usize::try_from(self.files_max.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// Counts a connection of a client, until [`Self::leave`], if `admits` returns true for the numbers of connections that
    /// the client has on each port, and if the client has not opened and closed too many. Returns what its connections have
    /// together.
    pub(super) fn enter(
        &self,
        client: ClientKey,
        namespace: Namespace,
        admits: impl FnOnce([u32; Namespace::ALL.len()]) -> bool,
    ) -> Result<Arc<ClientUsage>, Exhausted> {
        let now = Instant::now();
        let mut clients = lock(&self.clients);
        let known = clients.by_key.get(&client);
        if !admits(known.map_or([0; _], |client| client.connections)) {
            return Err(Exhausted::Connections);
        }
        if let Some(client) = known {
            self.check_short_connections(clients.short_connections, client.short_connections, now)?;
        }
        clients.sweep(now);
        let client = clients.by_key.entry(client).or_default();
        client.connections[namespace as usize] += 1;
        Ok(Arc::clone(&client.usage))
    }

    fn check_short_connections(&self, all: Rate, own: Rate, now: Instant) -> Result<(), Exhausted> {
        let max = self.short_connections_max.load(Ordering::Relaxed) as usize;
        let [all, own] = [all, own].map(|rate| rate.per_second(now) as usize);
        let share = self.share();
        if max > 0 && share.is_exhausted(max, all, own) {
            return Err(Exhausted::ShortConnections(share.of(max)));
        }
        Ok(())
    }

    /// A connection of a client has ended that was counted at this time.
    pub(super) fn leave(&self, key: ClientKey, namespace: Namespace, entered: Instant) {
        let now = Instant::now();
        let mut clients = lock(&self.clients);
        let Clients { by_key, short_connections, .. } = &mut *clients;
        // A counted connection has an entry.
        let Some(client) = by_key.get_mut(&key) else { return };
        client.connections[namespace as usize] -= 1;
        if now.duration_since(entered) < SHORT {
            client.short_connections.note(now);
            short_connections.note(now);
        }
        if !client.is_needed(now) {
            by_key.remove(&key);
        }
    }

    /// Counts a refusal, and logs it if the client's refusals begin with it. `limit` is the key of the limit of which the
    /// client has its share.
    pub(super) fn note_refusal(&self, client: ClientAddress, limit: &'static str, share: u64) {
        self.refused.add(1);
        if lock(&self.refusals).begins((client.key(), limit), Instant::now()) {
            warn!(
                client = %client.socket().ip(),
                limit,
                share,
                "a client has its share of a limit and is refused more; if many programs share its address, raise \
                 client_share or the limit"
            );
        }
    }
}

impl Clients {
    /// Removes the entries that are not needed any more, if there are many.
    fn sweep(&mut self, now: Instant) {
        if self.by_key.len() >= self.sweep_at {
            self.by_key.retain(|_, client| client.is_needed(now));
            self.sweep_at = CLIENTS_LEAST.max(self.by_key.len() * 2);
        }
    }
}

impl Client {
    /// Whether something would be forgotten without its entry.
    fn is_needed(&self, now: Instant) -> bool {
        self.connections != [0; _] || self.short_connections.per_second(now) > FEW
    }
}

/// Nothing is left half done by a panic while it is locked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The turns of one connection at the steps of long requests. Few connections of a client have one at a time, in the order
/// in which they asked, so that other clients wait for few of them.
pub(super) struct Turns {
    of_client: Arc<Semaphore>,
    waiting: Option<Waiting>,
    turn: Option<OwnedSemaphorePermit>,
}

type Waiting = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

impl Turns {
    pub(super) fn new(usage: &ClientUsage) -> Self {
        Self { of_client: Arc::clone(&usage.turns), waiting: None, turn: None }
    }

    /// Ready when the connection may take a step of a long request.
    pub(super) fn poll_begin(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.turn.is_none() {
            let acquire = || -> Waiting { Box::pin(Arc::clone(&self.of_client).acquire_owned()) };
            let turn = ready!(self.waiting.get_or_insert_with(acquire).as_mut().poll(context));
            self.waiting = None;
            // It fails only if the semaphore was closed, and nothing closes it.
            self.turn = turn.ok();
        }
        Poll::Ready(())
    }

    /// The connection waits for its peer instead, and must not get a turn that it does not use.
    pub(super) fn stop_waiting(&mut self) {
        self.waiting = None;
    }

    /// The step is over.
    pub(super) fn end(&mut self) {
        self.turn = None;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use super::*;

    const ONE: ClientKey = ClientKey([1; 16]);
    const OTHER: ClientKey = ClientKey([2; 16]);

    /// Over as many connections as it likes, a client is refused no more often than over one.
    #[tokio::test(start_paused = true)]
    async fn refusals_slow_a_client_down_over_all_of_its_connections() {
        let usage = Arc::new(ClientUsage::default());
        let mut connections: Vec<_> = (0..100).map(|_| Pauses::new(Arc::clone(&usage))).collect();
        let begun = Instant::now();
        for connection in &mut connections {
            poll_fn(|context| connection.poll(context)).await;
            connection.begin(2);
        }
        assert_eq!(begun.elapsed(), Duration::ZERO, "the first refusals wait for nothing");
        poll_fn(|context| connections[49].poll(context)).await;
        assert_eq!(begun.elapsed(), REFUSAL_PAUSE * 100);
        connections[0].begin(u32::MAX);
        poll_fn(|context| connections[0].poll(context)).await;
        assert_eq!(begun.elapsed(), REFUSAL_PAUSE * 100 + PAUSE_MAX);
        let mut other = Pauses::new(Arc::default());
        other.begin(0);
        assert!(other.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    #[test]
    fn connections_are_counted_for_their_clients() {
        let shares = Shares::default();
        let begin = Instant::now() - SHORT;
        let enter = |client, port, before| shares.enter(client, port, |own| own == before).is_ok();
        let [counters, semaphores] = Namespace::ALL;
        assert!(enter(ONE, counters, [0, 0]));
        assert!(enter(ONE, semaphores, [1, 0]));
        assert!(enter(OTHER, counters, [0, 0]));
        assert_eq!(shares.enter(ONE, counters, |_| false).unwrap_err(), Exhausted::Connections);
        assert!(enter(ONE, counters, [1, 1]));
        shares.leave(ONE, counters, begin);
        shares.leave(ONE, counters, begin);
        shares.leave(ONE, semaphores, begin);
        shares.leave(OTHER, counters, begin);
        assert!(lock(&shares.clients).by_key.is_empty());
    }

    /// Opens and closes connections, each after this time, and returns how many were admitted.
    async fn open_and_close(shares: &Shares, client: ClientKey, connections: u32, each: Duration) -> u32 {
        let mut admitted = 0;
        for _ in 0..connections {
            let entered = Instant::now();
            let entry = shares.enter(client, Namespace::Counters, |_| true);
            tokio::time::advance(each).await;
            match entry {
                Ok(_) => {
                    shares.leave(client, Namespace::Counters, entered);
                    admitted += 1;
                }
                Err(exhausted) => assert_eq!(exhausted, Exhausted::ShortConnections(120)),
            }
        }
        admitted
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_opens_and_closes_connections_without_end_gets_its_share() {
        let shares = Shares::default();
        shares.set(12, 0, 1_000);
        let ms = Duration::from_millis;
        // Fewer than half of the limit, for as long as it likes.
        assert_eq!(open_and_close(&shares, ONE, 4_000, ms(2) + ms(1) / 10).await, 4_000);
        // Alone, it gets half of the limit.
        let flood = open_and_close(&shares, ONE, 100_000, ms(1) / 10).await;
        assert!((4_900..5_300).contains(&flood), "{flood} of 100,000 in 10 s");
        // Beside it, another one has its share at once, and so has it then, because more than half is in use.
        let mut both = [0; 2];
        for _ in 0..50_000 {
            both[0] += open_and_close(&shares, ONE, 1, ms(1) / 10).await;
            both[1] += open_and_close(&shares, OTHER, 1, ms(1) / 10).await;
        }
        assert!((1_100..4_000).contains(&both[1]), "{both:?} in 10 s");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_last_or_stay_open_are_not_limited() {
        let shares = Shares::default();
        shares.set(12, 0, 1_000);
        let entered = Instant::now();
        for _ in 0..100_000 {
            assert!(shares.enter(ONE, Namespace::Counters, |_| true).is_ok());
        }
        tokio::time::advance(SHORT).await;
        for _ in 0..100_000 {
            shares.leave(ONE, Namespace::Counters, entered);
        }
        assert!(shares.enter(ONE, Namespace::Counters, |before| before == [0; _]).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn clients_are_forgotten_when_they_open_nothing_any_more() {
        let shares = Shares::default();
        shares.set(12, 0, 1_000);
        for number in 0..10_000_u32 {
            let mut key = [0; 16];
            key[..4].copy_from_slice(&number.to_be_bytes());
            open_and_close(&shares, ClientKey(key), 3, Duration::from_micros(300)).await;
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        let remembered = lock(&shares.clients).by_key.len();
        assert!((1..=CLIENTS_LEAST).contains(&remembered), "{remembered}");
    }

    #[tokio::test]
    async fn few_connections_of_a_client_take_turns() {
        let client = ClientUsage { turns: Arc::new(Semaphore::new(1)), ..ClientUsage::default() };
        let [mut first, mut second] = [(); 2].map(|()| Turns::new(&client));
        poll_fn(|context| first.poll_begin(context)).await;
        let mut idle = Context::from_waker(Waker::noop());
        assert!(second.poll_begin(&mut idle).is_pending());
        first.end();
        // It was first in the queue.
        assert!(first.poll_begin(&mut idle).is_pending());
        poll_fn(|context| second.poll_begin(context)).await;
        first.stop_waiting();
        second.end();
        poll_fn(|context| second.poll_begin(context)).await;
        assert!(first.poll_begin(&mut idle).is_pending());
        drop(second);
        poll_fn(|context| first.poll_begin(context)).await;
    }
}

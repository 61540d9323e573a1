//! Shares: once half of a limited resource is in use, one client may have only a certain part of it (`docs/semantics.md`, "Shares
//! of clients"). This file counts the connections, handshakes and memory of each client, lets its long requests take turns, and
//! slows down clients that are refused.
//!
//! The process has one [`Shares`], for its service ports and its HTTP listener. The core divides sessions, waiters and
//! watches by the same rule. A client has an entry as long as it has connections, and longer if it has opened and
//! closed many recently.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::PollSemaphore;
use tracing::warn;

use super::client_address::ClientAddress;
use super::lock;
use super::metrics::Count;
use super::steps;
use super::throttle::{Rate, RefusalLog};
use crate::config::Config;
use signalbox_core::{ClientKey, ClientShare};
use signalbox_model::Namespace;

/// The shares of all clients of a process.
#[derive(Debug, Default)]
pub(super) struct Shares {
    percent: AtomicU32,
    /// The number of short connections per second that is divided into shares.
    short_connections_max: AtomicU32,
    /// Requests and connections that were refused because of a share.
    pub(super) refused: Count,
    clients: Mutex<Clients>,
    /// The refusals that were logged, by client and by the limit of which it has used up its share.
    refusals: RefusalLog,
}

/// The kinds of connections that are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    Counters,
    Semaphores,
    Http,
    /// Over HTTP, for leases.
    Leases,
}

/// A limit on concurrent connections of which each client has a share.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionLimit<'a> {
    /// For the log: the key of the configuration, if it has one.
    pub(super) name: &'static str,
    pub(super) max: usize,
    /// The connections of all clients, without the one that is to be counted.
    pub(super) in_use: usize,
    /// The kinds of connections that count.
    pub(super) of: &'a [ConnectionKind],
}

/// A connection that counts against the shares of its client until this is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    shares: Arc<Shares>,
    client: ClientKey,
    kind: ConnectionKind,
    since: Instant,
    /// The client has begun a handshake on the connection, and not completed it.
    is_unfinished: bool,
    usage: Arc<ClientUsage>,
}

#[derive(Debug, Default)]
struct Clients {
    by_key: HashMap<ClientKey, Client>,
    /// The short connections of all clients.
    short_connections: Rate,
    /// With this many entries, those that are no longer needed are removed.
    sweep_at: usize,
}

#[derive(Debug, Default)]
struct Client {
    /// How many connections it has of each [`ConnectionKind`], in the order of the variants.
    connections: [u32; 4],
    /// Its connections that ended within [`SHORT`].
    short_connections: Rate,
    usage: Arc<ClientUsage>,
}

/// The usage that the connections of one client share.
#[derive(Debug)]
pub(super) struct ClientUsage {
    /// One permit for each of its connections that may work on a long request.
    turns: Arc<Semaphore>,
    /// The memory of its plain holdings and its unfinished input, in bytes. Each connection reports changes of its holdings above
    /// [`BYTES_UNREPORTED_MAX`].
    bytes: AtomicUsize,
    /// One permit for each TLS handshake that it may have in progress.
    handshakes: Arc<Semaphore>,
    /// Until when it is slowed down; `None`: it never was.
    slowed_until: Mutex<Option<Instant>>,
}

/// A connection of a service port that ends within this time is short. A client that opens and closes connections without end
/// keeps the accepting thread and the workers busy. For longer connections, the limit on connections at a time is enough.
const SHORT: Duration = Duration::from_secs(10);

/// An unfinished handshake counts as this many short connections, however long it lasts: it costs the server more, even if
/// nothing is computed for it.
const UNFINISHED_AS_SHORT: f64 = 10.0;

/// A client that has no connections is forgotten once its rate of short connections, per second, is at most this.
const FEW: f64 = 0.5;

/// While there are fewer clients than this, no sweep looks for those that can be forgotten.
const CLIENTS_LEAST: usize = 64;

/// How much each refused request slows its client down, over all of its connections together.
const REFUSAL_PAUSE: Duration = Duration::from_millis(1);

/// The longest pause of one connection. During the pause the server does not notice that the connection was closed.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// A connection does not report a change of its holdings of up to this many bytes, so that a pair of Acquire and Release
/// reports nothing.
const BYTES_UNREPORTED_MAX: usize = 4 * 1024;

/// The most handshakes that a client may have in progress. Further ones wait. With a round trip of 100 ms, this is
/// enough for 320 handshakes a second.
const HANDSHAKES: usize = 32;

/// A handshake that the client does not complete counts as in progress for at least this long after the server has begun to
/// compute for it, even if the client closes the connection. This is the longest time of a handshake, so closing gains
/// nothing. Signatures for one client then take at most a few milliseconds of each second.
const HANDSHAKE_LEAST: Duration = Duration::from_secs(10);

impl Default for ClientUsage {
    fn default() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(steps::LONG_REQUESTS)),
            bytes: AtomicUsize::new(0),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES)),
            slowed_until: Mutex::new(None),
        }
    }
}

impl ClientUsage {
    /// Waits until the client may have another handshake in progress.
    pub(super) async fn begin_handshake(&self) -> HandshakePermit {
        // It fails only if the semaphore was closed, and nothing closes it.
        HandshakePermit { permit: Arc::clone(&self.handshakes).acquire_owned().await.ok(), busy_until: None }
    }

    /// Returns the memory of the client's plain holdings and its unfinished input, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Notes that a part of this memory was `before` bytes, and is `now` bytes.
    pub(super) fn replace_bytes(&self, before: usize, now: usize) {
        self.bytes.fetch_add(now, Ordering::Relaxed);
        self.bytes.fetch_sub(before, Ordering::Relaxed);
    }

    /// Slows the client down for requests that were refused, or that replaced one of its own sessions. Returns until when the
    /// server must not read from the connection that sent them.
    fn slow_down(&self, requests: u32) -> Instant {
        let now = Instant::now();
        let mut slowed_until = lock(&self.slowed_until);
        let from = slowed_until.map_or(now, |until| until.max(now));
        let until = (from + REFUSAL_PAUSE.saturating_mul(requests)).min(now + PAUSE_MAX);
        *slowed_until = Some(until);
        until
    }
}

/// A client's permit for a handshake in progress. It is returned when this is dropped, or later if the handshake has cost the
/// server a signature and was not completed.
#[derive(Debug)]
pub(super) struct HandshakePermit {
    permit: Option<OwnedSemaphorePermit>,
    /// Until when the handshake counts as in progress, although its connection may end earlier.
    busy_until: Option<Instant>,
}

impl HandshakePermit {
    /// Notes that the server begins to compute for the handshake.
    pub(super) fn begin_work(&mut self) {
        self.busy_until = Some(Instant::now() + HANDSHAKE_LEAST);
    }

    /// Notes that the client has completed the handshake.
    pub(super) fn complete(mut self) {
        self.busy_until = None;
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        if let (Some(permit), Some(until)) = (self.permit.take(), self.busy_until)
            // When the thread ends, there is no runtime.
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                sleep_until(until).await;
                drop(permit);
            });
        }
    }
}

/// The pauses of one connection after requests for which its client is slowed down, such as those that were refused because of
/// a share or a right. All connections of a client share one schedule, so that refused requests over many connections cost other
/// clients no more than over one.
#[derive(Debug)]
pub(super) struct Pauses {
    usage: Arc<ClientUsage>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pauses {
    /// Returns the usage that the connections of the client share.
    pub(super) fn usage(&self) -> &Arc<ClientUsage> {
        &self.usage
    }

    pub(super) fn new(usage: Arc<ClientUsage>) -> Self {
        Self { usage, timer: None }
    }

    /// Slows the client down for this number of requests of the connection.
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

/// The memory of the plain holdings of a connection, which counts against the share of its client until this is dropped.
#[derive(Debug)]
pub(super) struct HoldingBytes {
    usage: Arc<ClientUsage>,
    /// The bytes of this connection that are counted in the usage of its client.
    reported: usize,
}

impl HoldingBytes {
    pub(super) fn new(usage: Arc<ClientUsage>) -> Self {
        Self { usage, reported: 0 }
    }

    /// Sets the present number of bytes.
    pub(super) fn set(&mut self, bytes: usize) {
        if bytes.abs_diff(self.reported) > BYTES_UNREPORTED_MAX {
            self.report(bytes);
        }
    }

    fn report(&mut self, bytes: usize) {
        self.usage.replace_bytes(self.reported, bytes);
        self.reported = bytes;
    }

    /// Returns the bytes of all connections of the client, with their unfinished input.
    pub(super) fn of_client(&self) -> usize {
        self.usage.bytes()
    }
}

impl Drop for HoldingBytes {
    fn drop(&mut self) {
        self.report(0);
    }
}

impl ConnectionKind {
    pub(super) const SERVICE_PORTS: [Self; 2] = [Self::Counters, Self::Semaphores];

    /// Returns whether short connections of this kind are limited.
    fn has_short_connections(self) -> bool {
        Self::SERVICE_PORTS.contains(&self)
    }
}

impl From<Namespace> for ConnectionKind {
    fn from(namespace: Namespace) -> Self {
        match namespace {
            Namespace::Counters => Self::Counters,
            Namespace::Semaphores => Self::Semaphores,
        }
    }
}

impl Counted {
    /// Returns the usage that the connections of the client share.
    pub(super) fn usage(&self) -> &Arc<ClientUsage> {
        &self.usage
    }

    /// Notes that the client has begun a handshake on the connection and not completed it.
    pub(super) fn note_unfinished_handshake(&mut self) {
        self.is_unfinished = true;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut clients = lock(&self.shares.clients);
        let Clients { by_key, short_connections, .. } = &mut *clients;
        // A counted connection has an entry.
        let Some(client) = by_key.get_mut(&self.client) else { return };
        client.connections[self.kind as usize] -= 1;
        let short = if self.is_unfinished {
            UNFINISHED_AS_SHORT
        } else if now.duration_since(self.since) < SHORT {
            1.0
        } else {
            0.0
        };
        if self.kind.has_short_connections() && short > 0.0 {
            client.short_connections.note(now, short);
            short_connections.note(now, short);
        }
        if !client.is_needed(now) {
            by_key.remove(&self.client);
        }
    }
}

impl Shares {
    pub(super) fn configure(&self, config: &Config) {
        self.percent.store(config.client_share, Ordering::Relaxed);
        self.short_connections_max.store(config.short_connections, Ordering::Relaxed);
    }

    pub(super) fn share(&self) -> ClientShare {
        ClientShare::of_percent(self.percent())
    }

    /// Returns the share of a client in percent.
    pub(super) fn percent(&self) -> u32 {
        self.percent.load(Ordering::Relaxed)
    }

    /// Counts a connection for its client. `None`: the client has used up its share of this limit or of short connections;
    /// the refusal is noted, and the caller closes the connection.
    pub(super) fn enter(
        self: &Arc<Self>,
        client: ClientAddress,
        kind: ConnectionKind,
        limit: ConnectionLimit<'_>,
    ) -> Option<Counted> {
        let key = match kind {
            ConnectionKind::Http => client.machine_key(),
            ConnectionKind::Counters | ConnectionKind::Semaphores | ConnectionKind::Leases => client.key(),
        };
        let (now, share) = (Instant::now(), self.share());
        let mut clients = lock(&self.clients);
        let own = clients.by_key.get(&key).map_or([0; _], |client| client.connections);
        let own = limit.of.iter().map(|kind| own[*kind as usize] as usize).sum();
        let exhausted = if share.is_exhausted(limit.max, limit.in_use, own) {
            Some((limit.name, limit.max))
        } else if kind.has_short_connections() && self.has_used_up_short_connections(&clients, key, now) {
            Some(("short_connections", self.short_connections_max()))
        } else {
            None
        };
        if let Some((limit, max)) = exhausted {
            drop(clients);
            self.note_refusal(client, limit, share.of(max) as u64);
            return None;
        }
        clients.sweep(now);
        let client = clients.by_key.entry(key).or_default();
        client.connections[kind as usize] += 1;
        let usage = Arc::clone(&client.usage);
        Some(Counted { shares: Arc::clone(self), client: key, kind, since: now, is_unfinished: false, usage })
    }

    fn has_used_up_short_connections(&self, clients: &Clients, client: ClientKey, now: Instant) -> bool {
        let max = self.short_connections_max();
        let Some(client) = clients.by_key.get(&client).filter(|_| max > 0) else { return false };
        let [all, own] =
            [clients.short_connections, client.short_connections].map(|rate| rate.per_second(now) as usize);
        self.share().is_exhausted(max, all, own)
    }

    fn short_connections_max(&self) -> usize {
        self.short_connections_max.load(Ordering::Relaxed) as usize
    }

    /// Counts a refusal, and logs it if it is the client's first one for this limit in a while. `limit` is the key of
    /// the limit of which the client has used up its share.
    pub(super) fn note_refusal(&self, client: ClientAddress, limit: &'static str, share: u64) {
        self.refused.add(1);
        if self.refusals.must_log(client.key(), limit) {
            warn!(
                client = %client.socket().ip(),
                limit,
                share,
                "a client has used up its share of a limit and is refused more; if many programs share its address, raise \
                 client_share or the limit"
            );
        }
    }
}

impl Clients {
    /// Removes the entries that are no longer needed, if there are many.
    fn sweep(&mut self, now: Instant) {
        if self.by_key.len() >= self.sweep_at {
            self.by_key.retain(|_, client| client.is_needed(now));
            self.sweep_at = CLIENTS_LEAST.max(self.by_key.len() * 2);
        }
    }
}

impl Client {
    /// Returns whether the entry contains something that must not be forgotten.
    fn is_needed(&self, now: Instant) -> bool {
        self.connections != [0; _]
            || self.short_connections.per_second(now) > FEW
            || self.usage.handshakes.available_permits() < HANDSHAKES
    }
}

/// The turns of one connection to run steps of long requests. Only [`steps::LONG_REQUESTS`] connections of a client have a turn
/// at the same time, in the order in which they asked, so that other clients wait for few such steps.
pub(super) struct Turns {
    of_client: PollSemaphore,
    turn: Option<OwnedSemaphorePermit>,
}

impl Turns {
    pub(super) fn new(usage: &ClientUsage) -> Self {
        Self { of_client: PollSemaphore::new(Arc::clone(&usage.turns)), turn: None }
    }

    /// Ready when the connection may run a step of a long request.
    pub(super) fn poll_begin(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.turn.is_none() {
            // Fails only if the semaphore was closed, and nothing closes it.
            self.turn = ready!(self.of_client.poll_acquire(context));
        }
        Poll::Ready(())
    }

    /// Stops waiting for a turn: the connection waits for its peer instead, and must not have a turn that it does not
    /// use.
    pub(super) fn stop_waiting(&mut self) {
        self.of_client = PollSemaphore::new(self.of_client.clone_inner());
    }

    /// Ends the turn, because the step is over.
    pub(super) fn end(&mut self) {
        self.turn = None;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::task::Waker;

    use super::*;

    const UNLIMITED: ConnectionLimit<'_> =
        ConnectionLimit { name: "connections", max: usize::MAX, in_use: 0, of: &[] };

    fn client(number: u32) -> ClientAddress {
        ClientAddress::of_peer(SocketAddr::from((Ipv4Addr::from_bits(number), 1)))
    }

    /// Shares of this percentage, with a limit of 1,000 short connections per second.
    fn shares(percent: u32) -> Arc<Shares> {
        let shares = Arc::<Shares>::default();
        let config = Config { client_share: percent, short_connections: 1_000, ..Config::default() };
        shares.configure(&config);
        shares
    }

    /// Over many connections, a client is refused no more often than over one.
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

    /// Opens and closes connections, each after this time, and returns how many were admitted.
    async fn open_and_close(
        shares: &Arc<Shares>,
        client: ClientAddress,
        connections: u32,
        each: Duration,
    ) -> u32 {
        let mut admitted = 0;
        for _ in 0..connections {
            let counted = shares.enter(client, ConnectionKind::Counters, UNLIMITED);
            tokio::time::advance(each).await;
            admitted += u32::from(counted.is_some());
        }
        admitted
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_opens_and_closes_connections_without_end_gets_its_share() {
        let (shares, [one, other]) = (shares(12), [1, 2].map(client));
        let ms = Duration::from_millis;
        // Fewer than half of the limit, for as long as it likes.
        assert_eq!(open_and_close(&shares, one, 4_000, ms(2) + ms(1) / 10).await, 4_000);
        // Alone, it gets half of the limit.
        let flood = open_and_close(&shares, one, 100_000, ms(1) / 10).await;
        assert!((4_900..5_300).contains(&flood), "{flood} of 100,000 in 10 s");
        // A second client gets its share at once; then the first one has only its share too, because more than half is in use.
        let mut both = [0; 2];
        for _ in 0..50_000 {
            both[0] += open_and_close(&shares, one, 1, ms(1) / 10).await;
            both[1] += open_and_close(&shares, other, 1, ms(1) / 10).await;
        }
        assert!((1_100..4_000).contains(&both[1]), "{both:?} in 10 s");
        assert!(
            shares.enter(one, ConnectionKind::Http, UNLIMITED).is_some(),
            "short ones of HTTP are not limited"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_unfinished_handshake_counts_as_ten_short_connections() {
        let shares = shares(12);
        let mut admitted = 0;
        for _ in 0..10_000 {
            if let Some(mut counted) = shares.enter(client(1), ConnectionKind::Counters, UNLIMITED) {
                counted.note_unfinished_handshake();
                admitted += 1;
            }
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        // Alone, it gets half of 1,000 a second, for ten seconds.
        assert!((500..600).contains(&admitted), "{admitted}");
        let mut slow = shares.enter(client(2), ConnectionKind::Counters, UNLIMITED).unwrap();
        slow.note_unfinished_handshake();
        tokio::time::advance(SHORT).await;
        drop(slow);
        assert!(lock(&shares.clients).short_connections.per_second(Instant::now()) > 9.0);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_last_or_stay_open_are_not_limited() {
        let shares = shares(12);
        let enter = || shares.enter(client(1), ConnectionKind::Counters, UNLIMITED);
        let open: Vec<_> = (0..100_000).map_while(|_| enter()).collect();
        assert_eq!(open.len(), 100_000);
        tokio::time::advance(SHORT).await;
        drop(open);
        assert!(lock(&shares.clients).by_key.is_empty());
        assert!(enter().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn clients_are_forgotten_when_they_no_longer_open_connections() {
        let shares = shares(12);
        for number in 0..10_000 {
            open_and_close(&shares, client(number), 3, Duration::from_micros(300)).await;
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        let remembered = lock(&shares.clients).by_key.len();
        assert!((1..=CLIENTS_LEAST).contains(&remembered), "{remembered}");
    }
}

//! The tasks of a server besides its connections: they process deadlines (waits, leases and grace periods that end, semaphores that
//! are removed), tell connections when rights of clients end, and remove names without holders, as both documents of yrmcds require
//! ("Semaphores will be deleted by the GC thread if all resources managed by them are released").

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tracing::debug;

use super::port::port_name;
use super::state::Server;
use super::steps;
use signalbox_core::{Due, TICK_MS};
use signalbox_model::{Namespace, UnixSeconds};

/// The time between two checks of a task: of the clock, which may be set back or forth, of the memory budget, or of
/// semaphores of the configuration that wait for their counters.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// Processes deadlines and evictions when they are due, until the future is dropped.
pub async fn expire(server: Arc<Server>) {
    loop {
        let mailbox_of = |connection| server.peers.find(connection).map(|peer| peer.mailbox);
        // `|` and not `||`, so that the steps of both alternate, and neither waits until the other has nothing left to do.
        while server.core.expire(server.moment()) | server.core.evict(server.moment(), mailbox_of) {
            tokio::task::yield_now().await;
        }
        until_due(&server).await;
    }
}

/// Waits until something is due, and for a tick at most.
async fn until_due(server: &Server) {
    let tick = Instant::now() + Duration::from_millis(TICK_MS);
    let mut timer = pin!(sleep_until(tick));
    poll_fn(|context| {
        match server.core.next_due(context.waker()) {
            None => {}
            Some(Due::Now) => return Poll::Ready(()),
            Some(Due::At(at)) => {
                let at = server.started + Duration::from_millis(at.0);
                if at <= Instant::now() {
                    return Poll::Ready(());
                }
                if at < timer.deadline() {
                    timer.as_mut().reset(at);
                }
            }
        }
        timer.as_mut().poll(context)
    })
    .await;
}

/// Tells all connections whenever the rules are replaced or a token expires, until the future is dropped. A connection
/// checks the rules before it executes a request or sends a message; one that waits for a grant does neither, and would
/// be granted what it may no longer have.
pub fn announce_rules(server: Arc<Server>) -> impl Future<Output = ()> + Send {
    let mut seen = server.rules.access.seen();
    async move {
        loop {
            server.rules.access.changed(&mut seen).await;
            server.new_rules.send_replace(());
            let mut last = None;
            loop {
                let connections = server.peers.mailboxes_after(last, steps::LISTED_CONNECTIONS);
                let Some((session, _)) = connections.last() else { break };
                last = Some(*session);
                connections.iter().for_each(|(_, mailbox)| mailbox.note_new_rules());
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Sweeps the counters after every boundary of the statistics interval that follows the call, until the future is
/// dropped. Boundaries that pass during a sweep share the next sweep.
pub fn sweep_counters(server: Arc<Server>) -> impl Future<Output = ()> + Send {
    let mut boundary = server.core.next_boundary(server.clock.now());
    async move {
        loop {
            sleep(CHECK_PERIOD).await;
            let now = server.clock.now();
            let next = server.core.next_boundary(now);
            // If the clock is set back, the boundary moves back too, and the next sweep is at that boundary.
            if now >= boundary {
                sweep(&server, Namespace::Counters).await;
            }
            boundary = next;
        }
    }
}

/// Sweeps the semaphores an `interval` after the call, and after each sweep, until the future is dropped.
pub async fn sweep_semaphores(server: Arc<Server>, interval: Duration) {
    loop {
        sleep(interval).await;
        sweep(&server, Namespace::Semaphores).await;
    }
}

/// Declares the semaphores of the configuration whose counters were in use, as soon as the counters are idle, until the
/// future is dropped.
pub(super) async fn declare_idle(server: Arc<Server>) {
    loop {
        sleep(CHECK_PERIOD).await;
        server.declare_idle();
    }
}

/// While memory is scarce, sweeps at once what other sweeps would leave for later, until the future is dropped.
pub async fn sweep_for_memory(server: Arc<Server>) {
    loop {
        sleep(CHECK_PERIOD).await;
        if server.memory.is_scarce() {
            for namespace in Namespace::ALL {
                // As if the statistics interval were over: the peaks of unused counters are forgotten early.
                sweep_at(&server, namespace, || server.core.next_boundary(server.clock.now())).await;
            }
        }
    }
}

async fn sweep(server: &Server, namespace: Namespace) {
    sweep_at(server, namespace, || server.clock.now()).await;
}

/// Sweeps as if the time were `now`.
async fn sweep_at(server: &Server, namespace: Namespace, now: impl Fn() -> UnixSeconds) {
    let started = Instant::now();
    let mut sweep = server.core.sweep(namespace);
    let mut pauses = Pauses::of(sweep.names());
    while sweep.step(steps::SWEEP_NAMES, now()) {
        if pauses.is_due(sweep.visited()) {
            sleep(steps::PAUSE).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
    let metrics = &server.port(namespace).metrics;
    metrics.note_gc(started.elapsed());
    let elapsed_us = metrics.last_gc_elapsed_us.value();
    debug!(port = port_name(namespace), collected = sweep.collected(), elapsed_us, "swept");
}

/// The pauses of a sweep: after equal numbers of names, and limited in number.
struct Pauses {
    /// Names visited between two pauses.
    burst: u64,
    /// Names that had been visited at the last pause.
    last: u64,
    left: u64,
}

impl Pauses {
    /// Returns the pauses of a sweep of this many names.
    fn of(names: u64) -> Self {
        let burst = steps::SWEEP_BURST.max(names.div_ceil(steps::SWEEP_PAUSES_MAX));
        Self { burst, last: 0, left: steps::SWEEP_PAUSES_MAX }
    }

    /// Returns whether the sweep pauses now that it has visited this many names.
    fn is_due(&mut self, visited: u64) -> bool {
        let is_due = self.left > 0 && visited - self.last >= self.burst;
        if is_due {
            self.last = visited;
            self.left -= 1;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::Clock;
    use super::*;
    use crate::config::Config;
    use signalbox_core::{Claim, NameHasher};

    /// The numbers of visited names at which a sweep pauses.
    fn pauses(expected: u64, visited: u64) -> Vec<u64> {
        let mut pauses = Pauses::of(expected);
        (0..=visited).step_by(steps::SWEEP_NAMES).filter(|visited| pauses.is_due(*visited)).collect()
    }

    #[test]
    fn a_sweep_pauses_evenly_and_not_for_ever() {
        assert!(pauses(100, 100).is_empty());
        assert_eq!(pauses(1300, 1300), [512, 1024]);
        for names in [1_000_000, 3_000_000, 30_000_000] {
            let pauses = pauses(names, names);
            assert!(pauses.len() as u64 <= steps::SWEEP_PAUSES_MAX);
            assert!(pauses.len() > 1900, "{names} names: {} pauses", pauses.len());
            let end = pauses.last().unwrap();
            assert!(names - end < names / 20, "{names} names: the last pause is at {end}");
        }
        // Clients create names faster than the sweep visits them.
        assert_eq!(pauses(1000, 10_000_000).len() as u64, steps::SWEEP_PAUSES_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sweep_pauses_between_bursts_and_removes_all() {
        let server = Server::new(&Config::default(), Clock::system(), NameHasher::new());
        let mut session = server.core.open_session();
        let claim = Claim::new(1, 1).unwrap();
        const NAMES: u32 = 10_000;
        for number in 0..NAMES {
            let (name, now) = (number.to_be_bytes(), server.clock.now());
            server.core.acquire(Namespace::Semaphores, &name, claim, &mut session, now).unwrap();
            server.core.release(Namespace::Semaphores, &name, 1, &mut session, now).unwrap();
        }
        let started = Instant::now();
        sweep(&server, Namespace::Semaphores).await;
        assert_eq!(server.core.stats(Namespace::Semaphores).objects, 0);
        // A burst ends with the step in which it is reached.
        let pauses = started.elapsed().as_millis() / steps::PAUSE.as_millis();
        assert!((15..=19).contains(&pauses), "{pauses} pauses");
    }
}

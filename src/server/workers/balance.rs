//! The task that measures the workers, and moves load between them.

use std::io;
use std::mem;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::busy_time::BusyTime;
use super::load::{Offer, Room};
use super::placement::{Amount, Measured, Placement, Transfer};
use super::{Worker, Workers};

/// The time between two measurements: long enough to tell load from a burst, and short enough that a worker which cannot
/// keep up gets help before people notice.
const TICK: Duration = Duration::from_millis(100);

/// Moves load between the workers for as long as the returned future is polled. If it is dropped, connections stay where
/// they are.
pub(in crate::server) async fn balance(workers: Workers) {
    if workers.0.threads.len() == 1 {
        return;
    }
    let _withdraw = Withdraw(workers.clone());
    if let Err(error) = run(&workers).await {
        warn!(%error, "the load of the worker threads cannot be measured; connections are spread over all of them");
        workers.set_active(workers.0.threads.len());
    }
}

async fn run(workers: &Workers) -> io::Result<()> {
    let threads = &workers.0.threads;
    let mut placement = Placement::new(threads.len());
    let mut meters = threads.iter().map(Meter::start).collect::<io::Result<Vec<_>>>()?;
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for tick in 0.. {
        ticks.tick().await;
        let mut measured = Vec::with_capacity(threads.len());
        let mut units = Vec::with_capacity(threads.len());
        for meter in &mut meters {
            meter.thread.gauge.begin_tick(tick);
            measured.push(meter.measure()?);
            units.push(meter.units());
        }
        let active_before = placement.active();
        let transfers = placement.observe(&measured);
        workers.set_active(placement.active());
        if placement.active() != active_before {
            debug!(
                active = placement.active(),
                ?measured,
                "the number of workers that serve connections changed"
            );
        }
        for ((thread, units), transfer) in threads.iter().zip(units).zip(transfers) {
            thread.gauge.set_offer(transfer.map(|transfer| offer(transfer, units)));
        }
    }
    Ok(())
}

/// The offer to the connections of a worker that made so many units in the last tick.
pub(super) fn offer(transfer: Transfer, units: u64) -> Offer {
    let room = match transfer.amount {
        Amount::Share(share) => Room::Units((units as f64 * share) as u32),
        Amount::All => Room::All,
    };
    Offer { to: transfer.to, room }
}

/// The figures of a worker at the last measurement.
struct Meter<'a> {
    thread: &'a Worker,
    clock: &'a BusyTime,
    measured: Instant,
    busy_time: Duration,
    requests: u64,
    units: u64,
}

impl<'a> Meter<'a> {
    fn start(thread: &'a Worker) -> io::Result<Self> {
        let clock = thread.busy_time()?;
        Ok(Self {
            thread,
            clock,
            measured: Instant::now(),
            busy_time: clock.read()?,
            requests: thread.gauge.requests(),
            units: thread.gauge.units(),
        })
    }

    /// The worker's load since the last call.
    fn measure(&mut self) -> io::Result<Measured> {
        let (now, busy_time, requests) = (Instant::now(), self.clock.read()?, self.thread.gauge.requests());
        let seconds = (now - self.measured).as_secs_f64().max(f64::MIN_POSITIVE);
        let busy = busy_time.saturating_sub(self.busy_time).as_secs_f64() / seconds;
        let requests_per_s = (requests - self.requests) as f64 / seconds;
        (self.measured, self.busy_time, self.requests) = (now, busy_time, requests);
        Ok(Measured { busy: busy.min(1.0), requests_per_s })
    }

    /// Units since the last call.
    fn units(&mut self) -> u64 {
        let units = self.thread.gauge.units();
        units - mem::replace(&mut self.units, units)
    }
}

/// Withdraws all offers when it is dropped.
struct Withdraw(Workers);

impl Drop for Withdraw {
    fn drop(&mut self) {
        for thread in &self.0.0.threads {
            thread.gauge.set_offer(None);
        }
    }
}

//! `run` in a leased session, which survives disconnections shorter than the lease. The command is ended only if the
//! resources are about to be lost or were lost; if possible, early enough that it ends before they are lost.

use std::future::pending;
use std::time::Duration;

use super::arguments::{Arguments, OnLost};
use super::processes::{Event, Processes};
use super::supervise::{Alarm, Hold, Outcome, supervise};
use crate::cli::exit::{End, Failure};
use crate::cli::leased::{Held, acquire, slots_of, slots_value};
use crate::cli::messages::warn;
use crate::cli::outer::{self, Holding};
use crate::cli::server::Server;
use crate::cli::signals::Signals;
use crate::cli::wanted::Amounts;
use signalbox_client::{BootClock, Clock, Error, ErrorKind, Lost, Moment, Permit};

/// The longest time by which SIGKILL precedes the end of a lease, so that the command is gone when the lease ends.
const RESERVE_MAX: Duration = Duration::from_millis(500);

/// The longest time by which SIGKILL precedes the end of a grace period. It is short, because an administrator has
/// granted this period to the command.
const GRACE_RESERVE_MAX: Duration = Duration::from_millis(100);

/// Runs the command while a session holds the amounts.
pub(super) async fn run(arguments: &Arguments, server: &Server, amounts: &Amounts) -> Result<End, Failure> {
    let Arguments { lease, waiting, .. } = arguments;
    let mut signals = Signals::listen()?;
    let held =
        acquire(server, *lease, &arguments.task(), amounts, waiting, &outer::all(), &mut signals).await?;
    let result = run_holding(arguments, amounts, &held.permit, &mut signals).await;
    let end = match result {
        Ok(Outcome::Release(end)) => Ok(end),
        Ok(Outcome::Keep(failure)) => {
            // Dropping the permit would release it. The lease ends by itself: nothing renews it when this process has ended.
            std::mem::forget(held);
            return Err(failure);
        }
        Err(failure) => Err(failure),
    };
    let is_done = waiting.share && matches!(end, Ok(End::Status(0)));
    release(server, amounts, held, is_done).await;
    end
}

async fn run_holding(
    arguments: &Arguments,
    amounts: &Amounts,
    permit: &Permit,
    signals: &mut Signals,
) -> Result<Outcome, Failure> {
    let mut hold = LeaseHold::new(arguments, amounts, permit);
    if !permit.is_held() {
        // This process was stopped, or the machine suspended, before the command could be started.
        return Err(Error::from(permit.lost().await).into());
    }
    let slots = slots_value(&slots_of(permit));
    let processes = Processes::start(&arguments.command, signals, slots, Some(&Holding::Grant(permit.id())))?;
    Ok(supervise(&mut hold, arguments, processes, signals).await)
}

/// Releases the permit, with `done` after the work of a single flight, and closes the session, so that the resources
/// are available when this process has ended. If that fails, they are released when the lease ends.
async fn release(server: &Server, amounts: &Amounts, Held { client, permit }: Held, is_done: bool) {
    if permit.is_held() {
        let object = amounts.object();
        let released = async { if is_done { permit.release_done().await } else { permit.release().await } };
        match server.answer(released).await {
            // The lease is over, so the resources are released. If it was about to end, a warning said so before the
            // command was ended.
            Err(error) if error.lost().is_some() => {}
            Err(error) if matches!(error.kind(), ErrorKind::Connect(_)) => {
                return warn(&format!("{object} may stay held until the lease ends: {error}"));
            }
            Err(error) => Failure::from(error).report(),
            Ok(()) => {}
        }
    }
    client.close().await;
}

/// A permit while the command runs.
struct LeaseHold<'a> {
    permit: &'a Permit,
    names: String,
    kill_after: Duration,
    on_lost: OnLost,
    state: State,
}

/// The events that the hold has reported so far. Each is reported once.
#[derive(Clone, Copy)]
enum State {
    Held {
        term: Term,
        reported: Reported,
    },
    /// The permit was lost; nothing else can happen.
    Lost,
}

/// Events that were reported while the permit was held. They can occur in either order.
#[derive(Clone, Copy, Default)]
struct Reported {
    /// No server renews the lease, and its end is near.
    not_renewed: bool,
    /// An administrator revoked the permit; the grace period runs.
    revoked: bool,
}

/// The duration and the end of the lease, as last seen.
#[derive(Clone, Copy)]
struct Term {
    /// The longest time that was ever left: nearly the whole lease, because the lease starts again with each renewal.
    longest: Duration,
    /// The earliest end of the lease, on the boot clock, which also counts while the machine is suspended. No other
    /// client is granted the resources before it, unless the permit is revoked.
    until: Moment,
}

impl Term {
    fn new(permit: &Permit) -> Self {
        let mut term = Self { longest: Duration::ZERO, until: BootClock.now() };
        term.update(permit);
        term
    }

    /// Updates the term from the permit. Returns how much of the lease is left; nothing if the permit is lost.
    fn update(&mut self, permit: &Permit) -> Duration {
        let left = permit.time_left();
        if let Some(left) = left {
            self.longest = self.longest.max(left);
            self.until = after(left);
        }
        left.unwrap_or_default()
    }
}

impl<'a> LeaseHold<'a> {
    fn new(arguments: &Arguments, amounts: &Amounts, permit: &'a Permit) -> Self {
        Self {
            permit,
            names: amounts.names(),
            kill_after: arguments.kill_after,
            on_lost: arguments.on_lost,
            state: State::Held { term: Term::new(permit), reported: Reported::default() },
        }
    }

    fn not_renewed(&self, left: Duration) -> Alarm {
        let seconds = left.as_secs_f64();
        let reason = format!("the lease of {} cannot be renewed and ends in {seconds:.1} s", self.names);
        Alarm { event: Event::Expiring(left), reason, time: time_to_end(self.kill_after, left) }
    }

    fn revoked(&self, left: Duration) -> Alarm {
        let reason = format!("an administrator revoked {}", self.names);
        Alarm { event: Event::Revoking(left), reason, time: time_of_grace(self.kill_after, left) }
    }

    fn lost(&self, term: Term, lost: Lost) -> Alarm {
        let names = &self.names;
        let what = match lost {
            Lost::Expired => format!("the server no longer knows the lease of {names}"),
            Lost::Revoked => format!("an administrator revoked {names}"),
            Lost::Unreachable => format!("the lease of {names} ended because it could not be renewed"),
            Lost::Refused => format!("the lease of {names} ended because the server refused to renew it"),
            Lost::TakenOver => format!("another client took over the session that holds {names}"),
            _ => format!("the lease of {names} is no longer renewed"),
        };
        let left = match lost {
            // The server has released the permit before the end of the lease, or the lease is over.
            Lost::Revoked | Lost::Unreachable | Lost::Refused => Duration::ZERO,
            _ => term.until.0.saturating_sub(BootClock.now().0),
        };
        let reason = format!("{what}, so others may acquire {names} now");
        Alarm { event: Event::Lost, reason, time: time_to_end(self.kill_after, left) }
    }
}

impl Hold for LeaseHold<'_> {
    async fn alarm(&mut self) -> Alarm {
        let permit = self.permit;
        loop {
            let State::Held { mut term, reported } = self.state else { return pending().await };
            let until_notice = term.update(permit).saturating_sub(notice(self.kill_after, term.longest));
            self.state = State::Held { term, reported };
            let ends_in_time = self.on_lost == OnLost::Kill;
            tokio::select! {
                biased;
                lost = permit.lost() => {
                    self.state = State::Lost;
                    return self.lost(term, lost);
                }
                () = permit.revocation(), if !reported.revoked => {
                    let left = term.update(permit);
                    self.state = State::Held { term, reported: Reported { revoked: true, ..reported } };
                    return self.revoked(left);
                }
                () = BootClock.sleep_until(after(until_notice)), if ends_in_time && !reported.not_renewed => {
                    let left = term.update(permit);
                    self.state = State::Held { term, reported };
                    if left <= notice(self.kill_after, term.longest) {
                        self.state = State::Held { term, reported: Reported { not_renewed: true, ..reported } };
                        return self.not_renewed(left);
                    }
                }
            }
        }
    }
}

/// Returns the moment this long after now.
fn after(span: Duration) -> Moment {
    Moment(BootClock.now().0.saturating_add(span))
}

/// Returns how long before the end of the lease the command is asked to end, if the lease is not renewed: at most a
/// quarter of the lease plus the reserve, because otherwise a renewal that is only late would end the command.
fn notice(kill_after: Duration, lease: Duration) -> Duration {
    kill_after.min(lease / 4) + reserve(lease)
}

/// Returns how long the command may take to end if this much of the lease is left.
fn time_to_end(kill_after: Duration, left: Duration) -> Duration {
    kill_after.min(left - reserve(left))
}

/// Returns how long the command may take to end if this much of a grace period is left.
fn time_of_grace(kill_after: Duration, left: Duration) -> Duration {
    kill_after.min(left - reserve(left).min(GRACE_RESERVE_MAX))
}

/// Returns the part of a lease or a grace period that is kept for SIGKILL to take effect.
fn reserve(span: Duration) -> Duration {
    (span / 20).min(RESERVE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_command_is_killed_before_its_lease_ends_however_long_it_may_take() {
        for lease_s in [1, 5, 30, 3600] {
            for kill_after_s in [1, 10, 7200] {
                let (lease, kill_after) = (seconds(lease_s), seconds(kill_after_s));
                let notice = notice(kill_after, lease);
                assert!(notice <= lease / 3, "a renewal that is late ends nothing");
                let time = time_to_end(kill_after, notice);
                assert!(time < notice && time <= kill_after && time >= kill_after.min(lease / 4));
            }
        }
        assert_eq!(time_to_end(seconds(10), Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_command_is_killed_shortly_before_a_grace_period_ends() {
        for left_s in [1, 4, 60, 3600] {
            let left = seconds(left_s);
            let before = left - time_of_grace(seconds(7200), left);
            assert!(before > Duration::ZERO && before <= Duration::from_millis(100), "{before:?}");
        }
        assert_eq!(time_of_grace(seconds(10), seconds(60)), seconds(10));
        assert_eq!(time_of_grace(seconds(10), Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_command_has_all_of_its_time_where_the_lease_is_long() {
        assert_eq!(notice(seconds(10), seconds(60)), Duration::from_millis(10_500));
        assert_eq!(time_to_end(seconds(10), Duration::from_millis(10_500)), seconds(10));
    }
}

//! `run` in a leased session, which survives cuts that are shorter than the lease: the command is ended only where the
//! lease is going to end, and then in time.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::supervise::{Alarm, Hold, supervise};
use super::{Arguments, OnLost, child};
use crate::cli::exit::{Failure, warn};
use crate::cli::leased::{Held, acquire};
use crate::cli::output::escaped;
use crate::cli::server::Server;
use crate::cli::signals::Signals;
use crate::cli::slots;
use crate::cli::wanted::Amounts;
use crate::client::{Error, Lost, Permit};

/// The longest by which SIGKILL comes before the end of a lease, which the command must not see.
const RESERVE_MAX: Duration = Duration::from_millis(500);

/// Runs the command while a session holds the amounts.
pub(super) async fn run(arguments: &Arguments, amounts: &Amounts) -> Result<ExitCode, Failure> {
    let Arguments { server, lease, waiting, .. } = arguments;
    let mut signals = Signals::listen()?;
    let program = arguments.command.first().map(|program| escaped(program.as_encoded_bytes()));
    let task = format!("run[{}] {}", std::process::id(), program.unwrap_or_default());
    let held = acquire(server, *lease, &task, amounts, waiting, &mut signals).await?;
    let result = run_holding(arguments, amounts, &held.permit, &mut signals).await;
    give_back(server, amounts, held).await;
    result
}

async fn run_holding(
    arguments: &Arguments,
    amounts: &Amounts,
    permit: &Permit,
    signals: &mut Signals,
) -> Result<ExitCode, Failure> {
    let mut lease = Lease::new(arguments, amounts, permit);
    if !permit.is_held() {
        // This process was stopped, or the machine suspended, before the command could be started.
        return Err(Error::Lost(permit.lost().await).into());
    }
    let child = child::start(&arguments.command, slots::of_all(&slots::of(permit)))?;
    supervise(&mut lease, arguments.on_lost, child, signals).await
}

/// Gives back and closes the session, so that who acquires next finds it given back. Where that fails, the end of the
/// lease does it.
async fn give_back(server: &Server, amounts: &Amounts, Held { client, permit }: Held) {
    if permit.is_held() {
        let names = amounts.names();
        match server.answer(permit.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn(&format!("giving back {names} failed: {error}")),
            Err(failure) => {
                failure.report();
                warn(&format!("{names} may be held until the lease ends; nothing needs to be done"));
                return;
            }
        }
    }
    client.close().await;
}

/// A permit, and what was said of it already.
struct Lease<'a> {
    permit: &'a Permit,
    names: String,
    kill_after: Duration,
    /// Whether the command is to be ended before the lease is over.
    ends_in_time: bool,
    /// The longest that was ever left of the lease: nearly all of it, as each renewal begins it anew.
    longest: Duration,
    /// Until when the lease lasts at least, as far as it was looked at. What is known to be held is held until then,
    /// whatever becomes of the permit, unless it is revoked: nobody else has it before.
    until: Instant,
    is_running_out: bool,
    is_revoked: bool,
    is_lost: bool,
}

impl<'a> Lease<'a> {
    fn new(arguments: &Arguments, amounts: &Amounts, permit: &'a Permit) -> Self {
        let mut lease = Self {
            permit,
            names: amounts.names(),
            kill_after: arguments.kill_after,
            ends_in_time: arguments.on_lost == OnLost::Kill,
            longest: Duration::ZERO,
            until: Instant::now(),
            is_running_out: false,
            is_revoked: false,
            is_lost: false,
        };
        lease.look();
        lease
    }

    /// How long the lease lasts yet.
    fn look(&mut self) -> Duration {
        let left = self.permit.time_left();
        if let Some(left) = left {
            self.longest = self.longest.max(left);
            self.until = Instant::now() + left;
        }
        left.unwrap_or_default()
    }

    fn running_out(&mut self, left: Duration) -> Alarm {
        self.is_running_out = true;
        let reason = format!(
            "no server renews the lease of {}, which ends in {:.1} s",
            self.names,
            left.as_secs_f64()
        );
        Alarm { reason, time: time_to_end(self.kill_after, left) }
    }

    fn revoked(&mut self) -> Alarm {
        self.is_revoked = true;
        let left = self.look();
        let reason = format!("an administrator takes {} away in {:.1} s", self.names, left.as_secs_f64());
        Alarm { reason, time: time_to_end(self.kill_after, left) }
    }

    fn lost(&mut self, lost: Lost) -> Alarm {
        self.is_lost = true;
        let names = &self.names;
        let what = match lost {
            Lost::Expired => format!("the server does not know the lease of {names} any more"),
            Lost::Revoked => format!("an administrator took {names} away"),
            Lost::Unreachable => format!("the lease of {names} has ended, as no server renewed it"),
            Lost::TakenOver => format!("another client took over the session that holds {names}"),
            Lost::Stopped => format!("nothing renews the lease of {names} any more"),
        };
        let left = match lost {
            // The server has freed it, however long the lease would have lasted.
            Lost::Revoked => Duration::ZERO,
            _ => self.until.saturating_duration_since(Instant::now()),
        };
        let reason = format!("{what}, so others may acquire of it now");
        Alarm { reason, time: time_to_end(self.kill_after, left) }
    }
}

impl Hold for Lease<'_> {
    async fn alarm(&mut self) -> Alarm {
        loop {
            let left = self.look();
            let permit = self.permit;
            let quiet = left.saturating_sub(notice(self.kill_after, self.longest));
            tokio::select! {
                biased;
                lost = permit.lost(), if !self.is_lost => return self.lost(lost),
                () = permit.revocation(), if !self.is_lost && !self.is_revoked => return self.revoked(),
                () = sleep(quiet), if !self.is_lost && !self.is_running_out && self.ends_in_time => {
                    let left = self.look();
                    if left <= notice(self.kill_after, self.longest) {
                        return self.running_out(left);
                    }
                }
                // Nothing can happen to it any more.
                else => return std::future::pending().await,
            }
        }
    }
}

/// How long before its end a lease that nobody renews is given up. Not more than a quarter of it, or the command would
/// be ended where a renewal is only late.
fn notice(kill_after: Duration, lease: Duration) -> Duration {
    kill_after.min(lease / 4) + reserve(lease)
}

/// How long a command may take to end by itself when so much of the lease is left.
fn time_to_end(kill_after: Duration, left: Duration) -> Duration {
    kill_after.min(left - reserve(left))
}

/// How long it may take from when SIGKILL is due until the command is gone.
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
    fn a_command_has_all_of_its_time_where_the_lease_is_long() {
        assert_eq!(notice(seconds(10), seconds(60)), Duration::from_millis(10_500));
        assert_eq!(time_to_end(seconds(10), Duration::from_millis(10_500)), seconds(10));
    }
}

//! Runs a command together with the resources that it holds. Before the resources are lost, and when this process is
//! asked to end, it ends the command and all its descendants. docs/run.md is the contract.
//!
//! No other program can delay this: timers and signals are handled before the ends of processes, and a separate thread
//! writes messages.

use std::future::pending;
use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use tokio::time::{Instant, sleep, sleep_until};

use super::arguments::{Arguments, OnLost};
use super::processes::{Event, Processes};
use crate::cli::exit::{End, Exit, Failure};
use crate::cli::messages::warn;
use crate::cli::signals::{STOPS, Signals, is_from_keyboard};

/// The time between two SIGKILLs, until no process is left.
const KILL_AGAIN: Duration = Duration::from_millis(20);

/// How long killed processes may take to end. A process that waits for a device can take any time.
const KILL_MAX: Duration = Duration::from_secs(10);

/// The time between two checks, after this process was asked to stop, whether its command has stopped.
const STOP_AGAIN: Duration = Duration::from_millis(20);

/// How long this process checks whether its command has stopped.
const STOP_MAX: Duration = Duration::from_secs(1);

/// The resources that a command holds while it runs.
pub(super) trait Hold {
    /// Returns the next reason to end the command, or waits forever if no other can follow. Cancel safe.
    async fn alarm(&mut self) -> Alarm;
}

/// A reason to end the command.
pub(super) struct Alarm {
    /// The event that is reported to the command.
    pub(super) event: Event,
    /// The first part of the warning.
    pub(super) reason: String,
    /// How long the command may take to end before it is killed.
    pub(super) time: Duration,
}

/// How the command ended, and what becomes of its resources.
pub(super) enum Outcome {
    /// This process releases them and ends in this way.
    Release(End),
    /// Processes are left that cannot be ended, so this process does not release a lease: it ends by itself. Without a
    /// lease, the resources are released when this process ends.
    Keep(Failure),
}

/// The phase of the processes.
#[derive(Clone, Copy)]
enum Phase {
    Running,
    /// They were sent SIGTERM, and will be sent SIGKILL at this time.
    Ending {
        kill_at: Instant,
    },
    /// They are sent SIGKILL until none is left, or until this time.
    Killing {
        next: Instant,
        until: Instant,
    },
}

impl Phase {
    /// Waits until the next step is due.
    async fn due(self) {
        match self {
            Self::Running => pending().await,
            Self::Ending { kill_at } => sleep_until(kill_at).await,
            Self::Killing { next, until } => sleep_until(next.min(until)).await,
        }
    }

    /// Returns the phase after SIGTERM was sent: SIGKILL follows after this time, or earlier if an earlier reason demands
    /// it.
    fn ending(self, time: Duration) -> Self {
        let kill_at = Instant::now() + time;
        match self {
            Self::Running => Self::Ending { kill_at },
            Self::Ending { kill_at: earlier } => Self::Ending { kill_at: earlier.min(kill_at) },
            Self::Killing { .. } => self,
        }
    }

    /// Returns until when the processes are sent SIGKILL, which begins now unless it has already begun.
    fn kill_until(self) -> Instant {
        match self {
            Self::Running | Self::Ending { .. } => Instant::now() + KILL_MAX,
            Self::Killing { until, .. } => until,
        }
    }
}

/// Waits for the end of the command. Until then, passes signals on and ends the processes when the hold raises an alarm.
pub(super) async fn supervise(
    hold: &mut impl Hold,
    arguments: &Arguments,
    processes: Processes,
    signals: &mut Signals,
) -> Outcome {
    // When the first process of a container ends, the kernel kills all others. That would be after the release of the
    // resources, so this process ends the others before it.
    let ends_rest = std::process::id() == 1 && !arguments.wait_children;
    let mut supervisor = Supervisor {
        arguments,
        processes,
        phase: Phase::Running,
        stop_until: None,
        is_lost: false,
        ends_rest,
    };
    loop {
        if let Some(end) = supervisor.end() {
            return Outcome::Release(end);
        }
        tokio::select! {
            // Any number of processes may end at any time, so `child_end` comes last.
            biased;
            () = supervisor.phase.due() => {
                if let Some(failure) = supervisor.kill() {
                    return Outcome::Keep(failure);
                }
            }
            alarm = hold.alarm() => supervisor.alarm(alarm),
            signal = signals.next() => supervisor.signal(signal),
            () = sleep(STOP_AGAIN), if supervisor.stop_until.is_some() => supervisor.stop(),
            () = supervisor.processes.child_end() => {}
        }
    }
}

struct Supervisor<'a> {
    arguments: &'a Arguments,
    processes: Processes,
    phase: Phase,
    /// Set after a terminal has asked this process to stop: until this time, the command may stop first.
    stop_until: Option<Instant>,
    /// Whether an alarm was the reason to end the command, so that the command did not end by itself.
    is_lost: bool,
    /// Whether the descendants are ended when the command has ended.
    ends_rest: bool,
}

impl Supervisor<'_> {
    /// Reaps processes, and sends SIGTERM to those that must end now. Returns how this process ends; `None` while it waits
    /// for processes.
    fn end(&mut self) -> Option<End> {
        let has_processes = self.processes.reap();
        let end = self.processes.ended()?;
        if has_processes {
            match self.phase {
                Phase::Running if self.ends_rest => self.terminate(self.arguments.kill_after),
                Phase::Running if !self.arguments.wait_children => return Some(end),
                // Some may have been started after the others were sent SIGTERM.
                Phase::Ending { .. } => self.processes.terminate(),
                Phase::Running | Phase::Killing { .. } => {}
            }
            return None;
        }
        Some(if self.is_lost { Exit::Unavailable.into() } else { end })
    }

    /// Sends SIGTERM to the processes; those that are left after this time are killed.
    fn terminate(&mut self, time: Duration) {
        self.processes.terminate();
        self.phase = self.phase.ending(time);
    }

    /// Kills the processes that are left. Returns the failure if some are left after [`KILL_MAX`].
    fn kill(&mut self) -> Option<Failure> {
        let until = self.phase.kill_until();
        if Instant::now() >= until {
            return Some(self.processes.left());
        }
        self.processes.kill();
        self.phase = Phase::Killing { next: Instant::now() + KILL_AGAIN, until };
        None
    }

    fn alarm(&mut self, Alarm { event, reason, time }: Alarm) {
        self.processes.tell(event);
        if self.arguments.on_lost == OnLost::Continue {
            return warn(&format!("{reason}; the command keeps running"));
        }
        // If the command has just ended, the loss changes nothing.
        if self.end().is_some() {
            return;
        }
        let sent = if time.is_zero() {
            // Others may have the resources now, so the processes must do nothing more, not even handle SIGTERM.
            self.phase = Phase::Killing { next: Instant::now(), until: self.phase.kill_until() };
            "sent SIGKILL to the command and its descendants".to_owned()
        } else {
            self.terminate(time);
            let seconds = time.as_secs_f64();
            format!("sent SIGTERM to the command and its descendants, SIGKILL follows after {seconds:.1} s")
        };
        if !std::mem::replace(&mut self.is_lost, true) {
            warn(&format!("{reason}; {sent}"));
        }
    }

    /// Stops this process once its command and the descendants are stopped: a process that continues to run needs the
    /// resources, whose lease only this process renews.
    fn stop(&mut self) {
        let is_over = self.stop_until.is_none_or(|until| until <= Instant::now());
        if !matches!(self.phase, Phase::Running) {
            self.stop_until = None;
        } else if self.processes.are_stopped() {
            self.stop_until = None;
            let _ = raise(Signal::SIGSTOP);
        } else if is_over {
            self.stop_until = None;
            warn(
                "the command or a process that it started does not stop, so signalbox keeps holding its resources",
            );
        }
    }

    fn signal(&mut self, signal: Signal) {
        match signal {
            Signal::SIGUSR1 | Signal::SIGUSR2 => self.processes.pass_on(signal),
            Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT => {
                self.ends_rest = true;
                if !is_from_keyboard(signal) || !self.processes.is_in_group() {
                    self.processes.pass_on(signal);
                }
            }
            signal if STOPS.contains(&signal) => self.stop_until = Some(Instant::now() + STOP_MAX),
            _ => self.terminate(self.arguments.kill_after),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(10);

    #[test]
    fn a_later_reason_brings_sigkill_forward_and_never_delays_it() {
        let start = Instant::now();
        for times in [&[SHORT][..], &[SHORT, LONG], &[LONG, SHORT], &[LONG, SHORT, LONG]] {
            let phase = times.iter().fold(Phase::Running, |phase, time| phase.ending(*time));
            assert!(matches!(phase, Phase::Ending { kill_at } if kill_at < start + LONG / 2), "{times:?}");
            let killing = Phase::Killing { next: start, until: start };
            assert!(matches!(killing.ending(LONG), Phase::Killing { .. }));
        }
    }
}

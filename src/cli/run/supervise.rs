//! Runs a command together with the resources that it holds: before they are lost, the command is ended.

use std::future::pending;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::process::Child;
use tokio::time::{Instant, sleep_until};

use super::arguments::OnLost;
use super::child::{ended, exit_code, send, terminate};
use crate::cli::exit::{Exit, Failure, warn};
use crate::cli::signals::Signals;

/// The resources that a command holds while it runs.
pub(super) trait Hold {
    /// Resolves each time that there is a new reason to end the command, and never once no other can follow.
    /// Cancel safe.
    async fn alarm(&mut self) -> Alarm;
}

/// A reason to end the command.
pub(super) struct Alarm {
    /// The first part of the warning.
    pub(super) reason: String,
    /// How long the command may take to end before it is killed.
    pub(super) time: Duration,
}

/// The state of the command.
#[derive(Clone, Copy)]
enum Command {
    Running,
    /// It was sent SIGTERM, and will be sent SIGKILL at this time.
    Ending {
        kill_at: Instant,
    },
}

impl Command {
    /// Resolves when SIGKILL is due.
    async fn kill_is_due(self) {
        match self {
            Self::Running => pending().await,
            Self::Ending { kill_at } => sleep_until(kill_at).await,
        }
    }
}

/// Waits for the end of the command and returns the exit status. Until then, passes signals on and ends the command when
/// the hold raises an alarm.
pub(super) async fn supervise(
    hold: &mut impl Hold,
    on_lost: OnLost,
    mut child: Child,
    signals: &mut Signals,
) -> Result<ExitCode, Failure> {
    let mut command = Command::Running;
    let status = loop {
        tokio::select! {
            // The end of the command comes first: a loss at the same moment must not change its exit status.
            biased;
            status = ended(&mut child) => break status?,
            signal = signals.next() => send(&child, signal),
            Alarm { reason, time } = hold.alarm() => {
                let kill_at = Instant::now() + time;
                command = match (on_lost, command) {
                    (OnLost::Continue, _) => {
                        warn(&format!("{reason}; the command keeps running"));
                        Command::Running
                    }
                    (OnLost::Kill, Command::Running) => {
                        let seconds = time.as_secs_f64();
                        warn(&format!(
                            "{reason}; sending SIGTERM to the command, and SIGKILL after {seconds:.1} s"
                        ));
                        terminate(&child);
                        Command::Ending { kill_at }
                    }
                    // A later alarm can only bring SIGKILL forward.
                    (OnLost::Kill, Command::Ending { kill_at: earlier }) => {
                        Command::Ending { kill_at: earlier.min(kill_at) }
                    }
                };
            }
            () = command.kill_is_due() => {
                send(&child, Signal::SIGKILL);
                // SIGKILL is sent once; the kernel may take any time to end the process.
                break ended(&mut child).await?;
            }
        }
    };
    Ok(match command {
        Command::Running => exit_code(status),
        Command::Ending { .. } => Exit::Unavailable.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use tokio::io::AsyncReadExt;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(10);
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Raises one alarm after the other, each with a time until SIGKILL.
    struct Alarms<'a>(std::slice::Iter<'a, Duration>);

    impl Hold for Alarms<'_> {
        async fn alarm(&mut self) -> Alarm {
            match self.0.next() {
                Some(time) => Alarm { reason: "the lease ends".to_owned(), time: *time },
                None => pending().await,
            }
        }
    }

    /// Supervises a command that ignores SIGTERM. Returns whether SIGKILL has ended it before the test gave up.
    async fn is_killed(times: &[Duration]) -> bool {
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", "trap '' TERM; echo ready; exec sleep 3600"]).kill_on_drop(true);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.take().unwrap().read_u8().await.unwrap();
        let mut signals = Signals::listen().unwrap_or_else(|failure| panic!("{failure:?}"));
        let mut alarms = Alarms(times.iter());
        let supervised = supervise(&mut alarms, OnLost::Kill, child, &mut signals);
        tokio::time::timeout(PATIENCE, supervised).await.is_ok()
    }

    #[tokio::test]
    async fn a_later_alarm_brings_sigkill_forward_and_never_delays_it() {
        for times in [&[SHORT][..], &[SHORT, LONG], &[LONG, SHORT], &[LONG, SHORT, LONG]] {
            assert!(is_killed(times).await, "{times:?}");
        }
    }
}

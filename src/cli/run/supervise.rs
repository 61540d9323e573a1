//! A command and what it holds, watched together: when the one is about to be lost, the other is ended before.

use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::process::Child;
use tokio::time::{Instant, sleep_until};

use super::OnLost;
use super::child::{ended, exit_code, send, terminate};
use crate::cli::exit::{Exit, Failure, warn};
use crate::cli::signals::Signals;

/// What a command holds while it runs.
pub(super) trait Hold {
    /// Resolves each time that there is a new reason for the command to end, and never when there will be no other.
    /// Cancel safe.
    async fn alarm(&mut self) -> Alarm;
}

/// Why a command has to end.
pub(super) struct Alarm {
    /// The first part of a sentence.
    pub(super) reason: String,
    /// How long it may take for that before it is killed.
    pub(super) time: Duration,
}

/// Waits for the command's end and gives the status to exit with; meanwhile passes on signals and heeds what is held.
pub(super) async fn supervise(
    hold: &mut impl Hold,
    on_lost: OnLost,
    mut child: Child,
    signals: &mut Signals,
) -> Result<ExitCode, Failure> {
    let mut is_told = false;
    let mut kill_at: Option<Instant> = None;
    let status = loop {
        tokio::select! {
            // A command that has ended is never blamed on what was lost at the same time.
            biased;
            status = ended(&mut child) => break status?,
            signal = signals.next() => send(&child, signal),
            Alarm { reason, time } = hold.alarm() => {
                if on_lost == OnLost::Continue {
                    warn(&format!("{reason}; the command runs on"));
                    continue;
                }
                if !is_told {
                    warn(&format!("{reason}; the command is sent SIGTERM"));
                    terminate(&child);
                    is_told = true;
                }
                // A later reason can only hasten the end.
                let at = Instant::now() + time;
                kill_at = Some(kill_at.map_or(at, |earlier| earlier.min(at)));
            }
            () = reached(kill_at) => {
                send(&child, Signal::SIGKILL);
                // It is waited for, however long the kernel takes; once is enough.
                break ended(&mut child).await?;
            }
        }
    };
    Ok(if is_told { Exit::Unavailable.into() } else { exit_code(status) })
}

async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

//! Signals that somebody sends to `run` and means for its command.
//!
//! Two kinds are left alone. A signal that was ignored when this process started stays ignored and is inherited so by
//! the command: that is what `nohup` and a shell's background jobs rely on. And what the keyboard sends (SIGINT,
//! SIGQUIT) is not passed on while this process is in the foreground of a terminal: the terminal sends it to the
//! whole process group, the command included, which must not get it twice.

use std::fs::{self, File};
use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::Signal;
use nix::unistd::{getpgrp, tcgetpgrp};
use tokio::signal::unix::{Signal as Arrivals, SignalKind, signal};

use super::exit::{Exit, Failure};

/// What is passed on.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// The signals that arrive from now on; they do not end this process any more, not even when this is dropped.
pub(super) struct Signals(Vec<(Signal, Arrivals)>);

impl Signals {
    pub(super) fn listen() -> Result<Self, Failure> {
        Self::try_listen().map_err(|error| {
            let message = format!("cannot listen for signals ({error}); nothing was started");
            Failure::new(Exit::CannotRun, message)
        })
    }

    fn try_listen() -> io::Result<Self> {
        let ignored = ignored();
        let heard = PASSED_ON.into_iter().filter(|signal| !contains(ignored, *signal));
        heard
            .map(|heard| Ok((heard, signal(SignalKind::from_raw(heard as i32))?)))
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// The next signal that the command should get. Cancel safe.
    pub(super) async fn next(&mut self) -> Signal {
        loop {
            let arrived = self.any().await;
            if !(is_of_the_keyboard(arrived) && in_foreground()) {
                return arrived;
            }
        }
    }

    /// The next signal that arrives, from wherever; as long as there is no command, all are meant for this process.
    /// Cancel safe.
    pub(super) async fn any(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, arrivals) in &mut self.0 {
                if arrivals.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

fn is_of_the_keyboard(signal: Signal) -> bool {
    matches!(signal, Signal::SIGINT | Signal::SIGQUIT)
}

/// Whether the process group of this process is the one that its terminal sends signals to.
fn in_foreground() -> bool {
    let foreground = File::open("/dev/tty").and_then(|terminal| Ok(tcgetpgrp(terminal)?));
    foreground.is_ok_and(|group| group == getpgrp())
}

/// The signals that are ignored, as a bit mask. `/proc` says it; sigaction(2) would need unsafe code. Where there is
/// no `/proc`, none is known to be.
fn ignored() -> u64 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        })
        .unwrap_or(0)
}

fn contains(mask: u64, signal: Signal) -> bool {
    mask & (1 << (signal as u32 - 1)) != 0
}

//! Signals that this process receives.
//!
//! A signal that was ignored when this process started stays ignored, and the command of `run` inherits that: `nohup`
//! and background jobs of shells rely on it. While this process is in the foreground of a terminal, the terminal sends
//! the signals of the keyboard (SIGINT, SIGQUIT) to the whole process group, so the command gets them directly.

use std::fs::{self, File};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getpgrp, tcgetpgrp};
use tokio::signal::unix::{Signal as Arrivals, SignalKind, signal};

use super::exit::Failure;

/// The signals that end the wait for resources, or that concern the command. Those from SIGALRM on in this list are rare;
/// for example, an `alarm` that was set before this program was executed sends one. Without a handler, they too would
/// end this process and leave its command running.
const HANDLED: [Signal; 14] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGXCPU,
    Signal::SIGXFSZ,
    Signal::SIGABRT,
    Signal::SIGIO,
    Signal::SIGPWR,
];

/// The signals by which a terminal stops process groups.
pub(super) const STOPS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// A receiver of signals. Once it exists, they no longer end this process, even after the receiver is dropped.
pub(super) struct Signals(Vec<(Signal, Arrivals)>);

impl Signals {
    pub(super) fn listen() -> Result<Self, Failure> {
        Self::of(&HANDLED).map_err(|error| Failure::system("install signal handlers", &error))
    }

    /// Returns a receiver of these signals, except those that were ignored when this process started.
    pub(super) fn of(signals: &[Signal]) -> io::Result<Self> {
        unblock(signals)?;
        let ignored = ignored();
        let handled = signals.iter().filter(|signal| !contains(ignored, **signal));
        handled
            .map(|handled| Ok((*handled, signal(SignalKind::from_raw(*handled as i32))?)))
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Receives these signals too.
    pub(super) fn add(&mut self, signals: &[Signal]) -> io::Result<()> {
        self.0.extend(Self::of(signals)?.0);
        Ok(())
    }

    /// Returns the next signal. Cancel safe.
    pub(super) async fn next(&mut self) -> Signal {
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

/// Unblocks these signals, which the program that started this one may have blocked.
pub(super) fn unblock(signals: &[Signal]) -> io::Result<()> {
    Ok(signals.iter().copied().collect::<SigSet>().thread_unblock()?)
}

/// Returns whether this is a signal of the keyboard and this process is in the foreground. It is then assumed that the
/// terminal has sent the signal to the whole process group.
pub(super) fn is_from_keyboard(signal: Signal) -> bool {
    matches!(signal, Signal::SIGINT | Signal::SIGQUIT) && in_foreground()
}

/// Lets signals end this process even if it is the first process of a container, to which the kernel delivers only
/// signals that have a handler.
pub(super) fn end_first_process() {
    if std::process::id() != 1 {
        return;
    }
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let always = Arc::new(AtomicBool::new(true));
        // Without the handler, the program works nevertheless.
        let _ = signal_hook::flag::register_conditional_shutdown(signal as i32, 128 + signal as i32, always);
    }
}

/// Returns whether the terminal sends its signals to the process group of this process.
fn in_foreground() -> bool {
    let foreground = File::open("/dev/tty").and_then(|terminal| Ok(tcgetpgrp(terminal)?));
    foreground.is_ok_and(|group| group == getpgrp())
}

/// Returns the ignored signals as a bit mask, from `/proc`: sigaction(2) would need unsafe code. Without `/proc`, none
/// is assumed to be ignored.
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

//! Messages on standard error, including warnings of the client.
//!
//! A write to standard error can block forever, if a pipe is full and not read, or a terminal was stopped with Ctrl-S.
//! It can stop a process in the background, if the terminal has `stty tostop`. And it can end the process, if a file
//! has reached the size of `ulimit -f`. None of this may happen while a program holds resources or waits for them,
//! because it must renew leases, and end its command in time. Such a program calls [`in_background`], and a separate
//! thread writes.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::set_global_default;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use super::output::sanitized;

/// The maximum number of messages that wait to be written. Further ones are discarded.
const WAITING_MAX: usize = 64;

/// The longest time that the program waits at its end for its messages to be written.
const FLUSH_MAX: Duration = Duration::from_secs(1);

static WRITER: OnceLock<Writer> = OnceLock::new();

#[derive(Default)]
struct Writer {
    pending: Mutex<Pending>,
    changed: Condvar,
}

#[derive(Default)]
struct Pending {
    /// Text that replaces the last line of the terminal. Only the newest is written.
    line: Option<String>,
    messages: VecDeque<String>,
    /// Whether the thread is still writing what it has taken from the other fields.
    is_writing: bool,
}

impl Pending {
    fn is_written(&self) -> bool {
        self.line.is_none() && self.messages.is_empty() && !self.is_writing
    }
}

/// Makes a separate thread write from now on. Without it, each call writes, and waits for the reader.
pub(super) fn in_background() {
    // If the system refuses a thread, each call still writes.
    if thread::Builder::new().name("messages".to_owned()).spawn(write_all).is_ok() {
        WRITER.get_or_init(Writer::default);
    }
}

/// Prints a message to stderr, sanitized: names in it are already escaped, but errors of the parsers of arguments and of
/// the configuration quote their input as it is. Ignores a closed stderr.
pub(super) fn warn(message: &str) {
    write(format!("signalbox: {}\n", sanitized(message)));
}

/// Writes a message of whole lines.
pub(super) fn write(message: String) {
    let Some(writer) = WRITER.get() else { return write_now(&message) };
    let mut pending = writer.pending();
    if pending.messages.len() < WAITING_MAX {
        pending.messages.push_back(message);
        writer.changed.notify_all();
    }
}

/// Writes text that replaces the last line of the terminal.
pub(super) fn write_line(text: String) {
    let Some(writer) = WRITER.get() else { return write_now(&text) };
    writer.pending().line = Some(text);
    writer.changed.notify_all();
}

/// Waits until everything is written, for [`FLUSH_MAX`] at most.
pub(super) fn flush() {
    let Some(writer) = WRITER.get() else { return };
    drop(writer.changed.wait_timeout_while(writer.pending(), FLUSH_MAX, |pending| !pending.is_written()));
}

impl Writer {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().expect("no thread panics while it holds this lock")
    }
}

/// Writes pending text as it arrives; the separate thread runs this.
fn write_all() {
    ignore_signals_of_writes();
    let writer = WRITER.wait();
    loop {
        let (line, messages) = {
            let mut pending = writer.pending();
            pending.is_writing = false;
            writer.changed.notify_all();
            let wait = writer.changed.wait_while(pending, |pending| pending.is_written());
            let mut pending = wait.expect("no thread panics while it holds this lock");
            pending.is_writing = true;
            (pending.line.take(), std::mem::take(&mut pending.messages))
        };
        line.iter().chain(&messages).for_each(|text| write_now(text));
    }
}

/// Blocks the signals that would stop or end the process when this thread writes to a terminal with `stty tostop`, or
/// to a file that may not grow.
pub(super) fn ignore_signals_of_writes() {
    let _ = SigSet::from_iter([Signal::SIGTTOU, Signal::SIGXFSZ]).thread_block();
}

/// Writes a text. An error is ignored: it could only be reported on standard error.
fn write_now(text: &str) {
    let mut out = io::stderr();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// From now on, prints the warnings of the client library that a user must know: that a file cannot be read again, and why a
/// session cannot connect again. The command itself reports requests that have failed.
pub(super) fn show_warnings() {
    // Fails if this was called before.
    let _ = set_global_default(tracing_subscriber::registry().with(Warnings));
}

/// The modules of the client whose warnings are printed.
const SOURCES: [&str; 2] = ["signalbox_client::reread", "signalbox_client::lease::reconnect"];

struct Warnings;

impl<S: Subscriber> Layer<S> for Warnings {
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if *metadata.level() == Level::WARN && SOURCES.contains(&metadata.target()) {
            event.record(&mut |field: &Field, value: &dyn Debug| {
                if field.name() == "message" {
                    warn(&format!("{value:?}"));
                }
            });
        }
    }
}

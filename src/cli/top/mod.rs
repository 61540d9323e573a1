//! `signalbox top`: shows what a server does, full-screen.
//!
//! [`reader`](self::reader) makes a [`Snapshot`](reader::Snapshot) from the server's answers, `model` has what is shown
//! and what keys do, and `view` makes lines of it. `model` and `view` need neither a server nor a terminal. This file
//! handles the terminal, keys, signals, and the time of the next update. The terminal is restored when the program ends,
//! even by a panic or a signal, and while it is stopped.

mod model;
mod reader;
mod view;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal, Write};
use std::sync::Once;
use std::time::Duration;
use std::{panic, thread};

use clap::Args;
use crossterm::cursor::{Hide, Show};
use crossterm::event::{self, Event};
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use nix::sys::signal::{Signal, raise};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::arguments::Common;
use super::exit::Failure;
use super::server::{Server, block_on_quietly};
use super::signals::Signals;
use super::values::time;
use model::{Model, Next};
use reader::Reader;
use view::{draw, write};

/// Show what a server does, full-screen
///
/// Four views, selected with 1 to 4 or Tab: names in use, declared semaphores, sessions, and the statistics of the server.
/// Enter shows the holders and the queue of a name. s sorts by the next column, r reverses the order, / filters by a part
/// of the name, label, address or identity, space stops the updates, ? lists all keys.
///
/// Without a port in --server, names are those of both the counters and the semaphores at their default ports; with a
/// port, or with --semaphore, only those of that port. Waiting requests are found by inspecting the names of which most
/// is in use, up to 2,000 per update. Very many names are listed less often than everything else. Names are escaped as
/// in lists. If the environment variable NO_COLOR is set, there are no colors.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox top
  signalbox top --server lock.example.org --interval 5s
  signalbox top --semaphore")]
pub(super) struct Arguments {
    /// How long to wait between two updates, in seconds or with a unit
    #[arg(long, value_name = "TIME", default_value = "2", value_parser = time)]
    interval: Duration,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal as its input and its output; \"signalbox stats\", \"signalbox dump\" and \
                       \"signalbox sessions\" write lists",
        ));
    }
    block_on_quietly(show(&common.server, arguments.interval))
}

/// How often the thread that reads the terminal checks whether it must end.
const KEYS_POLL: Duration = Duration::from_millis(100);

/// The signals that end the program, except the last one, which stops it until it is continued.
const SIGNALS: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGTSTP];

/// Shows the server until the user or a signal ends the program.
async fn show(server: &Server, interval: Duration) -> Result<(), Failure> {
    let screen = Screen::open()?;
    let mut signals = Signals::of(&SIGNALS).map_err(|error| failed(&error))?;
    let mut keys = keys();
    let mut reader = Reader::new(server);
    let mut model = Model::new(server.shown());
    let mut due = Instant::now();
    // Keys are handled during a reading, which may take long. A key that requests a reading meanwhile sets `is_requested`,
    // so that another reading follows. `is_for_key` says whether a key requested the reading in progress.
    let (mut is_requested, mut is_for_key) = (false, false);
    loop {
        if is_requested && !reader.is_reading() {
            (is_requested, is_for_key) = (false, true);
            reader.begin(model.details.clone());
        }
        screen.draw(&model)?;
        let next = tokio::select! {
            key = keys.recv() => match key {
                // The terminal is gone.
                None => Next::Quit,
                Some(Event::Key(key)) => model.press(key),
                // The size of the screen may have changed.
                Some(_) => Next::Draw,
            },
            signal = signals.next() => match signal {
                Signal::SIGTSTP => Next::Stop,
                _ => Next::Quit,
            },
            read = reader.end() => {
                match read {
                    // The updates were stopped after this one began.
                    _ if model.is_paused && !is_for_key => {}
                    Ok(snapshot) => model.update(snapshot),
                    Err(failure) => model.problem = Some(format!("trying again: {}", failure.message())),
                }
                due = Instant::now() + interval;
                Next::Draw
            }
            () = sleep_until(due), if !model.is_paused && !reader.is_reading() => {
                is_for_key = false;
                reader.begin(model.details.clone());
                Next::Draw
            }
        };
        match next {
            Next::Quit => return Ok(()),
            Next::Draw => {}
            Next::Read => is_requested = true,
            Next::Stop => {
                screen.stop()?;
                is_requested = true;
            }
        }
    }
}

/// The terminal while the program uses it.
struct Screen;

impl Screen {
    fn open() -> Result<Self, Failure> {
        static RESTORE_ON_PANIC: Once = Once::new();
        RESTORE_ON_PANIC.call_once(|| {
            let report = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                restore();
                report(panic);
            }));
        });
        begin().map_err(|error| failed(&error))?;
        Ok(Self)
    }

    fn draw(&self, model: &Model) -> Result<(), Failure> {
        let draw = || {
            let size = size()?;
            // Written at once, so that the terminal never shows only a part.
            let mut screen = Vec::new();
            write(&draw(model, size), size.0, &mut screen)?;
            io::stdout().write_all(&screen)?;
            io::stdout().flush()
        };
        draw().map_err(|error| failed(&error))
    }

    /// Restores the terminal, and stops the program until it is continued.
    fn stop(&self) -> Result<(), Failure> {
        restore();
        // The kernel ignores this signal for the first process of a container, which nothing could continue.
        raise(Signal::SIGSTOP).map_err(|errno| failed(&errno.into()))?;
        begin().map_err(|error| failed(&error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn begin() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// Restores the terminal. Nothing can be done about a failure.
fn restore() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

fn failed(error: &io::Error) -> Failure {
    Failure::refused(format!("cannot use the terminal: {error}; check TERM and the terminal"))
}

/// Returns the events of the terminal, which a separate thread reads, because reading blocks. The thread ends once the
/// receiver is dropped.
fn keys() -> mpsc::UnboundedReceiver<Event> {
    let (sender, receiver) = mpsc::unbounded_channel();
    thread::spawn(move || {
        let next = || if event::poll(KEYS_POLL)? { event::read().map(Some) } else { Ok(None) };
        while let (false, Ok(event)) = (sender.is_closed(), next()) {
            // Fails if the task that waits for keys has ended.
            let _ = event.map(|event| sender.send(event));
        }
    });
    receiver
}

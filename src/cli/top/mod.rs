//! `signalbox top`: what a server does, on the whole terminal.
//!
//! [`reader`](self::reader) asks the server and makes a [`Snapshot`](reader::Snapshot), `model` has what is shown and
//! what keys do, and `view` makes lines of it. `model` and `view` need neither a server nor a terminal. This file has the terminal:
//! keys, signals, and the time of the next update. However the program ends, the terminal is as before: also on a panic, a
//! signal, and while it is stopped.

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

/// Show what a server does, on the whole terminal
///
/// Four views, selected with 1 to 4 or Tab: names in use, declared semaphores, sessions, and the statistics of the server.
/// Enter shows the holders and the queue of a name. s sorts by the next column, r reverses the order, / filters by a part
/// of the name, label, address or identity, space stops the updates, ? lists all keys.
///
/// Without a port in --server, names are those of both the counters and the semaphores at their default ports; with a port,
/// or with --semaphore, of that port alone. Requests that wait are found by asking for the names of which most is in use,
/// up to 2,000 of them an update. With very many names, they are listed less often than everything else. Names are shown
/// with the escapes of lists. If the environment variable NO_COLOR is set, there are no colors.
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

/// How often the thread that reads the terminal looks whether it is still wanted.
const KEYS_POLL: Duration = Duration::from_millis(100);

/// The signals that end the program, and the last one, which stops it until it is continued.
const SIGNALS: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGTSTP];

/// Shows the server until a person or a signal ends it.
async fn show(server: &Server, interval: Duration) -> Result<(), Failure> {
    let screen = Screen::open()?;
    let mut signals = Signals::of(&SIGNALS).map_err(|error| failed(&error))?;
    let mut keys = keys();
    let mut reader = Reader::new(server);
    let mut model = Model::new(server.shown());
    let mut due = Instant::now();
    // Keys are obeyed during a reading, which may take its time. A key that asks for one has another one after that.
    let (mut is_asked, mut is_for_key) = (false, false);
    loop {
        if is_asked && !reader.is_reading() {
            (is_asked, is_for_key) = (false, true);
            reader.begin(model.details.clone());
        }
        screen.draw(&model)?;
        let next = tokio::select! {
            key = keys.recv() => match key {
                // The terminal is gone.
                None => Next::Quit,
                Some(Event::Key(key)) => model.press(key),
                // The screen may have another size.
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
            Next::Read => is_asked = true,
            Next::Stop => {
                screen.stop()?;
                is_asked = true;
            }
        }
    }
}

/// The terminal while the program has it.
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
            // Written at once, so that the terminal shows no half of it.
            let mut screen = Vec::new();
            write(&draw(model, size), size.0, &mut screen)?;
            io::stdout().write_all(&screen)?;
            io::stdout().flush()
        };
        draw().map_err(|error| failed(&error))
    }

    /// Gives the terminal back until the program is continued.
    fn stop(&self) -> Result<(), Failure> {
        restore();
        // It is ignored where nothing can continue the program.
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

/// Leaves the terminal as it was. Nothing can be done about a failure.
fn restore() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

fn failed(error: &io::Error) -> Failure {
    Failure::refused(format!("cannot use the terminal: {error}; check TERM and the terminal"))
}

/// What happens on the terminal, read by a thread of its own, because reading blocks. It ends with its receiver.
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

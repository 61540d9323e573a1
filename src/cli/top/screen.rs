//! The terminal of `top`: keys, signals, and the time of the next update.
//!
//! However the program ends, the terminal is as before: also on a panic, a signal, and while it is stopped.

use std::io::{self, Write};
use std::sync::Once;
use std::time::Duration;
use std::{panic, thread};

use crossterm::cursor::{Hide, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use nix::sys::signal::{Signal, raise};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::super::exit::Failure;
use super::super::server::Server;
use super::super::signals::Signals;
use super::model::{Action, Model, Next, View};
use super::paint::Shown;
use super::reader::Reader;
use super::view::{Colors, draw};

/// How often the thread that reads the terminal looks whether it is still wanted.
const KEYS_POLL: Duration = Duration::from_millis(100);

/// Rows that PgUp and PgDn pass.
const FAR: usize = 20;

/// The signals that end the program, and the last one, which stops it until it is continued.
const SIGNALS: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGTSTP];

/// Shows the server until a person or a signal ends it.
pub(super) async fn show(server: &Server, interval: Duration) -> Result<(), Failure> {
    let mut screen = Screen::open()?;
    let mut signals = Signals::of(&SIGNALS).map_err(|error| failed(&error))?;
    let mut keys = keys();
    let mut reader = Reader::new(server);
    let mut model = Model::new(server.addresses().to_string());
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
                Some(Event::Key(key)) if is_stop(key) => screen.stop()?,
                Some(event) => action_of(&event, &model).map_or(Next::Draw, |action| model.act(action)),
            },
            signal = signals.next() => match signal {
                Signal::SIGTSTP => screen.stop()?,
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
        }
    }
}

/// The terminal while the program has it.
struct Screen {
    shown: Shown,
    colors: Colors,
}

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
        let is_colored = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Ok(Self { shown: Shown::default(), colors: Colors { is_colored } })
    }

    fn draw(&mut self, model: &Model) -> Result<(), Failure> {
        let mut draw = || {
            let size = size()?;
            // Written at once, so that the terminal shows no half of it.
            let mut changes = Vec::new();
            self.shown.write(draw(model, self.colors, size), size, &mut changes)?;
            io::stdout().write_all(&changes)?;
            io::stdout().flush()
        };
        draw().map_err(|error| failed(&error))
    }

    /// Gives the terminal back until the program is continued.
    fn stop(&mut self) -> Result<Next, Failure> {
        restore();
        // It is ignored where nothing can continue the program.
        raise(Signal::SIGSTOP).map_err(|errno| failed(&errno.into()))?;
        begin().map_err(|error| failed(&error))?;
        self.shown = Shown::default();
        Ok(Next::Read)
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

fn is_control(key: KeyEvent, letter: char) -> bool {
    key.kind != KeyEventKind::Release
        && key.modifiers.contains(KeyModifiers::CONTROL)
        && key.code == KeyCode::Char(letter)
}

fn is_stop(key: KeyEvent) -> bool {
    is_control(key, 'z')
}

/// What an event asks for; `None`: nothing, but the screen may have another size.
fn action_of(event: &Event, model: &Model) -> Option<Action> {
    let Event::Key(key) = event else { return None };
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if is_control(*key, 'c') {
        return Some(Action::Quit);
    }
    if model.is_typing {
        return match key.code {
            KeyCode::Char(character) if !key.modifiers.contains(KeyModifiers::CONTROL) => {
                Some(Action::Type(character))
            }
            KeyCode::Backspace => Some(Action::DeleteCharacter),
            KeyCode::Enter => Some(Action::Enter),
            KeyCode::Esc => Some(Action::Back),
            _ => None,
        };
    }
    Some(match key.code {
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Char('1') => Action::View(View::Names),
        KeyCode::Char('2') => Action::View(View::Declared),
        KeyCode::Char('3') => Action::View(View::Sessions),
        KeyCode::Char('4') => Action::View(View::Server),
        KeyCode::Tab => Action::NextView,
        KeyCode::Up | KeyCode::Char('k') => Action::Up(1),
        KeyCode::Down | KeyCode::Char('j') => Action::Down(1),
        KeyCode::PageUp => Action::Up(FAR),
        KeyCode::PageDown => Action::Down(FAR),
        KeyCode::Home => Action::First,
        KeyCode::End => Action::Last,
        KeyCode::Char('s') => Action::NextSort,
        KeyCode::Char('r') => Action::Reverse,
        KeyCode::Char('/') => Action::BeginFilter,
        KeyCode::Enter => Action::Enter,
        KeyCode::Esc | KeyCode::Backspace => Action::Back,
        KeyCode::Char(' ') => Action::TogglePause,
        KeyCode::Char('?') => Action::ToggleHelp,
        _ => return None,
    })
}

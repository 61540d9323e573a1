//! A node's part in the leadership: a thread that does what [`Participation`] says.
//!
//! It has its own connection to etcd, so that a slow commit delays no renewal. It writes no log, because that may block; it
//! tells its user what happens instead.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;
use std::{io, thread};

use super::clock::BootTime;
use super::coordinator::Coordinator;
use super::fence::Fence;
use super::keys::Successor;
use super::leadership::Machine;
use super::participation::{Action, News, Participation, Pulse};
use super::relays::Relays;

/// A node's part in the leadership.
#[derive(Debug)]
pub struct Participant {
    commands: Sender<Command>,
}

#[derive(Debug)]
enum Command {
    /// Give the leadership up, to this run or to whoever is first, and leave.
    Release(Option<Successor>),
    /// Look at the cluster, and give a heartbeat, at once.
    Hurry,
}

/// What the thread needs.
pub struct Parts<C, T> {
    /// What to do.
    pub machine: Machine,
    /// The connection to etcd.
    pub coordinator: C,
    /// What keeps the node quiet when it does not lead.
    pub fence: Fence,
    /// Signs of life of the threads that serve clients.
    pub pulse: Pulse,
    /// How long a pulse may be silent before nothing is renewed.
    pub silence_max: Duration,
    /// What the node relays.
    pub relays: Relays,
    /// The clock.
    pub clock: fn() -> BootTime,
    /// Who is told the news.
    pub tell: T,
}

impl Participant {
    /// Starts the thread.
    pub fn start<C, T>(parts: Parts<C, T>) -> io::Result<Self>
    where
        C: Coordinator + 'static,
        T: FnMut(News) + Send + 'static,
    {
        let (commands, received) = mpsc::channel();
        let hurry = commands.clone();
        // The thread may have ended already.
        parts.relays.on_news(move || drop(hurry.send(Command::Hurry)));
        thread::Builder::new().name("leadership".to_owned()).spawn(move || run(parts, &received))?;
        Ok(Self { commands })
    }

    /// Gives the leadership up, or leaves as a standby. To be called after the last connection of a client was closed.
    /// `successor` is to lead next; `None`: whoever is first. [`News::End`] tells when it is done.
    pub fn release(&self, successor: Option<Successor>) {
        // The thread may have ended already, and has told so.
        let _ = self.commands.send(Command::Release(successor));
    }
}

fn run<C: Coordinator, T: FnMut(News)>(parts: Parts<C, T>, commands: &Receiver<Command>) {
    let Parts { machine, mut coordinator, fence, pulse, silence_max, relays, clock, tell } = parts;
    let mut participation = Participation::new(machine, fence, pulse, silence_max, relays, tell);
    let obey = |participation: &mut Participation<T>, command| match command {
        Command::Release(successor) => participation.release(successor),
        Command::Hurry => participation.hurry(clock()),
    };
    loop {
        for command in commands.try_iter() {
            obey(&mut participation, command);
        }
        match participation.next(clock()) {
            Action::Send(transaction) => {
                participation.sent(clock());
                let answer = coordinator.transact(&transaction);
                participation.answered(answer, clock());
            }
            Action::Wait(pause) => match commands.recv_timeout(pause) {
                Ok(command) => obey(&mut participation, command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the relays have a sender"),
            },
            Action::End => return,
        }
    }
}

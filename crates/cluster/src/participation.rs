//! What a node does for its part in the leadership, turn by turn, without I/O and without a clock: it does what [`Machine`]
//! says, sets the fence, tells its user the events, and renews nothing while the threads that serve clients hang. Its relays
//! follow what it knows of the cluster, and its heartbeats say which of them are closed.
//!
//! [`start`] does it in a thread with a connection to etcd of its own, so that a slow commit delays no renewal. The thread writes
//! no log, because that may block; it tells its user what happens instead.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, atomic};
use std::time::Duration;
use std::{io, thread};

use super::clock::BootTime;
use super::coordinator::{CallError, Coordinator, Revision, TransactionAnswer};
use super::fence::Fence;
use super::handover::Request;
use super::keys::Successor;
use super::leadership::{Machine, Phase, Step};
use super::relays::Relays;

/// How long a renewal waits for the threads that serve clients.
const PULSE_PAUSE: Duration = Duration::from_millis(20);

/// What a node tells its user about its part.
#[derive(Clone, Debug)]
pub enum Event {
    /// The node is in another phase, or another node leads. If the part of a node that has led is over, the fence keeps it quiet
    /// already.
    Phase(Phase),
    /// etcd does not answer as it should, for this reason; told once until it does.
    Trouble(String),
    /// etcd answers again.
    Recovered,
    /// An operator asks the node to hand over what it does, and to leave. Told once for each request.
    Drain(Request),
}

/// What the user of a node tells its part.
#[derive(Debug)]
pub enum Command {
    /// Give the leadership up, to this run or to any node, or leave as a standby, and write to no client from now on. To be sent
    /// after the last connection of a client was closed. [`Phase::Over`] tells when it is done.
    Release(Option<Successor>),
    /// Look at the cluster, and give a heartbeat, at once.
    Hurry,
}

/// Signs of life of the threads that serve clients. A leader that does not serve must not keep its leadership.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<atomic::AtomicU64>);

impl Pulse {
    /// All threads have had a turn.
    pub fn beat(&self, now: BootTime) {
        self.0.store(u64::try_from(now.0.as_nanos()).unwrap_or(u64::MAX), atomic::Ordering::Relaxed);
    }

    /// Whether there was a beat, but none for this long.
    fn is_silent(&self, now: BootTime, limit: Duration) -> bool {
        let last = Duration::from_nanos(self.0.load(atomic::Ordering::Relaxed));
        !last.is_zero() && now.0.saturating_sub(last) > limit
    }
}

/// A node's part in the leadership.
#[derive(Debug)]
pub struct Participation<T> {
    machine: Machine,
    /// What keeps the node quiet when it does not lead.
    fence: Fence,
    pulse: Pulse,
    /// How long a pulse may be silent before nothing is renewed.
    silence_max: Duration,
    relays: Relays,
    tell: T,
    /// The phase that was told last.
    phase: Option<Phase>,
    has_trouble: bool,
    /// The request of an operator that was told last.
    drain: Revision,
}

impl<T: FnMut(Event)> Participation<T> {
    /// The part of a node that has not joined yet. The fence is set until the end; `tell` gets the events.
    pub fn new(
        machine: Machine,
        fence: Fence,
        pulse: Pulse,
        silence_max: Duration,
        relays: Relays,
        tell: T,
    ) -> Self {
        let (phase, has_trouble, drain) = (None, false, 0);
        Self { machine, fence, pulse, silence_max, relays, tell, phase, has_trouble, drain }
    }

    /// What to do at this time.
    pub fn next(&mut self, now: BootTime) -> Step {
        self.machine.set_relayed(self.relays.relayed());
        let step = self.machine.next(now);
        self.relays.apply(self.machine.relaying());
        if step == Step::End {
            self.fence.set(BootTime::default());
        }
        self.tell_phase();
        self.tell_request();
        let is_hanging = || self.machine.deadline().is_some() && self.pulse.is_silent(now, self.silence_max);
        match step {
            Step::Send(_) if is_hanging() => Step::WaitUntil(now.after(PULSE_PAUSE)),
            step => step,
        }
    }

    /// The transaction that [`Self::next`] returned is going to be sent: to be called before that, with the time before that.
    pub fn sent(&mut self, now: BootTime) {
        self.machine.sent(now);
    }

    /// The answer to the transaction that was sent, or that there is none.
    pub fn answered(&mut self, answer: Result<TransactionAnswer, CallError>, now: BootTime) {
        match (&answer, self.has_trouble) {
            (Err(error), false) => (self.tell)(Event::Trouble(error.to_string())),
            (Ok(_), true) => (self.tell)(Event::Recovered),
            _ => {}
        }
        self.has_trouble = answer.is_err();
        self.machine.answered(answer, now);
        self.relays.apply(self.machine.relaying());
        if let Some(deadline) = self.machine.deadline() {
            self.fence.set(deadline);
        }
    }

    /// Does what the user wants.
    pub fn obey(&mut self, command: Command, now: BootTime) {
        match command {
            Command::Release(successor) => {
                self.machine.release(successor);
                // A renewal that was answered since the user has closed the fence has moved the deadline.
                self.fence.set(BootTime::default());
            }
            Command::Hurry => self.machine.hurry(now),
        }
    }

    fn tell_request(&mut self) {
        if let Some((drain, written)) = self.machine.drain().filter(|(_, written)| *written != self.drain) {
            self.drain = written;
            let request = Request { drain: drain.clone(), written };
            (self.tell)(Event::Drain(request));
        }
    }

    fn tell_phase(&mut self) {
        let phase = self.machine.phase();
        if self.phase.as_ref() != Some(&phase) {
            self.phase = Some(phase.clone());
            (self.tell)(Event::Phase(phase));
        }
    }
}

/// Starts the thread that takes part. It receives commands until its part is over.
pub fn start<C, T>(
    participation: Participation<T>,
    coordinator: C,
    clock: fn() -> BootTime,
) -> io::Result<Sender<Command>>
where
    C: Coordinator + 'static,
    T: FnMut(Event) + Send + 'static,
{
    let (commands, received) = mpsc::channel();
    let hurry = commands.clone();
    // The thread may have ended already.
    participation.relays.on_news(move || drop(hurry.send(Command::Hurry)));
    let take_part = move || run(participation, coordinator, clock, &received);
    thread::Builder::new().name("leadership".to_owned()).spawn(take_part)?;
    Ok(commands)
}

fn run<C: Coordinator, T: FnMut(Event)>(
    mut participation: Participation<T>,
    mut coordinator: C,
    clock: fn() -> BootTime,
    commands: &Receiver<Command>,
) {
    loop {
        for command in commands.try_iter() {
            participation.obey(command, clock());
        }
        let now = clock();
        match participation.next(now) {
            Step::Send(transaction) => {
                participation.sent(clock());
                let answer = coordinator.transact(&transaction);
                participation.answered(answer, clock());
            }
            Step::WaitUntil(until) => match commands.recv_timeout(until.since(now)) {
                Ok(command) => participation.obey(command, clock()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the relays have a sender"),
            },
            Step::End => return,
        }
    }
}

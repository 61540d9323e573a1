//! A node's part in the leadership: a thread that does what [`Machine`] says.
//!
//! It has its own connection to etcd, so that a slow commit delays no renewal. It writes no log, because that may block; it
//! tells its user what happens instead.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, atomic};
use std::time::Duration;
use std::{io, thread};

use super::clock::BootTime;
use super::coordinator::Coordinator;
use super::fence::Fence;
use super::leadership::{Ending, Machine, Phase, Step, Term};

/// What a participant tells its user.
#[derive(Clone, Debug)]
pub enum News {
    /// The node is in another phase, or another node leads.
    Phase(Phase),
    /// etcd does not answer as it should, for this reason; told once until it does.
    Trouble(String),
    /// etcd answers again.
    Recovered,
    /// The node leads from now on: it has to load the records, and may serve until the deadline of the fence.
    Lead(Term),
    /// The node takes part no more. If it has led, the fence keeps it quiet already.
    End(Ending),
}

/// A node's part in the leadership.
#[derive(Debug)]
pub struct Participant {
    commands: Sender<Release>,
}

/// A command: give the leadership up, and leave.
#[derive(Debug)]
struct Release;

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
        thread::Builder::new().name("leadership".to_owned()).spawn(move || run(parts, &received))?;
        Ok(Self { commands })
    }

    /// Gives the leadership up, or leaves as a standby. To be called after the last connection of a client was closed.
    /// [`News::End`] tells when it is done.
    pub fn release(&self) {
        // The thread may have ended already, and has told so.
        let _ = self.commands.send(Release);
    }
}

fn run<C: Coordinator, T: FnMut(News)>(parts: Parts<C, T>, commands: &Receiver<Release>) {
    let Parts { mut machine, mut coordinator, fence, pulse, silence_max, clock, mut tell } = parts;
    let mut phase = None;
    let mut trouble = false;
    loop {
        if let Ok(Release) = commands.try_recv() {
            machine.release();
        }
        let now = clock();
        let step = machine.next(now);
        if phase.as_ref() != Some(&machine.phase()) {
            phase = Some(machine.phase());
            tell(News::Phase(machine.phase()));
        }
        match step {
            Step::Send(_) if machine.deadline().is_some() && pulse.is_silent(now, silence_max) => {
                thread::sleep(Duration::from_millis(20));
            }
            Step::Send(transaction) => {
                machine.sent(clock());
                let answer = coordinator.transact(&transaction);
                match (&answer, trouble) {
                    (Err(error), false) => tell(News::Trouble(error.to_string())),
                    (Ok(_), true) => tell(News::Recovered),
                    _ => {}
                }
                trouble = answer.is_err();
                machine.answered(answer, clock());
                if let Some(deadline) = machine.deadline() {
                    fence.set(deadline);
                }
            }
            Step::WaitUntil(until) => {
                let pause = until.0.saturating_sub(now.0);
                match commands.recv_timeout(pause) {
                    Ok(Release) => machine.release(),
                    Err(RecvTimeoutError::Timeout) => {}
                    // The process ends.
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            Step::Lead(term) => tell(News::Lead(term)),
            Step::End(ending) => {
                fence.set(BootTime(Duration::ZERO));
                tell(News::End(ending));
                return;
            }
        }
    }
}

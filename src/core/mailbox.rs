//! What the core has to tell a connection out of turn: answers to requests that waited, events, notices.
//!
//! A mailbox takes every answer and notice, of which there are as many as the connection asked for, and a bounded
//! number of events: a reader that is too slow is told how many it missed.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use super::invariant::lock;
use super::ledger::{Answer, GrantId};
use super::sync::{AtomicBool, Mutex, Ordering};
use super::{Namespace, Refusal, SessionId};

/// Events that wait for a reader; what comes then is counted and dropped.
pub const EVENTS_MAX: usize = 1024;

/// Bytes of the names of such events, beyond which more are dropped too.
const NAME_BYTES_MAX: usize = 1 << 20;

/// What a connection calls a request or a watch of its own; the core gives it back with what it has to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// Something for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The answer to a request that waited.
    Answer {
        /// Which request.
        token: Token,
        /// What came of it.
        outcome: Result<Answer, Refusal>,
    },
    /// What a watch reports.
    Event {
        /// Which watch.
        token: Token,
        /// What happened.
        event: Event,
    },
    /// What the connection is to know about what it holds.
    Notice(Notice),
    /// The connection's own session was revoked: it is to be closed.
    Close,
}

/// Something that happened to a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The kind of the name.
    pub namespace: Namespace,
    /// The name's bytes; empty where the event is about none.
    pub name: Box<[u8]>,
    /// The grant it happened to; `None`: none, or resources taken by plain Acquires.
    pub grant: Option<GrantId>,
    /// The session it happened to, if any.
    pub session: Option<SessionId>,
    /// How many resources it was about; of [`EventKind::Missed`]: how many events.
    pub resources: u32,
    /// Resources in use since.
    pub in_use: u32,
    /// Requests that wait since.
    pub waiting: u32,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A name as it was when the watch came to it.
    Present,
    /// Every name that was there is told.
    Live,
    /// The reader was too slow, and so many events were dropped.
    Missed,
    /// Resources were taken.
    Granted,
    /// Resources were given back.
    Released,
    /// A request began to wait.
    Queued,
    /// A request stopped waiting without a grant.
    Left,
    /// A session's time was up, and with it what it held.
    Expired,
    /// A grant or a session was taken away.
    Revoked,
    /// The capacity of a declared semaphore was set: the event's resources.
    Resized,
    /// A declared semaphore is gone.
    Removed,
}

/// What a connection is to know about what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A grant is taken away when its grace is over.
    GrantRevoked {
        /// Which one.
        grant: GrantId,
        /// How long it stays, in milliseconds.
        grace_ms: u32,
    },
    /// A session is taken away when its grace is over.
    SessionRevoked {
        /// Which one.
        session: SessionId,
        /// How long it stays, in milliseconds.
        grace_ms: u32,
    },
    /// Another connection attached to the session that was attached here.
    AttachedElsewhere {
        /// Which one.
        session: SessionId,
    },
    /// The server grants nothing more and is about to end.
    ShuttingDown,
}

/// The messages of one connection.
#[derive(Debug, Default)]
pub struct Mailbox {
    messages: Mutex<Messages>,
    /// Whether there is any, so that a connection sees at a glance that there is none.
    is_filled: AtomicBool,
    /// Whether [`Message::Close`] came.
    is_closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Messages {
    waiting: VecDeque<Message>,
    events: usize,
    /// Of the events that wait.
    name_bytes: usize,
    /// How many events of each watch were dropped.
    missed: BTreeMap<Token, u32>,
    reader: Option<Waker>,
}

impl Mailbox {
    /// Says whom to wake when something comes.
    pub fn set_reader(&self, reader: &Waker) {
        lock(&self.messages).reader = Some(reader.clone());
    }

    /// Whether something waits.
    #[inline]
    pub fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::Acquire)
    }

    /// Whether the connection is to be closed, even where its peer takes nothing of what comes before that message.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Takes the next message, in the order in which they came. Events that were dropped are told of after those
    /// before them.
    pub fn take(&self) -> Option<Message> {
        let mut messages = lock(&self.messages);
        if let Some(message) = messages.waiting.pop_front() {
            if let Message::Event { event, .. } = &message {
                messages.events -= 1;
                messages.name_bytes -= event.name.len();
            }
            return Some(message);
        }
        let missed = messages.missed.pop_first();
        if missed.is_none() {
            self.is_filled.store(false, Ordering::Release);
        }
        let (token, count) = missed?;
        Some(Message::Event { token, event: Event::about_no_name(EventKind::Missed, count) })
    }

    /// Whether events would be dropped.
    pub(super) fn has_room(&self) -> bool {
        let messages = lock(&self.messages);
        messages.have_room()
    }

    /// Drops the events of a watch that ended, and what it missed.
    pub fn drop_events(&self, watch: Token) {
        let mut messages = lock(&self.messages);
        messages
            .waiting
            .retain(|message| !matches!(message, Message::Event { token, .. } if *token == watch));
        let names = messages.waiting.iter().filter_map(|message| match message {
            Message::Event { event, .. } => Some(event.name.len()),
            _ => None,
        });
        let (events, name_bytes) = names.fold((0, 0), |(events, sum), bytes| (events + 1, sum + bytes));
        (messages.events, messages.name_bytes) = (events, name_bytes);
        messages.missed.remove(&watch);
    }

    /// Puts something in, and wakes the reader.
    pub fn put(&self, message: Message) {
        let reader = {
            let mut messages = lock(&self.messages);
            match &message {
                Message::Event { token, .. } if !messages.have_room() => {
                    let count = messages.missed.entry(*token).or_default();
                    *count = count.saturating_add(1);
                }
                Message::Event { event, .. } => {
                    messages.events += 1;
                    messages.name_bytes += event.name.len();
                    messages.waiting.push_back(message);
                }
                _ => {
                    if message == Message::Close {
                        self.is_closed.store(true, Ordering::Release);
                    }
                    messages.waiting.push_back(message);
                }
            }
            self.is_filled.store(true, Ordering::Release);
            messages.reader.clone()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Messages {
    /// Whether an event more would be kept.
    fn have_room(&self) -> bool {
        self.events < EVENTS_MAX && self.name_bytes < NAME_BYTES_MAX && self.missed.is_empty()
    }
}

impl Event {
    pub(super) fn about_no_name(kind: EventKind, resources: u32) -> Self {
        Self {
            kind,
            namespace: Namespace::Counters,
            name: Box::default(),
            grant: None,
            session: None,
            resources,
            in_use: 0,
            waiting: 0,
        }
    }
}

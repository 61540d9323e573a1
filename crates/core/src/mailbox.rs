//! Messages for a connection that are not the direct answer to a request: late answers, events and notices.
//!
//! A mailbox takes a bounded number of events; a slow reader learns how many events it missed. It takes every answer and
//! notice, because what the connection requested and holds bounds their number.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use crate::invariant::lock;
use crate::limit::ClientKey;
use crate::outcome::{Answer, Token};
use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::time::MonotonicMs;
use signalbox_model::sysv::{Errno, SetAnswer};
use signalbox_model::{Event, EventKind, Namespace, Notice, Refusal};

/// The most events that wait for a reader; further ones are counted and dropped.
pub const EVENTS_MAX: usize = 1024;

/// The bytes that the names of waiting events may take. Once they are reached, further events are dropped, too.
const NAME_BYTES_MAX: usize = 1 << 20;

/// A message for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The answer to a request that waited.
    Answer {
        /// The token of the request.
        token: Token,
        /// The answer, or why the request was refused.
        outcome: Result<Answer, Refusal>,
    },
    /// The result of a waiting call on a System V semaphore set.
    Operated {
        /// The token of the request.
        token: Token,
        /// The result.
        result: Result<SetAnswer, Errno>,
    },
    /// An event for a watch.
    Event {
        /// The token of the watch.
        token: Token,
        /// The event.
        event: Event<Box<[u8]>>,
    },
    /// A notice; the time in it is the end of what is revoked.
    Notice(Notice<MonotonicMs>),
    /// The connection's session was revoked: the server has to close the connection.
    Close,
}

/// The client that is attached to a session, or was attached last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionClient {
    /// Its address.
    pub address: SocketAddr,
    /// The identity that it has proven, as the server names it; `None`: it has proven none.
    pub identity: Option<Arc<str>>,
}

/// The messages of one connection.
#[derive(Debug, Default)]
pub struct Mailbox {
    owner: Option<ClientKey>,
    /// The key of the identity that the client had proven before the core learned of the connection, if any.
    identity_key: OnceLock<ClientKey>,
    messages: Mutex<Messages>,
    /// Whether a message waits; a connection checks this without the lock.
    is_filled: AtomicBool,
    /// Whether there was a [`Message::Close`].
    is_closed: AtomicBool,
    /// Whether the rules of access control have changed since the last call of [`Mailbox::take_new_rules`].
    has_new_rules: AtomicBool,
    /// The address of the connection's client, for listings and revocations; `None`: it has no address.
    client: Option<SocketAddr>,
}

#[derive(Debug, Default)]
struct Messages {
    waiting: VecDeque<Message>,
    events: usize,
    /// The bytes that the names of waiting events take.
    name_bytes: usize,
    /// The number of events of each watch that were dropped.
    missed: BTreeMap<Token, u32>,
    /// The identity that the client has proven last.
    identity: Option<Arc<str>>,
    reader: Option<Waker>,
}

impl Mailbox {
    /// The mailbox of a connection whose client has this address. The client is counted under the key `owner`; `None`:
    /// it is not counted.
    pub fn of(client: SocketAddr, owner: Option<ClientKey>) -> Self {
        Self { client: Some(client), owner, ..Self::default() }
    }

    /// The client whose shares the connection counts against.
    pub(super) fn owner(&self) -> Option<ClientKey> {
        self.identity_key.get().copied().or(self.owner)
    }

    /// Sets the identity that the client has proven, under which it is counted, listed and revoked. Only for use
    /// before the connection joins the core; [`Self::identify_again`] is for later.
    pub fn identify(&self, identity: &str) {
        // Only the first key counts: what is counted under a key must be subtracted under the same key.
        let _ = self.identity_key.set(ClientKey::of_identity(identity));
        self.identify_again(identity);
    }

    /// Sets another identity that the client has proven, under which it is listed and revoked from now on. It is
    /// counted as before.
    pub fn identify_again(&self, identity: &str) {
        lock(&self.messages).identity = Some(identity.into());
    }

    /// The connection's client.
    pub fn client(&self) -> Option<SessionClient> {
        let address = self.client?;
        Some(SessionClient { address, identity: lock(&self.messages).identity.clone() })
    }

    /// Sets the task that a new message wakes.
    pub fn set_reader(&self, reader: &Waker) {
        lock(&self.messages).reader = Some(reader.clone());
    }

    /// Returns whether a message waits.
    #[inline]
    pub fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::Acquire)
    }

    /// Wakes the reader, because the rules of access control have changed.
    pub fn note_new_rules(&self) {
        self.has_new_rules.store(true, Ordering::Release);
        let reader = lock(&self.messages).reader.clone();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Returns whether the rules of access control have changed since the last call.
    #[inline]
    pub fn take_new_rules(&self) -> bool {
        self.has_new_rules.load(Ordering::Relaxed) && self.has_new_rules.swap(false, Ordering::Acquire)
    }

    /// Returns whether the connection has to be closed, even if its peer reads none of the earlier messages.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Takes the oldest message. The numbers of events that were dropped come last.
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
        Some(Message::Event { token, event: event_without_name(EventKind::Missed, count) })
    }

    /// Returns whether one more event would be kept.
    pub(super) fn has_room(&self) -> bool {
        let messages = lock(&self.messages);
        messages.have_room()
    }

    /// Drops the events of a watch that ended, and the count of those that it missed.
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

    /// Adds a message and wakes the reader.
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

/// Where a late answer goes.
#[derive(Clone, Debug)]
pub(super) struct ReplyTo {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) token: Token,
}

impl ReplyTo {
    pub(super) fn send(self, outcome: Result<Answer, Refusal>) {
        self.mailbox.put(Message::Answer { token: self.token, outcome });
    }
}

impl Messages {
    fn have_room(&self) -> bool {
        self.events < EVENTS_MAX && self.name_bytes < NAME_BYTES_MAX && self.missed.is_empty()
    }
}

/// An event that is not about a name.
pub(super) fn event_without_name(kind: EventKind, resources: u32) -> Event<Box<[u8]>> {
    Event {
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

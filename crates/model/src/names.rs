//! Names, and the resources that requests ask for.

use crate::{GrantId, TtlLeft, codes};

codes! {
    /// The namespace of a name, also called its kind. The same bytes may name one counter and one semaphore. Extended
    /// requests state the namespace, because they work over both ports (`docs/protocol.md`, "Extended operations").
    #[derive(PartialOrd, Ord)]
    #[cfg_attr(feature = "views", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
    pub enum Namespace: u8 {
        /// Counters: each request gives the maximum (`counter.md`).
        Counters = 0,
        /// Semaphores: the request or declaration that creates a semaphore gives its capacity (`semaphore.md`).
        Semaphores = 1,
    }
}

impl Namespace {
    /// Both namespaces, in the order of their default ports.
    pub const ALL: [Self; 2] = [Self::Counters, Self::Semaphores];

    /// The given namespace, or both if none is given.
    pub fn one_or_all(given: Option<Self>) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |namespace| given.is_none_or(|given| given == *namespace))
    }

    /// The noun for a name of this namespace.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Counters => "counter",
            Self::Semaphores => "semaphore",
        }
    }
}

/// The names that a Watch covers (`docs/protocol.md`, "Watch").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<N> {
    /// One name; at least one byte.
    Name(N),
    /// All names with this prefix; all names if it is empty.
    Prefix(N),
}

impl<N: AsRef<[u8]>> Scope<N> {
    /// Returns whether the Watch covers this name.
    pub fn contains(&self, name: &[u8]) -> bool {
        match self {
            Self::Name(only) => name == only.as_ref(),
            Self::Prefix(prefix) => name.starts_with(prefix.as_ref()),
        }
    }
}

/// The value of [`Claim::maximum`] with which a semaphore keeps its own capacity, and is not created if it does not exist
/// (`docs/protocol.md`, "AcquireGrant").
pub const AS_DECLARED: u32 = 0;

/// The most names of one grant (`docs/protocol.md`, "AcquireAll").
pub const ACQUIRE_ALL_NAMES_MAX: usize = 64;

/// The longest label in bytes (`docs/protocol.md`, "Hello").
pub const LABEL_BYTES_MAX: usize = 255;

/// The resources of one name that a request asks for (`docs/protocol.md`, "AcquireGrant" and "AcquireAll").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    /// The namespace of the name; `None`: when the turn of the name comes, the server resolves it to the declared
    /// semaphore of this name if there is one, and otherwise to the counter, which needs a maximum.
    pub namespace: Option<Namespace>,
    /// The name, 1 to 65535 bytes. It is created if it does not exist, except with [`AS_DECLARED`].
    pub name: &'a [u8],
    /// The number of resources; at least 1, and at most `maximum` unless that is [`AS_DECLARED`].
    pub resources: u32,
    /// The maximum of a counter for this request, the capacity of a semaphore that this request creates, or
    /// [`AS_DECLARED`]. If the server resolves the name to a declared semaphore, it must be at least the semaphore's capacity.
    pub maximum: u32,
    /// The slot to acquire, of a semaphore whose resources are numbered; `None`: the lowest free ones. With a slot,
    /// `resources` is 1, and the semaphore is not created.
    pub slot: Option<u16>,
}

impl Claim<'_> {
    /// Returns whether a shared request may have this claim: one resource of a maximum of 1, and no particular slot.
    pub fn can_be_shared(&self) -> bool {
        (self.resources, self.maximum, self.slot) == (1, 1, None)
    }
}

/// The usage of a name (`docs/protocol.md`, "Inspect").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// The resources that are in use; may be more than the capacity after a shrink.
    pub in_use: u32,
    /// The most that were in use at once, as Dump reports it.
    pub peak: u32,
    /// The number of requests that wait.
    pub waiting: u32,
    /// The capacity of a semaphore; 0 for a counter, of which each request states the maximum.
    pub capacity: u32,
    /// The resources of a semaphore that are neither in use nor out of service, 0 while it is paused; 0 for a counter.
    pub available: u32,
    /// The namespace that was asked for, or to which the server has resolved the name.
    pub namespace: Namespace,
}

/// A holder or a waiter of a name (`docs/protocol.md`, "Holders" and "Waiters").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListEntry<T, S> {
    /// The grant, or the future grant of a waiter; `None` for resources of plain Acquires.
    pub grant: Option<GrantId>,
    /// The number of the session.
    pub session: u64,
    /// The time since which it holds or waits, in seconds since the Unix epoch; `None` if unknown.
    pub since: Option<u64>,
    /// The number of resources that are held or requested.
    pub resources: u32,
    /// The position in the queue, from 1; 0 for a holder.
    pub position: u32,
    /// The label of the session; arbitrary bytes, may be empty.
    pub label: T,
    /// The address of the client as text; empty while it is not connected.
    pub address: T,
    /// The numbers of the slots that are held, from 0 and ascending; for a waiter, the slot that it asks for. Empty if
    /// the resources are not numbered, or the waiter asks for any slot.
    pub slots: S,
}

impl<T: AsRef<[u8]>, S: AsRef<[u16]>> ListEntry<T, S> {
    /// The same entry with borrowed texts.
    pub fn borrowed(&self) -> ListEntry<&[u8], &[u16]> {
        let Self { grant, session, since, resources, position, .. } = *self;
        let (label, address, slots) = (self.label.as_ref(), self.address.as_ref(), self.slots.as_ref());
        ListEntry { grant, session, since, resources, position, label, address, slots }
    }
}

/// A name that a session holds, or that its request waits for (`docs/protocol.md`, "Held").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldEntry<T, S> {
    /// The namespace of the name.
    pub namespace: Namespace,
    /// The name's bytes.
    pub name: T,
    /// Whether it is held; otherwise, a request waits for it.
    pub is_held: bool,
    /// How long a grant is held without a renewal; [`TtlLeft::Connection`] also for a request that waits.
    pub ttl_left: TtlLeft,
    /// The entry among the holders or the waiters of the name. The position of a waiter is not counted: it is 0.
    pub entry: ListEntry<T, S>,
}

impl<T: AsRef<[u8]>, S: AsRef<[u16]>> HeldEntry<T, S> {
    /// The same entry with borrowed texts.
    pub fn borrowed(&self) -> HeldEntry<&[u8], &[u16]> {
        let Self { namespace, is_held, ttl_left, .. } = *self;
        let (name, entry) = (self.name.as_ref(), self.entry.borrowed());
        HeldEntry { namespace, name, is_held, ttl_left, entry }
    }
}

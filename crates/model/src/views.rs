//! The objects that the command line prints with `--json` and that the HTTP API returns: one definition of their keys.
//!
//! Each is made from an entry of the model, which the server has and the client receives.

use serde::Serialize;

use crate::sysv::{IPC_PRIVATE, ListedSet, ListedUser, Operation, Order, Ownership, SetStat, UserRole};
use crate::{DeclaredEntry, Inspected, ListEntry, Namespace, SessionEntry, SessionKind, TtlLeft, hex};

/// Defines the types of texts in an object, for `#[serde(flatten)]`. A JSON string cannot hold bytes that are not UTF-8,
/// so such a text has another key.
macro_rules! texts {
    ($($(#[$doc:meta])* $type:ident: $text:literal or $hex:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        pub enum $type {
            /// It is UTF-8.
            #[serde(rename = $text)]
            Text(String),
            /// It is not UTF-8: its bytes in hexadecimal digits.
            #[serde(rename = $hex)]
            Hex(String),
        }

        impl $type {
            /// The text with these bytes.
            pub fn of(bytes: &[u8]) -> Self {
                str::from_utf8(bytes).map_or_else(|_| Self::Hex(hex(bytes)), |text| Self::Text(text.to_owned()))
            }
        }
    )*};
}

texts! {
    /// A name.
    Named: "name" or "name_hex";
    /// A label.
    Labeled: "label" or "label_hex";
    /// A prefix.
    Prefixed: "prefix" or "prefix_hex";
}

/// The text of an address or an identity; `None`: it is not known.
fn known(text: &[u8]) -> Option<String> {
    (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned())
}

/// The usage of a name.
#[derive(Debug, Serialize)]
pub struct Usage {
    /// `counter` or `semaphore`.
    pub kind: &'static str,
    #[serde(flatten)]
    /// The name.
    pub name: Named,
    /// The resources in use.
    pub in_use: u32,
    /// `None`: it is a counter.
    pub capacity: Option<u32>,
    /// The resources that are neither in use nor out of service; `None`: it is a counter.
    pub available: Option<u32>,
    /// The most that were in use at once.
    pub peak: u32,
    /// The requests that wait.
    pub waiting: u32,
}

impl Usage {
    /// The object for the usage of a name.
    pub fn of(name: &[u8], inspected: Inspected) -> Self {
        let Inspected { in_use, peak, waiting, capacity, available, namespace } = inspected;
        let has_capacity = namespace == Namespace::Semaphores;
        Self {
            kind: namespace.noun(),
            name: Named::of(name),
            in_use,
            capacity: has_capacity.then_some(capacity),
            available: has_capacity.then_some(available),
            peak,
            waiting,
        }
    }
}

/// A holder or a waiter of a name.
#[derive(Debug, Serialize)]
pub struct Entry {
    /// `None`: it is a holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u32>,
    /// Strings: many JSON readers convert numbers to doubles, which would round them.
    grant: Option<String>,
    session: String,
    resources: u32,
    /// For holders only; empty if the resources are not numbered.
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<Box<[u16]>>,
    /// In seconds since the Unix epoch.
    since: Option<u64>,
    address: Option<String>,
    #[serde(flatten)]
    label: Labeled,
}

impl Entry {
    /// The object for an entry.
    pub fn of<T: AsRef<[u8]>, S: AsRef<[u16]>>(entry: &ListEntry<T, S>) -> Self {
        let is_holder = entry.position == 0;
        Self {
            position: (!is_holder).then_some(entry.position),
            grant: entry.grant.map(|grant| grant.0.to_string()),
            session: entry.session.to_string(),
            resources: entry.resources,
            slots: is_holder.then(|| entry.slots.as_ref().into()),
            since: entry.since,
            address: known(entry.address.as_ref()),
            label: Labeled::of(entry.label.as_ref()),
        }
    }
}

/// A declared semaphore.
#[derive(Debug, Serialize)]
pub struct Semaphore {
    #[serde(flatten)]
    name: Named,
    capacity: u32,
    in_use: u32,
    waiting: u32,
    #[serde(flatten)]
    declaration: Declaration,
}

impl Semaphore {
    /// The object for an entry.
    pub fn of<T: AsRef<[u8]>, S: AsRef<[u16]>>(entry: &DeclaredEntry<T, S>) -> Self {
        let DeclaredEntry { capacity, in_use, waiting, .. } = *entry;
        let (name, declaration) = (Named::of(entry.name.as_ref()), Declaration::of(entry));
        Self { name, capacity, in_use, waiting, declaration }
    }
}

/// The declaration and the service of a semaphore.
#[derive(Debug, Serialize)]
pub struct Declaration {
    /// A string: many JSON readers convert numbers to doubles, which would round it.
    generation: String,
    slots: bool,
    removing: bool,
    configured: bool,
    paused: bool,
    slots_out: Box<[u16]>,
    #[serde(flatten)]
    label: Labeled,
}

impl Declaration {
    /// The object for an entry.
    pub fn of<T: AsRef<[u8]>, S: AsRef<[u16]>>(entry: &DeclaredEntry<T, S>) -> Self {
        Self {
            generation: entry.generation.0.to_string(),
            slots: entry.numbered,
            removing: entry.removing,
            configured: entry.configured,
            paused: entry.paused,
            slots_out: entry.slots_out.as_ref().into(),
            label: Labeled::of(entry.label.as_ref()),
        }
    }
}

/// A declaration in a document of declarations.
#[derive(Debug, Serialize)]
pub struct Declared {
    capacity: u32,
    slots: bool,
    #[serde(flatten)]
    label: Labeled,
}

impl Declared {
    /// The object for a declaration.
    pub fn of(declaration: &crate::Declaration<'_>) -> Self {
        let crate::Declaration { capacity, numbered, label, .. } = *declaration;
        Self { capacity, slots: numbered, label: Labeled::of(label) }
    }
}

/// A session.
#[derive(Debug, Serialize)]
pub struct Session {
    kind: &'static str,
    /// A string: many JSON readers convert numbers to doubles, which would round it.
    session: String,
    address: Option<String>,
    connected: bool,
    /// In seconds.
    age: Option<u32>,
    grants: u32,
    waiting: u32,
    /// In seconds.
    ttl_left: Option<f64>,
    /// The identity that the client has proven.
    identity: Option<String>,
    #[serde(flatten)]
    label: Labeled,
}

impl Session {
    /// The object for an entry.
    pub fn of<T: AsRef<[u8]>>(entry: &SessionEntry<T>) -> Self {
        Self {
            kind: kind_of_session(entry.kind),
            session: entry.session.to_string(),
            address: known(entry.address.as_ref()),
            connected: entry.attached,
            age: entry.age_s,
            grants: entry.grants,
            waiting: entry.waiting,
            ttl_left: ttl_left_s(entry.ttl_left),
            identity: known(entry.identity.as_ref()),
            label: Labeled::of(entry.label.as_ref()),
        }
    }
}

/// How long a lease lasts without a renewal, in seconds; `None`: as long as the connection.
pub fn ttl_left_s(left: TtlLeft) -> Option<f64> {
    match left {
        TtlLeft::Connection => None,
        TtlLeft::For(left) => Some(f64::from(left.0) / 1000.0),
    }
}

/// The kind of a session, in one word.
pub fn kind_of_session(kind: SessionKind) -> &'static str {
    match kind {
        SessionKind::Leased => "leased",
        SessionKind::Connection => "connection",
        SessionKind::Process => "process",
    }
}

/// A System V semaphore set.
#[derive(Debug, Serialize)]
pub struct Set {
    /// The key in hexadecimal digits; `None`: the set has no key.
    pub key: Option<String>,
    id: i32,
    uid: u32,
    gid: u32,
    creator_uid: u32,
    creator_gid: u32,
    mode: String,
    semaphores: u32,
    waiting: u32,
    adjusting: u32,
    operated: Option<u64>,
    changed: u64,
    durable: bool,
    fifo: bool,
}

impl Set {
    /// The object for an entry.
    pub fn of(listed: &ListedSet) -> Self {
        let ListedSet { set, stat, waiting, adjusting, order, is_durable } = listed;
        let Ownership { uid, gid, .. } = stat.ownership;
        Self {
            key: key_of(stat),
            id: set.0,
            uid,
            gid,
            creator_uid: stat.creator_uid,
            creator_gid: stat.creator_gid,
            mode: mode_of(stat),
            semaphores: stat.count,
            waiting: *waiting,
            adjusting: *adjusting,
            operated: stat.operated_at.map(|at| at.0),
            changed: stat.changed_at.0,
            durable: *is_durable,
            fifo: *order == Order::Fifo,
        }
    }
}

/// The key of a set; `None`: it has no key.
pub fn key_of(stat: &SetStat) -> Option<String> {
    (stat.key != IPC_PRIVATE).then(|| format!("{:#010x}", stat.key))
}

/// The mode in octal digits.
pub fn mode_of(stat: &SetStat) -> String {
    format!("{:04o}", stat.ownership.mode & 0o777)
}

/// A process that has adjustments of a set, or whose call waits.
#[derive(Debug, Serialize)]
pub struct User {
    /// A string: many JSON readers convert numbers to doubles, which would round it.
    process: String,
    pid: u32,
    uid: u32,
    #[serde(flatten)]
    operations: Operations,
    #[serde(flatten)]
    label: Labeled,
}

/// The adjustments of a process, or the operations of a call that waits.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Operations {
    Adjustments(Vec<Adjustment>),
    Operations(Vec<WaitingOperation>),
}

#[derive(Debug, Serialize)]
struct Adjustment {
    semaphore: u16,
    adjustment: i16,
}

#[derive(Debug, Serialize)]
struct WaitingOperation {
    semaphore: u16,
    change: i16,
    nowait: bool,
    undo: bool,
}

impl User {
    /// The object for an entry.
    pub fn of(listed: &ListedUser) -> Self {
        let adjustment = |of: &Operation| Adjustment { semaphore: of.number, adjustment: of.change };
        let operation = |of: &Operation| WaitingOperation {
            semaphore: of.number,
            change: of.change,
            nowait: of.is_nowait(),
            undo: of.is_undone(),
        };
        let all = listed.operations.iter();
        Self {
            process: listed.process.to_string(),
            pid: listed.pid,
            uid: listed.uid,
            operations: match listed.role {
                UserRole::Adjusts => Operations::Adjustments(all.map(adjustment).collect()),
                UserRole::Waits => Operations::Operations(all.map(operation).collect()),
            },
            label: Labeled::of(&listed.label),
        }
    }
}

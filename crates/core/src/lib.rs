//! The rules that decide which session may use how many resources of which name.
//!
//! The core does no I/O, writes no log and has no clock: time is a parameter. Nothing here blocks, except for short waits
//! for locks. The server calls one method of [`Core`] per request; the simulation in the tests calls the same methods.
//!
//! Plain operations access only the name itself. The `ledger` has the grants, queues, leased sessions and watches;
//! a plain operation enters it only if requests wait for the name or a watch covers it.
//!
//! System V semaphore sets (`sysv`) share nothing with names, and have a lock of their own.
//!
//! Locks are acquired in one order: the ledger, the shard of the map, then the object of a name. No lock outlives the
//! call that acquired it. Work that grows with the number of names (a Dump, the end of a session, a sweep) is a value
//! with a method that does one step, so that the caller can yield between steps of bounded size.
//!
//! `object` maintains invariant 1 of `docs/design.md` (the consumption is the sum of the holdings); [`Core::check`] can
//! check it at any time.

#![warn(clippy::unwrap_used)]

mod alarm;
mod claim;
mod clients;
mod counter;
mod durable;
mod history;
mod holders;
mod invariant;
mod journal;
mod ledger;
mod limit;
mod mailbox;
mod name;
mod object;
mod outcome;
mod registry;
mod request_log;
mod ring_map;
mod semaphore;
mod session;
mod state;
mod sync;
mod sysv;
mod time;
mod visit;

pub use ahash::RandomState as NameHasher;

pub use claim::Claim;
pub use durable::{
    AnswerRecord, Change, DeclarationRecord, GrantRecord, Key, Origin, PartRecord, Record, Service,
    SessionRecord,
};
pub use history::{HistoryEntries, HistoryEntry, HistoryEvent, HistoryHead, HistoryPart, HistoryParts};
pub use journal::BatchLimit;
pub use ledger::{
    Batch, CheckedNames, ClaimListing, ClaimSubject, Claimed, CommitOutcome, Connected, DeclaredListing,
    DeclaredSemaphore, GRANT_SLOTS_MAX, KeyedCounts, KeyedLease, KeyedRefusal, KeyedRequest, KeyedState,
    Kind, Lease, LedgerLimits, LedgerStats, Listed, ListedSession, Listing, ListingKind, NameEntry,
    Permitted, PlainListing, Queueing, SessionListing, TICK_MS, WaitedListing, Waiting, Want, WatchSnapshot,
};
pub use limit::{ClientKey, ClientShare, MemoryLimit};
pub use mailbox::{EVENTS_MAX, Mailbox, Message, SessionClient};
pub use object::DumpItem;
pub use outcome::{Answer, Call, Executed, Granted, Opened, Outcome, Token};
pub use registry::{Limits, RegistryStats};
pub use request_log::REQUESTS_MAX;
pub use semaphore::SLOTS_MAX;
pub use session::Session;
pub use state::{Core, Ending};
pub use sysv::{
    AdjustmentsRecord, ConnectionEnd, KeyRule, ProcessRecord, ResultRecord, SemaphoreRecord, SetCheck,
    SetListing, SetRecord, StoredAnswer, SysvCall, SysvKey, SysvLimits, SysvOutcome, SysvRecord, SysvStats,
    UserListing,
};
pub use time::{Due, Moment, MonotonicMs};
pub use visit::{Check, CheckFailure, Dump, NameCursor, Survey, Surveyed, Sweep};

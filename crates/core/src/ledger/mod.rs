//! Grants, the queues that they come from, and the sessions that own them.
//!
//! The ledger has everything beyond plain Acquires, under one lock, so that what belongs together changes together: a
//! release serves the queue in the same step, a reply is cached as it is made, events come in the order in which things
//! happened. Plain operations bypass it, except for tracked names: those that requests wait for, and those that a watch
//! covers.
//!
//! The ledger's lock is taken before that of a shard and that of an object, never under one.
//!
//! [`Ledger`] (`state`) is composed of parts with private fields and one invariant each, stated at the top of their files:
//! `sessions`, `grants`, `queues`, `slots`, `declarations`, `idle_waiters`, `watches`, `history`, `clients`, `backlog`, `places`,
//! `alarm`, `id_allocator`, and the pending replies. Parts do not know the ledger; the other files have the operations. An
//! operation uses only those of its own level and of lower ones:
//!
//! | level | files |
//! |---|---|
//! | operations that clients ask for, and what comes due | `acquire`, `tracked`, `operations`, `declare`, `connect`, `keyed`, `expire`, `commit`, `restore`, `listing` |
//! | the end of a session | `session_end` |
//! | serving queues, the end of grants and waiters, and the rest of the backlog | `serve`, `removal`, `await_idle` |
//! | how others learn of a change, and whose share it uses | `repeated`, `replies`, `watch`, `records`, `history`, `shares` |
//!
//! An AcquireGrant that waits: `acquire` finds out in `replies` whether it is repeated, adds a waiter to `grants`, and has
//! `serve` take each name or join its queue in `queues`. A release serves the queue in `serve` again; `records` stores the
//! grant, `commit` learns that it is stored, and `replies` caches the reply and sends it.
//!
//! Invariants across parts (numbers of `docs/design.md`): a head of a queue that fits does not wait when the lock is
//! released, unless its name is in the backlog (4); a waiter holds what it has taken and nothing else (5); a request id
//! makes one change (7). `check` verifies all of them at once.

mod acquire;
mod await_idle;
mod backlog;
mod check;
mod commit;
mod connect;
mod declarations;
mod declare;
mod expire;
mod grants;
mod history;
mod id_allocator;
mod idle_waiters;
mod keyed;
mod leases;
mod listing;
mod operations;
mod places;
mod queues;
mod records;
mod removal;
mod repeated;
mod replies;
mod restore;
mod serve;
mod session_end;
mod sessions;
mod sets;
mod shares;
mod slots;
mod state;
mod tracked;
mod watch;
mod watches;

pub use acquire::Waiting;
pub use commit::{Batch, CommitOutcome};
pub use connect::CheckedNames;
pub use grants::{Kind, Permitted, Queueing, Want};
pub use keyed::{KeyedCounts, KeyedLease, KeyedRefusal, KeyedRequest, KeyedState};
pub use leases::{Lease, TICK_MS};
pub use listing::{
    ClaimListing, ClaimSubject, Claimed, Connected, DeclaredListing, DeclaredSemaphore, Listed,
    ListedSession, Listing, ListingKind, NameEntry, PlainListing, SessionListing, WaitedListing,
};
pub(super) use listing::{age_s, client_texts, ttl_left};
pub use slots::GRANT_SLOTS_MAX;
pub(crate) use state::Ledger;
pub use state::{LedgerLimits, LedgerStats};
pub use watch::WatchSnapshot;

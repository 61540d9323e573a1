//! The process on the server that represents this one, and its connections.
//!
//! One process of the server owns the adjustments of all threads. Each thread that is in a call has a connection of its
//! own. Connections are kept for later calls and never closed while the process lives, because the server treats the
//! end of the last one as the end of the process.
//!
//! Entries of the lists here are added and never removed, so that no lock is needed: a signal handler may call `semop`
//! while a call waits, and a fork may happen at any time.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

use signalbox_model::sysv::ProcessId;
use signalbox_model::{RequestId, RequestIds, SessionKey};

use crate::connection::Connection;
use crate::socket::Identity;

/// Marks a slot without an unanswered request.
const NONE: u64 = u64::MAX;

/// The greatest distance that the library states between the id of a request and the lowest unanswered id. The server
/// accepts at most 1024. A call that still waits at a greater distance is no longer protected against repetition
/// (`docs/sysv.md`, "Limits").
const WINDOW: u64 = 1000;

/// The processes that are known in this memory, the latest first. There are several if one was lost, or after a vfork,
/// whose child has the memory of its parent.
static PROCESSES: AtomicPtr<Process> = AtomicPtr::new(null_mut());

/// Whether a process with adjustments has ended on the server and no call has reported it yet.
static ADJUSTMENTS_LOST: AtomicBool = AtomicBool::new(false);

/// A process of the server.
pub struct Process {
    /// The process id on this machine. The child of a vfork or clone sees the same memory or a copy of it, and
    /// recognises by this id that the process is not its own.
    pid: u32,
    name: Name,
    next_request: AtomicU64,
    /// Whether it may have adjustments: it has sent operations with SEM_UNDO.
    adjusts: AtomicBool,
    /// Whether the server no longer has it, or the library has given it up.
    is_gone: AtomicBool,
    slots: AtomicPtr<Slot>,
    next: *const Process,
}

/// The id and the key that a connection states to act for a process.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    pub process: ProcessId,
    pub key: SessionKey,
}

/// A slot for a connection. Only the thread that made it busy uses the connection.
#[derive(Debug)]
struct Slot {
    is_busy: AtomicBool,
    /// A lower bound of the id of its unanswered request, or [`NONE`].
    in_flight: AtomicU64,
    /// The socket, for the child of a fork, which must not touch the connection itself. -1: there is none.
    descriptor: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    connection: UnsafeCell<Option<Connection>>,
    next: *const Slot,
}

// SAFETY: only the holder of the lease uses the connection, and there is one lease while `is_busy`; the other fields
// are atomics, or do not change once the slot is shared.
unsafe impl Sync for Slot {}

// SAFETY: all fields are atomics or do not change, and `slots` points to slots, which are Sync.
unsafe impl Sync for Process {}

/// The exclusive use of a slot.
#[derive(Debug)]
pub struct Lease {
    slot: &'static Slot,
}

impl Process {
    /// This process on the server, if it was opened.
    pub fn current() -> Option<&'static Self> {
        let pid = std::process::id();
        Self::all().find(|process| process.pid == pid && !process.is_gone.load(Ordering::Relaxed))
    }

    fn all() -> impl Iterator<Item = &'static Self> {
        Self::list(PROCESSES.load(Ordering::SeqCst))
    }

    fn list(head: *const Self) -> impl Iterator<Item = &'static Self> {
        // SAFETY: entries of the list are never freed.
        std::iter::successors(unsafe { head.as_ref() }, |process| unsafe { process.next.as_ref() })
    }

    /// Adds to the list a process that was opened or handed over. If another thread was faster, its process is
    /// returned, and the connection of `lease` is closed, which ends the new process on the server.
    pub fn publish(
        name: Name,
        next_request: u64,
        adjusts: bool,
        lease: Option<Lease>,
    ) -> (&'static Self, Option<Lease>) {
        let slots = lease.as_ref().map_or(null_mut(), |lease| std::ptr::from_ref(lease.slot).cast_mut());
        let new = Box::leak(Box::new(Self {
            pid: std::process::id(),
            name,
            next_request: AtomicU64::new(next_request),
            adjusts: AtomicBool::new(adjusts),
            is_gone: AtomicBool::new(false),
            slots: AtomicPtr::new(slots),
            next: std::ptr::null(),
        }));
        loop {
            if let Some(faster) = Self::current() {
                if let Some(mut lease) = lease {
                    lease.set(None);
                }
                return (faster, None);
            }
            let head = PROCESSES.load(Ordering::SeqCst);
            new.next = head;
            if PROCESSES.compare_exchange(head, new, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return (new, lease);
            }
        }
    }

    pub fn name(&self) -> Name {
        self.name
    }

    pub fn next_request(&self) -> u64 {
        self.next_request.load(Ordering::SeqCst)
    }

    pub fn adjusts(&self) -> bool {
        self.adjusts.load(Ordering::Relaxed)
    }

    /// Notes that operations with SEM_UNDO are about to be sent.
    pub fn note_adjustments(&self) {
        if !self.adjusts.load(Ordering::Relaxed) {
            self.adjusts.store(true, Ordering::Relaxed);
        }
    }

    /// Takes a slot for one call. It may have no connection yet.
    pub fn lease(&self) -> Lease {
        let free = self.slots().find_map(Slot::take);
        free.unwrap_or_else(|| {
            let slot = Box::leak(Box::new(Slot::new()));
            loop {
                let head = self.slots.load(Ordering::SeqCst);
                slot.next = head;
                if self.slots.compare_exchange(head, slot, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    return Lease { slot };
                }
            }
        })
    }

    fn slots(&self) -> impl Iterator<Item = &'static Slot> {
        let head: *const Slot = self.slots.load(Ordering::SeqCst);
        // SAFETY: entries of the list are never freed.
        std::iter::successors(unsafe { head.as_ref() }, |slot| unsafe { slot.next.as_ref() })
    }

    /// Returns the numbers of a new request. Its slot gets a lower bound before the request gets its id, so that the
    /// lowest unanswered id that another thread finds is never too high.
    pub fn number(&self, lease: &Lease) -> RequestIds {
        lease.slot.in_flight.store(self.next_request.load(Ordering::SeqCst), Ordering::SeqCst);
        let own = self.next_request.fetch_add(1, Ordering::SeqCst);
        let lowest = self.slots().map(|slot| slot.in_flight.load(Ordering::SeqCst)).min();
        let lowest = lowest.unwrap_or(own).min(own).max(own.saturating_sub(WINDOW));
        RequestIds { own: RequestId(own), lowest_unanswered: RequestId(lowest) }
    }

    /// Forgets a process that the server no longer has, or that the library gives up. Closes its connections, except
    /// those of calls of other threads, which notice it themselves.
    pub fn forget(&self) {
        if self.is_gone.swap(true, Ordering::SeqCst) {
            return;
        }
        if self.adjusts() {
            ADJUSTMENTS_LOST.store(true, Ordering::SeqCst);
        }
        for slot in self.slots() {
            if let Some(mut lease) = slot.take() {
                lease.set(None);
            }
        }
    }

    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst)
    }
}

/// Returns whether adjustments were lost and no call has reported it: true only once.
pub fn take_lost_adjustments() -> bool {
    ADJUSTMENTS_LOST.load(Ordering::Relaxed) && ADJUSTMENTS_LOST.swap(false, Ordering::SeqCst)
}

/// Closes the inherited sockets in the child of a fork, which starts without a process. Does not touch the connections,
/// which other threads of the parent may have been using.
pub fn abandon_all() {
    let head = PROCESSES.swap(null_mut(), Ordering::SeqCst);
    ADJUSTMENTS_LOST.store(false, Ordering::SeqCst);
    for slot in Process::list(head).flat_map(Process::slots) {
        if let Some(identity) = slot.identity() {
            identity.close();
        }
    }
}

impl Slot {
    /// A busy slot.
    fn new() -> Self {
        Self {
            is_busy: AtomicBool::new(true),
            in_flight: AtomicU64::new(NONE),
            descriptor: AtomicI32::new(-1),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            connection: UnsafeCell::new(None),
            next: std::ptr::null(),
        }
    }

    fn take(&'static self) -> Option<Lease> {
        let (free, busy) = (Ordering::Relaxed, Ordering::Acquire);
        let taken = self.is_busy.compare_exchange(false, true, busy, free);
        // Not `then_some`: it would make and drop a lease of a busy slot, which would free the slot.
        taken.is_ok().then(|| Lease { slot: self })
    }

    fn identity(&self) -> Option<Identity> {
        let descriptor = self.descriptor.load(Ordering::Relaxed);
        let (device, inode) = (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed));
        (descriptor != -1).then_some(Identity { descriptor, device, inode })
    }
}

impl Lease {
    /// Returns the lease of a new slot, which does not belong to a process yet.
    pub fn of_new_slot(connection: Connection) -> Self {
        let mut lease = Self { slot: Box::leak(Box::new(Slot::new())) };
        lease.set(Some(connection));
        lease
    }

    /// Replaces the connection. The descriptor is -1 while the other fields change, so that the child of a fork never sees
    /// a mixture of two sockets.
    pub fn set(&mut self, connection: Option<Connection>) {
        let identity = connection.as_ref().map(Connection::identity);
        self.slot.descriptor.store(-1, Ordering::Relaxed);
        if let Some(identity) = identity {
            self.slot.device.store(identity.device, Ordering::Relaxed);
            self.slot.inode.store(identity.inode, Ordering::Relaxed);
            self.slot.descriptor.store(identity.descriptor, Ordering::Relaxed);
        }
        **self = connection;
    }

    /// Notes that the call is answered, so its request will not be repeated.
    pub fn answered(&self) {
        self.slot.in_flight.store(NONE, Ordering::SeqCst);
    }
}

impl Deref for Lease {
    type Target = Option<Connection>;

    fn deref(&self) -> &Option<Connection> {
        // SAFETY: the lease is the only one of its slot.
        unsafe { &*self.slot.connection.get() }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Option<Connection> {
        // SAFETY: the lease is the only one of its slot, and borrowed exclusively.
        unsafe { &mut *self.slot.connection.get() }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.answered();
        self.slot.is_busy.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_of_a_fork_has_not_lost_the_adjustments_of_its_parent() {
        ADJUSTMENTS_LOST.store(true, Ordering::SeqCst);
        assert!(take_lost_adjustments());
        assert!(!take_lost_adjustments(), "only one call reports it");
        ADJUSTMENTS_LOST.store(true, Ordering::SeqCst);
        abandon_all();
        assert!(!take_lost_adjustments());
    }

    #[test]
    fn requests_state_the_lowest_that_is_unanswered_within_the_window() {
        let process = Process {
            pid: 0,
            name: Name { process: ProcessId(1), key: SessionKey([0; 16]) },
            next_request: AtomicU64::new(5),
            adjusts: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            slots: AtomicPtr::new(null_mut()),
            next: std::ptr::null(),
        };
        let number = |lease: &Lease| {
            let ids = process.number(lease);
            (ids.own.0, ids.lowest_unanswered.0)
        };
        let (waiting, other) = (process.lease(), process.lease());
        assert_eq!(number(&waiting), (5, 5));
        assert_eq!(number(&other), (6, 5));
        other.answered();
        assert_eq!(number(&other), (7, 5));
        process.next_request.store(5 + WINDOW + 1, Ordering::SeqCst);
        assert_eq!(number(&other), (6 + WINDOW, 6), "a call that waits for long does not stop others");
        waiting.answered();
        assert_eq!(number(&other), (7 + WINDOW, 7 + WINDOW));
    }
}

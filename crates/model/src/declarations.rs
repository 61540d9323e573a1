//! Declared semaphores, and the changes that administrators make to them.

use crate::{Generation, Milliseconds, codes};

/// The declaration of a semaphore (`docs/protocol.md`, "Declare").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declaration<'a> {
    /// The name, 1 to 65535 bytes.
    pub name: &'a [u8],
    /// The capacity; at most 65,536 if the slots are numbered.
    pub capacity: u32,
    /// Whether the resources are numbered slots. Grants then contain the numbers of their slots.
    pub numbered: bool,
    /// A description for administrators; 0 to 255 arbitrary bytes.
    pub label: &'a [u8],
}

codes! {
    /// The effect of Declare on a semaphore that is declared already (`docs/protocol.md`, "Declare").
    pub enum IfExists: u8 {
        /// The request fails with `AlreadyExists`.
        Fail = 0,
        /// The semaphore keeps its declaration.
        Keep = 1,
        /// The semaphore gets the new declaration.
        Set = 2,
    }
}

/// The change of a capacity by Resize (`docs/protocol.md`, "Resize").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resizing {
    /// To this value.
    To(u32),
    /// By adding this many resources.
    GrowBy(u32),
    /// By removing this many resources, down to 0.
    ShrinkBy(u32),
}

/// A temporary change of a declared semaphore or one of its slots (`docs/protocol.md`, "Pause" and "SetSlot").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceChange {
    /// The semaphore grants nothing. Holders keep their grants, and requests keep their places in the queue.
    Pause,
    /// The semaphore grants again, and its queue is served.
    Resume,
    /// A slot is not granted. Its holder keeps it.
    SlotOut(u16),
    /// A slot is granted again.
    SlotIn(u16),
}

/// The effect of Remove on a semaphore that is held (`docs/protocol.md`, "Remove").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The request fails with `InUse`.
    IfIdle,
    /// The semaphore grants nothing more, and is removed when the last holder releases it.
    WithLastHolder,
    /// The holders are informed, and keep their grants for a grace period. Then the semaphore is removed.
    Now {
        /// The grace period.
        grace: Milliseconds,
    },
}

/// The condition that AwaitIdle waits for (`docs/protocol.md`, "AwaitIdle").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// At most this many resources of the name are in use.
    Level(u32),
    /// The slot with this number is free.
    Slot(u16),
}

/// The state of a declared semaphore after a change (`docs/protocol.md`, "Declare", "Resize", "Pause" and "SetSlot").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "views", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct DeclaredState {
    /// The generation of the semaphore.
    pub generation: Generation,
    /// The capacity.
    pub capacity: u32,
    /// The resources in use; after a shrink, possibly more than the capacity.
    pub in_use: u32,
}

/// A declared semaphore in the response to List (`docs/protocol.md`, "List").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredEntry<T, S = Vec<u16>> {
    /// The generation of the semaphore.
    pub generation: Generation,
    /// The capacity.
    pub capacity: u32,
    /// The resources in use; after a shrink, possibly more than the capacity.
    pub in_use: u32,
    /// The number of requests that wait for it.
    pub waiting: u32,
    /// Whether its resources are numbered slots.
    pub numbered: bool,
    /// Whether it is being removed. It grants nothing more.
    pub removing: bool,
    /// Whether the server's configuration declares it. Requests cannot declare, resize or remove such a semaphore.
    pub configured: bool,
    /// Whether it is paused: it grants nothing, and requests keep their places in its queue.
    pub paused: bool,
    /// The name.
    pub name: T,
    /// The description that was declared; arbitrary bytes, may be empty.
    pub label: T,
    /// The slots that are out of service, in ascending order.
    pub slots_out: S,
}

impl<T: AsRef<[u8]>, S: AsRef<[u16]>> DeclaredEntry<T, S> {
    /// The same entry with borrowed texts.
    pub fn borrowed(&self) -> DeclaredEntry<&[u8], &[u16]> {
        let Self { generation, capacity, in_use, waiting, numbered, removing, configured, paused, .. } =
            *self;
        DeclaredEntry {
            generation,
            capacity,
            in_use,
            waiting,
            numbered,
            removing,
            configured,
            paused,
            name: self.name.as_ref(),
            label: self.label.as_ref(),
            slots_out: self.slots_out.as_ref(),
        }
    }
}

//! The state of declared semaphores in responses.

use bytes::{BufMut, Bytes};

use super::value::{put_slots, read_slots};
use super::{Generation, length_of};
use crate::fields::Fields;

/// The state of a declared semaphore after a change (`docs/protocol.md`, "Declare", "Resize", "Pause" and "SetSlot").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredState {
    /// The generation of the semaphore.
    pub generation: Generation,
    /// The capacity.
    pub capacity: u32,
    /// The resources in use; after a shrink, possibly more than the capacity.
    pub in_use: u32,
}

impl DeclaredState {
    pub(super) fn compose(&self, out: &mut Vec<u8>) {
        out.put_u64(self.generation.0);
        out.put_u32(self.capacity);
        out.put_u32(self.in_use);
    }

    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self { generation: Generation(fields.u64()?), capacity: fields.u32()?, in_use: fields.u32()? })
    }
}

/// Encodes the rows of the response to Declare.
pub(super) fn put_declared_states(rows: &[DeclaredState], out: &mut Vec<u8>) {
    out.put_u16(u16::try_from(rows.len()).expect("a request declares few semaphores"));
    out.put_u16(0);
    rows.iter().for_each(|row| row.compose(out));
}

pub(super) fn read_declared_states(fields: &mut Fields<'_>) -> Option<Vec<DeclaredState>> {
    let count = fields.length()?;
    fields.u16()?;
    (0..count).map(|_| DeclaredState::read(fields)).collect()
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
    /// Whether the server's configuration declares it. Requests cannot declare, resize or remove it then.
    pub configured: bool,
    /// Whether it is paused: it grants nothing, and requests keep their places in its queue.
    pub paused: bool,
    /// The name.
    pub name: T,
    /// The description that was declared; arbitrary bytes, possibly none.
    pub label: T,
    /// The slots that are out of service, in ascending order. A server without support for this lists none.
    pub slots_out: S,
}

const FLAG_NUMBERED: u8 = 1 << 0;
const FLAG_REMOVING: u8 = 1 << 1;
const FLAG_CONFIGURED: u8 = 1 << 2;
const FLAG_PAUSED: u8 = 1 << 3;

impl DeclaredEntry<&[u8], &[u16]> {
    pub(super) fn compose(&self, out: &mut Vec<u8>) {
        let flags = [
            (self.numbered, FLAG_NUMBERED),
            (self.removing, FLAG_REMOVING),
            (self.configured, FLAG_CONFIGURED),
            (self.paused, FLAG_PAUSED),
        ];
        out.put_u64(self.generation.0);
        out.put_u32(self.capacity);
        out.put_u32(self.in_use);
        out.put_u32(self.waiting);
        out.put_u8(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum());
        out.put_u8(u8::try_from(self.label.len()).expect("a label has at most 255 bytes"));
        out.put_u16(length_of(self.name));
        out.put_slice(self.name);
        out.put_slice(self.label);
        // A semaphore has up to 2^16 slots, one more than a `u16` counts.
        out.put_u32(u32::try_from(self.slots_out.len()).expect("a semaphore has at most 2^16 slots"));
        put_slots(self.slots_out, out);
    }
}

impl DeclaredEntry<Bytes> {
    pub(super) fn read(body: &Bytes) -> Option<Self> {
        let mut fields = Fields::new(body);
        let generation = Generation(fields.u64()?);
        let (capacity, in_use, waiting) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let flags = fields.u8()?;
        let label_bytes = fields.u8()?.into();
        let name_bytes = fields.length()?;
        let name = body.slice_ref(fields.bytes(name_bytes)?);
        let label = body.slice_ref(fields.bytes(label_bytes)?);
        let count = usize::try_from(fields.u32()?).ok()?;
        let slots_out = read_slots(count, &mut fields)?;
        Some(Self {
            generation,
            capacity,
            in_use,
            waiting,
            numbered: flags & FLAG_NUMBERED != 0,
            removing: flags & FLAG_REMOVING != 0,
            configured: flags & FLAG_CONFIGURED != 0,
            paused: flags & FLAG_PAUSED != 0,
            name,
            label,
            slots_out,
        })
    }
}

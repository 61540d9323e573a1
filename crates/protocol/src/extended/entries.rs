//! The encoding of entries of listings, of events, and of lists of slots (`docs/protocol.md`, "Extended operations").

use bytes::{BufMut, Bytes};

use crate::layout::{Fields, NO_NUMBER, Part, length_of};
use signalbox_model::{
    DeclaredEntry, Event, EventKind, HeldEntry, ListEntry, Namespace, SessionEntry, SessionKind,
};

pub(super) fn put_slots(slots: &[u16], out: &mut Vec<u8>) {
    slots.iter().for_each(|slot| out.put_u16(*slot));
}

pub(super) fn read_slots(count: usize, fields: &mut Fields<'_>) -> Option<Vec<u16>> {
    let (slots, _) = fields.bytes(count.checked_mul(2)?)?.as_chunks();
    Some(slots.iter().map(|slot| u16::from_be_bytes(*slot)).collect())
}

pub(super) fn read_list_entry(body: &Bytes) -> Option<ListEntry<Bytes, Vec<u16>>> {
    let mut fields = Fields::new(body);
    let (grant, session) = (Part::read(&mut fields)?, fields.u64()?);
    let since = Some(fields.u64()?).filter(|seconds| *seconds != 0);
    let (resources, position) = (fields.u32()?, fields.u32()?);
    let (label_bytes, address_bytes) = (fields.length()?, fields.length()?);
    let label = body.slice_ref(fields.bytes(label_bytes)?);
    let address = body.slice_ref(fields.bytes(address_bytes)?);
    let count = fields.length()?;
    let slots = read_slots(count, &mut fields)?;
    Some(ListEntry { grant, session, since, resources, position, label, address, slots })
}

pub(super) fn put_list_entry(entry: &ListEntry<&[u8], &[u16]>, out: &mut Vec<u8>) {
    entry.grant.compose(out);
    out.put_u64(entry.session);
    out.put_u64(entry.since.unwrap_or(0));
    out.put_u32(entry.resources);
    out.put_u32(entry.position);
    out.put_u16(length_of(entry.label));
    out.put_u16(length_of(entry.address));
    out.put_slice(entry.label);
    out.put_slice(entry.address);
    out.put_u16(length_of(entry.slots));
    put_slots(entry.slots, out);
}

pub(super) fn read_held_entry(body: &Bytes) -> Option<HeldEntry<Bytes, Vec<u16>>> {
    let mut fields = Fields::new(body);
    let namespace = Namespace::from_code(fields.u8()?)?;
    let is_held = match fields.u8()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let name_bytes = fields.length()?;
    let ttl_left = Part::read(&mut fields)?;
    let name = fields.bytes(name_bytes)?;
    let entry = read_list_entry(&body.slice(8 + name_bytes..))?;
    Some(HeldEntry { namespace, name: body.slice_ref(name), is_held, ttl_left, entry })
}

pub(super) fn put_held_entry(held: &HeldEntry<&[u8], &[u16]>, out: &mut Vec<u8>) {
    out.put_slice(&[held.namespace.code(), held.is_held.into()]);
    out.put_u16(length_of(held.name));
    held.ttl_left.compose(out);
    out.put_slice(held.name);
    put_list_entry(&held.entry, out);
}

const FLAG_ATTACHED: u8 = 1 << 0;

pub(super) fn read_session_entry(body: &Bytes) -> Option<SessionEntry<Bytes>> {
    let mut fields = Fields::new(body);
    let [kind, flags, _, _] = fields.array()?;
    let (kind, session) = (SessionKind::from_code(kind)?, fields.u64()?);
    let age_s = Some(fields.u32()?).filter(|age| *age != NO_NUMBER);
    let (grants, waiting) = (fields.u32()?, fields.u32()?);
    let ttl_left = Part::read(&mut fields)?;
    let (label_bytes, address_bytes) = (fields.length()?, fields.length()?);
    let label = body.slice_ref(fields.bytes(label_bytes)?);
    let address = body.slice_ref(fields.bytes(address_bytes)?);
    let identity = body.slice_ref(fields.text()?);
    let attached = flags & FLAG_ATTACHED != 0;
    Some(SessionEntry { kind, session, attached, age_s, grants, waiting, ttl_left, label, address, identity })
}

pub(super) fn put_session_entry(entry: &SessionEntry<&[u8]>, out: &mut Vec<u8>) {
    let flags = if entry.attached { FLAG_ATTACHED } else { 0 };
    out.put_slice(&[entry.kind.code(), flags, 0, 0]);
    out.put_u64(entry.session);
    out.put_u32(entry.age_s.unwrap_or(NO_NUMBER));
    out.put_u32(entry.grants);
    out.put_u32(entry.waiting);
    entry.ttl_left.compose(out);
    out.put_u16(length_of(entry.label));
    out.put_u16(length_of(entry.address));
    out.put_slice(entry.label);
    out.put_slice(entry.address);
    out.put_u16(length_of(entry.identity));
    out.put_slice(entry.identity);
}

const FLAG_NUMBERED: u8 = 1 << 0;
const FLAG_REMOVING: u8 = 1 << 1;
const FLAG_CONFIGURED: u8 = 1 << 2;
const FLAG_PAUSED: u8 = 1 << 3;

pub(super) fn read_declared_entry(body: &Bytes) -> Option<DeclaredEntry<Bytes>> {
    let mut fields = Fields::new(body);
    let generation = Part::read(&mut fields)?;
    let (capacity, in_use, waiting) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let flags = fields.u8()?;
    let label_bytes = fields.u8()?.into();
    let name_bytes = fields.length()?;
    let name = body.slice_ref(fields.bytes(name_bytes)?);
    let label = body.slice_ref(fields.bytes(label_bytes)?);
    let count = usize::try_from(fields.u32()?).ok()?;
    let slots_out = read_slots(count, &mut fields)?;
    Some(DeclaredEntry {
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

pub(super) fn put_declared_entry(entry: &DeclaredEntry<&[u8], &[u16]>, out: &mut Vec<u8>) {
    let flags = [
        (entry.numbered, FLAG_NUMBERED),
        (entry.removing, FLAG_REMOVING),
        (entry.configured, FLAG_CONFIGURED),
        (entry.paused, FLAG_PAUSED),
    ];
    entry.generation.compose(out);
    out.put_u32(entry.capacity);
    out.put_u32(entry.in_use);
    out.put_u32(entry.waiting);
    out.put_u8(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum());
    out.put_u8(u8::try_from(entry.label.len()).expect("a label has at most 255 bytes"));
    out.put_u16(length_of(entry.name));
    out.put_slice(entry.name);
    out.put_slice(entry.label);
    // A semaphore has up to 2^16 slots, one more than a `u16` counts.
    out.put_u32(u32::try_from(entry.slots_out.len()).expect("a semaphore has at most 2^16 slots"));
    put_slots(entry.slots_out, out);
}

/// Decodes an event and its number.
pub(super) fn read_event(body: &Bytes) -> Option<(u64, Event<Bytes>)> {
    let mut fields = Fields::new(body);
    let number = fields.u64()?;
    let kind = EventKind::from_code(fields.u8()?);
    let namespace = Namespace::from_code(fields.u8()?)?;
    let name_bytes = fields.length()?;
    let event = Event {
        kind,
        namespace,
        grant: Part::read(&mut fields)?,
        session: Some(fields.u64()?).filter(|number| *number != 0),
        resources: fields.u32()?,
        in_use: fields.u32()?,
        waiting: fields.u32()?,
        name: body.slice_ref(fields.bytes(name_bytes)?),
    };
    Some((number, event))
}

pub(super) fn put_event(number: u64, event: &Event<&[u8]>, out: &mut Vec<u8>) {
    out.put_u64(number);
    out.put_u8(event.kind.code());
    out.put_u8(event.namespace.code());
    out.put_u16(length_of(event.name));
    event.grant.compose(out);
    out.put_u64(event.session.unwrap_or(0));
    out.put_u32(event.resources);
    out.put_u32(event.in_use);
    out.put_u32(event.waiting);
    out.put_slice(event.name);
}

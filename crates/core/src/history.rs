//! The entries of the history of grants, encoded one after the other in one buffer, so that the ledger records a grant
//! without allocations.

use std::fmt;
use std::mem;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::task::Waker;

use crate::mailbox::SessionClient;
use signalbox_model::{GrantEnd, GrantId, Namespace, SessionId, UnixMilliseconds};

/// An entry of the history.
#[derive(Clone, Debug)]
pub struct HistoryEntry<'a> {
    /// The event, with its grant and its time.
    pub head: HistoryHead,
    /// The address of the session's client; for a leased session, of the client that was attached last. `None`: not
    /// known.
    pub address: Option<SocketAddr>,
    /// The identity that this client has proven; may be empty.
    pub identity: &'a [u8],
    /// The label of the session.
    pub label: &'a [u8],
    /// The resources that the grant holds, one part for each name.
    pub parts: HistoryParts<'a>,
}

/// The event of an entry, with its grant and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryHead {
    /// The event.
    pub event: HistoryEvent,
    /// When it happened.
    pub time: UnixMilliseconds,
    /// The grant.
    pub grant: GrantId,
    /// Its session.
    pub session: SessionId,
    /// Whether it outlives the process.
    pub is_durable: bool,
}

/// The beginning or the end of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryEvent {
    /// It was made.
    Granted {
        /// How long its request had waited, in milliseconds.
        waited_ms: u64,
    },
    /// It ended.
    Ended {
        /// How it ended.
        end: GrantEnd,
        /// How long it was held, in milliseconds; accurate to one second if it was made before a restart.
        held_ms: u64,
    },
}

/// The resources that a grant holds of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryPart<'a> {
    /// The namespace of the name.
    pub namespace: Namespace,
    /// The bytes of the name.
    pub name: &'a [u8],
    /// The number of resources.
    pub resources: u32,
    slots: &'a [[u8; 2]],
}

impl HistoryPart<'_> {
    /// The slots; none if the resources are not numbered.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = u16> {
        self.slots.iter().copied().map(u16::from_le_bytes)
    }
}

/// The parts of an entry, one for each name of the grant.
#[derive(Clone, Debug)]
pub struct HistoryParts<'a>(&'a [u8]);

impl<'a> Iterator for HistoryParts<'a> {
    type Item = HistoryPart<'a>;

    fn next(&mut self) -> Option<HistoryPart<'a>> {
        let (fixed, rest) = self.0.split_first_chunk()?;
        let mut fixed = Fixed::<PART_BYTES>::of(fixed);
        let [namespace] = fixed.take();
        let [resources, name_bytes, slots] = [(); 3].map(|()| u32::from_le_bytes(fixed.take()));
        let (name, rest) = rest.split_at(name_bytes as usize);
        let (slots, rest) = rest.split_at(2 * slots as usize);
        self.0 = rest;
        let namespace = Namespace::ALL[usize::from(namespace)];
        Some(HistoryPart { namespace, name, resources, slots: slots.as_chunks().0 })
    }
}

/// The most bytes that pending entries take.
const BYTES_MAX: usize = 4 << 20;

/// The pending entries, which wait to be taken. Beyond [`BYTES_MAX`], entries are dropped.
pub(super) struct History {
    clock: Box<dyn Fn() -> UnixMilliseconds + Send>,
    /// Woken when there is an entry to take, and there was none before.
    taker: Waker,
    entries: Vec<u8>,
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("bytes", &self.entries.len()).finish_non_exhaustive()
    }
}

impl History {
    pub(super) fn new(clock: impl Fn() -> UnixMilliseconds + Send + 'static, taker: Waker) -> Self {
        Self { clock: Box::new(clock), taker, entries: Vec::new() }
    }

    pub(super) fn now_ms(&self) -> UnixMilliseconds {
        (self.clock)()
    }

    /// Takes all entries by exchanging the buffer with `entries`, which is empty.
    pub(super) fn take(&mut self, entries: &mut Vec<u8>) {
        mem::swap(&mut self.entries, entries);
    }

    /// Adds an entry. A part is the namespace, the name, the resources and the slots. Returns whether there was room
    /// for it.
    pub(super) fn put<'a>(
        &mut self,
        head: HistoryHead,
        client: Option<&SessionClient>,
        label: &[u8],
        parts: impl Iterator<Item = (Namespace, &'a [u8], u32, &'a [u16])>,
    ) -> bool {
        let bytes = &mut self.entries;
        let before = bytes.len();
        let (code, amount) = match head.event {
            HistoryEvent::Granted { waited_ms } => (0, waited_ms),
            HistoryEvent::Ended { end, held_ms } => (1 + end as u8, held_ms),
        };
        let (mut ip, mut port, mut identity) = ([0; 16], 0, "");
        if let Some(client) = client {
            ip = match client.address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            port = client.address.port();
            identity = client.identity.as_deref().unwrap_or_default();
        }
        let mut fixed = Fixed::<HEAD_BYTES>::new();
        fixed.put([code, head.is_durable.into(), client.is_some().into()]);
        for number in [amount, head.time.0, head.grant.0, head.session.number()] {
            fixed.put(number.to_le_bytes());
        }
        fixed.put(ip);
        fixed.put(port.to_le_bytes());
        // A text or a list of an entry is far shorter than 4 GiB. The length of the parts is set below.
        for length in [identity.len(), label.len(), 0] {
            fixed.put((length as u32).to_le_bytes());
        }
        bytes.extend_from_slice(&fixed.bytes);
        let fixed_end = bytes.len();
        bytes.extend_from_slice(identity.as_bytes());
        bytes.extend_from_slice(label);
        let parts_at = bytes.len();
        for (namespace, name, resources, slots) in parts {
            let mut fixed = Fixed::<PART_BYTES>::new();
            fixed.put([namespace as u8]);
            for number in [resources, name.len() as u32, slots.len() as u32] {
                fixed.put(number.to_le_bytes());
            }
            bytes.extend_from_slice(&fixed.bytes);
            bytes.extend_from_slice(name);
            for slot in slots {
                bytes.extend_from_slice(&slot.to_le_bytes());
            }
        }
        let parts_bytes = (bytes.len() - parts_at) as u32;
        bytes[fixed_end - LENGTH_BYTES..fixed_end].copy_from_slice(&parts_bytes.to_le_bytes());
        let has_room = bytes.len() <= BYTES_MAX;
        if !has_room {
            bytes.truncate(before);
        } else if before == 0 {
            self.taker.wake_by_ref();
        }
        has_room
    }
}

/// The size of an encoded length.
const LENGTH_BYTES: usize = 4;
/// The size of the fields of an entry that precede its texts.
const HEAD_BYTES: usize = 3 + 4 * 8 + 16 + 2 + 3 * LENGTH_BYTES;
/// The size of the fields of a part that precede its name.
const PART_BYTES: usize = 1 + 4 + 2 * LENGTH_BYTES;

/// Fields whose size is known at compile time, so that all of them are appended or read at once.
struct Fixed<const N: usize> {
    bytes: [u8; N],
    /// The number of bytes that were put or taken.
    done: usize,
}

impl<const N: usize> Fixed<N> {
    fn new() -> Self {
        Self::of(&[0; N])
    }

    fn of(bytes: &[u8; N]) -> Self {
        Self { bytes: *bytes, done: 0 }
    }

    #[inline(always)]
    fn put<const M: usize>(&mut self, field: [u8; M]) {
        self.bytes[self.done..self.done + M].copy_from_slice(&field);
        self.done += M;
    }

    #[inline(always)]
    fn take<const M: usize>(&mut self) -> [u8; M] {
        let field = self.bytes[self.done..].first_chunk().expect("the fields taken are those that were put");
        self.done += M;
        *field
    }
}

/// Entries of the history.
#[derive(Clone, Debug)]
pub struct HistoryEntries<'a>(&'a [u8]);

impl<'a> HistoryEntries<'a> {
    /// The entries that [`Core::take_history`](crate::Core::take_history) took.
    pub fn of(taken: &'a [u8]) -> Self {
        Self(taken)
    }
}

impl<'a> Iterator for HistoryEntries<'a> {
    type Item = HistoryEntry<'a>;

    fn next(&mut self) -> Option<HistoryEntry<'a>> {
        let (fixed, rest) = self.0.split_first_chunk()?;
        let mut fixed = Fixed::<HEAD_BYTES>::of(fixed);
        let [code, is_durable, has_client] = fixed.take();
        let [amount, time, grant, session] = [(); 4].map(|()| u64::from_le_bytes(fixed.take()));
        let event = match usize::from(code).checked_sub(1) {
            None => HistoryEvent::Granted { waited_ms: amount },
            Some(end) => HistoryEvent::Ended { end: GrantEnd::ALL[end], held_ms: amount },
        };
        let head = HistoryHead {
            event,
            time: UnixMilliseconds(time),
            grant: GrantId(grant),
            session: SessionId::new(session),
            is_durable: is_durable != 0,
        };
        let (ip, port) = (Ipv6Addr::from(fixed.take::<16>()), u16::from_le_bytes(fixed.take()));
        let address = (has_client != 0).then(|| SocketAddr::new(IpAddr::V6(ip).to_canonical(), port));
        let [identity_bytes, label_bytes, parts_bytes] =
            [(); 3].map(|()| u32::from_le_bytes(fixed.take()) as usize);
        let (identity, rest) = rest.split_at(identity_bytes);
        let (label, rest) = rest.split_at(label_bytes);
        let (parts, rest) = rest.split_at(parts_bytes);
        self.0 = rest;
        Some(HistoryEntry { head, address, identity, label, parts: HistoryParts(parts) })
    }
}

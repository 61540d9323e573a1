//! Notices, and the addresses of the nodes of a cluster (`docs/protocol.md`, "Notices" and "Where").

use bytes::BufMut;

use crate::header::Opaque;
use crate::layout::{Fields, Part, length_of, parts_in_order};
use signalbox_model::{GrantId, Milliseconds, Notice};

/// When a grant or session that is being revoked ends: a time after the server received a request of the same
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The request.
    pub request: Opaque,
    /// The time from its receipt to the end.
    pub after: Milliseconds,
}

parts_in_order! { End { request, after } }

/// A notice as a client receives it.
pub type ReceivedNotice = Notice<End, Moved<Vec<String>>>;

pub(super) fn put_notice(notice: &Notice<End, Moved<&[String]>>, out: &mut Vec<u8>) {
    let (kind, number) = match notice {
        Notice::GrantRevoked { grant, .. } => (1, grant.0),
        Notice::SessionRevoked { session, .. } => (2, *session),
        Notice::AttachedElsewhere { session } => (3, *session),
        Notice::ShuttingDown => (4, 0),
        Notice::Moved(moved) => (5, moved.epoch.into()),
    };
    out.put_slice(&[kind, 0, 0, 0]);
    out.put_u64(number);
    match notice {
        Notice::GrantRevoked { end, .. } | Notice::SessionRevoked { end, .. } => end.compose(out),
        Notice::Moved(moved) => put_addresses(moved.addresses, out),
        Notice::AttachedElsewhere { .. } | Notice::ShuttingDown => {}
    }
}

/// Decodes a notice; `Some(None)` if the kind is unknown, `None` if the body is malformed.
pub(super) fn read_notice(fields: &mut Fields<'_>) -> Option<Option<ReceivedNotice>> {
    let [kind, _, _, _] = fields.array()?;
    let number = fields.u64()?;
    Some(Some(match kind {
        1 => Notice::GrantRevoked { grant: GrantId(number), end: Part::read(fields)? },
        2 => Notice::SessionRevoked { session: number, end: Part::read(fields)? },
        3 => Notice::AttachedElsewhere { session: number },
        4 => Notice::ShuttingDown,
        5 => {
            let (epoch, addresses) = (u32::try_from(number).ok()?, read_addresses(fields)?);
            Notice::Moved(Moved { epoch, addresses })
        }
        _ => return Some(None),
    }))
}

/// The most addresses of a list. Further ones are not sent.
const ADDRESSES_MAX: usize = 64;

/// The bit of the flags of a Where: another node relays the connection.
const FLAG_RELAYED: u8 = 1 << 0;

/// The nodes of a cluster (`docs/protocol.md`, "Where"). An address is `HOST:PORT`, of the port for the same namespace
/// as the connection's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whereabouts<A> {
    /// The number of the leader's term.
    pub epoch: u32,
    /// How long a leader serves after it last renewed its leadership.
    pub renew_deadline: Milliseconds,
    /// Whether another node relays this connection to the leader.
    pub is_relayed: bool,
    /// The addresses of the leader for clients; empty if they are not known.
    pub leader: A,
    /// The addresses of the other nodes for clients.
    pub others: A,
}

/// Another node is about to lead (`docs/protocol.md`, "Notices").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved<A> {
    /// The epoch that ends.
    pub epoch: u32,
    /// The addresses of that node for clients or, if it is not known yet, those of each node that may become the
    /// leader.
    pub addresses: A,
}

impl Whereabouts<&[String]> {
    pub(super) fn compose(&self, out: &mut Vec<u8>) {
        out.put_u32(self.epoch);
        out.put_u32(self.renew_deadline.0);
        out.put_slice(&[if self.is_relayed { FLAG_RELAYED } else { 0 }, 0, 0, 0]);
        put_addresses(self.leader, out);
        put_addresses(self.others, out);
    }
}

impl Whereabouts<Vec<String>> {
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (epoch, renew_deadline) = (fields.u32()?, Milliseconds(fields.u32()?));
        let [flags, _, _, _] = fields.array()?;
        let (leader, others) = (read_addresses(fields)?, read_addresses(fields)?);
        Some(Self { epoch, renew_deadline, is_relayed: flags & FLAG_RELAYED != 0, leader, others })
    }
}

fn put_addresses(addresses: &[String], out: &mut Vec<u8>) {
    let addresses = &addresses[..addresses.len().min(ADDRESSES_MAX)];
    out.put_u16(addresses.len() as u16);
    for address in addresses {
        out.put_u16(length_of(address.as_bytes()));
        out.put_slice(address.as_bytes());
    }
}

fn read_addresses(fields: &mut Fields<'_>) -> Option<Vec<String>> {
    let count = fields.length().filter(|count| *count <= ADDRESSES_MAX)?;
    let address = |_| String::from_utf8(fields.text()?.to_vec()).ok();
    (0..count).map(address).collect()
}

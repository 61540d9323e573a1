//! Where clients reach the nodes of a cluster: in the response to Where and the notice Moved.

use bytes::BufMut;

use super::length_of;
use crate::fields::Fields;
use signalbox_model::Milliseconds;

/// The most addresses of a list.
const ADDRESSES_MAX: usize = 64;

/// The connection is relayed by another node.
const FLAG_RELAYED: u8 = 1 << 0;

/// The nodes of a cluster (`docs/protocol.md`, "Where"). Addresses are `HOST:PORT`, of the port for the kind of names that the
/// connection's port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whereabouts<A> {
    /// The number of the leader's term.
    pub epoch: u32,
    /// How long a leader serves after it last renewed its leadership.
    pub renew_deadline: Milliseconds,
    /// Whether another node relays this connection to the leader.
    pub is_relayed: bool,
    /// Where clients reach the leader; empty: it is not known.
    pub leader: A,
    /// Where they reach the other nodes.
    pub others: A,
}

/// Another node is about to lead (`docs/protocol.md`, "Notices").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved<A> {
    /// The epoch that ends.
    pub epoch: u32,
    /// Where clients reach that node; if it is not known yet, every node that may be it.
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

pub(super) fn put_addresses(addresses: &[String], out: &mut Vec<u8>) {
    let addresses = &addresses[..addresses.len().min(ADDRESSES_MAX)];
    out.put_u16(addresses.len() as u16);
    for address in addresses {
        out.put_u16(length_of(address.as_bytes()));
        out.put_slice(address.as_bytes());
    }
}

pub(super) fn read_addresses(fields: &mut Fields<'_>) -> Option<Vec<String>> {
    let count = fields.length().filter(|count| *count <= ADDRESSES_MAX)?;
    let address = |_| String::from_utf8(fields.text()?.to_vec()).ok();
    (0..count).map(address).collect()
}

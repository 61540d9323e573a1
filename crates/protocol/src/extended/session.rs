//! Sessions in listings, and the addresses of clients.

use std::net::{IpAddr, Ipv6Addr};

use bytes::{BufMut, Bytes};

use super::{NO_NUMBER, TtlLeft, length_of};
use crate::fields::Fields;
use signalbox_model::codes;

codes! {
    /// What a session belongs to (`docs/protocol.md`, "Sessions").
    pub enum SessionKind: u8 {
        /// A leased session, which outlives connections.
        Leased = 0,
        /// The session of a connection.
        Connection = 1,
        /// A process of System V semaphores.
        Process = 2,
    }
}

/// A session in the response to Sessions (`docs/protocol.md`, "Sessions").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionEntry<T> {
    /// What it belongs to.
    pub kind: SessionKind,
    /// The number of the session, or of the process.
    pub session: u64,
    /// Whether a client is connected to it.
    pub attached: bool,
    /// For how long it has existed, in seconds; `None`: since before the server was started.
    pub age_s: Option<u32>,
    /// The grants that it holds; of a process, the sets that it has adjustments of.
    pub grants: u32,
    /// The requests that wait.
    pub waiting: u32,
    /// How long it lives without a renewal.
    pub ttl_left: TtlLeft,
    /// The label; arbitrary bytes, possibly none.
    pub label: T,
    /// The address of the client that is connected or was last, as text; empty if it is not known.
    pub address: T,
    /// The identity that this client has proven, such as `token:web`; empty if it has proven none.
    pub identity: T,
}

const FLAG_ATTACHED: u8 = 1 << 0;

impl SessionEntry<&[u8]> {
    pub(super) fn compose(&self, out: &mut Vec<u8>) {
        let flags = if self.attached { FLAG_ATTACHED } else { 0 };
        out.put_slice(&[self.kind as u8, flags, 0, 0]);
        out.put_u64(self.session);
        out.put_u32(self.age_s.unwrap_or(NO_NUMBER));
        out.put_u32(self.grants);
        out.put_u32(self.waiting);
        out.put_u32(self.ttl_left.to_wire());
        out.put_u16(length_of(self.label));
        out.put_u16(length_of(self.address));
        out.put_slice(self.label);
        out.put_slice(self.address);
        out.put_u16(length_of(self.identity));
        out.put_slice(self.identity);
    }
}

impl SessionEntry<Bytes> {
    pub(super) fn read(body: &Bytes) -> Option<Self> {
        let mut fields = Fields::new(body);
        let [kind, flags, _, _] = fields.array()?;
        let (kind, session) = (SessionKind::from_code(kind)?, fields.u64()?);
        let age_s = Some(fields.u32()?).filter(|age| *age != NO_NUMBER);
        let (grants, waiting) = (fields.u32()?, fields.u32()?);
        let ttl_left = TtlLeft::from_wire(fields.u32()?);
        let (label_bytes, address_bytes) = (fields.length()?, fields.length()?);
        let label = body.slice_ref(fields.bytes(label_bytes)?);
        let address = body.slice_ref(fields.bytes(address_bytes)?);
        let identity = body.slice_ref(fields.text()?);
        let attached = flags & FLAG_ATTACHED != 0;
        Some(Self { kind, session, attached, age_s, grants, waiting, ttl_left, label, address, identity })
    }
}

/// A range of IP addresses (`docs/protocol.md`, "RevokeClient"). Addresses of IPv4 are those to which they are mapped in
/// IPv6, as `::ffff:192.0.2.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressRange {
    /// The first address.
    pub first: Ipv6Addr,
    /// The last address; not below the first one.
    pub last: Ipv6Addr,
}

impl From<IpAddr> for AddressRange {
    /// One address.
    fn from(address: IpAddr) -> Self {
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Self { first: address, last: address }
    }
}

impl AddressRange {
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let range = Self { first: fields.array::<16>()?.into(), last: fields.array::<16>()?.into() };
        (range.first <= range.last).then_some(range)
    }

    pub(super) fn compose(self, out: &mut Vec<u8>) {
        out.put_slice(&self.first.octets());
        out.put_slice(&self.last.octets());
    }
}

//! The claims of AcquireGrant and AcquireAll: names with numbers of resources.

use std::ops::Deref;

use bytes::BufMut;
use thiserror::Error;

use super::ACQUIRE_ALL_NAMES_MAX;
use crate::header::{NAME_BYTES_MAX, REQUEST_BODY_BYTES_MAX};
use crate::layout::{Fields, length_of};
use signalbox_model::{AS_DECLARED, Claim, Namespace};

/// Checks the rules of a claim's fields.
pub(super) fn check(claim: &Claim<'_>) -> Result<(), ClaimsError> {
    let Claim { namespace, name, resources, maximum, slot } = *claim;
    let is_counter = namespace == Some(Namespace::Counters);
    let as_declared = !is_counter && maximum == AS_DECLARED;
    if resources == 0 || (maximum < resources && !as_declared) {
        return Err(ClaimsError::Amounts { resources, maximum });
    }
    if slot.is_some() && (is_counter || resources != 1) {
        return Err(ClaimsError::Slot { resources });
    }
    match name.len() {
        1..=NAME_BYTES_MAX => Ok(()),
        bytes => Err(ClaimsError::NameLength { bytes }),
    }
}

/// A rule of the protocol that claims break (`docs/protocol.md`, "AcquireAll").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ClaimsError {
    /// There are no claims, or too many.
    #[error("{names} names are requested; request 1 to {ACQUIRE_ALL_NAMES_MAX}")]
    Count {
        /// The number of claims.
        names: usize,
    },
    /// A claim is for 0 resources, or for more than the maximum.
    #[error(
        "{resources} resources are requested of a maximum of {maximum}; request at least 1 and at most the maximum"
    )]
    Amounts {
        /// The number of resources that is requested.
        resources: u32,
        /// The maximum or capacity of the claim.
        maximum: u32,
    },
    /// A slot is claimed together with other resources, or of a counter.
    #[error("{resources} resources are requested with one slot; request one resource of a semaphore with it")]
    Slot {
        /// The number of resources that is requested.
        resources: u32,
    },
    /// A shared request does not claim just one resource of one name, with a maximum of 1 and without a slot.
    #[error(
        "a shared request is for one resource of one name with a maximum of 1, and for no particular slot"
    )]
    Shared,
    /// A name is empty or too long.
    #[error("a name has {bytes} bytes; use names of 1 to {NAME_BYTES_MAX} bytes")]
    NameLength {
        /// The length of the name in bytes.
        bytes: usize,
    },
    /// A name occurs twice.
    #[error("a name is requested twice; request it once, with the sum of the resources")]
    Repeated,
    /// The request is longer than servers accept.
    #[error(
        "the request has {bytes} bytes of a maximum of {REQUEST_BODY_BYTES_MAX}; request fewer or shorter names"
    )]
    BodyTooLong {
        /// The length of the body in bytes.
        bytes: usize,
    },
}

/// The bytes of an AcquireAll's body before its rows.
const FIXED_BYTES: usize = 28;

/// The bytes of a place.
const PLACE_BYTES: usize = 24;

/// The bytes of a row: resources, maximum, namespace, flags, the name's length.
const ROW_BYTES: usize = 12;

/// The bit of a claim's flags: the claim has a slot, which follows the names.
pub(super) const FLAG_SLOT: u8 = 1;

/// The bit of a request's flags: the request has a place, which is its last field.
pub(super) const FLAG_PLACE: u8 = 2;

/// The bit of a request's flags: the request is part of a single flight.
pub(super) const FLAG_SHARED: u8 = 4;

/// The valid claims of one AcquireAll: 1 to [`ACQUIRE_ALL_NAMES_MAX`], with different names (`docs/protocol.md`,
/// "AcquireAll"), in the order of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims<'a>(Vec<Claim<'a>>);

impl<'a> Claims<'a> {
    /// Checks a list of claims, to send it.
    ///
    /// # Errors
    /// The first rule that the list breaks.
    pub fn new(list: &[Claim<'a>]) -> Result<Self, ClaimsError> {
        let names = list.len();
        if !(1..=ACQUIRE_ALL_NAMES_MAX).contains(&names) {
            return Err(ClaimsError::Count { names });
        }
        list.iter().try_for_each(check)?;
        let claims = Self(list.to_vec());
        let bytes = claims.body_bytes();
        if bytes > REQUEST_BODY_BYTES_MAX {
            return Err(ClaimsError::BodyTooLong { bytes });
        }
        // Sorted, because comparing each with each would be slow for long names with common prefixes.
        let mut sorted: Vec<_> = list.iter().map(|claim| (claim.name, claim.namespace)).collect();
        sorted.sort_unstable();
        // A name that the server resolves may be in either namespace. It is sorted before the same name in one of them.
        let is_same = |(name, namespace): (&[u8], Option<Namespace>), (other, other_namespace)| {
            name == other && (namespace == other_namespace || namespace.is_none())
        };
        let repeated = sorted.windows(2).any(|pair| is_same(pair[0], pair[1]));
        if repeated { Err(ClaimsError::Repeated) } else { Ok(claims) }
    }

    /// The length of an AcquireAll's body without a place, in bytes.
    fn body_bytes(&self) -> usize {
        let row_bytes =
            |claim: &Claim<'_>| ROW_BYTES + claim.name.len() + 2 * usize::from(claim.slot.is_some());
        FIXED_BYTES + self.iter().map(row_bytes).sum::<usize>()
    }

    /// Returns whether a request with these claims has room for a place. Without a place, it waits as a new request.
    pub fn has_room_for_place(&self) -> bool {
        self.body_bytes() + PLACE_BYTES <= REQUEST_BODY_BYTES_MAX
    }

    /// Decodes the claims of a body: the count, a reserved byte and the flags of the request, the rows, the names and the
    /// slots. Returns the claims and the flags; `None` if a rule is broken.
    pub(super) fn read(fields: &mut Fields<'a>) -> Option<(Self, u8)> {
        let count = fields.length().filter(|count| *count <= ACQUIRE_ALL_NAMES_MAX)?;
        let [_, flags] = fields.array()?;
        let mut rows = Fields::new(fields.bytes(count * ROW_BYTES)?);
        let mut claims = Vec::with_capacity(count);
        for _ in 0..count {
            let (resources, maximum) = (rows.u32()?, rows.u32()?);
            let namespace = read_namespace(rows.u8()?)?;
            let slot = (rows.u8()? & FLAG_SLOT != 0).then_some(0);
            let name = fields.bytes(rows.length()?)?;
            claims.push(Claim { namespace, name, resources, maximum, slot });
        }
        for slot in claims.iter_mut().filter_map(|claim| claim.slot.as_mut()) {
            *slot = fields.u16()?;
        }
        Some((Self::new(&claims).ok()?, flags))
    }

    pub(super) fn compose(&self, flags: u8, out: &mut Vec<u8>) {
        out.put_u16(length_of(self));
        out.put_slice(&[0, flags]);
        for claim in self.iter() {
            out.put_u32(claim.resources);
            out.put_u32(claim.maximum);
            out.put_u8(namespace_code(claim.namespace));
            out.put_u8(flags_of(claim));
            out.put_u16(length_of(claim.name));
        }
        self.iter().for_each(|claim| out.put_slice(claim.name));
        self.iter().filter_map(|claim| claim.slot).for_each(|slot| out.put_u16(slot));
    }
}

impl<'a> Deref for Claims<'a> {
    type Target = [Claim<'a>];

    fn deref(&self) -> &[Claim<'a>] {
        &self.0
    }
}

/// The code in place of a namespace for a name that the server resolves.
const RESOLVE: u8 = 2;

/// The code of a namespace, or of a name that the server resolves.
pub(super) fn namespace_code(namespace: Option<Namespace>) -> u8 {
    namespace.map_or(RESOLVE, Namespace::code)
}

/// The namespace with this code. The inner `None` is for a name that the server resolves, the outer for unknown codes.
pub(super) fn read_namespace(code: u8) -> Option<Option<Namespace>> {
    if code == RESOLVE { Some(None) } else { Namespace::from_code(code).map(Some) }
}

/// The flags of a claim on the wire.
pub(super) fn flags_of(claim: &Claim<'_>) -> u8 {
    if claim.slot.is_some() { FLAG_SLOT } else { 0 }
}

//! The claims of AcquireGrant and AcquireAll: names with numbers of resources.

use std::fmt;
use std::iter;

use bytes::BufMut;
use thiserror::Error;

use super::{ACQUIRE_ALL_NAMES_MAX, length_of};
use crate::fields::Fields;
use crate::header::{NAME_BYTES_MAX, REQUEST_BODY_BYTES_MAX};
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

/// Why claims cannot be requested: they break a rule of the protocol (`docs/protocol.md`, "AcquireAll").
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
    /// The claims of a shared request are others than one resource of a maximum of 1.
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

/// The bit of a claim's flags for a slot, which follows the names.
pub(super) const FLAG_SLOT: u8 = 1;

/// The bit of a request's flags for a place, which comes last.
pub(super) const FLAG_PLACE: u8 = 2;

/// The bit of a request's flags for one of a single flight.
pub(super) const FLAG_SHARED: u8 = 4;

/// The valid claims of one AcquireAll: 1 to [`ACQUIRE_ALL_NAMES_MAX`], with different names (`docs/protocol.md`,
/// "AcquireAll"). They borrow from the body of a received request, or from a list; nothing is copied.
#[derive(Clone, Copy)]
pub struct Claims<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    Listed(&'a [Claim<'a>]),
    Received { rows: &'a [[u8; ROW_BYTES]], texts: Texts<'a> },
}

/// What follows the rows: the names, and the slots of those rows that have one.
#[derive(Clone, Copy)]
struct Texts<'a> {
    names: Fields<'a>,
    slots: Fields<'a>,
}

impl<'a> Claims<'a> {
    /// Checks a list of claims, to send it.
    ///
    /// # Errors
    /// The first rule that the list breaks.
    pub fn new(list: &'a [Claim<'a>]) -> Result<Self, ClaimsError> {
        let names = Self(Source::Listed(list));
        names.check_count()?;
        list.iter().try_for_each(check)?;
        let bytes = names.body_bytes();
        if bytes > REQUEST_BODY_BYTES_MAX {
            return Err(ClaimsError::BodyTooLong { bytes });
        }
        names.check_repetition()?;
        Ok(names)
    }

    /// The bytes of an AcquireAll's body without a place.
    fn body_bytes(&self) -> usize {
        let row_bytes =
            |claim: Claim<'_>| ROW_BYTES + claim.name.len() + 2 * usize::from(claim.slot.is_some());
        FIXED_BYTES + self.iter().map(row_bytes).sum::<usize>()
    }

    /// Whether a request with these claims has room for a place too. Without one, it waits as a new one.
    pub fn has_room_for_place(&self) -> bool {
        self.body_bytes() + PLACE_BYTES <= REQUEST_BODY_BYTES_MAX
    }

    /// Decodes the claims of a body: the count, a reserved byte and the flags of the request, the rows, the names and the
    /// slots. All rules are checked here, so that iterating cannot fail; `None` if one is broken. Returns also the flags.
    pub(super) fn read(fields: &mut Fields<'a>) -> Option<(Self, u8)> {
        let count = fields.length()?;
        let [_, flags] = fields.array()?;
        let (rows, _) = fields.bytes(count * ROW_BYTES)?.as_chunks::<ROW_BYTES>();
        let names = *fields;
        for [.., high, low] in rows {
            fields.bytes(u16::from_be_bytes([*high, *low]).into())?;
        }
        let mut texts = Texts { names, slots: *fields };
        let claims = Self(Source::Received { rows, texts });
        claims.check_count().ok()?;
        for row in rows {
            check(&read_row(row, &mut texts)?).ok()?;
        }
        claims.check_repetition().ok()?;
        *fields = texts.slots;
        Some((claims, flags))
    }

    pub(super) fn compose(&self, flags: u8, out: &mut Vec<u8>) {
        out.put_u16(u16::try_from(self.len()).expect("the count was checked"));
        out.put_slice(&[0, flags]);
        for claim in self.iter() {
            out.put_u32(claim.resources);
            out.put_u32(claim.maximum);
            out.put_u8(namespace_code(claim.namespace));
            out.put_u8(flags_of(&claim));
            out.put_u16(length_of(claim.name));
        }
        for claim in self.iter() {
            out.put_slice(claim.name);
        }
        self.iter().filter_map(|claim| claim.slot).for_each(|slot| out.put_u16(slot));
    }

    /// The number of claims.
    #[expect(clippy::len_without_is_empty, reason = "there is always a claim")]
    pub fn len(&self) -> usize {
        match self.0 {
            Source::Listed(list) => list.len(),
            Source::Received { rows, .. } => rows.len(),
        }
    }

    /// The claims, in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = Claim<'a>> + Clone + use<'a> {
        let mut rest = self.0;
        iter::from_fn(move || match &mut rest {
            Source::Listed(list) => list.split_off_first().copied(),
            Source::Received { rows, texts } => read_row(rows.split_off_first()?, texts),
        })
    }

    fn check_count(&self) -> Result<(), ClaimsError> {
        match self.len() {
            1..=ACQUIRE_ALL_NAMES_MAX => Ok(()),
            names => Err(ClaimsError::Count { names }),
        }
    }

    /// Sorts the names on the stack: comparing each with each would be slow for long names with common prefixes.
    fn check_repetition(&self) -> Result<(), ClaimsError> {
        let mut sorted: [(&[u8], Option<Namespace>); ACQUIRE_ALL_NAMES_MAX] =
            [(&[], None); ACQUIRE_ALL_NAMES_MAX];
        for (entry, claim) in sorted.iter_mut().zip(self.iter()) {
            *entry = (claim.name, claim.namespace);
        }
        let sorted = &mut sorted[..self.len()];
        sorted.sort_unstable();
        // A name that is resolved may turn out to be of either kind.
        let is_same = |(name, kind): (&[u8], Option<Namespace>), (other, other_kind)| {
            name == other && (kind == other_kind || kind.is_none())
        };
        let repeated = sorted.windows(2).any(|pair| is_same(pair[0], pair[1]));
        if repeated { Err(ClaimsError::Repeated) } else { Ok(()) }
    }
}

/// The code in place of a namespace: the server resolves the name.
const RESOLVE: u8 = 2;

/// The code of a namespace, or of a name that the server resolves.
pub(super) fn namespace_code(namespace: Option<Namespace>) -> u8 {
    namespace.map_or(RESOLVE, Namespace::code)
}

/// A namespace, or `None` for a name that the server resolves, by its code; an outer `None` for other codes.
pub(super) fn read_namespace(code: u8) -> Option<Option<Namespace>> {
    if code == RESOLVE { Some(None) } else { Namespace::from_code(code).map(Some) }
}

/// The flags of a claim on the wire.
pub(super) fn flags_of(claim: &Claim<'_>) -> u8 {
    if claim.slot.is_some() { FLAG_SLOT } else { 0 }
}

/// Decodes a row, and its name and slot from the front of those.
fn read_row<'a>(row: &[u8; ROW_BYTES], texts: &mut Texts<'a>) -> Option<Claim<'a>> {
    let mut row = Fields::new(row);
    let (resources, maximum) = (row.u32()?, row.u32()?);
    let namespace = read_namespace(row.u8()?)?;
    let has_slot = row.u8()? & FLAG_SLOT != 0;
    let name = texts.names.bytes(row.length()?)?;
    let slot = if has_slot { Some(texts.slots.u16()?) } else { None };
    Some(Claim { namespace, name, resources, maximum, slot })
}

impl PartialEq for Claims<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Claims<'_> {}

impl fmt::Debug for Claims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

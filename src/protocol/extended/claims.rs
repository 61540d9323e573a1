//! What AcquireGrant and AcquireAll ask for.

use std::fmt;
use std::slice;

use bytes::{BufMut, BytesMut};
use thiserror::Error;

use super::{ACQUIRE_ALL_NAMES_MAX, Namespace, length_of};
use crate::protocol::codec::REQUEST_BODY_BYTES_MAX;
use crate::protocol::fields::Fields;
use crate::protocol::request::NAME_BYTES_MAX;

/// In place of a maximum, of semaphores only: they are taken from as they are. One that does not exist is not made.
pub const AS_DECLARED: u32 = 0;

/// Resources of one name that are to be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    /// The kind of the name.
    pub namespace: Namespace,
    /// What to take from, 1 to 65535 bytes; made when it does not exist, but for [`AS_DECLARED`].
    pub name: &'a [u8],
    /// How many to take; at least 1, at most `maximum` unless that is [`AS_DECLARED`].
    pub resources: u32,
    /// A counter's maximum for this request, or the capacity of a semaphore that this request makes, or
    /// [`AS_DECLARED`].
    pub maximum: u32,
}

impl Claim<'_> {
    /// Checks the rules of the fields.
    pub(super) fn check(&self) -> Result<(), ClaimsError> {
        let as_declared = self.namespace == Namespace::Semaphores && self.maximum == AS_DECLARED;
        if self.resources == 0 || (self.maximum < self.resources && !as_declared) {
            return Err(ClaimsError::Amounts { resources: self.resources, maximum: self.maximum });
        }
        match self.name.len() {
            1..=NAME_BYTES_MAX => Ok(()),
            bytes => Err(ClaimsError::NameLength { bytes }),
        }
    }
}

/// A list of names cannot be asked for with AcquireAll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClaimsError {
    /// No names, or too many.
    #[error("{names} names are asked for; ask for at least 1 and at most {ACQUIRE_ALL_NAMES_MAX}")]
    Count {
        /// Number of names.
        names: usize,
    },
    /// Too few or too many resources of a name.
    #[error(
        "{resources} resources of at most {maximum} are asked for; ask for at least 1 and at most the maximum"
    )]
    Amounts {
        /// Resources that are asked for.
        resources: u32,
        /// The most that may be.
        maximum: u32,
    },
    /// A name is empty, or does not fit the wire.
    #[error("a name has {bytes} bytes; give names of 1 to {NAME_BYTES_MAX}")]
    NameLength {
        /// Length of the name in bytes.
        bytes: usize,
    },
    /// A name is in the list twice.
    #[error("a name is asked for twice; ask for it once, with the sum")]
    Repeated,
    /// The request would be longer than a server takes.
    #[error("the request has a body of {bytes} bytes; the longest allowed is {REQUEST_BODY_BYTES_MAX}")]
    BodyTooLong {
        /// Length of the body in bytes.
        bytes: usize,
    },
}

/// Bytes of an AcquireAll's body before its rows.
const FIXED_BYTES: usize = 28;

/// Bytes of a row: resources, maximum, namespace, a reserved byte, the name's length.
const ROW_BYTES: usize = 12;

/// The names of one AcquireAll, which keep its rules: 1 to [`ACQUIRE_ALL_NAMES_MAX`] of them, none twice. A server's
/// borrow from the request's body, a client's from its own list; neither is copied.
#[derive(Clone, Copy)]
pub struct Claims<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    Listed(&'a [Claim<'a>]),
    Received { rows: &'a [[u8; ROW_BYTES]], names: Fields<'a> },
}

impl<'a> Claims<'a> {
    /// The names of a list, to send. An error says which rule the list breaks.
    pub fn new(list: &'a [Claim<'a>]) -> Result<Self, ClaimsError> {
        let names = Self(Source::Listed(list));
        names.check_count()?;
        list.iter().try_for_each(Claim::check)?;
        let name_bytes: usize = list.iter().map(|claim| claim.name.len()).sum();
        let bytes = FIXED_BYTES + list.len() * ROW_BYTES + name_bytes;
        if bytes > REQUEST_BODY_BYTES_MAX {
            return Err(ClaimsError::BodyTooLong { bytes });
        }
        names.check_repetition()?;
        Ok(names)
    }

    /// The names behind the fixed fields of a body, whose last two are the count and two reserved bytes. Everything
    /// is checked here, so that nothing can be wrong later.
    pub(super) fn read(fields: &mut Fields<'a>) -> Option<Self> {
        let count = fields.length()?;
        fields.u16()?;
        let (rows, _) = fields.bytes(count * ROW_BYTES)?.as_chunks();
        let names = Self(Source::Received { rows, names: *fields });
        names.check_count().ok()?;
        let mut texts = *fields;
        for row in rows {
            read_row(row, &mut texts)?.check().ok()?;
        }
        names.check_repetition().ok()?;
        Some(names)
    }

    pub(super) fn compose(&self, out: &mut BytesMut) {
        out.put_u16(u16::try_from(self.len()).expect("the count was checked"));
        out.put_u16(0);
        for claim in self.iter() {
            out.put_u32(claim.resources);
            out.put_u32(claim.maximum);
            out.put_u8(claim.namespace.code());
            out.put_u8(0);
            out.put_u16(length_of(claim.name));
        }
        for claim in self.iter() {
            out.put_slice(claim.name);
        }
    }

    /// How many names there are.
    #[expect(clippy::len_without_is_empty, reason = "there is always a name")]
    pub fn len(&self) -> usize {
        match self.0 {
            Source::Listed(list) => list.len(),
            Source::Received { rows, .. } => rows.len(),
        }
    }

    /// The names in the order of the request.
    pub fn iter(&self) -> ClaimsIter<'a> {
        ClaimsIter(match self.0 {
            Source::Listed(list) => Position::Listed(list.iter()),
            Source::Received { rows, names } => Position::Received { rows: rows.iter(), names },
        })
    }

    fn check_count(&self) -> Result<(), ClaimsError> {
        match self.len() {
            1..=ACQUIRE_ALL_NAMES_MAX => Ok(()),
            names => Err(ClaimsError::Count { names }),
        }
    }

    /// Sorts the names on the stack: a comparison of all with all would take too long where they are long and alike.
    fn check_repetition(&self) -> Result<(), ClaimsError> {
        let mut sorted: [(Namespace, &[u8]); ACQUIRE_ALL_NAMES_MAX] =
            [(Namespace::Counters, &[]); ACQUIRE_ALL_NAMES_MAX];
        for (place, claim) in sorted.iter_mut().zip(self.iter()) {
            *place = (claim.namespace, claim.name);
        }
        let sorted = &mut sorted[..self.len()];
        sorted.sort_unstable();
        let repeated = sorted.windows(2).any(|pair| pair[0] == pair[1]);
        if repeated { Err(ClaimsError::Repeated) } else { Ok(()) }
    }
}

/// A row with its name, which is the next of `names`.
fn read_row<'a>(row: &[u8; ROW_BYTES], names: &mut Fields<'a>) -> Option<Claim<'a>> {
    let mut row = Fields::new(row);
    let (resources, maximum) = (row.u32()?, row.u32()?);
    let namespace = Namespace::from_code(row.u8()?)?;
    row.u8()?;
    let name = names.bytes(row.length()?)?;
    Some(Claim { namespace, name, resources, maximum })
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

impl<'a> IntoIterator for Claims<'a> {
    type Item = Claim<'a>;
    type IntoIter = ClaimsIter<'a>;

    fn into_iter(self) -> ClaimsIter<'a> {
        self.iter()
    }
}

/// Goes through the names of an AcquireAll.
#[derive(Clone)]
pub struct ClaimsIter<'a>(Position<'a>);

#[derive(Clone)]
enum Position<'a> {
    Listed(slice::Iter<'a, Claim<'a>>),
    Received { rows: slice::Iter<'a, [u8; ROW_BYTES]>, names: Fields<'a> },
}

impl<'a> Iterator for ClaimsIter<'a> {
    type Item = Claim<'a>;

    fn next(&mut self) -> Option<Claim<'a>> {
        match &mut self.0 {
            Position::Listed(list) => list.next().copied(),
            Position::Received { rows, names } => read_row(rows.next()?, names),
        }
    }
}

//! The fields of requests for declared semaphores.

use std::fmt;
use std::iter;

use bytes::BufMut;
use thiserror::Error;

use super::{
    DECLARATIONS_MAX, LABEL_BYTES_MAX, Milliseconds, NUMBERED_CAPACITY_MAX, checked_label, length_of,
};
use crate::fields::Fields;
use crate::header::NAME_BYTES_MAX;
use crate::header::REQUEST_BODY_BYTES_MAX;
use signalbox_model::codes;

codes! {
    /// What Declare does with a semaphore that is declared already (`docs/protocol.md`, "Declare").
    pub enum IfExists: u8 {
        /// The request fails with `AlreadyExists`.
        Fail = 0,
        /// The semaphore keeps its declaration.
        Keep = 1,
        /// The semaphore gets the new declaration.
        Set = 2,
    }
}

impl IfExists {
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let [code, _, _, _] = fields.array()?;
        Self::from_code(code)
    }

    pub(super) fn compose(self, out: &mut Vec<u8>) {
        out.put_slice(&[self.code(), 0, 0, 0]);
    }
}

/// How Resize changes a capacity (`docs/protocol.md`, "Resize").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resizing {
    /// To this value.
    To(u32),
    /// By adding this many resources.
    GrowBy(u32),
    /// By removing this many resources.
    ShrinkBy(u32),
}

impl Resizing {
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let [how, _, _, _] = fields.array()?;
        let amount = fields.u32()?;
        match how {
            0 => Some(Self::To(amount)),
            1 => Some(Self::GrowBy(amount)),
            2 => Some(Self::ShrinkBy(amount)),
            _ => None,
        }
    }

    pub(super) fn compose(self, out: &mut Vec<u8>) {
        let (how, amount) = match self {
            Self::To(amount) => (0, amount),
            Self::GrowBy(amount) => (1, amount),
            Self::ShrinkBy(amount) => (2, amount),
        };
        out.put_slice(&[how, 0, 0, 0]);
        out.put_u32(amount);
    }
}

codes! {
    /// What Pause does (`docs/protocol.md`, "Pause").
    pub enum Pausing: u8 {
        /// The semaphore grants nothing. Holders keep their grants, and requests keep their places in the queue.
        Pause = 0,
        /// The semaphore grants again, and its queue is served.
        Resume = 1,
    }
}

impl Pausing {
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let [code, _, _, _] = fields.array()?;
        Self::from_code(code)
    }

    pub(super) fn compose(self, out: &mut Vec<u8>) {
        out.put_slice(&[self.code(), 0, 0, 0]);
    }
}

/// What SetSlot does with a slot (`docs/protocol.md`, "SetSlot").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotChange {
    /// It is not granted. Its holder keeps it.
    Out(u16),
    /// It is granted again.
    In(u16),
}

impl SlotChange {
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let [how, _] = fields.array()?;
        let slot = fields.u16()?;
        match how {
            0 => Some(Self::Out(slot)),
            1 => Some(Self::In(slot)),
            _ => None,
        }
    }

    pub(super) fn compose(self, out: &mut Vec<u8>) {
        let (how, slot) = match self {
            Self::Out(slot) => (0, slot),
            Self::In(slot) => (1, slot),
        };
        out.put_slice(&[how, 0]);
        out.put_u16(slot);
    }
}

/// What Remove does if the semaphore is held (`docs/protocol.md`, "Remove").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The request fails with `InUse`.
    IfIdle,
    /// The semaphore grants nothing more, and is removed when the last holder releases it.
    WithLastHolder,
    /// The holders are notified and keep their grants for a grace period. Then the semaphore is removed.
    Now {
        /// The grace period.
        grace: Milliseconds,
    },
}

impl Removal {
    /// Only [`Self::Now`] has a grace period; otherwise the field is reserved.
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let [how, _, _, _] = fields.array()?;
        let grace = Milliseconds(fields.u32()?);
        match how {
            0 => Some(Self::IfIdle),
            1 => Some(Self::WithLastHolder),
            2 => Some(Self::Now { grace }),
            _ => None,
        }
    }

    pub(super) fn compose(self, out: &mut Vec<u8>) {
        let (how, grace) = match self {
            Self::IfIdle => (0, 0),
            Self::WithLastHolder => (1, 0),
            Self::Now { grace } => (2, grace.0),
        };
        out.put_slice(&[how, 0, 0, 0]);
        out.put_u32(grace);
    }
}

/// What AwaitIdle waits for (`docs/protocol.md`, "AwaitIdle").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// At most this many resources of the name are in use.
    Level(u32),
    /// The slot with this number is free.
    Slot(u16),
}

impl Idle {
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let [what, _, _, _] = fields.array()?;
        let number = fields.u32()?;
        match what {
            0 => Some(Self::Level(number)),
            1 => u16::try_from(number).ok().map(Self::Slot),
            _ => None,
        }
    }

    pub(super) fn compose(self, out: &mut Vec<u8>) {
        let (what, number) = match self {
            Self::Level(level) => (0, level),
            Self::Slot(slot) => (1, slot.into()),
        };
        out.put_slice(&[what, 0, 0, 0]);
        out.put_u32(number);
    }
}

/// The declaration of a semaphore (`docs/protocol.md`, "Declare").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declaration<'a> {
    /// The name, 1 to 65535 bytes.
    pub name: &'a [u8],
    /// The capacity; at most [`NUMBERED_CAPACITY_MAX`] if the slots are numbered.
    pub capacity: u32,
    /// Whether the resources are numbered slots. Grants then contain the numbers of their slots.
    pub numbered: bool,
    /// A description for administrators; up to [`LABEL_BYTES_MAX`] arbitrary bytes, possibly none.
    pub label: &'a [u8],
}

impl Declaration<'_> {
    /// Checks the rules of the fields.
    fn check(&self) -> Result<(), DeclarationError> {
        if self.numbered && self.capacity > NUMBERED_CAPACITY_MAX {
            return Err(DeclarationError::NumberedCapacity { capacity: self.capacity });
        }
        if checked_label(self.label).is_none() {
            return Err(DeclarationError::LabelLength { bytes: self.label.len() });
        }
        match self.name.len() {
            1..=NAME_BYTES_MAX => Ok(()),
            bytes => Err(DeclarationError::NameLength { bytes }),
        }
    }
}

/// Why semaphores cannot be declared: the declarations break a rule of the protocol (`docs/protocol.md`, "Declare").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeclarationError {
    /// There are no declarations, or too many.
    #[error("{semaphores} semaphores are declared in one request; declare 1 to {DECLARATIONS_MAX}")]
    Count {
        /// The number of declarations.
        semaphores: usize,
    },
    /// The capacity is too large for numbered slots.
    #[error(
        "the capacity is {capacity}, and numbered slots are limited to {NUMBERED_CAPACITY_MAX}; declare a smaller \
        capacity, or resources without numbers"
    )]
    NumberedCapacity {
        /// The capacity that is too large.
        capacity: u32,
    },
    /// A name is empty or too long.
    #[error("a name has {bytes} bytes; use names of 1 to {NAME_BYTES_MAX} bytes")]
    NameLength {
        /// The length of the name in bytes.
        bytes: usize,
    },
    /// A label is too long.
    #[error("a label has {bytes} bytes; use labels of at most {LABEL_BYTES_MAX} bytes")]
    LabelLength {
        /// The length of the label in bytes.
        bytes: usize,
    },
    /// A name occurs twice.
    #[error("a name is declared twice; declare it once")]
    Repeated,
    /// The request is longer than servers accept.
    #[error(
        "the request has {bytes} bytes of a maximum of {REQUEST_BODY_BYTES_MAX}; declare fewer semaphores at once"
    )]
    BodyTooLong {
        /// The length of the body in bytes.
        bytes: usize,
    },
}

/// The bytes of a Declare's body before its rows.
const FIXED_BYTES: usize = 24;

/// The bytes of a row: capacity, flags, the label's length, the name's length.
const ROW_BYTES: usize = 8;

/// The bit of a row's flags for numbered slots.
const FLAG_NUMBERED: u8 = 1;

/// The valid declarations of one Declare: 1 to [`DECLARATIONS_MAX`], with different names (`docs/protocol.md`,
/// "Declare"). They borrow from the body of a received request, or from a list; nothing is copied.
#[derive(Clone, Copy)]
pub struct Declarations<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    Listed(&'a [Declaration<'a>]),
    Received { rows: &'a [[u8; ROW_BYTES]], texts: Fields<'a> },
}

impl<'a> Declarations<'a> {
    /// Checks a list of declarations, to send it.
    ///
    /// # Errors
    /// The first rule that the list breaks.
    pub fn new(list: &'a [Declaration<'a>]) -> Result<Self, DeclarationError> {
        let declarations = Self(Source::Listed(list));
        declarations.check_count()?;
        list.iter().try_for_each(Declaration::check)?;
        let text_bytes: usize =
            list.iter().map(|declaration| declaration.name.len() + declaration.label.len()).sum();
        let bytes = FIXED_BYTES + list.len() * ROW_BYTES + text_bytes;
        if bytes > REQUEST_BODY_BYTES_MAX {
            return Err(DeclarationError::BodyTooLong { bytes });
        }
        declarations.check_repetition()?;
        Ok(declarations)
    }

    /// Decodes the declarations of a body: the count, two reserved bytes, the rows, the names and labels. All rules are
    /// checked here, so that iterating cannot fail; `None` if one is broken.
    pub(super) fn read(fields: &mut Fields<'a>) -> Option<Self> {
        let count = fields.length()?;
        fields.u16()?;
        let (rows, _) = fields.bytes(count * ROW_BYTES)?.as_chunks();
        let declarations = Self(Source::Received { rows, texts: *fields });
        declarations.check_count().ok()?;
        let mut texts = *fields;
        for row in rows {
            read_row(row, &mut texts)?.check().ok()?;
        }
        declarations.check_repetition().ok()?;
        Some(declarations)
    }

    pub(super) fn compose(&self, out: &mut Vec<u8>) {
        out.put_u16(u16::try_from(self.len()).expect("the count was checked"));
        out.put_u16(0);
        for declaration in self.iter() {
            out.put_u32(declaration.capacity);
            out.put_u8(if declaration.numbered { FLAG_NUMBERED } else { 0 });
            out.put_u8(u8::try_from(declaration.label.len()).expect("the label was checked"));
            out.put_u16(length_of(declaration.name));
        }
        for declaration in self.iter() {
            out.put_slice(declaration.name);
            out.put_slice(declaration.label);
        }
    }

    /// The number of declarations.
    #[expect(clippy::len_without_is_empty, reason = "there is always a declaration")]
    pub fn len(&self) -> usize {
        match self.0 {
            Source::Listed(list) => list.len(),
            Source::Received { rows, .. } => rows.len(),
        }
    }

    /// The declarations, in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = Declaration<'a>> + Clone + use<'a> {
        let mut rest = self.0;
        iter::from_fn(move || match &mut rest {
            Source::Listed(list) => list.split_off_first().copied(),
            Source::Received { rows, texts } => read_row(rows.split_off_first()?, texts),
        })
    }

    fn check_count(&self) -> Result<(), DeclarationError> {
        match self.len() {
            1..=DECLARATIONS_MAX => Ok(()),
            semaphores => Err(DeclarationError::Count { semaphores }),
        }
    }

    /// Sorts the names on the stack: comparing each with each would be slow for long names with common prefixes.
    fn check_repetition(&self) -> Result<(), DeclarationError> {
        let mut sorted: [&[u8]; DECLARATIONS_MAX] = [&[]; DECLARATIONS_MAX];
        for (place, declaration) in sorted.iter_mut().zip(self.iter()) {
            *place = declaration.name;
        }
        let sorted = &mut sorted[..self.len()];
        sorted.sort_unstable();
        let repeated = sorted.windows(2).any(|pair| pair[0] == pair[1]);
        if repeated { Err(DeclarationError::Repeated) } else { Ok(()) }
    }
}

/// Decodes a row, and its name and label from the front of `texts`.
fn read_row<'a>(row: &[u8; ROW_BYTES], texts: &mut Fields<'a>) -> Option<Declaration<'a>> {
    let mut row = Fields::new(row);
    let capacity = row.u32()?;
    let numbered = row.u8()? & FLAG_NUMBERED != 0;
    let label_bytes = row.u8()?.into();
    let name = texts.bytes(row.length()?)?;
    let label = texts.bytes(label_bytes)?;
    Some(Declaration { name, capacity, numbered, label })
}

impl PartialEq for Declarations<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Declarations<'_> {}

impl fmt::Debug for Declarations<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

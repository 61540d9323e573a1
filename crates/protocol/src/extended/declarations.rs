//! The declarations of a Declare: their layout and their rules.

use bytes::BufMut;
use thiserror::Error;

use super::{DECLARATIONS_MAX, LABEL_BYTES_MAX, NUMBERED_CAPACITY_MAX, checked_label};
use crate::header::{NAME_BYTES_MAX, REQUEST_BODY_BYTES_MAX};
use crate::layout::{Fields, length_of};
use signalbox_model::Declaration;

/// A rule of the protocol that declarations break (`docs/protocol.md`, "Declare").
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

/// The bit of a row's flags: the semaphore has numbered slots.
const FLAG_NUMBERED: u8 = 1;

/// Checks the declarations of one Declare (`docs/protocol.md`, "Declare"): 1 to [`DECLARATIONS_MAX`], with different names.
///
/// # Errors
/// The first rule that they break.
pub fn check_declarations(declarations: &[Declaration<'_>]) -> Result<(), DeclarationError> {
    if !(1..=DECLARATIONS_MAX).contains(&declarations.len()) {
        return Err(DeclarationError::Count { semaphores: declarations.len() });
    }
    declarations.iter().try_for_each(check)?;
    let bytes_of = |one: &Declaration<'_>| ROW_BYTES + one.name.len() + one.label.len();
    let bytes = FIXED_BYTES + declarations.iter().map(bytes_of).sum::<usize>();
    if bytes > REQUEST_BODY_BYTES_MAX {
        return Err(DeclarationError::BodyTooLong { bytes });
    }
    // Sorted, because comparing each with each would be slow for long names with common prefixes.
    let mut names: Vec<_> = declarations.iter().map(|one| one.name).collect();
    names.sort_unstable();
    let repeated = names.windows(2).any(|pair| pair[0] == pair[1]);
    if repeated { Err(DeclarationError::Repeated) } else { Ok(()) }
}

fn check(declaration: &Declaration<'_>) -> Result<(), DeclarationError> {
    let Declaration { name, capacity, numbered, label } = *declaration;
    if numbered && capacity > NUMBERED_CAPACITY_MAX {
        return Err(DeclarationError::NumberedCapacity { capacity });
    }
    if checked_label(label).is_none() {
        return Err(DeclarationError::LabelLength { bytes: label.len() });
    }
    match name.len() {
        1..=NAME_BYTES_MAX => Ok(()),
        bytes => Err(DeclarationError::NameLength { bytes }),
    }
}

/// Decodes the count, two reserved bytes, the rows, and then the name and label of each.
pub(super) fn read_declarations<'a>(fields: &mut Fields<'a>) -> Option<Vec<Declaration<'a>>> {
    let count = fields.length()?;
    fields.u16()?;
    let mut rows = Fields::new(fields.bytes(count * ROW_BYTES)?);
    let mut declarations = Vec::with_capacity(count.min(DECLARATIONS_MAX));
    for _ in 0..count {
        let capacity = rows.u32()?;
        let numbered = rows.u8()? & FLAG_NUMBERED != 0;
        let label_bytes = rows.u8()?.into();
        let name = fields.bytes(rows.length()?)?;
        let label = fields.bytes(label_bytes)?;
        declarations.push(Declaration { name, capacity, numbered, label });
    }
    check_declarations(&declarations).ok()?;
    Some(declarations)
}

pub(super) fn put_declarations(declarations: &[Declaration<'_>], out: &mut Vec<u8>) {
    out.put_u16(length_of(declarations));
    out.put_u16(0);
    for declaration in declarations {
        out.put_u32(declaration.capacity);
        out.put_u8(if declaration.numbered { FLAG_NUMBERED } else { 0 });
        out.put_u8(u8::try_from(declaration.label.len()).expect("the label was checked"));
        out.put_u16(length_of(declaration.name));
    }
    for declaration in declarations {
        out.put_slice(declaration.name);
        out.put_slice(declaration.label);
    }
}

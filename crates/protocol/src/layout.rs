//! The layout of bodies: their fields, and the types of the model that have the same layout in all bodies
//! (`docs/protocol.md`).

use bytes::BufMut;

use super::header::Opaque;
use signalbox_model::sysv::{Caller, OpenedProcess, Operation, Ownership, ProcessId, SetId, UserRole};
use signalbox_model::{
    AddressRange, DeclaredState, Generation, GraceLeft, GrantId, GrantState, Idle, IfExists, Inspected,
    Milliseconds, Namespace, Place, PlaceProof, Removal, RequestId, RequestIds, Resizing, SessionKey,
    TtlLeft, UnixSeconds, VerifiedGrant,
};

/// The `u32` that means "no limit", "the server's default" or "none".
pub(super) const NO_NUMBER: u32 = u32::MAX;

/// The rest of a body. Each method takes a field from its front, and returns `None` if too few bytes are left.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    /// Returns whether the body ends here. A client may omit optional fields at the end of a request.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(super) fn array<const BYTES: usize>(&mut self) -> Option<[u8; BYTES]> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*value)
    }

    #[inline]
    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (value, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(value)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A `u16`: the length of a text or the number of rows that follow.
    #[inline]
    pub(super) fn length(&mut self) -> Option<usize> {
        self.u16().map(usize::from)
    }

    /// A length and that many bytes, possibly none.
    #[inline]
    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        self.bytes(length)
    }

    /// A length and that many bytes; `None` if the name is empty.
    #[inline]
    pub(super) fn name(&mut self) -> Option<&'a [u8]> {
        self.text().filter(|name| !name.is_empty())
    }
}

/// Returns the length of a text, or the number of rows, as encoded.
///
/// # Panics
/// If it is more than 65535.
pub(super) fn length_of<T>(list: &[T]) -> u16 {
    u16::try_from(list.len()).expect("texts and lists are checked before they are encoded: at most 65535")
}

/// A part of a body that has the same layout in all bodies. It may borrow from the body.
pub(super) trait Part<'a>: Sized {
    /// Decodes it from the front; `None` if it breaks a rule.
    fn read(fields: &mut Fields<'a>) -> Option<Self>;

    fn compose(&self, out: &mut Vec<u8>);
}

/// Implements [`Part`] for structs whose fields are parts, encoded in this order.
macro_rules! parts_in_order {
    ($($struct:ident { $($field:tt),* })*) => {$(
        impl Part<'_> for $struct {
            fn read(fields: &mut Fields<'_>) -> Option<Self> {
                Some(Self { $($field: Part::read(fields)?),* })
            }

            fn compose(&self, out: &mut Vec<u8>) {
                $(self.$field.compose(out);)*
            }
        }
    )*};
}
pub(super) use parts_in_order;

/// Defines the requests of some operations. Each has the name of its opcode, and its body is its fields, in their order.
macro_rules! requests {
    (
        $(#[$attribute:meta])*
        pub enum $requests:ident<$a:lifetime>: $opcode:ident {
            $($(#[$doc:meta])* $request:ident $({ $($(#[$field_doc:meta])* $field:ident: $part:ty,)* })?,)*
        }
    ) => {
        $(#[$attribute])*
        pub enum $requests<$a> {
            $($(#[$doc])* $request $({ $($(#[$field_doc])* $field: $part,)* })?,)*
        }

        impl<$a> $requests<$a> {
            /// The opcode of the request.
            pub fn opcode(&self) -> $opcode {
                match self {
                    $(Self::$request { .. } => $opcode::$request,)*
                }
            }

            #[inline]
            fn read(opcode: $opcode, fields: &mut Fields<$a>) -> Option<Self> {
                Some(match opcode {
                    $($opcode::$request => Self::$request $({ $($field: Part::read(fields)?,)* })?,)*
                })
            }

            /// Appends the encoded frame to `out`.
            ///
            /// # Panics
            /// If a name or a label is longer than 65535 bytes.
            pub fn compose(&self, opaque: Opaque, out: &mut Vec<u8>) {
                Header::request(self.opcode().code(), opaque).compose_before(out, |out| match self {
                    $(Self::$request $({ $($field,)* })? => { $($($field.compose(out);)*)? })*
                });
            }
        }
    };
}
pub(super) use requests;

parts_in_order! {
    Caller { uid, gid }
    DeclaredState { generation, capacity, in_use }
    Generation { 0 }
    GrantId { 0 }
    Inspected { in_use, peak, waiting, capacity, available, namespace }
    Milliseconds { 0 }
    OpenedProcess { process, key, ttl }
    Operation { number, change, flags }
    Opaque { 0 }
    Ownership { uid, gid, mode }
    Place { id, proof }
    PlaceProof { 0 }
    ProcessId { 0 }
    RequestId { 0 }
    SessionKey { 0 }
    SetId { 0 }
    UnixSeconds { 0 }
    VerifiedGrant { session, ttl_left, state, grace_left }
}

/// Implements [`Part`] for numbers.
macro_rules! numbers {
    ($($number:ident)*) => {$(
        impl Part<'_> for $number {
            #[inline]
            fn read(fields: &mut Fields<'_>) -> Option<Self> {
                fields.array().map(Self::from_be_bytes)
            }

            #[inline]
            fn compose(&self, out: &mut Vec<u8>) {
                out.put_slice(&self.to_be_bytes());
            }
        }
    )*};
}

numbers! { i16 i32 u16 u32 u64 }

impl<const LENGTH: usize> Part<'_> for [u8; LENGTH] {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        fields.array()
    }

    fn compose(&self, out: &mut Vec<u8>) {
        out.put_slice(self);
    }
}

/// A length and that many bytes, possibly none.
impl<'a> Part<'a> for &'a [u8] {
    #[inline]
    fn read(fields: &mut Fields<'a>) -> Option<Self> {
        fields.text()
    }

    #[inline]
    fn compose(&self, out: &mut Vec<u8>) {
        out.put_u16(length_of(self));
        out.put_slice(self);
    }
}

/// `None`, which is encoded as 0, means the server's default.
impl Part<'_> for Option<Milliseconds> {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let span = fields.u32()?;
        Some((span != 0).then_some(Milliseconds(span)))
    }

    fn compose(&self, out: &mut Vec<u8>) {
        out.put_u32(self.map_or(0, |span| span.0));
    }
}

/// Implements [`Part`] for optional numbers. `None` is encoded as 0.
macro_rules! optional_ids {
    ($($id:ident)*) => {$(
        impl Part<'_> for Option<$id> {
            fn read(fields: &mut Fields<'_>) -> Option<Self> {
                let number = fields.u64()?;
                Some((number != 0).then_some($id(number)))
            }

            fn compose(&self, out: &mut Vec<u8>) {
                out.put_u64(self.map_or(0, |id| id.0));
            }
        }
    )*};
}

optional_ids! { Generation GrantId UnixSeconds }

/// Implements [`Part`] for codes of one byte, with three reserved bytes after it.
macro_rules! padded_codes {
    ($($code:ident)*) => {$(
        impl Part<'_> for $code {
            fn read(fields: &mut Fields<'_>) -> Option<Self> {
                let [code, _, _, _] = fields.array()?;
                Self::from_code(code)
            }

            fn compose(&self, out: &mut Vec<u8>) {
                out.put_slice(&[self.code(), 0, 0, 0]);
            }
        }
    )*};
}

padded_codes! { GrantState IfExists Namespace UserRole }

/// Implements [`Part`] for spans that may be missing. The longest span is encoded as one millisecond less.
macro_rules! optional_spans {
    ($($span:ident or $missing:ident;)*) => {$(
        impl Part<'_> for $span {
            fn read(fields: &mut Fields<'_>) -> Option<Self> {
                Some(match fields.u32()? {
                    NO_NUMBER => Self::$missing,
                    span => Self::For(Milliseconds(span)),
                })
            }

            fn compose(&self, out: &mut Vec<u8>) {
                out.put_u32(match self {
                    Self::$missing => NO_NUMBER,
                    Self::For(span) => span.0.min(NO_NUMBER - 1),
                });
            }
        }
    )*};
}

optional_spans! {
    TtlLeft or Connection;
    GraceLeft or NotRevoked;
}

impl Part<'_> for RequestIds {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (own, lowest_unanswered) = (RequestId::read(fields)?, RequestId::read(fields)?);
        let in_order = (RequestId(1)..=own).contains(&lowest_unanswered);
        in_order.then_some(Self { own, lowest_unanswered })
    }

    fn compose(&self, out: &mut Vec<u8>) {
        self.own.compose(out);
        self.lowest_unanswered.compose(out);
    }
}

/// Encodes a code, three reserved bytes and a number.
fn put_choice((code, number): (u8, u32), out: &mut Vec<u8>) {
    out.put_slice(&[code, 0, 0, 0]);
    out.put_u32(number);
}

fn read_choice(fields: &mut Fields<'_>) -> Option<(u8, u32)> {
    let [code, _, _, _] = fields.array()?;
    Some((code, fields.u32()?))
}

impl Part<'_> for Resizing {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        match read_choice(fields)? {
            (0, capacity) => Some(Self::To(capacity)),
            (1, more) => Some(Self::GrowBy(more)),
            (2, less) => Some(Self::ShrinkBy(less)),
            _ => None,
        }
    }

    fn compose(&self, out: &mut Vec<u8>) {
        let choice = match *self {
            Self::To(capacity) => (0, capacity),
            Self::GrowBy(more) => (1, more),
            Self::ShrinkBy(less) => (2, less),
        };
        put_choice(choice, out);
    }
}

/// Only [`Removal::Now`] has a grace period; otherwise the field is reserved.
impl Part<'_> for Removal {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        match read_choice(fields)? {
            (0, _) => Some(Self::IfIdle),
            (1, _) => Some(Self::WithLastHolder),
            (2, grace) => Some(Self::Now { grace: Milliseconds(grace) }),
            _ => None,
        }
    }

    fn compose(&self, out: &mut Vec<u8>) {
        let choice = match *self {
            Self::IfIdle => (0, 0),
            Self::WithLastHolder => (1, 0),
            Self::Now { grace } => (2, grace.0),
        };
        put_choice(choice, out);
    }
}

impl Part<'_> for Idle {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        match read_choice(fields)? {
            (0, level) => Some(Self::Level(level)),
            (1, slot) => u16::try_from(slot).ok().map(Self::Slot),
            _ => None,
        }
    }

    fn compose(&self, out: &mut Vec<u8>) {
        let choice = match *self {
            Self::Level(level) => (0, level),
            Self::Slot(slot) => (1, slot.into()),
        };
        put_choice(choice, out);
    }
}

impl Part<'_> for AddressRange {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let range = Self { first: fields.array::<16>()?.into(), last: fields.array::<16>()?.into() };
        (range.first <= range.last).then_some(range)
    }

    fn compose(&self, out: &mut Vec<u8>) {
        out.put_slice(&self.first.octets());
        out.put_slice(&self.last.octets());
    }
}

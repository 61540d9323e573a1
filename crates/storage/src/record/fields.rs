//! Encodes and decodes the fields of records.

use signalbox_core::{Origin, PartRecord, Service, StoredAnswer};
use signalbox_model::sysv::{Order, ProcessId, SetId};
use signalbox_model::{
    Generation, GrantId, Namespace, PlaceKey, RequestId, SessionId, SessionKey, UnixSeconds,
};

/// A decoded field. An error is the end of a sentence about its record.
pub(super) type DecodeResult<T> = Result<T, &'static str>;

/// A type with one layout in all records.
pub(super) trait Field: Sized {
    fn put(&self, bytes: &mut Vec<u8>);

    /// Takes it from the front of the bytes.
    fn take(bytes: &mut &[u8]) -> DecodeResult<Self>;
}

fn take_bytes<'a>(bytes: &mut &'a [u8], count: usize) -> DecodeResult<&'a [u8]> {
    bytes.split_off(..count).ok_or("is truncated")
}

fn put_length(bytes: &mut Vec<u8>, length: usize) {
    u32::try_from(length).expect("the content of a frame is shorter than 4 GiB").put(bytes);
}

macro_rules! numbers {
    ($($number:ident)*) => {$(
        impl Field for $number {
            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_be_bytes());
            }

            fn take(bytes: &mut &[u8]) -> DecodeResult<Self> {
                Field::take(bytes).map(Self::from_be_bytes)
            }
        }
    )*};
}

numbers! { u8 u16 i16 u32 i32 u64 }

macro_rules! newtypes {
    ($($newtype:ident)*) => {$(
        impl Field for $newtype {
            fn put(&self, bytes: &mut Vec<u8>) {
                self.0.put(bytes);
            }

            fn take(bytes: &mut &[u8]) -> DecodeResult<Self> {
                Field::take(bytes).map(Self)
            }
        }
    )*};
}

newtypes! { Generation GrantId PlaceKey ProcessId RequestId SessionKey UnixSeconds }

macro_rules! codes {
    ($($type:ident { $($code:literal = $value:expr),* } or $problem:literal)*) => {$(
        impl Field for $type {
            fn put(&self, bytes: &mut Vec<u8>) {
                $(if *self == $value {
                    bytes.push($code);
                })*
            }

            fn take(bytes: &mut &[u8]) -> DecodeResult<Self> {
                match u8::take(bytes)? {
                    $($code => Ok($value),)*
                    _ => Err($problem),
                }
            }
        }
    )*};
}

codes! {
    bool { 0 = false, 1 = true } or "has an invalid boolean"
    Namespace { 0 = Self::Counters, 1 = Self::Semaphores } or "has an unknown namespace"
    Order { 0 = Self::Kernel, 1 = Self::Fifo } or "has an unknown order"
    Origin { 0 = Self::Request, 1 = Self::Configuration } or "has an unknown origin"
}

impl<const N: usize> Field for [u8; N] {
    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }

    fn take(bytes: &mut &[u8]) -> DecodeResult<Self> {
        let taken = take_bytes(bytes, N)?;
        Ok(taken.try_into().expect("N bytes were taken"))
    }
}

/// A boolean, and the field, which is 0 if the boolean is false.
impl<T: Field + Copy + Default + PartialEq> Field for Option<T> {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.is_some().put(bytes);
        self.unwrap_or_default().put(bytes);
    }

    fn take(bytes: &mut &[u8]) -> DecodeResult<Self> {
        match (bool::take(bytes)?, T::take(bytes)?) {
            (true, field) => Ok(Some(field)),
            (false, field) if field == T::default() => Ok(None),
            (false, _) => Err("has a time that is marked as absent"),
        }
    }
}

/// The number of fields, and the fields.
impl<T: Field> Field for Box<[T]> {
    fn put(&self, bytes: &mut Vec<u8>) {
        put_length(bytes, self.len());
        self.iter().for_each(|field| field.put(bytes));
    }

    fn take(bytes: &mut &[u8]) -> DecodeResult<Self> {
        let count = u32::take(bytes)?;
        (0..count).map(|_| T::take(bytes)).collect()
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.0.put(bytes);
        self.1.put(bytes);
    }

    fn take(bytes: &mut &[u8]) -> DecodeResult<Self> {
        Ok((A::take(bytes)?, B::take(bytes)?))
    }
}

impl Field for SessionId {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.number().put(bytes);
    }

    fn take(bytes: &mut &[u8]) -> DecodeResult<Self> {
        Self::from_number(u64::take(bytes)?).ok_or("has session number 0, which is invalid")
    }
}

impl Field for SetId {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.0.put(bytes);
    }

    fn take(bytes: &mut &[u8]) -> DecodeResult<Self> {
        let set = i32::take(bytes).map(Self)?;
        if set >= Self::FIRST { Ok(set) } else { Err("has the id of a semaphore set that no set can have") }
    }
}

/// A kind: 0 done, 1 set; for a set, its id and the number of its semaphores.
impl Field for StoredAnswer {
    fn put(&self, bytes: &mut Vec<u8>) {
        match *self {
            Self::Done => bytes.push(0),
            Self::Set(set, count) => {
                bytes.push(1);
                (set, count).put(bytes);
            }
        }
    }

    fn take(bytes: &mut &[u8]) -> DecodeResult<Self> {
        match u8::take(bytes)? {
            0 => Ok(Self::Done),
            1 => Ok(Self::Set(Field::take(bytes)?, Field::take(bytes)?)),
            _ => Err("has an unknown kind of result"),
        }
    }
}

/// Both lengths come before the slots and the name.
impl Field for PartRecord {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.namespace.put(bytes);
        self.position.put(bytes);
        self.resources.put(bytes);
        self.capacity.put(bytes);
        put_length(bytes, self.slots.len());
        put_length(bytes, self.name.len());
        self.slots.iter().for_each(|slot| slot.put(bytes));
        bytes.extend_from_slice(&self.name);
    }

    fn take(bytes: &mut &[u8]) -> DecodeResult<Self> {
        let (namespace, position) = Field::take(bytes)?;
        let (resources, capacity) = Field::take(bytes)?;
        let (slots, name_bytes) = <(u32, u32)>::take(bytes)?;
        let slots = (0..slots).map(|_| Field::take(bytes)).collect::<DecodeResult<_>>()?;
        let name = take_bytes(bytes, name_bytes as usize)?.into();
        Ok(Self { namespace, name, position, resources, capacity, slots })
    }
}

/// The most slots out of service that are stored as a list. More of them take less space as a bit for each possible
/// slot.
const LISTED_SLOTS_MAX: usize = 4_096;

const SLOT_BITS_BYTES: usize = (1 << 16) / 8;

impl Field for Service {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.paused.put(bytes);
        if self.slots_out.len() <= LISTED_SLOTS_MAX {
            return self.slots_out.put(bytes);
        }
        put_length(bytes, self.slots_out.len());
        let mut bits = [0; SLOT_BITS_BYTES];
        for slot in &self.slots_out {
            bits[usize::from(slot / 8)] |= 1 << (slot % 8);
        }
        bits.put(bytes);
    }

    fn take(bytes: &mut &[u8]) -> DecodeResult<Self> {
        let (paused, count) = <(bool, u32)>::take(bytes)?;
        if count as usize <= LISTED_SLOTS_MAX {
            let slots_out = (0..count).map(|_| Field::take(bytes)).collect::<DecodeResult<_>>()?;
            return Ok(Self { paused, slots_out });
        }
        let bits: [u8; SLOT_BITS_BYTES] = Field::take(bytes)?;
        let is_out = |slot: &u16| bits[usize::from(slot / 8)] & 1 << (slot % 8) != 0;
        let slots_out: Box<[u16]> = (0..=u16::MAX).filter(is_out).collect();
        if slots_out.len() == count as usize {
            Ok(Self { paused, slots_out })
        } else {
            Err("has a wrong number of slots out of service")
        }
    }
}

//! The name of an object, stored once. A short name needs no allocation of its own.

use std::fmt;

/// The length of the longest name that is stored inside the object, in bytes. With a byte for its length, such a name needs
/// as much space as a boxed slice and the enum's tag.
const INLINE_BYTES_MAX: usize = 22;

/// One to 65,535 arbitrary bytes. A newtype so that a name is never mistaken for other bytes.
pub(super) struct Name(Bytes);

/// The hash of a name, computed once per request. It selects the shard, the entry in the shard's table, and the entry
/// in a session's cache of recent handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NameHash(pub(super) u64);

enum Bytes {
    Inline { length: u8, bytes: [u8; INLINE_BYTES_MAX] },
    Heap(Box<[u8]>),
}

const _: () = assert!(size_of::<Name>() == 24, "a name is as large as a boxed slice and the tag");

impl Name {
    pub(super) fn new(name: &[u8]) -> Self {
        let mut bytes = [0; INLINE_BYTES_MAX];
        Self(match bytes.get_mut(..name.len()) {
            Some(start) => {
                start.copy_from_slice(name);
                Bytes::Inline { length: name.len() as u8, bytes }
            }
            None => Bytes::Heap(name.into()),
        })
    }

    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Bytes::Heap(bytes) => bytes,
        }
    }

    /// The heap memory of the name, in bytes; `None`: it is stored inline.
    #[inline(always)]
    pub(super) fn heap_bytes(&self) -> Option<usize> {
        match &self.0 {
            Bytes::Inline { .. } => None,
            Bytes::Heap(bytes) => Some(bytes.len()),
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest name in bytes (`counter.md`, "Overview"); the protocol layer rejects longer ones.
    const NAME_BYTES_MAX: usize = u16::MAX as usize;

    #[test]
    fn a_name_returns_its_bytes_whether_short_or_long() {
        for length in [1, INLINE_BYTES_MAX - 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, NAME_BYTES_MAX] {
            let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            assert_eq!(Name::new(&bytes).as_bytes(), bytes);
        }
    }
}

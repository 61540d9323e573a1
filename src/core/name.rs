//! The name of an object, kept once and without an allocation of its own when it is short.

use std::fmt;

/// Names of up to this many bytes live inside the object: what fits beside a length in the space that a pointer and
/// a length take with their tag.
const INLINE_BYTES_MAX: usize = 22;

/// One to 65,535 bytes, any bytes. A newtype so that a name is never mistaken for other bytes.
pub(super) struct Name(Bytes);

/// The hash of a name, taken once a request: the shard, the place in its table and a session's memory of what it
/// took last all go by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NameHash(pub(super) u64);

enum Bytes {
    Inline { length: u8, bytes: [u8; INLINE_BYTES_MAX] },
    Heap(Box<[u8]>),
}

const _: () = assert!(size_of::<Name>() == 24, "a name takes no more than a boxed slice and its tag");

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

    pub(super) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Bytes::Heap(bytes) => bytes,
        }
    }

    /// Bytes on the heap beside the object.
    pub(super) fn heap_bytes(&self) -> usize {
        match &self.0 {
            Bytes::Inline { .. } => 0,
            Bytes::Heap(bytes) => bytes.len(),
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

    /// Longest name in bytes (`counter.md`, "Overview"), to which the protocol holds what comes here.
    const NAME_BYTES_MAX: usize = u16::MAX as usize;

    #[test]
    fn a_name_gives_back_its_bytes_whether_short_or_long() {
        for length in [1, INLINE_BYTES_MAX - 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, NAME_BYTES_MAX] {
            let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            assert_eq!(Name::new(&bytes).as_bytes(), bytes);
        }
    }
}

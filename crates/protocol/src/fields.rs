//! Reads the fields of a body, one after the other.

/// The rest of a body. Each method takes a field from its front, and returns `None` if too few bytes are left.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    /// Whether the body ends here. A client may leave out optional fields at the end of a request.
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

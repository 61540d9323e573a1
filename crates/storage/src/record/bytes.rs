//! Numbers and texts as bytes, and back.

use signalbox_model::SessionId;

/// The bytes that are not decoded yet.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

pub(super) type DecodeResult<T> = Result<T, &'static str>;

const TOO_SHORT: &str = "is truncated";

pub(super) fn put_u32(bytes: &mut Vec<u8>, number: u32) {
    bytes.extend_from_slice(&number.to_be_bytes());
}

pub(super) fn put_u64(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_be_bytes());
}

pub(super) fn put_length(bytes: &mut Vec<u8>, length: usize) {
    put_u32(bytes, u32::try_from(length).expect("the content of a frame is shorter than 4 GiB"));
}

impl Reader<'_> {
    pub(super) fn session(&mut self) -> DecodeResult<SessionId> {
        SessionId::from_number(self.u64()?).ok_or("has session number 0, which is invalid")
    }

    pub(super) fn grace(&mut self) -> DecodeResult<Option<u32>> {
        let is_revoked = self.boolean()?;
        let grace_ms = self.u32()?;
        if !is_revoked && grace_ms > 0 {
            return Err("has a grace period without a revocation");
        }
        Ok(is_revoked.then_some(grace_ms))
    }

    pub(super) fn length_prefixed(&mut self) -> DecodeResult<Box<[u8]>> {
        let length = self.u32()?;
        Ok(self.take(length)?.into())
    }

    pub(super) fn boolean(&mut self) -> DecodeResult<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("has an invalid boolean"),
        }
    }

    pub(super) fn u8(&mut self) -> DecodeResult<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> DecodeResult<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> DecodeResult<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> DecodeResult<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk().ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn take(&mut self, length: u32) -> DecodeResult<&[u8]> {
        let (first, rest) = self.0.split_at_checked(length as usize).ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(first)
    }

    pub(super) fn end(&self) -> DecodeResult<()> {
        if self.0.is_empty() { Ok(()) } else { Err("has extra bytes at its end") }
    }
}

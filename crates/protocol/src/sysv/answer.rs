//! Answers of the System V operations and their encoding (`docs/protocol.md`, "System V semaphores").

use bytes::BufMut;

use super::{Errno, SysvOpcode};
use crate::extended::{Milliseconds, SessionKey};
use crate::fields::Fields;
use crate::header::{Header, Opaque};
use crate::response::{BodyError, ResponseFrame};
use crate::status::Status;

/// The answer to a call that succeeded; a call that failed has an [`Errno`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SysvAnswer {
    /// The call is done: SemOp, and the commands of SemCtl that change a set.
    Done,
    /// SemGet: a set's id, and how many semaphores it has.
    Set(i32, u32),
    /// The commands of SemCtl that read a number.
    Number(u32),
    /// GetAll.
    Values(Box<[u16]>),
    /// Stat.
    Stat(SetStat),
}

/// A process that was opened (`docs/protocol.md`, "OpenProcess").
#[derive(Clone, Copy, Debug)]
pub struct OpenedProcess {
    /// Its number.
    pub process: u64,
    /// Its secret.
    pub key: SessionKey,
    /// How long it lives on after its last connection was lost.
    pub ttl: Milliseconds,
}

/// The key, the owner, the mode and the times of a set (`docs/protocol.md`, "SemCtl").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetStat {
    /// The key; 0 if the set was made without one.
    pub key: i32,
    /// The owner's user id.
    pub uid: u32,
    /// The owner's group id.
    pub gid: u32,
    /// The creator's user id.
    pub creator_uid: u32,
    /// The creator's group id.
    pub creator_gid: u32,
    /// The nine bits of the mode.
    pub mode: u32,
    /// When operations were performed last, in seconds since the Unix epoch; 0: never.
    pub operated_at: u64,
    /// When the set was created, or values or the owner were set last, in seconds since the Unix epoch.
    pub changed_at: u64,
    /// How many semaphores it has.
    pub count: u32,
}

impl SetStat {
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self {
            key: fields.u32()?.cast_signed(),
            uid: fields.u32()?,
            gid: fields.u32()?,
            creator_uid: fields.u32()?,
            creator_gid: fields.u32()?,
            mode: fields.u32()?,
            operated_at: fields.u64()?,
            changed_at: fields.u64()?,
            count: fields.u32()?,
        })
    }

    pub(super) fn compose(&self, out: &mut Vec<u8>) {
        out.put_i32(self.key);
        for field in [self.uid, self.gid, self.creator_uid, self.creator_gid, self.mode] {
            out.put_u32(field);
        }
        out.put_u64(self.operated_at);
        out.put_u64(self.changed_at);
        out.put_u32(self.count);
    }
}

impl SysvAnswer {
    /// Appends the frame that answers SemGet, SemOp or SemCtl, under this opcode and opaque.
    pub fn compose(result: Result<&Self, Errno>, opcode: SysvOpcode, opaque: Opaque, out: &mut Vec<u8>) {
        success(opcode, opaque).compose_before(out, |out| {
            out.put_u32(result.err().map_or(0, Errno::code));
            match result {
                Ok(Self::Set(set, count)) => {
                    out.put_i32(*set);
                    out.put_u32(*count);
                }
                Ok(Self::Number(number)) => out.put_u32(*number),
                Ok(Self::Values(values)) => {
                    out.put_u16(super::request::count_of(values.len()));
                    values.iter().for_each(|value| out.put_u16(*value));
                }
                Ok(Self::Stat(stat)) => stat.compose(out),
                Ok(Self::Done) | Err(_) => {}
            }
        });
    }
}

impl OpenedProcess {
    /// Appends the frame that answers OpenProcess.
    pub fn compose(&self, opaque: Opaque, out: &mut Vec<u8>) {
        success(SysvOpcode::OpenProcess, opaque).compose_before(out, |out| {
            out.put_u64(self.process);
            out.put_slice(&self.key.0);
            out.put_u32(self.ttl.0);
        });
    }
}

/// The header of a successful response.
pub(super) fn success(opcode: SysvOpcode, opaque: Opaque) -> Header {
    Header::response(opcode.code(), Status::NoError, opaque)
}

/// Decoding of responses whose status is success.
impl ResponseFrame {
    /// The answer to OpenProcess.
    pub fn opened_process(&self) -> Result<OpenedProcess, BodyError> {
        let mut fields = Fields::new(&self.body);
        let mut read = || {
            Some(OpenedProcess {
                process: fields.u64()?,
                key: SessionKey(fields.array()?),
                ttl: Milliseconds(fields.u32()?),
            })
        };
        read().ok_or(BodyError)
    }

    /// The error of a call that failed, or the rest of the body of one that succeeded.
    fn call_result(&self) -> Result<Result<Fields<'_>, Errno>, BodyError> {
        let mut fields = Fields::new(&self.body);
        let number = fields.u32().ok_or(BodyError)?;
        if number == 0 {
            return Ok(Ok(fields));
        }
        Errno::from_code(number).map(Err).ok_or(BodyError)
    }

    /// The answer to SemOp, or to a command of SemCtl that changes a set.
    pub fn call_done(&self) -> Result<Result<(), Errno>, BodyError> {
        Ok(self.call_result()?.map(|_| ()))
    }

    /// The answer to SemGet: the set's id, and how many semaphores it has.
    pub fn call_set(&self) -> Result<Result<(i32, u32), Errno>, BodyError> {
        self.call_fields(|fields| Some((fields.u32()?.cast_signed(), fields.u32()?)))
    }

    /// The answer to a command of SemCtl that reads a number.
    pub fn call_number(&self) -> Result<Result<u32, Errno>, BodyError> {
        self.call_fields(Fields::u32)
    }

    /// The answer to GetAll.
    pub fn call_values(&self) -> Result<Result<Vec<u16>, Errno>, BodyError> {
        self.call_fields(|fields| super::Values::read(fields).map(|values| values.iter().collect()))
    }

    /// The answer to Stat.
    pub fn call_stat(&self) -> Result<Result<SetStat, Errno>, BodyError> {
        self.call_fields(SetStat::read)
    }

    fn call_fields<'a, T>(
        &'a self,
        read: impl FnOnce(&mut Fields<'a>) -> Option<T>,
    ) -> Result<Result<T, Errno>, BodyError> {
        match self.call_result()? {
            Ok(mut fields) => read(&mut fields).map(Ok).ok_or(BodyError),
            Err(errno) => Ok(Err(errno)),
        }
    }
}

//! Answers of the System V operations and their encoding (`docs/protocol.md`, "System V semaphores").

use bytes::BufMut;

use super::SysvOpcode;
use super::request::{put_values, read_values};
use crate::extended::Part;
use crate::fields::Fields;
use crate::header::{Header, Opaque};
use crate::response::{BodyError, ResponseFrame};
use signalbox_model::Status;
use signalbox_model::UnixSeconds;
use signalbox_model::sysv::{Errno, OpenedProcess, Ownership, SetAnswer, SetId, SetStat};

/// Appends the frame that answers SemGet, SemOp or SemCtl, under this opcode and opaque.
pub fn compose_call(
    result: &Result<SetAnswer, Errno>,
    opcode: SysvOpcode,
    opaque: Opaque,
    out: &mut Vec<u8>,
) {
    success(opcode, opaque).compose_before(out, |out| {
        out.put_u32(result.as_ref().err().map_or(0, |errno| errno.code()));
        match result {
            Ok(SetAnswer::Set(set, count)) => {
                set.compose(out);
                out.put_u32(*count);
            }
            Ok(SetAnswer::Number(number)) => out.put_u32(*number),
            Ok(SetAnswer::Values(values)) => put_values(values, out),
            Ok(SetAnswer::Stat(stat)) => put_stat(stat, out),
            Ok(SetAnswer::Done) | Err(_) => {}
        }
    });
}

/// A set that never performed operations has the time 0.
pub(super) fn put_stat(stat: &SetStat, out: &mut Vec<u8>) {
    let SetStat { key, ownership, creator_uid, creator_gid, operated_at, changed_at, count } = *stat;
    let Ownership { uid, gid, mode } = ownership;
    out.put_i32(key);
    for field in [uid, gid, creator_uid, creator_gid, mode] {
        out.put_u32(field);
    }
    out.put_u64(operated_at.map_or(0, |at| at.0));
    out.put_u64(changed_at.0);
    out.put_u32(count);
}

pub(super) fn read_stat(fields: &mut Fields<'_>) -> Option<SetStat> {
    let key = fields.u32()?.cast_signed();
    let (uid, gid) = (fields.u32()?, fields.u32()?);
    Some(SetStat {
        key,
        creator_uid: fields.u32()?,
        creator_gid: fields.u32()?,
        ownership: Ownership { uid, gid, mode: fields.u32()? },
        operated_at: Some(fields.u64()?).filter(|at| *at != 0).map(UnixSeconds),
        changed_at: UnixSeconds(fields.u64()?),
        count: fields.u32()?,
    })
}

/// Appends the frame that answers OpenProcess.
pub fn compose_opened_process(opened: &OpenedProcess, opaque: Opaque, out: &mut Vec<u8>) {
    success(SysvOpcode::OpenProcess, opaque).compose_before(out, |out| {
        opened.compose(out);
    });
}

/// The header of a successful response.
pub(super) fn success(opcode: SysvOpcode, opaque: Opaque) -> Header {
    Header::response(opcode.code(), Status::NoError, opaque)
}

/// Decoding of responses whose status is success.
impl ResponseFrame {
    /// The answer to OpenProcess.
    pub fn opened_process(&self) -> Result<OpenedProcess, BodyError> {
        self.part()
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
    pub fn call_set(&self) -> Result<Result<(SetId, u32), Errno>, BodyError> {
        self.call_fields(|fields| Some((Part::read(fields)?, fields.u32()?)))
    }

    /// The answer to a command of SemCtl that reads a number.
    pub fn call_number(&self) -> Result<Result<u32, Errno>, BodyError> {
        self.call_fields(Fields::u32)
    }

    /// The answer to GetAll.
    pub fn call_values(&self) -> Result<Result<Vec<u16>, Errno>, BodyError> {
        self.call_fields(|fields| read_values(fields).map(Vec::from))
    }

    /// The answer to Stat.
    pub fn call_stat(&self) -> Result<Result<SetStat, Errno>, BodyError> {
        self.call_fields(read_stat)
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

//! The encoding of facts about System V semaphore sets.
//!
//! | key | value |
//! |---|---|
//! | 6, set u32 | key u32, order u8 (0 kernel, 1 fifo), user u32, group u32, mode u32, creator's user u32, creator's group
//! u32, whether operated u8, operated at u64, changed at u64, number of semaphores u32, for each: value u16, process id
//! u32, last clearance u64 |
//! | 7, process u64 | key 16 bytes, time to live u32, process id u32, user u32, whether ending u8, number of groups u32,
//! groups u32 each, label length u32, label |
//! | 8, process u64, set u32 | turn u64, clearances u64, number of adjustments u32, adjustments i16 each |
//! | 9, process u64, request u64 | kind u8 (0 done, 1 set), for a set: set u32, number of semaphores u32 |

use super::bytes::{DecodeResult, Reader, put_length, put_u32, put_u64};
use signalbox_core::{
    AdjustmentsRecord, ProcessRecord, ResultRecord, SemaphoreRecord, SetRecord, StoredAnswer, SysvKey,
    SysvRecord,
};
use signalbox_model::sysv::{Order, Ownership, ProcessId, SetId};
use signalbox_model::{RequestId, SessionKey, UnixSeconds};

pub(super) const FIRST_KIND: u8 = SET;
pub(super) const LAST_KIND: u8 = RESULT;

const SET: u8 = 6;
const PROCESS: u8 = 7;
const ADJUSTMENTS: u8 = 8;
const RESULT: u8 = 9;

const DONE: u8 = 0;
const FOUND_SET: u8 = 1;

pub(super) fn put_key(bytes: &mut Vec<u8>, key: SysvKey) {
    match key {
        SysvKey::Set(set) => {
            bytes.push(SET);
            put_set(bytes, set);
        }
        SysvKey::Process(process) => {
            bytes.push(PROCESS);
            put_u64(bytes, process.0);
        }
        SysvKey::Adjustments(process, set) => {
            bytes.push(ADJUSTMENTS);
            put_u64(bytes, process.0);
            put_set(bytes, set);
        }
        SysvKey::Result(process, request) => {
            bytes.push(RESULT);
            put_u64(bytes, process.0);
            put_u64(bytes, request.0);
        }
    }
}

pub(super) fn put_value(bytes: &mut Vec<u8>, record: &SysvRecord) {
    match record {
        SysvRecord::Set(set) => {
            put_u32(bytes, set.key.cast_unsigned());
            bytes.push(match set.order {
                Order::Kernel => 0,
                Order::Fifo => 1,
            });
            let Ownership { uid, gid, mode } = set.ownership;
            for number in [uid, gid, mode, set.creator_uid, set.creator_gid] {
                put_u32(bytes, number);
            }
            bytes.push(set.operated_at.is_some().into());
            put_u64(bytes, set.operated_at.map_or(0, |at| at.0));
            put_u64(bytes, set.changed_at.0);
            put_length(bytes, set.semaphores.len());
            for SemaphoreRecord { value, pid, cleared } in &set.semaphores {
                bytes.extend_from_slice(&value.to_be_bytes());
                put_u32(bytes, *pid);
                put_u64(bytes, *cleared);
            }
        }
        SysvRecord::Process(process) => {
            bytes.extend_from_slice(&process.key.0);
            for number in [process.ttl_ms, process.pid, process.uid] {
                put_u32(bytes, number);
            }
            bytes.push(process.is_ending.into());
            put_length(bytes, process.groups.len());
            process.groups.iter().for_each(|group| put_u32(bytes, *group));
            put_length(bytes, process.label.len());
            bytes.extend_from_slice(&process.label);
        }
        SysvRecord::Adjustments(record) => {
            put_u64(bytes, record.turn);
            put_u64(bytes, record.clearances);
            put_length(bytes, record.adjustments.len());
            record.adjustments.iter().for_each(|change| bytes.extend_from_slice(&change.to_be_bytes()));
        }
        SysvRecord::Result(result) => match result.answer {
            StoredAnswer::Done => bytes.push(DONE),
            StoredAnswer::Set(set, count) => {
                bytes.push(FOUND_SET);
                put_set(bytes, set);
                put_u32(bytes, count);
            }
        },
    }
}

fn put_set(bytes: &mut Vec<u8>, set: SetId) {
    put_u32(bytes, set.0.cast_unsigned());
}

/// A description of a key for messages.
pub(super) fn describe(key: SysvKey) -> String {
    match key {
        SysvKey::Set(set) => format!("semaphore set {set}"),
        SysvKey::Process(process) => format!("process {process}"),
        SysvKey::Adjustments(process, set) => {
            format!("the adjustments of semaphore set {set} by process {process}")
        }
        SysvKey::Result(process, request) => {
            format!("the result of request {} of process {process}", request.0)
        }
    }
}

impl Reader<'_> {
    /// A key of this kind, after its first byte.
    pub(super) fn sysv_key(&mut self, kind: u8) -> DecodeResult<SysvKey> {
        if kind == SET {
            return self.set().map(SysvKey::Set);
        }
        let process = ProcessId(self.u64()?);
        match kind {
            PROCESS => Ok(SysvKey::Process(process)),
            ADJUSTMENTS => Ok(SysvKey::Adjustments(process, self.set()?)),
            RESULT => Ok(SysvKey::Result(process, RequestId(self.u64()?))),
            _ => Err("has an unknown kind"),
        }
    }

    pub(super) fn sysv_record(&mut self, key: SysvKey) -> DecodeResult<SysvRecord> {
        match key {
            SysvKey::Set(set) => self.set_record(set).map(SysvRecord::Set),
            SysvKey::Process(process) => self.process_record(process).map(SysvRecord::Process),
            SysvKey::Adjustments(process, set) => {
                let (turn, clearances) = (self.u64()?, self.u64()?);
                let count = self.u32()?;
                let adjustments = (0..count).map(|_| self.array().map(i16::from_be_bytes));
                let adjustments = adjustments.collect::<DecodeResult<_>>()?;
                let record = AdjustmentsRecord { process, set, turn, clearances, adjustments };
                Ok(SysvRecord::Adjustments(record))
            }
            SysvKey::Result(process, request) => {
                let answer = match self.u8()? {
                    DONE => StoredAnswer::Done,
                    FOUND_SET => StoredAnswer::Set(self.set()?, self.u32()?),
                    _ => return Err("has an unknown kind of result"),
                };
                Ok(SysvRecord::Result(ResultRecord { process, request, answer }))
            }
        }
    }

    fn set_record(&mut self, set: SetId) -> DecodeResult<SetRecord> {
        let key = self.u32()?.cast_signed();
        let order = match self.u8()? {
            0 => Order::Kernel,
            1 => Order::Fifo,
            _ => return Err("has an unknown order"),
        };
        let ownership = Ownership { uid: self.u32()?, gid: self.u32()?, mode: self.u32()? };
        let (creator_uid, creator_gid) = (self.u32()?, self.u32()?);
        let has_operated = self.boolean()?;
        let operated_at = UnixSeconds(self.u64()?);
        if !has_operated && operated_at.0 > 0 {
            return Err("has a time of operations that were never performed");
        }
        let changed_at = UnixSeconds(self.u64()?);
        let count = self.u32()?;
        let semaphores = (0..count).map(|_| {
            let value = self.array().map(u16::from_be_bytes)?;
            Ok(SemaphoreRecord { value, pid: self.u32()?, cleared: self.u64()? })
        });
        let semaphores = semaphores.collect::<DecodeResult<_>>()?;
        let operated_at = has_operated.then_some(operated_at);
        Ok(SetRecord {
            set,
            key,
            order,
            ownership,
            creator_uid,
            creator_gid,
            operated_at,
            changed_at,
            semaphores,
        })
    }

    fn process_record(&mut self, process: ProcessId) -> DecodeResult<ProcessRecord> {
        let key = SessionKey(self.array()?);
        let (ttl_ms, pid, uid) = (self.u32()?, self.u32()?, self.u32()?);
        let is_ending = self.boolean()?;
        let count = self.u32()?;
        let groups = (0..count).map(|_| self.u32()).collect::<DecodeResult<_>>()?;
        let label = self.length_prefixed()?;
        Ok(ProcessRecord { process, key, ttl_ms, pid, uid, groups, label, is_ending })
    }

    fn set(&mut self) -> DecodeResult<SetId> {
        let set = SetId(self.u32()?.cast_signed());
        if set >= SetId::FIRST { Ok(set) } else { Err("has the id of a semaphore set that no set can have") }
    }
}

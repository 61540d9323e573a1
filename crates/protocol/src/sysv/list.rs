//! Entries of the listings of sets (`docs/protocol.md`, "ListSets" and "ListUsers").

use bytes::BufMut;

use super::answer::success;
use super::request::count_of;
use super::{Operation, Operations, SetStat, SysvOpcode};
use crate::fields::Fields;
use crate::header::Opaque;
use crate::response::{BodyError, ResponseFrame};

/// One set (`docs/protocol.md`, "ListSets").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedSet {
    /// Its id.
    pub set: i32,
    /// Its key, owner, mode and times.
    pub stat: SetStat,
    /// Calls that wait.
    pub waiting: u32,
    /// Processes with adjustments.
    pub adjusting: u32,
    /// Whether it survives a restart of the server.
    pub is_durable: bool,
    /// Whether a call that takes from a semaphore waits for those before it that do.
    pub is_fifo: bool,
}

const FLAG_DURABLE: u32 = 1;
const FLAG_FIFO: u32 = 2;

/// A process that uses a set (`docs/protocol.md`, "ListUsers").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedUser {
    /// How it uses the set.
    pub role: UserRole,
    /// The process.
    pub process: u64,
    /// Its number on its machine.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// What it is called.
    pub label: Box<[u8]>,
    /// The operations of a call that waits; or the adjustments, each as an operation without flags.
    pub operations: Box<[Operation]>,
}

/// How a process uses a set (`docs/protocol.md`, "ListUsers").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserRole {
    /// It has adjustments, which are applied when it ends.
    Adjusts,
    /// A call of it waits.
    Waits,
}

impl ListedSet {
    /// Appends the frame of one entry.
    pub fn compose(&self, opaque: Opaque, out: &mut Vec<u8>) {
        success(SysvOpcode::ListSets, opaque).compose_before(out, |out| {
            out.put_i32(self.set);
            self.stat.compose(out);
            out.put_u32(self.waiting);
            out.put_u32(self.adjusting);
            let flag = |is_set, flag| if is_set { flag } else { 0 };
            out.put_u32(flag(self.is_durable, FLAG_DURABLE) | flag(self.is_fifo, FLAG_FIFO));
        });
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let set = fields.u32()?.cast_signed();
        let stat = SetStat::read(fields)?;
        let (waiting, adjusting, flags) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let [is_durable, is_fifo] = [FLAG_DURABLE, FLAG_FIFO].map(|flag| flags & flag != 0);
        Some(Self { set, stat, waiting, adjusting, is_durable, is_fifo })
    }
}

impl ListedUser {
    /// Appends the frame of one entry.
    ///
    /// # Panics
    /// If the label or the operations are more than 65535.
    pub fn compose(&self, opaque: Opaque, out: &mut Vec<u8>) {
        success(SysvOpcode::ListUsers, opaque).compose_before(out, |out| {
            let role = match self.role {
                UserRole::Adjusts => 0,
                UserRole::Waits => 1,
            };
            out.put_slice(&[role, 0, 0, 0]);
            out.put_u64(self.process);
            out.put_u32(self.pid);
            out.put_u32(self.uid);
            out.put_u16(count_of(self.label.len()));
            out.put_slice(&self.label);
            let mut bytes = Vec::new();
            let operations = Operations::encode(&self.operations, &mut bytes);
            operations.expect("operations are counted before they are listed").compose(out);
        });
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let [role, _, _, _] = fields.array()?;
        let role = match role {
            0 => UserRole::Adjusts,
            1 => UserRole::Waits,
            _ => return None,
        };
        Some(Self {
            role,
            process: fields.u64()?,
            pid: fields.u32()?,
            uid: fields.u32()?,
            label: fields.text()?.into(),
            operations: Operations::read(fields)?.iter().collect(),
        })
    }
}

/// Decoding of responses whose status is success. A body without bytes ends the listing.
impl ResponseFrame {
    /// An entry of ListSets; `None`: there are no more.
    pub fn listed_set(&self) -> Result<Option<ListedSet>, BodyError> {
        self.listed(ListedSet::read)
    }

    /// An entry of ListUsers; `None`: there are no more.
    pub fn listed_user(&self) -> Result<Option<ListedUser>, BodyError> {
        self.listed(ListedUser::read)
    }

    fn listed<T>(&self, read: impl FnOnce(&mut Fields<'_>) -> Option<T>) -> Result<Option<T>, BodyError> {
        if self.body.is_empty() {
            return Ok(None);
        }
        read(&mut Fields::new(&self.body)).map(Some).ok_or(BodyError)
    }
}

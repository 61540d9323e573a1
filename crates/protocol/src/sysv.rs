//! The operations of System V semaphore sets, `0x60` to `0x67`, and their encoding (`docs/protocol.md`, "System V semaphores").

use bytes::BufMut;

use super::LABEL_BYTES_MAX;
use super::header::{Header, Opaque};
use super::layout::{Fields, Part, length_of, parts_in_order, requests};
use super::response::{BodyError, ResponseFrame};
use signalbox_model::sysv::{
    Caller, Errno, IPC_NOWAIT, ListedSet, ListedUser, OpenedProcess, Operation, Order, Ownership, ProcessId,
    SEM_UNDO, SetAnswer, SetCommand, SetId, SetStat,
};
use signalbox_model::{Milliseconds, RequestIds, SessionKey, Status, codes};

/// The most groups of a process (`docs/protocol.md`, "OpenProcess").
pub const GROUPS_MAX: usize = 1024;

/// The time that means to wait without a limit.
pub const WAIT_FOREVER_MS: u32 = u32::MAX;

/// The bytes of one operation of a list.
const OPERATION_BYTES: usize = 6;

codes! {
    /// The operations on semaphore sets, with their codes (`docs/protocol.md`, "System V semaphores").
    pub enum SysvOpcode: u8 {
        /// Opens a process, the owner of adjustments.
        OpenProcess = 0x60,
        /// Attaches a process to this connection.
        AttachProcess = 0x61,
        /// Keeps a process for a time after its connections end.
        KeepProcess = 0x62,
        /// Finds or creates a set.
        SemGet = 0x63,
        /// Performs a list of operations, all or none.
        SemOp = 0x64,
        /// Reads or changes a set.
        SemCtl = 0x65,
        /// Lists all sets.
        ListSets = 0x66,
        /// Lists the processes that wait for a set or have adjustments of it.
        ListUsers = 0x67,
    }
}

requests! {
    /// A request of the System V operations. Each variant has a section of the same name in `docs/protocol.md`. Sets are
    /// identified by the ids that SemGet returns.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum SysvRequest<'a>: SysvOpcode {
        /// "OpenProcess".
        OpenProcess {
            /// How long the server keeps the process after its last connection was lost; `None`: the server's default.
            ttl: Option<Milliseconds>,
            /// The process's number on its machine.
            pid: u32,
            /// Its user and group.
            caller: Caller,
            /// Its supplementary groups: at most [`GROUPS_MAX`].
            groups: Vec<u32>,
            /// The label in listings.
            label: &'a [u8],
        },
        /// "AttachProcess".
        AttachProcess {
            /// The process.
            process: ProcessId,
            /// Its key.
            key: SessionKey,
        },
        /// "KeepProcess".
        KeepProcess {
            /// How long the server keeps the process without a connection.
            grace: Milliseconds,
        },
        /// "SemGet".
        SemGet {
            /// The numbers of the request.
            ids: RequestIds,
            /// The user and group of the caller.
            caller: Caller,
            /// The set's key; 0 makes a new set.
            key: i32,
            /// The number of semaphores.
            count: u32,
            /// [`IPC_CREAT`](signalbox_model::sysv::IPC_CREAT), [`IPC_EXCL`](signalbox_model::sysv::IPC_EXCL) and the
            /// nine bits of the mode.
            flags: u32,
        },
        /// "SemOp".
        SemOp {
            /// The numbers of the request.
            ids: RequestIds,
            /// The user and group of the caller.
            caller: Caller,
            /// The set.
            set: SetId,
            /// How long to wait, in milliseconds; [`WAIT_FOREVER_MS`]: without a limit.
            wait_ms: u32,
            /// The operations.
            operations: Operations<'a>,
        },
        /// "SemCtl".
        SemCtl {
            /// The numbers of the request.
            ids: RequestIds,
            /// The user and group of the caller.
            caller: Caller,
            /// The set.
            set: SetId,
            /// The command.
            command: SetCommand,
        },
        /// "ListSets".
        ListSets,
        /// "ListUsers".
        ListUsers {
            /// The set.
            set: SetId,
        },
    }
}

impl<'a> SysvRequest<'a> {
    /// Decodes the body of a request. If it breaks a rule of the operation, the error is the status of the response.
    pub(crate) fn parse(opcode: SysvOpcode, body: &'a [u8]) -> Result<Self, Status> {
        match Self::read(opcode, &mut Fields::new(body)) {
            Some(Self::OpenProcess { label, .. }) if label.len() > LABEL_BYTES_MAX => {
                Err(Status::InvalidArguments)
            }
            request => request.ok_or(Status::InvalidArguments),
        }
    }
}

/// An encoded list of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations<'a>(&'a [u8]);

impl<'a> Operations<'a> {
    /// Encodes operations into `bytes`; `None` if there are more than 65535.
    pub fn encode(operations: &[Operation], bytes: &'a mut Vec<u8>) -> Option<Self> {
        u16::try_from(operations.len()).ok()?;
        bytes.clear();
        operations.iter().for_each(|operation| operation.compose(bytes));
        Some(Self(bytes))
    }

    /// The decoded operations, without unknown flags.
    pub fn iter(self) -> impl Iterator<Item = Operation> + 'a {
        let operation = |[n1, n2, c1, c2, f1, f2]: &[u8; OPERATION_BYTES]| Operation {
            number: u16::from_be_bytes([*n1, *n2]),
            change: i16::from_be_bytes([*c1, *c2]),
            flags: u16::from_be_bytes([*f1, *f2]) & (IPC_NOWAIT | SEM_UNDO),
        };
        self.0.as_chunks().0.iter().map(operation)
    }

    /// The number of operations.
    pub fn count(self) -> usize {
        self.0.len() / OPERATION_BYTES
    }
}

/// The number of groups, and the groups.
impl Part<'_> for Vec<u32> {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let count = fields.length().filter(|count| *count <= GROUPS_MAX)?;
        (0..count).map(|_| fields.u32()).collect()
    }

    fn compose(&self, out: &mut Vec<u8>) {
        out.put_u16(length_of(self));
        self.iter().for_each(|group| out.put_u32(*group));
    }
}

impl<'a> Part<'a> for Operations<'a> {
    fn read(fields: &mut Fields<'a>) -> Option<Self> {
        let count = fields.length()?;
        fields.bytes(count * OPERATION_BYTES).map(Self)
    }

    fn compose(&self, out: &mut Vec<u8>) {
        out.put_u16(length_of(self.0.as_chunks::<OPERATION_BYTES>().0));
        out.put_slice(self.0);
    }
}

impl Part<'_> for Box<[Operation]> {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Operations::read(fields)?.iter().collect())
    }

    fn compose(&self, out: &mut Vec<u8>) {
        out.put_u16(length_of(self));
        self.iter().for_each(|operation| operation.compose(out));
    }
}

/// The number of values, and the values.
impl Part<'_> for Box<[u16]> {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let count = fields.length()?;
        let values = fields.bytes(count * 2)?.as_chunks().0;
        Some(values.iter().map(|value| u16::from_be_bytes(*value)).collect())
    }

    fn compose(&self, out: &mut Vec<u8>) {
        out.put_u16(length_of(self));
        self.iter().for_each(|value| out.put_u16(*value));
    }
}

impl Part<'_> for SetCommand {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let [code, _, _, _] = fields.array()?;
        let number = fields.u32()?;
        Some(match code {
            0 => Self::Remove,
            1 => Self::SetOwnership(Part::read(fields)?),
            2 => Self::Stat,
            3 => Self::GetValue(number),
            4 => Self::SetValue(number, Part::read(fields)?),
            5 => Self::GetAll,
            6 => Self::SetAll(Part::read(fields)?),
            7 => Self::GetPid(number),
            8 => Self::GetNCount(number),
            9 => Self::GetZCount(number),
            _ => return None,
        })
    }

    fn compose(&self, out: &mut Vec<u8>) {
        let (code, number) = match *self {
            Self::Remove => (0, 0),
            Self::SetOwnership(_) => (1, 0),
            Self::Stat => (2, 0),
            Self::GetValue(number) => (3, number),
            Self::SetValue(number, _) => (4, number),
            Self::GetAll => (5, 0),
            Self::SetAll(_) => (6, 0),
            Self::GetPid(number) => (7, number),
            Self::GetNCount(number) => (8, number),
            Self::GetZCount(number) => (9, number),
        };
        out.put_slice(&[code, 0, 0, 0]);
        out.put_u32(number);
        match self {
            Self::SetOwnership(ownership) => ownership.compose(out),
            Self::SetValue(_, value) => value.compose(out),
            Self::SetAll(values) => values.compose(out),
            _ => {}
        }
    }
}

impl Part<'_> for SetStat {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let key = Part::read(fields)?;
        let (uid, gid) = (fields.u32()?, fields.u32()?);
        Some(Self {
            key,
            creator_uid: fields.u32()?,
            creator_gid: fields.u32()?,
            ownership: Ownership { uid, gid, mode: fields.u32()? },
            operated_at: Part::read(fields)?,
            changed_at: Part::read(fields)?,
            count: fields.u32()?,
        })
    }

    fn compose(&self, out: &mut Vec<u8>) {
        let Ownership { uid, gid, mode } = self.ownership;
        self.key.compose(out);
        for field in [uid, gid, self.creator_uid, self.creator_gid, mode] {
            out.put_u32(field);
        }
        self.operated_at.compose(out);
        self.changed_at.compose(out);
        out.put_u32(self.count);
    }
}

const FLAG_DURABLE: u32 = 1;
const FLAG_FIFO: u32 = 2;

impl Part<'_> for ListedSet {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (set, stat) = (Part::read(fields)?, Part::read(fields)?);
        let (waiting, adjusting, flags) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let order = if flags & FLAG_FIFO != 0 { Order::Fifo } else { Order::Kernel };
        Some(Self { set, stat, waiting, adjusting, order, is_durable: flags & FLAG_DURABLE != 0 })
    }

    fn compose(&self, out: &mut Vec<u8>) {
        self.set.compose(out);
        self.stat.compose(out);
        out.put_u32(self.waiting);
        out.put_u32(self.adjusting);
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        out.put_u32(flag(self.is_durable, FLAG_DURABLE) | flag(self.order == Order::Fifo, FLAG_FIFO));
    }
}

/// A text, as for `&[u8]`.
impl Part<'_> for Box<[u8]> {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        fields.text().map(Self::from)
    }

    fn compose(&self, out: &mut Vec<u8>) {
        (&**self).compose(out);
    }
}

parts_in_order! {
    ListedUser { role, process, pid, uid, label, operations }
}

/// Appends a frame of success with the body that `compose_body` appends.
fn compose_success(
    opcode: SysvOpcode,
    opaque: Opaque,
    out: &mut Vec<u8>,
    compose_body: impl FnOnce(&mut Vec<u8>),
) {
    Header::response(opcode.code(), Status::NoError, opaque).compose_before(out, compose_body);
}

/// Appends the response to a SemGet, SemOp or SemCtl with this opcode and opaque.
pub fn compose_call(
    result: &Result<SetAnswer, Errno>,
    opcode: SysvOpcode,
    opaque: Opaque,
    out: &mut Vec<u8>,
) {
    compose_success(opcode, opaque, out, |out| {
        out.put_u32(result.as_ref().err().map_or(0, |errno| errno.code()));
        match result {
            Ok(SetAnswer::Set(set, count)) => {
                set.compose(out);
                count.compose(out);
            }
            Ok(SetAnswer::Number(number)) => number.compose(out),
            Ok(SetAnswer::Values(values)) => values.compose(out),
            Ok(SetAnswer::Stat(stat)) => stat.compose(out),
            Ok(SetAnswer::Done) | Err(_) => {}
        }
    });
}

/// Appends the response to OpenProcess.
pub fn compose_opened_process(opened: &OpenedProcess, opaque: Opaque, out: &mut Vec<u8>) {
    compose_success(SysvOpcode::OpenProcess, opaque, out, |out| opened.compose(out));
}

/// Appends one entry of the response to ListSets.
pub fn compose_listed_set(listed: &ListedSet, opaque: Opaque, out: &mut Vec<u8>) {
    compose_success(SysvOpcode::ListSets, opaque, out, |out| listed.compose(out));
}

/// Appends one entry of the response to ListUsers.
///
/// # Panics
/// If the label is longer than 65535 bytes, or there are more than 65535 operations.
pub fn compose_listed_user(listed: &ListedUser, opaque: Opaque, out: &mut Vec<u8>) {
    compose_success(SysvOpcode::ListUsers, opaque, out, |out| listed.compose(out));
}

/// Decodes the bodies of responses whose status is success. Each method fails with [`BodyError`] if the body is
/// malformed.
impl ResponseFrame {
    /// The response to OpenProcess.
    pub fn opened_process(&self) -> Result<OpenedProcess, BodyError> {
        self.part()
    }

    /// The response to SemOp, or to a command of SemCtl that changes a set.
    pub fn call_done(&self) -> Result<Result<(), Errno>, BodyError> {
        self.call(|_| Some(()))
    }

    /// The response to SemGet: the set's id and its number of semaphores.
    pub fn call_set(&self) -> Result<Result<(SetId, u32), Errno>, BodyError> {
        self.call(|fields| Some((Part::read(fields)?, fields.u32()?)))
    }

    /// The response to a command of SemCtl that reads a number.
    pub fn call_number(&self) -> Result<Result<u32, Errno>, BodyError> {
        self.call(Fields::u32)
    }

    /// The response to a SemCtl with [`SetCommand::GetAll`].
    pub fn call_values(&self) -> Result<Result<Vec<u16>, Errno>, BodyError> {
        self.call(|fields| <Box<[u16]>>::read(fields).map(Vec::from))
    }

    /// The response to a SemCtl with [`SetCommand::Stat`].
    pub fn call_stat(&self) -> Result<Result<SetStat, Errno>, BodyError> {
        self.call(SetStat::read)
    }

    /// Decodes the error of a call that failed, or, by `read`, the result of a call that succeeded.
    fn call<'a, T>(
        &'a self,
        read: impl FnOnce(&mut Fields<'a>) -> Option<T>,
    ) -> Result<Result<T, Errno>, BodyError> {
        let mut fields = Fields::new(&self.body);
        match fields.u32() {
            Some(0) => read(&mut fields).map(Ok).ok_or(BodyError),
            Some(errno) => Errno::from_code(errno).map(Err).ok_or(BodyError),
            None => Err(BodyError),
        }
    }

    /// One entry of the response to ListSets; `None` at the end of the list.
    pub fn listed_set(&self) -> Result<Option<ListedSet>, BodyError> {
        self.entry(|body| ListedSet::read(&mut Fields::new(body)))
    }

    /// One entry of the response to ListUsers; `None` at the end of the list.
    pub fn listed_user(&self) -> Result<Option<ListedUser>, BodyError> {
        self.entry(|body| ListedUser::read(&mut Fields::new(body)))
    }
}

//! Requests of the System V operations and their encoding (`docs/protocol.md`, "System V semaphores").

use bytes::BufMut;

use super::{GROUPS_MAX, SysvOpcode};
use crate::extended::{LABEL_BYTES_MAX, Milliseconds, RequestId, RequestIds, SessionKey};
use crate::fields::Fields;
use crate::header::{Header, Opaque};
use crate::status::Status;

/// Stands for a wait without an end.
pub const WAIT_FOREVER_MS: u32 = u32::MAX;

/// The bytes of one operation of a list.
const OPERATION_BYTES: usize = 6;

/// A request of the System V operations. Each variant has a section of the same name in `docs/protocol.md`. Sets are
/// identified by the ids that SemGet returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SysvRequest<'a> {
    /// "OpenProcess".
    OpenProcess {
        /// How long the process lives on after its last connection was lost; `None`: the server's default.
        ttl: Option<Milliseconds>,
        /// The process's number on its machine.
        pid: u32,
        /// Its user and group.
        caller: Caller,
        /// Its further groups.
        groups: Groups<'a>,
        /// What listings call it.
        label: &'a [u8],
    },
    /// "AttachProcess".
    AttachProcess {
        /// The process.
        process: u64,
        /// Its key.
        key: SessionKey,
    },
    /// "KeepProcess".
    KeepProcess {
        /// How long the process lives on without a connection.
        grace: Milliseconds,
    },
    /// "SemGet".
    SemGet {
        /// The numbers of the request.
        ids: RequestIds,
        /// The user and group that ask.
        caller: Caller,
        /// The set's key; 0 makes a new set.
        key: i32,
        /// The number of semaphores.
        count: u32,
        /// [`IPC_CREAT`](super::IPC_CREAT), [`IPC_EXCL`](super::IPC_EXCL) and the nine bits of the mode.
        flags: u32,
    },
    /// "SemOp".
    SemOp {
        /// The numbers of the request.
        ids: RequestIds,
        /// The user and group that ask.
        caller: Caller,
        /// The set.
        set: i32,
        /// How long to wait; [`WAIT_FOREVER_MS`]: without an end.
        wait_ms: u32,
        /// The operations.
        operations: Operations<'a>,
    },
    /// "SemCtl".
    SemCtl {
        /// The numbers of the request.
        ids: RequestIds,
        /// The user and group that ask.
        caller: Caller,
        /// The set.
        set: i32,
        /// What to do.
        command: SetCommand<'a>,
    },
    /// "ListSets".
    ListSets,
    /// "ListUsers".
    ListUsers {
        /// The set.
        set: i32,
    },
}

/// The user and the group that a call is checked against, as the client states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
}

/// Group ids, as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups<'a>(&'a [u8]);

/// A list of operations, as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations<'a>(&'a [u8]);

/// Values of the semaphores of a set, as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Values<'a>(&'a [u8]);

/// One operation of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The number of the semaphore in its set.
    pub number: u16,
    /// What is added to the value; 0 waits until the value is 0.
    pub change: i16,
    /// [`IPC_NOWAIT`](super::IPC_NOWAIT) and [`SEM_UNDO`](super::SEM_UNDO).
    pub flags: u16,
}

/// What SemCtl does. Each variant is a row of the table in `docs/protocol.md`, "SemCtl".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetCommand<'a> {
    /// Removes the set.
    Remove,
    /// Changes the owner and the mode.
    SetOwnership(Ownership),
    /// Reads the owner, the mode, the times and the number of semaphores.
    Stat,
    /// Reads a semaphore's value.
    GetValue(u32),
    /// Sets a semaphore's value.
    SetValue(u32, i32),
    /// Reads the values of all semaphores.
    GetAll,
    /// Sets the values of all semaphores.
    SetAll(Values<'a>),
    /// Reads which process changed a semaphore last.
    GetPid(u32),
    /// Reads how many calls wait for a semaphore's value to grow.
    GetNCount(u32),
    /// Reads how many calls wait for a semaphore's value to become 0.
    GetZCount(u32),
}

/// The owner and the mode of a set (`docs/protocol.md`, "SemCtl").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The owner's user id.
    pub uid: u32,
    /// The owner's group id.
    pub gid: u32,
    /// The mode; its nine lowest bits count.
    pub mode: u32,
}

impl Caller {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self { uid: fields.u32()?, gid: fields.u32()? })
    }

    fn compose(self, out: &mut Vec<u8>) {
        out.put_u32(self.uid);
        out.put_u32(self.gid);
    }
}

impl<'a> Groups<'a> {
    /// Encodes groups into `bytes`. Those beyond [`GROUPS_MAX`] are left out.
    pub fn encode(groups: &[u32], bytes: &'a mut Vec<u8>) -> Self {
        bytes.clear();
        groups.iter().take(GROUPS_MAX).for_each(|group| bytes.put_u32(*group));
        Self(bytes)
    }

    /// The groups.
    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        self.0.as_chunks().0.iter().map(|group| u32::from_be_bytes(*group))
    }
}

impl<'a> Operations<'a> {
    /// Encodes operations into `bytes`. `None`: they are more than fit on the wire.
    pub fn encode(operations: &[Operation], bytes: &'a mut Vec<u8>) -> Option<Self> {
        u16::try_from(operations.len()).ok()?;
        bytes.clear();
        for Operation { number, change, flags } in operations {
            bytes.put_u16(*number);
            bytes.put_i16(*change);
            bytes.put_u16(*flags);
        }
        Some(Self(bytes))
    }

    /// The operations.
    pub fn iter(self) -> impl Iterator<Item = Operation> + 'a {
        let operation = |[n1, n2, c1, c2, f1, f2]: &[u8; OPERATION_BYTES]| Operation {
            number: u16::from_be_bytes([*n1, *n2]),
            change: i16::from_be_bytes([*c1, *c2]),
            flags: u16::from_be_bytes([*f1, *f2]),
        };
        self.0.as_chunks().0.iter().map(operation)
    }

    /// How many operations there are.
    pub fn count(self) -> usize {
        self.0.len() / OPERATION_BYTES
    }

    pub(super) fn read(fields: &mut Fields<'a>) -> Option<Self> {
        let count = fields.length()?;
        fields.bytes(count * OPERATION_BYTES).map(Self)
    }

    pub(super) fn compose(self, out: &mut Vec<u8>) {
        out.put_u16(count_of(self.count()));
        out.put_slice(self.0);
    }
}

impl<'a> Values<'a> {
    /// Encodes values into `bytes`. `None`: they are more than fit on the wire.
    pub fn encode(values: &[u16], bytes: &'a mut Vec<u8>) -> Option<Self> {
        u16::try_from(values.len()).ok()?;
        bytes.clear();
        values.iter().for_each(|value| bytes.put_u16(*value));
        Some(Self(bytes))
    }

    /// The values.
    pub fn iter(self) -> impl Iterator<Item = u16> + 'a {
        self.0.as_chunks().0.iter().map(|value| u16::from_be_bytes(*value))
    }

    /// How many values there are.
    pub fn count(self) -> usize {
        self.0.len() / 2
    }

    pub(super) fn read(fields: &mut Fields<'a>) -> Option<Self> {
        let count = fields.length()?;
        fields.bytes(count * 2).map(Self)
    }

    pub(super) fn compose(self, out: &mut Vec<u8>) {
        out.put_u16(count_of(self.count()));
        out.put_slice(self.0);
    }
}

impl<'a> SetCommand<'a> {
    /// Whether the command changes the set. The others only read it.
    pub fn is_change(&self) -> bool {
        matches!(self, Self::Remove | Self::SetOwnership(_) | Self::SetValue(..) | Self::SetAll(_))
    }

    fn read(fields: &mut Fields<'a>) -> Option<Self> {
        let [code, _, _, _] = fields.array()?;
        let number = fields.u32()?;
        Some(match code {
            0 => Self::Remove,
            1 => {
                Self::SetOwnership(Ownership { uid: fields.u32()?, gid: fields.u32()?, mode: fields.u32()? })
            }
            2 => Self::Stat,
            3 => Self::GetValue(number),
            4 => Self::SetValue(number, fields.u32()?.cast_signed()),
            5 => Self::GetAll,
            6 => Self::SetAll(Values::read(fields)?),
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
            Self::SetOwnership(Ownership { uid, gid, mode }) => {
                [uid, gid, mode].into_iter().for_each(|field| out.put_u32(*field));
            }
            Self::SetValue(_, value) => out.put_i32(*value),
            Self::SetAll(values) => values.compose(out),
            _ => {}
        }
    }
}

impl<'a> SysvRequest<'a> {
    /// Decodes the body of a request. If it breaks a rule of the operation, the error is the status of the response.
    pub(crate) fn parse(opcode: SysvOpcode, body: &'a [u8]) -> Result<Self, Status> {
        Self::read(opcode, &mut Fields::new(body)).ok_or(Status::InvalidArguments)
    }

    fn read(opcode: SysvOpcode, fields: &mut Fields<'a>) -> Option<Self> {
        Some(match opcode {
            SysvOpcode::OpenProcess => {
                let (ttl, pid) = (fields.u32()?, fields.u32()?);
                let caller = Caller::read(fields)?;
                let count = fields.length().filter(|count| *count <= GROUPS_MAX)?;
                let groups = Groups(fields.bytes(count * 4)?);
                let label = fields.text().filter(|label| label.len() <= LABEL_BYTES_MAX)?;
                Self::OpenProcess { ttl: (ttl != 0).then_some(Milliseconds(ttl)), pid, caller, groups, label }
            }
            SysvOpcode::AttachProcess => {
                Self::AttachProcess { process: fields.u64()?, key: SessionKey(fields.array()?) }
            }
            SysvOpcode::KeepProcess => Self::KeepProcess { grace: Milliseconds(fields.u32()?) },
            SysvOpcode::SemGet => Self::SemGet {
                ids: RequestIds::read(fields)?,
                caller: Caller::read(fields)?,
                key: fields.u32()?.cast_signed(),
                count: fields.u32()?,
                flags: fields.u32()?,
            },
            SysvOpcode::SemOp => Self::SemOp {
                ids: RequestIds::read(fields)?,
                caller: Caller::read(fields)?,
                set: fields.u32()?.cast_signed(),
                wait_ms: fields.u32()?,
                operations: Operations::read(fields)?,
            },
            SysvOpcode::SemCtl => Self::SemCtl {
                ids: RequestIds::read(fields)?,
                caller: Caller::read(fields)?,
                set: fields.u32()?.cast_signed(),
                command: SetCommand::read(fields)?,
            },
            SysvOpcode::ListSets => Self::ListSets,
            SysvOpcode::ListUsers => Self::ListUsers { set: fields.u32()?.cast_signed() },
        })
    }

    /// The operation of the request.
    pub fn opcode(&self) -> SysvOpcode {
        match self {
            Self::OpenProcess { .. } => SysvOpcode::OpenProcess,
            Self::AttachProcess { .. } => SysvOpcode::AttachProcess,
            Self::KeepProcess { .. } => SysvOpcode::KeepProcess,
            Self::SemGet { .. } => SysvOpcode::SemGet,
            Self::SemOp { .. } => SysvOpcode::SemOp,
            Self::SemCtl { .. } => SysvOpcode::SemCtl,
            Self::ListSets => SysvOpcode::ListSets,
            Self::ListUsers { .. } => SysvOpcode::ListUsers,
        }
    }

    /// Appends the encoded frame to `out`.
    ///
    /// # Panics
    /// If a label is longer than 65535 bytes.
    pub fn compose(&self, opaque: Opaque, out: &mut Vec<u8>) {
        Header::request(self.opcode().code(), opaque).compose_before(out, |out| self.compose_body(out));
    }

    fn compose_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::OpenProcess { ttl, pid, caller, groups, label } => {
                out.put_u32(ttl.map_or(0, |ttl| ttl.0));
                out.put_u32(*pid);
                caller.compose(out);
                out.put_u16(count_of(groups.0.len() / 4));
                out.put_slice(groups.0);
                out.put_u16(count_of(label.len()));
                out.put_slice(label);
            }
            Self::AttachProcess { process, key } => {
                out.put_u64(*process);
                out.put_slice(&key.0);
            }
            Self::KeepProcess { grace } => out.put_u32(grace.0),
            Self::SemGet { ids, caller, key, count, flags } => {
                put_call(*ids, *caller, out);
                out.put_i32(*key);
                out.put_u32(*count);
                out.put_u32(*flags);
            }
            Self::SemOp { ids, caller, set, wait_ms, operations } => {
                put_call(*ids, *caller, out);
                out.put_i32(*set);
                out.put_u32(*wait_ms);
                operations.compose(out);
            }
            Self::SemCtl { ids, caller, set, command } => {
                put_call(*ids, *caller, out);
                out.put_i32(*set);
                command.compose(out);
            }
            Self::ListSets => {}
            Self::ListUsers { set } => out.put_i32(*set),
        }
    }
}

fn put_call(ids: RequestIds, caller: Caller, out: &mut Vec<u8>) {
    let RequestIds { own: RequestId(own), lowest_unanswered: RequestId(lowest) } = ids;
    out.put_u64(own);
    out.put_u64(lowest);
    caller.compose(out);
}

/// A number of rows or bytes on the wire.
pub(super) fn count_of(count: usize) -> u16 {
    u16::try_from(count).expect("rows and labels are counted before they are encoded")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_process(groups: usize, label: usize) -> Result<(usize, usize), Status> {
        let mut body = vec![0; 16];
        body.put_u16(count_of(groups));
        body.extend(vec![0; 4 * groups]);
        body.put_u16(count_of(label));
        body.extend(vec![b'x'; label]);
        match SysvRequest::parse(SysvOpcode::OpenProcess, &body)? {
            SysvRequest::OpenProcess { groups, label, .. } => Ok((groups.iter().count(), label.len())),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_process_has_at_most_1024_groups_and_a_label_of_the_length_of_others() {
        assert_eq!(open_process(0, 0), Ok((0, 0)));
        assert_eq!(open_process(1024, LABEL_BYTES_MAX), Ok((1024, LABEL_BYTES_MAX)));
        assert_eq!(open_process(1025, 0), Err(Status::InvalidArguments));
        assert_eq!(open_process(0, LABEL_BYTES_MAX + 1), Err(Status::InvalidArguments));
        let mut bytes = Vec::new();
        assert_eq!(Groups::encode(&[7; 1025], &mut bytes).iter().count(), 1024, "more are left out");
    }
}

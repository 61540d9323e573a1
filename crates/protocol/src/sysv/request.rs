//! Requests of the System V operations and their encoding (`docs/protocol.md`, "System V semaphores").

use bytes::BufMut;

use super::{GROUPS_MAX, SysvOpcode};
use crate::extended::{LABEL_BYTES_MAX, Part};
use crate::fields::Fields;
use crate::header::{Header, Opaque};
use signalbox_model::sysv::{Caller, IPC_NOWAIT, Operation, ProcessId, SEM_UNDO, SetCommand, SetId};
use signalbox_model::{Milliseconds, RequestIds, SessionKey, Status};

/// Stands for a wait without an end.
pub const WAIT_FOREVER_MS: u32 = u32::MAX;

/// The bytes of one operation of a list.
const OPERATION_BYTES: usize = 6;

/// A request of the System V operations. Each variant has a section of the same name in `docs/protocol.md`. Sets are
/// identified by the ids that SemGet returns.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        process: ProcessId,
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
        /// [`IPC_CREAT`](signalbox_model::sysv::IPC_CREAT), [`IPC_EXCL`](signalbox_model::sysv::IPC_EXCL) and the nine bits of the mode.
        flags: u32,
    },
    /// "SemOp".
    SemOp {
        /// The numbers of the request.
        ids: RequestIds,
        /// The user and group that ask.
        caller: Caller,
        /// The set.
        set: SetId,
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
        set: SetId,
        /// What to do.
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

/// Group ids, as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups<'a>(&'a [u8]);

/// A list of operations, as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations<'a>(&'a [u8]);

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

    /// The operations. Flags without a meaning are left out.
    pub fn iter(self) -> impl Iterator<Item = Operation> + 'a {
        let operation = |[n1, n2, c1, c2, f1, f2]: &[u8; OPERATION_BYTES]| Operation {
            number: u16::from_be_bytes([*n1, *n2]),
            change: i16::from_be_bytes([*c1, *c2]),
            flags: u16::from_be_bytes([*f1, *f2]) & (IPC_NOWAIT | SEM_UNDO),
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

/// The number of values, and the values.
pub(super) fn read_values(fields: &mut Fields<'_>) -> Option<Box<[u16]>> {
    let count = fields.length()?;
    let values = fields.bytes(count * 2)?.as_chunks().0;
    Some(values.iter().map(|value| u16::from_be_bytes(*value)).collect())
}

pub(super) fn put_values(values: &[u16], out: &mut Vec<u8>) {
    out.put_u16(count_of(values.len()));
    values.iter().for_each(|value| out.put_u16(*value));
}

fn read_command(fields: &mut Fields<'_>) -> Option<SetCommand> {
    let [code, _, _, _] = fields.array()?;
    let number = fields.u32()?;
    Some(match code {
        0 => SetCommand::Remove,
        1 => SetCommand::SetOwnership(Part::read(fields)?),
        2 => SetCommand::Stat,
        3 => SetCommand::GetValue(number),
        4 => SetCommand::SetValue(number, fields.u32()?.cast_signed()),
        5 => SetCommand::GetAll,
        6 => SetCommand::SetAll(read_values(fields)?),
        7 => SetCommand::GetPid(number),
        8 => SetCommand::GetNCount(number),
        9 => SetCommand::GetZCount(number),
        _ => return None,
    })
}

fn put_command(command: &SetCommand, out: &mut Vec<u8>) {
    let (code, number) = match *command {
        SetCommand::Remove => (0, 0),
        SetCommand::SetOwnership(_) => (1, 0),
        SetCommand::Stat => (2, 0),
        SetCommand::GetValue(number) => (3, number),
        SetCommand::SetValue(number, _) => (4, number),
        SetCommand::GetAll => (5, 0),
        SetCommand::SetAll(_) => (6, 0),
        SetCommand::GetPid(number) => (7, number),
        SetCommand::GetNCount(number) => (8, number),
        SetCommand::GetZCount(number) => (9, number),
    };
    out.put_slice(&[code, 0, 0, 0]);
    out.put_u32(number);
    match command {
        SetCommand::SetOwnership(ownership) => ownership.compose(out),
        SetCommand::SetValue(_, value) => out.put_i32(*value),
        SetCommand::SetAll(values) => put_values(values, out),
        _ => {}
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
                let caller = Part::read(fields)?;
                let count = fields.length().filter(|count| *count <= GROUPS_MAX)?;
                let groups = Groups(fields.bytes(count * 4)?);
                let label = fields.text().filter(|label| label.len() <= LABEL_BYTES_MAX)?;
                Self::OpenProcess { ttl: (ttl != 0).then_some(Milliseconds(ttl)), pid, caller, groups, label }
            }
            SysvOpcode::AttachProcess => {
                Self::AttachProcess { process: Part::read(fields)?, key: Part::read(fields)? }
            }
            SysvOpcode::KeepProcess => Self::KeepProcess { grace: Part::read(fields)? },
            SysvOpcode::SemGet => Self::SemGet {
                ids: Part::read(fields)?,
                caller: Part::read(fields)?,
                key: fields.u32()?.cast_signed(),
                count: fields.u32()?,
                flags: fields.u32()?,
            },
            SysvOpcode::SemOp => Self::SemOp {
                ids: Part::read(fields)?,
                caller: Part::read(fields)?,
                set: Part::read(fields)?,
                wait_ms: fields.u32()?,
                operations: Operations::read(fields)?,
            },
            SysvOpcode::SemCtl => Self::SemCtl {
                ids: Part::read(fields)?,
                caller: Part::read(fields)?,
                set: Part::read(fields)?,
                command: read_command(fields)?,
            },
            SysvOpcode::ListSets => Self::ListSets,
            SysvOpcode::ListUsers => Self::ListUsers { set: Part::read(fields)? },
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
                process.compose(out);
                key.compose(out);
            }
            Self::KeepProcess { grace } => grace.compose(out),
            Self::SemGet { ids, caller, key, count, flags } => {
                ids.compose(out);
                caller.compose(out);
                out.put_i32(*key);
                out.put_u32(*count);
                out.put_u32(*flags);
            }
            Self::SemOp { ids, caller, set, wait_ms, operations } => {
                ids.compose(out);
                caller.compose(out);
                set.compose(out);
                out.put_u32(*wait_ms);
                operations.compose(out);
            }
            Self::SemCtl { ids, caller, set, command } => {
                ids.compose(out);
                caller.compose(out);
                set.compose(out);
                put_command(command, out);
            }
            Self::ListSets => {}
            Self::ListUsers { set } => set.compose(out),
        }
    }
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

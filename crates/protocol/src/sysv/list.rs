//! Entries of the listings of sets (`docs/protocol.md`, "ListSets" and "ListUsers").

use bytes::BufMut;

use super::answer::{put_stat, read_stat, success};
use super::request::count_of;
use super::{Operations, SysvOpcode};
use crate::extended::Part;
use crate::fields::Fields;
use crate::header::Opaque;
use crate::response::{BodyError, ResponseFrame};
use signalbox_model::sysv::{ListedSet, ListedUser, Order, ProcessId, UserRole};

const FLAG_DURABLE: u32 = 1;
const FLAG_FIFO: u32 = 2;

/// Appends the frame of an entry of ListSets.
pub fn compose_listed_set(listed: &ListedSet, opaque: Opaque, out: &mut Vec<u8>) {
    success(SysvOpcode::ListSets, opaque).compose_before(out, |out| {
        out.put_i32(listed.set.0);
        put_stat(&listed.stat, out);
        out.put_u32(listed.waiting);
        out.put_u32(listed.adjusting);
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let is_fifo = listed.order == Order::Fifo;
        out.put_u32(flag(listed.is_durable, FLAG_DURABLE) | flag(is_fifo, FLAG_FIFO));
    });
}

fn read_listed_set(fields: &mut Fields<'_>) -> Option<ListedSet> {
    let (set, stat) = (Part::read(fields)?, read_stat(fields)?);
    let (waiting, adjusting, flags) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let order = if flags & FLAG_FIFO != 0 { Order::Fifo } else { Order::Kernel };
    Some(ListedSet { set, stat, waiting, adjusting, order, is_durable: flags & FLAG_DURABLE != 0 })
}

/// Appends the frame of an entry of ListUsers.
///
/// # Panics
/// If the label or the operations are more than 65535.
pub fn compose_listed_user(listed: &ListedUser, opaque: Opaque, out: &mut Vec<u8>) {
    success(SysvOpcode::ListUsers, opaque).compose_before(out, |out| {
        out.put_slice(&[listed.role.code(), 0, 0, 0]);
        out.put_u64(listed.process.0);
        out.put_u32(listed.pid);
        out.put_u32(listed.uid);
        out.put_u16(count_of(listed.label.len()));
        out.put_slice(&listed.label);
        let mut bytes = Vec::new();
        let operations = Operations::encode(&listed.operations, &mut bytes);
        operations.expect("operations are counted before they are listed").compose(out);
    });
}

fn read_listed_user(fields: &mut Fields<'_>) -> Option<ListedUser> {
    let [role, _, _, _] = fields.array()?;
    Some(ListedUser {
        role: UserRole::from_code(role)?,
        process: ProcessId(fields.u64()?),
        pid: fields.u32()?,
        uid: fields.u32()?,
        label: fields.text()?.into(),
        operations: Operations::read(fields)?.iter().collect(),
    })
}

/// Decoding of responses whose status is success. A body without bytes ends the listing.
impl ResponseFrame {
    /// An entry of ListSets; `None`: there are no more.
    pub fn listed_set(&self) -> Result<Option<ListedSet>, BodyError> {
        self.entry(|body| read_listed_set(&mut Fields::new(body)))
    }

    /// An entry of ListUsers; `None`: there are no more.
    pub fn listed_user(&self) -> Result<Option<ListedUser>, BodyError> {
        self.entry(|body| read_listed_user(&mut Fields::new(body)))
    }
}

//! Notices about what a connection holds (`docs/protocol.md`, "Notices").

use bytes::BufMut;

use super::layout::{Part, parts_in_order};
use super::whereabouts::{Moved, put_addresses, read_addresses};
use crate::Opaque;
use crate::fields::Fields;
use signalbox_model::{GrantId, Milliseconds, Notice};

/// When a grant or a session ends that is being revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// A request of the same connection.
    pub request: Opaque,
    /// So long after the server received the request.
    pub after: Milliseconds,
}

parts_in_order! { End { request, after } }

/// A notice as a client receives it.
pub type ReceivedNotice = Notice<End, Moved<Vec<String>>>;

pub(super) fn put_notice(notice: &Notice<End, Moved<&[String]>>, out: &mut Vec<u8>) {
    let (kind, number) = match notice {
        Notice::GrantRevoked { grant, .. } => (1, grant.0),
        Notice::SessionRevoked { session, .. } => (2, *session),
        Notice::AttachedElsewhere { session } => (3, *session),
        Notice::ShuttingDown => (4, 0),
        Notice::Moved(moved) => (5, moved.epoch.into()),
    };
    out.put_slice(&[kind, 0, 0, 0]);
    out.put_u64(number);
    match notice {
        Notice::GrantRevoked { end, .. } | Notice::SessionRevoked { end, .. } => end.compose(out),
        Notice::Moved(moved) => put_addresses(moved.addresses, out),
        Notice::AttachedElsewhere { .. } | Notice::ShuttingDown => {}
    }
}

/// Decodes a notice; `Some(None)` if the kind is unknown, `None` if the body is malformed.
pub(super) fn read_notice(fields: &mut Fields<'_>) -> Option<Option<ReceivedNotice>> {
    let [kind, _, _, _] = fields.array()?;
    let number = fields.u64()?;
    Some(Some(match kind {
        1 => Notice::GrantRevoked { grant: GrantId(number), end: Part::read(fields)? },
        2 => Notice::SessionRevoked { session: number, end: Part::read(fields)? },
        3 => Notice::AttachedElsewhere { session: number },
        4 => Notice::ShuttingDown,
        5 => {
            let (epoch, addresses) = (u32::try_from(number).ok()?, read_addresses(fields)?);
            Notice::Moved(Moved { epoch, addresses })
        }
        _ => return Some(None),
    }))
}

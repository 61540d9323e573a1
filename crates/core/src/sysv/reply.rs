//! What is kept of a call: its result, or what it waits for.

use crate::mailbox::ReplyTo;
use crate::request_log;
use signalbox_model::RequestId;
use signalbox_model::sysv::{Errno, ProcessId, SetAnswer, SetId};

/// The number of a waiting call among those of its set, in the order of their arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaiterId(pub(super) u64);

/// The cached reply to a request, or what it waits for.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Waiting(SetId, WaiterId),
    /// The result is sent when everything so far is stored.
    Storing(Done, Option<ReplyTo>),
    Done(Done),
}

impl request_log::Reply for Reply {
    fn bytes(&self) -> usize {
        match self {
            Self::Storing(Done { result: Ok(SetAnswer::Values(values)), .. }, _)
            | Self::Done(Done { result: Ok(SetAnswer::Values(values)), .. }) => size_of_val::<[_]>(values),
            _ => 0,
        }
    }
}

/// The result of a call.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) result: Result<SetAnswer, Errno>,
    /// Whether the call has changed a durable set, so that the store has the result.
    pub(super) is_stored: bool,
}

/// The call whose result is sent on commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(super) process: ProcessId,
    pub(super) request: RequestId,
}

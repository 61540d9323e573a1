//! Answers of the core as bytes, whether they come at once or later.

use signalbox_core::{Answer, Granted};
use signalbox_model::{Milliseconds, Refusal, Status, TtlLeft};
use signalbox_protocol::{AllGranted, ExtendedOpcode, ExtendedResponse, Opaque, OpenedSession, Response};

/// Appends the answer to a request with this opcode.
pub(super) fn compose_answer(opcode: ExtendedOpcode, opaque: Opaque, answer: &Answer, out: &mut Vec<u8>) {
    let code = opcode.code();
    let response = match (opcode, answer) {
        (ExtendedOpcode::AcquireGrant | ExtendedOpcode::AcquireAll, Answer::Granted(granted)) => {
            return compose_granted(opcode, opaque, granted, out);
        }
        (ExtendedOpcode::OpenSession, Answer::Opened(opened)) => ExtendedResponse::Opened(OpenedSession {
            session: opened.session.number(),
            key: opened.key,
            ttl: Milliseconds(opened.ttl_ms),
        }),
        (ExtendedOpcode::Declare, Answer::Declared(states)) => ExtendedResponse::Declared(states),
        (
            ExtendedOpcode::Resize | ExtendedOpcode::Pause | ExtendedOpcode::SetSlot,
            Answer::Declared(states),
        ) if !states.is_empty() => ExtendedResponse::Resized(states[0]),
        (ExtendedOpcode::Remove, Answer::Declared(states)) if states.is_empty() => {
            ExtendedResponse::Plain(Response::Done)
        }
        (
            ExtendedOpcode::RevokeClient | ExtendedOpcode::RevokeIdentity,
            Answer::Revoked { sessions: count },
        )
        | (ExtendedOpcode::CancelWaiting, Answer::Canceled { requests: count }) => {
            ExtendedResponse::Count(*count)
        }
        (ExtendedOpcode::AwaitIdle, Answer::Idle { in_use }) => ExtendedResponse::InUse(*in_use),
        (
            ExtendedOpcode::CloseSession
            | ExtendedOpcode::ReleaseGrant
            | ExtendedOpcode::Revoke
            | ExtendedOpcode::DeleteCounter,
            Answer::Done,
        ) => ExtendedResponse::Plain(Response::Done),
        // The cached answer under this request id belongs to another kind of request.
        _ => return compose_status(code, opaque, Status::InvalidArguments, out),
    };
    response.compose(code, opaque, out);
}

fn compose_granted(opcode: ExtendedOpcode, opaque: Opaque, granted: &Granted, out: &mut Vec<u8>) {
    let grant = granted.grant;
    let ttl_left =
        granted.ttl_left_ms.map_or(TtlLeft::Connection, |left_ms| TtlLeft::For(Milliseconds(left_ms)));
    if opcode == ExtendedOpcode::AcquireAll {
        let slots: Vec<_> = granted.slots.iter().map(|slots| &slots[..]).collect();
        let (capacities, slots) = (&granted.capacities[..], &slots[..]);
        ExtendedResponse::AllGranted(AllGranted { grant, ttl_left, capacities, slots }).compose(
            opcode.code(),
            opaque,
            out,
        );
        return;
    }
    let response = ExtendedResponse::Granted(signalbox_protocol::Granted {
        grant,
        // The grant has one name, whose resources are below 2^32.
        resources: granted.resources as u32,
        capacity: granted.capacities.first().copied().unwrap_or(0),
        ttl_left,
        slots: granted.slots.first().map_or(&[][..], |slots| slots),
    });
    response.compose(opcode.code(), opaque, out);
}

/// Appends the response to a request that was refused.
pub(super) fn compose_refusal(opcode: u8, opaque: Opaque, refusal: Refusal, out: &mut Vec<u8>) {
    ExtendedResponse::Refused(refusal).compose(opcode, opaque, out);
}

/// Appends a response that has a status and no body.
pub(super) fn compose_status(opcode: u8, opaque: Opaque, status: Status, out: &mut Vec<u8>) {
    Response::Failed(status).compose(opcode, opaque, out);
}

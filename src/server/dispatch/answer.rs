//! Answers of the core as bytes, whether they come at once or later.

use super::convert::{
    declared_state_on_wire, errno_on_wire, grant_on_wire, limit_on_wire, stat_on_wire, status_of,
    ttl_left_on_wire,
};
use signalbox_core::{Answer, Errno, Granted, Refusal, SetAnswer};
use signalbox_protocol::{
    self as wire, AllGranted, ExtendedOpcode, ExtendedResponse, Milliseconds, Opaque, OpenedSession,
    Response, Status, SysvAnswer, SysvOpcode,
};

/// Appends the answer to a request with this opcode.
pub(super) fn compose_answer(opcode: ExtendedOpcode, opaque: Opaque, answer: &Answer, out: &mut Vec<u8>) {
    let code = opcode.code();
    let response = match (opcode, answer) {
        (ExtendedOpcode::AcquireGrant | ExtendedOpcode::AcquireAll, Answer::Granted(granted)) => {
            return compose_granted(opcode, opaque, granted, out);
        }
        (ExtendedOpcode::OpenSession, Answer::Opened(opened)) => ExtendedResponse::Opened(OpenedSession {
            session: opened.session.number(),
            key: wire::SessionKey(opened.key.0),
            ttl: Milliseconds(opened.ttl_ms),
        }),
        (ExtendedOpcode::Declare, Answer::Declared(states)) => {
            let states: Vec<_> = states.iter().map(declared_state_on_wire).collect();
            return ExtendedResponse::Declared(&states).compose(code, opaque, out);
        }
        (
            ExtendedOpcode::Resize | ExtendedOpcode::Pause | ExtendedOpcode::SetSlot,
            Answer::Declared(states),
        ) if !states.is_empty() => ExtendedResponse::Resized(declared_state_on_wire(&states[0])),
        (ExtendedOpcode::Remove, Answer::Declared(states)) if states.is_empty() => {
            ExtendedResponse::Plain(Response::Done)
        }
        (ExtendedOpcode::RevokeClient | ExtendedOpcode::RevokeIdentity, Answer::Revoked { sessions }) => {
            ExtendedResponse::Revoked(*sessions)
        }
        (ExtendedOpcode::AwaitIdle, Answer::Idle { in_use }) => ExtendedResponse::InUse(*in_use),
        (
            ExtendedOpcode::CloseSession | ExtendedOpcode::ReleaseGrant | ExtendedOpcode::Revoke,
            Answer::Done,
        ) => ExtendedResponse::Plain(Response::Done),
        // The cached answer under this request id belongs to another kind of request.
        _ => return compose_status(code, opaque, Status::InvalidArguments, out),
    };
    response.compose(code, opaque, out);
}

fn compose_granted(opcode: ExtendedOpcode, opaque: Opaque, granted: &Granted, out: &mut Vec<u8>) {
    let grant = grant_on_wire(granted.grant);
    let ttl_left = ttl_left_on_wire(granted.ttl_left_ms);
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
    let response = ExtendedResponse::Granted(wire::Granted {
        grant,
        // The grant has one name, whose resources are below 2^32.
        resources: granted.resources as u32,
        capacity: granted.capacities.first().copied().unwrap_or(0),
        ttl_left,
        slots: granted.slots.first().map_or(&[][..], |slots| slots),
    });
    response.compose(opcode.code(), opaque, out);
}

/// Appends the response to a request that was refused; it names the limit that was reached.
pub(super) fn compose_refusal(opcode: u8, opaque: Opaque, refusal: Refusal, out: &mut Vec<u8>) {
    match refusal {
        Refusal::LimitReached(limit) => {
            ExtendedResponse::LimitReached(limit_on_wire(limit)).compose(opcode, opaque, out);
        }
        refusal => compose_status(opcode, opaque, status_of(refusal), out),
    }
}

/// Appends a response that has a status and no body.
pub(super) fn compose_status(opcode: u8, opaque: Opaque, status: Status, out: &mut Vec<u8>) {
    Response::Failed(status).compose(opcode, opaque, out);
}

/// Appends the frame that answers a call.
pub(super) fn compose_result(
    opcode: SysvOpcode,
    opaque: Opaque,
    result: Result<SetAnswer, Errno>,
    out: &mut Vec<u8>,
) {
    let result = match result {
        Ok(SetAnswer::Done) => Ok(SysvAnswer::Done),
        Ok(SetAnswer::Set(set, count)) => Ok(SysvAnswer::Set(set.number(), count)),
        Ok(SetAnswer::Number(number)) => Ok(SysvAnswer::Number(number)),
        Ok(SetAnswer::Values(values)) => Ok(SysvAnswer::Values(values)),
        Ok(SetAnswer::Stat(stat)) => Ok(SysvAnswer::Stat(stat_on_wire(&stat))),
        Err(errno) => Err(errno_on_wire(errno)),
    };
    SysvAnswer::compose(result.as_ref().map_err(|errno| *errno), opcode, opaque, out);
}

//! What the core answers, at once or late, as bytes.

use bytes::BytesMut;

use super::translation::{declared_state_on_wire, grant_on_wire, ttl_left_on_wire};
use crate::core::{Answer, Granted};
use crate::protocol::{
    self as wire, AllGranted, ExtendedOpcode, ExtendedResponse, Milliseconds, Opaque, OpenedSession,
    Response, Status,
};

/// Appends the answer to a request with this opcode.
pub(super) fn compose_answer(opcode: u8, opaque: Opaque, answer: &Answer, out: &mut BytesMut) {
    let response = match (ExtendedOpcode::from_code(opcode), answer) {
        (Some(ExtendedOpcode::AcquireGrant | ExtendedOpcode::AcquireAll), Answer::Granted(granted)) => {
            return compose_granted(opcode, opaque, granted, out);
        }
        (Some(ExtendedOpcode::OpenSession), Answer::Opened(opened)) => {
            ExtendedResponse::Opened(OpenedSession {
                session: opened.session.number(),
                key: wire::SessionKey(opened.key.0),
                ttl: Milliseconds(opened.ttl_ms),
            })
        }
        (Some(ExtendedOpcode::Declare), Answer::Declared(settled)) => {
            let settled: Vec<_> = settled.iter().map(declared_state_on_wire).collect();
            return ExtendedResponse::Declared(&settled).compose(opcode, opaque, out);
        }
        (Some(ExtendedOpcode::Resize), Answer::Declared(settled)) if !settled.is_empty() => {
            ExtendedResponse::Resized(declared_state_on_wire(&settled[0]))
        }
        (Some(ExtendedOpcode::Remove), Answer::Declared(settled)) if settled.is_empty() => {
            ExtendedResponse::Plain(Response::Done)
        }
        (Some(ExtendedOpcode::AwaitIdle), Answer::Idle { in_use }) => ExtendedResponse::InUse(*in_use),
        (
            Some(ExtendedOpcode::CloseSession | ExtendedOpcode::ReleaseGrant | ExtendedOpcode::Revoke),
            Answer::Done,
        ) => ExtendedResponse::Plain(Response::Done),
        // What was done under the request's number was another request.
        _ => return compose_status(opcode, opaque, Status::InvalidArguments, out),
    };
    response.compose(opcode, opaque, out);
}

fn compose_granted(opcode: u8, opaque: Opaque, granted: &Granted, out: &mut BytesMut) {
    let grant = grant_on_wire(granted.grant);
    let ttl_left = ttl_left_on_wire(granted.ttl_left_ms);
    if opcode == ExtendedOpcode::AcquireAll.code() {
        let slots: Vec<_> = granted.slots.iter().map(|slots| &slots[..]).collect();
        let (capacities, slots) = (&granted.capacities[..], &slots[..]);
        ExtendedResponse::AllGranted(AllGranted { grant, ttl_left, capacities, slots })
            .compose(opcode, opaque, out);
        return;
    }
    let response = ExtendedResponse::Granted(wire::Granted {
        grant,
        // One name's resources and capacity are below 2^32 each.
        resources: granted.resources as u32,
        capacity: granted.capacities.first().copied().unwrap_or(0),
        ttl_left,
        slots: granted.slots.first().map_or(&[][..], |slots| slots),
    });
    response.compose(opcode, opaque, out);
}

pub(super) fn compose_status(opcode: u8, opaque: Opaque, status: Status, out: &mut BytesMut) {
    Response::Failed(status).compose(opcode, opaque, out);
}

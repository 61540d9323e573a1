//! What the core says to a connection, as frames: answers, whether they come at once or later, events and notices.

use std::time::Duration;

use super::super::access::Right;
use super::super::state::Server;
use super::super::steps;
use super::extended_state::{ExtendedState, WaitingRequest, opaque_of};
use signalbox_core::{Answer, Granted, Message, MonotonicMs};
use signalbox_model::{Milliseconds, Notice, Status, Target, TtlLeft};
use signalbox_protocol::{
    AllGranted, End, ExtendedOpcode, ExtendedResponse, Moved, Opaque, OpenedSession, Response, compose_call,
};

/// The connection session was revoked: the connection has to be closed.
#[derive(Debug)]
pub(in crate::server) struct Revoked;

impl ExtendedState {
    /// Appends the core's messages to `out`, until it has `bytes` or more, and takes one step of a snapshot.
    pub(in crate::server) fn encode_messages(
        &mut self,
        server: &Server,
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Revoked> {
        while out.len() < bytes
            && let Some(message) = self.mailbox.take()
        {
            self.compose(server, message, out)?;
        }
        // One snapshot at a time, so that many take no longer than one. Its events go through the mailbox, and are sent in
        // the next turn.
        if let Some((_, snapshot)) = self.snapshots.last_mut()
            && !server.core.show(snapshot, steps::WATCH_NAMES)
        {
            self.snapshots.pop();
        }
        Ok(())
    }

    fn compose(&mut self, server: &Server, message: Message, out: &mut Vec<u8>) -> Result<(), Revoked> {
        match message {
            Message::Answer { token, outcome } => {
                let opaque = opaque_of(token);
                if let Some(WaitingRequest { opcode, since, requested }) = self.waiting.remove(&opaque) {
                    if let ExtendedOpcode::AcquireGrant | ExtendedOpcode::AcquireAll = opcode {
                        let waited_ms = server.monotonic().0.saturating_sub(since.0);
                        server.waits.note(Duration::from_millis(waited_ms));
                    }
                    if let Some(requested) = requested {
                        requested.record_answer(server, Some(&outcome));
                    }
                    match &outcome {
                        Ok(answer) => compose_answer(opcode, opaque, answer, out),
                        Err(refusal) => {
                            ExtendedResponse::Refused(*refusal).compose(opcode.code(), opaque, out);
                        }
                    }
                }
            }
            Message::Operated { token, result } => {
                let opaque = opaque_of(token);
                if let Some(opcode) = self.waiting_calls.remove(&opaque) {
                    compose_call(&result, opcode, opaque, out);
                }
            }
            Message::Event { token, event } => {
                let opaque = opaque_of(token);
                if let Some(number) = self.watches.get_mut(&opaque) {
                    *number += 1;
                    let response = ExtendedResponse::Event(*number, event.borrowed());
                    response.compose(ExtendedOpcode::Watch.code(), opaque, out);
                }
            }
            Message::Notice(notice) => {
                if let Notice::AttachedElsewhere { .. } = notice {
                    // The connection may have attached to another session since.
                    self.regain_lease(server);
                }
                if let Some(hello) = self.hello {
                    self.compose_notice(server, hello, notice, out);
                }
            }
            Message::Close => return Err(Revoked),
        }
        Ok(())
    }

    fn compose_notice(&self, server: &Server, hello: Opaque, notice: Notice<MonotonicMs>, out: &mut Vec<u8>) {
        let (request, received) = self.last_request;
        let end = |at| End { request, after: Milliseconds(received.until(at)) };
        let notice = match notice {
            Notice::GrantRevoked { grant, end: at } => Notice::GrantRevoked { grant, end: end(at) },
            Notice::SessionRevoked { session, end: at } => Notice::SessionRevoked { session, end: end(at) },
            Notice::AttachedElsewhere { session } => Notice::AttachedElsewhere { session },
            Notice::ShuttingDown => Notice::ShuttingDown,
            Notice::Moved(()) => {
                let Some(whereabouts) = server.whereabouts() else { return };
                let Some(next) = whereabouts.next.get() else { return };
                let is_permitted = self.standing.may(Right::Acquire, Target::Anywhere);
                let addresses =
                    if is_permitted { self.reachable(server, next.of(self.namespace)) } else { &[] };
                let moved = Moved { epoch: whereabouts.epoch, addresses };
                let moved = ExtendedResponse::Notice(Notice::Moved(moved));
                return moved.compose(ExtendedOpcode::Hello.code(), hello, out);
            }
        };
        ExtendedResponse::Notice(notice).compose(ExtendedOpcode::Hello.code(), hello, out);
    }
}

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
        _ => ExtendedResponse::Plain(Response::Failed(Status::InvalidArguments)),
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

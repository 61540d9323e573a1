//! The test vectors that writers of clients use too (`crates/protocol/tests/vectors.txt`): composing is the inverse of
//! parsing, for their bytes and for changed ones, and truncated ones are never accepted.

use std::fs;

use super::corpus::fuzz::{
    Call, Parsed, answer_again, call_again, call_done, call_number, call_set, call_stat, call_values,
    decoded, listed_set_again, listed_user_again, notice_again, opened_process_again, parsed, place_again,
};
use super::*;
use signalbox_model::Refusal;
use signalbox_model::sysv::SetCommand;
use signalbox_protocol::{
    BodyError, Extended, ExtendedOpcode, ExtendedResponse, Features, SysvOpcode, SysvRequest,
};

/// The operation, the kind of the frame, and its bytes.
type Vector = (String, String, Vec<u8>);

fn vectors() -> Vec<Vector> {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors.txt")).unwrap();
    let mut vectors: Vec<Vector> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some(hex) = line.strip_prefix("    ") {
            let bytes = hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap());
            vectors.last_mut().unwrap().2.extend(bytes);
            continue;
        }
        if line.starts_with(' ') {
            continue; // The second line of the frame's description.
        }
        let (title, _) = line.split_once(": ").unwrap();
        let (operation, kind) = title.split_once(' ').unwrap();
        vectors.push((operation.to_owned(), kind.to_owned(), Vec::new()));
    }
    vectors
}

/// The name of the operation with this opcode.
fn operation(code: u8) -> Option<String> {
    let extended = ExtendedOpcode::from_code(code).map(|opcode| format!("{opcode:?}"));
    extended.or_else(|| SysvOpcode::from_code(code).map(|opcode| format!("{opcode:?}")))
}

/// A response to a request, encoded again from what a client reads of it.
fn response_again(request: &Parsed<'_>, frame: &ResponseFrame) -> Result<ResponseFrame, BodyError> {
    let failed = |response: ExtendedResponse<'_>| {
        let mut out = Vec::new();
        response.compose(frame.opcode, frame.opaque, &mut out);
        Ok(decoded(&out))
    };
    match Status::from_code(frame.status).unwrap() {
        Status::NoError => {}
        Status::Queued => return place_again(frame),
        Status::LimitReached => {
            let limit = frame.reached_limit().ok_or(BodyError)?;
            return failed(ExtendedResponse::Refused(Refusal::LimitReached(limit)));
        }
        Status::MaximumTooSmall => {
            let capacity = frame.capacity().ok_or(BodyError)?;
            return failed(ExtendedResponse::Refused(Refusal::MaximumTooSmall(capacity)));
        }
        status @ Status::NotPermitted => {
            let plain = ExtendedResponse::Plain(Response::Failed(status));
            let refusal = frame.token_refusal().map(|why| ExtendedResponse::Refused(Refusal::Token(why)));
            return failed(refusal.unwrap_or(plain));
        }
        status => return failed(ExtendedResponse::Plain(Response::Failed(status))),
    }
    let call = |read: Call| call_again(SysvOpcode::from_code(frame.opcode).unwrap(), read, frame);
    match request {
        Parsed::Plain(request) => panic!("{request:?}"),
        Parsed::Extended(request) => answer_again(request.opcode(), frame),
        Parsed::Sysv(SysvRequest::OpenProcess { .. }) => opened_process_again(frame),
        Parsed::Sysv(SysvRequest::AttachProcess { .. }) => answer_again(ExtendedOpcode::AttachSession, frame),
        Parsed::Sysv(SysvRequest::KeepProcess { .. }) => answer_again(ExtendedOpcode::CloseSession, frame),
        Parsed::Sysv(SysvRequest::ListSets) => listed_set_again(frame),
        Parsed::Sysv(SysvRequest::ListUsers { .. }) => listed_user_again(frame),
        Parsed::Sysv(SysvRequest::SemGet { .. }) => call(call_set),
        Parsed::Sysv(SysvRequest::SemOp { .. }) => call(call_done),
        Parsed::Sysv(SysvRequest::SemCtl { command, .. }) => call(match command {
            command if command.is_change() => call_done,
            SetCommand::Stat => call_stat,
            SetCommand::GetAll => call_values,
            _ => call_number,
        }),
    }
}

/// Parses a frame as a server does, if it is a valid request.
fn with_request<R>(bytes: &[u8], read: impl FnOnce(Result<&Parsed<'_>, Status>, Opaque) -> R) -> R {
    let mut buffer = BytesMut::from(bytes);
    let mut frames = RequestCodec::default().decode(&mut buffer).unwrap().unwrap();
    let frame = frames.next().unwrap();
    read(parsed(&frame).as_ref().map_err(|status| *status), frame.opaque())
}

/// The bytes of a frame with another body.
fn with_body(frame: &[u8], body: &[u8]) -> Vec<u8> {
    [&frame[..4], &(body.len() as u32).to_be_bytes(), &frame[8..12], body].concat()
}

/// Hands every response and notice to the function, with the request before it.
fn for_each_response(mut check: impl FnMut(&Parsed<'_>, &Vector)) {
    let mut request = Vec::new();
    for vector in vectors() {
        if vector.1 == "request" {
            request = vector.2;
        } else {
            with_request(&request, |request, opaque| {
                assert_eq!(vector.2[8..12], opaque.0, "{vector:?} belongs to the request");
                check(request.unwrap(), &vector);
            });
        }
    }
}

/// The response or notice in these bytes, encoded again from what a client reads of it.
fn frame_again(request: &Parsed<'_>, kind: &str, bytes: &[u8]) -> Result<Vec<u8>, BodyError> {
    let frame = decoded(bytes);
    let again = if kind == "notice" { notice_again(&frame) } else { response_again(request, &frame) };
    let mut out = Vec::new();
    again?.compose(&mut out);
    Ok(out)
}

/// The length of a request's last field, if it may be absent. `None`: it is absent.
fn optional_bytes(request: &Parsed<'_>) -> Option<usize> {
    let Parsed::Extended(request) = request else { return Some(0) };
    match request {
        Extended::Hello { features, .. } => (*features != Features::default()).then_some(4),
        Extended::OpenSession { key, .. } => key.map(|_| 16),
        Extended::AttachSession { repetitions, .. } => (*repetitions > 0).then_some(4),
        Extended::ReleaseGrant { is_done, .. } => is_done.then_some(1),
        _ => Some(0),
    }
}

/// Whether the body of a response is a text, whose end is the end of the body.
fn is_text(operation: &str, bytes: &[u8]) -> bool {
    operation == "Export" || ![Status::NoError, Status::Queued].map(Status::code).contains(&bytes[2])
}

#[test]
fn every_test_vector_is_encoded_as_it_was_decoded_whatever_follows_it() {
    let longer = |bytes: &[u8]| with_body(bytes, &[&bytes[12..], b"more"].concat());
    for (_, _, bytes) in vectors().iter().filter(|vector| vector.1 == "request") {
        let again = |request: Result<&Parsed<'_>, Status>, opaque| request.unwrap().composed(opaque);
        assert_eq!(with_request(bytes, again), *bytes);
        if with_request(bytes, |request, _| optional_bytes(request.unwrap())).is_some() {
            assert_eq!(with_request(&longer(bytes), again), *bytes);
        }
    }
    for_each_response(|request, (operation, kind, bytes)| {
        assert_eq!(frame_again(request, kind, bytes).as_ref(), Ok(bytes), "{operation}");
        // A body without bytes may be the end of a list.
        if bytes.len() > 12 && !is_text(operation, bytes) {
            assert_eq!(frame_again(request, kind, &longer(bytes)).as_ref(), Ok(bytes), "{operation}");
        }
    });
}

#[test]
fn truncated_test_vectors_are_invalid() {
    for (operation, _, bytes) in vectors().iter().filter(|vector| vector.1 == "request") {
        let optional = with_request(bytes, |request, _| optional_bytes(request.unwrap()));
        for cut in 12..bytes.len() {
            let error = with_request(&with_body(bytes, &bytes[12..cut]), |request, _| request.err());
            let is_whole = optional == Some(bytes.len() - cut);
            assert_eq!(error, (!is_whole).then_some(Status::InvalidArguments), "{operation}, {cut} bytes");
        }
    }
    for_each_response(|request, (operation, kind, bytes)| {
        if is_text(operation, bytes) {
            return;
        }
        // A body without bytes may be the end of a list.
        for cut in 13..bytes.len() {
            let again = frame_again(request, kind, &with_body(bytes, &bytes[12..cut]));
            assert_eq!(again, Err(BodyError), "{operation}, {cut} bytes");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_test_vectors_are_invalid_or_encoded_as_they_were_decoded(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let changed = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            for (index, byte) in &changes {
                let position = 12 + index.index(bytes.len());
                bytes.get_mut(position).into_iter().for_each(|place| *place = *byte);
            }
            bytes
        };
        for (_, _, bytes) in vectors().iter().filter(|vector| vector.1 == "request") {
            with_request(&changed(bytes), |request, opaque| {
                let Ok(request) = request else { return };
                with_request(&request.composed(opaque), |again, _| assert_eq!(again, Ok(request)));
            });
        }
        for_each_response(|request, (_, kind, bytes)| drop(frame_again(request, kind, &changed(bytes))));
    }
}

#[test]
fn every_operation_and_notice_has_test_vectors() {
    let vectors = vectors();
    for operation in (0..=u8::MAX).filter_map(operation) {
        for kind in ["request", "response"] {
            assert!(
                vectors.iter().any(|vector| vector.0 == operation && vector.1 == kind),
                "{operation} {kind}"
            );
        }
    }
    let notices = vectors.iter().filter(|vector| vector.1 == "notice").map(|vector| vector.2[12]);
    assert_eq!(notices.collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
}

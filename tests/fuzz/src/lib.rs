//! What must hold for arbitrary bytes: one function a target of the fuzzer, each of which panics where it does not.
//!
//! They need no fuzzer: `crates/protocol/tests/codec/corpus.rs` runs them over the inputs that were kept.

use bytes::{BufMut, BytesMut};
use signalbox_access::{Token, Tokens};
use signalbox_model::sysv::SetAnswer;
use signalbox_model::{
    Changed, IfExists, Milliseconds, Notice, Operation, Revocation, ServiceChange, Status,
};
use signalbox_protocol::{
    AllGranted, DumpEntry, Extended, ExtendedResponse, Frame, FrameClass, Granted, Moved, Opaque,
    PROXY_HEADER_BYTES_MAX, ProxyHeader, Request, RequestCodec, Response, ResponseCodec, ResponseFrame,
    SysvOpcode, SysvRequest, compose_call, compose_listed_set, compose_listed_user, compose_opened_process,
};

/// Decoding bytes in pieces has the same result as decoding them at once, for a server and for a client.
///
/// The input is a number of pieces, the length of each, and the bytes; the last piece is the rest.
pub fn decode(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else { return };
    let (lengths, bytes) = rest.split_at(usize::from(*count % 32).min(rest.len()));
    let mut pieces = Vec::new();
    let mut left = bytes;
    for length in lengths {
        let (piece, rest) = left.split_at(usize::from(*length).min(left.len()));
        pieces.push(piece);
        left = rest;
    }
    pieces.push(left);
    assert_eq!(heard(&pieces), heard(&[bytes]));
    assert_eq!(answered(&pieces), answered(&[bytes]));
}

/// A proxy's header is parsed as soon as its bytes are there, and more bytes do not change the result. Until then, parsing
/// asks for bytes of the header only, so that a reader never takes a byte of the first frame.
pub fn proxy_header(data: &[u8]) {
    let whole = ProxyHeader::parse(data);
    let mut asked_for = 0;
    for received in 0..=data.len().min(PROXY_HEADER_BYTES_MAX) {
        match ProxyHeader::parse(&data[..received]) {
            Ok(ProxyHeader::Incomplete { bytes_least }) => {
                assert!(bytes_least > received && bytes_least <= PROXY_HEADER_BYTES_MAX);
                assert!(bytes_least >= asked_for, "what it asked for is part of the header");
                asked_for = bytes_least;
            }
            Ok(ProxyHeader::Complete { bytes, client }) => {
                assert!(
                    bytes == received && bytes == asked_for,
                    "it asks for the last byte, and for no other one"
                );
                assert_eq!(whole, Ok(ProxyHeader::Complete { bytes, client }));
                return;
            }
            Err(error) => return assert_eq!(whole, Err(error)),
        }
    }
    assert!(data.len() < PROXY_HEADER_BYTES_MAX, "a header is not longer");
    assert_eq!(whole, Ok(ProxyHeader::Incomplete { bytes_least: asked_for }));
}

/// What is read as a file of tokens is written so that the same is read again, and a token that a client shows has one form.
pub fn tokens(data: &[u8]) {
    if let Some(token) = Token::parse(data) {
        assert_eq!(token.reveal().as_bytes(), data);
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(tokens) = text.parse::<Tokens>() {
        assert_eq!(tokens.to_string().parse(), Ok(tokens));
    }
}

/// A frame as a server decodes it: opcode, opaque, and the request encoded again or the status of the answer.
type Heard = (u8, Opaque, Result<Vec<u8>, Status>);

/// What a server decodes: the frames, and the error that ended the connection, if any.
fn heard(pieces: &[&[u8]]) -> (Vec<Heard>, Option<String>) {
    let mut codec = RequestCodec::default();
    let mut buffer = BytesMut::new();
    let mut requests = Vec::new();
    for piece in pieces {
        buffer.put_slice(piece);
        loop {
            match codec.decode(&mut buffer) {
                Ok(Some(mut frames)) => {
                    while let Some(frame) = frames.next() {
                        let request = parsed(&frame).map(|request| request.composed(frame.opaque()));
                        requests.push((frame.opcode(), frame.opaque(), request));
                    }
                    assert!(frames.is_empty(), "a run ends where its last frame does");
                }
                Ok(None) => break,
                Err(error) => return (requests, Some(error.to_string())),
            }
        }
    }
    (requests, None)
}

/// What a client decodes: the frames, and the error, if any.
fn answered(pieces: &[&[u8]]) -> (Vec<ResponseFrame>, Option<String>) {
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    for piece in pieces {
        buffer.put_slice(piece);
        loop {
            match ResponseCodec.decode(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error.to_string())),
            }
        }
    }
    (frames, None)
}

/// A request of any kind.
#[derive(Debug, PartialEq)]
enum Parsed<'a> {
    Plain(Request<'a>),
    Extended(Extended<'a>),
    Sysv(SysvRequest<'a>),
}

fn parsed<'a>(frame: &Frame<'a>) -> Result<Parsed<'a>, Status> {
    match frame.class() {
        FrameClass::Plain(_) => frame.parse().map(Parsed::Plain),
        FrameClass::Extended(_) => frame.parse_extended().map(Parsed::Extended),
        FrameClass::Sysv(_) => frame.parse_sysv().map(Parsed::Sysv),
        FrameClass::Unknown(status) => Err(status),
    }
}

impl Parsed<'_> {
    fn composed(&self, opaque: Opaque) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Plain(request) => request.compose(opaque, &mut out),
            Self::Extended(request) => request.compose(opaque, &mut out),
            Self::Sysv(request) => request.compose(opaque, &mut out),
        }
        out
    }
}

/// Encoding is the inverse of decoding, except for bytes that both sides ignore.
pub fn roundtrip(data: &[u8]) {
    requests_come_back(data);
    responses_come_back(data);
}

/// The bytes of a header that have the length of the body.
const BODY_BYTES: std::ops::Range<usize> = 4..8;

fn requests_come_back(data: &[u8]) {
    let mut buffer = BytesMut::from(data);
    let mut sent = data;
    let Ok(Some(mut frames)) = RequestCodec::default().decode(&mut buffer) else { return };
    while let Some(frame) = frames.next() {
        let length = sent[BODY_BYTES].try_into().map(u32::from_be_bytes).expect("four bytes") as usize;
        let Ok(request) = parsed(&frame) else {
            // An invalid frame also has the length in its header, unless it was the last one.
            sent = sent.get(12 + length..).unwrap_or_default();
            continue;
        };
        let again = request.composed(frame.opaque());
        // Flags and a reserved byte precede the length, and the body may be longer than the operation needs.
        assert_eq!(again[..2], sent[..2]);
        if let Parsed::Plain(_) = request {
            // Bodies of extended requests have reserved bytes.
            assert_eq!(again[8..], sent[8..again.len()]);
        }
        assert!(again.len() <= 12 + length);
        let mut copy = BytesMut::from(&again[..]);
        let mut frames =
            RequestCodec::default().decode(&mut copy).expect("it is a frame").expect("it is whole");
        assert_eq!(parsed(&frames.next().expect("it is one")), Ok(request));
        sent = &sent[12 + length..];
    }
}

fn responses_come_back(data: &[u8]) {
    let mut buffer = BytesMut::from(data);
    let mut sent = data;
    while let Ok(Some(frame)) = ResponseCodec.decode(&mut buffer) {
        let mut again = Vec::new();
        frame.compose(&mut again);
        // The fourth byte is reserved.
        assert_eq!((&again[..3], &again[4..]), (&sent[..3], &sent[4..again.len()]));
        let body_of = |response: Response<'_>| {
            let mut out = Vec::new();
            response.compose(frame.opcode, frame.opaque, &mut out);
            out.split_off(12)
        };
        if let Ok(resources) = frame.resources() {
            assert!(frame.body.starts_with(&body_of(Response::Resources(resources))));
        }
        if let Ok(Some(entry)) = frame.dump_entry() {
            let entry = DumpEntry { consumption: entry.consumption, peak: entry.peak, name: &entry.name[..] };
            assert!(frame.body.starts_with(&body_of(Response::Entry(entry))));
        }
        if let Ok(items) = frame.statistics() {
            let texts: usize = items.iter().map(|item| 4 + item.name.len() + item.value.len()).sum();
            assert!(texts >= frame.body.len(), "every byte belongs to an item");
        }
        extended_bodies_come_back(&frame);
        sysv_bodies_come_back(&frame);
        sent = &sent[again.len()..];
    }
}

/// The one frame that was composed.
fn decoded(composed: &[u8]) -> ResponseFrame {
    let mut bytes = BytesMut::from(composed);
    let frame = ResponseCodec.decode(&mut bytes).expect("it is a frame").expect("it is whole");
    assert!(bytes.is_empty(), "nothing follows it");
    frame
}

/// Any body may belong to any operation: a body that can be parsed must be the same after encoding and parsing again.
fn extended_bodies_come_back(frame: &ResponseFrame) {
    let again = |response: ExtendedResponse<'_>| {
        let mut out = Vec::new();
        response.compose(frame.opcode, frame.opaque, &mut out);
        decoded(&out)
    };
    if let Ok(answer) = frame.hello() {
        assert_eq!(again(ExtendedResponse::Hello(answer)).hello(), Ok(answer));
    }
    if let Ok(opened) = frame.opened() {
        assert_eq!(again(ExtendedResponse::Opened(opened)).opened(), Ok(opened));
    }
    if let Ok(ttl) = frame.ttl() {
        assert_eq!(again(ExtendedResponse::Ttl(ttl)).ttl(), Ok(ttl));
    }
    if let Ok(granted) = frame.granted() {
        let Granted { grant, resources, capacity, ttl_left, slots } = &granted;
        let granted_again = Granted {
            grant: *grant,
            resources: *resources,
            capacity: *capacity,
            ttl_left: *ttl_left,
            slots: &slots[..],
        };
        assert_eq!(again(ExtendedResponse::Granted(granted_again)).granted(), Ok(granted));
    }
    if let Ok(all) = frame.all_granted() {
        let AllGranted { grant, ttl_left, capacities, slots } = &all;
        let slots: Vec<_> = slots.iter().map(|slots| &slots[..]).collect();
        let all_again =
            AllGranted { grant: *grant, ttl_left: *ttl_left, capacities: &capacities[..], slots: &slots[..] };
        assert_eq!(again(ExtendedResponse::AllGranted(all_again)).all_granted(), Ok(all));
    }
    if let Ok(verified) = frame.verified() {
        assert_eq!(again(ExtendedResponse::Verified(verified)).verified(), Ok(verified));
    }
    if let Ok(Some(entry)) = frame.list_entry() {
        assert_eq!(again(ExtendedResponse::Entry(entry.borrowed())).list_entry(), Ok(Some(entry)));
    }
    if let Ok(Some(entry)) = frame.session_entry() {
        assert_eq!(again(ExtendedResponse::SessionEntry(entry.borrowed())).session_entry(), Ok(Some(entry)));
    }
    let revoke = Operation::Revoke { what: Revocation::Identity(b""), grace: Milliseconds(0) };
    if let Ok(Changed::Count(count)) = frame.changed(&revoke) {
        assert_eq!(again(ExtendedResponse::Count(count)).changed(&revoke), Ok(Changed::Count(count)));
    }
    if let Ok(Some(part)) = frame.export_part() {
        assert_eq!(again(ExtendedResponse::ExportPart(&part)).export_part(), Ok(Some(part)));
    }
    let declare = Operation::Declare { if_exists: IfExists::Keep, declarations: Vec::new() };
    if let Ok(changed) = frame.changed(&declare) {
        assert_eq!(again(ExtendedResponse::Declared(changed.states())).changed(&declare), Ok(changed));
    }
    let pause = Operation::ChangeService { name: b"", how: ServiceChange::Pause, expected: None };
    if let Ok(changed) = frame.changed(&pause) {
        assert_eq!(again(ExtendedResponse::Resized(changed.states()[0])).changed(&pause), Ok(changed));
    }
    if let Ok(resources) = frame.in_use() {
        assert_eq!(again(ExtendedResponse::InUse(resources)).in_use(), Ok(resources));
    }
    if let Ok(Some(entry)) = frame.declared_entry() {
        assert_eq!(
            again(ExtendedResponse::DeclaredEntry(entry.borrowed())).declared_entry(),
            Ok(Some(entry))
        );
    }
    if let Ok((number, event)) = frame.event() {
        assert_eq!(again(ExtendedResponse::Event(number, event.borrowed())).event(), Ok((number, event)));
    }
    if let Ok(Some(notice)) = frame.notice() {
        let borrowed = match &notice {
            Notice::Moved(Moved { epoch, addresses }) => {
                Notice::Moved(Moved { epoch: *epoch, addresses: &addresses[..] })
            }
            Notice::GrantRevoked { grant, end } => Notice::GrantRevoked { grant: *grant, end: *end },
            Notice::SessionRevoked { session, end } => {
                Notice::SessionRevoked { session: *session, end: *end }
            }
            Notice::AttachedElsewhere { session } => Notice::AttachedElsewhere { session: *session },
            Notice::ShuttingDown => Notice::ShuttingDown,
        };
        assert_eq!(again(ExtendedResponse::Notice(borrowed)).notice(), Ok(Some(notice)));
    }
}

/// As [`extended_bodies_come_back`], for System V semaphores.
fn sysv_bodies_come_back(frame: &ResponseFrame) {
    let again = |answer: SetAnswer| {
        let mut out = Vec::new();
        compose_call(&Ok(answer), SysvOpcode::SemCtl, frame.opaque, &mut out);
        decoded(&out)
    };
    if let Ok(opened) = frame.opened_process() {
        let mut out = Vec::new();
        compose_opened_process(&opened, frame.opaque, &mut out);
        let again = decoded(&out).opened_process().expect("it is one");
        assert_eq!((again.process, again.ttl), (opened.process, opened.ttl));
    }
    if let Ok(Ok((set, count))) = frame.call_set() {
        assert_eq!(again(SetAnswer::Set(set, count)).call_set(), Ok(Ok((set, count))));
    }
    if let Ok(Ok(number)) = frame.call_number() {
        assert_eq!(again(SetAnswer::Number(number)).call_number(), Ok(Ok(number)));
    }
    if let Ok(Ok(values)) = frame.call_values() {
        assert_eq!(again(SetAnswer::Values(values.clone().into())).call_values(), Ok(Ok(values)));
    }
    if let Ok(Ok(stat)) = frame.call_stat() {
        assert_eq!(again(SetAnswer::Stat(stat)).call_stat(), Ok(Ok(stat)));
    }
    if let Ok(Some(listed)) = frame.listed_set() {
        let mut out = Vec::new();
        compose_listed_set(&listed, frame.opaque, &mut out);
        assert_eq!(decoded(&out).listed_set(), Ok(Some(listed)));
    }
    if let Ok(Some(listed)) = frame.listed_user() {
        let mut out = Vec::new();
        compose_listed_user(&listed, frame.opaque, &mut out);
        assert_eq!(decoded(&out).listed_user(), Ok(Some(listed)));
    }
}

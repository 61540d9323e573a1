//! Properties of arbitrary bytes: one function for each target of the fuzzer, which panics if its property does not hold.
//!
//! They need no fuzzer: `crates/protocol/tests/codec/corpus.rs` runs them over the inputs that were kept.

use std::fmt::Debug;

use bytes::{BufMut, BytesMut};
use signalbox_access::{Token, Tokens};
use signalbox_model::sysv::{Errno, SetAnswer};
use signalbox_model::{
    Cancellation, Changed, GrantId, IfExists, Milliseconds, Notice, Operation, Revocation, ServiceChange,
    Status,
};
use signalbox_protocol::{
    AllGranted, BodyError, DumpEntry, Extended, ExtendedOpcode, ExtendedResponse, Frame, FrameClass, Granted,
    Moved, Opaque, PROXY_HEADER_BYTES_MAX, ProxyHeader, Request, RequestCodec, Response, ResponseCodec,
    ResponseFrame, SysvOpcode, SysvRequest, Whereabouts, compose_call, compose_listed_set,
    compose_listed_user, compose_opened_process,
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
    assert_eq!(requests_in(&pieces), requests_in(&[bytes]));
    assert_eq!(responses_in(&pieces), responses_in(&[bytes]));
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

/// A file of tokens that is read and written again has the same content, and a token that a client shows has one form.
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
type DecodedRequest = (u8, Opaque, Result<Vec<u8>, Status>);

/// What a server decodes: the frames, and the error that ended the connection, if any.
fn requests_in(pieces: &[&[u8]]) -> (Vec<DecodedRequest>, Option<String>) {
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
fn responses_in(pieces: &[&[u8]]) -> (Vec<ResponseFrame>, Option<String>) {
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
pub enum Parsed<'a> {
    Plain(Request<'a>),
    Extended(Extended<'a>),
    Sysv(SysvRequest<'a>),
}

pub fn parsed<'a>(frame: &Frame<'a>) -> Result<Parsed<'a>, Status> {
    match frame.class() {
        FrameClass::Plain(_) => frame.parse().map(Parsed::Plain),
        FrameClass::Extended(_) => frame.parse_extended().map(Parsed::Extended),
        FrameClass::Sysv(_) => frame.parse_sysv().map(Parsed::Sysv),
        FrameClass::Unknown(status) => Err(status),
    }
}

impl Parsed<'_> {
    pub fn composed(&self, opaque: Opaque) -> Vec<u8> {
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
pub fn decoded(composed: &[u8]) -> ResponseFrame {
    let mut bytes = BytesMut::from(composed);
    let frame = ResponseCodec.decode(&mut bytes).expect("it is a frame").expect("it is whole");
    assert!(bytes.is_empty(), "nothing follows it");
    frame
}

/// Any body may belong to any operation: one that can be read is the same after encoding and reading it again.
fn extended_bodies_come_back(frame: &ResponseFrame) {
    for opcode in (0..=u8::MAX).filter_map(ExtendedOpcode::from_code) {
        let _ = answer_again(opcode, frame);
    }
    let _ = (place_again(frame), notice_again(frame));
}

/// Like [`extended_bodies_come_back`], for System V semaphores.
fn sysv_bodies_come_back(frame: &ResponseFrame) {
    let _ = (opened_process_again(frame), listed_set_again(frame), listed_user_again(frame));
    for read in [call_done, call_set, call_number, call_values, call_stat] {
        let _ = call_again(SysvOpcode::SemCtl, read, frame);
    }
}

/// Reads a body, encodes the result, and checks that this reads as the same. Returns the encoded frame.
fn again<T: Debug + PartialEq>(
    frame: &ResponseFrame,
    read: impl Fn(&ResponseFrame) -> Result<T, BodyError>,
    compose: impl FnOnce(&T, &mut Vec<u8>),
) -> Result<ResponseFrame, BodyError> {
    let value = read(frame)?;
    let mut out = Vec::new();
    compose(&value, &mut out);
    let again = decoded(&out);
    assert_eq!(read(&again), Ok(value));
    Ok(again)
}

/// The successful response in a frame to a request of this operation, encoded again. Panics if it then reads as something
/// else.
pub fn answer_again(opcode: ExtendedOpcode, frame: &ResponseFrame) -> Result<ResponseFrame, BodyError> {
    use ExtendedResponse as R;
    let put = |response: R<'_>, out: &mut Vec<u8>| response.compose(frame.opcode, frame.opaque, out);
    let done = R::Plain(Response::Done);
    let changed = |operation: Operation<'_>, out: fn(&Changed) -> R<'_>| {
        again(frame, |frame| frame.changed(&operation), |changed, bytes| put(out(changed), bytes))
    };
    let count = |changed: &Changed| match changed {
        Changed::Count(count) => R::Count(*count),
        other => panic!("{other:?}"),
    };
    match opcode {
        ExtendedOpcode::Hello => again(frame, ResponseFrame::hello, |hello, out| put(R::Hello(*hello), out)),
        ExtendedOpcode::OpenSession => {
            again(frame, ResponseFrame::opened, |opened, out| put(R::Opened(*opened), out))
        }
        ExtendedOpcode::AttachSession | ExtendedOpcode::KeepAlive => {
            again(frame, ResponseFrame::ttl, |ttl, out| put(R::Ttl(*ttl), out))
        }
        ExtendedOpcode::AcquireGrant => again(frame, ResponseFrame::granted, |granted, out| {
            let Granted { grant, resources, capacity, ttl_left, ref slots } = *granted;
            put(R::Granted(Granted { grant, resources, capacity, ttl_left, slots }), out);
        }),
        ExtendedOpcode::AcquireAll => again(frame, ResponseFrame::all_granted, |all, out| {
            let AllGranted { grant, ttl_left, ref capacities, ref slots } = *all;
            let slots: Vec<_> = slots.iter().map(|slots| &slots[..]).collect();
            put(R::AllGranted(AllGranted { grant, ttl_left, capacities, slots: &slots }), out);
        }),
        ExtendedOpcode::VerifyGrant => {
            again(frame, ResponseFrame::verified, |verified, out| put(R::Verified(*verified), out))
        }
        ExtendedOpcode::Holders | ExtendedOpcode::Waiters => {
            again(frame, ResponseFrame::list_entry, |entry, out| {
                put(entry.as_ref().map_or(done, |entry| R::Entry(entry.borrowed())), out);
            })
        }
        ExtendedOpcode::Watch => again(frame, ResponseFrame::event, |(number, event), out| {
            put(R::Event(*number, event.borrowed()), out);
        }),
        ExtendedOpcode::Inspect => {
            again(frame, ResponseFrame::inspected, |inspected, out| put(R::Inspected(*inspected), out))
        }
        ExtendedOpcode::Sessions => again(frame, ResponseFrame::session_entry, |entry, out| {
            put(entry.as_ref().map_or(done, |entry| R::SessionEntry(entry.borrowed())), out);
        }),
        ExtendedOpcode::Held => again(frame, ResponseFrame::held_entry, |entry, out| {
            put(entry.as_ref().map_or(done, |entry| R::HeldEntry(entry.borrowed())), out);
        }),
        ExtendedOpcode::Export => again(frame, ResponseFrame::export_part, |part, out| {
            put(part.as_ref().map_or(done, |part| R::ExportPart(part)), out);
        }),
        ExtendedOpcode::AwaitIdle => {
            again(frame, ResponseFrame::in_use, |in_use, out| put(R::InUse(*in_use), out))
        }
        ExtendedOpcode::List => again(frame, ResponseFrame::declared_entry, |entry, out| {
            put(entry.as_ref().map_or(done, |entry| R::DeclaredEntry(entry.borrowed())), out);
        }),
        ExtendedOpcode::Where => again(frame, ResponseFrame::whereabouts, |found, out| {
            let Whereabouts { epoch, renew_deadline, is_relayed, ref leader, ref others } = *found;
            put(R::Where(Whereabouts { epoch, renew_deadline, is_relayed, leader, others }), out);
        }),
        ExtendedOpcode::Declare => {
            let declare = Operation::Declare { if_exists: IfExists::Keep, declarations: Vec::new() };
            changed(declare, |changed| R::Declared(changed.states()))
        }
        ExtendedOpcode::Resize | ExtendedOpcode::Pause | ExtendedOpcode::SetSlot => {
            let pause = Operation::ChangeService { name: b"", how: ServiceChange::Pause, expected: None };
            changed(pause, |changed| R::Resized(changed.states()[0]))
        }
        ExtendedOpcode::RevokeClient | ExtendedOpcode::RevokeIdentity => {
            let what = Revocation::Identity(b"");
            changed(Operation::Revoke { what, grace: Milliseconds(0) }, count)
        }
        ExtendedOpcode::CancelWaiting => changed(Operation::Cancel(Cancellation::Request(GrantId(1))), count),
        ExtendedOpcode::CloseSession
        | ExtendedOpcode::ReleaseGrant
        | ExtendedOpcode::Cancel
        | ExtendedOpcode::Unwatch
        | ExtendedOpcode::Revoke
        | ExtendedOpcode::MayAdminister
        | ExtendedOpcode::DeleteCounter
        | ExtendedOpcode::Remove => again(frame, |_| Ok(()), |(), out| put(done, out)),
    }
}

/// Like [`answer_again`], for the status `Queued`.
pub fn place_again(frame: &ResponseFrame) -> Result<ResponseFrame, BodyError> {
    again(frame, ResponseFrame::queued, |place, out| {
        ExtendedResponse::Queued(*place).compose(frame.opcode, frame.opaque, out);
    })
}

/// Like [`answer_again`], for a notice. One of an unknown kind is an error.
pub fn notice_again(frame: &ResponseFrame) -> Result<ResponseFrame, BodyError> {
    let Some(_) = frame.notice()? else { return Err(BodyError) };
    again(frame, ResponseFrame::notice, |notice, out| {
        let notice = match notice.as_ref().expect("its kind is known") {
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
        ExtendedResponse::Notice(notice).compose(frame.opcode, frame.opaque, out);
    })
}

/// Like [`answer_again`], for OpenProcess.
pub fn opened_process_again(frame: &ResponseFrame) -> Result<ResponseFrame, BodyError> {
    again(frame, ResponseFrame::opened_process, |opened, out| {
        compose_opened_process(opened, frame.opaque, out)
    })
}

/// Like [`answer_again`], for ListSets.
pub fn listed_set_again(frame: &ResponseFrame) -> Result<ResponseFrame, BodyError> {
    let Some(_) = frame.listed_set()? else { return Ok(frame.clone()) };
    again(frame, ResponseFrame::listed_set, |listed, out| {
        compose_listed_set(listed.as_ref().expect("it is not the end"), frame.opaque, out);
    })
}

/// Like [`answer_again`], for ListUsers.
pub fn listed_user_again(frame: &ResponseFrame) -> Result<ResponseFrame, BodyError> {
    let Some(_) = frame.listed_user()? else { return Ok(frame.clone()) };
    again(frame, ResponseFrame::listed_user, |listed, out| {
        compose_listed_user(listed.as_ref().expect("it is not the end"), frame.opaque, out);
    })
}

/// The answer to SemGet, SemOp or SemCtl in a frame.
pub type Call = fn(&ResponseFrame) -> Result<Result<SetAnswer, Errno>, BodyError>;

/// Like [`answer_again`], for SemGet, SemOp and SemCtl.
pub fn call_again(opcode: SysvOpcode, read: Call, frame: &ResponseFrame) -> Result<ResponseFrame, BodyError> {
    again(frame, read, |result, out| compose_call(result, opcode, frame.opaque, out))
}

pub fn call_done(frame: &ResponseFrame) -> Result<Result<SetAnswer, Errno>, BodyError> {
    Ok(frame.call_done()?.map(|()| SetAnswer::Done))
}

pub fn call_set(frame: &ResponseFrame) -> Result<Result<SetAnswer, Errno>, BodyError> {
    Ok(frame.call_set()?.map(|(set, count)| SetAnswer::Set(set, count)))
}

pub fn call_number(frame: &ResponseFrame) -> Result<Result<SetAnswer, Errno>, BodyError> {
    Ok(frame.call_number()?.map(SetAnswer::Number))
}

pub fn call_values(frame: &ResponseFrame) -> Result<Result<SetAnswer, Errno>, BodyError> {
    Ok(frame.call_values()?.map(|values| SetAnswer::Values(values.into())))
}

pub fn call_stat(frame: &ResponseFrame) -> Result<Result<SetAnswer, Errno>, BodyError> {
    Ok(frame.call_stat()?.map(SetAnswer::Stat))
}

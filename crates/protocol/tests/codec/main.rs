//! The codec: the result does not depend on how bytes are split, and composing is the inverse of parsing.

mod corpus;
mod extended;
mod proxy_header;
mod relay;
mod sysv;
mod vectors;

use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;
use signalbox_model::Status;
use signalbox_protocol::{
    DecodeError, DumpEntry, Opaque, REQUEST_BODY_BYTES_MAX, Request, RequestCodec, Response, ResponseCodec,
    ResponseFrame,
};

/// The frames that a server decodes from bytes, and the error that ended the connection.
#[derive(Debug, Default, PartialEq)]
struct Decoded {
    frames: Vec<(u8, Opaque, Result<OwnedRequest, Status>)>,
    end: Option<String>,
}

/// A request that does not borrow.
type OwnedRequest = (u8, Vec<u8>, [u32; 2]);

fn owned(request: Request<'_>) -> OwnedRequest {
    let (name, numbers): (&[u8], _) = match request {
        Request::Noop | Request::Stats | Request::Dump => (b"", [0, 0]),
        Request::Get { name } => (name, [0, 0]),
        Request::Acquire { name, resources, maximum } => (name, [resources, maximum]),
        Request::Release { name, resources } => (name, [resources, 0]),
    };
    (request.opcode().code(), name.to_vec(), numbers)
}

/// Feeds bytes to the codec, split at the given positions.
fn decode_pieces(bytes: &[u8], cuts: &[usize]) -> Decoded {
    let mut decoded = Decoded::default();
    let mut codec = RequestCodec::default();
    let mut buffer = BytesMut::new();
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    for piece in cuts.windows(2) {
        buffer.put_slice(&bytes[piece[0]..piece[1]]);
        loop {
            match codec.decode(&mut buffer) {
                Ok(Some(mut frames)) => {
                    assert!(!frames.is_empty());
                    while let Some(frame) = frames.next() {
                        decoded.frames.push((frame.opcode(), frame.opaque(), frame.parse().map(owned)));
                    }
                    assert!(frames.is_empty());
                }
                Ok(None) => break,
                Err(error) => {
                    decoded.end = Some(error.to_string());
                    return decoded;
                }
            }
        }
    }
    decoded
}

fn names() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        20 => prop::collection::vec(any::<u8>(), 1..40),
        1 => Just(vec![b'n'; 65535]),
    ]
}

fn requests() -> impl Strategy<Value = (u8, Vec<u8>, [u32; 2])> {
    prop_oneof![
        prop_oneof![Just(0x00), Just(0x10), Just(0x11)].prop_map(|opcode| (opcode, Vec::new(), [0, 0])),
        names().prop_map(|name| (0x01, name, [0, 0])),
        (names(), 1..=u32::MAX).prop_flat_map(|(name, maximum)| {
            (1..=maximum).prop_map(move |resources| (0x02, name.clone(), [resources, maximum]))
        }),
        (names(), any::<u32>()).prop_map(|(name, resources)| (0x03, name, [resources, 0])),
    ]
}

fn compose((opcode, name, [first, second]): &OwnedRequest, opaque: Opaque, out: &mut Vec<u8>) {
    let request = match opcode {
        0x00 => Request::Noop,
        0x01 => Request::Get { name },
        0x02 => Request::Acquire { name, resources: *first, maximum: *second },
        0x03 => Request::Release { name, resources: *first },
        0x10 => Request::Stats,
        _ => Request::Dump,
    };
    request.compose(opaque, out);
}

/// Bytes of a hostile or faulty client: frames with arbitrary contents, and garbage.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let magic = prop_oneof![9 => Just(0x90u8), 1 => any::<u8>()];
    let opcode = prop_oneof![9 => 0..0x14u8, 1 => any::<u8>()];
    let body = prop::collection::vec(any::<u8>(), 0..40);
    let announced = prop_oneof![9 => Just(None), 1 => any::<u32>().prop_map(Some)];
    let frame = (magic, opcode, any::<[u8; 4]>(), body, announced).prop_map(
        |(magic, opcode, opaque, body, announced)| {
            let mut bytes = vec![magic, opcode, 0, 0];
            bytes.extend(announced.unwrap_or(body.len() as u32).to_be_bytes());
            bytes.extend(opaque);
            bytes.extend(body);
            bytes
        },
    );
    prop::collection::vec(frame, 0..12).prop_map(|frames| frames.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_decode_the_same_in_pieces_and_as_a_whole(bytes in garbage(), cuts in prop::collection::vec(any::<usize>(), 0..20)) {
        let whole = decode_pieces(&bytes, &[]);
        prop_assert_eq!(&decode_pieces(&bytes, &cuts), &whole);
        let each: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(&decode_pieces(&bytes, &each), &whole);
    }

    #[test]
    fn composed_requests_are_parsed(
        sent in prop::collection::vec((requests(), any::<[u8; 4]>()), 1..10),
        cuts in prop::collection::vec(any::<usize>(), 0..5),
    ) {
        let mut bytes = Vec::new();
        for (request, opaque) in &sent {
            compose(request, Opaque(*opaque), &mut bytes);
        }
        let decoded = decode_pieces(&bytes, &cuts);
        prop_assert_eq!(decoded.end, None);
        let expected: Vec<_> =
            sent.into_iter().map(|(request, opaque)| (request.0, Opaque(opaque), Ok(request))).collect();
        prop_assert_eq!(decoded.frames, expected);
    }

    #[test]
    fn responses_are_decoded_as_they_were_composed(
        opcode: u8,
        opaque: [u8; 4],
        consumption: u32,
        peak: u32,
        name in names(),
        value in "[ -~]{0,20}",
    ) {
        let items = [("objects", value.clone()), ("version", String::new())];
        let entry = DumpEntry { consumption, peak, name: &name[..] };
        let responses = [
            Response::Done,
            Response::Resources(consumption),
            Response::Entry(entry),
            Response::Statistics(&items),
            Response::Failed(Status::NotAcquired),
        ];
        let mut bytes = Vec::new();
        for response in &responses {
            response.compose(opcode, Opaque(opaque), &mut bytes);
        }
        let mut buffer = BytesMut::from(&bytes[..]);
        let mut frames: Vec<ResponseFrame> = Vec::new();
        while let Some(frame) = ResponseCodec.decode(&mut buffer).unwrap() {
            prop_assert_eq!((frame.opcode, frame.opaque), (opcode, Opaque(opaque)));
            frames.push(frame);
        }
        prop_assert!(buffer.is_empty());
        prop_assert_eq!(&frames[0].body, &Bytes::new());
        prop_assert_eq!(frames[1].resources(), Ok(consumption));
        let entry = frames[2].dump_entry().unwrap().unwrap();
        prop_assert_eq!((entry.consumption, entry.peak, &entry.name[..]), (consumption, peak, &name[..]));
        let found = frames[3].statistics().unwrap();
        prop_assert_eq!((&found[0].name[..], &found[0].value), ("objects", &value));
        prop_assert_eq!((frames[4].status, &frames[4].body[..]), (0x22, &b"Not acquired"[..]));

        let mut again = Vec::new();
        for frame in &frames {
            frame.compose(&mut again);
        }
        prop_assert_eq!(again, bytes);
    }

    #[test]
    fn a_client_survives_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut buffer = BytesMut::from(&bytes[..]);
        while let Ok(Some(frame)) = ResponseCodec.decode(&mut buffer) {
            let _ = (frame.resources(), frame.dump_entry(), frame.statistics());
        }
    }
}

#[test]
fn a_server_of_http_is_recognized() {
    let mut answer = BytesMut::from(&b"HTTP/1.1 400 Bad Request\r\n"[..]);
    assert!(matches!(ResponseCodec.decode(&mut answer), Err(DecodeError::Http)));
}

#[test]
fn a_body_may_be_as_long_as_the_limit_and_no_longer() {
    let header = |bytes: usize| [&[0x90, 0, 0, 0][..], &(bytes as u32).to_be_bytes(), &[0; 4]].concat();
    let mut longest = header(REQUEST_BODY_BYTES_MAX);
    longest.resize(12 + REQUEST_BODY_BYTES_MAX, 0);
    assert_eq!(decode_pieces(&longest, &[]).frames.len(), 1);

    let mut buffer = BytesMut::from(&header(REQUEST_BODY_BYTES_MAX + 1)[..]);
    let error = RequestCodec::default().decode(&mut buffer).unwrap_err();
    assert!(matches!(error, DecodeError::BodyTooLong { announced: 131_073, limit: REQUEST_BODY_BYTES_MAX }));
}

/// Frames that arrive together with a TLS handshake are answered before the connection ends.
#[test]
fn tls_begins_at_the_start_of_a_stream_or_not_at_all() {
    let mut handshake = vec![0x16, 3, 1];
    handshake.resize(100, 0);
    let start = &mut BytesMut::from(&handshake[..]);
    assert!(matches!(RequestCodec::new(true).decode(start), Err(DecodeError::BeginsTls)));
    assert_eq!(start.len(), handshake.len(), "the bytes are left for TLS");
    assert!(matches!(RequestCodec::new(false).decode(start), Ok(Some(_))), "it is answered as a frame");

    let mut burst = Vec::new();
    Request::Noop.compose(Opaque([1; 4]), &mut burst);
    burst.extend(handshake);
    let mut burst = BytesMut::from(&burst[..]);
    let mut codec = RequestCodec::new(true);
    let mut frames = codec.decode(&mut burst).unwrap().expect("a frame is complete");
    assert_eq!(frames.next().map(|frame| frame.opaque()), Some(Opaque([1; 4])));
    assert!(matches!(codec.decode(&mut burst), Err(DecodeError::UnexpectedTls)));
}

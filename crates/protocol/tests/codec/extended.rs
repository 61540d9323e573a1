//! The rules of the extended operations: which bodies are refused, and why.

use std::time::Duration;

use super::*;
use signalbox_model::{
    AS_DECLARED, Claim, Declaration, GraceLeft, GrantId, GrantState, Idle, IfExists, Limit, Milliseconds,
    Namespace, Operation, ReachedLimit, Refusal, Removal, RequestId, RequestIds, Resizing, SessionKey,
    TtlLeft, VerifiedGrant,
};
use signalbox_protocol::{
    AllGranted, BodyError, Claims, ClaimsError, DECLARATIONS_MAX, DeclarationError, Extended, ExtendedOpcode,
    ExtendedResponse, Features, LABEL_BYTES_MAX, NUMBERED_CAPACITY_MAX, Queueing, Wait, check_declarations,
};

/// Parses a body as a server does, as one frame with this opcode.
fn parse<R>(opcode: u8, body: &[u8], read: impl FnOnce(Result<Extended<'_>, Status>) -> R) -> R {
    let mut bytes = BytesMut::from(&[0x90, opcode, 0, 0][..]);
    bytes.put_u32(body.len() as u32);
    bytes.put_slice(b"what");
    bytes.put_slice(body);
    let mut frames = RequestCodec::default().decode(&mut bytes).unwrap().unwrap();
    let frame = frames.next().unwrap();
    assert_eq!(frame.parse(), Err(Status::UnknownCommand), "plain parsing rejects it");
    read(frame.parse_extended())
}

/// Parses a body with `parse`. Returns only the status.
fn status_of(opcode: ExtendedOpcode, body: &[u8]) -> Status {
    parse(opcode.code(), body, |parsed| parsed.err().unwrap_or(Status::NoError))
}

/// The frame that was composed, as a client decodes it.
fn decoded(compose: impl FnOnce(&mut Vec<u8>)) -> ResponseFrame {
    let mut out = Vec::new();
    compose(&mut out);
    let mut bytes = BytesMut::from(&out[..]);
    let frame = ResponseCodec.decode(&mut bytes).unwrap().unwrap();
    assert!(bytes.is_empty());
    frame
}

fn body_of(request: &Extended<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    request.compose(Opaque(*b"what"), &mut out);
    let body = out.split_off(12);
    assert_eq!(
        out[..],
        [&[0x90, request.opcode().code(), 0, 0], &(body.len() as u32).to_be_bytes()[..], b"what"].concat()
    );
    body
}

/// A frame with this body, as a client receives it.
fn frame_with(body: Bytes) -> ResponseFrame {
    ResponseFrame { opcode: 0, status: 0, opaque: Opaque([0; 4]), body }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_parse_to_a_request_or_a_status(code: u8, bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if ExtendedOpcode::from_code(code).is_some() {
            parse(code, &bytes, |parsed| drop(parsed.map(|request| body_of(&request))));
        }
    }
}

/// A body of AcquireAll: the rows as resources, maximum, namespace and name.
fn acquire_all(rows: &[(u32, u32, u8, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_u64(1);
    body.put_u64(1);
    body.put_u64(0);
    body.put_u16(rows.len() as u16);
    // All bits except the flag of a place; receivers ignore them.
    body.put_u16(0xfffd);
    for (resources, maximum, namespace, name) in rows {
        body.put_u32(*resources);
        body.put_u32(*maximum);
        // All flags except that of a slot; receivers ignore them.
        body.put_slice(&[*namespace, 0xfe]);
        body.put_u16(name.len() as u16);
    }
    rows.iter().for_each(|row| body.put_slice(row.3));
    body
}

#[test]
fn acquire_all_takes_1_to_64_valid_and_distinct_names() {
    let status = |rows: &[(u32, u32, u8, &[u8])]| status_of(ExtendedOpcode::AcquireAll, &acquire_all(rows));
    assert_eq!(status(&[(1, 2, 0, b"a"), (2, 2, 1, b"a"), (1, 1, 0, b"ab")]), Status::NoError);
    assert_eq!(
        status(&[(1, 0, 1, b"a"), (u32::MAX, 0, 1, b"b")]),
        Status::NoError,
        "with the declared capacity"
    );
    let many: Vec<_> = (0..=64u8).map(|byte| [byte]).collect();
    let many: Vec<_> = many.iter().map(|name| (1, 1, 0, &name[..])).collect();
    assert_eq!(status(&many[..64]), Status::NoError);
    for wrong in [
        &many[..],
        &[],
        &[(1, 1, 0, b"a"), (1, 1, 1, b"b"), (2, 3, 0, b"a")],
        &[(0, 1, 0, b"a")],
        &[(2, 1, 0, b"a")],
        &[(2, 1, 1, b"a")],
        &[(1, 0, 0, b"a")],
        &[(0, 0, 1, b"a")],
        &[(1, 1, 3, b"a")],
        &[(1, 1, 1, b"a"), (1, 1, 2, b"a")],
        &[(1, 1, 0, b"")],
    ] {
        assert_eq!(status(wrong), Status::InvalidArguments, "{wrong:?}");
    }
}

#[test]
fn an_invalid_list_of_claims_states_the_reason() {
    let claim =
        Claim { namespace: Some(Namespace::Counters), name: b"a", resources: 1, maximum: 1, slot: None };
    let other = Claim { namespace: Some(Namespace::Semaphores), ..claim };
    assert_eq!(Claims::new(&[claim, other]).unwrap().len(), 2);
    let error = |list: &[Claim<'_>]| Claims::new(list).unwrap_err();
    assert_eq!(error(&[]), ClaimsError::Count { names: 0 });
    assert_eq!(error(&[claim; 65]), ClaimsError::Count { names: 65 });
    assert_eq!(error(&[claim, other, claim]), ClaimsError::Repeated);
    let resolved = Claim { namespace: None, maximum: AS_DECLARED, ..claim };
    assert_eq!(error(&[other, resolved]), ClaimsError::Repeated);
    assert_eq!(Claims::new(&[Claim { slot: Some(1), ..resolved }]).unwrap().len(), 1);
    let amounts = Claim { resources: 2, ..claim };
    assert_eq!(error(&[amounts]), ClaimsError::Amounts { resources: 2, maximum: 1 });
    let as_declared = Claim { resources: 2, maximum: AS_DECLARED, ..other };
    assert_eq!(Claims::new(&[as_declared]).unwrap().len(), 1);
    let (two, counter) = (Claim { slot: Some(1), ..as_declared }, Claim { slot: Some(1), ..claim });
    assert_eq!(error(&[two]), ClaimsError::Slot { resources: 2 });
    assert_eq!(error(&[counter]), ClaimsError::Slot { resources: 1 });
    assert_eq!(Claims::new(&[Claim { slot: Some(1), ..other }]).unwrap().len(), 1);
    assert_eq!(error(&[Claim { name: b"", ..claim }]), ClaimsError::NameLength { bytes: 0 });
    let (one, two) = (vec![b'1'; 65535], vec![b'2'; 65535]);
    let long = [Claim { name: &one, ..claim }, Claim { name: &two, ..claim }];
    let bytes = 28 + 2 * 12 + 2 * 65535;
    assert_eq!(error(&long), ClaimsError::BodyTooLong { bytes });
    // They fit without the 50 bytes above the limit.
    let fitting = [long[0], Claim { name: &two[50..], ..claim }];
    let request = Extended::AcquireAll {
        ids: RequestIds::FIRST,
        queueing: at_once(),
        claims: Claims::new(&fitting).unwrap(),
        place: None,
    };
    assert_eq!(body_of(&request).len(), REQUEST_BODY_BYTES_MAX);
}

#[test]
fn claims_are_counted_as_they_are_encoded_for_the_limit_and_for_a_place() {
    let name = vec![b'n'; 65535];
    let claims = |slot: Option<u16>, bytes: usize| {
        let fixed = 28 + 2 * 12 + 2 * 2 * usize::from(slot.is_some());
        let claim = |name| Claim {
            namespace: Some(Namespace::Semaphores),
            name,
            resources: 1,
            maximum: AS_DECLARED,
            slot,
        };
        // Names of different lengths are distinct.
        [claim(&name[..]), claim(&name[..bytes - fixed - name.len()])]
    };
    for slot in [None, Some(7)] {
        for (bytes, has_room) in [(REQUEST_BODY_BYTES_MAX - 24, true), (REQUEST_BODY_BYTES_MAX - 23, false)] {
            let list = claims(slot, bytes);
            let claims = Claims::new(&list).unwrap();
            assert_eq!(claims.has_room_for_place(), has_room, "{bytes} bytes, {slot:?}");
            let request =
                Extended::AcquireAll { ids: RequestIds::FIRST, queueing: at_once(), claims, place: None };
            assert_eq!(body_of(&request).len(), bytes, "{slot:?}");
        }
        let bytes = REQUEST_BODY_BYTES_MAX + 1;
        let error = Claims::new(&claims(slot, bytes)).unwrap_err();
        assert_eq!(error, ClaimsError::BodyTooLong { bytes }, "{slot:?}");
    }
}

/// A row of Declare: capacity, flags, label and name.
type DeclareRow<'a> = (u32, u8, &'a [u8], &'a [u8]);

/// A body of Declare that fails where a semaphore exists.
fn declare(rows: &[DeclareRow<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_u64(1);
    body.put_u64(1);
    body.put_slice(&[0, 0xff, 0xff, 0xff]);
    body.put_u16(rows.len() as u16);
    body.put_u16(0xffff);
    for (capacity, flags, label, name) in rows {
        body.put_u32(*capacity);
        body.put_slice(&[*flags, label.len() as u8]);
        body.put_u16(name.len() as u16);
    }
    for (_, _, label, name) in rows {
        body.put_slice(name);
        body.put_slice(label);
    }
    body
}

#[test]
fn declare_takes_1_to_64_valid_and_distinct_semaphores() {
    let status = |rows: &[DeclareRow<'_>]| status_of(ExtendedOpcode::Declare, &declare(rows));
    let most = NUMBERED_CAPACITY_MAX;
    let right: &[DeclareRow<'_>] =
        &[(0, 0, b"", b"a"), (most, 1, b"label", b"ab"), (u32::MAX, 0xfe, b"b", b"b")];
    assert_eq!(status(right), Status::NoError);
    parse(0x50, &declare(right), |parsed| {
        let Ok(Extended::Change { operation, .. }) = parsed else { panic!("{parsed:?}") };
        let Operation::Declare { if_exists: IfExists::Fail, declarations } = operation else {
            panic!("{operation:?}");
        };
        let names: Vec<_> =
            declarations.iter().map(|declaration| (declaration.name, declaration.label)).collect();
        assert_eq!(names, [(&b"a"[..], &b""[..]), (b"ab", b"label"), (b"b", b"b")]);
        let numbered: Vec<_> = declarations.iter().map(|declaration| declaration.numbered).collect();
        assert_eq!(numbered, [false, true, false]);
    });
    let many: Vec<_> = (0..=DECLARATIONS_MAX as u8).map(|byte| [byte]).collect();
    let many: Vec<_> = many.iter().map(|name| (1, 0, &b"label"[..], &name[..])).collect();
    assert_eq!(status(&many[..DECLARATIONS_MAX]), Status::NoError);
    for wrong in [
        &many[..],
        &[],
        &[right[0], right[1], right[0]],
        &[(most + 1, 1, b"", b"a")],
        &[(1, 0, b"label", b"")],
    ] {
        assert_eq!(status(wrong), Status::InvalidArguments, "{wrong:?}");
    }
    let mut unknown = declare(right);
    unknown[16] = 3;
    assert_eq!(status_of(ExtendedOpcode::Declare, &unknown), Status::InvalidArguments);
}

#[test]
fn an_invalid_list_of_declarations_states_the_reason() {
    let one = Declaration { name: b"a", capacity: 1, numbered: true, label: b"" };
    let error = |list: &[Declaration<'_>]| check_declarations(list).unwrap_err();
    assert_eq!(error(&[]), DeclarationError::Count { semaphores: 0 });
    assert_eq!(error(&[one; 65]), DeclarationError::Count { semaphores: 65 });
    assert_eq!(error(&[one, Declaration { name: b"b", ..one }, one]), DeclarationError::Repeated);
    let capacity = NUMBERED_CAPACITY_MAX + 1;
    let large = Declaration { capacity, ..one };
    assert_eq!(error(&[large]), DeclarationError::NumberedCapacity { capacity });
    assert_eq!(check_declarations(&[Declaration { numbered: false, ..large }]), Ok(()));
    assert_eq!(error(&[Declaration { name: b"", ..one }]), DeclarationError::NameLength { bytes: 0 });
    let label = [b'l'; LABEL_BYTES_MAX + 1];
    assert_eq!(error(&[Declaration { label: &label, ..one }]), DeclarationError::LabelLength { bytes: 256 });
    let (name, other) = (vec![b'1'; 65535], vec![b'2'; 65535]);
    let long = [Declaration { name: &name, ..one }, Declaration { name: &other, label: &label[..40], ..one }];
    assert_eq!(error(&long), DeclarationError::BodyTooLong { bytes: 24 + 2 * 8 + 2 * 65535 + 40 });
    // They fit without the 78 bytes above the limit.
    let fitting = [long[0], Declaration { name: &other[78..], ..long[1] }];
    assert_eq!(check_declarations(&fitting), Ok(()));
    let operation = Operation::Declare { if_exists: IfExists::Keep, declarations: fitting.into() };
    let request = Extended::Change { ids: RequestIds::FIRST, operation };
    assert_eq!(body_of(&request).len(), REQUEST_BODY_BYTES_MAX);
}

/// The status of a request whose byte at this position is replaced.
fn status_with(request: &Extended<'_>, position: usize, byte: u8) -> Status {
    let mut body = body_of(request);
    body[position] = byte;
    status_of(request.opcode(), &body)
}

#[test]
fn unknown_kinds_of_resize_and_remove_are_invalid() {
    let (expected, name) = (None, &b"a"[..]);
    let change = |operation| Extended::Change { ids: RequestIds::FIRST, operation };
    let resize = change(Operation::Resize { expected, how: Resizing::To(7), name });
    let remove = change(Operation::Remove { expected, how: Removal::IfIdle, name });
    for request in [&resize, &remove] {
        assert_eq!(status_with(request, 24, 2), Status::NoError, "{request:?}");
        assert_eq!(status_with(request, 24, 3), Status::InvalidArguments, "{request:?}");
        assert_eq!(status_with(request, 25, 3), Status::NoError, "{request:?} with a reserved byte");
        assert_eq!(status_with(request, 33, 0), Status::InvalidArguments, "{request:?} without a name");
    }
    // The grace period of a removal that does not revoke holders is ignored.
    let mut body = body_of(&remove);
    body[31] = 9;
    parse(0x52, &body, |parsed| assert_eq!(parsed, Ok(remove)));
}

#[test]
fn only_semaphores_have_slots_and_slot_numbers_have_16_bits() {
    let wait = Wait::NotAtAll;
    let status = |until, namespace| {
        let request = Extended::AwaitIdle { wait, until, namespace, name: b"a" };
        status_of(request.opcode(), &body_of(&request))
    };
    assert_eq!(status(Idle::Level(u32::MAX), Namespace::Counters), Status::NoError);
    assert_eq!(status(Idle::Slot(u16::MAX), Namespace::Semaphores), Status::NoError);
    assert_eq!(status(Idle::Slot(0), Namespace::Counters), Status::InvalidArguments);
    let until = Idle::Slot(u16::MAX);
    let slot = Extended::AwaitIdle { wait, until, namespace: Namespace::Semaphores, name: b"a" };
    assert_eq!(status_with(&slot, 9, 1), Status::InvalidArguments, "65536 and more");
    assert_eq!(status_with(&slot, 4, 2), Status::InvalidArguments, "neither a level nor a slot");
    assert_eq!(status_with(&slot, 15, 0), Status::InvalidArguments, "no name");
}

fn at_once() -> Queueing {
    Queueing { wait: Wait::NotAtAll, queue_max: None }
}

#[test]
fn request_ids_start_at_one_and_the_lowest_unanswered_does_not_exceed_the_own_id() {
    for (own, lowest, status) in [
        (1, 1, Status::NoError),
        (u64::MAX, 1, Status::NoError),
        (0, 0, Status::InvalidArguments),
        (1, 0, Status::InvalidArguments),
        (1, 2, Status::InvalidArguments),
    ] {
        let ids = RequestIds { own: RequestId(own), lowest_unanswered: RequestId(lowest) };
        let body = body_of(&Extended::ReleaseGrant { ids, grant: GrantId(1), is_done: false });
        assert_eq!(status_of(ExtendedOpcode::ReleaseGrant, &body), status, "{ids:?}");
    }
}

#[test]
fn hello_may_have_credentials_which_debug_output_hides() {
    let hello = Extended::Hello {
        version: 1,
        label: b"me",
        credentials: signalbox_protocol::Credentials(b"secret"),
        features: Features::default(),
    };
    let shown = format!("{hello:?}");
    assert!(shown.contains("hidden") && !shown.contains(&format!("{:?}", b"secret")), "{shown}");
    let mut body = body_of(&hello);
    assert_eq!(status_of(ExtendedOpcode::Hello, &body), Status::NoError);
    body.truncate(body.len() - 1);
    assert_eq!(status_of(ExtendedOpcode::Hello, &body), Status::InvalidArguments);
}

#[test]
fn a_label_has_at_most_255_bytes() {
    for (bytes, status) in [(255, Status::NoError), (256, Status::InvalidArguments)] {
        let label = &vec![b'l'; bytes][..];
        let hello = Extended::Hello {
            version: 1,
            label,
            credentials: signalbox_protocol::Credentials(b""),
            features: Features::default(),
        };
        let open = Extended::OpenSession { ttl: None, label, key: None };
        for request in [hello, open] {
            assert_eq!(status_of(request.opcode(), &body_of(&request)), status, "{bytes}");
        }
    }
}

#[test]
fn only_a_prefix_may_be_empty_and_reserved_flags_are_ignored() {
    let watch = |flags: u8| status_of(ExtendedOpcode::Watch, &[0, flags, 0, 0]);
    assert_eq!(
        [0, 1, 0xfe, 0xff].map(watch),
        [0x04, 0, 0x04, 0].map(|code| Status::from_code(code).unwrap())
    );
}

#[test]
fn numbers_with_a_special_meaning_are_never_sent_by_mistake() {
    let longest = Milliseconds(u32::MAX);
    let queueing = Queueing { wait: Wait::UpTo(longest), queue_max: Some(u32::MAX) };
    let claim =
        Claim { namespace: Some(Namespace::Counters), name: b"a", resources: 1, maximum: 1, slot: None };
    let request =
        Extended::AcquireGrant { ids: RequestIds::FIRST, claim, queueing, place: None, is_shared: false };
    parse(0x30, &body_of(&request), |parsed| {
        let nearly = Queueing { wait: Wait::UpTo(Milliseconds(u32::MAX - 1)), queue_max: None };
        assert_eq!(
            parsed,
            Ok(Extended::AcquireGrant {
                ids: RequestIds::FIRST,
                claim,
                queueing: nearly,
                place: None,
                is_shared: false
            })
        );
    });
    let verified = VerifiedGrant {
        session: 1,
        ttl_left: TtlLeft::For(longest),
        state: GrantState::Held,
        grace_left: GraceLeft::For(longest),
    };
    let frame = decoded(|out| ExtendedResponse::Verified(verified).compose(0x34, Opaque([0; 4]), out));
    let verified = frame.verified().unwrap();
    assert_eq!(verified.ttl_left, TtlLeft::For(Milliseconds(u32::MAX - 1)));
    assert_eq!(verified.grace_left, GraceLeft::For(Milliseconds(u32::MAX - 1)));
    assert_eq!(Milliseconds::saturating_from(Duration::MAX), longest);
    assert_eq!(Duration::from(longest), Duration::from_millis(u32::MAX.into()));
}

#[test]
fn a_limit_is_named_in_the_text_of_its_status() {
    for limit in Limit::ALL {
        let reached = ReachedLimit { limit, max: u64::MAX, is_share: false };
        let frame = decoded(|out| {
            ExtendedResponse::Refused(Refusal::LimitReached(reached)).compose(0x30, Opaque([7; 4]), out)
        });
        assert_eq!((frame.opcode, frame.status), (0x30, Status::LimitReached.code()));
        assert_eq!(frame.reached_limit(), Some(reached), "{frame:?}");
    }
    let grants = ReachedLimit { limit: Limit::Grants, max: 12, is_share: false };
    let read = |text: &'static str| frame_with(Bytes::from_static(text.as_bytes())).reached_limit();
    assert_eq!(read("Limit reached: session.max_grants=12"), Some(grants));
    assert_eq!(read("Limit reached: session.max_grants=12; of a later server"), Some(grants));
    let sessions = ReachedLimit { limit: Limit::Sessions, max: 12_000, is_share: true };
    assert_eq!(sessions.to_string(), "Limit reached: session.max_sessions=12000, the share of a client");
    assert_eq!(read("Limit reached: session.max_sessions=12000, the share of a client"), Some(sessions));
    for other in [
        "Limit reached",
        "Limit reached: session.max_of_later_servers=12",
        "Limit reached: session.max_grants",
        "Limit reached: session.max_grants=",
        "Limit reached: session.max_grants=18446744073709551616",
    ] {
        assert_eq!(read(other), None, "{other}");
    }
}

#[test]
fn an_unknown_grant_state_is_invalid() {
    assert_eq!(frame_with(Bytes::from_static(&[2; 16])).verified(), Err(BodyError));
}

#[test]
fn names_beyond_the_end_of_a_list_of_slots_have_none() {
    let granted = AllGranted {
        grant: GrantId(1),
        ttl_left: TtlLeft::Connection,
        capacities: &[3, 4][..],
        slots: &[&[0, 2][..]][..],
    };
    let frame = decoded(|out| ExtendedResponse::AllGranted(granted).compose(0x33, Opaque([0; 4]), out));
    assert_eq!(frame.body[16..], [0, 0, 0, 3, 0, 0, 0, 4, 0, 2, 0, 0, 0, 0, 0, 2]);
    let read = frame.all_granted().unwrap();
    assert_eq!(read.slots, [vec![0, 2], Vec::new()]);
}

#[test]
fn an_unknown_kind_of_notice_may_be_ignored() {
    assert_eq!(frame_with(Bytes::from_static(&[9; 12])).notice(), Ok(None));
    assert_eq!(frame_with(Bytes::from_static(&[9; 11])).notice(), Err(BodyError));
}

#[test]
fn a_list_of_addresses_has_at_most_64() {
    let moved = |count: u8| {
        let body = [&[5, 0, 0, 0][..], &[0; 9], &[count], &vec![0; 2 * usize::from(count)]].concat();
        frame_with(body.into()).notice()
    };
    assert!(moved(64).is_ok_and(|notice| notice.is_some()));
    assert_eq!(moved(65), Err(BodyError));
}

#[test]
fn the_debug_output_hides_a_session_key() {
    let attach = Extended::AttachSession { session: 7, key: SessionKey([0xab; 16]), repetitions: 0 };
    let shown = format!("{attach:?}");
    assert!(!shown.contains("171") && !shown.contains("ab"), "{shown}");
}

#[test]
fn features_are_a_set() {
    let both = Features::GRANTS.union(Features::WATCH);
    assert!(both.contains(Features::WATCH) && both.contains(Features::default()));
    assert!(!both.contains(Features::REVOKE) && !Features::WATCH.contains(both));
}

#[test]
fn an_extended_frame_with_a_wrong_magic_is_invalid() {
    let mut bytes = BytesMut::from(&[0x91, 0x23, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]);
    let mut frames = RequestCodec::default().decode(&mut bytes).unwrap().unwrap();
    assert_eq!(frames.next().unwrap().parse_extended(), Err(Status::InvalidArguments));
}

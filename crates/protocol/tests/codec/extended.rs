//! The extended operations: composing is the inverse of parsing, and truncated or wrong bytes are never accepted.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use signalbox_model::{
    AS_DECLARED, AddressRange, Cancellation, Changed, Claim, Declaration, DeclaredEntry, DeclaredState,
    Event, EventKind, Generation, GraceLeft, GrantId, GrantState, Idle, IfExists, Inspected, Limit,
    ListEntry, Milliseconds, Namespace, Notice, Operation, Place, PlaceProof, ReachedLimit, Removal,
    RequestId, RequestIds, Resizing, Revocation, Scope, ServiceChange, SessionEntry, SessionId, SessionKey,
    SessionKind, TtlLeft, VerifiedGrant,
};
use signalbox_protocol::{
    ACQUIRE_ALL_NAMES_MAX, AllGranted, BodyError, Claims, ClaimsError, DECLARATIONS_MAX, DeclarationError,
    End, Extended, ExtendedOpcode, ExtendedResponse, Features, Granted, HelloAnswer, LABEL_BYTES_MAX, Moved,
    NUMBERED_CAPACITY_MAX, OpenedSession, Queueing, Shares, Wait, WaitingRequest, Whereabouts,
    check_declarations,
};

/// Random values for the requests and responses of every operation.
#[derive(Clone, Debug)]
struct Values {
    own: u64,
    lowest: u64,
    numbers: [u64; 3],
    small: [u32; 8],
    kind: u8,
    key: [u8; 16],
    opaque: [u8; 4],
    semaphores: bool,
    flag: bool,
    wait: Wait,
    queue_max: Option<u32>,
    ttl_left: TtlLeft,
    label: Vec<u8>,
    name: Vec<u8>,
    others: BTreeSet<Vec<u8>>,
    slots: Vec<u16>,
    addresses: Vec<String>,
}

fn values() -> impl Strategy<Value = Values> {
    let ids = (1..=u64::MAX).prop_flat_map(|own| (Just(own), 1..=own));
    let span = 1..u32::MAX;
    let wait = prop_oneof![
        Just(Wait::NotAtAll),
        Just(Wait::ServerDefault),
        span.clone().prop_map(|span| Wait::UpTo(Milliseconds(span))),
    ];
    let queue_max = prop::option::of(0..u32::MAX);
    let ttl_left =
        prop_oneof![Just(TtlLeft::Connection), span.prop_map(|span| TtlLeft::For(Milliseconds(span)))];
    let texts = (
        prop::collection::vec(any::<u8>(), 0..=LABEL_BYTES_MAX),
        names(),
        prop::collection::btree_set(prop::collection::vec(any::<u8>(), 1..20), 1..=ACQUIRE_ALL_NAMES_MAX),
        prop::collection::btree_set(any::<u16>(), 0..20),
    );
    // Never 0, which means in some fields that there is no such number.
    let numbers = [1..=u64::MAX, 1..=u64::MAX, 1..=u64::MAX];
    (
        ids,
        numbers,
        any::<[u32; 8]>(),
        any::<(u8, [u8; 16], [u8; 4], bool, bool)>(),
        wait,
        queue_max,
        ttl_left,
        texts,
    )
        .prop_map(
            |(
                (own, lowest),
                numbers,
                small,
                bytes,
                wait,
                queue_max,
                ttl_left,
                (label, name, others, slots),
            )| {
                let (kind, key, opaque, semaphores, flag) = bytes;
                Values {
                    own,
                    lowest,
                    numbers,
                    small,
                    kind,
                    key,
                    opaque,
                    semaphores,
                    flag,
                    wait,
                    queue_max,
                    ttl_left,
                    addresses: vec!["[::1]:11215".to_owned(), String::from_utf8_lossy(&label).into_owned()],
                    label,
                    name,
                    others,
                    slots: slots.into_iter().collect(),
                }
            },
        )
}

impl Values {
    fn namespace(&self) -> Namespace {
        if self.semaphores { Namespace::Semaphores } else { Namespace::Counters }
    }

    fn ids(&self) -> RequestIds {
        RequestIds { own: RequestId(self.own), lowest_unanswered: RequestId(self.lowest) }
    }

    fn claim<'a>(&self, name: &'a [u8]) -> Claim<'a> {
        let (mut resources, mut maximum) = (self.small[0].min(self.small[1]).max(1), self.small[1].max(1));
        if self.semaphores && self.flag {
            maximum = AS_DECLARED;
        }
        // Some of the names of a list, so that the slots of the others are not mistaken for theirs.
        let slot = Some(self.small[2] as u16)
            .filter(|slot| self.semaphores && (name.len() + usize::from(*slot)).is_multiple_of(2));
        if slot.is_some() {
            resources = 1;
        }
        Claim { namespace: self.namespace(), name, resources, maximum, slot }
    }

    /// The claims of AcquireAll.
    fn list(&self) -> Vec<Claim<'_>> {
        self.others.iter().map(|name| self.claim(name)).collect()
    }

    /// The declarations of Declare.
    fn declarations(&self) -> Vec<Declaration<'_>> {
        let declaration = |place: usize, name| {
            let numbered = place.is_multiple_of(2);
            let capacity = if numbered { self.small[4] % (NUMBERED_CAPACITY_MAX + 1) } else { self.small[5] };
            Declaration { name, capacity, numbered, label: self.label.get(place..).unwrap_or_default() }
        };
        self.others.iter().enumerate().map(|(place, name)| declaration(place, &name[..])).collect()
    }

    fn place(&self) -> Place {
        Place { id: GrantId(self.numbers[0]), proof: PlaceProof(self.key) }
    }

    fn clients(&self) -> AddressRange {
        let (one, other) = (u128::from_be_bytes(self.key), u128::from(self.numbers[0]));
        AddressRange { first: one.min(other).into(), last: one.max(other).into() }
    }

    /// A request of every operation: AcquireAll with the names of the list, Declare with the declarations.
    fn requests<'a>(&'a self, list: &'a [Claim<'a>]) -> Vec<Extended<'a>> {
        let (ids, namespace, name) = (self.ids(), self.namespace(), &self.name[..]);
        let queueing = Queueing { wait: self.wait, queue_max: self.queue_max };
        let place = Some(self.place()).filter(|_| self.flag);
        let grant = GrantId(self.numbers[0]);
        let span = Milliseconds(self.small[2]);
        let claims = Claims::new(list).expect("the list is valid");
        let (opaque, request) = (Opaque(self.opaque), RequestId(self.numbers[1]));
        let expected = Some(Generation(self.numbers[2])).filter(|_| self.flag);
        let if_exists = [IfExists::Fail, IfExists::Keep, IfExists::Set][usize::from(self.kind % 3)];
        let (amount, slot) = (self.small[6], Idle::Slot(self.small[6] as u16));
        let resizings = [Resizing::To(amount), Resizing::GrowBy(amount), Resizing::ShrinkBy(amount)];
        let removals = [Removal::IfIdle, Removal::WithLastHolder, Removal::Now { grace: span }];
        let resize = resizings.map(|how| Operation::Resize { expected, how, name });
        let remove = removals.map(|how| Operation::Remove { expected, how, name });
        let slot_number = self.small[6] as u16;
        let services = [
            ServiceChange::Pause,
            ServiceChange::Resume,
            ServiceChange::SlotOut(slot_number),
            ServiceChange::SlotIn(slot_number),
        ];
        let service = services.map(|how| Operation::ChangeService { expected, how, name });
        let session = SessionId::new(self.numbers[0]);
        let revocations = [Revocation::Grant(grant), Revocation::Session(session)];
        let revoke = revocations.map(|what| Operation::Revoke { what, grace: span });
        let declare = Operation::Declare { if_exists, declarations: self.declarations() };
        let with_ids = resize.into_iter().chain(remove).chain(service).chain(revoke).chain([declare]);
        let without_ids = [
            Operation::DeleteCounter { name },
            Operation::Cancel(Cancellation::Request(grant)),
            Operation::Cancel(Cancellation::Session(session)),
            Operation::Revoke { what: Revocation::Addresses(self.clients()), grace: span },
            Operation::Revoke { what: Revocation::Identity(&self.label), grace: span },
        ];
        let declared = [
            Extended::AwaitIdle { wait: self.wait, until: Idle::Level(amount), namespace, name },
            Extended::AwaitIdle { wait: self.wait, until: slot, namespace: Namespace::Semaphores, name },
            Extended::List { prefix: &self.label },
        ];
        let mut requests = vec![
            Extended::Hello {
                version: self.small[3],
                label: &self.label,
                credentials: signalbox_protocol::Credentials(b""),
                features: Features(self.small[7].max(1)),
            },
            Extended::OpenSession {
                ttl: Some(span).filter(|span| span.0 > 0),
                label: &self.label,
                key: Some(SessionKey(self.key)),
            },
            Extended::AttachSession {
                session: self.numbers[0],
                key: SessionKey(self.key),
                repetitions: self.small[7].max(1),
            },
            Extended::KeepAlive,
            Extended::CloseSession,
            Extended::AcquireGrant { ids, claim: self.claim(name), queueing, place },
            Extended::ReleaseGrant { ids, grant },
            Extended::Cancel(match self.flag {
                true => WaitingRequest::Id(request),
                false => WaitingRequest::Opaque(opaque),
            }),
            Extended::AcquireAll { ids, queueing, claims, place },
            Extended::VerifyGrant { grant },
            Extended::Holders { namespace, name },
            Extended::Waiters { namespace, name },
            Extended::Inspect { namespace, name },
            Extended::Sessions,
            Extended::Export,
            Extended::Where,
            Extended::Watch { namespace, scope: Scope::Name(name) },
            Extended::Watch { namespace, scope: Scope::Prefix(&self.label) },
            Extended::Unwatch { watch: opaque },
        ];
        requests.extend(declared);
        requests.extend(with_ids.map(|operation| Extended::Change { ids, operation }));
        let without_ids = without_ids.map(|operation| Extended::Change { ids: RequestIds::FIRST, operation });
        requests.extend(without_ids);
        requests
    }

    /// The slots that AcquireAll granted: different ones for each of eight names, none for some.
    fn slots_of_all(&self) -> Vec<&[u16]> {
        (0..8).map(|name| self.slots.get(2 * name..).unwrap_or_default()).collect()
    }

    fn notice<M>(&self, end: End) -> Notice<End, M> {
        let number = self.numbers[0];
        match self.kind % 4 {
            0 => Notice::GrantRevoked { grant: GrantId(number), end },
            1 => Notice::SessionRevoked { session: number, end },
            2 => Notice::AttachedElsewhere { session: number },
            _ => Notice::ShuttingDown,
        }
    }

    /// The states of the declared semaphores.
    fn states(&self) -> [DeclaredState; 3] {
        self.numbers.map(|number| DeclaredState {
            generation: Generation(number),
            capacity: self.small[0],
            in_use: self.small[1],
        })
    }

    /// A response of every kind that has its own body, with a function that must read the same values.
    fn responses<'a>(
        &'a self,
        slots_of_all: &'a [&'a [u16]],
        states: &'a [DeclaredState],
    ) -> Vec<(ExtendedResponse<'a>, Reading<'a>)> {
        let [first, second, third] = self.numbers;
        let span = |index: usize| Milliseconds(self.small[index]);
        let (ttl_left, place) = (self.ttl_left, self.place());
        let hello = HelloAnswer {
            version: self.small[0],
            features: Features(self.small[1]),
            session: first,
            wait_max: span(2),
            wait_default: span(3),
            ttl_min: span(4),
            ttl_max: span(5),
            names_max: self.small[6],
            requests_max: self.small[7],
            port: self.namespace(),
            shares: Shares {
                connections: self.small[3],
                sessions: self.small[0],
                waiters: self.small[1],
                watches: self.small[2],
                memory: second,
            },
        };
        let opened = OpenedSession { session: first, key: SessionKey(self.key), ttl: span(0) };
        let granted = Granted {
            grant: GrantId(first),
            resources: self.small[0],
            capacity: self.small[1],
            ttl_left,
            slots: &self.slots[..],
        };
        let all =
            AllGranted { grant: GrantId(first), ttl_left, capacities: &self.small[..], slots: slots_of_all };
        let inspected = Inspected {
            in_use: self.small[0],
            peak: self.small[1],
            waiting: self.small[2],
            capacity: self.small[3],
            available: self.small[0],
        };
        let state = if self.flag { GrantState::Held } else { GrantState::Retiring };
        let verified = VerifiedGrant {
            session: first,
            ttl_left,
            state,
            grace_left: if self.flag { GraceLeft::NotRevoked } else { GraceLeft::For(span(0)) },
        };
        let grant = Some(GrantId(second)).filter(|_| self.flag);
        let entry = ListEntry {
            grant,
            session: first,
            since: Some(third).filter(|_| self.flag),
            resources: self.small[0],
            position: self.small[1],
            label: &self.label[..],
            address: b"127.0.0.1:4000",
            slots: &self.slots[..],
        };
        let session = SessionEntry {
            kind: [SessionKind::Leased, SessionKind::Connection, SessionKind::Process]
                [usize::from(self.kind % 3)],
            session: first,
            attached: self.flag,
            age_s: Some(self.small[0]).filter(|age| *age < u32::MAX && self.semaphores),
            grants: self.small[1],
            waiting: self.small[2],
            ttl_left,
            label: &self.label[..],
            address: b"[2001:db8::7]:4660",
            identity: b"token:web",
        };
        let event = Event {
            kind: EventKind::from_code(self.kind),
            namespace: self.namespace(),
            grant,
            session: Some(third).filter(|_| self.flag),
            resources: self.small[0],
            in_use: self.small[1],
            waiting: self.small[2],
            name: &self.name[..],
        };
        let declared = DeclaredEntry {
            generation: Generation(first),
            capacity: self.small[0],
            in_use: self.small[1],
            waiting: self.small[2],
            numbered: self.kind & 1 != 0,
            removing: self.kind & 2 != 0,
            configured: self.kind & 4 != 0,
            paused: self.kind & 8 != 0,
            name: &self.name[..],
            label: &self.label[..],
            slots_out: &self.slots[..],
        };
        let epoch = self.small[0];
        let end = End { request: Opaque(epoch.to_be_bytes()), after: span(0) };
        let notice = self.notice(end);
        let whereabouts = Whereabouts {
            epoch,
            renew_deadline: span(1),
            is_relayed: self.flag,
            leader: &self.addresses[..],
            others: &self.addresses[..1],
        };
        let moved = Moved { epoch, addresses: &self.addresses[..] };
        vec![
            (
                ExtendedResponse::Where(whereabouts),
                Box::new(move |frame| {
                    let Whereabouts { epoch, renew_deadline, is_relayed, leader, others } =
                        frame.whereabouts()?;
                    let (leader, others) = (&leader[..], &others[..]);
                    Ok(Whereabouts { epoch, renew_deadline, is_relayed, leader, others } == whereabouts)
                }),
            ),
            (
                ExtendedResponse::Notice(Notice::Moved(moved)),
                Box::new(move |frame| match frame.notice()? {
                    Some(Notice::Moved(Moved { epoch, addresses })) => {
                        Ok(Moved { epoch, addresses: &addresses[..] } == moved)
                    }
                    _ => Ok(false),
                }),
            ),
            (ExtendedResponse::Hello(hello), Box::new(move |frame| Ok(frame.hello()? == hello))),
            (ExtendedResponse::Opened(opened), Box::new(move |frame| Ok(frame.opened()? == opened))),
            (
                ExtendedResponse::Inspected(inspected),
                Box::new(move |frame| Ok(frame.inspected()? == inspected)),
            ),
            (ExtendedResponse::Queued(place), Box::new(move |frame| Ok(frame.queued()? == place))),
            (ExtendedResponse::Ttl(span(0)), Box::new(move |frame| Ok(frame.ttl()? == span(0)))),
            (
                ExtendedResponse::Granted(granted),
                Box::new(move |frame| {
                    let Granted { grant, resources, capacity, ttl_left, slots } = frame.granted()?;
                    Ok(Granted { grant, resources, capacity, ttl_left, slots: &slots[..] } == granted)
                }),
            ),
            (
                ExtendedResponse::AllGranted(all),
                Box::new(move |frame| {
                    let AllGranted { grant, ttl_left, capacities, slots } = frame.all_granted()?;
                    let slots: Vec<_> = slots.iter().map(|slots| &slots[..]).collect();
                    Ok(AllGranted { grant, ttl_left, capacities: &capacities[..], slots: &slots[..] } == all)
                }),
            ),
            (ExtendedResponse::Verified(verified), Box::new(move |frame| Ok(frame.verified()? == verified))),
            (
                ExtendedResponse::Entry(entry),
                Box::new(move |frame| {
                    let Some(read) = frame.list_entry()? else {
                        assert!(frame.body.is_empty(), "only an empty body ends a list");
                        return Err(BodyError);
                    };
                    Ok(read.borrowed() == entry)
                }),
            ),
            (
                ExtendedResponse::Count(first),
                Box::new(move |frame| {
                    let what = Cancellation::Request(GrantId(1));
                    Ok(frame.changed(&Operation::Cancel(what))? == Changed::Count(first))
                }),
            ),
            (
                ExtendedResponse::SessionEntry(session),
                Box::new(move |frame| {
                    let Some(read) = frame.session_entry()? else {
                        assert!(frame.body.is_empty(), "only an empty body ends a list");
                        return Err(BodyError);
                    };
                    Ok(read.borrowed() == session)
                }),
            ),
            (
                ExtendedResponse::Event(first, event),
                Box::new(move |frame| {
                    let (number, read) = frame.event()?;
                    Ok((number, read.borrowed()) == (first, event))
                }),
            ),
            (
                ExtendedResponse::Declared(states),
                Box::new(move |frame| {
                    let declare = Operation::Declare { if_exists: IfExists::Fail, declarations: Vec::new() };
                    Ok(frame.changed(&declare)?.states() == states)
                }),
            ),
            (
                ExtendedResponse::Resized(states[0]),
                Box::new(move |frame| {
                    let resize = Operation::Resize { name: b"a", how: Resizing::To(1), expected: None };
                    Ok(frame.changed(&resize)?.states() == [states[0]])
                }),
            ),
            (
                ExtendedResponse::InUse(self.small[0]),
                Box::new(move |frame| Ok(frame.in_use()? == self.small[0])),
            ),
            (
                ExtendedResponse::DeclaredEntry(declared),
                Box::new(move |frame| {
                    let Some(read) = frame.declared_entry()? else {
                        assert!(frame.body.is_empty(), "only an empty body ends a list");
                        return Err(BodyError);
                    };
                    Ok(read.borrowed() == declared)
                }),
            ),
            (
                ExtendedResponse::Notice(notice),
                Box::new(move |frame| Ok(frame.notice()? == Some(self.notice(end)))),
            ),
        ]
    }
}

/// Reads the body of a frame and compares it with what was composed.
type Reading<'a> = Box<dyn Fn(&ResponseFrame) -> Result<bool, BodyError> + 'a>;

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

/// The same, only the status.
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

/// The positions at which a body is cut: all of them near its ends, and some in a long name.
fn cuts(bytes: usize) -> impl Iterator<Item = usize> {
    (0..bytes).filter(move |cut| *cut < 200 || bytes - cut < 20 || cut % 997 == 0)
}

/// A frame with this body, as a client receives it.
fn frame_with(body: Bytes) -> ResponseFrame {
    ResponseFrame { opcode: 0, status: 0, opaque: Opaque([0; 4]), body }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn requests_are_parsed_as_they_were_composed(
        values in values(),
        trailing in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let list = values.list();
        let requests = values.requests(&list);
        for code in (0..=u8::MAX).filter_map(ExtendedOpcode::from_code) {
            prop_assert!(requests.iter().any(|request| request.opcode() == code), "{:?} is tried", code);
        }
        for request in &requests {
            let body = [&body_of(request)[..], &trailing].concat();
            parse(request.opcode().code(), &body, |parsed| {
                assert_eq!(parsed.as_ref(), Ok(request));
                assert_eq!(body_of(&parsed.unwrap()), body_of(request));
            });
        }
    }

    #[test]
    fn truncated_requests_are_invalid(values in values()) {
        let list = values.list();
        for request in values.requests(&list) {
            let body = body_of(&request);
            for cut in cuts(body.len()) {
                let bytes_of_shorter = match request {
                    // It chooses no key.
                    Extended::OpenSession { .. } => body.len() - 16,
                    // It wants no places, and repeats no request with one.
                    Extended::Hello { .. } | Extended::AttachSession { .. } => body.len() - 4,
                    _ => body.len(),
                };
                if cut == bytes_of_shorter {
                    prop_assert_eq!(status_of(request.opcode(), &body[..cut]), Status::NoError);
                    continue;
                }
                prop_assert_eq!(
                    status_of(request.opcode(), &body[..cut]),
                    Status::InvalidArguments,
                    "{} bytes of {:?}", cut, request
                );
            }
        }
    }

    #[test]
    fn responses_are_read_as_they_were_composed(
        values in values(),
        trailing in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let (slots_of_all, states) = (values.slots_of_all(), values.states());
        for (response, read) in values.responses(&slots_of_all, &states) {
            let frame = decoded(|out| response.compose(0x20, Opaque(values.opaque), out));
            let status = if let ExtendedResponse::Queued(_) = response { Status::Queued } else { Status::NoError };
            let expected = (0x20, status.code(), Opaque(values.opaque));
            prop_assert_eq!((frame.opcode, frame.status, frame.opaque), expected);
            prop_assert_eq!(read(&frame), Ok(true), "{:?}", response);
            let longer = [&frame.body[..], &trailing].concat();
            prop_assert_eq!(read(&frame_with(longer.into())), Ok(true), "{:?}", response);
            for cut in cuts(frame.body.len()) {
                let torn = frame_with(frame.body.slice(..cut));
                prop_assert_eq!(read(&torn), Err(BodyError), "{} bytes of {:?}", cut, response);
            }
        }
    }

    #[test]
    fn any_bytes_parse_to_a_request_or_a_status(code: u8, bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if ExtendedOpcode::from_code(code).is_some() {
            parse(code, &bytes, |parsed| drop(parsed.map(|request| body_of(&request))));
        }
    }

    #[test]
    fn a_client_survives_any_extended_body(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let frame = frame_with(bytes.into());
        let _ = (frame.hello(), frame.opened(), frame.ttl(), frame.granted(), frame.all_granted());
        let _ = (frame.queued(), frame.verified(), frame.list_entry(), frame.event(), frame.notice());
        let _ = (frame.inspected(), frame.in_use(), frame.declared_entry());
        let declare = Operation::Declare { if_exists: IfExists::Fail, declarations: Vec::new() };
        let resize = Operation::Resize { name: b"a", how: Resizing::To(1), expected: None };
        let cancel = Operation::Cancel(Cancellation::Request(GrantId(1)));
        let _ = [declare, resize, cancel].map(|operation| frame.changed(&operation));
        let _ = frame.reached_limit();
    }
}

/// A body of AcquireAll: the rows as resources, maximum, namespace and name.
fn acquire_all(rows: &[(u32, u32, u8, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_u64(1);
    body.put_u64(1);
    body.put_u64(0);
    body.put_u16(rows.len() as u16);
    // All bits but the flag of a place, which receivers ignore.
    body.put_u16(0xfffd);
    for (resources, maximum, namespace, name) in rows {
        body.put_u32(*resources);
        body.put_u32(*maximum);
        // All flags but that of a slot, which receivers ignore.
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
        &[(1, 1, 2, b"a")],
        &[(1, 1, 0, b"")],
    ] {
        assert_eq!(status(wrong), Status::InvalidArguments, "{wrong:?}");
    }
}

#[test]
fn an_invalid_list_of_claims_states_the_reason() {
    let claim = Claim { namespace: Namespace::Counters, name: b"a", resources: 1, maximum: 1, slot: None };
    let other = Claim { namespace: Namespace::Semaphores, ..claim };
    assert_eq!(Claims::new(&[claim, other]).unwrap().len(), 2);
    let error = |list: &[Claim<'_>]| Claims::new(list).unwrap_err();
    assert_eq!(error(&[]), ClaimsError::Count { names: 0 });
    assert_eq!(error(&[claim; 65]), ClaimsError::Count { names: 65 });
    assert_eq!(error(&[claim, other, claim]), ClaimsError::Repeated);
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
        let body = body_of(&Extended::ReleaseGrant { ids, grant: GrantId(1) });
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
    let claim = Claim { namespace: Namespace::Counters, name: b"a", resources: 1, maximum: 1, slot: None };
    let request = Extended::AcquireGrant { ids: RequestIds::FIRST, claim, queueing, place: None };
    parse(0x30, &body_of(&request), |parsed| {
        let nearly = Queueing { wait: Wait::UpTo(Milliseconds(u32::MAX - 1)), queue_max: None };
        assert_eq!(
            parsed,
            Ok(Extended::AcquireGrant { ids: RequestIds::FIRST, claim, queueing: nearly, place: None })
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
        let frame = decoded(|out| ExtendedResponse::LimitReached(reached).compose(0x30, Opaque([7; 4]), out));
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

//! The history of grants: the server takes what was granted and how that ended, in order and complete.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Wake;

use super::*;
use signalbox_core::{HistoryEntries, HistoryEntry, HistoryEvent, HistoryPart};
use signalbox_model::{GrantEnd, GrantId, UnixMilliseconds};

const COUNTERS: Namespace = Namespace::Counters;

/// Counts how often the reader of the history was woken.
#[derive(Default)]
struct Wakes(AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The history of a server, with a clock that is set in milliseconds.
struct Recorder {
    clock_ms: Arc<AtomicU64>,
    wakes: Arc<Wakes>,
}

impl Recorder {
    fn begin(core: &Core) -> Self {
        let (clock_ms, wakes) = (Arc::new(AtomicU64::new(1000)), Arc::new(Wakes::default()));
        let read = Arc::clone(&clock_ms);
        let clock = move || UnixMilliseconds(read.load(Ordering::Relaxed));
        core.keep_history(clock, Waker::from(Arc::clone(&wakes)));
        Self { clock_ms, wakes }
    }

    fn set_clock(&self, ms: u64) {
        self.clock_ms.store(ms, Ordering::Relaxed);
    }

    fn wakes(&self) -> u64 {
        self.wakes.0.load(Ordering::Relaxed)
    }
}

/// An entry of the history: the event, its time, the grant, the session, and whether the session is durable.
type Entry = (HistoryEvent, u64, GrantId, u64, bool);

fn take(core: &Core) -> Vec<Entry> {
    let mut taken = Vec::new();
    core.take_history(&mut taken);
    let entry = |entry: HistoryEntry<'_>| {
        let head = entry.head;
        (head.event, head.time.0, head.grant, head.session.number(), head.is_durable)
    };
    HistoryEntries::of(&taken).map(entry).collect()
}

/// Asks for resources of counters and semaphores together.
fn acquire(server: &mut Server, by: usize, wanted: &[(Namespace, &[u8], u32)]) -> Outcome {
    let want = |&(namespace, name, resources): &(_, _, _)| Want {
        kind: Kind::Of(namespace),
        name,
        claim: Claim::new(resources, 4).unwrap(),
        slot: None,
        is_shared: false,
    };
    let wants: Vec<_> = wanted.iter().map(want).collect();
    let call = server.call(by);
    server.core.acquire_grant(call, &wants, Queueing { wait_ms: u32::MAX, queue_max: u32::MAX }, START)
}

fn grant_of(outcome: Outcome) -> GrantId {
    match outcome {
        Outcome::Answered(Answer::Granted(granted)) => granted.grant,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_entry_says_who_had_what_and_for_how_long() {
    let mut server = Server::new();
    let address = "192.0.2.7:4660".parse().unwrap();
    let mailbox = Arc::new(Mailbox::of(address, None));
    mailbox.identify("token:web");
    let session = server.core.open_session();
    server.core.join(session.id(), Some(b"worker"), &mailbox);
    server.connections.push((session, mailbox));
    let recorder = Recorder::begin(&server.core);
    server.declare(0, 4, true);
    let wanted = [(COUNTERS, &b"counter"[..], 4), (SEMAPHORES, NAME, 3), (SEMAPHORES, b"", 1)];
    let first = grant_of(acquire(&mut server, 2, &wanted));
    assert_eq!(recorder.wakes(), 1);
    recorder.set_clock(1500);
    let second = grant_of(acquire(&mut server, 0, &[(SEMAPHORES, NAME, 1)]));
    assert_eq!(recorder.wakes(), 1, "there was something to take already");

    let mut taken = Vec::new();
    assert_eq!(server.core.take_history(&mut taken), 0);
    let of_parts = |entry: &HistoryEntry<'_>| -> Vec<_> {
        let part = |part: HistoryPart<'_>| {
            (part.namespace, part.name.to_vec(), part.resources, part.slots().collect::<Vec<_>>())
        };
        let mut parts: Vec<_> = entry.parts.clone().map(part).collect();
        parts.sort();
        parts
    };
    let entries: Vec<_> = HistoryEntries::of(&taken).collect();
    let [one, two] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((one.address, one.identity, one.label), (Some(address), &b"token:web"[..], &b"worker"[..]));
    let parts = [
        (COUNTERS, b"counter".to_vec(), 4, vec![]),
        (SEMAPHORES, vec![], 1, vec![]),
        (SEMAPHORES, NAME.to_vec(), 3, vec![0, 1, 2]),
    ];
    assert_eq!(of_parts(one), parts);
    assert_eq!((two.address, two.identity, two.label), (None, &b""[..], &b""[..]));
    assert_eq!(of_parts(two), [(SEMAPHORES, NAME.to_vec(), 1, vec![3])]);
    assert_eq!(
        (one.head.grant, one.head.time.0, two.head.grant, two.head.time.0),
        (first, 1000, second, 1500)
    );

    let [of_first, of_second] = [2, 0].map(|by| server.id(by).number());
    assert_eq!(acquire(&mut server, 0, &[(COUNTERS, b"counter", 1)]), Outcome::Waiting);
    assert_eq!(take(&server.core), []);
    recorder.set_clock(4000);
    let call = server.call(2);
    server.core.release_grant(call, first, false, START);
    while server.core.expire(START) {}
    let granted = match &server.messages(0)[..] {
        [Message::Answer { outcome: Ok(Answer::Granted(granted)), .. }] => granted.grant,
        other => panic!("{other:?}"),
    };
    assert_eq!(recorder.wakes(), 2);
    recorder.set_clock(8000);
    let call = server.call(0);
    server.core.release_grant(call, second, false, START);
    recorder.set_clock(9000);
    while server.core.leave(server.id(0), START) {}
    let ended = |end, held_ms| HistoryEvent::Ended { end, held_ms };
    let expected = [
        (ended(GrantEnd::Released, 3000), 4000, first, of_first, false),
        (HistoryEvent::Granted { waited_ms: 2500 }, 4000, granted, of_second, false),
        (ended(GrantEnd::Released, 6500), 8000, second, of_second, false),
        (ended(GrantEnd::Disconnected, 5000), 9000, granted, of_second, false),
    ];
    assert_eq!(take(&server.core), expected);
    assert_eq!(take(&server.core), [], "they are taken once");
}

#[test]
fn a_durable_grant_is_recorded_when_it_is_stored() {
    let mut server = Server::with_store();
    Recorder::begin(&server.core);
    let session = server.open(0);
    assert_eq!(server.acquire(0, &[NAME]), Outcome::Waiting);
    assert_eq!(take(&server.core), []);
    server.store();
    let entries = take(&server.core);
    assert!(
        matches!(entries[..], [(HistoryEvent::Granted { waited_ms: 0 }, 1000, _, _, true)]),
        "{entries:?}"
    );
    let call = server.call(1);
    server.core.change(call, revoking(Revocation::Session(session), 0), START);
    while server.core.expire(START) {}
    server.store();
    let entries = take(&server.core);
    let is_revoked = |event| matches!(event, HistoryEvent::Ended { end: GrantEnd::Revoked, .. });
    assert!(matches!(entries[..], [(event, ..)] if is_revoked(event)), "{entries:?}");
}

#[test]
fn entries_for_which_there_is_no_room_are_counted() {
    let mut server = Server::new();
    let recorder = Recorder::begin(&server.core);
    let name = [b'n'; 60_000];
    let mut recorded = 0;
    let dropped = loop {
        let grant = grant_of(acquire(&mut server, 0, &[(COUNTERS, &name, 1)]));
        let call = server.call(0);
        server.core.release_grant(call, grant, false, START);
        recorded += 2;
        let dropped = server.core.ledger_stats().history_dropped;
        if dropped > 0 {
            break dropped;
        }
        assert!(recorded < 1000, "their memory is limited");
    };
    let taken = take(&server.core).len() as u64;
    assert_eq!((taken + dropped, taken), (recorded, (4 << 20) / 60_000));
    let wakes = recorder.wakes();
    let grant = grant_of(acquire(&mut server, 0, &[(COUNTERS, &name, 1)]));
    assert_eq!(recorder.wakes(), wakes + 1);
    assert!(matches!(take(&server.core)[..], [(_, _, granted, ..)] if granted == grant));
}

/// The highest time is in the year 10889.
#[test]
fn a_time_that_cannot_be_recorded_is_the_highest() {
    let mut server = Server::new();
    let recorder = Recorder::begin(&server.core);
    for ms in [(1 << 48) - 1, 1 << 48, u64::MAX] {
        recorder.set_clock(ms);
        server.granted(0, &[NAME]);
        let entries = take(&server.core);
        assert!(matches!(entries[..], [(_, 0xffff_ffff_ffff, ..)]), "{entries:?} at {ms} ms");
    }
}

//! Keyed leases, as requests of HTTP use them: random histories of requests that are delayed, repeated, reordered and lost,
//! of a server that crashes, and of answers that come late or never. At no time do more clients believe that they hold the
//! name than may hold it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Waker;

use proptest::prelude::*;
use signalbox_core::{
    BatchLimit, Call, Change, Claim, CommitOutcome, Core, Key, KeyedCounts, KeyedLease, KeyedRefusal,
    KeyedRequest, KeyedState, Kind, Mailbox, Message, Moment, MonotonicMs, NameHasher, Outcome, Queueing,
    Record, Session, Token, Want,
};
use signalbox_model::{
    GrantId, LeaseKey, Namespace, Place, PlaceKey, Refusal, RequestId, RequestIds, Revocation, UnixSeconds,
};

use crate::{Changes, cases, revoking};

const MAXIMUM: u32 = 2;
const KEYS: usize = 5;
const TTL_MS: u32 = 3_000;
const NAME: &[u8] = b"a";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Acquire,
    Renew,
    Release,
}

#[derive(Clone, Debug)]
enum Step {
    Send {
        key: usize,
        request: Request,
    },
    /// One of the requests that were sent arrives, and perhaps arrives again later.
    Arrive {
        which: usize,
        again: bool,
    },
    /// One of the answers reaches its client.
    Answer {
        which: usize,
    },
    /// The store writes everything that is to be stored.
    Store,
    Crash,
    Time {
        half_seconds: u8,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let request =
        prop_oneof![5 => Just(Request::Acquire), 4 => Just(Request::Renew), 1 => Just(Request::Release)];
    let step = prop_oneof![
        6 => (0..KEYS, request).prop_map(|(key, request)| Step::Send { key, request }),
        8 => (0..16_usize, any::<bool>()).prop_map(|(which, again)| Step::Arrive { which, again }),
        8 => (0..16_usize).prop_map(|which| Step::Answer { which }),
        6 => Just(Step::Store),
        1 => Just(Step::Crash),
        4 => (1..5_u8).prop_map(|half_seconds| Step::Time { half_seconds }),
    ];
    prop::collection::vec(step, 0..120)
}

fn lease_key(key: usize) -> LeaseKey {
    LeaseKey([key as u8; 16])
}

fn want() -> Want<'static> {
    Want {
        kind: Kind::Of(Namespace::Counters),
        name: NAME,
        claim: Claim::new(1, MAXIMUM).unwrap(),
        slot: None,
        is_shared: false,
    }
}

/// A request for one resource of the name.
fn asking<'a>(
    key: &'a LeaseKey,
    wants: &'a [Want<'a>],
    wait_ms: u32,
    place: Option<Place>,
) -> KeyedRequest<'a> {
    let queueing = Queueing { wait_ms, queue_max: u32::MAX };
    KeyedRequest { key, text: b"one", ttl_ms: TTL_MS, label: b"", wants, queueing, place }
}

/// A client of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Client {
    /// It believes that it has its lease until this time.
    until_ms: u64,
    has_released: bool,
    place: Option<Place>,
}

struct Run {
    core: Core,
    is_durable: bool,
    disk: BTreeMap<Key, Record>,
    crashes: u64,
    now_ms: u64,
    clients: [Client; KEYS],
    requests: Vec<(usize, Request, u64)>,
    answers: Vec<(usize, u64, Option<KeyedLease>)>,
}

impl Run {
    fn new(is_durable: bool) -> Self {
        let mut run = Self {
            core: start(),
            is_durable,
            disk: BTreeMap::new(),
            crashes: 0,
            now_ms: 0,
            clients: Default::default(),
            requests: Vec::new(),
            answers: Vec::new(),
        };
        run.begin();
        run
    }

    fn now(&self) -> Moment {
        Moment { monotonic: MonotonicMs(self.now_ms), unix: UnixSeconds(self.now_ms / 1000) }
    }

    fn begin(&mut self) {
        if !self.is_durable {
            return self.core.set_place_key(PlaceKey([7; 16]));
        }
        self.core.start_sessions_after(1_000_000 * self.crashes);
        for record in self.disk.values() {
            self.core.restore(record.clone(), self.now()).unwrap();
        }
        self.core.keep_journal(Waker::noop().clone(), Some(PlaceKey([7; 16])));
        self.store();
        self.core.begin_serving(self.now().monotonic, self.now());
    }

    fn store(&mut self) {
        while let Some(batch) = self.core.take_batch(BatchLimit::UNIT) {
            for change in batch.changes.iter() {
                match change {
                    Change::Put(record) => _ = self.disk.insert(record.key(), record.clone()),
                    Change::Delete(key) => _ = self.disk.remove(key),
                }
            }
            while self.core.complete(&batch, CommitOutcome::Stored, 64, self.now()) {}
        }
    }

    fn connect(&self) -> (Session, Arc<Mailbox>) {
        let (session, mailbox) = (self.core.open_session(), Arc::new(Mailbox::default()));
        self.core.join(session.id(), None, &mailbox);
        (session, mailbox)
    }

    /// A request arrives, and is answered at once.
    fn arrive(&mut self, key: usize, request: Request, sent_ms: u64) {
        let (session, _mailbox) = self.connect();
        let (lease, now, wants) = (lease_key(key), self.now(), [want()]);
        let refused = match request {
            Request::Acquire => {
                let request = asking(&lease, &wants, 60_000, self.clients[key].place);
                self.core.acquire_keyed(session.id(), Token(1), request, now).is_err()
            }
            Request::Renew => {
                self.core.renew_keyed(session.id(), Token(1), &lease, |_, _| true, now).is_err()
            }
            Request::Release => {
                self.core.close_keyed(session.id(), Token(1), &lease, false, now);
                true
            }
        };
        if !refused {
            self.answers.push((key, sent_ms, self.core.keyed_lease(&lease, now.monotonic)));
        }
        while self.core.leave(session.id(), now) {}
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send { key, request } => {
                if request == Request::Release {
                    self.clients[key] = Client { has_released: true, ..Client::default() };
                }
                self.requests.push((key, request, self.now_ms));
            }
            Step::Arrive { which, again } if !self.requests.is_empty() => {
                let which = which % self.requests.len();
                let (key, request, sent_ms) = self.requests[which];
                if !again {
                    self.requests.remove(which);
                }
                self.arrive(key, request, sent_ms);
            }
            Step::Answer { which } if !self.answers.is_empty() => {
                let (key, sent_ms, lease) = self.answers.remove(which % self.answers.len());
                let client = &mut self.clients[key];
                match lease.map(|lease| (lease.state, lease.left_ms)) {
                    Some((KeyedState::Held { .. }, left_ms)) if !client.has_released => {
                        client.until_ms = client.until_ms.max(sent_ms + u64::from(left_ms));
                    }
                    Some((KeyedState::Queued { place, .. }, _)) => client.place = place,
                    _ => {}
                }
            }
            Step::Arrive { .. } | Step::Answer { .. } => {}
            Step::Store => self.store(),
            Step::Crash if self.is_durable => {
                self.core = start();
                self.crashes += 1;
                self.begin();
            }
            Step::Crash => {}
            Step::Time { half_seconds } => {
                for _ in 0..half_seconds {
                    self.now_ms += 500;
                    while self.core.expire(self.now()) {}
                    self.check();
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        self.core.check_ledger().unwrap();
        let believers = self.clients.iter().filter(|client| self.now_ms < client.until_ms).count();
        assert!(believers <= MAXIMUM as usize, "{believers} clients believe: {:?}", self.clients);
    }
}

fn start() -> Core {
    let core = Core::new(NonZeroU32::new(10).unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    core.set_reconnect_window(1_000);
    core
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn no_more_believe_than_may_hold(steps in steps(), is_durable in any::<bool>()) {
        let mut run = Run::new(is_durable);
        steps.iter().for_each(|step| run.step(step));
    }
}

/// A run with a store, and the outcome of an acquire over a connection that stays.
fn acquire(run: &Run, key: usize, wait_ms: u32) -> (Session, Arc<Mailbox>, Result<(), KeyedRefusal>) {
    let (session, mailbox) = run.connect();
    let (lease, wants) = (lease_key(key), [want()]);
    let request = asking(&lease, &wants, wait_ms, None);
    let outcome = run.core.acquire_keyed(session.id(), Token(1), request, run.now());
    (session, mailbox, outcome)
}

fn state(run: &Run, key: usize) -> Option<KeyedState> {
    Some(run.core.keyed_lease(&lease_key(key), run.now().monotonic)?.state)
}

#[test]
fn a_refused_request_stores_nothing_and_a_granted_one_is_stored_with_its_session() {
    let mut run = Run::new(true);
    let held = [acquire(&run, 0, 0), acquire(&run, 1, 0)];
    assert!(held.iter().all(|(.., outcome)| outcome.is_ok()));
    assert_eq!(state(&run, 0), Some(KeyedState::Storing));
    run.store();
    assert!(matches!(state(&run, 0), Some(KeyedState::Held { is_new: true, .. })));
    assert!(matches!(state(&run, 0), Some(KeyedState::Held { is_new: false, .. })));
    let before = run.disk.clone();
    let (.., refused) = acquire(&run, 2, 0);
    assert_eq!(refused, Err(KeyedRefusal::Refused(Refusal::NotAvailable)));
    assert!(run.core.take_batch(BatchLimit::UNIT).is_none(), "nothing is stored");
    assert_eq!((state(&run, 2), run.disk == before), (None, true));
    run.core.check_ledger().unwrap();
}

#[test]
fn a_place_is_told_when_its_session_is_stored() {
    let mut run = Run::new(true);
    let _held = [acquire(&run, 0, 0), acquire(&run, 1, 0)];
    run.store();
    let (_first, first, _) = acquire(&run, 2, 60_000);
    assert_eq!(state(&run, 2), Some(KeyedState::Storing));
    // A newer request gets the answer in place of this one.
    let (_second, second, _) = acquire(&run, 2, 60_000);
    let canceled = Message::Answer { token: Token(1), outcome: Err(Refusal::Canceled) };
    assert!(std::iter::from_fn(|| first.take()).any(|message| message == canceled));
    run.store();
    assert!(second.is_filled());
    let queued = state(&run, 2);
    assert!(matches!(queued, Some(KeyedState::Queued { position: 1, place: Some(_) })), "{queued:?}");
}

#[test]
fn if_the_store_fails_nothing_is_held() {
    let run = Run::new(true);
    let (_held, mailbox, _) = acquire(&run, 0, 0);
    let batch = run.core.take_batch(BatchLimit::UNIT).unwrap();
    while run.core.complete(&batch, CommitOutcome::Failed, 64, run.now()) {}
    assert!(mailbox.is_filled());
    assert_eq!(state(&run, 0), Some(KeyedState::Over(Refusal::NotStored)));
    run.core.end_idle_keyed(&lease_key(0), run.now());
    assert_eq!(state(&run, 0), None);
    let (.., refused) = acquire(&run, 1, 0);
    assert_eq!(refused, Err(KeyedRefusal::Refused(Refusal::NotStored)));
    run.core.check_ledger().unwrap();
}

#[test]
fn leases_are_counted_by_their_states() {
    let run = Run::new(false);
    let _asked = [0, 1, 2].map(|key| acquire(&run, key, 60_000));
    let other = run.core.open_session();
    run.core.join(other.id(), None, &Arc::default());
    // A leased session without a key is not counted.
    run.core.open_leased(other.id(), signalbox_model::SessionKey([9; 16]), TTL_MS, b"", Token(1), run.now());
    let counted = |step| {
        let (mut counts, mut after) = (KeyedCounts::default(), None);
        loop {
            after = run.core.count_keyed(after, step, &mut counts);
            if after.is_none() {
                return counts;
            }
        }
    };
    let before = KeyedCounts { queued: 1, held: 2, revoking: 0 };
    assert_eq!([1, 2, 10].map(counted), [before; 3]);
    let Some(KeyedState::Held { grant, .. }) = state(&run, 0) else { panic!("it is held") };
    let ids = RequestIds { own: RequestId(1), lowest_unanswered: RequestId(1) };
    let call = Call { connection: other.id(), ids, token: Token(2) };
    run.core.change(call, revoking(Revocation::Grant(grant), 1_000), run.now());
    let revoking = KeyedCounts { queued: 1, held: 1, revoking: 1 };
    assert_eq!([1, 2, 10].map(counted), [revoking; 3]);
}

/// Nothing is left of a request after its client was told the refusal, whether its session was stored or not.
#[test]
fn a_refused_request_has_no_lease() {
    for is_durable in [false, true] {
        let mut run = Run::new(is_durable);
        let _held = [acquire(&run, 0, 0), acquire(&run, 1, 0)];
        run.store();
        let _waiting = acquire(&run, 2, 500);
        run.store();
        run.step(&Step::Time { half_seconds: 1 });
        run.store();
        assert_eq!(state(&run, 2), Some(KeyedState::Over(Refusal::TimedOut)));
        let (.., repeated) = acquire(&run, 2, 500);
        assert_eq!(repeated, Err(KeyedRefusal::Refused(Refusal::TimedOut)));
        assert_eq!(state(&run, 2), None);
        while run.core.shut_down(run.now()) {}
        let (.., late) = acquire(&run, 3, 0);
        assert_eq!(late, Err(KeyedRefusal::Refused(Refusal::ShuttingDown)));
        run.store();
        assert_eq!((state(&run, 3), run.core.ledger_stats().sessions), (None, 2));
        run.core.check_ledger().unwrap();
    }
}

#[test]
fn the_key_of_a_lease_opens_no_session_and_names_need_rights() {
    let run = Run::new(false);
    let (session, ..) = acquire(&run, 0, 0);
    let key = signalbox_model::SessionKey(lease_key(0).0);
    let leased = run.core.open_session();
    run.core.join(leased.id(), None, &Arc::default());
    let opened = run.core.open_leased(leased.id(), key, TTL_MS, b"", Token(1), run.now());
    assert!(matches!(opened, Outcome::Answered(_)));
    assert_eq!(run.core.ledger_stats().sessions, 2, "it is another session");
    while run.core.leave(session.id(), run.now()) {}
    let (other, _) = run.connect();
    let renewed =
        run.core.renew_keyed(other.id(), Token(1), &lease_key(0), |_, name| name != NAME, run.now());
    assert_eq!(renewed, Err(KeyedRefusal::NotPermitted));
    assert!(!run.core.keyed_names_pass(&lease_key(0), |_, _| false));
    let Some(KeyedState::Held { grant: GrantId(grant), .. }) = state(&run, 0) else { panic!("it is held") };
    assert!(grant > 0);
}

#[test]
fn a_refused_release_with_done_changes_nothing() {
    let run = Run::new(false);
    let (_held, mailbox, _) = acquire(&run, 0, 0);
    let (other, _) = run.connect();
    let refused = run.core.close_keyed(other.id(), Token(1), &lease_key(0), true, run.now());
    assert_eq!(refused, Outcome::Refused(Refusal::NotShared));
    assert!(matches!(state(&run, 0), Some(KeyedState::Held { .. })));
    assert!(!mailbox.is_filled(), "the connection before still has the lease");
}

/// Sends a request of a single flight, which may wait.
fn share(run: &Run, key: usize, place: Option<Place>) -> (Session, Arc<Mailbox>) {
    let (session, mailbox) = run.connect();
    let wants = [Want { claim: Claim::new(1, 1).unwrap(), is_shared: true, ..want() }];
    let (lease, now) = (lease_key(key), run.now());
    let request = asking(&lease, &wants, 60_000, place);
    run.core.acquire_keyed(session.id(), Token(1), request, now).unwrap();
    (session, mailbox)
}

fn release_done(run: &Run, key: usize) {
    let (session, _) = run.connect();
    run.core.close_keyed(session.id(), Token(1), &lease_key(key), true, run.now());
}

#[test]
fn a_request_that_comes_back_to_its_place_is_told_at_once_that_its_work_was_done() {
    let mut run = Run::new(true);
    let _asked = [share(&run, 0, None), share(&run, 1, None)];
    run.store();
    let Some(KeyedState::Queued { place: Some(place), .. }) = state(&run, 1) else { panic!("it waits") };
    run.step(&Step::Crash);
    let _asked = (share(&run, 2, None), acquire(&run, 3, 60_000));
    release_done(&run, 0);
    run.store();
    let _repeated = share(&run, 2, None);
    assert_eq!(state(&run, 2), Some(KeyedState::Done), "its repetition is told so again");
    // The window ends, and an ordinary request is granted.
    run.step(&Step::Time { half_seconds: 4 });
    run.store();
    assert!(matches!(state(&run, 3), Some(KeyedState::Held { .. })));
    let _asked = share(&run, 1, Some(place));
    run.store();
    assert_eq!(state(&run, 1), Some(KeyedState::Done));
    run.core.check_ledger().unwrap();
}

#[test]
fn a_waiter_that_gives_up_with_done_tells_nobody() {
    let run = Run::new(false);
    let _asked = [0, 1, 2].map(|key| share(&run, key, None));
    release_done(&run, 1);
    assert_eq!(state(&run, 1), None);
    assert!(matches!(state(&run, 2), Some(KeyedState::Queued { position: 1, .. })));
    run.core.check_ledger().unwrap();
}

//! Compares the listing of what sessions hold and wait for with the model, even while it is taken in steps between changes.

use proptest::prelude::*;
use signalbox_core::{ClaimListing, Claimed, Core, LedgerLimits, Listed, NameEntry, Queueing};
use signalbox_model::{Declaration, IfExists, Namespace, SessionId};

use super::model::{Key, Model, Want};
use super::{CONNECTIONS, Ids, Lowest, Own, Pair, Step};
use crate::cases;

/// One name that a session holds, or waits for, with its entry.
pub(super) type Comparable = ((Namespace, Vec<u8>), bool, Listed);

/// Entries and bytes of names after which a step ends.
const STEP_ENTRIES: usize = 128;
const STEP_BYTES: usize = 64 * 1024;

/// The number of grants of three names that end in one step.
const ENDED_IN_A_STEP: usize = 16;

/// Names so long that a step has one of them, or two, or three, or many.
const NAMES: [&[u8]; 4] = [&[b'a'; 20], &[b'b'; 22_000], &[b'c'; 33_000], &[b'd'; u16::MAX as usize]];

fn comparable(Claimed { namespace, name, is_held, listed }: Claimed) -> Comparable {
    ((namespace, name.into_vec()), is_held, listed)
}

/// All claims of a listing.
pub(super) fn list(core: &Core, mut listing: ClaimListing) -> Vec<Comparable> {
    let steps = std::iter::from_fn(|| Some(core.list_claims(&mut listing)).filter(|some| !some.is_empty()));
    steps.flatten().map(comparable).collect()
}

/// The claims of these sessions in the model.
pub(super) fn of(model: &Model, sessions: &[SessionId]) -> Vec<Comparable> {
    let claims = sessions.iter().flat_map(|session| model.claims(*session));
    claims.map(|((namespace, name), is_held, listed)| ((namespace, name.to_vec()), is_held, listed)).collect()
}

#[derive(Clone, Debug)]
enum Turn {
    Change {
        step: Step,
        times: usize,
    },
    /// Begins a listing of some of the sessions that exist.
    Begin {
        choices: Vec<usize>,
    },
    /// Takes a step of the listing.
    Next,
}

/// A listing in progress.
#[derive(Default)]
struct Begun {
    /// The sessions that are left.
    sessions: Vec<SessionId>,
    /// The last grant of the first of them that was listed.
    after: Option<u64>,
    listing: Option<ClaimListing>,
}

impl Begun {
    fn of(sessions: Vec<SessionId>) -> Self {
        let reversed = sessions.iter().rev().copied().collect();
        Self { sessions, after: None, listing: Some(ClaimListing::of(reversed)) }
    }

    /// Takes a step: it lists what comes next at this moment, to the end of a grant, and stops when it is full or at the end.
    fn step(&mut self, core: &Core, model: &Model) {
        let Some(listing) = &mut self.listing else { return };
        let mut left = of(model, &self.sessions);
        let session = self.sessions.first().map(|session| session.number());
        left.retain(|(.., (entry, _))| Some(entry.session) != session || number(entry) > self.after);
        let found: Vec<_> = core.list_claims(listing).into_iter().map(comparable).collect();
        assert_eq!(found[..], left[..found.len()]);
        let Some((.., (last, _))) = found.last() else {
            assert_eq!(left, []);
            self.listing = None;
            return;
        };
        if found.len() == left.len() {
            assert_eq!(core.list_claims(listing).len(), 0);
            self.listing = None;
            return;
        }
        assert_ne!(left[found.len()].2.0.grant, last.grant, "a step lists whole grants");
        let before = found.iter().filter(|(.., (entry, _))| entry.grant != last.grant);
        let (entries, bytes) =
            before.fold((0, 0), |(entries, bytes), ((_, name), ..)| (entries + 1, bytes + name.len()));
        assert!(entries < STEP_ENTRIES && bytes < STEP_BYTES, "{entries} entries and {bytes} bytes");
        let place = self.sessions.iter().position(|session| session.number() == last.session);
        self.sessions.drain(..place.expect("it is one of them"));
        self.after = number(last);
    }
}

fn number(entry: &NameEntry) -> Option<u64> {
    entry.grant.map(|grant| grant.0)
}

fn acquire(by: usize, wants: Vec<Want>) -> Step {
    let ids = Ids { own: Own::Next, lowest: Lowest::Own };
    Step::Acquire { by, ids, wants, queueing: Queueing { wait_ms: u32::MAX, queue_max: u32::MAX } }
}

fn want(name: usize, resources: u32) -> Want {
    let key: Key = (Namespace::Semaphores, NAMES[name]);
    Want { key, resources, maximum: 3, slot: None, resolves: None, is_shared: false }
}

fn turns() -> impl Strategy<Value = Turn> {
    let by = || 0..CONNECTIONS;
    let ids = Ids { own: Own::Next, lowest: Lowest::Own };
    let once = |step| Turn::Change { step, times: 1 };
    let wants = prop::sample::subsequence((0..NAMES.len()).collect::<Vec<_>>(), 1..=3);
    prop_oneof![
        6 => (by(), wants, 1..=3u32).prop_map(move |(by, names, resources)| {
            once(acquire(by, names.into_iter().map(|name| want(name, resources)).collect()))
        }),
        1 => by().prop_map(|by| Turn::Change { step: acquire(by, vec![want(0, 1)]), times: 70 }),
        3 => (by(), any::<usize>()).prop_map(move |(by, grant)| {
            once(Step::Release { by, ids, grant, is_done: false })
        }),
        2 => by().prop_map(move |by| once(Step::Open { by, ttl_ms: 60_000 })),
        1 => by().prop_map(move |by| once(Step::Close { by })),
        1 => by().prop_map(move |by| once(Step::Leave { by })),
        3 => prop::collection::vec(any::<usize>(), 1..4).prop_map(|choices| Turn::Begin { choices }),
        8 => Just(Turn::Next),
    ]
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn claims_are_listed_in_steps_between_changes(turns in prop::collection::vec(turns(), 1..40)) {
        let mut pair = Pair::new(LedgerLimits::NONE, None);
        let mut begun = Begun::default();
        for turn in turns.into_iter().chain(std::iter::repeat_n(Turn::Next, 5)) {
            match turn {
                // A session that ends in several steps serves the names in between; the model ends it at once.
                Turn::Change { step: Step::Close { .. } | Step::Leave { .. }, .. }
                    if pair.model.grants.len() > ENDED_IN_A_STEP => {}
                Turn::Change { step, times } => {
                    for _ in 0..times {
                        pair.take(&step);
                        pair.take(&Step::Time { by_ms: 0 });
                    }
                }
                Turn::Begin { choices } => {
                    let mut sessions: Vec<_> =
                        choices.into_iter().map(|choice| pair.session(choice)).collect();
                    let mut place = 0;
                    let all = sessions.clone();
                    sessions.retain(|session| {
                        place += 1;
                        !all[..place - 1].contains(session)
                    });
                    begun = Begun::of(sessions);
                }
                Turn::Next => begun.step(&pair.core, &pair.model),
            }
        }
    }
}

#[test]
fn a_request_for_a_slot_is_listed_with_it() {
    let mut pair = Pair::new(LedgerLimits::NONE, None);
    let (name, ids) = (NAMES[0], Ids { own: Own::Next, lowest: Lowest::Own });
    let wanted = vec![Declaration { name, capacity: 2, numbered: true, label: b"" }];
    pair.step(&Step::Declare { by: 0, ids, wanted, if_exists: IfExists::Fail });
    for by in [0, 1] {
        let want = Want { maximum: 0, slot: Some(1), ..want(0, 1) };
        pair.step(&acquire(by, vec![want]));
    }
    let claims = list(&pair.core, ClaimListing::of(vec![pair.id(1).session(), pair.id(0).session()]));
    let slots = claims.into_iter().map(|(_, is_held, (entry, _))| (is_held, entry.slots));
    assert_eq!(slots.collect::<Vec<_>>(), [(true, Box::from([1])), (false, Box::from([1]))]);
}

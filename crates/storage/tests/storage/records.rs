//! Records and histories of records: any that the types allow, and those that a server could produce.

use std::collections::BTreeMap;

use proptest::prelude::*;
use signalbox_core::{
    AnswerRecord, Change, DeclarationRecord, GrantRecord, Key, Origin, PartRecord, Record, Service,
    SessionRecord,
};
use signalbox_model::{DeclaredState, GrantId, Namespace, PlaceKey, RequestId, SessionId, SessionKey};
use signalbox_model::{Generation, UnixSeconds};

use crate::sysv_records::{any_sysv_record, use_of_a_set};

pub fn session(number: u64) -> SessionId {
    SessionId::from_number(number).unwrap()
}

fn bytes(range: std::ops::Range<usize>) -> impl Strategy<Value = Box<[u8]>> {
    let text = "[a-zA-Z0-9 \"\\\\äß]{1,12}".prop_map(|text| text.into_bytes().into_boxed_slice());
    let any = prop::collection::vec(any::<u8>(), range.clone()).prop_map(Vec::into_boxed_slice);
    prop_oneof![text, any].prop_filter("within the range", move |bytes| range.contains(&bytes.len()))
}

fn any_session() -> impl Strategy<Value = SessionId> {
    (1..=u64::MAX).prop_map(session)
}

fn any_part() -> impl Strategy<Value = PartRecord> {
    let namespace = prop_oneof![Just(Namespace::Counters), Just(Namespace::Semaphores)];
    let slots = prop::collection::vec(any::<u16>(), 0..5).prop_map(Vec::into_boxed_slice);
    (namespace, bytes(1..40), any::<u8>(), any::<u32>(), any::<u32>(), slots).prop_map(
        |(namespace, name, position, resources, capacity, slots)| PartRecord {
            namespace,
            name,
            position,
            resources,
            capacity,
            slots,
        },
    )
}

/// Any record that the types allow.
pub fn any_record() -> impl Strategy<Value = Record> {
    let origin = prop_oneof![Just(Origin::Request), Just(Origin::Configuration)];
    // Long lists are encoded in another way.
    let slots_out = prop_oneof![
        8 => any::<Vec<u16>>(),
        1 => (1..32_usize).prop_map(|step| (0..=u16::MAX).step_by(step).collect()),
    ];
    let declaration = (
        bytes(1..40),
        any::<u32>(),
        bytes(0..40),
        any::<(bool, u64, u64, bool, Option<u32>)>(),
        origin,
        (any::<bool>(), slots_out),
    )
        .prop_map(
            |(
                name,
                capacity,
                label,
                (numbered, generation, created, removing, evicted_grace_ms),
                origin,
                (paused, slots_out),
            )| {
                Record::Declaration(DeclarationRecord {
                    name,
                    capacity,
                    label,
                    numbered,
                    generation,
                    created,
                    origin,
                    removing,
                    evicted_grace_ms,
                    service: Service { paused, slots_out: slots_out.into() },
                })
            },
        );
    let session = (any_session(), any::<[u8; 16]>(), any::<u32>(), bytes(0..40), any::<Option<u32>>())
        .prop_map(|(session, key, ttl_ms, label, revoked_grace_ms)| {
            Record::Session(SessionRecord { session, key: SessionKey(key), ttl_ms, label, revoked_grace_ms })
        });
    let parts = prop::collection::vec(any_part(), 0..4).prop_map(Vec::into_boxed_slice);
    let grant = (any::<(u64, u64, u64)>(), any_session(), any::<Option<u32>>(), parts).prop_map(
        |((grant, request, since), session, revoked_grace_ms, parts)| {
            Record::Grant(GrantRecord {
                grant: GrantId(grant),
                session,
                request: RequestId(request),
                since: UnixSeconds(since),
                revoked_grace_ms,
                parts,
            })
        },
    );
    let settled = any::<(u64, u32, u32)>().prop_map(|(generation, capacity, in_use)| DeclaredState {
        generation: Generation(generation),
        capacity,
        in_use,
    });
    let answer = (any_session(), any::<u64>(), prop::collection::vec(settled, 0..4)).prop_map(
        |(session, request, answer)| {
            Record::Answer(AnswerRecord { session, request: RequestId(request), answer: answer.into() })
        },
    );
    let mark = any::<u64>().prop_map(Record::Mark);
    let place_key = any::<[u8; 16]>().prop_map(|key| Record::PlaceKey(PlaceKey(key)));
    prop_oneof![1 => mark, 1 => place_key, 1 => declaration, 1 => session, 1 => grant, 1 => answer, 3 => any_sysv_record()]
}

/// Pseudorandom numbers that are the same in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// The expected content of a store.
pub type State = BTreeMap<Key, Record>;

pub fn apply(state: &mut State, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put(record) => _ = state.insert(record.key(), record.clone()),
            Change::Delete(key) => _ = state.remove(key),
        }
    }
}

/// Sessions that come and go, acquire grants and slots, and declare semaphores, and processes that use semaphore sets: their records are consistent at all
/// times.
pub struct Life {
    random: Random,
    mark: u64,
    sessions: u64,
    pub state: State,
}

impl Life {
    pub fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), mark: 1 << 60, sessions: 0, state: State::new() }
    }

    /// The changes of one commit.
    pub fn changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut mark = self.mark;
        for _ in 0..=self.random.below(6) {
            let some = self.random.next();
            let of_kind = |state: &State, wanted: fn(&Key) -> bool| -> Option<Key> {
                let keys: Vec<_> = state.keys().filter(|key| wanted(key)).collect();
                (!keys.is_empty()).then(|| keys[some as usize % keys.len()].clone())
            };
            let session_key = of_kind(&self.state, |key| matches!(key, Key::Session(_)));
            let step = match (self.random.below(11), session_key) {
                (10, _) => use_of_a_set(some),
                (0..=1, _) | (_, None) => {
                    self.sessions += 1;
                    vec![Change::Put(Record::Session(SessionRecord {
                        session: session(self.sessions),
                        key: SessionKey([some as u8; 16]),
                        ttl_ms: some as u32,
                        label: vec![some as u8; some as usize % 300].into(),
                        revoked_grace_ms: (some.is_multiple_of(7)).then_some(5_000),
                    }))]
                }
                (2..=4, Some(Key::Session(owner))) => {
                    mark += 1;
                    let taken: Vec<_> = self.state.values().filter_map(slot_of).collect();
                    let slot = (0..).find(|slot| !taken.contains(slot)).unwrap();
                    vec![Change::Put(Record::Grant(GrantRecord {
                        grant: GrantId(mark),
                        session: owner,
                        request: RequestId(some),
                        since: UnixSeconds(1_700_000_000),
                        revoked_grace_ms: None,
                        parts: [PartRecord {
                            namespace: Namespace::Semaphores,
                            name: (*b"slots").into(),
                            position: 0,
                            resources: 1,
                            capacity: 60_000,
                            slots: [slot].into(),
                        }]
                        .into(),
                    }))]
                }
                (5, Some(Key::Session(owner))) => {
                    vec![Change::Put(Record::Answer(AnswerRecord {
                        session: owner,
                        request: RequestId(some),
                        answer: [DeclaredState {
                            generation: Generation(mark),
                            capacity: some as u32,
                            in_use: 3,
                        }]
                        .into(),
                    }))]
                }
                (6, _) => {
                    mark += 1;
                    vec![Change::Put(Record::Declaration(DeclarationRecord {
                        name: format!("name {}", some % 50).into_bytes().into(),
                        capacity: some as u32 % 65_537,
                        // Sometimes a record that needs its own pages.
                        label: vec![some as u8; if some.is_multiple_of(5) { 30_000 } else { 3 }].into(),
                        numbered: some.is_multiple_of(2),
                        generation: mark,
                        created: mark,
                        origin: Origin::Request,
                        removing: false,
                        evicted_grace_ms: None,
                        service: Service { paused: some.is_multiple_of(3), slots_out: Box::default() },
                    }))]
                }
                (7..=8, _) => {
                    let gone = of_kind(&self.state, |key| matches!(key, Key::Grant(_)));
                    vec![Change::Delete(gone.unwrap_or(Key::Declaration((*b"no such name").into())))]
                }
                (_, Some(gone)) => {
                    let of_it = |record: &Record| match record {
                        Record::Grant(grant) => Key::Session(grant.session) == gone,
                        Record::Answer(answer) => Key::Session(answer.session) == gone,
                        _ => false,
                    };
                    let ended = self.state.values().filter(|record| of_it(record)).map(Record::key);
                    ended.chain([gone.clone()]).map(Change::Delete).collect()
                }
            };
            apply(&mut self.state, &step);
            changes.extend(step);
        }
        if self.mark == 1 << 60 {
            mark += 1;
            let key = Change::Put(Record::PlaceKey(PlaceKey([7; 16])));
            apply(&mut self.state, std::slice::from_ref(&key));
            changes.push(key);
            let slots = DeclarationRecord {
                name: (*b"slots").into(),
                capacity: 60_000,
                label: Box::default(),
                numbered: true,
                generation: mark,
                created: 0,
                origin: Origin::Request,
                removing: false,
                evicted_grace_ms: None,
                service: Service { paused: false, slots_out: [7, 65_535].into() },
            };
            let step = [Change::Put(Record::Declaration(slots))];
            apply(&mut self.state, &step);
            changes.extend(step);
        }
        if mark > self.mark {
            self.mark = mark.max(self.mark + 1);
            let step = [Change::Put(Record::Mark(self.mark))];
            apply(&mut self.state, &step);
            changes.extend(step);
        }
        changes
    }
}

fn slot_of(record: &Record) -> Option<u16> {
    match record {
        Record::Grant(grant) => Some(grant.parts[0].slots[0]),
        _ => None,
    }
}

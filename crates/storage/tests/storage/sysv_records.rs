//! Records of System V semaphore sets: any that the types allow, those that a server could produce, their encoding, and
//! what a check finds.

use proptest::prelude::*;
use signalbox_core::{
    AdjustmentsRecord, Change, ProcessRecord, Record, ResultRecord, SemaphoreRecord, SetRecord, StoredAnswer,
    SysvRecord,
};
use signalbox_model::sysv::{Order, Ownership, ProcessId, SetId};
use signalbox_model::{RequestId, SessionKey, UnixSeconds};
use signalbox_storage::contradictions;

fn set_id(number: i32) -> SetId {
    SetId(SetId::FIRST.0 + number)
}

fn semaphore((value, pid, cleared): (u16, u32, u64)) -> SemaphoreRecord {
    SemaphoreRecord { value, pid, cleared }
}

fn process_id() -> impl Strategy<Value = ProcessId> {
    any::<u64>().prop_map(ProcessId)
}

/// Any record that the types allow.
pub fn any_sysv_record() -> impl Strategy<Value = Record> {
    let sets = || (0..0x3fff_ffff).prop_map(set_id);
    let order = prop_oneof![Just(Order::Kernel), Just(Order::Fifo)];
    let times = any::<(Option<u64>, u64)>();
    let semaphores = prop::collection::vec(any::<(u16, u32, u64)>().prop_map(semaphore), 0..5);
    let set = (sets(), any::<i32>(), order, any::<(u32, u32, u32, u32, u32)>(), times, semaphores).prop_map(
        |(
            set,
            key,
            order,
            (uid, gid, mode, creator_uid, creator_gid),
            (operated_at, changed_at),
            semaphores,
        )| {
            SysvRecord::Set(SetRecord {
                set,
                key,
                order,
                ownership: Ownership { uid, gid, mode },
                creator_uid,
                creator_gid,
                operated_at: operated_at.map(UnixSeconds),
                changed_at: UnixSeconds(changed_at),
                semaphores: semaphores.into(),
            })
        },
    );
    let groups = prop::collection::vec(any::<u32>(), 0..4);
    let label = prop::collection::vec(any::<u8>(), 0..20);
    let process = (process_id(), any::<([u8; 16], u32, u32, u32, bool)>(), groups, label).prop_map(
        |(process, (key, ttl_ms, pid, uid, is_ending), groups, label)| {
            let (key, groups, label) = (SessionKey(key), groups.into(), label.into());
            SysvRecord::Process(ProcessRecord { process, key, ttl_ms, pid, uid, groups, label, is_ending })
        },
    );
    let changes = prop::collection::vec(any::<i16>(), 0..5);
    let adjustments = (process_id(), sets(), any::<(u64, u64)>(), changes).prop_map(
        |(process, set, (turn, clearances), changes)| {
            let adjustments = changes.into();
            SysvRecord::Adjustments(AdjustmentsRecord { process, set, turn, clearances, adjustments })
        },
    );
    let answer = prop_oneof![
        Just(StoredAnswer::Done),
        (sets(), any::<u32>()).prop_map(|(set, count)| StoredAnswer::Set(set, count))
    ];
    let result = (process_id(), any::<u64>(), answer).prop_map(|(process, request, answer)| {
        SysvRecord::Result(ResultRecord { process, request: RequestId(request), answer })
    });
    prop_oneof![set, process, adjustments, result].prop_map(Record::Sysv)
}

fn a_set(number: i32) -> SetRecord {
    SetRecord {
        set: set_id(number),
        key: number + 1,
        order: Order::Fifo,
        ownership: Ownership { uid: 1, gid: 2, mode: 0o600 },
        creator_uid: 3,
        creator_gid: 4,
        operated_at: Some(UnixSeconds(0x6500_0001)),
        changed_at: UnixSeconds(0x6500_0000),
        semaphores: [(5, 6, 1), (32767, 8, 3)].map(semaphore).into(),
    }
}

fn a_process(number: u64) -> ProcessRecord {
    ProcessRecord {
        process: ProcessId(number),
        key: SessionKey([0xab; 16]),
        ttl_ms: 10_000,
        pid: 77,
        uid: 1,
        groups: [4, 5].into(),
        label: (*b"w").into(),
        is_ending: true,
    }
}

fn adjustments(process: u64, set: i32) -> AdjustmentsRecord {
    let process = ProcessId(process);
    AdjustmentsRecord {
        process,
        set: set_id(set),
        turn: set as u64,
        clearances: 2,
        adjustments: [1, -2].into(),
    }
}

fn a_result(process: u64, request: u64, answer: StoredAnswer) -> ResultRecord {
    ResultRecord { process: ProcessId(process), request: RequestId(request), answer }
}

/// The changes that a process makes when it uses a set.
pub fn use_of_a_set(some: u64) -> Vec<Change> {
    let (process, set) = (some % 5, (some / 5 % 4) as i32);
    let records = [
        SysvRecord::Set(a_set(set)),
        SysvRecord::Process(a_process(process)),
        SysvRecord::Adjustments(adjustments(process, set)),
        SysvRecord::Result(a_result(process, some / 20 % 10, StoredAnswer::Done)),
    ];
    records.map(|record| Change::Put(Record::Sysv(record))).into()
}

/// A record of each kind with the bytes of its key and its value. A change here is another format.
pub fn pinned() -> [(Record, &'static str, &'static str); 5] {
    [
        (
            SysvRecord::Set(a_set(9)),
            "0640000009",
            concat!(
                "0000000a",
                "01",
                "00000001",
                "00000002",
                "00000180",
                "00000003",
                "00000004",
                "01",
                "0000000065000001",
                "0000000065000000",
                "00000002",
                "0005",
                "00000006",
                "0000000000000001",
                "7fff",
                "00000008",
                "0000000000000003",
            ),
        ),
        (
            SysvRecord::Process(a_process(5)),
            "070000000000000005",
            concat!(
                "abababababababababababababababab",
                "00002710",
                "0000004d",
                "00000001",
                "01",
                "00000002",
                "00000004",
                "00000005",
                "00000001",
                "77",
            ),
        ),
        (
            SysvRecord::Adjustments(adjustments(5, 9)),
            "08000000000000000540000009",
            concat!("0000000000000009", "0000000000000002", "00000002", "0001", "fffe"),
        ),
        (SysvRecord::Result(a_result(5, 7, StoredAnswer::Done)), "0900000000000000050000000000000007", "00"),
        (
            SysvRecord::Result(a_result(5, 7, StoredAnswer::Set(set_id(9), 2))),
            "0900000000000000050000000000000007",
            "014000000900000002",
        ),
    ]
    .map(|(record, key, value)| (Record::Sysv(record), key, value))
}

#[test]
fn contradictions_between_sets_and_processes_are_found() {
    let set = || SysvRecord::Set(a_set(1));
    let process = || SysvRecord::Process(a_process(5));
    let same_key = SysvRecord::Set(SetRecord { key: 2, ..a_set(2) });
    let too_high =
        SysvRecord::Set(SetRecord { semaphores: [(32768, 0, 0)].map(semaphore).into(), ..a_set(1) });
    let empty = SysvRecord::Set(SetRecord { semaphores: [].into(), ..a_set(1) });
    let few = AdjustmentsRecord { adjustments: [1].into(), ..adjustments(5, 1) };
    let same_turn = AdjustmentsRecord { turn: 1, ..adjustments(5, 2) };
    let cases = [
        (vec![set(), same_key], "semaphore sets 1073741825 and 1073741826 have the same key"),
        (vec![too_high], "semaphore set 1073741825 has a value above 32767"),
        (vec![empty], "semaphore set 1073741825 has 0 semaphores"),
        (
            vec![set(), SysvRecord::Adjustments(adjustments(5, 1))],
            "adjustments of semaphore set 1073741825 belong to process 5, which does not exist",
        ),
        (
            vec![set(), process(), SysvRecord::Adjustments(few)],
            "process 5 has adjustments of semaphore set 1073741825, which has another number of semaphores",
        ),
        (
            vec![
                set(),
                SysvRecord::Set(a_set(2)),
                process(),
                SysvRecord::Adjustments(adjustments(5, 1)),
                SysvRecord::Adjustments(same_turn),
            ],
            "process 5 has adjustments of two semaphore sets with number 1",
        ),
        (
            vec![SysvRecord::Result(a_result(5, 7, StoredAnswer::Done))],
            "a result belongs to process 5, which does not exist",
        ),
    ];
    for (records, problem) in cases {
        let records: Vec<_> = records.into_iter().map(Record::Sysv).collect();
        assert_eq!(contradictions(&records), [problem]);
    }
    // Set 2 was removed.
    let sound = [
        set(),
        process(),
        SysvRecord::Adjustments(adjustments(5, 1)),
        SysvRecord::Adjustments(adjustments(5, 2)),
    ];
    let sound = sound.map(Record::Sysv);
    assert_eq!(contradictions(&sound), [] as [&str; 0]);
}

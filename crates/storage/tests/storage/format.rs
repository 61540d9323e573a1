//! The encoding of records, which must not change while files with it exist.

use proptest::prelude::*;
use signalbox_core::{
    AnswerRecord, DeclarationRecord, GrantRecord, Origin, PartRecord, Record, Service, SessionRecord,
};
use signalbox_model::{DeclaredState, GrantId, Namespace, PlaceKey, RequestId, SessionKey};
use signalbox_model::{Generation, UnixSeconds};
use signalbox_storage::record::{decode, decode_key, encode_key, encode_value};

use crate::records::{any_record, session};
use crate::sysv_records;

proptest! {
    #[test]
    fn a_record_is_encoded_and_decoded_without_loss(record in any_record()) {
        let (key, value) = (encode_key(&record.key()), encode_value(&record));
        prop_assert_eq!(decode_key(&key).unwrap(), record.key());
        prop_assert_eq!(decode(&key, &value).unwrap(), record);
    }

    #[test]
    fn encoded_keys_sort_like_keys(one in any_record(), other in any_record()) {
        let (one, other) = (one.key(), other.key());
        prop_assert_eq!(encode_key(&one).cmp(&encode_key(&other)), one.cmp(&other));
    }

    #[test]
    fn no_byte_is_missing_or_left_over(record in any_record(), extra in any::<u8>()) {
        let (key, mut value) = (encode_key(&record.key()), encode_value(&record));
        for length in 0..value.len() {
            prop_assert!(decode(&key, &value[..length]).is_err());
        }
        value.push(extra);
        let sentence = decode(&key, &value).unwrap_err().to_string();
        prop_assert!(sentence.ends_with("has extra bytes at its end"), "{}", sentence);
    }

    #[test]
    fn any_bytes_are_a_record_or_an_error(
        key in prop::collection::vec(0_u8..12, 0..20),
        value in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Ok(record) = decode(&key, &value) {
            prop_assert_eq!(encode_key(&record.key()), key);
            prop_assert_eq!(encode_value(&record), value);
        }
    }
}

/// Slots that are listed, and slots that are a bit each, from 4,097 on.
#[test]
fn many_slots_out_of_service_are_encoded_and_decoded_without_loss() {
    for (slots, bytes) in [(4_096, 2 * 4_096), (4_097, 65_536 / 8), (65_536, 65_536 / 8)] {
        let step = 65_536 / slots;
        let slots_out: Box<[u16]> = (0..=u16::MAX).step_by(step).take(slots).collect();
        let record = |slots_out| {
            Record::Declaration(DeclarationRecord {
                name: (*b"db").into(),
                capacity: 65_536,
                label: Box::default(),
                numbered: true,
                generation: 1,
                created: 1,
                origin: Origin::Request,
                removing: false,
                evicted_grace_ms: None,
                service: Service { paused: false, slots_out },
            })
        };
        let (none, some) = (record(Box::default()), record(slots_out));
        let value = encode_value(&some);
        assert_eq!(value.len() - encode_value(&none).len(), bytes, "{slots}");
        assert_eq!(decode(&encode_key(&some.key()), &value).unwrap(), some, "{slots}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A change here is another format: files in the previous one must still be read, or be migrated.
#[test]
fn the_encoding_of_each_kind_does_not_change() {
    let pinned = [
        (Record::Mark(0x0102_0304_0506_0708), "01", "0102030405060708"),
        (
            Record::Declaration(DeclarationRecord {
                name: (*b"db").into(),
                capacity: 3,
                label: (*b"Db").into(),
                numbered: true,
                generation: 0x11,
                created: 0x10,
                origin: Origin::Configuration,
                removing: true,
                evicted_grace_ms: Some(7),
                service: Service { paused: true, slots_out: [2, 258].into() },
            }),
            "026462",
            concat!(
                "00000003",
                "01",
                "0000000000000011",
                "0000000000000010",
                "01",
                "01",
                "01",
                "00000007",
                "00000002",
                "4462",
                "01",
                "00000002",
                "0002",
                "0102"
            ),
        ),
        (
            Record::Session(SessionRecord {
                session: session(5),
                key: SessionKey([0xab; 16]),
                ttl_ms: 10_000,
                label: (*b"w").into(),
                revoked_grace_ms: Some(7),
            }),
            "030000000000000005",
            concat!("abababababababababababababababab", "00002710", "01", "00000007", "00000001", "77"),
        ),
        (
            Record::Grant(GrantRecord {
                grant: GrantId(0x1122),
                session: session(5),
                request: RequestId(9),
                since: UnixSeconds(0x6500_0000),
                revoked_grace_ms: None,
                parts: [PartRecord {
                    namespace: Namespace::Semaphores,
                    name: (*b"db").into(),
                    position: 1,
                    resources: 2,
                    capacity: 3,
                    slots: [0, 258].into(),
                }]
                .into(),
            }),
            "040000000000001122",
            concat!(
                "0000000000000005",
                "0000000000000009",
                "0000000065000000",
                "00",
                "00000000",
                "00000001",
                "01",
                "01",
                "00000002",
                "00000003",
                "00000002",
                "00000002",
                "0000",
                "0102",
                "6462",
            ),
        ),
        (
            Record::Answer(AnswerRecord {
                session: session(5),
                request: RequestId(9),
                answer: [DeclaredState { generation: Generation(17), capacity: 3, in_use: 2 }].into(),
            }),
            "0500000000000000050000000000000009",
            concat!("00000001", "0000000000000011", "00000003", "00000002"),
        ),
        (Record::PlaceKey(PlaceKey([0xab; 16])), "0a", "abababababababababababababababab"),
    ];
    for (record, key, value) in pinned.into_iter().chain(sysv_records::pinned()) {
        assert_eq!(hex(&encode_key(&record.key())), key, "{record:?}");
        assert_eq!(hex(&encode_value(&record)), value, "{record:?}");
    }
}

#[test]
fn an_error_names_the_record() {
    let sentence = |key: &[u8], value: &[u8]| decode(key, value).unwrap_err().to_string();
    assert_eq!(sentence(b"\x02a\"b", b""), "the record of declared semaphore \"a\\\"b\" is truncated");
    assert_eq!(
        sentence(b"\x04\0\0\0\0\0\0\0\x07", b"\0\0\0\0\0\0\0\0"),
        "the record of grant 7 has session number 0, which is invalid"
    );
    assert_eq!(sentence(b"\x0b", b""), "the record of the key \\x0b has an unknown kind");
    assert!(sentence(b"\x02", b"").contains("has an empty name"));
    assert!(sentence(b"\x06\0\0\0\x01", b"").contains("no set can have"), "such ids are those of the kernel");
    let session = [&[7; 16][..], &[0, 0, 0, 5], &[0, 0, 0, 0, 9], &[0, 0, 0, 0]].concat();
    assert!(sentence(b"\x03\0\0\0\0\0\0\0\x01", &session).contains("has a time"), "it says that it has none");
}

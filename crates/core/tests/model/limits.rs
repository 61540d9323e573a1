//! The share of one client in what is limited.

use signalbox_core::{ClientKey, ClientShare};

const EIGHTH: ClientShare = ClientShare { percent: 12, least: 1 };

#[test]
fn a_share_binds_once_half_of_the_resource_is_in_use() {
    assert_eq!(EIGHTH.of(100), 12);
    assert!(!EIGHTH.is_exhausted(100, 49, 49));
    assert!(EIGHTH.is_exhausted(100, 50, 50));
    assert!(EIGHTH.is_exhausted(100, 50, 12));
    assert!(!EIGHTH.is_exhausted(100, 99, 11));
}

#[test]
fn identities_are_clients_of_their_own() {
    let [one, same, other] = ["token:a", "token:a", "token:b"].map(ClientKey::of_identity);
    assert_eq!(one, same);
    assert_ne!(one, other);
    assert_eq!(one.0[0], 0xff);
}

#[test]
fn a_share_is_a_part_of_any_limit() {
    assert_eq!(EIGHTH.of(0), 0);
    assert_eq!(EIGHTH.of(5), 1);
    assert_eq!(EIGHTH.of(1050), 126);
    assert_eq!(EIGHTH.of(usize::MAX), usize::MAX / 100 * 12 + usize::MAX % 100 * 12 / 100);
    assert_eq!(ClientShare::of_percent(12).of(1000), 120);
}

#[test]
fn small_limits_and_shares_of_all_are_not_divided() {
    for max in [0, 1, 2, 16] {
        assert_eq!(ClientShare::of_percent(1).of(max), max);
        assert!(!ClientShare::of_percent(1).is_exhausted(max, max, max));
    }
    assert!(!ClientShare::NONE.is_exhausted(1000, 1000, 1000));
    assert!(!ClientShare::of_percent(100).is_exhausted(1000, 1000, 1000));
}

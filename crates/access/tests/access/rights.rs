//! Rights, and the names in certificates that rules are about.

use proptest::prelude::*;

use signalbox_access::Right::{Acquire, Administer, Read};
use signalbox_access::{CertificateName, Rights, UnknownCertificateName};
use signalbox_model::Namespace::{self, Counters, Semaphores};
use signalbox_model::Target;

fn rights(text: &str) -> Rights {
    text.parse().unwrap()
}

#[test]
fn rights_hold_for_names_that_begin_with_the_prefix_and_for_nothing_else() {
    let limited = rights("read,acquire counter:web/ semaphore");
    for (right, target, expected) in [
        (Read, Target::Name(Counters, b"web/1"), true),
        (Acquire, Target::Name(Counters, b"web/"), true),
        (Read, Target::Name(Counters, b"web"), false),
        (Read, Target::Name(Counters, b"my-web/1"), false),
        (Read, Target::Name(Counters, b"WEB/1"), false),
        (Read, Target::Name(Semaphores, b"x"), true),
        (Administer, Target::Name(Semaphores, b"x"), false),
        (Read, Target::Prefix(Counters, b""), false),
        (Read, Target::Prefix(Counters, b"web"), false),
        (Read, Target::Prefix(Counters, b"web/1"), true),
        (Read, Target::Prefix(Semaphores, b""), true),
        (Read, Target::Sets, false),
        (Read, Target::Server, false),
        (Acquire, Target::Anywhere, true),
        (Administer, Target::Anywhere, false),
    ] {
        assert_eq!(limited.permit(right, target), expected, "{right:?} {target:?}");
    }
    let of_both = rights("acquire limit:web/");
    for namespace in Namespace::ALL {
        assert!(of_both.permit(Acquire, Target::Name(namespace, b"web/1")));
        assert!(!of_both.permit(Acquire, Target::Name(namespace, b"web")));
    }
    let of_sets = rights("acquire sysv");
    for (target, expected) in
        [(Target::Sets, true), (Target::Anywhere, true), (Target::Name(Counters, b"x"), false)]
    {
        assert_eq!(of_sets.permit(Acquire, target), expected, "{target:?}");
    }
    assert!(Rights::ALL.permit(Administer, Target::Server));
    assert!(!Rights::NONE.permit(Read, Target::Anywhere));
}

#[test]
fn rights_are_shown_as_they_are_written() {
    for text in [
        "none",
        "read",
        "read,acquire,administer counter:a:b sysv",
        "acquire semaphore:x",
        "read limit sysv",
        "acquire limit:x",
    ] {
        assert_eq!(rights(text).to_string(), text);
    }
    assert_eq!(rights("all"), Rights::ALL);
    for text in ["", "write", "read,", "Read", "read sysv:1", "read queue", "read,none"] {
        assert!(text.parse::<Rights>().is_err(), "{text}");
    }
}

#[test]
fn rights_include_others_if_all_areas_of_these_are_within_their_own() {
    for (one, other, expected) in [
        ("read,acquire", "read", true),
        ("read", "read,acquire", false),
        ("all", "read,acquire limit:web/ sysv", true),
        ("read limit", "read", false),
        ("read limit sysv", "read counter semaphore sysv", true),
        ("read counter:w", "read counter:web/ counter:w", true),
        ("read counter:web/", "read counter:w", false),
        ("read counter:web/", "read counter:web/ counter:db/", false),
        ("read counter:web/ counter:db/", "read counter:db/ counter:web/", true),
        ("read counter:web/", "read counter:web/ sysv", false),
        ("read counter:web/", "read limit:web/", false),
        ("read counter:web/ semaphore:w", "read limit:web/", true),
        ("read limit:web/", "read semaphore:web/1", true),
        ("read sysv", "none", true),
        ("none", "none", true),
        ("none", "read", false),
    ] {
        assert_eq!(rights(one).include(&rights(other)), expected, "{one} and {other}");
    }
}

proptest! {
    /// Rights that include other rights permit everything that those permit.
    #[test]
    fn included_rights_are_permitted(
        one in "(read|acquire|read,acquire|all|none)( counter| counter:[ab]{1,2}| limit:[ab]{1,2}| semaphore| limit| sysv){0,3}",
        other in "(read|acquire|read,acquire|all|none)( counter| counter:[ab]{1,2}| limit:[ab]{1,2}| semaphore| limit| sysv){0,3}",
        name in "[ab]{1,3}",
    ) {
        let (one, other) = (rights(&one), rights(&other));
        if one.include(&other) {
            for right in [Read, Acquire, Administer] {
                let of = |namespace| {
                    [Target::Name(namespace, name.as_bytes()), Target::Prefix(namespace, b"")]
                };
                let targets = Namespace::ALL.into_iter().flat_map(of);
                for target in targets.chain([Target::Sets, Target::Server]) {
                    prop_assert!(one.permit(right, target) || !other.permit(right, target));
                }
            }
        }
    }
}

#[test]
fn a_name_is_parsed_as_it_is_shown() {
    let name = |text: &str| text.parse::<CertificateName>();
    for text in ["dns:worker-1.example.org", "uri:spiffe://example.org/Web", "cn:Worker: 1"] {
        assert_eq!(name(text).map(|name| name.to_string()).as_deref(), Ok(text));
    }
    assert_eq!(name("dns:Worker-1"), name("dns:worker-1"));
    assert_ne!(name("uri:a:B"), name("uri:a:b"));
    assert_ne!(name("cn:A"), name("cn:a"));
    assert_ne!(name("cn:a"), name("dns:a"));
    for text in ["", "dns:", "worker-1", "DNS:a", "spiffe://example.org/web", "*", ":a"] {
        assert_eq!(name(text), Err(UnknownCertificateName), "{text}");
    }
}

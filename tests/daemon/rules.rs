//! How an administrator names clients, and what rules permit them.

use signalbox::config::{AccessConfig, CertificateRule, Clients, Loaded, Network, NetworkRule};

#[test]
fn the_range_of_a_network_has_its_first_and_last_address() {
    for (network, first, last) in [
        ("192.0.2.1", "::ffff:192.0.2.1", "::ffff:192.0.2.1"),
        ("10.0.0.0/8", "::ffff:10.0.0.0", "::ffff:10.255.255.255"),
        ("0.0.0.0/0", "::ffff:0.0.0.0", "::ffff:255.255.255.255"),
        ("2001:db8::/64", "2001:db8::", "2001:db8::ffff:ffff:ffff:ffff"),
        ("::1", "::1", "::1"),
        ("::/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ] {
        let range = network.parse::<Network>().unwrap().range();
        assert_eq!(range, first.parse().unwrap()..=last.parse().unwrap(), "{network}");
    }
}

#[test]
fn a_network_has_the_addresses_that_begin_with_its_bits() {
    for (network, inside, outside) in [
        ("192.0.2.1", &["192.0.2.1", "::ffff:192.0.2.1"][..], &["192.0.2.2", "192.0.2.0", "::1"][..]),
        ("10.0.0.0/8", &["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3"], &["9.255.255.255", "11.0.0.0"]),
        ("192.0.2.128/25", &["192.0.2.128", "192.0.2.255"], &["192.0.2.127", "192.0.3.128"]),
        ("0.0.0.0/0", &["0.0.0.0", "255.255.255.255"], &["::", "::1"]),
        ("2001:db8::/33", &["2001:db8:7fff::1", "2001:db8::"], &["2001:db8:8000::", "192.0.2.1"]),
        ("::/0", &["::1", "ffff::"], &["192.0.2.1", "::ffff:192.0.2.1"]),
        ("::1", &["::1"], &["::2", "0.0.0.1"]),
        ("::ffff:10.0.0.0/104", &["10.1.2.3", "::ffff:10.1.2.3"], &["11.0.0.0", "::ffff:11.0.0.0"]),
        ("::ffff:0.0.0.0/96", &["10.1.2.3", "::ffff:10.1.2.3"], &["::1"]),
    ] {
        let network: Network = network.parse().unwrap();
        for address in inside {
            assert!(network.contains(address.parse().unwrap()), "{address} in {network}");
        }
        for address in outside {
            assert!(!network.contains(address.parse().unwrap()), "{address} not in {network}");
        }
    }
}

#[test]
fn a_network_is_shown_as_it_is_written() {
    for text in ["192.0.2.1", "10.0.0.0/8", "0.0.0.0/0", "2001:db8::/32", "::1", "::/0"] {
        assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
    }
    for (text, shown) in [("192.0.2.1/32", "192.0.2.1"), ("::ffff:10.0.0.0/104", "10.0.0.0/8")] {
        assert_eq!(text.parse::<Network>().unwrap().to_string(), shown);
    }
}

#[test]
fn other_texts_are_no_network() {
    for text in [
        "",
        "/",
        "/8",
        "10.0.0.0/",
        "10.0.0.0/33",
        "::/129",
        "10.0.0.0/+8",
        "10.0.0.0/-1",
        "10.0.0.0/8/8",
        "10.0.0.1/8",
        "2001:db8::1/64",
        "10.0.0.0/255.0.0.0",
        "10.0.0.0/256",
        "localhost",
        "10.0.0",
        "[::1]",
    ] {
        assert!(text.parse::<Network>().is_err(), "{text}");
    }
}

#[test]
fn proxies_on_loopback_are_reported() {
    for (network, expected) in [
        ("127.0.0.2", true),
        ("127.1.0.0/16", true),
        ("0.0.0.0/0", true),
        ("64.0.0.0/2", true),
        ("128.0.0.0/2", false),
        ("10.0.0.0/8", false),
        ("::1", true),
        ("::/64", true),
        ("2001:db8::/32", false),
    ] {
        let loaded = Loaded::read(None, [("SIGNALBOX_CONFIG_PROXIES".into(), network.into())]).unwrap();
        let is_reported = loaded.notices.iter().any(|notice| notice.sentence.contains("this is loopback"));
        assert_eq!(is_reported, expected, "{network}");
    }
}

#[test]
fn clients_are_named_by_address_network_or_identity() {
    for text in ["token:web", "token:a:b", "certificate:cn:CN with spaces", "certificate:uri:spiffe://A/b"] {
        assert_eq!(text.parse(), Ok(Clients::Identity(text.to_owned())));
    }
    assert_eq!("certificate:dns:A.b".parse(), Ok(Clients::Identity("certificate:dns:a.b".to_owned())));
    for text in ["192.0.2.1", "10.0.0.0/8", "2001:db8::/64", "::1"] {
        assert_eq!(text.parse::<Clients>(), Ok(Clients::Network(text.parse().unwrap())));
    }
    for text in ["", "token:", "certificate:", "certificate:web", "tokens:a", "Token:a", "web"] {
        assert!(text.parse::<Clients>().is_err(), "{text}");
    }
}

#[test]
fn rules_are_shown_as_they_are_written() {
    for text in ["10.0.0.0/8 read,acquire counter:web/ sysv", "::1 none"] {
        assert_eq!(text.parse::<NetworkRule>().unwrap().to_string(), text);
    }
    for text in ["dns:worker-1 read", "uri:spiffe://a/b none", "cn:A read", "* acquire semaphore"] {
        assert_eq!(text.parse::<CertificateRule>().unwrap().to_string(), text);
    }
    for text in ["worker-1 read", "ip:192.0.2.1 read", "dns: read", "dns:a", "dns:a write"] {
        assert!(text.parse::<CertificateRule>().is_err(), "{text}");
    }
    for text in ["", "10.0.0.0/8", "10.0.0.1/8 read", "10.0.0.0/8 write", "10.0.0.0/8 read queue"] {
        assert!(text.parse::<NetworkRule>().is_err(), "{text}");
    }
}

#[test]
fn everybody_has_what_a_rule_for_all_addresses_permits_or_else_anonymous_clients() {
    for (anonymous, networks, expected) in [
        (None, &[][..], "read,acquire"),
        (Some("all"), &[], "all"),
        (Some("read"), &[], "read"),
        (None, &["10.0.0.0/8 all"], "read,acquire"),
        (Some("none"), &["10.0.0.0/8 all"], "none"),
        (None, &["0.0.0.0/0 none"], "read,acquire"),
        (None, &["0.0.0.0/0 none", "::/0 none"], "none"),
        (Some("none"), &["0.0.0.0/0 all"], "all"),
    ] {
        let access = AccessConfig {
            anonymous: anonymous.map(|rights| rights.parse().unwrap()),
            networks: networks.iter().map(|rule| rule.parse().unwrap()).collect(),
            ..AccessConfig::default()
        };
        assert_eq!(access.rights_of_every_client(), expected.parse().unwrap(), "{anonymous:?} {networks:?}");
    }
}

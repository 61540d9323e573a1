//! The values that the keys of the configuration accept, and the values that contradict each other.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use signalbox::config::{
    ClientCert, Config, Contradiction, DeclareConfig, Key, Language, PlainRule, TlsConfig, WorkerCount,
};

/// The configuration of a file in TOML with only this key; `None` if the value is refused.
fn with(key: &str, value: &str) -> Option<Config> {
    let text = match key.strip_prefix("semaphore.declare.") {
        None => format!("{key} = {value}"),
        Some("capacity") => format!("[[semaphore.declare]]\nname = 'a'\ncapacity = {value}"),
        Some(key) => format!("[[semaphore.declare]]\nname = 'a'\ncapacity = 1\n{key} = {value}"),
    };
    Config::parse(&text, Path::new("x"), Language::Toml).map(|loaded| loaded.config).ok()
}

fn accepts(key: &str, text: &str) -> bool {
    with(key, &format!("'{text}'")).is_some()
}

/// The numbers that a key may have, according to its description.
fn range_of(key: &Key) -> Option<(u64, u64)> {
    let allowed = key.allowed();
    let range = allowed
        .strip_prefix("a whole number from ")
        .or(allowed.strip_prefix("a time in whole seconds from "))?;
    let (least, rest) = range.split_once(" to ")?;
    let most = rest.split(',').next()?;
    Some((least.parse().unwrap(), most.parse().unwrap()))
}

#[test]
fn every_range_fits_its_field() {
    let ranges: Vec<_> = Key::all().iter().filter_map(|key| Some((key, range_of(key)?))).collect();
    assert!(ranges.len() > 25, "{}", ranges.len());
    for (key, (least, most)) in ranges {
        for number in [least, most] {
            let config = with(key.name(), &number.to_string()).unwrap();
            assert_eq!(key.value_in(&config), number.to_string(), "{}", key.name());
        }
        for number in [i128::from(least) - 1, i128::from(most) + 1] {
            assert!(with(key.name(), &number.to_string()).is_none(), "{}: {number}", key.name());
        }
    }
}

#[test]
fn keys_of_sets_are_numbers_and_ranges() {
    let read =
        |text: &str| with("sysv.fifo_keys", &format!("\"{text}\"")).map(|config| config.sysv.fifo_keys);
    assert_eq!(read(" 0x10-0x1f\\t42 0-4294967295"), Some(vec![0x10..=0x1f, 42..=42, 0..=u32::MAX]));
    assert_eq!(read(""), Some(vec![]));
    for wrong in ["0x1f-0x10", "1-", "-1", "x", "4294967296", "1-2-3"] {
        assert_eq!(read(wrong), None, "{wrong}");
    }
}

#[test]
fn addresses_come_as_a_list_or_in_a_row() {
    let read = |value: &str| with("bind_ip", value).map(|config| config.bind);
    let expected: Vec<IpAddr> = vec!["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
    assert_eq!(read(r#"" 127.0.0.1\t::1 127.0.0.1""#), Some(expected.clone()));
    assert_eq!(read("['127.0.0.1', '::1']"), Some(expected));
    assert_eq!(read("''"), Some(vec![]));
    assert_eq!(read("'localhost'"), None);
}

#[test]
fn there_are_half_as_many_workers_as_cores_and_at_most_four_unless_a_number_is_set() {
    let set = |count: usize| WorkerCount::Exactly(count.try_into().unwrap());
    let at_most = |count: usize| WorkerCount::AtMost(count.try_into().unwrap());
    for (count, cores, threads) in [
        (WorkerCount::HalfOfTheCores, 0, 1),
        (WorkerCount::HalfOfTheCores, 1, 1),
        (WorkerCount::HalfOfTheCores, 3, 1),
        (WorkerCount::HalfOfTheCores, 4, 2),
        (WorkerCount::HalfOfTheCores, 64, 4),
        (at_most(10), 2, 1),
        (at_most(10), 64, 4),
        (at_most(3), 64, 3),
        (set(10), 2, 10),
    ] {
        assert_eq!(count.threads(cores).get(), threads, "{count:?} on {cores} cores");
    }
}

#[test]
fn a_key_that_is_close_is_suggested() {
    for (name, close) in [
        ("counter.prot", Some("counter.port")),
        ("counter.max_conections", Some("counter.max_connections")),
        ("bind-ip", Some("bind_ip")),
        ("threshold", Some("log.threshold")),
        ("port", Some("counter.port")),
        ("capacity", Some("semaphore.declare.capacity")),
        ("temp_dir", None),
        ("x", None),
    ] {
        let error =
            Config::parse(&format!("{name} = 1"), Path::new("x"), Language::Toml).unwrap_err().to_string();
        let found = error.split_once("did you mean ").map(|(_, found)| found.trim_end_matches('?'));
        assert_eq!(found, close, "{error}");
    }
}

#[test]
fn a_message_shows_the_start_of_a_value_on_one_line() {
    for (value, shown) in [
        ("70000".to_owned(), "70000".to_owned()),
        ("[\n  1,\n]".to_owned(), "[…".to_owned()),
        (format!("'{}'", "ä".repeat(100)), format!("'{}…", "ä".repeat(59))),
    ] {
        let error = Config::parse(&format!("workers = {value}"), Path::new("x"), Language::Toml)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(&format!("x:1: workers = {shown}: must be")), "{error}");
    }
}

#[test]
fn a_member_has_a_scheme_a_host_and_a_port() {
    for member in ["http://10.0.0.1:2379", "https://etcd-1.example.org:2379", "http://[::1]:2379"] {
        assert!(accepts("cluster.etcd", member), "{member}");
    }
    for other in
        ["10.0.0.1:2379", "http://10.0.0.1", "http://a:0", "http://a:1/x", "http://::1:1", "ftp://a:1"]
    {
        assert!(!accepts("cluster.etcd", other), "{other}");
    }
}

#[test]
fn a_name_can_be_a_part_of_a_key() {
    for name in ["a", "node-1.example.org", "A_b", &"x".repeat(64)] {
        assert!(accepts("cluster.name", name), "{name}");
    }
    for other in ["", "a/b", "a b", "ä", &"x".repeat(65)] {
        assert!(!accepts("cluster.name", other), "{other}");
    }
}

#[test]
fn hosts_are_names_without_a_port() {
    let label = |length: usize| "x".repeat(length);
    let host = |last: usize| [label(63), label(63), label(63), label(last)].join(".");
    for host in ["localhost", "box.example.org", "a_b-c.d9", &host(61)] {
        assert!(accepts("http.hosts", host), "{host}");
    }
    for other in ["a..b", ".", "a:80", "http://a", "a/b", "a.", "*.a", "[::1]", "ä", &label(64), &host(62)] {
        assert!(!accepts("http.hosts", other), "{other}");
    }
    let read = with("http.hosts", "'Box.example.org box.example.org B'").unwrap();
    assert_eq!(read.http.hosts, ["box.example.org", "b"]);
}

#[test]
fn texts_that_nothing_could_use_are_refused() {
    for (key, value) in [
        ("data_dir", r#""/a\u0000b""#),
        ("data_dir", "''"),
        ("cluster.bind", "'10.0.0.1:0'"),
        ("cluster.bind", "'10.0.0.1'"),
        ("http.names", "['']"),
        ("http.names", r#"["a\u0000"]"#),
        ("virtual_ip", "''"),
        ("user", "'a:b'"),
    ] {
        assert!(with(key, value).is_none(), "{key} = {value}");
    }
    for (key, value) in
        [("data_dir", "'/a b'"), ("cluster.bind", "'[::1]:1'"), ("http.names", "['a b']"), ("user", "''")]
    {
        assert!(with(key, value).is_some(), "{key} = {value}");
    }
}

#[test]
fn other_machines_reach_a_node_at_what_it_advertises_or_else_where_it_listens() {
    let advertised = |advertise: &[&str], bind: &[&str], relays: Option<&str>| {
        let mut config =
            Config { bind: bind.iter().map(|ip| ip.parse().unwrap()).collect(), ..Config::default() };
        config.cluster.advertise = advertise.iter().map(|host| (*host).to_owned()).collect();
        config.cluster.bind = relays.map(|address| address.parse().unwrap());
        config.advertised()
    };
    let relays = Some("10.0.0.7:1");
    assert_eq!(advertised(&["a", "b"], &["10.0.0.1"], relays), ["a", "b"]);
    assert_eq!(
        advertised(&[], &["10.0.0.1", "127.0.0.1", "::1", "10.0.0.2"], relays),
        ["10.0.0.1", "10.0.0.2"]
    );
    for everywhere in [&[][..], &["0.0.0.0"], &["10.0.0.1", "::"]] {
        assert_eq!(advertised(&[], everywhere, relays), ["10.0.0.7"], "{everywhere:?}");
    }
    assert_eq!(advertised(&[], &[], None), [""; 0]);
    assert_eq!(advertised(&[], &["0.0.0.0", "10.0.0.1"], None), ["10.0.0.1"]);
}

/// Checks that a configuration is refused with a message about these keys.
#[track_caller]
fn contradicts(validated: Result<impl Sized, Contradiction>, keys: [&str; 2]) {
    let Err(said) = validated.map_err(|error| error.to_string()) else { panic!("{keys:?}: it is valid") };
    assert!(keys.iter().all(|key| said.contains(key)), "{said}: {keys:?}");
}

#[test]
fn the_port_must_be_free() {
    let mut config = Config::default();
    config.http.enable = true;
    assert!(config.validate().is_ok());
    config.http.port = 11216;
    let refused = config.validate().unwrap_err().to_string();
    assert!(refused.starts_with("http.port and semaphore.port are both 11216"), "{refused}");
    config.http.enable = false;
    assert!(config.validate().is_ok());
    config.counter.port.port = config.semaphore.port.port;
    contradicts(config.validate(), ["counter.port", "semaphore.port"]);
    config.counter.port.enable = false;
    assert!(config.validate().is_ok());
    (config.http.enable, config.semaphore.port.enable, config.counter.port.enable) = (true, false, true);
    contradicts(config.validate(), ["http.port", "counter.port"]);
}

#[test]
fn members_with_https_need_their_authority() {
    let checked = |member: &str, etcd_ca: Option<&str>| {
        let mut config = Config::default();
        config.cluster.etcd = vec!["http://10.0.0.1:2379".to_owned(), member.to_owned()];
        config.cluster.etcd_ca = etcd_ca.map(PathBuf::from);
        config.validate()
    };
    let refused = checked("https://10.0.0.2:2379", None);
    contradicts(refused, ["cluster.etcd", "cluster.etcd_ca"]);
    assert!(checked("https://10.0.0.2:2379", Some("/etc/ca.pem")).is_ok());
    assert!(checked("http://10.0.0.2:2379", None).is_ok());
}

#[test]
fn relays_need_an_address_that_other_nodes_reach() {
    let checked = |bind: Option<&str>, relay_ca: Option<&str>, cert: Option<&str>| {
        let mut config = Config::default();
        config.cluster.etcd = vec!["http://10.0.0.1:2379".to_owned()];
        config.cluster.bind = bind.map(|bind| bind.parse().unwrap());
        config.cluster.relay_ca = relay_ca.map(PathBuf::from);
        (config.tls.cert, config.tls.key) = (cert.map(PathBuf::from), cert.map(PathBuf::from));
        config.validate().map(|()| config.cluster.relays())
    };
    assert!(matches!(checked(None, None, None), Ok(false)));
    assert!(matches!(checked(Some("10.0.0.1:11218"), None, None), Ok(true)));
    let mut watcher = Config::default();
    watcher.cluster.etcd = vec!["http://10.0.0.1:2379".to_owned()];
    watcher.cluster.is_eligible = false;
    assert!(watcher.cluster.relays(), "what never leads only relays");
    watcher.cluster.etcd = Vec::new();
    assert!(!watcher.cluster.relays(), "it is not a node");
    let unspecified = checked(Some("0.0.0.0:11218"), None, None);
    contradicts(unspecified, ["cluster.bind"; 2]);
    let alone = checked(None, Some("/ca.pem"), None);
    contradicts(alone, ["cluster.relay_ca", "cluster.bind"]);
    let without_tls = checked(Some("10.0.0.1:11218"), Some("/ca.pem"), None);
    contradicts(without_tls, ["cluster.relay_ca", "tls.cert"]);
    assert!(matches!(checked(Some("10.0.0.1:11218"), Some("/ca.pem"), Some("/cert.pem")), Ok(true)));
    let mut config = Config { proxies: vec!["10.0.0.9".parse().unwrap()], ..Config::default() };
    config.cluster.etcd = vec!["http://10.0.0.1:2379".to_owned()];
    config.cluster.bind = Some("10.0.0.1:11218".parse().unwrap());
    assert!(matches!(config.validate(), Ok(())));
    config.cluster.relay_ca = Some("/ca.pem".into());
    (config.tls.cert, config.tls.key) = (Some("/cert.pem".into()), Some("/key.pem".into()));
    let refused = config.validate();
    contradicts(refused, ["cluster.relay_ca", "proxies"]);
}

#[test]
fn a_node_keeps_nothing_on_its_disk() {
    let with = |change: fn(&mut Config)| {
        let mut config = Config::default();
        config.cluster.etcd = vec!["http://10.0.0.1:2379".to_owned()];
        change(&mut config);
        config.validate()
    };
    let disk = with(|config| config.data_dir = Some("/var/lib/signalbox".into()));
    contradicts(disk, ["cluster.etcd", "data_dir"]);
    let declared = with(|config| config.semaphore.declare = vec![DeclareConfig::default()]);
    contradicts(declared, ["cluster.etcd", "semaphore.declare"]);
    let durable = |config: &mut Config| config.sysv.durable_keys = vec![1..=2];
    assert!(with(durable).is_ok(), "etcd keeps them");
    let mut config = Config::default();
    durable(&mut config);
    contradicts(config.validate(), ["sysv.durable_keys", "data_dir"]);
    config.data_dir = Some("/var/lib/signalbox".into());
    assert!(config.validate().is_ok());
}

#[test]
fn a_section_without_what_it_needs_is_refused() {
    let path = || Some(PathBuf::from("/etc/signalbox/x.pem"));
    let with_cert = TlsConfig { cert: path(), key: path(), ..TlsConfig::default() };
    for (config, expected) in [
        (TlsConfig { key: None, ..with_cert.clone() }, "tls.cert is set, but tls.key is not"),
        (TlsConfig { cert: None, ..with_cert.clone() }, "tls.key is set, but tls.cert is not"),
        (TlsConfig { client_ca: path(), ..TlsConfig::default() }, "tls.client_ca is set, but tls.cert"),
        (TlsConfig { plain: PlainRule::Refuse, ..TlsConfig::default() }, "tls.plain is set, but tls.cert"),
        (
            TlsConfig { client_cert: ClientCert::Required, ..TlsConfig::default() },
            "tls.client_cert is set, but tls.cert",
        ),
        (
            TlsConfig { client_cert: ClientCert::Required, ..with_cert.clone() },
            "tls.client_cert is set, but tls.client_ca is not",
        ),
    ] {
        let refused = Config { tls: config, ..Config::default() }.validate().unwrap_err().to_string();
        assert!(refused.starts_with(expected), "{refused}");
    }
    Config { tls: with_cert, ..Config::default() }.validate().unwrap();
}

#[test]
fn settings_of_a_cluster_come_in_pairs_and_not_without_its_members() {
    type Change = fn(&mut Config);
    let path = || Some(PathBuf::from("/etc/signalbox/x"));
    let pairs: [([&str; 2], [Change; 2]); 2] = [
        (
            ["cluster.etcd_cert", "cluster.etcd_key"],
            [
                |config| config.cluster.etcd_cert = Some("/x".into()),
                |config| config.cluster.etcd_key = Some("/x".into()),
            ],
        ),
        (
            ["cluster.etcd_user", "cluster.etcd_password_file"],
            [
                |config| config.cluster.etcd_user = Some("x".to_owned()),
                |config| config.cluster.etcd_password_file = Some("/x".into()),
            ],
        ),
    ];
    let mut node = Config::default();
    node.cluster.etcd = vec!["https://10.0.0.1:2379".to_owned()];
    node.cluster.etcd_ca = path();
    for (keys, changes) in pairs {
        for change in changes {
            let mut config = node.clone();
            change(&mut config);
            contradicts(config.validate(), keys);
        }
        let mut config = node.clone();
        changes.iter().for_each(|change| change(&mut config));
        assert!(config.validate().is_ok(), "{keys:?}");
    }
    let alone: [(&str, Change); 9] = [
        ("cluster.node", |config| config.cluster.node = Some("a".to_owned())),
        ("cluster.etcd_ca", |config| config.cluster.etcd_ca = Some("/x".into())),
        ("cluster.etcd_cert", |config| config.cluster.etcd_cert = Some("/x".into())),
        ("cluster.etcd_key", |config| config.cluster.etcd_key = Some("/x".into())),
        ("cluster.etcd_user", |config| config.cluster.etcd_user = Some("a".to_owned())),
        ("cluster.etcd_password_file", |config| config.cluster.etcd_password_file = Some("/x".into())),
        ("cluster.bind", |config| config.cluster.bind = Some("10.0.0.1:1".parse().unwrap())),
        ("cluster.advertise", |config| config.cluster.advertise = vec!["a".to_owned()]),
        ("cluster.relay_ca", |config| config.cluster.relay_ca = Some("/x".into())),
    ];
    for (key, change) in alone {
        let mut config = Config::default();
        change(&mut config);
        contradicts(config.validate(), [key, "cluster.etcd"]);
    }
}

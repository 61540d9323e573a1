//! Both languages of a configuration file: the meaning of keys, and the messages about mistakes that are refused or logged.

use std::num::NonZeroUsize;
use std::path::Path;

use signalbox::config::*;

fn parse(text: &str, language: Language) -> Result<Loaded, String> {
    Config::parse(text, Path::new("/etc/x"), language).map_err(|error| error.mistakes()[0].clone())
}

/// All mistakes of a file in TOML.
fn mistakes(text: &str) -> Vec<String> {
    match Config::parse(text, Path::new("/etc/x"), Language::Toml) {
        Ok(_) => Vec::new(),
        Err(error) => error.mistakes().to_vec(),
    }
}

fn value(config: &Config, name: &str) -> String {
    Key::all().iter().find(|key| key.name() == name).unwrap().value_in(config)
}

/// Checks that the message about the first mistake begins with the file and `start`, which has the line.
#[track_caller]
fn refused(text: &str, language: Language, start: &str) {
    let said = parse(text, language).unwrap_err();
    assert!(said.starts_with(&format!("/etc/x:{start}")), "{said}");
}

fn notices(text: &str) -> Vec<(Severity, String)> {
    let loaded = parse(text, Language::Yrmcds).unwrap();
    loaded.notices.into_iter().map(|notice| (notice.severity, notice.sentence)).collect()
}

#[test]
fn both_languages_say_the_same() {
    let lines = "bind_ip = 127.0.0.1 ::1\nvirtual_ip = 192.0.2.1\nuser = a\ngroup = b\n\
        data_dir = /b\npeer_timeout = 60\nframe_timeout = 5\nlog.threshold = debug\nlog.file = \"/a\"\n\
        counter.enable = true\n\
        counter.max_connections = 2K\ncounter.max_names = 1M\ncounter.stat_interval = 60\n\
        semaphore.enable = true\nsemaphore.port = 11216\nsemaphore.gc_interval = 3\n\
        admin_from = 192.0.2.2 2001:db8::2\nproxies = 192.0.2.3 10.0.0.0/8\nsession.max_ttl = 60\nsession.max_grants = 2K\n";
    let toml = "bind_ip = ['127.0.0.1', '::1']\nvirtual_ip = '192.0.2.1'\nuser = 'a'\ngroup = 'b'\n\
        data_dir = '/b'\npeer_timeout = 60\nframe_timeout = 5\nlog = { threshold = 'debug', file = '/a' }\n\
        semaphore.enable = true\nsemaphore.port = 11216\nsemaphore.gc_interval = 3\n\
        admin_from = ['192.0.2.2', '2001:db8::2']\nproxies = ['192.0.2.3', '10.0.0.0/8']\nsession = { max_ttl = 60, max_grants = 2048 }\n\
        [counter]\nenable = true\nmax_connections = 2048\nmax_names = 1_048_576\nstat_interval = 60\n";
    let of_lines = parse(lines, Language::Yrmcds).unwrap();
    let of_toml = parse(toml, Language::Toml).unwrap();
    assert_eq!(of_lines.config, of_toml.config);
    assert_eq!(of_lines.notices, []);
    assert_eq!(of_toml.notices, []);
    assert_eq!(of_toml.config.counter.port.max_connections, 2048);
}

#[test]
fn the_number_of_workers_is_a_limit_in_a_yrmcds_conf_alone() {
    let workers = |language| parse("workers = 4", language).unwrap().config.workers;
    let four = NonZeroUsize::new(4).unwrap();
    assert_eq!(workers(Language::Yrmcds), WorkerCount::AtMost(four));
    assert_eq!(workers(Language::Toml), WorkerCount::Exactly(four));
}

#[test]
fn toml_has_the_defaults_of_no_file_and_yrmcds_conf_those_of_yrmcds() {
    let shown = |config: &Config| {
        ["bind_ip", "counter.enable", "counter.port", "semaphore.enable", "semaphore.port"]
            .map(|key| value(config, key))
    };
    let config = parse("", Language::Toml).unwrap().config;
    assert_eq!(config, read(&[]).config);
    assert_eq!(shown(&config), ["127.0.0.1", "true", "11215", "true", "11216"]);
    config.validate().unwrap();
    let config = parse("", Language::Yrmcds).unwrap().config;
    assert_eq!(shown(&config), ["", "false", "11215", "false", "11215"]);
    let said = config.validate().unwrap_err().to_string();
    assert!(said.starts_with("counter.enable and semaphore.enable are both false"), "{said}");
}

#[test]
fn times_of_sessions_beyond_their_limits_are_refused_by_both_keys() {
    for (settings, message) in [
        ("session.min_ttl = 31", "session.min_ttl is 31 and session.default_ttl is 30"),
        ("session.default_ttl = 3601", "session.default_ttl is 3601 and session.max_ttl is 3600"),
        ("session.max_wait = 59", "session.default_wait is 60 and session.max_wait is 59"),
    ] {
        let config = parse(settings, Language::Toml).unwrap().config;
        let said = config.validate().unwrap_err().to_string();
        assert_eq!(said, format!("{message}; lower the first or raise the second"));
    }
    let text = "[session]\nmin_ttl = 5\ndefault_ttl = 5\nmax_ttl = 5\n\
        default_wait = 5\nmax_wait = 5";
    assert!(parse(text, Language::Toml).unwrap().config.validate().is_ok(), "equal times are valid");
}

#[test]
fn errors_name_file_line_key_value_and_what_is_allowed() {
    use Language::{Toml, Yrmcds};
    for (language, text, start) in [
        (
            Toml,
            "\n[counter]\nport = 70000",
            "3: counter.port = 70000: must be a whole number from 1 to 65535",
        ),
        (Toml, "counter.port = '1'", "1: counter.port = '1': must be a whole number"),
        (Toml, "data_dir = 'state'", "1: data_dir = 'state': must be an absolute path"),
        (Toml, "counter.enable = 1", "1: counter.enable = 1: must be true or false"),
        (Toml, "log.threshold = 'loud'", "1: log.threshold = 'loud': must be error, warning, info or debug"),
        (Toml, "counter.prot = 1", "1: counter.prot is not a key of signalbox; did you mean counter.port?"),
        (Toml, "temp_dir = '/tmp'", "1: temp_dir is not a key"),
        (Toml, "session.max_wait = 0", "1: session.max_wait = 0: must be a time"),
        (Toml, "admin_from = ['10.0.0.0/8']", "1: admin_from = ['10.0.0.0/8']: must be IP addresses"),
        (Toml, "[countr]", "1: countr is not a key"),
        (Toml, "counter = 1", "1: counter = 1: must be a table of keys, such as counter.enable"),
        (
            Toml,
            "counter.port = 1\n'counter.port' = 2",
            "2: counter.port = 2: line 1 sets counter.port already",
        ),
        (Yrmcds, "counter.port", "1: "),
        (Yrmcds, "workers =", "1: workers = (nothing): must be a whole number from 1 to 1024"),
        (Yrmcds, "counter.enable = yes", "1: counter.enable = yes: must be true or false"),
        (Yrmcds, "workers = 4 # four", "1: workers = 4 # four: must be a whole number"),
        (
            Yrmcds,
            "counter.stat_interval = 10\ncounter.stats_interval = 20",
            "2: counter.stats_interval = 20: line 1 sets counter.stat_interval already",
        ),
    ] {
        refused(text, language, start);
    }
}

#[test]
fn declarations_are_read_in_the_order_of_the_file() {
    let declare = |name: &str, capacity, slots, label: &str| DeclareConfig {
        name: name.to_owned(),
        capacity,
        slots,
        label: label.to_owned(),
    };
    let expected = [
        declare("web", 0, false, ""),
        declare("dépôt 1", 65_536, true, "the first"),
        declare("all", u32::MAX, false, ""),
    ];
    let tables = "[[semaphore.declare]]\nname = 'web'\ncapacity = 0\n\
        [[semaphore.declare]]\nslots = true\nlabel = 'the first'\ncapacity = 0x10000\nname = 'dépôt 1'\n\
        [session]\nmax_ttl = 60\n\
        [[semaphore.declare]]\nname = 'all'\ncapacity = 4_294_967_295\nslots = false\nlabel = ''\n";
    let inline = "session.max_ttl = 60\nsemaphore.declare = [{ name = 'web', capacity = 0 }, { name = 'dépôt 1', \
        capacity = 65536, slots = true, label = 'the first' },\n{ name = 'all', capacity = 4294967295 }]";
    for text in [tables, inline] {
        let loaded = parse(text, Language::Toml).unwrap();
        assert_eq!(loaded.config.semaphore.declare, expected);
        assert_eq!(loaded.config.session.max_ttl_s, 60);
        assert_eq!(loaded.notices, []);
        let shown = |name| value(&loaded.config, name);
        assert_eq!(shown("semaphore.declare"), "web dépôt 1 all");
        assert_eq!(shown("semaphore.declare.capacity"), "0 65536 4294967295");
    }
    assert_eq!(parse("semaphore.declare = []", Language::Toml).unwrap().config, Config::default());
}

#[test]
fn a_mistake_in_a_declaration_is_named_where_it_is() {
    let one = "[[semaphore.declare]]\nname = 'a'\n";
    for (within, start) in [
        ("capacity = -1", "3: semaphore.declare.capacity = -1: must be a whole number from 0 to 4294967295"),
        ("capacity = 4294967296", "3: semaphore.declare.capacity = 4294967296: must be"),
        ("capacity = '1'", "3: semaphore.declare.capacity = '1': must be"),
        ("", "1: semaphore.declare.capacity is not set"),
        (
            "capacity = 65537\nslots = true",
            "3: semaphore.declare.capacity = 65537: must be a whole number from 0 to 65536",
        ),
        ("capacity = 1\nslots = 1", "4: semaphore.declare.slots = 1: must be"),
        ("capacity = 1\nlabel = 5", "4: semaphore.declare.label = 5: must be"),
        (
            "capacity = 1\nlable = 'x'",
            "4: semaphore.declare.lable is not a key of signalbox; did you mean semaphore.declare.label?",
        ),
        ("[[semaphore.declare]]\ncapacity = 1", "1: semaphore.declare.capacity is not set"),
        ("capacity = 1\n[[semaphore.declare]]\ncapacity = 1", "4: semaphore.declare.name is not set"),
        (
            "capacity = 1\n[session]\n[[semaphore.declare]]\ncapacity = 2\nname = \"a\"",
            "7: semaphore.declare.name = \"a\": line 2 declares this name already",
        ),
        (
            "capacity = 1\n[counter]\nport = 0\n[[semaphore.declare]]\ncapacity = -1",
            "5: counter.port = 0: must be",
        ),
        ("[counter]\nport = 0", "1: semaphore.declare.capacity is not set"),
    ] {
        refused(&format!("{one}{within}"), Language::Toml, start);
    }
}

#[test]
fn names_and_labels_of_declarations_are_measured_in_bytes() {
    let read = |name: &str, label: &str| {
        let text = format!("[[semaphore.declare]]\nname = '{name}'\ncapacity = 1\nlabel = '{label}'");
        parse(&text, Language::Toml).map(|_| ())
    };
    read(&"n".repeat(65_535), &"l".repeat(255)).unwrap();
    assert_eq!(
        read("", "").unwrap_err(),
        "/etc/x:2: semaphore.declare.name = '': must be a text of 1 to 65535 bytes"
    );
    let said = read(&"ä".repeat(32_768), "").unwrap_err();
    assert!(said.ends_with("…: must be a text of 1 to 65535 bytes"), "{said}");
    let said = read("n", &"ä".repeat(128)).unwrap_err();
    assert!(said.starts_with("/etc/x:4: semaphore.declare.label = 'ää"), "{said}");
}

#[test]
fn declarations_need_toml_and_two_brackets() {
    use Language::{Toml, Yrmcds};
    for (language, text, start) in [
        (Yrmcds, "semaphore.declare = web", "semaphore.declare = web: must be tables [[semaphore.declare]]"),
        (
            Yrmcds,
            "semaphore.declare.name = web",
            "semaphore.declare.name = web: must be in a table [[semaphore.declare]]",
        ),
        (
            Toml,
            "semaphore.declare = ['web']",
            "semaphore.declare = ['web']: must be tables [[semaphore.declare]]",
        ),
        (Toml, "semaphore.declare = { capacity = 1 }", "semaphore.declare.capacity = 1: must be in a table"),
        (Toml, "semaphore = { 'declare.name' = 'b' }", "semaphore.declare.name = 'b': must be in a table"),
        (Toml, "[[counter]]\nport = 1", "counter = [[counter]]: must be a table of keys"),
        (Toml, "[[workers]]", "workers = [[workers]]: must be a whole number"),
    ] {
        refused(text, language, &format!("1: {start}"));
    }
}

#[test]
fn both_spellings_of_the_interval_are_one_key() {
    for language in [Language::Toml, Language::Yrmcds] {
        let text = "counter.stat_interval = 10\ncounter.stats_interval = 10";
        let loaded = parse(text, language).unwrap();
        assert_eq!((loaded.config.counter.stat_interval_s, loaded.notices.len()), (10, 0));
    }
}

#[test]
fn what_yrmcds_lets_pass_is_a_warning() {
    assert_eq!(
        notices("workers = 2\nworkers = 3\ncounter.prot = 5\ncounter = 5"),
        [
            (Severity::Warning, "/etc/x:2: workers is set a second time; line 1 is ignored".to_owned()),
            (
                Severity::Warning,
                "/etc/x:3: ignored: counter.prot is not a key of signalbox; did you mean counter.port?"
                    .to_owned()
            ),
            (Severity::Warning, "/etc/x:4: ignored: counter is not a key of signalbox".to_owned()),
        ]
    );
    let loaded = parse("workers = 2\nworkers = 3", Language::Yrmcds).unwrap();
    assert_eq!(loaded.config.workers.to_string(), "3");
}

#[test]
fn unused_keys_are_listed_once_and_not_checked() {
    let found = notices("port = x\ntemp_dir = /none\ncounter.buckets = 5");
    let severities: Vec<_> = found.iter().map(|(severity, _)| *severity).collect();
    assert_eq!(severities, [Severity::Info, Severity::Info]);
    assert!(found[0].1.contains("counter.buckets has no effect"), "{found:?}");
    assert!(found[1].1.ends_with(": port, temp_dir"), "{found:?}");
}

#[test]
fn the_virtual_address_is_bound_beside_others_only() {
    let floating = |text| parse(text, Language::Yrmcds).unwrap().config.floating_ip();
    assert_eq!(floating("virtual_ip = 192.0.2.1"), None);
    assert_eq!(floating("virtual_ip = 192.0.2.1\nbind_ip = 192.0.2.1"), None);
    assert_eq!(floating("virtual_ip = 192.0.2.1\nbind_ip = ::1"), Some("192.0.2.1".parse().unwrap()));
    // yrmcds listens on 127.0.0.1 too where virtual_ip is not set.
    assert_eq!(floating("bind_ip = ::1"), Some("127.0.0.1".parse().unwrap()));
}

fn read(variables: &[(&str, &str)]) -> Loaded {
    let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
    Loaded::read(None, variables).unwrap()
}

/// The first mistake of these variables.
fn mistake_in(variables: &[(&str, &str)]) -> String {
    read(variables).validate().unwrap_err().mistakes()[0].clone()
}

/// Each variable has the name that the documents state, and the reader finds its key.
#[test]
fn every_key_has_a_variable() {
    for key in Key::all().iter().map(Key::name).filter(|key| !key.starts_with("semaphore.declare")) {
        let variable = format!("SIGNALBOX_CONFIG_{}", key.to_uppercase().replace('.', "__"));
        let error = mistake_in(&[(&variable, "\u{1}")]);
        assert!(error.starts_with(&format!("{variable} = \u{1}: must be ")), "{error}");
    }
    let config = read(&[
        ("SIGNALBOX_CONFIG_COUNTER__MAX_CONNECTIONS", "2K"),
        ("SIGNALBOX_CONFIG_BIND_IP", "127.0.0.1 ::1"),
        ("SIGNALBOX_CONFIG_SEMAPHORE__ENABLE", "false"),
        ("SIGNALBOX_SERVER", "elsewhere:1"),
    ]);
    config.validate().unwrap();
    let config = config.config;
    assert_eq!((config.counter.port.max_connections, config.bind.len()), (2048, 2));
    assert!(!config.semaphore.port.enable);
}

#[test]
fn variables_that_kubernetes_makes_for_a_service_are_ignored_with_one_warning() {
    let variables = [
        ("SIGNALBOX_CONFIG_PORT", "tcp://10.0.0.1:80"),
        ("SIGNALBOX_CONFIG_SERVICE_HOST", "10.0.0.1"),
        ("SIGNALBOX_CONFIG_PORT_80_TCP_ADDR", "10.0.0.1"),
    ];
    let variables = variables.map(|(name, value)| (name.into(), value.into()));
    let loaded = Loaded::read(None, variables).unwrap();
    let [notice] = &loaded.notices[..] else { panic!("{:?}", loaded.notices) };
    assert_eq!(notice.severity, Severity::Warning);
    let names = "SIGNALBOX_CONFIG_PORT, SIGNALBOX_CONFIG_PORT_80_TCP_ADDR, SIGNALBOX_CONFIG_SERVICE_HOST: ";
    assert!(notice.sentence.starts_with(names), "{}", notice.sentence);
    // This one belongs to a key.
    let of_key = [("SIGNALBOX_CONFIG_COUNTER__PORT".into(), "tcp://10.0.0.1:80".into())];
    assert!(Loaded::read(None, of_key).unwrap().validate().is_err());
}

#[test]
fn a_variable_of_no_key_is_refused_with_the_one_that_was_meant() {
    for (variable, end) in [
        ("SIGNALBOX_CONFIG_COUNTER_PORT", "did you mean SIGNALBOX_CONFIG_COUNTER__PORT?"),
        ("SIGNALBOX_CONFIG_counter__port", "did you mean SIGNALBOX_CONFIG_COUNTER__PORT?"),
        ("SIGNALBOX_CONFIG_THRESHOLD", "did you mean SIGNALBOX_CONFIG_LOG__THRESHOLD?"),
        ("SIGNALBOX_CONFIG_FROBNICATE", "remove it from the environment"),
        ("SIGNALBOX_CONFIG_", "remove it from the environment"),
    ] {
        let error = mistake_in(&[(variable, "1")]);
        assert_eq!(
            error,
            format!("{variable}: this environment variable belongs to no key of signalbox; {end}")
        );
    }
    // What contradicts a value that was refused may be a consequence.
    let refused =
        read(&[("SIGNALBOX_CONFIG_TLS__CERT", "server.pem"), ("SIGNALBOX_CONFIG_TLS__KEY", "/server.key")]);
    let error = refused.validate().unwrap_err();
    assert_eq!(error.mistakes().len(), 1, "{error:?}");
    let error = mistake_in(&[("SIGNALBOX_CONFIG_SEMAPHORE__DECLARE__NAME", "a")]);
    assert!(error.ends_with("only a file in TOML can have"), "{error}");
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.toml");
    let mistakes = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let variable = ("SIGNALBOX_CONFIG_WORKERS".into(), "0".into());
        let error = Loaded::read(Some(&path), [variable]).unwrap().validate().unwrap_err();
        let starts = error.mistakes().iter().map(|mistake| {
            let mistake = mistake.replace(&path.display().to_string(), "x");
            mistake.split([';', '(']).next().unwrap_or_default().to_owned()
        });
        (starts.collect::<Vec<_>>(), error.to_string())
    };
    let variable = "SIGNALBOX_CONFIG_WORKERS = 0: must be a whole number from 1 to 1024";
    let text = "user = 5\ndata_di = '/d'\n[tls]\ncert = 'server.pem'\nkey = '/server.key'\n[sysv]\ndurable_keys = '1'\n[session]\nmin_ttl = 60\n\
        max_wait = 1\n[[semaphore.declare]]\ncapacity = -1\n[[semaphore.declare]]\nname = 'a'\ncapacity = 1\n";
    let (found, shown) = mistakes(text);
    assert_eq!(
        found,
        [
            "x:1: user = 5: must be the name of an account, such as nobody, or empty for none",
            "x:2: data_di is not a key of signalbox",
            "x:4: tls.cert = 'server.pem': must be an absolute path, such as /etc/signalbox/server.pem",
            "x:11: semaphore.declare.name is not set in this [[semaphore.declare]]",
            "x:12: semaphore.declare.capacity = -1: must be a whole number from 0 to 4294967295",
            variable,
            // Nothing about tls.key and sysv.durable_keys, which need the keys of lines 4 and 2.
            "x:9: session.min_ttl is 60 and session.default_ttl is 30",
            "x:10: session.default_wait is 60 and session.max_wait is 1",
        ]
    );
    assert!(
        shown.ends_with("or empty for none (7 more: \"signalbox check-config\" reports all mistakes)"),
        "{shown}"
    );
    // The line that cannot be read may be the one that the others need, so no contradiction is reported.
    let text = "bind_ip = 127.0.0.1\n[tls]\ncert = /server.pem\nkey = '/server.key'\n[counter]\nport = 0\n";
    let (found, _) = mistakes(text);
    assert_eq!(
        found,
        [
            "x:1: bind_ip = 127.0.0.1: put quotes around the value: bind_ip = \"127.0.0.1\"",
            "x:3: cert = /server.pem: put quotes around the value: cert = \"/server.pem\"",
            "x:6: counter.port = 0: must be a whole number from 1 to 65535",
            variable,
        ]
    );
}

#[test]
fn a_contradiction_names_the_place_that_was_set_last() {
    let mut loaded = parse("counter.port = 7\nsemaphore.port = 7\n", Language::Toml).unwrap();
    let said = |loaded: &Loaded| loaded.validate().unwrap_err().to_string();
    assert!(said(&loaded).starts_with("/etc/x:2: counter.port and semaphore.port are both 7; "));
    loaded.note_option("counter.port", "--counter-port");
    assert!(said(&loaded).starts_with("--counter-port: counter.port and semaphore.port are both 7; "));
    let loaded = parse("\ncounter.enable = false\nsemaphore.enable = false", Language::Toml).unwrap();
    assert!(said(&loaded).starts_with("/etc/x:3: counter.enable and semaphore.enable are both false; "));
    let loaded = parse("", Language::Yrmcds).unwrap();
    assert!(said(&loaded).starts_with("/etc/x: counter.enable and semaphore.enable are both false; "));
    let loaded = parse("session.min_ttl = 60", Language::Toml).unwrap();
    assert!(said(&loaded).starts_with("/etc/x:1: session.min_ttl is 60 and session.default_ttl is 30; "));
    let loaded = read(&[("SIGNALBOX_CONFIG_SEMAPHORE__PORT", "11215")]);
    assert!(
        said(&loaded)
            .starts_with("SIGNALBOX_CONFIG_SEMAPHORE__PORT: counter.port and semaphore.port are both")
    );
}

#[test]
fn a_file_of_neither_language_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let semaphores = |name: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, "counter.enable = true\n").unwrap();
        Loaded::read(Some(&path), []).map(|loaded| loaded.config.semaphore.port.enable).ok()
    };
    assert_eq!(["config", "config.toml", "config.conf"].map(semaphores), [None, Some(true), Some(false)]);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let message = Loaded::read(Some(Path::new("/nonexistent/x.toml")), []).unwrap_err().to_string();
    assert!(message.starts_with("/nonexistent/x.toml: the file cannot be read: No such file"));
}

fn language_of(path: &str, text: &str) -> Option<Language> {
    Language::of(Path::new(path), text)
}

#[test]
fn the_ending_says_it() {
    assert_eq!(language_of("/etc/signalbox.toml", "user = yrmcds"), Some(Language::Toml));
    assert_eq!(language_of("/etc/yrmcds.conf", "[counter]"), Some(Language::Yrmcds));
}

#[test]
fn without_an_ending_the_first_telling_line_says_it() {
    let same = "# [no]\n\ncounter.enable = true\ncounter.port = 11215\nlog.file = \"/a\"\n";
    for line in
        ["[counter]", "bind_ip = [", "a = { b = 1 }", "a = 'b'", "a = 1 # one", "a = 1_000", "a = \"b\" # c"]
    {
        let text = format!("{same}{line}\nuser = x");
        assert_eq!(language_of("config", &text), Some(Language::Toml), "{line}");
    }
    for line in ["user = yrmcds", "bind_ip = 127.0.0.1", "bind_ip = ::1 ::2", "memory_limit = 10M", "user ="]
    {
        let text = format!("{same}{line}\n[x]");
        assert_eq!(language_of("config", &text), Some(Language::Yrmcds), "{line}");
    }
    for text in [same, "", "no setting"] {
        assert_eq!(language_of("config", text), None, "{text}");
    }
}

#[test]
fn dotted_and_tabled_spellings_are_the_same_key() {
    for text in
        ["counter.port = 11_999", "[counter]\nport = 11999 # the usual", "counter = { port = 0x2edf }"]
    {
        let config = parse(text, Language::Toml).unwrap().config;
        assert_eq!(config.counter.port.port, 11_999, "{text}");
    }
}

#[test]
fn a_number_of_any_length_is_refused_by_its_range() {
    for sign in ["", "-"] {
        let text = format!("workers = {sign}{}", "9".repeat(60));
        refused(&text, Language::Toml, "1: workers = ");
    }
}

#[test]
fn a_text_without_quotes_and_a_key_that_is_set_twice_are_named() {
    let quoted = |start: &str, setting: &str| format!("{start}: put quotes around the value: {setting}");
    for (text, message) in [
        ("[log]\nthreshold = info", quoted("threshold = info", r#"threshold = "info""#)),
        ("bind_ip = 127.0.0.1", quoted("bind_ip = 127.0.0.1", r#"bind_ip = "127.0.0.1""#)),
        ("bind_ip = ::1", quoted("bind_ip = ::1", r#"bind_ip = "::1""#)),
        ("a = 127.0.0.1 ::1 # both", quoted("a = 127.0.0.1 ::1", r#"a = "127.0.0.1 ::1""#)),
        ("a = 10.0.0.0/8\nworkers = 1", quoted("a = 10.0.0.0/8", r#"a = "10.0.0.0/8""#)),
        ("a = [127.0.0.1, ::1]", "a = [127.0.0.1, ::1]: put quotes around each address".to_owned()),
        ("[a]\nbind = 10.0.0.1:11218", quoted("bind = 10.0.0.1:11218", r#"bind = "10.0.0.1:11218""#)),
        ("log.file = /x # there", quoted("log.file = /x", r#"log.file = "/x""#)),
        ("[a]\nmax_wait = 24h # a day", quoted("max_wait = 24h", r#"max_wait = "24h""#)),
        ("user = nobody\nworkers = 2", quoted("user = nobody", r#"user = "nobody""#)),
        ("[counter]\nenable = yes", "enable = yes: did you mean true?".to_owned()),
        ("[counter]\nenable = False # off", "enable = False: did you mean false?".to_owned()),
        ("file = 'a'\nfile = 'b'", "the key file is set twice; keep one of them".to_owned()),
        (
            "[tls]\n[log]\n[tls] # again\ncert = 'a'",
            "the section [tls] begins in line 1 already; write its keys there".to_owned(),
        ),
    ] {
        let said = mistakes(text);
        assert!(said.iter().any(|said| said.ends_with(&format!(": {message}"))), "{said:?}");
    }
    assert!(!mistakes("workers = 1 2")[0].contains("quotes"));
}

#[test]
fn each_line_that_cannot_be_read_is_a_mistake_until_the_structure_is_lost() {
    let lines = |text: &str| {
        let line = |mistake: &String| mistake.split(':').nth(1).unwrap().parse::<usize>().unwrap();
        mistakes(text).iter().map(line).collect::<Vec<_>>()
    };
    assert_eq!(lines("user = a\nworkers = 0\n[log]\nthreshold = b\n[counter]\nport = 0"), [1, 2, 4, 6]);
    let lost = "workers = 2\nuser = a\n[counter\nport = x\n[log]\nthreshold = y";
    assert_eq!(lines(lost), [2, 3], "later errors may be consequences");
}

/// The only value of a file in the language of yrmcds.conf.
fn of_yrmcds(text: &str, key: &str) -> String {
    value(&parse(text, Language::Yrmcds).unwrap().config, key)
}

#[test]
fn space_comments_and_quotes_of_a_yrmcds_conf_are_dropped() {
    let text = "# a comment\n\n   # another = one\n\t counter.port\t=  \"11299\" \r\n";
    assert_eq!(of_yrmcds(text, "counter.port"), "11299");
    assert_eq!(of_yrmcds("log.file=/a=b", "log.file"), "/a=b", "the key ends at the first equals sign");
    for (text, start) in [
        ("user = \"", "1: user = \": must be"),
        ("user = \"a", "1: user = \"a: must be"),
        ("workers = 1\ncounter.enable", "2: "),
        ("= 5", "1: "),
        ("\n\nuser = \u{fffd}", "3: "),
    ] {
        refused(text, Language::Yrmcds, start);
    }
}

#[test]
fn suffixes_are_powers_of_1024() {
    for (word, number) in
        [("0", 0_u64), ("2k", 2048), ("2K", 2048), ("3M", 3 << 20), ("1g", 1 << 30), ("1G", 1 << 30)]
    {
        assert_eq!(
            of_yrmcds(&format!("counter.max_names = {word}"), "counter.max_names"),
            number.to_string()
        );
    }
    for word in ["K", "1KK", "1.5K", "-1", "", "1 K", "18446744073709551615G"] {
        refused(&format!("counter.max_names = {word}"), Language::Yrmcds, "1: counter.max_names = ");
    }
}

#[test]
fn a_time_is_a_number_of_seconds_or_has_a_unit() {
    let read = |time: &str| {
        let of_toml = parse(&format!("session.reconnect_window = '{time}'"), Language::Toml);
        let of_lines = parse(&format!("session.reconnect_window = {time}"), Language::Yrmcds);
        [of_toml, of_lines].map(|loaded| loaded.map(|loaded| loaded.config.session.reconnect_window_s).ok())
    };
    for (written, seconds) in
        [("30", 30), ("30s", 30), ("1.5h", 5400), ("2000ms", 2), ("0s", 0), ("24h", 86_400)]
    {
        assert_eq!(read(written), [Some(seconds); 2], "{written}");
    }
    for wrong in ["500ms", "1.5", "2000h", "1d", "5 m", "10K", "2M", "", "-1"] {
        assert_eq!(read(wrong), [None; 2], "{wrong}");
    }
    refused(
        "workers = '5'",
        Language::Toml,
        "1: workers = '5': must be a whole number from 1 to 1024, without",
    );
}

//! The shipped configuration files, ours and Debian's, and the documents that describe them.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use signalbox::config::{ClusterConfig, Config, Key, Language, Loaded, Severity, Threshold, WorkerCount};

const SHIPPED: &str = include_str!("../../etc/signalbox.toml");
const UNIT: &str = include_str!("../../etc/signalbox.service");
const DOCUMENT: &str = include_str!("../../docs/configuration.md");
const STOCK_COPY: &str = include_str!("../data/yrmcds.conf");

/// Debian's own file if the package is installed, else a copy of its keys and values.
fn stock_yrmcds_conf() -> String {
    fs::read_to_string("/etc/yrmcds.conf").unwrap_or_else(|_| STOCK_COPY.to_owned())
}

fn parse(text: &str, path: &str, language: Language) -> Loaded {
    Config::parse(text, Path::new(path), language).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_stock_file_enables_nothing() {
    let loaded = parse(&stock_yrmcds_conf(), "/etc/yrmcds.conf", Language::Yrmcds);
    let message = loaded.config.validate().unwrap_err().to_string();
    assert!(message.contains("counter.enable = true"), "{message}");
}

#[test]
fn the_stock_file_with_counters_enabled_means_what_it_means_to_yrmcds() {
    for stock in [stock_yrmcds_conf(), STOCK_COPY.to_owned()] {
        let text = stock.replace("counter.enable = false", "counter.enable = true");
        let Loaded { config, notices, .. } = parse(&text, "/etc/yrmcds.conf", Language::Yrmcds);
        config.validate().unwrap();
        assert!(config.bind.is_empty(), "without bind_ip, the server binds every address");
        assert_eq!(config.floating_ip(), None);
        assert_eq!((config.user.as_deref(), config.group.as_deref()), (Some("yrmcds"), Some("yrmcds")));
        assert_eq!(config.workers, WorkerCount::AtMost(10.try_into().unwrap()));
        assert_eq!(config.log.threshold, Threshold::Info);
        assert_eq!(config.log.file.as_deref(), Some(Path::new("/var/log/yrmcds.log")));
        assert!(config.counter.port.enable && !config.semaphore.port.enable);
        assert_eq!((config.counter.port.port, config.counter.port.max_connections), (11215, 0));
        assert_eq!(config.counter.stat_interval_s, 86_400);

        assert!(notices.iter().all(|notice| notice.severity == Severity::Info), "{notices:?}");
        let unused: Vec<_> = notices.iter().filter(|notice| notice.sentence.contains("not used")).collect();
        assert_eq!(unused.len(), 1, "{notices:?}");
        assert!(unused[0].sentence.contains("repl_port") && unused[0].sentence.contains("temp_dir"));
    }
}

/// The meaning of the shipped file: the defaults, and HTTP.
fn shipped_config() -> Config {
    let mut config = Config::default();
    config.http.enable = true;
    config
}

#[test]
fn the_shipped_file_has_the_default_values() {
    let loaded = parse(SHIPPED, "etc/signalbox.toml", Language::Toml);
    assert_eq!(loaded.config, shipped_config());
    assert_eq!(loaded.notices, []);
    loaded.config.validate().unwrap();
}

/// The shipped file with all commented settings and tables enabled; these have no space after the `#`.
fn shipped_with_everything() -> String {
    let uncommented = SHIPPED.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if setting.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => setting,
        _ => line,
    });
    uncommented.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_shipped_file_has_every_key() {
    let text = shipped_with_everything();
    let document = toml::Value::Table(text.parse().unwrap());
    for key in Key::all() {
        // The first entry of an array of tables.
        let within =
            |value: &toml::Value, name: &str| value.get(name).or_else(|| value.get(0)?.get(name)).cloned();
        let value = key.name().split('.').try_fold(document.clone(), |value, name| within(&value, name));
        assert!(value.is_some(), "etc/signalbox.toml does not have {}", key.name());
    }
}

#[test]
fn commented_settings_of_the_shipped_file_are_the_defaults() {
    let config = parse(&shipped_with_everything(), "etc/signalbox.toml", Language::Toml).config;
    let (shipped, default) = (shipped_config(), Config::default());
    for key in Key::all() {
        let is_an_example = key.value_in(&default).is_empty();
        if !is_an_example {
            assert_eq!(key.value_in(&config), key.value_in(&shipped), "{}", key.name());
        }
    }
}

#[test]
fn the_declaration_example_in_the_shipped_file_is_valid() {
    let loaded = parse(&shipped_with_everything(), "etc/signalbox.toml", Language::Toml);
    let [declared] = &loaded.config.semaphore.declare[..] else { panic!("{loaded:?}") };
    assert_eq!((&*declared.name, declared.capacity, declared.slots), ("licences/compiler", 8, true));
    // The examples of the section belong to a cluster, which excludes declarations.
    Config { cluster: ClusterConfig::default(), ..loaded.config }.validate().unwrap();
}

#[test]
fn the_examples_of_the_document_are_valid() {
    for example in DOCUMENT.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        let loaded = parse(example, "docs/configuration.md", Language::Toml);
        assert_eq!(loaded.notices, []);
        let names: Vec<_> = loaded.config.semaphore.declare.iter().map(|declared| &*declared.name).collect();
        let is_of_declarations = example.contains("[[semaphore.declare]]");
        assert_eq!(names, if is_of_declarations { vec!["licences/compiler", "deploy"] } else { vec![] });
    }
}

#[test]
fn declarations_change_at_runtime_without_a_restart() {
    let old = parse(SHIPPED, "etc/signalbox.toml", Language::Toml).config;
    let entry = "[[semaphore.declare]]\nname = 'a'\ncapacity = 1\n";
    let new = parse(&format!("{SHIPPED}\n{entry}"), "etc/signalbox.toml", Language::Toml).config;
    assert_eq!(new.semaphore.declare.len(), 1);
    let changes = old.changes(&new);
    assert_eq!(changes.len(), 1);
    assert_eq!((changes[0].key.as_str(), changes[0].takes_effect), ("semaphore.declare \"a\"", true));
    assert_eq!(changes[0].to, "capacity 1, slots false, label \"\"");
}

#[test]
fn the_unit_lets_the_server_write_where_the_shipped_file_points() {
    let config = parse(&shipped_with_everything(), "etc/signalbox.toml", Language::Toml).config;
    let directory_of = |setting: &str| {
        let value = UNIT.lines().find_map(|line| line.strip_prefix(setting));
        value.unwrap_or_else(|| panic!("etc/signalbox.service does not set {setting}"))
    };
    let state = Path::new("/var/lib").join(directory_of("StateDirectory="));
    assert_eq!(config.data_dir, Some(state));
    let logs = Path::new("/var/log").join(directory_of("LogsDirectory="));
    assert_eq!(config.log.file.as_deref().and_then(Path::parent), Some(&*logs));
}

#[test]
fn the_document_has_a_row_for_every_key() {
    let start = DOCUMENT.find("## Keys").unwrap();
    let section = DOCUMENT[start..].split("\n## ").next().unwrap_or_default();
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), Key::all().len(), "as many rows as keys");
    for (row, key) in rows.iter().zip(Key::all()) {
        let [name, default, allowed, _, on_sighup] = row[..] else { panic!("five columns: {row:?}") };
        assert_eq!(name, format!("`{}`", key.name()));
        let value = key.value_in(&Config::default());
        if !value.is_empty() {
            assert_eq!(default, format!("`{value}`"), "the default of {name}");
        }
        let kinds = ["a whole number from ", "a whole number, ", "a time in whole seconds from "];
        let range = kinds.iter().fold(key.allowed(), |range, kind| range.replace(kind, ""));
        assert!(
            range.starts_with(allowed) || !range.starts_with(|c: char| c.is_ascii_digit()),
            "{name}: {range}"
        );
        assert_eq!(on_sighup == "no effect", key.no_effect_because().is_some(), "{name}");
        assert_eq!(default == "required", key.is_required(), "{name}");
        let changes = matches!(on_sighup, "at once" | "new connections");
        assert_eq!(changes, key.changes_while_running(), "what SIGHUP does to {name}");
    }
}

#[test]
fn the_language_of_a_configuration_file_is_detected_by_its_content() {
    let nameless = Path::new("configuration");
    assert_eq!(Language::of(nameless, SHIPPED), Some(Language::Toml));
    assert_eq!(Language::of(nameless, &stock_yrmcds_conf()), Some(Language::Yrmcds));
}

/// Pieces of both shipped files, so that random texts reach further than the first line.
fn pieces() -> impl Strategy<Value = String> {
    let lines: Vec<String> = SHIPPED.lines().chain(STOCK_COPY.lines()).map(str::to_owned).collect();
    let keys: Vec<String> = Key::all().iter().map(|key| key.name().to_owned()).collect();
    let declared = vec!["[[semaphore.declare]]", "name = 'a'", "capacity = 1", "slots = true", "label = 'b'"];
    let piece = prop_oneof![
        prop::sample::select(lines),
        (prop::sample::select(keys), "[ -~äß]{0,12}").prop_map(|(key, value)| format!("{key} = {value}")),
        prop::sample::select(declared).prop_map(str::to_owned),
        "\\PC{0,20}",
        prop::sample::select(vec!["[", "]", "=", "\"", "'", "\n", "#", "{ a = ", "}", "\r", "\0"])
            .prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.join("\n"))
}

proptest! {
    #[test]
    fn the_parser_never_panics_and_every_error_names_the_file(text in prop_oneof![pieces(), any::<String>()]) {
        let path = Path::new("/some/where/file");
        let _ = Language::of(path, &text);
        for language in [Language::Toml, Language::Yrmcds] {
            match Config::parse(&text, path, language) {
                Ok(loaded) => { let _ = loaded.config.validate(); }
                Err(error) => prop_assert!(error.to_string().starts_with("/some/where/file:"), "{}", error),
            }
        }
    }

    #[test]
    fn no_bytes_make_loading_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let directory = tempfile::tempdir().unwrap();
        for ending in ["toml", "conf", "other"] {
            let path = directory.path().join(format!("file.{ending}"));
            fs::write(&path, &bytes).unwrap();
            if let Err(error) = Loaded::read(Some(&path), []).and_then(|loaded| loaded.validate()) {
                prop_assert!(error.to_string().starts_with(&path.display().to_string()), "{}", error);
            }
        }
    }
}

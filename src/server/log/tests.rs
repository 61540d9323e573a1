//! The lines that events become.

use serde_json::Value;

use super::*;

fn log_in(format: Format, events: impl FnOnce()) -> Vec<String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let settings = Settings { threshold: Threshold::Info, file: Some(file.path().to_owned()), format };
    let (_log, subscriber) = Log::open(settings).unwrap();
    tracing::subscriber::with_default(subscriber, events);
    std::fs::read_to_string(file.path()).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn text_has_time_level_message_and_fields() {
    let lines = log_in(Format::Auto, || {
        tracing::warn!(port = 11215, address = "::1", name = "a b\n", "connection {}", "refused");
    });
    let (time, rest) = lines[0].split_once(' ').unwrap();
    assert_eq!(rest, "warning connection refused port=11215 address=::1 name=\"a b\\n\"");
    assert_eq!(lines.len(), 1);
    assert!(time.len() >= 20 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
}

#[test]
fn a_line_of_the_journal_has_a_priority_and_no_time() {
    let lines = log_in(Format::Journal, || {
        tracing::error!("one\ntwo");
        tracing::info!(count = 3, "three");
    });
    assert_eq!(lines, ["<3>one\\ntwo", "<6>three count=3"]);
}

#[test]
fn a_line_of_json_is_an_object() {
    let lines = log_in(Format::Json, || tracing::info!(ok = true, name = "\u{1}", "hello"));
    let line: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((&line["level"], &line["message"]), (&"info".into(), &"hello".into()));
    assert_eq!(line["fields"], serde_json::json!({ "ok": true, "name": "\u{1}" }));
    assert!(line["time"].is_string());
}

#[test]
fn a_full_disk_does_not_panic() {
    let settings =
        Settings { threshold: Threshold::Info, file: Some("/dev/full".into()), format: Format::Journal };
    let (_log, subscriber) = Log::open(settings).unwrap();
    tracing::subscriber::with_default(subscriber, || {
        tracing::info!("this line is expected in the output of the tests")
    });
}

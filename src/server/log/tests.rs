//! The lines that events become, and the files that they go to.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::Value;

use super::format::is_stream;
use super::*;

struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("signalbox.log")
    }

    fn settings(&self, format: Format) -> Settings {
        Settings { threshold: Threshold::Info, file: Some(self.path()), format }
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(self.path()).unwrap().lines().map(str::to_owned).collect()
    }
}

fn log_in(format: Format, events: impl FnOnce(&Log)) -> Vec<String> {
    let scratch = Scratch::new();
    let (log, subscriber) = Log::open(scratch.settings(format)).unwrap();
    tracing::subscriber::with_default(subscriber, || events(&log));
    scratch.lines()
}

#[test]
fn text_has_time_level_message_and_fields() {
    let lines = log_in(Format::Auto, |_| {
        tracing::warn!(port = 11215, address = "::1", name = "a b\n", "connection {}", "refused");
    });
    let (time, rest) = lines[0].split_once(' ').unwrap();
    assert_eq!(rest, "warning connection refused port=11215 address=::1 name=\"a b\\n\"");
    assert_eq!(lines.len(), 1);
    assert!(time.len() >= 20 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
}

#[test]
fn a_line_of_the_journal_has_a_priority_and_no_time() {
    let lines = log_in(Format::Journal, |_| {
        tracing::error!("one\ntwo");
        tracing::info!(count = 3, "three");
    });
    assert_eq!(lines, ["<3>one\\ntwo", "<6>three count=3"]);
}

#[test]
fn a_line_of_json_is_an_object() {
    let lines = log_in(Format::Json, |_| tracing::info!(ok = true, name = "\u{1}", "hello"));
    let line: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((&line["level"], &line["message"]), (&"info".into(), &"hello".into()));
    assert_eq!(line["fields"], serde_json::json!({ "ok": true, "name": "\u{1}" }));
    assert!(line["time"].is_string());
}

#[test]
fn the_threshold_changes_while_running() {
    let lines = log_in(Format::Journal, |log| {
        tracing::debug!("not yet");
        log.set_threshold(Threshold::Debug);
        tracing::debug!("now");
        log.set_threshold(Threshold::Error);
        tracing::warn!("no more");
    });
    assert_eq!(lines, ["<7>now"]);
}

#[test]
fn a_file_that_was_moved_away_is_created_again() {
    let scratch = Scratch::new();
    let (log, subscriber) = Log::open(scratch.settings(Format::Journal)).unwrap();
    let rotated = scratch.directory.path().join("signalbox.log.1");
    tracing::subscriber::with_default(subscriber, || {
        tracing::info!("before");
        fs::rename(scratch.path(), &rotated).unwrap();
        tracing::info!("between");
        log.reopen().unwrap();
        tracing::info!("after");
    });
    assert_eq!(fs::read_to_string(rotated).unwrap(), "<6>before\n<6>between\n");
    assert_eq!(scratch.lines(), ["<6>after"]);
    assert_eq!(fs::metadata(scratch.path()).unwrap().mode() & 0o137, 0, "too many accounts may read it");
}

#[test]
fn a_failed_reopen_keeps_the_file() {
    let scratch = Scratch::new();
    let (log, subscriber) = Log::open(scratch.settings(Format::Journal)).unwrap();
    let moved = scratch.directory.path().join("moved");
    fs::rename(scratch.path(), &moved).unwrap();
    fs::create_dir(scratch.path()).unwrap();
    tracing::subscriber::with_default(subscriber, || {
        assert!(log.reopen().is_err());
        tracing::info!("still here");
    });
    assert_eq!(fs::read_to_string(moved).unwrap(), "<6>still here\n");
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

#[test]
fn a_log_without_its_directory_is_refused_by_name() {
    let settings = Settings {
        threshold: Threshold::Info,
        file: Some("/nonexistent/a.log".into()),
        format: Format::Auto,
    };
    let message = Log::open(settings).map(|(log, _)| log).unwrap_err().to_string();
    assert!(
        message.starts_with("the log file /nonexistent/a.log cannot be opened: No such file"),
        "{message}"
    );
}

#[test]
fn the_journal_is_recognised_by_device_and_inode() {
    assert!(is_stream("8:1234", 8, 1234));
    assert!(!is_stream("8:1234", 8, 1235));
    assert!(!is_stream("", 8, 1234));
}

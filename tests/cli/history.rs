//! `signalbox history` on files that no server writes: of several nodes, rotated, torn.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::daemon::SIGNALBOX;

fn history(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(SIGNALBOX)
        .args(["history", "--no-header"])
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap()
}

fn line(time: &str, event: &str, grant: u64, name: &str, rest: &str) -> String {
    format!(
        r#"{{"time":"2026-11-27T{time}Z","event":"{event}","grant":"{grant}","session":"1","limits":[{{"kind":"counter","name":"{name}","resources":1}}],"durable":true{rest}}}"#
    )
}

fn rows(output: &Output) -> Vec<Vec<&str>> {
    let text = str::from_utf8(&output.stdout).unwrap();
    // Granted, held, end and grant.
    text.lines()
        .map(|row| row.split('\t').collect::<Vec<_>>())
        .map(|row| vec![row[0], row[2], row[3], row[6]])
        .collect()
}

#[test]
fn the_files_of_nodes_are_merged_by_time_and_torn_lines_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let write =
        |name: &str, lines: &[&str]| fs::write(directory.path().join(name), lines.join("\n")).unwrap();
    let started = r#"{"time":"2026-11-27T02:00:00.000Z","event":"started","durable":true}"#;
    write("one.log.1", &[&line("01:00:00.000", "granted", 1, "a", r#","waited_ms":7"#), ""]);
    let torn = &line("01:00:01.000", "granted", 9, "a", "")[..40];
    write(
        "one.log",
        &[
            torn,
            &line("01:00:02.000", "granted", 2, "b", ""),
            &line("01:30:00.000", "granted", 3, "a", ""),
            torn,
        ],
    );
    let lost = r#"{"time":"2026-11-27T02:30:00.000Z","event":"lost","lines":5}"#;
    // The beginning of grant 4 is lost.
    write(
        "two.log",
        &[
            started,
            &line("02:10:00.500", "expired", 1, "a", r#","held_ms":4200500"#),
            &line("02:20:00.000", "released", 4, "a", r#","held_ms":1000"#),
            lost,
            "",
        ],
    );
    let output = history(directory.path(), &["a", "--file", "two.log", "--file", "one.log"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let expected = [
        vec!["2026-11-27T01:00:00.000Z", "4200.500", "expired", "1"],
        vec!["2026-11-27T02:19:59.000Z", "1.000", "released", "4"],
    ];
    let shown = rows(&output);
    assert_eq!(shown[..2], expected);
    assert_eq!((shown.len(), shown[2][2], shown[2][3]), (3, "held", "3"));
    assert!(said.contains("one.log: ") && said.contains("left out: 1") && said.contains("5 lines"), "{said}");
    let some = ["a", "--file", "two.log", "--since", "2026-11-27T02:15", "--until", "2026-11-27T02:19:59"];
    assert_eq!(rows(&history(directory.path(), &some)), [expected[1].clone()]);
}

#[test]
fn without_a_history_the_message_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.toml"), "").unwrap();
    for (arguments, status, expected) in [
        (&["a", "--config", "a.toml"][..], 78, "log.grants is not set"),
        (&["a", "--file", "none.log"], 1, "none.log: the history cannot be read"),
        (&["a", "--file", "a.toml", "--since", "yesterday"], 64, "expected a time before now"),
        (&["a", "--file", "a.toml", "--server", "localhost"], 64, "has no --server"),
    ] {
        let output = history(directory.path(), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

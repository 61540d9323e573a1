//! `signalbox data` on the directory of a server that has ended, and the messages of `serve` about a directory that it
//! cannot use.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::assert_fails;
use crate::support::daemon::{ConfigFile, Daemon, SIGNALBOX, outcome, serve_file_on_any_ports};

/// A configuration with a data directory.
fn configuration(directory: &Path) -> ConfigFile {
    ConfigFile::toml(&format!("data_dir = '{}'\n", directory.display()))
}

/// Runs `signalbox data` on a directory.
fn data(action: &str, directory: &Path, options: &[&str], input: Stdio) -> Output {
    let mut command = Command::new(SIGNALBOX);
    command.args(["data", action]).arg(directory).args(options).stdin(input).output().unwrap()
}

fn found(directory: &Path) -> Value {
    let output = data("check", directory, &["--json"], Stdio::null());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn run_client(server: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(SIGNALBOX);
    let output = command.args(arguments).env("SIGNALBOX_SERVER", server).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A data directory with a declared semaphore that is held.
fn filled() -> (TempDir, std::path::PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("data");
    let file = configuration(&directory);
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let server = daemon.address("semaphore").to_string();
    run_client(&server, &["declare", "gpu", "--capacity", "4", "--slots"]);
    run_client(&server, &["acquire", "--semaphore", "gpu", "--resources", "2", "--lease", "1h"]);
    let busy = data("check", &directory, &[], Stdio::null());
    assert_fails(&busy, 71, "a server has this data directory open");
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.exit_status().success());
    (parent, directory)
}

#[test]
fn a_directory_is_checked_exported_and_imported() {
    let (parent, directory) = filled();
    let report = found(&directory);
    assert_eq!(
        (&report["declared"], &report["sessions"], &report["grants"]),
        (&1.into(), &1.into(), &1.into())
    );
    assert_eq!((&report["needs_repair"], &report["problems"]), (&false.into(), &Value::Array(Vec::new())));
    let text = data("check", &directory, &[], Stdio::null());
    let said = "declared        1\nsessions        1\ngrants          1\nanswers         0\nsysv_sets       0\nsysv_processes  0\n";
    assert!(String::from_utf8_lossy(&text.stdout).starts_with(said), "{text:?}");

    let export = parent.path().join("export");
    let exported = data("export", &directory, &[], Stdio::null());
    assert!(exported.status.success() && exported.stderr.is_empty(), "{exported:?}");
    std::fs::write(&export, &exported.stdout).unwrap();
    let read = || Stdio::from(std::fs::File::open(&export).unwrap());
    assert_fails(&data("import", &directory, &[], read()), 64, "the directory is not empty");
    let copy = parent.path().join("copy");
    let imported = data("import", &copy, &[], read());
    assert!(imported.status.success(), "{imported:?}");
    assert_eq!(found(&copy), report);

    assert_holds_two_slots(&copy);
}

/// A server with this data directory has one grant of the semaphore "gpu", with the slots 0 and 1.
fn assert_holds_two_slots(directory: &Path) {
    let file = configuration(directory);
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let server = daemon.address("semaphore").to_string();
    let holders = run_client(&server, &["status", "--holders", "--semaphore", "gpu", "--json"]);
    let holder: Value = serde_json::from_str(&holders).unwrap();
    assert_eq!(holder["slots"], serde_json::json!([0, 1]));
}

#[test]
fn a_running_server_is_exported_and_restored() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("data");
    let file = configuration(&directory);
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let [server, semaphores] = ["counter", "semaphore"].map(|port| daemon.address(port).to_string());
    run_client(&semaphores, &["declare", "gpu", "--capacity", "4", "--slots"]);
    run_client(&semaphores, &["acquire", "--semaphore", "gpu", "--resources", "2", "--lease", "1h"]);
    let exported = run_client("192.0.2.1:1", &["data", "export", "--server", &server]);
    let other_port = run_client("192.0.2.1:1", &["data", "export", "--semaphore", "--server", &semaphores]);
    assert_eq!(exported, other_port);
    assert_eq!(
        exported,
        run_client("192.0.2.1:1", &["--server", &server, "data", "export"]),
        "the option may come first"
    );
    daemon.logged_message("exported all records");
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.exit_status().success());
    let at_rest = data("export", &directory, &[], Stdio::null());
    assert_eq!(String::from_utf8(at_rest.stdout).unwrap(), exported, "the format is the same");

    let export = parent.path().join("export");
    std::fs::write(&export, &exported).unwrap();
    let copy = parent.path().join("copy");
    let imported = data("import", &copy, &[], std::fs::File::open(&export).unwrap().into());
    assert!(imported.status.success(), "{imported:?}");
    assert_holds_two_slots(&copy);
}

#[test]
fn what_cannot_be_exported_is_said() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter").to_string();
    let (_parent, directory) = filled();
    let directory = directory.to_str().unwrap();
    let export = |arguments: &[&str]| {
        let mut command = Command::new(SIGNALBOX);
        // A server of the environment selects nothing.
        command.args(["data", "export"]).args(arguments).env("SIGNALBOX_SERVER", &server).output().unwrap()
    };
    assert!(export(&[directory]).status.success());
    assert_fails(&export(&["--server", &server]), 1, "has no data directory, so it stores nothing");
    assert_fails(&export(&[]), 64, "which records? give the DIRECTORY");
    assert_fails(&export(&[directory, "--server", &server]), 64, "--server exports a running server");
    assert_fails(&export(&["--cluster", "--server", &server]), 64, "--server exports a running server");
    assert_fails(&export(&["--server", "127.0.0.1:1"]), 69, "");
}

#[test]
fn a_damaged_directory_is_reported_with_its_own_status() {
    let (_parent, directory) = filled();
    assert_fails(
        &data("check", &directory.join("none"), &[], Stdio::null()),
        65,
        "this is not a data directory of signalbox",
    );
    let path = directory.join("signalbox.redb");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.truncate(4096);
    bytes[..512].fill(b'x');
    std::fs::write(&path, &bytes).unwrap();
    assert_fails(&data("check", &directory, &[], Stdio::null()), 65, "the file is damaged");
    let file = configuration(&directory);
    let output = outcome(serve_file_on_any_ports(&file.path()));
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("the file is damaged"), "{output:?}");
}

#[test]
fn an_export_that_cannot_be_written_is_a_failure() {
    let (_parent, directory) = filled();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(SIGNALBOX);
    let command = command.args(["data", "export"]).arg(&directory).stdout(full).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    assert_fails(&output, 74, "cannot write the output");
}

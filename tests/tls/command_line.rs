//! The options of TLS of the command line.

use std::path::Path;
use std::process::{Command, Output};

use crate::certificates::{Authority, Files, for_loopback};
use crate::daemon::started;
use crate::support::daemon::*;

fn program(daemon: &mut Daemon, arguments: &[&str]) -> Command {
    let mut command = Command::new(SIGNALBOX);
    command.args(arguments).env("SIGNALBOX_SERVER", daemon.address("counter").to_string());
    command
}

fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[track_caller]
fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn all_kinds_of_commands_work_over_tls() {
    let (authority, files) = for_loopback();
    let mut daemon = started(&format!("{}tls.plain = \"refuse\"\n", files.lines()));
    let ca = authority.file();
    let mut run = |arguments: &[&str]| {
        let mut command = program(&mut daemon, arguments);
        command.env("SIGNALBOX_CA", &ca);
        stdout(&outcome(command))
    };
    assert!(run(&["ping"]).starts_with("answer from "));
    assert_eq!(run(&["run", "job", "--max", "1", "--", "echo", "plain"]), "plain\n");
    let leased = ["run", "job", "--max", "1", "--wait", "10s", "--lease", "10s", "--", "echo", "leased"];
    assert_eq!(run(&leased), "leased\n");
    assert!(run(&["status", "job"]).contains("job"));
    assert!(run(&["stats"]).contains("tls_connections"));
    let bench = ["bench", "-c", "3", "--in-flight", "4", "--count", "1000", "--warmup", "0"];
    assert!(run(&bench).contains("1000"), "{}", run(&bench));
}

#[test]
fn a_file_of_tls_is_never_ignored() {
    let (authority, files) = for_loopback();
    let mut daemon = started("");
    let ca = authority.file();
    let (certificate, key) = (text_of(&files.certificate), text_of(&files.key));
    for (arguments, expected) in [
        (&["ping", "--ca", text_of(&ca)][..], "does not use TLS on this port"),
        (&["ping", "--tls", "--ca", text_of(&ca)], "does not use TLS on this port"),
        (&["ping", "--ca", text_of(&ca), "--cert", certificate], "--cert needs --cert-key"),
        (&["ping", "--cert-key", key], "--cert-key needs --cert"),
        (&["ping", "--ca", key], "has no certificate in PEM"),
        (&["sysv", "run", "--keys", "all", "--ca", text_of(&ca), "--", "true"], "does not use TLS"),
    ] {
        let output = outcome(program(&mut daemon, arguments));
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
        assert!(!output.status.success());
    }
    // Without any, connections are plain.
    assert!(stdout(&outcome(program(&mut daemon, &["ping"]))).starts_with("answer"));
    let mut off = program(&mut daemon, &["ping"]);
    off.env("SIGNALBOX_TLS", "0");
    assert!(stdout(&outcome(off)).starts_with("answer"));
}

#[test]
fn the_systems_authorities_are_those_of_a_client_that_names_none() {
    let (authority, files) = for_loopback();
    let mut daemon = started(&files.lines());
    let mut with = |arguments: &[&str], ca: &Path| {
        let mut command = program(&mut daemon, arguments);
        // openssl and rustls-native-certs use this file in place of those of the system.
        command.env("SSL_CERT_FILE", ca).env_remove("SSL_CERT_DIR");
        outcome(command)
    };
    assert!(stdout(&with(&["ping", "--tls"], &authority.file())).starts_with("answer"));
    let stranger = Authority::new();
    let refused = with(&["ping", "--tls"], &stranger.file());
    assert_eq!(refused.status.code(), Some(69));
    assert!(stderr(&refused).contains("is not trusted"), "{}", stderr(&refused));
    let mut by_variable = program(&mut daemon, &["ping"]);
    by_variable.env("SIGNALBOX_TLS", "1").env("SSL_CERT_FILE", stranger.file());
    assert!(stderr(&outcome(by_variable)).contains("is not trusted"));
}

#[test]
fn a_certificate_of_the_client_is_shown() {
    let (authority, files) = for_loopback();
    let clients =
        format!("tls.client_ca = '{}'\ntls.client_cert = \"required\"\n", authority.file().display());
    let mut daemon = started(&format!("{}{clients}", files.lines()));
    let Files { certificate, key } = authority.sign("worker", "");
    let shown = ["--cert", text_of(&certificate), "--cert-key", text_of(&key)];
    for command in [&["ping"][..], &["acquire", "a", "--max", "1", "--lease", "10s"]] {
        let mut run = |identity: &[&str]| {
            let mut program = program(&mut daemon, &[command, identity].concat());
            program.env("SIGNALBOX_CA", authority.file());
            outcome(program)
        };
        let refused = run(&[]);
        assert!(stderr(&refused).contains("requires a certificate of the client"), "{}", stderr(&refused));
        assert!(!refused.status.success());
        stdout(&run(&shown));
    }
}

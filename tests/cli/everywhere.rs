//! Conventions of all subcommands: options before and after them, JSON, patterns of names, completion of names.

use std::process::Output;

use serde_json::{Value, json};
use tokio::process::Command;

use super::{assert_fails, ran, stderr, stdout};
use crate::support::daemon::Daemon;
use crate::support::fake_server::soon;

#[tokio::test]
async fn connection_options_stand_before_or_after_the_subcommand() {
    let mut daemon = Daemon::start();
    let (counters, semaphores) = (daemon.address("counter"), daemon.address("semaphore"));
    let mut plain = daemon.semaphore();
    assert_eq!(plain.acquire(b"pool", 1, 3).status, 0);
    let address = semaphores.to_string();
    let options = ["--server", &address[..], "--semaphore", "--json", "--timeout", "3"];
    for arguments in [
        [&options[..], &["get", "pool"]].concat(),
        [&["get"], &options[..], &["pool"]].concat(),
        [&["get", "pool"], &options[..]].concat(),
        [&options[..3], &["get", "pool"], &options[3..]].concat(),
    ] {
        // The environment has the other port; the option takes precedence.
        let output = ran(counters, &arguments).await;
        assert_eq!(stdout(&output), "{\"name\":\"pool\",\"available\":2}\n", "{arguments:?}");
    }
    let nearer = ["--server", "127.0.0.1:1", "get", "pool", "--semaphore", "--server", &address];
    let output = ran(counters, &nearer).await;
    assert_eq!(stdout(&output), "2\n", "the one after the subcommand takes precedence");
    let all = [&options[..], &["run", "other", "--max", "1", "--", "echo", "--json"]].concat();
    let output = ran(counters, &all).await;
    assert_eq!(stdout(&output), "--json\n");
}

#[tokio::test]
async fn names_stand_together_before_or_after_the_options() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for arguments in [
        &["run", "a:1", "b:1", "--lease", "5", "--wait", "1", "--", "true"][..],
        &["run", "--lease", "5", "--wait", "1", "a:1", "b:1", "--", "true"],
        &["run", "--lease=5", "a:1", "b:1", "--wait=1", "--", "true"],
        &["run", "days", "s", "--max", "1", "--lease", "5", "--", "true"],
        &["run", "tenant=2:8", "a:b:4294967295", "--", "true"],
        &["run", "host:web", "a:", "--max", "1", "--", "true"],
    ] {
        assert_eq!(stdout(&ran(server, arguments).await), "", "{arguments:?}");
    }
}

#[tokio::test]
async fn every_command_that_prints_has_json() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let ran = async |arguments: &[&str]| -> Output { ran(server, arguments).await };
    let printed = async |arguments: &[&str]| -> Value {
        let output = ran(&[arguments, &["--json"]].concat()).await;
        let text = stdout(&output).to_owned();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    };
    let mut plain = daemon.counter();
    assert_eq!(plain.acquire(b"job", 2, 3).status, 0);
    assert_eq!(printed(&["get", "job"]).await, json!({"name": "job", "in_use": 2}));
    let ping = printed(&["ping"]).await;
    assert_eq!((&ping["server"], &ping["number"]), (&json!(server.to_string()), &json!(1)));
    assert!(ping["time"].is_f64(), "{ping}");
    let idle = printed(&["await-idle", "job", "--level", "2"]).await;
    assert_eq!(idle, json!({"name": "job", "in_use": 2}));
    let held = printed(&["acquire", "other:1", "--lease", "60"]).await;
    let (session, key) = (held["session"].as_str().unwrap(), held["key"].as_str().unwrap());
    let renewed = printed(&["renew", "--session", session, "--key", key]).await;
    assert_eq!(renewed, json!({"lease": 60.0}));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("signalbox.toml");
    std::fs::write(&file, "[counter]\nport = 1\n").unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(printed(&["check-config", file]).await, json!({"file": file, "warnings": []}));
    for quiet in [&["release", "--session", session, "--key", key][..], &["delete", "other"]] {
        assert_eq!(stdout(&ran(&[quiet, &["--json"]].concat()).await), "");
    }
}

#[tokio::test]
async fn dump_and_list_have_the_patterns_of_watch() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let mut plain = daemon.counter();
    for name in ["a/1", "a/*", "a", "b"] {
        assert_eq!(plain.acquire(name.as_bytes(), 1, 9).status, 0);
    }
    let declare = ["declare", "a/1", "a/*", "a", "b", "--capacity", "1", "--exact"];
    stdout(&ran(server, &declare).await);
    for (pattern, expected) in [
        (&[][..], &["a", "a/*", "a/1", "b"][..]),
        (&["*"], &["a", "a/*", "a/1", "b"]),
        (&["a*"], &["a", "a/*", "a/1"]),
        (&["a/*"], &["a/*", "a/1"]),
        (&["a/*", "--exact"], &["a/*"]),
        (&["a"], &["a"]),
        (&["c*"], &[]),
    ] {
        for list in [&["dump"][..], &["list", "--declared"], &["list", "--counter"]] {
            let arguments = [list, pattern, &["--json"]].concat();
            let output = ran(server, &arguments).await;
            let mut names: Vec<_> = stdout(&output)
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned())
                .collect();
            names.sort();
            assert_eq!(names, expected, "{list:?} {pattern:?}");
        }
    }
    for (arguments, message) in [
        (&["dump", "c"][..], "counter \"c\" does not exist; check the name"),
        (&["dump", "c*", "--exact", "--json"], "counter \"c*\" does not exist"),
        (&["list", "c"], "limit \"c\" does not exist; check the name"),
    ] {
        assert_fails(&ran(server, arguments).await, 1, message);
    }
}

/// The completions that bash offers for these words, the last of which is incomplete.
async fn completed(server: std::net::SocketAddr, words: &[&str]) -> Vec<String> {
    let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
    let script = format!(
        "source <(\"$SIGNALBOX\" completions bash) 2> /dev/null\n\
         COMP_WORDS=(\"$SIGNALBOX\" {}); COMP_CWORD={}\n\
         _signalbox_names \"$SIGNALBOX\" \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        quoted.join(" "),
        words.len()
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script]).env("SIGNALBOX", env!("CARGO_BIN_EXE_signalbox"));
    // Where no file has such a name.
    let dir = tempfile::tempdir().unwrap();
    command.env("SIGNALBOX_SERVER", server.to_string()).current_dir(dir.path());
    let output = soon("bash to end", command.output()).await.unwrap();
    assert_eq!(stderr(&output), "");
    let mut names: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    names.retain(|name| !name.is_empty() && !name.starts_with('-'));
    names.sort();
    names
}

#[tokio::test]
async fn the_shell_completes_names() {
    let mut daemon = Daemon::start();
    let (server, semaphores) = (daemon.address("counter"), daemon.address("semaphore"));
    let mut plain = daemon.counter();
    for name in ["backup", "ba:1", "job", "two words"] {
        assert_eq!(plain.acquire(name.as_bytes(), 1, 9).status, 0);
    }
    let declare = ["declare", "bag", "gpu", "--capacity", "1"];
    stdout(&ran(server, &declare).await);
    for (words, expected) in [
        (&["get", "ba"][..], &["ba:1", "backup"][..]),
        (&["get", "ba", ":", ""], &["1"]),
        (&["--timeout", "=", "3", "status", "j"], &["job"]),
        (&["get", "two"], &["two\\ words"]),
        (&["remove", ""], &["bag", "gpu"]),
        (&["run", "ba"], &["ba:1", "backup", "bag"]),
        (&["run", "job", "--max", "ba"], &[]),
        (&["--semaphore", "status", "--holders", "g"], &["gpu"]),
        (&["slot", "g"], &["gpu"]),
        (&["slot", "gpu", ""], &[]),
        (&["get", "job", "ba"], &[]),
        (&["run", "job", "ba"], &["ba:1", "backup", "bag"]),
        (&["run", "job", "--", "ba"], &[]),
    ] {
        assert_eq!(completed(server, words).await, expected, "{words:?}");
    }
    assert_eq!(completed(semaphores, &["get", "--semaphore", "g"]).await, ["gpu"]);
    for (shell, call) in [("zsh", ":_signalbox_names'"), ("fish", "complete-names -- (commandline")] {
        let script = ran(server, &["completions", shell]).await;
        assert!(stdout(&script).contains(call), "{shell}");
    }
}

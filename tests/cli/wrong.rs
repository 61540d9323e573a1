//! Wrong invocations, each with its exit status and its message: the first line on standard error, after `signalbox: `.
//!
//! The server has the counter `job`, of which 1 of 1 is in use, the declared semaphore `gpu` of capacity 2, and the
//! semaphore `fixed` of its configuration.

use std::process::{Command, Output};

use crate::support::daemon::{ConfigFile, Daemon, SIGNALBOX, outcome, serve_file_on_any_ports};

struct Wrong {
    arguments: &'static str,
    status: i32,
    /// The beginning of the message.
    message: &'static str,
}

const fn wrong(arguments: &'static str, status: i32, message: &'static str) -> Wrong {
    Wrong { arguments, status, message }
}

/// Arguments that are wrong whatever the server says. `_` is an empty argument.
const USAGE: &[Wrong] = &[
    wrong("frobnicate", 64, "unrecognized subcommand 'frobnicate'"),
    wrong("run job --max 1", 64, "the following required arguments were not provided:"),
    wrong(
        "run job --max 0 -- true",
        64,
        "invalid value '0' for '--max <N>': expected a whole number from 1 to",
    ),
    wrong("run job --max 1 --josn -- true", 64, "unexpected argument '--josn' found"),
    wrong("run job --max 1 ls -la", 64, "unexpected argument '-l' found"),
    wrong(
        "run job --max 1 --resources 2 -- true",
        64,
        "--resources 2 is more than --max 1; lower --resources or",
    ),
    wrong(
        "run job=2/1 -- true",
        64,
        "\"job=2/1\": 2 requested, but the maximum is 1; lower the request or raise",
    ),
    wrong(
        "run job==1 -- true",
        64,
        "\"job==1\" has two \"=\" before the amount; write job=1, or, if the name is \"job=\"",
    ),
    wrong(
        "run job* --max 1 -- true",
        64,
        "\"job*\" looks like a pattern, but this command takes whole names",
    ),
    wrong(
        "declare gpu* --capacity 1",
        64,
        "\"gpu*\" looks like a pattern, but this command takes whole names",
    ),
    wrong(
        "declare gpu=3 --capacity 3",
        64,
        "\"gpu=3\" ends in an amount, which declare has in --capacity; omit it",
    ),
    wrong("acquire job --max 1", 64, "the following required arguments were not provided:"),
    wrong("get _", 64, "invalid value '' for '<NAME>': the name is empty; use a name of 1 to 65535 bytes"),
    wrong(
        "get job --server :7",
        64,
        "invalid value ':7' for '--server <HOST[:PORT]>': the address has no host",
    ),
    wrong(
        "get job --timeout 0",
        64,
        "invalid value '0' for '--timeout <TIME>': expected a number of seconds above 0",
    ),
    wrong(
        "renew",
        64,
        "no session is given; set SIGNALBOX_SESSION and SIGNALBOX_KEY to what \"signalbox acquire\" printed",
    ),
    wrong(
        "renew --session 5",
        64,
        "the key of session 5 is not given; set SIGNALBOX_SESSION and SIGNALBOX_KEY",
    ),
    wrong(
        "renew --key 00000000000000000000000000000000",
        64,
        "a key is given, but not the id of its session; set SIGNALBOX_SESSION",
    ),
    wrong(
        "release --session 1 --key y",
        64,
        "the key of the session must have 32 hexadecimal digits; use the value of",
    ),
    wrong(
        "declare x --capacity 100000 --slots",
        64,
        "--capacity 100000 is more than 65536, the maximum with --slots",
    ),
    wrong(
        "await-idle job --wait -1",
        64,
        "invalid value '-1' for '--wait <TIME|max>': expected max, 0, a number of",
    ),
    wrong("revoke 5", 64, "unexpected argument '5' found"),
    wrong(
        "await-idle job*",
        64,
        "\"job*\" looks like a pattern, but this command takes whole names; if the *",
    ),
    wrong(
        "serve --bind localhost",
        64,
        "invalid value 'localhost' for '--bind <ADDRESS>': expected an IP address, such as",
    ),
    wrong(
        "serve --log-level loud",
        64,
        "invalid value 'loud' for '--log-level <LEVEL>': must be error, warning, info or",
    ),
    wrong(
        "bench --pid 99999999",
        64,
        "cannot read what process 99999999 has used (No such file or directory",
    ),
    wrong("bench --resources 2 --max 1", 64, "--resources 2 is more than --max 1"),
    wrong("bench --mix put", 64, "invalid value 'put' for '--mix <WHAT[=WEIGHT],…>': expected operations"),
    wrong("bench --threads 3 --connections 2", 64, "--threads 3 is more than --connections 2; each thread"),
    wrong("run a --max 1 --queue-max 3 -- true", 64, "the following required arguments were not provided:"),
    wrong("revoke --client a", 64, "invalid value 'a' for '--client <CLIENT>': must be an IP address"),
    wrong("revoke --grant 1 --session 2", 64, "the argument '--grant <ID>' cannot be used with"),
    wrong("data", 64, "'signalbox data' requires a subcommand but one was not provided"),
    wrong(
        "sysv run -- true",
        64,
        "no keys are selected, so all semaphores would stay on this host; add --keys all",
    ),
    wrong(
        "sysv run --keys 5-1 -- true",
        64,
        "invalid value '5-1' for '--keys <all|RANGES>': the range \"5-1\" ends before it begins",
    ),
    wrong(
        "sysv run --map 5 -- true",
        64,
        "invalid value '5' for '--map <LOCAL=SHARED>': expected the key of this host and the shared key",
    ),
    wrong(
        "sysv run --keys all --server a,,b -- true",
        64,
        "invalid value 'a,,b' for '--server <HOST[:PORT]>': the address has no host",
    ),
    wrong(
        "sysv show job",
        64,
        "invalid value 'job' for '[KEY]': it is not the key of a semaphore set; write a key",
    ),
    wrong(
        "sysv remove 0",
        64,
        "invalid value '0' for '[KEY]': it is the key of all sets without a key; name the",
    ),
    wrong("sysv remove --id x", 64, "invalid value 'x' for '--id <ID>': expected the id of a set"),
    wrong(
        "holders --sysv job",
        64,
        "\"job\" is not the key of a semaphore set; write a key such as 0x2a or 42, or",
    ),
    wrong(
        "status --sysv --semaphore 42",
        64,
        "--sysv and --semaphore contradict each other; omit --semaphore",
    ),
    wrong("run a=2/4 --max 3 -- true", 64, "\"a=2/4\" has an amount of its own, which contradicts --max 3"),
    wrong(
        "run a=2/ --max 3 --resources 2 -- true",
        64,
        "\"a=2/\" has an amount of its own, which contradicts --max 3 and",
    ),
    wrong("run a a=4 -- true", 64, "\"a\" is given twice"),
    wrong("--semaphore check-config none", 64, "check-config has no --semaphore; omit it"),
    wrong("--ca ca.pem check-config none", 64, "check-config has no --ca"),
    wrong("--server x man", 64, "man has no --server"),
    wrong("--tls data check x", 64, "data has no --tls"),
    wrong("data --semaphore check x", 64, "data has no --semaphore"),
    wrong("--json completions bash", 64, "completions has no --json"),
    wrong("get --sysv 42", 64, "get has no --sysv; omit it"),
    wrong("watch --sysv 42 --exact", 64, "--exact is not valid with --sysv; a set has a key; omit it"),
    wrong("watch job --interval 5", 64, "--interval is only valid with --sysv; counters and semaphores are"),
    wrong(
        "data check /nonexistent",
        65,
        "/nonexistent/signalbox.redb: the file does not exist, so this is not a data",
    ),
    wrong(
        "check-config /nonexistent",
        78,
        "/nonexistent: the configuration file cannot be read: No such file or directory",
    ),
];

/// Requests for counters that this server refuses.
const COUNTERS: &[Wrong] = &[
    wrong("get none", 1, "counter \"none\" does not exist; check the name"),
    wrong("holders none", 1, "counter \"none\" does not exist; check the name"),
    wrong(
        "get jo*",
        1,
        "counter \"jo*\" does not exist; this command takes one whole name; \"signalbox dump\"",
    ),
    wrong(
        "run job --max 1 -- true",
        75,
        "counter \"job\": 1 of 1 in use, 1 requested; try again later or use --wait",
    ),
    wrong(
        "run job --max 1 --wait=0.1 -- true",
        75,
        "counter \"job\": not granted within 0.1 s (1 of 1 in use, 1 requested)",
    ),
    wrong(
        "await-idle job --wait 0",
        75,
        "counter \"job\": not idle (1 in use, at most 0 requested); try again later",
    ),
    wrong("run free --max 1 -- /nonexistent", 127, "command \"/nonexistent\" not found; check its path"),
    wrong("run free --max 1 -- /etc/passwd", 126, "cannot run command \"/etc/passwd\": Permission denied"),
    wrong("revoke --grant 999", 1, "grant 999 is not held; nothing was revoked"),
    wrong("revoke --session 999", 1, "session 999 does not exist; nothing was revoked"),
    wrong(
        "renew --session 999 --key 00000000000000000000000000000000",
        1,
        "session 999 does not exist, or its key is wrong",
    ),
    wrong(
        "sysv show 0x2a",
        1,
        "semaphore set 0x0000002a does not exist; \"signalbox sysv list\" lists the sets",
    ),
    wrong("sysv remove id:5", 1, "semaphore set id:5 does not exist; \"signalbox sysv list\" lists the sets"),
    wrong(
        "get job --server 127.0.0.1:1",
        69,
        "cannot connect to 127.0.0.1:1 (Connection refused (os error 111)); check",
    ),
];

/// Requests for semaphores that this server refuses. What can never be granted is not status 75, with or without a wait.
const SEMAPHORES: &[Wrong] = &[
    wrong(
        "run gpu=3/ --semaphore --lease 5 -- true",
        1,
        "semaphore \"gpu\": capacity 2, 3 requested; request at most 2",
    ),
    wrong(
        "run gpu=3/ --semaphore --lease 5 --wait=1h -- true",
        1,
        "semaphore \"gpu\": capacity 2, 3 requested; request at",
    ),
    wrong("run none --semaphore --lease 5 -- true", 1, "semaphore \"none\" does not exist; declare it with"),
    wrong(
        "declare gpu --capacity 3",
        1,
        "semaphore \"gpu\" is already declared; use --if-exists keep to leave it",
    ),
    wrong(
        "declare fixed --capacity 3 --if-exists set",
        1,
        "cannot declare \"fixed\": the server's configuration file declares \"fixed\"; change it there",
    ),
    wrong(
        "resize none 5",
        1,
        "semaphore \"none\" is not declared; \"signalbox list\" lists the declared semaphores",
    ),
    wrong(
        "resize fixed 5",
        1,
        "semaphore \"fixed\" was not changed: the server's configuration file declares \"fixed\"; change it there",
    ),
    wrong(
        "pause gp*",
        1,
        "semaphore \"gp*\" is not declared; this command takes one whole name; \"signalbox list\"",
    ),
    wrong(
        "resize gpu +4294967295",
        1,
        "semaphore \"gpu\" was not changed: its capacity would be 4294967297; the maximum is 4294967295",
    ),
    wrong(
        "resize numbered 70000",
        1,
        "semaphore \"numbered\" was not changed: its capacity would be 70000; the maximum is 65536, because its resources",
    ),
    wrong("resize gpu 5 --generation 1", 1, "semaphore \"gpu\" was not changed: its generation differs"),
    wrong(
        "remove fixed",
        1,
        "semaphore \"fixed\" was not changed: the server's configuration file declares \"fixed\"; change it there",
    ),
];

fn invoked(server: &str, arguments: &str) -> Output {
    let mut command = Command::new(SIGNALBOX);
    let arguments = arguments.split(' ').map(|argument| if argument == "_" { "" } else { argument });
    command.args(arguments).env("SIGNALBOX_SERVER", server);
    command.env_remove("SIGNALBOX_SESSION").env_remove("SIGNALBOX_KEY");
    outcome(command)
}

#[track_caller]
fn assert_refused(server: &str, Wrong { arguments, status, message }: &Wrong) {
    let output = invoked(server, arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    let first = said.lines().next().unwrap_or_default();
    assert!(first.starts_with(&format!("signalbox: {message}")), "{arguments}: {said}");
    assert_eq!(output.status.code(), Some(*status), "{arguments}: {said}");
    assert_eq!(output.stdout, b"", "{arguments}");
    assert!(!said.contains("tip: to pass"), "{arguments}: {said}");
    assert!(!said.contains("invalid digit"), "{arguments}: {said}");
}

#[test]
fn wrong_invocations_have_these_messages() {
    for wrong in USAGE {
        assert_refused("127.0.0.1:1", wrong);
    }
    let file = ConfigFile::toml(
        "bind_ip = '127.0.0.1'\ncounter.enable = true\nsemaphore.enable = true\n\
         [[semaphore.declare]]\nname = 'fixed'\ncapacity = 1\n",
    );
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let [counters, semaphores] = ["counter", "semaphore"].map(|port| daemon.address(port).to_string());
    assert_eq!(daemon.counter().acquire(b"x", 1, 1).status, 0);
    let mut holder = daemon.counter();
    assert_eq!(holder.acquire(b"job", 1, 1).status, 0);
    assert!(invoked(&semaphores, "declare gpu --capacity 2").status.success());
    assert!(invoked(&semaphores, "declare numbered --capacity 2 --slots").status.success());
    for wrong in COUNTERS {
        assert_refused(&counters, wrong);
    }
    for wrong in SEMAPHORES {
        assert_refused(&semaphores, wrong);
    }
    // The reverse: what is not in use is idle, and what can be granted later is not refused for ever.
    assert_eq!(invoked(&counters, "await-idle none").stdout, b"0\n");
}

#[test]
fn messages_about_arguments_are_short_and_show_no_optional_or_hidden_ones() {
    let said = |arguments: &str| {
        let output = invoked("127.0.0.1:1", arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments}");
        String::from_utf8(output.stderr).unwrap()
    };
    for (arguments, tip) in [
        ("revoke 5", "tip: give the id with --grant or --session"),
        ("ping host", "tip: give the server with --server"),
        ("renew 5", "tip: the session is that of SIGNALBOX_SESSION"),
    ] {
        assert!(said(arguments).contains(tip), "{}", said(arguments));
    }
    for arguments in ["get", "get a b", "revoke 5", "ping host", "bench --nmae"] {
        let said = said(arguments);
        assert!(said.contains("Usage: signalbox") && !said.contains("--server <HOST"), "{said}");
    }
    let help = String::from_utf8(invoked("127.0.0.1:1", "man --help").stdout).unwrap();
    assert!(help.contains("--dir") && !help.contains("--server"), "{help}");
    let subcommands = said("--json");
    assert!(
        subcommands.contains("completions, man") && !subcommands.contains("complete-names"),
        "{subcommands}"
    );
    for long in [65_535, 65_536] {
        for arguments in ["run NAME=x -- true", "run NAME -- true", "get NAME --max", "verify NAME", "NAME"] {
            let output = invoked("127.0.0.1:1", &arguments.replace("NAME", &"n".repeat(long)));
            assert!(
                !output.status.success() && output.stderr.len() < 1500,
                "{arguments} {long}: {}",
                output.stderr.len()
            );
        }
    }
}

//! Wrong invocations: each has its exit status and says on standard error, after `signalbox: `, what is wrong.
//!
//! The server has the counter `job`, of which 1 of 1 is in use, the declared semaphore `gpu` of capacity 2, and the
//! semaphore `fixed` of its configuration.

use std::process::{Command, Output};

use crate::support::daemon::{ConfigFile, Daemon, SIGNALBOX, outcome, serve_file_on_any_ports};

/// Arguments, and words of the message.
type Wrong = (&'static str, &'static str);

/// Arguments that are wrong whatever the server says, with status 64. `_` is an empty argument.
const USAGE: &[Wrong] = &[
    ("run job --max 0 -- true", "expected a whole number from 1 to"),
    ("run job --max +1 -- true", "expected a whole number from 1 to"),
    ("run job --max 1 --josn -- true", "'--josn'"),
    ("run job --max 1 true", "put -- before the command"),
    ("run job --max 1 sh -c true", "put -- before the command"),
    ("run -x --max 1", "--name=-x"),
    ("run job --max 1 --resources 2 -- true", "2 requested, but the maximum is 1"),
    ("run job=2:1 -- true", "2 requested, but the maximum is 1"),
    ("run job=0 -- true", "0 resources requested"),
    ("run job:4294967296 -- true", "a number above 4294967295"),
    ("run job --counter -- true", "counter \"job\" needs a maximum"),
    ("run job --max 1 --counter --semaphore -- true", "cannot be used with"),
    ("run job --max 1 --wait 0 -- true", "omit it"),
    ("run job* --max 1 -- true", "looks like a pattern"),
    ("declare gpu* --capacity 1", "looks like a pattern"),
    ("await-idle job*", "looks like a pattern"),
    ("declare gpu=3 --capacity 3", "--exact"),
    ("declare gpu=1.5 --capacity 3", "--exact"),
    ("run gpu=1.5:4 -- true", "--exact"),
    ("run gpu=2O:4 -- true", "--exact"),
    ("run gpu:4=2:4 -- true", "--exact"),
    ("run gpu:4:4 -- true", "--exact"),
    ("run a=1:2:3 -- true", "--exact"),
    ("run a=b=4 -- true", "--exact"),
    ("run gpu= -- true", "--exact"),
    ("run gpu=2/4 -- true", "--exact"),
    ("run =4 -- true", "the name has 0 bytes"),
    ("run gpu=4294967296 -- true", "a number above 4294967295"),
    ("acquire gpu:8=2 --lease 5", "NAME=R:MAX"),
    ("acquire job --max 1", "required arguments"),
    ("get _", "the name has 0 bytes"),
    ("get job --server :7", "the address has no host"),
    ("get job --timeout 0", "expected a number of seconds above 0"),
    ("ping -c 0", "expected a whole number from 1 to"),
    ("renew", "no session is given"),
    ("renew --session 5", "the key of session 5 is not given"),
    ("renew --key 00000000000000000000000000000000", "not the id of its session"),
    ("release --session 1 --key y", "must have 32 hexadecimal digits"),
    ("declare x --capacity 100000 --slots", "the maximum with --slots"),
    ("resize a -x", "'-x'"),
    ("resize a +", "expected a capacity"),
    ("resize a ++1", "expected a capacity"),
    ("resize a 1.5", "expected a capacity"),
    ("resize a 4294967296", "expected a capacity"),
    ("remove a --grace 1", "add --when now"),
    ("slot gpu 1", "--out|--in"),
    ("slot gpu 1 --in --wait 1s", "--in"),
    ("slot gpu 65536 --out", "65536"),
    ("await-idle job --wait -1", "expected max, 0, a number of"),
    ("run job --max 1 --lease -1s -- true", "expected a number of seconds"),
    ("await-idle job --counter --slot 1", "cannot be used with"),
    ("serve --bind localhost", "expected an IP address"),
    ("serve --log-level loud", "error, warning, info, debug"),
    ("bench --pid 99999999", "cannot read what process 99999999 has used"),
    ("bench --resources 2 --max 1", "--resources 2 is more than --max 1"),
    ("bench --mix put", "expected operations"),
    ("bench --mix pair=9999999999", "expected operations"),
    ("bench --mix get=0", "all weights are 0"),
    ("bench --threads 3 --connections 2", "--threads 3 is more than --connections 2"),
    ("run a --max 1 --queue-max 3 -- true", "required arguments"),
    ("revoke --client a", "must be an IP address"),
    ("revoke --grant 1 --session 2", "cannot be used with"),
    ("sysv run -- true", "no keys are selected"),
    ("sysv run --keys 5-1 -- true", "ends before it begins"),
    ("sysv run --map 5 -- true", "expected the key of this host and the shared key"),
    ("sysv run --keys all --server a,,b -- true", "the address has no host"),
    ("sysv show job", "not the key of a semaphore set"),
    ("sysv remove 0", "the key of all sets without a key"),
    ("sysv remove --id x", "expected the id of a set"),
    ("status --sysv id:-1", "not the key of a semaphore set"),
    ("status --holders --sysv job", "not the key of a semaphore set"),
    ("status --sysv --semaphore 42", "'--sysv' cannot be used with '--semaphore'"),
    ("declare q --capacity 1 --counter", "declare has no --counter"),
    ("resize gpu 4 --counter", "resize has no --counter"),
    ("--semaphore pause gpu", "pause has no --semaphore"),
    ("run a=2:4 --max 3 -- true", "contradicts --max"),
    ("run a=2 --resources 2 -- true", "contradicts --resources"),
    ("run a a:4 -- true", "\"a\" is given twice"),
    ("--semaphore check-config none", "check-config has no --semaphore"),
    ("--ca ca.pem check-config none", "check-config has no --ca"),
    ("--server x man", "man has no --server"),
    ("--tls data check x", "data check has no --tls"),
    ("data --semaphore check x", "data check has no --semaphore"),
    ("--json completions bash", "completions has no --json"),
    ("get --sysv 42", "get has no --sysv"),
    ("watch --sysv 42 --exact", "cannot be used with"),
    ("watch job --interval 5", "--sysv"),
    // A value never becomes a name.
    ("run a --max 1 --lease 10 days -- true", "\"days\" after --lease"),
    ("run a --max 1 --lease=10 days -- true", "a part of the time"),
    ("run --lease 10 days a --max 1 -- true", "a part of the time"),
    ("run a --max 1 --wait 30 s -- true", "\"s\" after --wait"),
    ("run --wait 5 min a:1 -- true", "a part of the time"),
    ("run a --wait --max 1 -- true", "a value is required for '--wait"),
    ("run a --max 1 --wait -- true", "--wait"),
    ("run a --max 1 --wait= -- true", "--wait"),
    ("run a --max 1 --wait forever -- true", "expected max, or a number of seconds"),
    ("run a --max 1 30s -- true", "separated from the other names by"),
    ("acquire a:1 --lease 5 b:1", "separated from the other names by --lease"),
    ("acquire gpu counted --semaphore --slot 0 --lease 5", "--slot 0 requires one NAME"),
    ("acquire gpu=2 --semaphore --slot 0 --lease 5", "--slot 0 requires one NAME"),
    ("declare a --capacity 1 --label two words", "quote the value"),
    ("declare a --slots b --capacity 1", "by --slots"),
    ("list --timeout 5 s", "a part of the time"),
];

/// Requests for counters that this server refuses, with their status.
const COUNTERS: &[(i32, Wrong)] = &[
    (1, ("get none", "counter \"none\" does not exist")),
    (1, ("status --holders none", "limit \"none\" does not exist")),
    (1, ("status --waiters none", "limit \"none\" does not exist")),
    (1, ("get jo*", "this command takes one whole name")),
    (75, ("run job --max 1 -- true", "1 of 1 in use, 1 requested")),
    (75, ("run job --max 1 --wait=0.1 -- true", "not granted within 0.1 s")),
    (75, ("await-idle job --wait 0", "not idle")),
    (1, ("await-idle job --slot 0 --wait 0", "a counter of this name exists")),
    (1, ("revoke --grant 999", "cannot revoke grant 999")),
    (1, ("revoke --session 999", "cannot revoke session 999")),
    (1, ("renew --session 999 --key 00000000000000000000000000000000", "or its key is wrong")),
    (1, ("revoke none --counter --yes", "counter \"none\" does not exist")),
    (1, ("sysv show 0x2a", "semaphore set 0x0000002a does not exist")),
    (1, ("sysv remove id:5", "semaphore set id:5 does not exist")),
    (69, ("get job --server 127.0.0.1:1", "cannot connect to 127.0.0.1:1")),
    (65, ("data check /nonexistent", "this is not a data directory")),
    (78, ("check-config /nonexistent", "the file cannot be read")),
];

/// Requests for semaphores that this server refuses. What can never be granted is not status 75, with or without a wait.
const SEMAPHORES: &[(i32, Wrong)] = &[
    (1, ("run gpu=3 --lease 5 -- true", "capacity 2, 3 requested")),
    (1, ("run gpu=3 --lease 5 --wait=1h -- true", "capacity 2, 3 requested")),
    (1, ("run none --lease 5 -- true", "limit \"none\" is not declared")),
    (1, ("acquire numbered --semaphore --lease 5 --slot 2", "its slots are 0 to 1")),
    (1, ("acquire gpu --semaphore --lease 5 --slot 0 --wait max", "its resources are not numbered")),
    (1, ("acquire none --semaphore --lease 5 --slot 0", "semaphore \"none\" does not exist")),
    (1, ("await-idle gpu --semaphore --slot 0", "its resources are not numbered")),
    (1, ("await-idle created --semaphore --slot 0", "it has no numbered slots")),
    (1, ("declare gpu --capacity 3", "already declared")),
    (1, ("declare fixed --capacity 3 --if-exists set", "the server's configuration file declares")),
    (1, ("resize none 5", "it is not declared")),
    (1, ("resize fixed 5", "the server's configuration file declares")),
    (1, ("pause gp*", "this command takes one whole name")),
    (1, ("resize gpu +4294967295", "the maximum is 4294967295")),
    (1, ("resize numbered 70000", "the maximum is 65536")),
    (1, ("resize gpu 5 --generation 1", "was changed since its generation")),
    (1, ("pause gpu --generation 1", "was changed since its generation")),
    (1, ("remove gpu --generation 1", "was changed since its generation")),
    (1, ("slot numbered 0 --out --generation 1", "was changed since its generation")),
    (1, ("remove fixed", "the server's configuration file declares")),
    (1, ("slot numbered 2 --out", "its slots are 0 to 1")),
];

fn invoked(server: &str, arguments: &str) -> Output {
    let mut command = Command::new(SIGNALBOX);
    let arguments = arguments.split(' ').map(|argument| if argument == "_" { "" } else { argument });
    command.args(arguments).env("SIGNALBOX_SERVER", server);
    command.env_remove("SIGNALBOX_SESSION").env_remove("SIGNALBOX_KEY");
    outcome(command)
}

#[track_caller]
fn assert_refused(server: &str, status: i32, (arguments, words): &Wrong) {
    let output = invoked(server, arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    let first = said.lines().next().unwrap_or_default();
    assert!(first.starts_with("signalbox: ") && said.contains(words), "{arguments}: {said}");
    assert_eq!(output.status.code(), Some(status), "{arguments}: {said}");
    assert_eq!(output.stdout, b"", "{arguments}");
    assert!(!said.contains("tip: to pass"), "{arguments}: {said}");
    assert!(!said.contains("invalid digit"), "{arguments}: {said}");
}

#[test]
fn wrong_invocations_have_their_status_and_say_what_is_wrong() {
    for wrong in USAGE {
        assert_refused("127.0.0.1:1", 64, wrong);
    }
    let file = ConfigFile::toml("[[semaphore.declare]]\nname = 'fixed'\ncapacity = 1\n");
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let [counters, semaphores] = ["counter", "semaphore"].map(|port| daemon.address(port).to_string());
    assert_eq!(daemon.counter().acquire(b"x", 1, 1).status, 0);
    let mut holder = daemon.counter();
    assert_eq!(holder.acquire(b"job", 1, 1).status, 0);
    assert!(invoked(&semaphores, "declare gpu --capacity 2").status.success());
    assert!(invoked(&semaphores, "declare numbered --capacity 2 --slots").status.success());
    assert_eq!(daemon.semaphore().acquire(b"created", 1, 1).status, 0);
    for (server, cases) in [(&counters, COUNTERS), (&semaphores, SEMAPHORES)] {
        for (status, wrong) in cases {
            assert_refused(server, *status, wrong);
        }
    }
    // The reverse: what is at a limit is not beyond it, what is not in use is idle, and what can be granted later is not refused forever.
    let most = invoked(&semaphores, "declare most --capacity 65536 --slots");
    assert!(most.status.success(), "{most:?}");
    assert_eq!(invoked(&counters, "await-idle none").stdout, b"0\n");
    let above = invoked(&semaphores, "await-idle numbered --semaphore --slot 9");
    let said = String::from_utf8(above.stderr).unwrap();
    assert_eq!((&above.stdout[..], above.status.code()), (&b"0\n"[..], Some(0)));
    assert!(said.contains("has no slot 9"), "{said}");
}

/// A right for limits is one for names of both kinds, and refusals do not depend on what is held.
#[test]
fn a_client_without_a_right_is_refused_whatever_the_state() {
    let file = ConfigFile::toml(
        "[access]\nnetworks = ['127.0.0.0/8 read,acquire limit:lim/']\n[[semaphore.declare]]\nname = 'lim/x'\ncapacity = 1\n",
    );
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let server = daemon.address("counter").to_string();
    for allowed in ["run lim/x -- true", "run lim/y --max 1 -- true", "list lim/*", "status lim/x"] {
        let output = invoked(&server, allowed);
        assert!(output.status.success(), "{allowed}: {output:?}");
    }
    for (arguments, words) in [
        ("revoke lim/x --yes", "permission denied"),
        ("resize lim/x 5", "permission denied"),
        ("run other --max 1 -- true", "limit \"other\""),
        ("status other", "limit \"other\""),
        ("list", "prefix"),
        ("dump", "prefix"),
        ("watch *", "prefix"),
    ] {
        assert_refused(&server, 1, &(arguments, words));
    }
}

#[test]
fn messages_about_arguments_are_short_and_show_no_optional_or_hidden_ones() {
    let said = |arguments: &str| {
        let output = invoked("127.0.0.1:1", arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments}");
        String::from_utf8(output.stderr).unwrap()
    };
    for arguments in ["get", "get a b", "revoke", "ping host", "bench --nmae"] {
        let said = said(arguments);
        assert!(said.contains("Usage: signalbox") && !said.contains("--server <HOST"), "{said}");
    }
    let lacks_wait = said("run a --max 1 --queue-max 3 -- true");
    assert!(!lacks_wait.contains("put --"), "the command is there: {lacks_wait}");
    let help = String::from_utf8(invoked("127.0.0.1:1", "man --help").stdout).unwrap();
    assert!(help.contains("--dir") && !help.contains("--server"), "{help}");
    let mut alone = Command::new(SIGNALBOX);
    alone.env("SIGNALBOX_SERVER", "127.0.0.1:1");
    let alone = outcome(alone);
    let help = String::from_utf8(alone.stderr).unwrap();
    assert!(help.contains("signalbox status backup"), "the help has examples: {help}");
    assert_eq!(alone.status.code(), Some(64));
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

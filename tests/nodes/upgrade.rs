//! Upgrades: `docs/rolling-upgrade.sh` replaces the program of each node while clients hold grants with leases, and another
//! one is relayed; and programs of two versions understand each other.
//!
//! `SIGNALBOX_OLD_PROGRAM` is the program of the release before. Without it, the old program is the present one, in a
//! cluster that stores records in the format before.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use signalbox::client::Permit;
use signalbox::client::blocking::Client;
use signalbox::cluster::coordinator::{Coordinator, Range};
use signalbox::cluster::keys::{Format, Keys, LAYOUT, encode, end_of_prefix};
use signalbox::storage::{FORMAT, OLDEST_WRITTEN_FORMAT};

use crate::load::{self, Load, Places};
use crate::support::cluster::{RENEW_DEADLINE, TestCluster};
use crate::support::daemon::{ANY_PORTS, Daemon, SIGNALBOX, outcome, stderr};
use crate::support::{GET, OK, Wire, eventually, frame, named};

const LEASE: Duration = Duration::from_secs(60);

/// The kind of the key of places, which format 4 has added.
const PLACE_KEY: u8 = 10;

/// In place of systemd: starts the program when it is wanted. The process that waits for it is its parent.
const SUPERVISOR: &str = r#"
while true; do
    if [ -e wanted ]; then
        ./signalbox serve --log-format json --config node.toml 2>>log &
        echo $! >pid
        wait $! || true
        rm -f wanted
        rm -f pid
    fi
    sleep 0.02
done
"#;

/// In place of ssh: a machine is a folder.
const ON: &str = r#"#!/usr/bin/env bash
set -eu
cd "$(dirname "$0")/$1"
systemctl() {
    # A machine with a file "socket" has the unit of that kind, which must not start the version before.
    case $1 in
    is-active)
        if [ -e socket ]; then echo active; else echo inactive; return 3; fi
        return
        ;;
    esac
    if [ -e socket ]; then
        [ "$2 ${3:-}" = "signalbox.socket signalbox" ] || { echo "the socket unit is forgotten" >&2; return 1; }
    fi
    case $1 in
    start)
        : >wanted
        # A program that ends at once is not wanted any more.
        while [ -e wanted ] && [ ! -e pid ]; do sleep 0.02; done
        ;;
    stop)
        # A node that was drained has ended.
        pid=$(cat pid 2>/dev/null) && kill -TERM "$pid" || true
        while [ -e pid ]; do sleep 0.02; done
        ;;
    esac
}
signalbox() { ./signalbox "$@" --config node.toml; }
eval "$2"
"#;

/// Three nodes and one that only relays, on machines of their own, each with a program that can be replaced.
struct Machines {
    cluster: TestCluster,
    folder: tempfile::TempDir,
    supervisors: Vec<Child>,
}

impl Machines {
    /// Starts the nodes with a program; `None` if etcd is not installed. `stored`: the format of records in the cluster.
    fn start(program: &Path, stored: Option<u32>) -> Option<Self> {
        let cluster = TestCluster::start_relaying(1, 0)?;
        if let Some(record_format) = stored {
            let renew_deadline_ms = RENEW_DEADLINE.as_millis().try_into().unwrap();
            let format = Format { layout: LAYOUT, record_format, renew_deadline_ms };
            let format = String::from_utf8(encode(&format)).unwrap();
            cluster.etcd.control(&["put", "/signalbox/main/v", &format]);
        }
        let folder = tempfile::tempdir().unwrap();
        let on = folder.path().join("on");
        fs::write(&on, ON).unwrap();
        fs::set_permissions(&on, fs::Permissions::from_mode(0o755)).unwrap();
        let mut machines = Self { cluster, folder, supervisors: Vec::new() };
        for name in ALL {
            let node = machines.cluster.add(name);
            let machine = machines.folder.path().join(name);
            fs::create_dir(&machine).unwrap();
            let mut config = fs::read_to_string(&machines.cluster.node(node).file).unwrap();
            if name == RELAY {
                config.push_str("eligible = false\n");
            }
            fs::write(machine.join("node.toml"), config).unwrap();
            symlink(program, machine.join("signalbox")).unwrap();
            let mut supervisor = Command::new("bash");
            supervisor.args(["-c", SUPERVISOR]).current_dir(&machine).process_group(0);
            machines.supervisors.push(supervisor.spawn().unwrap());
            machines.on(name, "systemctl start signalbox");
            if name == RELAY {
                fs::write(machines.folder.path().join(name).join("socket"), "").unwrap();
            }
            // The one that is started first leads.
            machines.cluster.leader();
        }
        Some(machines)
    }

    fn on(&self, name: &str, command: &str) -> Output {
        let mut on = Command::new(self.folder.path().join("on"));
        on.args([name, command]);
        outcome(on)
    }

    /// The script, with what installs a program.
    fn script(&self, program: &Path, arguments: &[&str]) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/rolling-upgrade.sh");
        let mut command = Command::new(script);
        command.args(arguments).env("ON", self.folder.path().join("on"));
        command.env("INSTALL", format!("ln -sfn '{}' signalbox", program.display()));
        command
    }

    /// Runs the script while a client acquires one grant after the other and keeps them. Returns its output.
    fn run(&self, program: &Path, arguments: &[&str], clients: &mut Clients) -> String {
        self.run_while(program, arguments, || {
            clients.acquire();
            std::thread::sleep(Duration::from_millis(20));
        })
    }

    /// Runs the script, and does something again and again until it has ended. Returns its output.
    fn run_while(&self, program: &Path, arguments: &[&str], mut act: impl FnMut()) -> String {
        let mut command = self.script(program, arguments);
        let mut script = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while script.try_wait().unwrap().is_none() {
            act();
        }
        let output = script.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let logs = ALL.map(|name| self.log(name));
        assert!(output.status.success(), "{text}{}\n{logs:#?}", stderr(&output));
        text
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name).join("log")).unwrap_or_default()
    }

    fn status(&mut self) -> Value {
        let status = self.cluster.administer(0, &["status", "--json"]);
        serde_json::from_slice(&status.stdout).unwrap_or_else(|_| panic!("{}", stderr(&status)))
    }

    /// The formats of all records, and the kinds.
    fn records(&self) -> (BTreeSet<u8>, BTreeSet<u8>) {
        let prefix = Keys::new("main").records();
        let to = Some(end_of_prefix(&prefix));
        let all = Range { from: prefix.clone(), to, at: None, count_only: false };
        let entries = self.cluster.etcd.client().range(&all).unwrap().entries;
        let kinds = entries.iter().map(|entry| entry.key[prefix.len()]).collect();
        (entries.iter().map(|entry| entry.value[0]).collect(), kinds)
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for supervisor in &mut self.supervisors {
            // With the node that it has started.
            let _ = killpg(Pid::from_raw(supervisor.id().try_into().unwrap()), Signal::SIGKILL);
            let _ = supervisor.wait();
        }
    }
}

/// What holds grants during an upgrade, and what is relayed.
struct Clients {
    permits: Vec<Permit>,
    library: Client,
    run: Child,
    /// The address of the node that only relays.
    relay: SocketAddr,
    /// A connection to it; `None`: it was lost.
    relayed: Option<Wire>,
}

impl Clients {
    /// A client, and a command that runs until the end of the test, of this program.
    fn start(cluster: &mut TestCluster, program: &Path) -> Self {
        let library = cluster.client(|builder| builder.ttl(LEASE).unreachable_after(LEASE));
        let mut run = Command::new(program);
        run.args(["run", "job", "--max", "1", "--lease", "60s", "--"])
            .args(["sh", "-c", "echo begun; read answer; echo $answer"])
            .env("SIGNALBOX_SERVER", cluster.servers())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut run = run.spawn().unwrap();
        run.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        let node = ALL.iter().position(|name| *name == RELAY).unwrap();
        Self { permits: Vec::new(), library, run, relay: cluster.node(node).counters, relayed: None }
    }

    fn acquire(&mut self) {
        let permit = self.library.wait(self.library.counter("jobs").maximum(10_000).acquire()).unwrap();
        let last = self.permits.last().map(|last| last.id());
        assert!(Some(permit.id()) > last, "ids grow: {:?} after {last:?}", permit.id());
        self.permits.push(permit);
        self.ask_relay();
    }

    /// Asks the node that only relays how much is in use. Returns whether it has answered: it may be absent for a while, or its
    /// leader may end.
    fn ask_relay(&mut self) -> bool {
        let relayed = self.relayed.take().or_else(|| Some(Wire::over(TcpStream::connect(self.relay).ok()?)));
        let Some(mut relayed) = relayed else { return false };
        let asked = relayed.stream.write_all(&frame(GET, *b"used", &named(&[], b"jobs")));
        let Ok(answer) = asked.and_then(|()| relayed.try_answer()) else { return false };
        assert_eq!((answer.status, answer.number() as usize), (OK, self.permits.len()));
        self.relayed = Some(relayed);
        true
    }

    /// Everything that was granted is held, by these clients and in the cluster, and the node that only relays does so.
    fn check(&mut self, cluster: &TestCluster) {
        eventually("the relay serves its client", || self.ask_relay());
        assert!(self.permits.iter().all(|permit| permit.is_held()));
        let used = cluster.run(["get", "jobs"]);
        assert_eq!(String::from_utf8(used.stdout).unwrap().trim(), self.permits.len().to_string());
        let refused = cluster.run(["acquire", "job", "--max", "1", "--lease", "5s"]);
        assert_eq!(refused.status.code(), Some(75), "{}", stderr(&refused));
    }

    /// The command has not noticed anything.
    fn end(mut self) {
        self.run.stdin.take().unwrap().write_all(b"done\n").unwrap();
        let mut rest = String::new();
        self.run.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "done\n");
        assert!(self.run.wait().unwrap().success());
    }
}

/// The program of the release before.
fn old_program() -> Option<PathBuf> {
    let program = std::env::var_os("SIGNALBOX_OLD_PROGRAM").filter(|program| !program.is_empty());
    program.map(|program| fs::canonicalize(program).expect("SIGNALBOX_OLD_PROGRAM is a program"))
}

/// The node that only relays.
const RELAY: &str = "relay";

const ALL: [&str; 4] = ["node-0", "node-1", "node-2", RELAY];

#[test]
fn no_leased_grant_is_lost_in_a_rolling_upgrade_and_a_change_of_the_record_format() {
    let new = Path::new(SIGNALBOX);
    let Some(mut machines) = Machines::start(new, Some(OLDEST_WRITTEN_FORMAT)) else { return };
    let mut clients = Clients::start(&mut machines.cluster, new);
    let old_format = BTreeSet::from([OLDEST_WRITTEN_FORMAT as u8]);
    let said = machines.run(new, &ALL, &mut clients);
    clients.check(&machines.cluster);
    let lines: Vec<_> = said.lines().filter(|line| line.ends_with(": upgrading")).collect();
    let order = ["node-1", "node-2", RELAY, "node-0"].map(|node| format!("{node}: upgrading"));
    assert_eq!(lines, order, "the leader last");
    assert!(said.lines().any(|line| line == "relay: relays"), "{said}");
    assert!(said.contains("complete the upgrade"), "{said}");

    // A node goes back to the version before, and returns.
    for _ in 0..2 {
        machines.run(new, &["node-1"], &mut clients);
    }
    let status = machines.status();
    assert_eq!((&status["record_format"], &status["finalize"]), (&3.into(), &"possible".into()), "{status}");
    let (formats, kinds) = machines.records();
    assert_eq!(formats, old_format);
    assert!(!kinds.contains(&PLACE_KEY), "{kinds:?}");

    // A node of an older version that is silent. Versions before this one do not say what they read.
    let silent = r#"{"incarnation":"1","invocation":"","version":"0.0.9","addresses":[]}"#;
    machines.cluster.etcd.control(&["put", "/signalbox/main/n/gone", silent]);
    let mut refused = machines.script(new, &["--finalize", "node-0"]);
    let refused = refused.output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains(r#"node "gone" (version 0.0.9) does not say"#), "{}", stderr(&refused));
    assert_eq!(machines.status()["finalize"], "blocked");
    let forgotten = machines.cluster.administer(0, &["forget", "gone"]);
    assert!(forgotten.status.success(), "{}", stderr(&forgotten));

    let finalized = machines.run(new, &["--finalize", "node-0"], &mut clients);
    assert!(finalized.contains("format 4 of records in place of format 3"), "{finalized}");
    let status = machines.status();
    assert_eq!((&status["record_format"], &status["finalize"]), (&FORMAT.into(), &"done".into()), "{status}");
    clients.acquire();
    assert_eq!(machines.records().0, old_format, "the leader goes on as it began");
    let leader = machines.status()["leader"].as_str().unwrap().to_owned();
    machines.run(new, &[&leader], &mut clients);
    clients.acquire();
    let (formats, kinds) = machines.records();
    assert!(formats.contains(&(FORMAT as u8)) && kinds.contains(&PLACE_KEY), "{formats:?} {kinds:?}");
    clients.check(&machines.cluster);
    clients.end();
}

#[test]
fn no_leased_grant_is_lost_in_an_upgrade_from_the_release_before_and_back() {
    let new = Path::new(SIGNALBOX);
    let old = old_program().unwrap_or_else(|| new.to_owned());
    let Some(mut machines) = Machines::start(&old, None) else { return };
    let mut clients = Clients::start(&mut machines.cluster, &old);
    machines.run(new, &ALL, &mut clients);
    clients.check(&machines.cluster);
    // All of it back, which is possible as long as the format is not raised.
    machines.run(&old, &ALL, &mut clients);
    clients.check(&machines.cluster);
    machines.run(new, &ALL, &mut clients);
    clients.check(&machines.cluster);
    machines.run(new, &["--finalize", "node-0"], &mut clients);
    assert_eq!(machines.status()["finalize"], "done");
    clients.end();
}

/// The cluster is upgraded, and then to the next format of records, while clients acquire and release at all nodes without a
/// pause: they never hold more than there is, and lose nothing that has a lease.
#[test]
fn under_load_an_upgrade_loses_no_leased_grant_and_gives_nothing_twice() {
    let new = Path::new(SIGNALBOX);
    let old = old_program().unwrap_or_else(|| new.to_owned());
    let Some(mut machines) = Machines::start(&old, Some(OLDEST_WRITTEN_FORMAT)) else { return };
    let load = Load::prepare(&machines.cluster, 16);
    let pause = || std::thread::sleep(Duration::from_millis(20));
    let (findings, ()) = load.run_while(Places::Here, 1, |_| {
        machines.run_while(new, &ALL, pause);
        machines.run_while(new, &["--finalize", "node-0"], pause);
        // From now on, leaders write the new format.
        machines.run_while(new, &ALL, pause);
    });
    assert_eq!(machines.status()["finalize"], "done");
    findings.check_held(&[]);
    findings.check_nothing_was_lost();
    let client = machines.cluster.client(|builder| builder);
    findings.check_stored(&client);
    eventually("nothing is in use when no client holds it", || load::is_given_back(&client));
}

#[test]
fn an_upgrade_ends_at_the_first_node_that_does_not_come_back() {
    let new = Path::new(SIGNALBOX);
    let Some(mut machines) = Machines::start(new, None) else { return };
    let mut clients = Clients::start(&mut machines.cluster, new);
    let mut script = machines.script(Path::new("/bin/false"), &ALL);
    let failed = script.env("PATIENCE", "2").output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(stderr(&failed).contains("node-1 is not back after 2 s"), "{}", stderr(&failed));
    let status = machines.status();
    assert_eq!(
        (&status["leader"], status["nodes"].as_array().unwrap().len()),
        (&"node-0".into(), 3),
        "{status}"
    );
    let unknown = machines.script(new, &["node-0", "node-7"]).output().unwrap();
    assert!(stderr(&unknown).contains("no node \"node-7\""), "{}", stderr(&unknown));
    clients.acquire();
    clients.check(&machines.cluster);
    clients.end();
}

/// Commands of one program against a server of another.
#[test]
fn clients_and_servers_of_two_versions_understand_each_other() {
    let mut programs = vec![PathBuf::from(SIGNALBOX)];
    programs.extend(old_program());
    for server in &programs {
        for client in &programs {
            use_all(server, client);
        }
    }
}

/// Starts a server, and uses every command of a client that asks it something.
fn use_all(server: &Path, client: &Path) {
    let scratch = tempfile::tempdir().unwrap();
    let mut serve = Command::new(server);
    serve
        .args(["serve", "--log-format", "json", "--data-dir"])
        .arg(scratch.path().join("data"))
        .args(ANY_PORTS);
    let mut daemon = Daemon::spawn(serve);
    let servers = ["counter", "semaphore"].map(|port| daemon.address(port).to_string());
    let at = |arguments: &[&str], is_semaphore: bool| {
        let command_line = match arguments.iter().position(|argument| *argument == "--") {
            None => arguments,
            Some(end) => &arguments[..end],
        };
        let mut command = Command::new(client);
        command.args(command_line).args(["--server", &servers[usize::from(is_semaphore)]]);
        if is_semaphore {
            command.arg("--semaphore");
        }
        command.args(&arguments[command_line.len()..]);
        let output = outcome(command);
        let said = stderr(&output);
        assert!(
            output.status.success(),
            "{} of {} at {}: {said}",
            arguments.join(" "),
            client.display(),
            server.display()
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let of_counters = |arguments: &[&str]| at(arguments, false);
    let of_semaphores = |arguments: &[&str]| at(arguments, true);
    let assigned = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.split_once(name)).expect(text).1;
        line.trim_matches(|other: char| !other.is_ascii_hexdigit()).to_owned()
    };

    of_counters(&["ping", "-c", "1"]);
    of_semaphores(&["declare", "gpu", "--capacity", "4", "--slots", "--label", "cards"]);
    assert!(of_semaphores(&["list"]).contains("gpu"));
    of_semaphores(&["resize", "gpu", "5"]);
    of_semaphores(&["pause", "gpu"]);
    of_semaphores(&["resume", "gpu"]);
    of_semaphores(&["slot", "gpu", "4", "--out"]);
    let held = of_semaphores(&["acquire", "gpu", "--lease", "60s", "--resources", "2"]);
    let [session, key, grant] =
        ["SIGNALBOX_SESSION=", "SIGNALBOX_KEY=", "SIGNALBOX_GRANT="].map(|name| assigned(&held, name));
    let of_session = ["--session", &session, "--key", &key];
    of_semaphores(&[&["renew"], &of_session[..]].concat());
    of_semaphores(&["verify", &grant]);
    for command in ["holders", "waiters", "status"] {
        of_semaphores(&[command, "gpu"]);
    }
    assert!(of_semaphores(&["holders", "gpu", "--json"]).contains(&grant));
    assert!(of_counters(&["sessions"]).contains(&session));
    of_semaphores(&["dump"]);
    of_counters(&["stats", "--json"]);
    of_semaphores(&[&["release"], &of_session[..]].concat());
    let ran = of_counters(&["run", "job", "--max", "1", "--lease", "9s", "--", "echo", "ran"]);
    assert_eq!(ran, "ran\n");
    let ran = of_counters(&["run", "job", "--max", "1", "--", "echo", "plain"]);
    assert_eq!(ran, "plain\n");
    assert_eq!(of_counters(&["get", "job"]), "0\n");
    of_counters(&["await-idle", "job", "--wait", "5s"]);
    let held = of_counters(&["acquire", "job", "--max", "3", "--lease", "60s"]);
    of_counters(&["revoke", "--grant", &assigned(&held, "SIGNALBOX_GRANT="), "--grace", "0"]);
    of_counters(&["await-idle", "job", "--wait", "5s"]);
    of_counters(&["delete", "job"]);
    of_semaphores(&["remove", "gpu"]);
    let exported = of_counters(&["data", "export"]);
    assert!(exported.contains(r#""kind":"end""#), "{exported}");
    of_counters(&["bench", "--count", "100", "--warmup", "0", "--json"]);
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.exit_status().success());
}

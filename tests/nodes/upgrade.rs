//! Upgrades: `docs/rolling-upgrade.sh` replaces the program of each node while clients hold grants with leases, and another
//! one is relayed.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use signalbox_client::Permit;
use signalbox_client::blocking::Client;

use crate::load::{self, Load, Location};
use crate::support::cluster::TestCluster;
use crate::support::daemon::{SIGNALBOX, outcome, stderr};
use crate::support::{GET, OK, Wire, eventually, frame, named};

const LEASE: Duration = Duration::from_secs(60);

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
        # A program that ends at once is no longer wanted.
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
    /// `None` if etcd is not installed.
    fn start() -> Option<Self> {
        let cluster = TestCluster::start_relaying(1, 0)?;
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
            symlink(SIGNALBOX, machine.join("signalbox")).unwrap();
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

    /// The script, with a command that installs this program.
    fn script(&self, program: &str, arguments: &[&str]) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/rolling-upgrade.sh");
        let mut command = Command::new(script);
        command.args(arguments).env("ON", self.folder.path().join("on"));
        command.env("INSTALL", format!("ln -sfn '{}' signalbox", program));
        command
    }

    /// Runs the script, and calls `act` again and again until it has ended. Returns its output.
    fn run(&self, arguments: &[&str], mut act: impl FnMut()) -> String {
        let mut command = self.script(SIGNALBOX, arguments);
        let mut script = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while script.try_wait().unwrap().is_none() {
            act();
            std::thread::sleep(Duration::from_millis(20));
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

/// The clients that hold grants during an upgrade, and the one that is relayed.
struct Clients {
    permits: Vec<Permit>,
    library: Client,
    run: Child,
    /// The address of the node that only relays.
    relay: SocketAddr,
    /// A connection to it; `None` if it was lost.
    relayed: Option<Wire>,
}

impl Clients {
    /// A client, and a command that runs until the end of the test.
    fn start(cluster: &mut TestCluster) -> Self {
        let library = cluster.client(|builder| builder.ttl(LEASE).unreachable_after(LEASE));
        let mut run = Command::new(SIGNALBOX);
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

    /// Checks that everything granted is held, by these clients and in the cluster, and that the relay serves its client.
    fn check(&mut self, cluster: &TestCluster) {
        eventually("the relay serves its client", || self.ask_relay());
        assert!(self.permits.iter().all(|permit| permit.is_held()));
        let used = cluster.run(["get", "jobs"]);
        assert_eq!(String::from_utf8(used.stdout).unwrap().trim(), self.permits.len().to_string());
        let refused = cluster.run(["acquire", "job", "--max", "1", "--lease", "5s"]);
        assert_eq!(refused.status.code(), Some(75), "{}", stderr(&refused));
    }

    /// Checks that the command has not noticed anything.
    fn end(mut self) {
        self.run.stdin.take().unwrap().write_all(b"done\n").unwrap();
        let mut rest = String::new();
        self.run.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "done\n");
        assert!(self.run.wait().unwrap().success());
    }
}

/// The node that only relays.
const RELAY: &str = "relay";

const ALL: [&str; 4] = ["node-0", "node-1", "node-2", RELAY];

#[test]
fn no_leased_grant_is_lost_in_a_rolling_upgrade() {
    let Some(mut machines) = Machines::start() else { return };
    let mut clients = Clients::start(&mut machines.cluster);
    let said = machines.run(&ALL, || clients.acquire());
    clients.check(&machines.cluster);
    let lines: Vec<_> = said.lines().filter(|line| line.ends_with(": upgrading")).collect();
    let order = ["node-1", "node-2", RELAY, "node-0"].map(|node| format!("{node}: upgrading"));
    assert_eq!(lines, order, "the leader last");
    assert!(said.lines().any(|line| line == "relay: relays"), "{said}");
    machines.run(&["--finalize", "node-0"], || clients.acquire());
    assert_eq!(machines.cluster.status(0)["finalize"], "done");
    clients.end();
}

/// Clients acquire and release at all nodes without a pause: they never hold more than there is, and lose nothing that has a
/// lease.
#[test]
fn under_load_an_upgrade_loses_no_leased_grant_and_gives_nothing_twice() {
    let Some(machines) = Machines::start() else { return };
    let load = Load::prepare(&machines.cluster, 16);
    let (findings, _) = load.run_while(Location::Here, 1, |_| machines.run(&ALL, || {}));
    findings.check_held(&[]);
    findings.check_nothing_was_lost();
    let client = machines.cluster.client(|builder| builder);
    findings.check_stored(&client);
    eventually("nothing is in use when no client holds it", || load::is_everything_released(&client));
}

#[test]
fn an_upgrade_ends_at_the_first_node_that_does_not_come_back() {
    let Some(mut machines) = Machines::start() else { return };
    let mut clients = Clients::start(&mut machines.cluster);
    let mut script = machines.script("/bin/false", &ALL);
    let failed = script.env("PATIENCE", "2").output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(stderr(&failed).contains("node-1 is not back after 2 s"), "{}", stderr(&failed));
    let status = machines.cluster.status(0);
    assert_eq!(
        (&status["leader"], status["nodes"].as_array().unwrap().len()),
        (&"node-0".into(), 3),
        "{status}"
    );
    let unknown = machines.script(SIGNALBOX, &["node-0", "node-7"]).output().unwrap();
    assert!(stderr(&unknown).contains("no node \"node-7\""), "{}", stderr(&unknown));
    clients.acquire();
    clients.check(&machines.cluster);
    clients.end();
}

//! A real keepalived, with the configuration of `docs/cluster.md`, on two nodes in network namespaces of their own.
//!
//! The test creates the namespaces and removes them afterwards, which needs root; without root, it prints that it is
//! skipped.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::daemon::{Daemon, SIGNALBOX, outcome, serve_within, stderr};
use crate::support::documents::example;
use crate::support::eventually;
use crate::support::namespaces::Machines;

const DOCUMENT: &str = include_str!("../../docs/cluster.md");
const PROGRAMS: [(&str, &str); 2] =
    [("/usr/sbin/keepalived", "keepalived"), ("/usr/bin/etcd", "etcd-server")];

const NODES: usize = 2;

/// Two nodes, each a namespace. Their processes are killed when this is dropped.
struct Network {
    processes: Vec<Child>,
    machines: Machines,
    folder: tempfile::TempDir,
}

impl Network {
    /// `None`, with a line on standard error, if something is missing.
    fn start() -> Option<Self> {
        let machines = Machines::start("vip", 2, &PROGRAMS)?;
        Some(Self { processes: Vec::new(), machines, folder: tempfile::tempdir().unwrap() })
    }

    /// Starts a program with a wrapper that gives it a namespace.
    fn spawn(&mut self, wrapper: [String; 4], program: &str, arguments: &[&str]) {
        let mut command = Command::new(&wrapper[0]);
        command.args(&wrapper[1..]).arg(program).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.processes.push(command.spawn().unwrap());
    }

    fn start_etcd(&mut self) {
        let (url, switch) = (format!("http://{}:2379", Machines::SWITCH_IP), self.machines.at_switch());
        let data = self.folder.path().join("etcd").display().to_string();
        let arguments = ["--data-dir", &data, "--listen-client-urls", &url, "--advertise-client-urls", &url];
        self.spawn(switch.map(str::to_owned), PROGRAMS[1].0, &arguments);
    }

    fn start_node(&self, number: usize) -> Daemon {
        let file = self.file(&format!("{number}.toml"));
        let text = format!(
            "bind_ip = [\"127.0.0.1\", \"10.0.0.{}\"]\n{}\n[cluster]\nnode = \"sb{number}\"\n\
             etcd = \"http://{}:2379\"\nrenew_deadline = 3\n",
            number + 1,
            example(DOCUMENT, "### keepalived", "toml"),
            Machines::SWITCH_IP
        );
        fs::write(&file, text).unwrap();
        Daemon::spawn(serve_within(
            &self.machines.get(number).wrapper(),
            ["--config".as_ref(), file.as_os_str()],
        ))
    }

    fn start_keepalived(&mut self, number: usize) {
        let text = example(DOCUMENT, "### keepalived", "keepalived");
        // The program of the test may be in a directory that only root can read, or that others can write to.
        let text = text.replace("/usr/bin/signalbox", SIGNALBOX);
        let text =
            text.replace("    enable_script_security\n    script_user nobody\n", "    script_user root\n");
        assert!(text.contains(SIGNALBOX) && text.contains("script_user root"), "{text}");
        let file = self.file(&format!("{number}.conf"));
        fs::write(&file, text).unwrap();
        let [file, pid, child_pid] =
            [file, self.file(&format!("{number}.pid")), self.file(&format!("{number}-vrrp.pid"))]
                .map(|path| path.display().to_string());
        let node = self.machines.get(number).wrapper().map(str::to_owned);
        self.spawn(node, PROGRAMS[0].0, &["--vrrp", "-n", "-l", "-f", &file, "-p", &pid, "-r", &child_pid]);
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a client at the switch, which knows the virtual address only.
    fn run(&self, arguments: &[&str]) -> Output {
        let [program, options @ ..] = self.machines.at_switch();
        let mut command = Command::new(program);
        command.args(options).arg(SIGNALBOX).args(arguments);
        outcome_with_server(command)
    }

    /// Whether a node has the virtual address.
    fn has_address(&self, number: usize) -> bool {
        self.machines.get(number).has_address("10.0.0.10")
    }
}

fn outcome_with_server(mut command: Command) -> Output {
    command.env("SIGNALBOX_SERVER", "10.0.0.10").args(["--timeout", "1"]);
    outcome(command)
}

impl Drop for Network {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // keepalived ends its child. An error means that it has ended already.
            let _ = kill(Pid::from_raw(process.id().try_into().unwrap()), Signal::SIGTERM);
            let _ = process.wait();
        }
    }
}

#[test]
fn keepalived_as_documented_gives_the_address_to_the_node_that_leads_and_answers() {
    let Some(mut network) = Network::start() else { return };
    network.start_etcd();
    let nodes: Vec<_> = (0..NODES).map(|number| network.start_node(number)).collect();
    (0..NODES).for_each(|number| network.start_keepalived(number));

    let mut acquired = None;
    eventually("the leader answers at the address", || {
        let output = network.run(&["acquire", "job", "--max", "1", "--lease", "1m", "--json"]);
        acquired = output.status.success().then_some(output);
        acquired.is_some()
    });
    let leader = (0..NODES).find(|number| network.has_address(*number)).expect("a node has the address");
    let other = NODES - 1 - leader;
    assert!(!network.has_address(other));
    let holders = |network: &Network| network.run(&["status", "--holders", "job", "--json"]);
    let before = holders(&network);
    assert!(before.status.success() && !before.stdout.is_empty(), "{}", stderr(&before));

    // The kernel of a frozen leader still accepts connections.
    nodes[leader].signal(Signal::SIGSTOP);
    let mut after = None;
    eventually("the next leader answers at the address", || {
        let output = holders(&network);
        after = output.status.success().then_some(output.stdout);
        after.is_some()
    });
    assert!(network.has_address(other) && !network.has_address(leader));
    let grant = |text: &[u8]| {
        let holder: serde_json::Value = serde_json::from_slice(text).unwrap();
        holder["grant"].clone()
    };
    assert!(grant(&before.stdout).is_string());
    assert_eq!(grant(&before.stdout), grant(&after.unwrap()), "the session and its grant are kept");
}

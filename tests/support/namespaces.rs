//! Machines on one network: each is a network namespace, and a bridge in another one connects them.
//!
//! Creating them needs root.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, setns};

use super::daemon::{is_root, outcome, works};
use super::skipped;

/// Network namespaces, which are removed when this is dropped.
pub struct Machines {
    switch: String,
    machines: Vec<Machine>,
}

/// A machine, and its address in the network.
#[derive(Clone)]
pub struct Machine {
    namespace: String,
    pub ip: Ipv4Addr,
}

impl Machines {
    /// The address of the switch, where programs can run too.
    pub const SWITCH_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);

    /// Creates this number of machines, from 10.0.0.1 on; `None`, with a line on standard error, if a program is not
    /// installed or namespaces cannot be created. If `SIGNALBOX_REQUIRE_PEERS` is set, a missing program is a failure.
    /// `name` is part of the names of the namespaces.
    pub fn start(name: &str, machines: u8, programs: &[(&str, &str)]) -> Option<Self> {
        for (program, package) in programs {
            if !Path::new(program).exists() {
                let is_required = std::env::var_os("SIGNALBOX_REQUIRE_PEERS").is_some();
                assert!(!is_required, "{program} is missing: apt-get install {package}");
                skipped(&format!("{program} is not installed (apt-get install {package})"));
                return None;
            }
        }
        let namespace = |end: &str| format!("signalbox-{name}-{}-{end}", std::process::id());
        let machine = |number: u8| Machine {
            namespace: namespace(&number.to_string()),
            ip: Ipv4Addr::new(10, 0, 0, number),
        };
        let network = Self { switch: namespace("switch"), machines: (1..=machines).map(machine).collect() };
        if !is_root() || !network.set_up() {
            skipped("network namespaces cannot be created here; that needs root and iproute2");
            return None;
        }
        Some(network)
    }

    fn set_up(&self) -> bool {
        let switch = self.switch.as_str();
        let ip = |arguments: &[&str]| works("ip", arguments);
        let has_switch = ip(&["netns", "add", switch])
            && ip(&["-n", switch, "link", "set", "lo", "up"])
            && ip(&["-n", switch, "link", "add", "br0", "type", "bridge"])
            && ip(&["-n", switch, "addr", "add", &format!("{}/24", Self::SWITCH_IP), "dev", "br0"])
            && ip(&["-n", switch, "link", "set", "br0", "up"]);
        has_switch
            && self.machines.iter().zip(1..).all(|(Machine { namespace, ip: address }, number)| {
                let port = format!("port{number}");
                ip(&["netns", "add", namespace])
                    && ip(&["-n", namespace, "link", "set", "lo", "up"])
                    && ip(&[
                        "-n", switch, "link", "add", &port, "type", "veth", "peer", "eth0", "netns",
                        namespace,
                    ])
                    && ip(&["-n", switch, "link", "set", &port, "master", "br0", "up"])
                    && ip(&["-n", namespace, "addr", "add", &format!("{address}/24"), "dev", "eth0"])
                    && ip(&["-n", namespace, "link", "set", "eth0", "up"])
            })
    }

    pub fn get(&self, number: usize) -> &Machine {
        &self.machines[number]
    }

    /// The command that runs a program at the switch.
    pub fn at_switch(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.switch]
    }

    /// Runs `act` at the switch, like [`Machine::run`].
    pub fn run_at_switch<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        within(&self.switch, act)
    }

    /// Drops all packets from the first machine of each pair to the second one, without notice to either.
    pub fn cut(&self, links: &[(usize, usize)]) {
        self.change(links, &format!("replace lladdr {UNUSED_LLADDR} nud permanent"));
    }

    /// Undoes [`Self::cut`].
    pub fn mend(&self, links: &[(usize, usize)]) {
        self.change(links, "del");
    }

    /// Changes the neighbour entries by which machines reach others.
    fn change(&self, links: &[(usize, usize)], action: &str) {
        for (from, machine) in self.machines.iter().enumerate() {
            let others = links.iter().filter(|link| link.0 == from).map(|link| self.machines[link.1].ip);
            let commands: String =
                others.map(|other| format!("neigh {action} to {other} dev eth0\n")).collect();
            if !commands.is_empty() {
                machine.configure(&commands);
            }
        }
    }
}

/// A hardware address that no machine has.
const UNUSED_LLADDR: &str = "02:00:00:00:00:00";

impl Machine {
    /// The command that runs a program here; it replaces itself with the program.
    pub fn wrapper(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.namespace]
    }

    /// Whether the machine has this additional address.
    pub fn has_address(&self, address: &str) -> bool {
        let mut command = Command::new("ip");
        command.args(["-n", &self.namespace, "-brief", "address", "show", "dev", "eth0"]);
        let shown = String::from_utf8(outcome(command).stdout).unwrap();
        shown.contains(&format!(" {address}/24"))
    }

    /// Runs `act` here, in a thread of its own. The sockets, threads and processes that it creates stay here.
    pub fn run<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        within(&self.namespace, act)
    }

    /// Executes commands of `ip`.
    fn configure(&self, commands: &str) {
        let mut process = Command::new("ip")
            .args(["-n", &self.namespace, "-batch", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        process.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{commands}{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for namespace in self.machines.iter().map(|machine| &machine.namespace).chain([&self.switch]) {
            works("ip", &["netns", "del", namespace]);
        }
    }
}

/// Runs `act` in a network namespace. A socket stays in the namespace in which it was created.
pub fn within<T: Send>(namespace: &str, act: impl FnOnce() -> T + Send) -> T {
    let namespace = File::open(format!("/run/netns/{namespace}")).unwrap();
    // Only this thread changes its namespace, and it ends with `act`.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
            act()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

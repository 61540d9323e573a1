//! The real program as the nodes of a cluster, on a real etcd.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use signalbox_client::Builder;
use signalbox_client::blocking::Client;

use super::daemon::{Daemon, SIGNALBOX, outcome, serve_within, stderr};
use super::etcd::RealEtcd;
use super::namespaces::Machine;
use super::ports::free_ports;
use super::{OK, Wire, eventually, is_stopped};

/// The shortest renew deadline, so that failovers are quick.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(2);

/// Nodes on an etcd. All processes are killed when this is dropped.
pub struct TestCluster {
    nodes: Vec<TestNode>,
    pub etcd: RealEtcd,
    folder: tempfile::TempDir,
    /// Whether nodes relay clients to the leader.
    relays: bool,
    /// The host that the nodes advertise to clients.
    advertise: Option<&'static str>,
}

/// A node: its ports and its file stay the same when its process is started again.
pub struct TestNode {
    pub name: String,
    pub counters: SocketAddr,
    pub semaphores: SocketAddr,
    pub http: SocketAddr,
    /// The port for relays while it leads.
    pub relays: SocketAddr,
    pub file: PathBuf,
    pub daemon: Option<Daemon>,
    machine: Option<Machine>,
}

impl TestCluster {
    /// Starts an etcd with this number of members, and this number of nodes; `None` if etcd is not installed.
    pub fn start(members: usize, nodes: usize) -> Option<Self> {
        Self::start_all(members, nodes, false, None)
    }

    /// Like [`Self::start`], with nodes that relay clients to the leader.
    pub fn start_relaying(members: usize, nodes: usize) -> Option<Self> {
        Self::start_advertising(members, nodes, None)
    }

    /// Like [`Self::start_relaying`], with nodes that advertise this host to clients.
    pub fn start_advertising(
        members: usize,
        nodes: usize,
        host: impl Into<Option<&'static str>>,
    ) -> Option<Self> {
        let cluster = Self::start_all(members, nodes, true, host.into())?;
        let accepts = |node: &TestNode| std::net::TcpStream::connect(node.counters).is_ok();
        eventually("every node accepts clients", || cluster.nodes.iter().all(accepts));
        Some(cluster)
    }

    fn start_all(
        members: usize,
        nodes: usize,
        relays: bool,
        advertise: Option<&'static str>,
    ) -> Option<Self> {
        let etcd = RealEtcd::start(members)?;
        let mut cluster =
            Self { nodes: Vec::new(), etcd, folder: tempfile::tempdir().unwrap(), relays, advertise };
        for number in 0..nodes {
            cluster.add(&format!("node-{number}"));
        }
        for number in 0..nodes {
            cluster.start_node(number);
        }
        Some(cluster)
    }

    /// Starts a node on each of these machines, from a machine that reaches them. Administrators are at these addresses.
    /// The nodes relay clients to the leader.
    pub fn start_on(machines: &[Machine], administrators: &str, etcd: RealEtcd) -> Self {
        let mut cluster = Self {
            nodes: Vec::new(),
            etcd,
            folder: tempfile::tempdir().unwrap(),
            relays: true,
            advertise: None,
        };
        for (number, machine) in machines.iter().enumerate() {
            cluster.add_at(
                &format!("node-{number}"),
                machine.ip,
                [11215, 11216, 11217, 11218],
                administrators,
            );
            cluster.nodes[number].machine = Some(machine.clone());
            cluster.start_node(number);
        }
        cluster
    }

    /// Adds a node, which is not started.
    pub fn add(&mut self, name: &str) -> usize {
        self.add_at(name, Ipv4Addr::LOCALHOST, free_ports(), "")
    }

    fn add_at(
        &mut self,
        name: &str,
        ip: Ipv4Addr,
        [counter, semaphore, http, relay]: [u16; 4],
        administrators: &str,
    ) -> usize {
        let number = self.nodes.len();
        let file = self.folder.path().join(format!("{number}.toml"));
        let mut text = format!(
            "bind_ip = \"{ip}\"\nadmin_from = \"{administrators}\"\n[counter]\nport = {counter}\n[semaphore]\n\
             port = {semaphore}\n[http]\nenable = true\nbind_ip = \"{ip}\"\nport = {http}\n[sysv]\n\
             durable_keys = \"1-100\"\n[cluster]\nnode = \"{name}\"\n\
             renew_deadline = {}\nhold = 60\n",
            RENEW_DEADLINE.as_secs()
        );
        writeln!(text, "etcd = \"{}\"", self.etcd.endpoints().join(" ")).unwrap();
        if self.relays {
            writeln!(text, "bind = \"{ip}:{relay}\"").unwrap();
        }
        if let Some(host) = self.advertise {
            writeln!(text, "advertise = \"{host}\"").unwrap();
        }
        fs::write(&file, text).unwrap();
        let address = |port| SocketAddr::from((ip, port));
        let (counters, semaphores) = (address(counter), address(semaphore));
        self.nodes.push(TestNode {
            name: name.to_owned(),
            counters,
            semaphores,
            http: address(http),
            relays: address(relay),
            file,
            daemon: None,
            machine: None,
        });
        number
    }

    /// Starts the process of a node.
    pub fn start_node(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let wrapper = node.machine.as_ref().map(Machine::wrapper);
        let wrapper = wrapper.as_ref().map_or(&[][..], |wrapper| wrapper);
        let arguments = [OsStr::new("--config"), node.file.as_os_str()];
        node.daemon = Some(Daemon::spawn(serve_within(wrapper, arguments)));
    }

    /// How many nodes there are, started or not.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub fn node(&mut self, number: usize) -> &mut TestNode {
        &mut self.nodes[number]
    }

    pub fn daemon(&mut self, number: usize) -> &mut Daemon {
        self.nodes[number].daemon.as_mut().expect("the node was started")
    }

    /// Changes the file of a node, before it is started or reads it again.
    pub fn configure(&self, number: usize, change: impl FnOnce(String) -> String) {
        let file = &self.nodes[number].file;
        fs::write(file, change(fs::read_to_string(file).unwrap())).unwrap();
    }

    /// Stops all threads of a node until SIGCONT.
    pub fn freeze(&mut self, number: usize) {
        self.daemon(number).signal(Signal::SIGSTOP);
        let pid = self.daemon(number).pid().as_raw() as u32;
        eventually("every thread is stopped", || is_stopped(pid));
    }

    /// Kills a node, and waits until its process has ended.
    pub fn kill(&mut self, number: usize) {
        self.daemon(number).signal(Signal::SIGKILL);
        self.daemon(number).exit_status();
    }

    /// Waits until a node has joined, and follows a leader.
    #[track_caller]
    pub fn await_standby(&mut self, number: usize) {
        self.daemon(number).logged_message("standby of node");
    }

    /// The node that serves clients; waits until there is one.
    #[track_caller]
    pub fn leader(&self) -> usize {
        self.leader_among(&(0..self.nodes.len()).collect::<Vec<_>>())
    }

    /// The node among these that serves clients; waits until there is one.
    #[track_caller]
    pub fn leader_among(&self, numbers: &[usize]) -> usize {
        let mut found = None;
        eventually("a node leads", || {
            // Where nodes relay clients, all of them accept clients, and the leader alone accepts relays.
            let port = |node: &TestNode| if self.relays { node.relays } else { node.counters };
            let accepts = |number: &usize| std::net::TcpStream::connect(port(&self.nodes[*number])).is_ok();
            found = numbers.iter().copied().find(accepts);
            found.is_some()
        });
        found.unwrap()
    }

    /// All nodes but one.
    pub fn others(&self, number: usize) -> Vec<usize> {
        (0..self.nodes.len()).filter(|other| *other != number).collect()
    }

    /// The addresses of all nodes' counters, for `--server`.
    pub fn servers(&self) -> String {
        self.nodes.iter().map(|node| node.counters.to_string()).collect::<Vec<_>>().join(",")
    }

    /// Where each node serves HTTP.
    pub fn http_addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.http).collect()
    }

    /// A client of all nodes.
    pub fn client(&self, configure: impl FnOnce(Builder) -> Builder) -> Client {
        let mut addresses = self.nodes.iter().map(|node| node.counters.to_string().parse().unwrap());
        let first = signalbox_client::Client::builder(addresses.next().unwrap());
        Client::connect_with(configure(addresses.fold(first, Builder::address))).unwrap()
    }

    /// A client that knows one node.
    pub fn client_of(&self, number: usize, configure: impl FnOnce(Builder) -> Builder) -> Client {
        let address = self.nodes[number].counters.to_string().parse().unwrap();
        Client::connect_with(configure(signalbox_client::Client::builder(address))).unwrap()
    }

    /// A connection to a node.
    pub fn wire(&self, number: usize) -> Wire {
        Wire::connect(self.nodes[number].counters)
    }

    /// A connection to a node, on which a first request has succeeded.
    pub fn served(&self, number: usize) -> Wire {
        let mut wire = self.wire(number);
        assert_eq!(wire.acquire(b"warm-up", 1, 1000).status, OK);
        wire
    }

    /// The status of the cluster, as `signalbox cluster status` shows it with the file of a node.
    pub fn status(&self, number: usize) -> Value {
        let status = self.administer(number, &["status", "--json"]);
        serde_json::from_slice(&status.stdout).unwrap_or_else(|_| panic!("{}", stderr(&status)))
    }

    /// Runs a client command against all nodes.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Output {
        outcome(self.command(arguments))
    }

    /// A client command against all nodes.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(SIGNALBOX);
        command.args(arguments).env("SIGNALBOX_SERVER", self.servers());
        command
    }

    /// Runs `signalbox cluster` with the file of a node.
    pub fn administer(&self, number: usize, arguments: &[&str]) -> Output {
        outcome(self.administration(number, arguments))
    }

    /// The command that [`Self::administer`] runs.
    pub fn administration(&self, number: usize, arguments: &[&str]) -> Command {
        let mut command = Command::new(SIGNALBOX);
        command.arg("cluster").args(arguments).arg("--config").arg(&self.nodes[number].file);
        command.env_remove("INVOCATION_ID").env_remove("SERVICE_RESULT").env_remove("EXIT_CODE");
        command
    }
}

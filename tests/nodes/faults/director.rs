//! The director: it draws faults, lets them happen and end, and starts processes again as systemd does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::Signal;

use super::{CLIENT_MACHINES, MACHINES, MEMBERS, NODES, after, machine_of_client, machine_of_member};
use crate::load::clients::Progress;
use crate::load::verdict::Outage;
use crate::support::cluster::TestCluster;
use crate::support::namespaces::Machines;

/// The time after which systemd starts a node again.
const RESTART: Duration = Duration::from_secs(1);

/// The time within which every worker is served after faults: after a takeover, the expiry of sessions and retries of
/// connections, on a machine with other work. What a plain client held whose relay was cut off from the leader becomes free
/// when TCP gives up.
const RECOVERY: Duration = Duration::from_secs(60);

/// A direction of a connection between machines.
type Link = (usize, usize);

#[derive(Debug)]
enum Fault {
    KillNode(usize),
    FreezeNode(usize),
    KillMember(usize),
    FreezeMember(usize),
    Cut { what: String, links: Vec<Link>, of_member: bool },
}

impl Fault {
    /// Whether it affects a member of etcd, of which one of three may fail at a time.
    fn is_of_member(&self) -> bool {
        match self {
            Self::KillNode(_) | Self::FreezeNode(_) => false,
            Self::KillMember(_) | Self::FreezeMember(_) => true,
            Self::Cut { of_member, .. } => *of_member,
        }
    }
}

/// Which packets between two groups of machines are lost.
#[derive(Clone, Copy, Debug)]
enum Direction {
    To,
    From,
    Both,
}

pub struct Director<'a> {
    machines: &'a Machines,
    cluster: TestCluster,
    random: Rng,
    began: Instant,
    /// The links that are cut, with the number of faults that cut them.
    cut: BTreeMap<Link, usize>,
    /// When nodes were killed or frozen, or what they send to clients was lost.
    outages: Vec<Outage>,
    /// When a node that has ended is started again.
    restarts: [Option<Instant>; NODES],
    /// The logs of the nodes' processes that have ended.
    logs: [String; NODES],
}

impl<'a> Director<'a> {
    pub fn new(machines: &'a Machines, cluster: TestCluster, seed: u64) -> Self {
        Self {
            machines,
            cluster,
            random: Rng::with_seed(seed),
            began: Instant::now(),
            cut: BTreeMap::new(),
            outages: Vec::new(),
            restarts: [None; NODES],
            logs: Default::default(),
        }
    }

    pub fn cluster(&self) -> &TestCluster {
        &self.cluster
    }

    pub fn outages(&self) -> &[Outage] {
        &self.outages
    }

    /// To be called before the fault that causes it.
    fn begin_outage(&mut self, node: usize, machine: Option<usize>) {
        self.outages.push(Outage { node, machine, began: Instant::now(), ended: None });
    }

    /// To be called after the fault is over.
    fn end_outages(&mut self, node: usize, machine: Option<usize>) {
        let is_over =
            |outage: &&mut Outage| (outage.node, outage.machine, outage.ended) == (node, machine, None);
        self.outages.iter_mut().filter(is_over).for_each(|outage| outage.ended = Some(Instant::now()));
    }

    /// Lets faults happen for this time.
    pub fn act(&mut self, duration: Duration, progress: &Progress) {
        let end = Instant::now() + duration;
        let (mut faults, mut slowest) = (0, Duration::ZERO);
        self.recover(progress);
        while Instant::now() < end {
            let calm = self.random.u64(..1_000);
            self.restart_until(Instant::now() + Duration::from_millis(calm));
            faults += self.run_faults();
            slowest = slowest.max(self.recover(progress));
        }
        println!("{} {faults} faults; all workers were served within {slowest:?}", after(self.began));
    }

    /// Lets one or two faults happen, until they are over. Returns their number.
    fn run_faults(&mut self) -> usize {
        let first = self.draw();
        let mut events = Vec::new();
        let now = Instant::now();
        let span = |random: &mut Rng, from_ms| Duration::from_millis(random.u64(from_ms..from_ms + 5_000));
        let first_ends = now + span(&mut self.random, 1_000);
        self.begin(&first);
        if self.random.bool() {
            let second = loop {
                let second = self.draw();
                if !(first.is_of_member() && second.is_of_member()) {
                    break second;
                }
            };
            let begins = now + Duration::from_millis(self.random.u64(..2_000));
            let ends = begins + span(&mut self.random, 1_000);
            self.restart_until(begins);
            self.begin(&second);
            events.push((ends, second));
        }
        events.push((first_ends, first));
        events.sort_by_key(|(ends, _)| *ends);
        let faults = events.len();
        for (ends, fault) in events {
            self.restart_until(ends);
            self.end(fault);
        }
        faults
    }

    /// A fault, mostly of the node that leads.
    fn draw(&mut self) -> Fault {
        let node = match self.random.u8(..3) {
            0 => self.random.usize(..NODES),
            _ => self.leader().unwrap_or_else(|| self.random.usize(..NODES)),
        };
        let member = self.random.usize(..MEMBERS);
        let members: Vec<_> = (0..MEMBERS).map(machine_of_member).collect();
        match self.random.u8(..17) {
            0 | 1 => Fault::KillNode(node),
            2..5 => Fault::FreezeNode(node),
            5 => Fault::KillMember(member),
            6 => Fault::FreezeMember(member),
            7 | 8 => self.cut_between(&format!("node {node} and etcd"), &[node], &members, false),
            9 => {
                let of = [machine_of_member(member)];
                self.cut_between(&format!("node {node} and member {member}"), &[node], &of, false)
            }
            10 | 11 => {
                let clients: Vec<_> = match self.random.usize(..=CLIENT_MACHINES) {
                    CLIENT_MACHINES => (0..CLIENT_MACHINES).map(machine_of_client).collect(),
                    one => vec![machine_of_client(one)],
                };
                self.cut_between(&format!("node {node} and clients {clients:?}"), &[node], &clients, false)
            }
            12..15 => {
                let other = (node + self.random.usize(1..NODES)) % NODES;
                self.cut_between(&format!("node {node} and node {other}"), &[node], &[other], false)
            }
            15 => {
                let others: Vec<_> =
                    members.into_iter().filter(|m| *m != machine_of_member(member)).collect();
                let of = [machine_of_member(member)];
                self.cut_between(&format!("member {member} and the others"), &of, &others, true)
            }
            _ => {
                let cut_off: Vec<_> = match self.random.bool() {
                    true => vec![node, machine_of_member(node)],
                    false => (0..MACHINES).collect(),
                };
                let is_inside = |link: &Link| cut_off.contains(&link.0) || cut_off.contains(&link.1);
                let is_machine = cut_off.len() < MACHINES;
                let links = (0..MACHINES).flat_map(|from| (0..MACHINES).map(move |to| (from, to)));
                let links = links.filter(|link| link.0 != link.1 && is_inside(link));
                // A node and its member stay connected, as on one machine.
                let links = links
                    .filter(|link| !(is_machine && cut_off.contains(&link.0) && cut_off.contains(&link.1)));
                let what = format!("machines {cut_off:?} and all others");
                Fault::Cut { what, links: links.collect(), of_member: true }
            }
        }
    }

    fn cut_between(&mut self, what: &str, these: &[usize], others: &[usize], of_member: bool) -> Fault {
        let direction = match self.random.u8(..4) {
            0 => Direction::To,
            1 => Direction::From,
            _ => Direction::Both,
        };
        let pairs = these.iter().flat_map(|this| others.iter().map(move |other| (*this, *other)));
        let links = pairs.flat_map(|(this, other)| match direction {
            Direction::To => vec![(this, other)],
            Direction::From => vec![(other, this)],
            Direction::Both => vec![(this, other), (other, this)],
        });
        Fault::Cut { what: format!("{what}, {direction:?}"), links: links.collect(), of_member }
    }

    fn begin(&mut self, fault: &Fault) {
        let shown = match fault {
            Fault::Cut { what, .. } => format!("cut between {what}"),
            other => format!("{other:?}"),
        };
        println!("{} {shown}", after(self.began));
        match fault {
            Fault::KillNode(node) => {
                self.begin_outage(*node, None);
                self.signal(*node, Signal::SIGKILL);
            }
            Fault::FreezeNode(node) => {
                self.begin_outage(*node, None);
                self.signal(*node, Signal::SIGSTOP);
            }
            Fault::KillMember(member) => self.cluster.etcd.kill(*member),
            Fault::FreezeMember(member) => self.cluster.etcd.freeze(*member),
            Fault::Cut { links, .. } => {
                let fresh: Vec<_> =
                    links.iter().copied().filter(|link| !self.cut.contains_key(link)).collect();
                links.iter().for_each(|link| *self.cut.entry(*link).or_default() += 1);
                fresh.iter().for_each(|&(from, to)| self.begin_outage(from, Some(to)));
                self.machines.cut(&fresh);
            }
        }
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::KillNode(_) => {}
            Fault::FreezeNode(node) => {
                self.signal(node, Signal::SIGCONT);
                self.end_outages(node, None);
            }
            Fault::KillMember(member) => self.cluster.etcd.spawn_again(member),
            Fault::FreezeMember(member) => self.cluster.etcd.thaw(member),
            Fault::Cut { links, .. } => {
                links.iter().for_each(|link| *self.cut.get_mut(link).unwrap() -= 1);
                let mended: Vec<_> =
                    self.cut.extract_if(.., |_, faults| *faults == 0).map(|(link, _)| link).collect();
                self.machines.mend(&mended);
                mended.iter().for_each(|&(from, to)| self.end_outages(from, Some(to)));
            }
        }
    }

    /// A node may have ended, and not been started again yet.
    fn signal(&mut self, node: usize, signal: Signal) {
        if self.cluster.daemon(node).is_running() {
            self.cluster.daemon(node).signal(signal);
        }
    }

    /// A node that accepts relays, if there is one.
    fn leader(&mut self) -> Option<usize> {
        let accepts = |node: &usize| {
            let address = self.cluster.node(*node).relays;
            TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok()
        };
        let nodes: Vec<_> = (0..NODES).filter(accepts).collect();
        // A frozen one accepts connections too.
        (!nodes.is_empty()).then(|| nodes[self.random.usize(..nodes.len())])
    }

    /// Waits until every worker is granted a request that it makes from now on. Returns the time that this takes.
    fn recover(&mut self, progress: &Progress) -> Duration {
        let began = Instant::now();
        loop {
            self.restart_until(Instant::now() + Duration::from_millis(20));
            let waiting = progress.waiting_since(began);
            if waiting.is_empty() {
                return began.elapsed();
            }
            if began.elapsed() > RECOVERY {
                self.keep_logs();
                panic!("{} workers {waiting:?} were not served for {RECOVERY:?}", after(self.began));
            }
        }
    }

    /// Restarts nodes that have ended, until a moment.
    fn restart_until(&mut self, until: Instant) {
        loop {
            for node in 0..NODES {
                self.restart_if_ended(node);
            }
            let now = Instant::now();
            if now >= until {
                return;
            }
            sleep((until - now).min(Duration::from_millis(10)));
        }
    }

    fn restart_if_ended(&mut self, node: usize) {
        match self.restarts[node] {
            None if !self.cluster.daemon(node).is_running() => {
                let status = self.cluster.daemon(node).exit_status();
                let said = self.cluster.daemon(node).said();
                // By the director, or by itself when it lost the leadership.
                assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "node {node}: {status}; {said}");
                writeln!(self.logs[node], "{said}\n--- ended {}", after(self.began)).unwrap();
                self.restarts[node] = Some(Instant::now() + RESTART);
            }
            Some(moment) if moment <= Instant::now() => {
                self.cluster.start_node(node);
                self.restarts[node] = None;
                self.end_outages(node, None);
            }
            _ => {}
        }
    }

    /// Waits until a node leads, and all run.
    pub fn settle(&mut self) {
        self.restart_until(Instant::now() + RESTART);
        self.cluster.leader();
    }

    /// Waits until a condition holds, while nodes that end are started again.
    pub fn wait_until(&mut self, what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + RECOVERY;
        while !holds() {
            assert!(Instant::now() < deadline, "never came true: {what}");
            self.restart_until(Instant::now() + Duration::from_millis(20));
        }
    }

    /// Writes the logs of the nodes to files.
    pub fn keep_logs(&mut self) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        for node in 0..NODES {
            let said = self.cluster.daemon(node).said();
            let file = folder.join(format!("faults-node-{node}.log"));
            std::fs::write(&file, format!("{}{said}\n", self.logs[node])).unwrap();
        }
        println!("the logs of the nodes are {}", folder.join("faults-node-*.log").display());
    }
}

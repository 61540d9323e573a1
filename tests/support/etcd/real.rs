//! A real etcd, of one or several members on loopback.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signalbox_cluster::coordinator::{CallError, Coordinator, Range};
use signalbox_cluster::etcd::{EtcdClient, Settings, Tls};

use crate::support::namespaces::Machine;
use crate::support::ports::free_ports;
use crate::support::{PATIENCE, eventually, is_stopped, skipped};

const PROGRAM: &str = "/usr/bin/etcd";
const CONTROL: &str = "/usr/bin/etcdctl";

/// The programs, and the packages of Debian that contain them.
pub const PACKAGES: [(&str, &str); 2] = [(PROGRAM, "etcd-server"), (CONTROL, "etcd-client")];

/// Certificates, made for one test.
pub struct Certificates {
    pub ca: PathBuf,
    /// The certificate and the key of all members.
    pub server: (PathBuf, PathBuf),
    /// The certificate and the key of a client.
    pub client: (PathBuf, PathBuf),
}

/// A running etcd, which is killed when it is dropped.
pub struct RealEtcd {
    members: Vec<Member>,
    certificates: Option<Certificates>,
    options: Vec<String>,
    folder: tempfile::TempDir,
}

struct Member {
    name: String,
    ip: Ipv4Addr,
    /// The command that runs it on its machine; empty if it runs on this one.
    wrapper: Vec<String>,
    client_port: u16,
    peer_port: u16,
    process: Option<Child>,
}

impl RealEtcd {
    /// Starts the program of Debian's package etcd-server; `None`, with a line on standard error, if it is not installed.
    /// If `SIGNALBOX_REQUIRE_PEERS` is set, as in CI, that is a failure.
    pub fn start(members: usize) -> Option<Self> {
        Self::start_with(members, None, &[])
    }

    /// Like [`Self::start`], with TLS for clients and further options of etcd.
    pub fn start_with(
        members: usize,
        certificates: Option<fn(&Path) -> Certificates>,
        options: &[&str],
    ) -> Option<Self> {
        for (program, package) in PACKAGES {
            if !Path::new(program).exists() {
                assert!(
                    std::env::var_os("SIGNALBOX_REQUIRE_PEERS").is_none(),
                    "{program} is missing: apt-get install {package}"
                );
                skipped(&format!("{program} is not installed (apt-get install {package})"));
                return None;
            }
        }
        // Another process may bind the ports before etcd does; then other ports are tried.
        for _ in 0..10 {
            let folder = scratch();
            let certificates = certificates.map(|make| make(folder.path()));
            let members = (0..members).map(Member::new).collect();
            let options = options.iter().map(|option| (*option).to_owned()).collect();
            let mut etcd = Self { members, certificates, options, folder };
            (0..etcd.members.len()).for_each(|member| etcd.spawn(member, "new"));
            if etcd.is_ready() {
                return Some(etcd);
            }
        }
        panic!("etcd did not start ten times");
    }

    /// Starts a member on each of these machines, from a machine that reaches them, with further options of etcd. Call
    /// [`Machines::start`](crate::support::namespaces::Machines::start) with [`PACKAGES`] before.
    pub fn start_on(machines: &[Machine], options: &[&str]) -> Self {
        let members = machines.iter().zip(0..).map(|(machine, number)| Member::on(machine, number)).collect();
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut etcd = Self { members, certificates: None, options, folder: scratch() };
        (0..etcd.members.len()).for_each(|member| etcd.spawn(member, "new"));
        assert!(etcd.is_ready(), "etcd does not start");
        etcd
    }

    /// The URLs of all members.
    pub fn endpoints(&self) -> Vec<String> {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        self.members.iter().map(|member| format!("{scheme}://{}:{}", member.ip, member.client_port)).collect()
    }

    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().unwrap()
    }

    /// The settings of a client, with patience for a slow machine.
    pub fn settings(&self) -> Settings {
        let tls = self.certificates.as_ref().map(|certificates| Tls {
            ca: certificates.ca.clone(),
            identity: Some(certificates.client.clone()),
        });
        Settings { endpoints: self.endpoints(), tls, user: None, request_timeout: Duration::from_secs(5) }
    }

    pub fn client(&self) -> EtcdClient {
        EtcdClient::new(&self.settings()).unwrap()
    }

    /// Suspends a member, and waits until all its threads are stopped: the signal may take effect after the call.
    pub fn freeze(&self, member: usize) {
        self.signal(member, Signal::SIGSTOP);
        let pid = self.members[member].process.as_ref().unwrap().id();
        eventually("every thread is stopped", || is_stopped(pid));
    }

    pub fn thaw(&self, member: usize) {
        self.signal(member, Signal::SIGCONT);
    }

    fn signal(&self, member: usize, signal: Signal) {
        let process = self.members[member].process.as_ref().unwrap();
        kill(Pid::from_raw(process.id().try_into().unwrap()), signal).unwrap();
    }

    /// Kills a member at once.
    pub fn kill(&mut self, member: usize) {
        self.members[member].kill();
    }

    /// Starts a killed member again, with its data, and does not wait until it answers.
    pub fn spawn_again(&mut self, member: usize) {
        self.spawn(member, "existing");
    }

    /// Starts a killed member again, with its data.
    pub fn start_again(&mut self, member: usize) {
        self.spawn_again(member);
        assert!(self.is_ready(), "etcd does not start again");
    }

    /// The member that leads etcd.
    pub fn leader(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let members = self.client().status();
            let leads = |status: &signalbox_cluster::etcd::MemberStatus| status.is_leader;
            let leader = members.iter().position(|member| member.status.as_ref().is_ok_and(leads));
            if let Some(leader) = leader {
                return leader;
            }
            assert!(Instant::now() < deadline, "etcd has no leader: {members:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Adds a learner, and returns when it answers.
    pub fn add_learner(&mut self) {
        let learner = Member::new(self.members.len());
        let peer = format!("--peer-urls=http://127.0.0.1:{}", learner.peer_port);
        self.control(&["member", "add", &learner.name, "--learner", &peer]);
        self.members.push(learner);
        self.spawn(self.members.len() - 1, "existing");
        eventually("the learner answers", || {
            self.client().status().iter().all(|member| member.status.is_ok())
        });
    }

    /// Runs `etcdctl` at the first member; panics if it fails.
    pub fn control(&self, arguments: &[&str]) -> String {
        self.control_with_input(arguments, "")
    }

    /// Like [`Self::control`], with a line of input.
    pub fn control_with_input(&self, arguments: &[&str], input: &str) -> String {
        let output = self.try_control(arguments, input);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// Compacts the history before this revision; `false` if etcd refuses.
    pub fn compact(&self, revision: u64) -> bool {
        let output = self.try_control(&["compaction", &revision.to_string()], "");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || said.contains("required revision"), "{said}");
        output.status.success()
    }

    fn try_control(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(CONTROL);
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(&self.endpoints()[0]).args(arguments);
        if let Some(Certificates { ca, client: (certificate, key), .. }) = &self.certificates {
            command.arg("--cacert").arg(ca).arg("--cert").arg(certificate).arg("--key").arg(key);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        // A command that reads nothing may have ended already.
        let _ = writeln!(process.stdin.take().unwrap(), "{input}");
        process.wait_with_output().unwrap()
    }

    fn spawn(&mut self, member: usize, state: &str) {
        let endpoint = self.endpoints()[member].clone();
        let cluster: Vec<_> = self.members.iter().map(Member::peer).collect();
        let started = &self.members[member];
        let log = fs::File::create(self.folder.path().join(format!("{}.log", started.name))).unwrap();
        let mut command = match started.wrapper.split_first() {
            None => Command::new(PROGRAM),
            Some((wrapper, arguments)) => {
                let mut command = Command::new(wrapper);
                command.args(arguments).arg(PROGRAM);
                command
            }
        };
        let peer_url = format!("http://{}:{}", started.ip, started.peer_port);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            // etcd requires this variable on architectures other than x86-64.
            .env("ETCD_UNSUPPORTED_ARCH", if cfg!(target_arch = "aarch64") { "arm64" } else { "" })
            .args(["--name", &started.name, "--initial-cluster-state", state])
            .arg("--data-dir")
            .arg(self.folder.path().join(&started.name))
            .args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &cluster.join(",")])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args(&self.options);
        if let Some(Certificates { ca, server: (certificate, key), .. }) = &self.certificates {
            command
                .arg("--trusted-ca-file")
                .arg(ca)
                .arg("--cert-file")
                .arg(certificate)
                .arg("--key-file")
                .arg(key);
            command.arg("--client-cert-auth");
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.members[member].process = Some(command.spawn().unwrap());
    }

    /// Waits until every member answers; `false` if a process ends first.
    fn is_ready(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        for endpoint in self.endpoints() {
            let mut client =
                EtcdClient::new(&Settings { endpoints: vec![endpoint], ..self.settings() }).unwrap();
            let read = Range { from: b"k".into(), to: None, at: None, count_only: true };
            // A member that refuses the request is ready, too.
            while let Err(CallError::Unanswered(why)) = client.range(&read) {
                let ended = |member: &mut Member| {
                    member.process.as_mut().is_some_and(|process| process.try_wait().unwrap().is_some())
                };
                if self.members.iter_mut().any(ended) {
                    return false;
                }
                assert!(Instant::now() < deadline, "etcd does not answer: {why}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        true
    }
}

impl Member {
    fn new(number: usize) -> Self {
        let [client_port, peer_port] = free_ports();
        let (name, ip) = (format!("m{number}"), Ipv4Addr::LOCALHOST);
        Self { name, ip, wrapper: Vec::new(), client_port, peer_port, process: None }
    }

    fn on(machine: &Machine, number: usize) -> Self {
        let wrapper = machine.wrapper().map(str::to_owned).into();
        let name = format!("m{number}");
        Self { name, ip: machine.ip, wrapper, client_port: 2379, peer_port: 2380, process: None }
    }

    /// Its part of `--initial-cluster`.
    fn peer(&self) -> String {
        format!("{}=http://{}:{}", self.name, self.ip, self.peer_port)
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // An error means that it has ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for RealEtcd {
    fn drop(&mut self) {
        self.members.iter_mut().for_each(Member::kill);
    }
}

/// A temporary directory, in memory if possible, since tests do not need the durability of a disk.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Makes an authority, and certificates of a server on 127.0.0.1 and of a client.
pub fn certificates(folder: &Path) -> Certificates {
    let path = |name: &str| folder.join(name);
    let openssl = |arguments: &[&str]| {
        let output = Command::new("openssl").args(arguments).current_dir(folder).output();
        let output = output.unwrap_or_else(|error| panic!("openssl (apt-get install openssl): {error}"));
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let authority =
        ["req", "-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"];
    openssl(&[&authority[..], &new_key].concat());
    for name in ["server", "client"] {
        let [key, request, certificate, extensions] =
            ["key", "csr", "pem", "ext"].map(|end| format!("{name}.{end}"));
        let subject = format!("/CN={name}");
        openssl(&[&["req", "-subj", &subject, "-keyout", &key, "-out", &request][..], &new_key].concat());
        fs::write(path(&extensions), "basicConstraints=CA:FALSE\nsubjectAltName=IP:127.0.0.1\n").unwrap();
        openssl(&[
            "x509",
            "-req",
            "-days",
            "2",
            "-in",
            &request,
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-extfile",
            &extensions,
            "-out",
            &certificate,
        ]);
    }
    let pair = |name: &str| (path(&format!("{name}.pem")), path(&format!("{name}.key")));
    Certificates { ca: path("ca.pem"), server: pair("server"), client: pair("client") }
}

//! Programs on several hosts: PHP on one and Perl on another share the sets of a server on a third. A host is a network
//! namespace with a cable to the server's; its System V semaphores are its own. The tests create the namespaces and remove
//! them afterwards, which needs root.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sched::{CloneFlags, setns, unshare};
use signalbox::config::Config;

use crate::interpreters::{are_installed, skipped};
use crate::stepper::preloaded;
use crate::support::TestServer;
use crate::world::{Console, World};
use crate::{article, until};

/// The shortest `peer_timeout` of the configuration.
const PEER_TIMEOUT_S: u32 = 5;

/// A server on a host, and two other hosts.
pub struct Hosts {
    server: TestServer,
    ttl: &'static str,
    /// The server's host.
    here: Host,
    php: Host,
    perl: Host,
}

pub struct Host {
    namespace: String,
    /// The server's address on the cable to this host.
    server: Ipv4Addr,
}

impl Hosts {
    /// `None`: this is not permitted. The server keeps the adjustments of a process that it has lost for this time.
    fn connect(ttl: &'static str) -> Option<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let host = |name, server| Host {
            namespace: format!("signalbox-sysv-{}-{serial}-{name}", std::process::id()),
            server,
        };
        let here = host("server", Ipv4Addr::LOCALHOST);
        let php = host("php", Ipv4Addr::new(10, 99, 72, 1));
        let perl = host("perl", Ipv4Addr::new(10, 99, 73, 1));
        let are_connected = ip(&["netns", "add", &here.namespace])
            && ip(&["-n", &here.namespace, "link", "set", "lo", "up"])
            && php.lay_cable(&here, "php", "10.99.72.2/24")
            && perl.lay_cable(&here, "perl", "10.99.73.2/24");
        if !are_connected {
            skipped("network namespaces cannot be created here; that needs root and iproute2");
            return None;
        }
        let listener = here.within(|| TcpListener::bind("0.0.0.0:0").expect("any port"));
        let config = Config { peer_timeout_s: PEER_TIMEOUT_S, ..Config::default() };
        Some(Self { server: TestServer::start_on(listener, &config), ttl, here, php, perl })
    }

    /// The host of a program.
    pub fn of(&self, program: &Path) -> &Host {
        match program.to_str() {
            Some("php") => &self.php,
            Some("perl") => &self.perl,
            _ => &self.here,
        }
    }

    /// A program with the library.
    pub fn command(&self, program: &Path) -> Command {
        let server = SocketAddr::new(self.of(program).server.into(), self.server.address.port());
        let mut command = preloaded(program, server);
        command.env("SIGNALBOX_SYSV_TTL", self.ttl);
        command
    }

    /// Whether the server has a connection from the host of PHP.
    fn has_connection_from_php(&self) -> bool {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.here.namespace, "ss", "-Htn", "state", "established"]);
        let output = command.args(["dst", "10.99.72.2"]).output().expect("it has made the namespaces");
        assert!(output.status.success(), "{output:?}");
        !output.stdout.is_empty()
    }
}

impl Host {
    /// Makes the namespace, with a cable to the server's namespace.
    fn lay_cable(&self, server: &Self, name: &str, address: &str) -> bool {
        let (far, near) = (self.namespace.as_str(), server.namespace.as_str());
        let server_address = format!("{}/24", self.server);
        [
            &["netns", "add", far][..],
            &["link", "add", name, "netns", near, "type", "veth", "peer", "name", "v0", "netns", far],
            &["-n", near, "addr", "add", &server_address, "dev", name],
            &["-n", far, "addr", "add", address, "dev", "v0"],
            &["-n", near, "link", "set", name, "up"],
            &["-n", far, "link", "set", "v0", "up"],
        ]
        .into_iter()
        .all(ip)
    }

    /// From now on no packet passes, and neither end is notified.
    fn cut(&self) {
        assert!(ip(&["-n", &self.namespace, "link", "set", "v0", "down"]));
    }

    fn mend(&self) {
        assert!(ip(&["-n", &self.namespace, "link", "set", "v0", "up"]));
    }

    /// Acts on this host. A program stays on the host on which it was started, and a socket on that on which it was made.
    pub fn within<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.namespace)).expect("it was made");
        // The namespaces belong to the thread, which ends after `act`.
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(&namespace, CloneFlags::CLONE_NEWNET).expect("this is root");
                // No program can find another's semaphores in the kernel.
                unshare(CloneFlags::CLONE_NEWIPC).expect("this is root");
                act()
            });
            thread.join().expect("it returns")
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.namespace]);
    }
}

/// Whether an `ip` command succeeds.
fn ip(arguments: &[&str]) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn connected(ttl: &'static str, serial: u8) -> Option<World> {
    if !are_installed(&["perl", "php"]) {
        return None;
    }
    Hosts::connect(ttl).map(|hosts| World::of_hosts(hosts, serial))
}

/// No process waits for this time to pass.
const LONG: &str = "60m";

#[test]
fn perl_and_php_on_two_hosts_share_a_set() {
    let Some(world) = connected(LONG, 50) else { return };
    article::share(&world);
}

/// PHP holds the only unit, and Perl waits for it on the other host.
fn held_and_awaited(world: &World) -> (Console, Console) {
    let mut php = world.php("php");
    php.says(&format!("$s = sem_get({}, 1)", world.key()), "SysvSemaphore");
    php.says("sem_acquire($s)", "true");
    let mut perl = world.perl("perl");
    perl.says(&format!("defined($v{{set}} = semget({}, 3, 0))", world.key()), "1");
    perl.tell("semop($v{set}, ops(0, -1, SEM_UNDO))");
    world.until_waiting(0, 1);
    (php, perl)
}

#[test]
fn a_killed_holder_gives_back_at_once() {
    let Some(world) = connected(LONG, 51) else { return };
    let (mut php, mut perl) = held_and_awaited(&world);
    php.kill();
    perl.answers("1");
    world.until_values("0,0,0");
    // The other way round.
    let mut php = world.php("php");
    php.says(&format!("$s = sem_get({}, 1)", world.key()), "SysvSemaphore");
    perl.says("semop($v{set}, ops(0, -1, SEM_UNDO))", "1");
    php.tell("sem_acquire($s)");
    world.until_waiting(0, 1);
    perl.kill();
    php.answers("true");
    world.until_values("0,1,0");
}

/// The holder is cut off until the server has lost its connection.
#[test]
fn a_host_that_returns_in_time_has_lost_nothing() {
    let Some(world) = connected(LONG, 52) else { return };
    let (mut php, perl) = held_and_awaited(&world);
    world.hosts().php.cut();
    until("the server has lost the connection", || !world.hosts().has_connection_from_php());
    assert_eq!((world.values().as_str(), world.waiting(0)), ("0,1,0", 1));
    assert!(perl.is_silent());
    world.hosts().php.mend();
    php.says("sem_release($s)", "true");
    perl.answers("1");
    assert_eq!(world.values(), "0,1,0");
    // It is the same process as before.
    php.kill();
    world.until_values("0,0,0");
}

#[test]
fn a_host_that_does_not_return_gives_back_after_the_time_to_live() {
    let Some(world) = connected("1s", 53) else { return };
    let (mut php, mut perl) = held_and_awaited(&world);
    world.hosts().php.cut();
    perl.answers("1");
    assert_eq!(world.values(), "0,0,0");
    assert!(!world.hosts().has_connection_from_php());
    // The program learns it once. Afterwards it is another process.
    world.hosts().php.mend();
    let lost = format!("sem_release(): Failed to release key {}: Identifier removed", world.key());
    php.says("sem_release($s)", &format!("false | {lost}"));
    php.says("sem_acquire($s, true)", "false");
    perl.kill();
    php.says("sem_acquire($s)", "true");
    php.kill();
    world.until_values("1,0,0");
}

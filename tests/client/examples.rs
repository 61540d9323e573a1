//! The programs of `examples/`, run as a reader would run them, against a server of the test.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;

use crate::support::proxy::{Mode, Proxy};
use crate::support::{TestServer, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Where the programs are. `cargo test --test client examples::` alone does not make them, so this does.
static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(|| {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().unwrap().parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--examples", "--locked", "--offline", "--quiet", "--target-dir"]);
    cargo.arg(profile.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "the examples cannot be built");
    profile.join("examples")
});

/// A program of the examples, and what it has written.
struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Program {
    fn start(name: &str, server: SocketAddr, arguments: &[&str]) -> Self {
        let mut command = Command::new(PROGRAMS.join(name));
        command.args(arguments).env("SIGNALBOX_SERVER", server.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let stdout: Box<dyn std::io::Read + Send> = Box::new(child.stdout.take().unwrap());
        let stderr: Box<dyn std::io::Read + Send> = Box::new(child.stderr.take().unwrap());
        let readers = [stdout, stderr].map(|stream| {
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    *said.lock().unwrap() += &(line + "\n");
                }
            })
        });
        let stdin = child.stdin.take();
        Self { child, stdin, said, readers: readers.into() }
    }

    fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    fn says(&self, what: &str) {
        eventually(&format!("it says {what:?}"), || self.said().contains(what));
    }

    fn hear(&mut self, text: &str) {
        self.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Ends its input, waits for its end, and gives what it has said.
    fn end(mut self) -> (ExitStatus, String) {
        drop(self.stdin.take());
        eventually("it ends", || self.child.try_wait().unwrap().is_some());
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        (self.child.wait().unwrap(), self.said())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Also where it was stopped or the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that takes leases no longer than a test waits.
fn server_of_short_leases() -> TestServer {
    TestServer::start_with(|config| {
        config.session.default_ttl_s = 1;
        config.session.max_ttl_s = 1;
    })
}

fn sessions(server: &TestServer) -> u64 {
    server.server.core().ledger_stats().sessions
}

#[test]
fn one_leads_and_another_takes_over_from_one_that_is_cut_off_or_ends() {
    let server = server_of_short_leases();
    let proxy = Proxy::to(server.counters);
    let first = Program::start("leader", proxy.address, &[]);
    first.says("leading by grant");
    first.says("at work");
    let second = Program::start("leader", server.counters, &[]);
    eventually("the second waits", || server.server.core().ledger_stats().waiters == 1);

    proxy.set(Mode::Silent);
    second.says("leading by grant");
    first.says("leading no more");
    second.says("at work");
    proxy.set(Mode::To(server.counters));
    eventually("the first waits", || server.server.core().ledger_stats().waiters == 1);
    second.signal(Signal::SIGTERM);
    let (status, said) = second.end();
    assert!(status.success(), "{said}");
    eventually("the first leads again", || first.said().matches("leading by grant").count() == 2);
    first.signal(Signal::SIGINT);
    let (status, said) = first.end();
    assert!(status.success(), "{said}");
    assert_eq!(sessions(&server), 0, "who ends gives back at once");
    server.assert_books_balance();
}

#[test]
fn a_leader_waits_for_a_server_that_is_away_and_leads_once_more_after_a_revocation() {
    let server = TestServer::start();
    let proxy = Proxy::to(server.counters);
    proxy.set(Mode::Cut);
    let leader = Program::start("leader", proxy.address, &[]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    proxy.set(Mode::To(server.counters));
    leader.says("leading by grant");
    let said = leader.said();
    let grant = said.split_once("leading by grant ").unwrap().1.lines().next().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        use signalbox::client::{Client, GrantId, Revocation};
        let client = Client::connect(&server.counters.to_string().parse().unwrap()).await.unwrap();
        let what = Revocation::Grant(GrantId(grant.parse().unwrap()));
        client.direct().await.unwrap().revoke(what, crate::support::PATIENCE).await.unwrap();
    });
    leader.says("an administrator");
    eventually("it leads again", || leader.said().matches("leading by grant").count() == 2);
}

#[test]
fn pools_stay_within_the_budget_of_each_tenant_and_do_every_job_once() {
    let server = TestServer::start();
    let mut pools = [(); 2].map(|()| Program::start("worker_pool", server.counters, &[]));
    for (number, pool) in pools.iter_mut().enumerate() {
        for job in 0..10 {
            pool.hear(&format!("blue {number}-{job}\nred {number}-{job}\n"));
        }
    }
    // They begin when they have read all.
    pools.iter_mut().for_each(|pool| drop(pool.stdin.take()));
    for (number, pool) in pools.into_iter().enumerate() {
        let (status, said) = pool.end();
        assert!(status.success(), "{said}");
        let mut done: Vec<_> = said.lines().collect();
        done.sort_unstable();
        let expected = ["blue", "red"]
            .map(|tenant| (0..10).map(|job| format!("done: {tenant} {number}-{job}")).collect::<Vec<_>>());
        assert_eq!(done, expected.concat());
    }
    for tenant in ["tenant/blue", "tenant/red"] {
        assert_eq!(
            server.counter().dumped(tenant.as_bytes()),
            Some((0, 2)),
            "all of the budget, and no more"
        );
    }
}

#[test]
fn a_pool_says_which_jobs_are_left() {
    let server = TestServer::start();
    let mut pool = Program::start("worker_pool", server.counters, &[]);
    pool.hear(&format!("{} one\n", "x".repeat(70_000)));
    let (status, said) = pool.end();
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("worker_pool: not done: xxx"), "{}", &said[..200]);

    let closed = Proxy::to(server.counters);
    closed.set(Mode::Cut);
    let (status, said) = Program::start("worker_pool", closed.address, &[]).end();
    assert_eq!(status.code(), Some(1));
    assert!(said.starts_with("worker_pool: ") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_writer_that_was_stopped_and_overtaken_writes_nothing_more() {
    let server = server_of_short_leases();
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    let path = journal.to_str().unwrap();
    let lines = || fs::read_to_string(&journal).unwrap_or_default();

    let mut first = Program::start("fenced_writer", server.counters, &[path]);
    first.hear("one\n");
    eventually("it is written", || lines().ends_with(" one\n"));
    first.signal(Signal::SIGSTOP);
    let mut second = Program::start("fenced_writer", server.counters, &[path]);
    second.hear("two\n");
    let (status, said) = second.end();
    assert!(status.success(), "{said}");
    assert!(lines().ends_with(" two\n"), "{}", lines());
    first.signal(Signal::SIGCONT);
    first.hear("three\n");
    let (status, said) = first.end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.starts_with("fenced_writer: "), "{said}");
    assert_eq!(lines().lines().count(), 2, "{}", lines());
    let fences =
        lines().lines().map(|line| line.split_once(' ').unwrap().0.parse().unwrap()).collect::<Vec<u64>>();
    assert!(fences[0] < fences[1], "{fences:?}");
}

#[test]
fn the_store_refuses_a_writer_that_believes_in_its_permit() {
    let server = TestServer::start();
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    fs::write(&journal, format!("{} from a greater grant\n", u64::MAX)).unwrap();
    let mut writer = Program::start("fenced_writer", server.counters, &[journal.to_str().unwrap()]);
    writer.hear("late\n");
    let (status, said) = writer.end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("is refused"), "{said}");
    assert_eq!(fs::read_to_string(&journal).unwrap().lines().count(), 1);
    assert_eq!(sessions(&server), 0, "it has given back all the same");
}

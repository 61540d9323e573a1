//! The programs of `examples/`, run as a reader would run them, against a server of the test.

use std::fs::{self, File};
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

/// The folder of the programs. `cargo test --test client examples::` alone does not build them, so this function does, for the
/// same packages as `.ci/run`, so that nothing is built twice there.
static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(|| {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().unwrap().parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--workspace", "--examples", "--locked", "--offline", "--quiet", "--target-dir"]);
    cargo.arg(profile.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "the examples do not compile");
    profile.join("examples")
});

/// A program of the examples, and its output.
struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    output: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Program {
    fn start(name: &str, server: SocketAddr, arguments: &[&str]) -> Self {
        let mut command = Command::new(PROGRAMS.join(name));
        command.args(arguments).env("SIGNALBOX_SERVER", server.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = Arc::new(Mutex::new(String::new()));
        let stdout: Box<dyn std::io::Read + Send> = Box::new(child.stdout.take().unwrap());
        let stderr: Box<dyn std::io::Read + Send> = Box::new(child.stderr.take().unwrap());
        let readers = [stdout, stderr].map(|stream| {
            let output = Arc::clone(&output);
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    *output.lock().unwrap() += &(line + "\n");
                }
            })
        });
        let stdin = child.stdin.take();
        Self { child, stdin, output, readers: readers.into() }
    }

    fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    fn expect_output(&self, what: &str) {
        eventually(&format!("the output has {what:?}"), || self.output().contains(what));
    }

    fn write(&mut self, text: &str) {
        self.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Closes its input, waits for its end, and returns its output.
    fn end(mut self) -> (ExitStatus, String) {
        drop(self.stdin.take());
        eventually("it ends", || self.child.try_wait().unwrap().is_some());
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        (self.child.wait().unwrap(), self.output())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Even if it was stopped or the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server with short leases.
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
fn another_leader_takes_over_when_the_first_is_disconnected_or_ends() {
    let server = server_of_short_leases();
    let proxy = Proxy::to(server.counters);
    let first = Program::start("leader", proxy.address, &[]);
    first.expect_output("leading by grant");
    first.expect_output("at work");
    let second = Program::start("leader", server.counters, &[]);
    eventually("the second waits", || server.server.core().ledger_stats().waiters == 1);

    proxy.set(Mode::Silent);
    second.expect_output("leading by grant");
    first.expect_output("no longer leading");
    second.expect_output("at work");
    proxy.set(Mode::To(server.counters));
    eventually("the first waits", || server.server.core().ledger_stats().waiters == 1);
    second.signal(Signal::SIGTERM);
    let (status, output) = second.end();
    assert!(status.success(), "{output}");
    eventually("the first leads again", || first.output().matches("leading by grant").count() == 2);
    first.signal(Signal::SIGINT);
    let (status, output) = first.end();
    assert!(status.success(), "{output}");
    assert_eq!(sessions(&server), 0, "a program that ends releases at once");
    server.assert_books_balance();
}

#[test]
fn a_leader_waits_for_an_unreachable_server_and_leads_again_after_a_revocation() {
    let server = TestServer::start();
    let proxy = Proxy::to(server.counters);
    proxy.set(Mode::Cut);
    let leader = Program::start("leader", proxy.address, &[]);
    eventually("it tries again", || proxy.accepted() > 2);
    proxy.set(Mode::To(server.counters));
    leader.expect_output("leading by grant");
    let output = leader.output();
    let grant = output.split_once("leading by grant ").unwrap().1.lines().next().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        use signalbox_client::{Client, GrantId, Revocation};
        let client = Client::connect(&server.counters.to_string().parse().unwrap()).await.unwrap();
        let what = Revocation::Grant(GrantId(grant.parse().unwrap()));
        crate::revoke(&client.direct().await.unwrap(), what, crate::support::PATIENCE).await;
    });
    leader.expect_output("an administrator");
    eventually("it leads again", || leader.output().matches("leading by grant").count() == 2);
}

#[test]
fn worker_pools_respect_the_limit_of_each_tenant_and_do_every_job_once() {
    let server = TestServer::start();
    let mut pools = [(); 2].map(|()| Program::start("worker_pool", server.counters, &[]));
    for (number, pool) in pools.iter_mut().enumerate() {
        for job in 0..10 {
            pool.write(&format!("blue {number}-{job}\nred {number}-{job}\n"));
        }
    }
    // The pools begin after they have read all jobs.
    pools.iter_mut().for_each(|pool| drop(pool.stdin.take()));
    for (number, pool) in pools.into_iter().enumerate() {
        let (status, output) = pool.end();
        assert!(status.success(), "{output}");
        let mut done: Vec<_> = output.lines().collect();
        done.sort_unstable();
        let expected = ["blue", "red"]
            .map(|tenant| (0..10).map(|job| format!("done: {tenant} {number}-{job}")).collect::<Vec<_>>());
        assert_eq!(done, expected.concat());
    }
    for tenant in ["tenant/blue", "tenant/red"] {
        assert_eq!(
            server.counter().dumped(tenant.as_bytes()),
            Some((0, 2)),
            "the whole budget is used, and no more"
        );
    }
}

#[test]
fn a_worker_pool_reports_unfinished_jobs() {
    let server = TestServer::start();
    let mut pool = Program::start("worker_pool", server.counters, &[]);
    pool.write(&format!("{} one\n", "x".repeat(70_000)));
    let (status, output) = pool.end();
    assert_eq!(status.code(), Some(1));
    assert!(output.contains("worker_pool: not done: xxx"), "{}", &output[..200]);

    let closed = Proxy::to(server.counters);
    closed.set(Mode::Cut);
    let (status, output) = Program::start("worker_pool", closed.address, &[]).end();
    assert_eq!(status.code(), Some(1));
    assert!(output.starts_with("worker_pool: ") && output.lines().count() == 1, "{output}");
}

#[test]
fn a_suspended_writer_with_a_successor_writes_nothing_more() {
    let server = server_of_short_leases();
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    let path = journal.to_str().unwrap();
    let lines = || fs::read_to_string(&journal).unwrap_or_default();

    let mut first = Program::start("fenced_writer", server.counters, &[path]);
    first.write("one\n");
    // A writer that is suspended while it has the file locked would keep its successor from writing.
    let is_unlocked = || File::open(&journal).unwrap().try_lock().is_ok();
    eventually("the line is written", || lines().ends_with(" one\n") && is_unlocked());
    first.signal(Signal::SIGSTOP);
    let mut second = Program::start("fenced_writer", server.counters, &[path]);
    second.write("two\n");
    let (status, output) = second.end();
    assert!(status.success(), "{output}");
    assert!(lines().ends_with(" two\n"), "{}", lines());
    first.signal(Signal::SIGCONT);
    first.write("three\n");
    let (status, output) = first.end();
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.starts_with("fenced_writer: "), "{output}");
    assert_eq!(lines().lines().count(), 2, "{}", lines());
    let fences =
        lines().lines().map(|line| line.split_once(' ').unwrap().0.parse().unwrap()).collect::<Vec<u64>>();
    assert!(fences[0] < fences[1], "{fences:?}");
}

#[test]
fn the_store_refuses_a_writer_with_an_outdated_permit() {
    let server = TestServer::start();
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    fs::write(&journal, format!("{} from a greater grant\n", u64::MAX)).unwrap();
    let mut writer = Program::start("fenced_writer", server.counters, &[journal.to_str().unwrap()]);
    writer.write("late\n");
    let (status, output) = writer.end();
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.contains("is refused"), "{output}");
    assert_eq!(fs::read_to_string(&journal).unwrap().lines().count(), 1);
    assert_eq!(sessions(&server), 0, "the writer has released its grant");
}

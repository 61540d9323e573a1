//! The recipes of `docs/guide.md`, run as they are printed.
//!
//! `bash -e` runs the blocks of shell, and `sh` runs those of a crontab as cron does, with the program on the PATH and
//! a server of the test; stand-ins replace the reader's commands. `recipe!` compiles the blocks of Rust into this
//! file. No block is copied.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::revoke;
use crate::started;
use crate::support::daemon::{ANY_PORTS, Daemon, serve};
use crate::support::fake_server::soon;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{TestServer, eventually};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use signalbox_client::{Client, ErrorKind, GrantId, Lost, Revocation, Status};
use tempfile::TempDir;

mod budget {
    recipes::recipe!("A connection budget per tenant");
}

mod leader {
    recipes::recipe!("Leader election");
}

mod several {
    recipes::recipe!("Several resources at once");
}

mod slots {
    recipes::recipe!("A pool of numbered slots");
}

mod fence {
    recipes::recipe!("Fencing a store");
}

const GUIDE: &str = include_str!("../../docs/guide.md");

/// The guide's blocks of code: the heading of the recipe, the language, and the text.
fn all_blocks() -> Vec<(&'static str, &'static str, &'static str)> {
    let mut blocks = Vec::new();
    for section in GUIDE.split("\n## ").skip(1) {
        let heading = section.lines().next().unwrap();
        for block in section.split("\n```").skip(1).step_by(2) {
            let (language, text) = block.split_once('\n').unwrap();
            blocks.push((heading, language, text));
        }
    }
    blocks
}

/// The blocks of a recipe in a language; the test knows their number.
fn blocks<const N: usize>(heading: &str, language: &str) -> [&'static str; N] {
    let blocks = all_blocks().into_iter().filter(|block| (block.0, block.1) == (heading, language));
    let texts: Vec<_> = blocks.map(|(_, _, text)| text).collect();
    texts.try_into().unwrap_or_else(|texts| panic!("blocks of {language} under {heading}: {texts:?}"))
}

#[test]
fn every_block_of_the_guide_has_a_test() {
    let source = include_str!("guide.rs");
    let kinds: BTreeSet<_> =
        all_blocks().into_iter().map(|(heading, language, _)| (heading, language)).collect();
    assert!(kinds.len() > 6, "{kinds:?}");
    for (heading, language) in kinds {
        let used = match language {
            "rust" => format!("recipe!(\"{heading}\")"),
            language => format!("blocks(\"{heading}\", \"{language}\")"),
        };
        // The pattern is composed above, so that this function does not match itself.
        assert!(source.contains(&used), "no test has {used}");
    }
}

/// A directory with stand-ins for the reader's commands, their output, and a server.
struct Sandbox {
    server: TestServer,
    directory: TempDir,
}

impl Sandbox {
    fn new() -> Self {
        Self { server: TestServer::start(), directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Creates a stand-in. Another process writes the file, because this process starts others at the same time, and a
    /// file that one of them has open for writing could not be executed.
    fn stand_in(&self, command: &str, does: &str) {
        let write = "printf '#!/bin/bash\n%s\n' \"$2\" > \"$1\" && chmod +x \"$1\"";
        let file = self.path().join(command);
        let status = Command::new("sh").args(["-c", write, "sh"]).arg(file).arg(does).status().unwrap();
        assert!(status.success());
    }

    fn start(&self, shell: &[&str], script: &str) -> Running {
        let program = Path::new(env!("CARGO_BIN_EXE_signalbox")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{}:{path}", self.path().display(), program.display());
        let (shell, options) = shell.split_first().unwrap();
        let child = Command::new(shell)
            .args(options)
            .arg(script)
            .env("PATH", path)
            .env("SIGNALBOX_SERVER", self.server.counters.to_string())
            .current_dir(self.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        Running(Some(child.unwrap()))
    }

    /// Starts a block as a shell script.
    fn bash(&self, block: &str) -> Running {
        self.start(&["bash", "-e", "-c"], block)
    }

    /// Starts the command of a crontab. Cron passes on no environment, so the crontab has to set the server's address; here
    /// the address is that of the test.
    fn cron(&self, block: &str) -> Running {
        let (settings, line) = block.trim_end().rsplit_once('\n').expect("settings, then one command");
        assert!(settings.starts_with("SIGNALBOX_SERVER=") && !settings.contains('\n'), "{settings}");
        assert!(!line.contains('%'), "no characters that cron interprets: {line}");
        let mut command = line;
        for _ in 0..5 {
            command = command.trim_start().split_once(' ').unwrap().1;
        }
        self.start(&["sh", "-c"], command.trim_start())
    }

    /// The lines that stand-ins have written to a file.
    fn lines(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path().join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn waiters(&self) -> u64 {
        self.server.server.core().ledger_stats().waiters
    }

    fn sessions(&self) -> u64 {
        self.server.server.core().ledger_stats().sessions
    }
}

/// A running shell, with all its child processes.
struct Running(Option<Child>);

impl Running {
    fn ended(mut self) -> Output {
        let child = self.0.as_mut().unwrap();
        eventually("the shell ends", || child.try_wait().unwrap().is_some());
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    /// Waits for its success and returns its output.
    #[track_caller]
    fn output(self) -> String {
        let Output { status, stdout, stderr } = self.ended();
        assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = killpg(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGKILL);
            let _ = child.wait();
        }
    }
}

async fn connected(address: SocketAddr) -> Client {
    Client::connect(&address.to_string().parse().unwrap()).await.unwrap()
}

// ---- A cron job on one machine

#[test]
fn one_of_all_machines_runs_the_job() {
    let sandbox = Sandbox::new();
    let [line, _] = blocks("A cron job on one machine", "crontab");
    sandbox.stand_in("nightly-report", "echo begins >> log; until [ -e end ]; do sleep 0.05; done");
    let first = sandbox.cron(line);
    eventually("the first runs it", || sandbox.lines("log").len() == 1);
    sandbox.cron(line).output();
    assert_eq!(sandbox.lines("log").len(), 1, "the second machine did not run it, and that is no failure");
    fs::write(sandbox.path().join("end"), "").unwrap();
    first.output();
    sandbox.cron(line).output();
    assert_eq!(sandbox.lines("log").len(), 2, "another machine runs it the next night");
    sandbox.stand_in("nightly-report", "exit 3");
    assert!(!sandbox.cron(line).ended().status.success(), "a job that fails is a failure");
}

#[test]
fn without_a_server_no_job_runs_and_cron_gets_an_error_message() {
    let mut sandbox = Sandbox::new();
    sandbox.stand_in("nightly-report", "echo begins >> log");
    sandbox.server.counters = SocketAddr::from(([127, 0, 0, 1], 1));
    let lines: [_; 2] = blocks("A cron job on one machine", "crontab");
    for line in lines {
        let output = sandbox.cron(line).ended();
        assert!(!output.status.success() && output.stderr.starts_with(b"signalbox: "), "{output:?}");
    }
    assert!(sandbox.lines("log").is_empty());
}

#[test]
fn a_machine_with_a_late_clock_does_not_repeat_the_job() {
    let sandbox = Sandbox::new();
    let [_, line] = blocks("A cron job on one machine", "crontab");
    sandbox.stand_in("nightly-report", "echo begins >> log");
    sandbox.cron(line).output();
    sandbox.cron(line).output();
    assert_eq!(sandbox.lines("log").len(), 1);
    sandbox.server.server.core().check_ledger().unwrap();
}

// ---- A connection budget per tenant

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn open_connections_stay_within_the_budget() {
    let server = started(|_| {});
    let client = connected(server.counters).await;
    let open = Arc::new(AtomicUsize::new(0));
    let (close, closed) = tokio::sync::watch::channel(false);
    let job = || {
        let (client, open, mut closed) = (client.clone(), Arc::clone(&open), closed.clone());
        tokio::spawn(async move {
            let job = async {
                open.fetch_add(1, Ordering::Relaxed);
                closed.wait_for(|closed| *closed).await.unwrap();
                7
            };
            budget::with_connection(&client, "a", job).await
        })
    };
    let jobs: Vec<_> = (0..8).map(|_| job()).collect();
    eventually("all of the budget is used", || open.load(Ordering::Relaxed) == 8);
    let refused = soon("a refusal", job()).await.unwrap();
    assert_eq!(refused.unwrap_err().status(), Some(Status::TimedOut));
    let other = budget::with_connection(&client, "b", async { 1 }).await;
    assert_eq!(other.unwrap(), 1, "another tenant has a budget of its own");
    close.send_replace(true);
    for job in jobs {
        assert_eq!(soon("the end of a job", job).await.unwrap().unwrap(), 7);
    }
    assert_eq!(server.counter().dumped(b"tenant/a"), Some((0, 8)));
}

// ---- A rolling restart

#[test]
fn two_machines_restart_at_a_time_and_hold_their_places_until_healthy() {
    let sandbox = Sandbox::new();
    let [restart, look] = blocks("A rolling restart", "sh");
    sandbox.stand_in("restart-web", "echo restarts >> log; exit 1");
    sandbox.stand_in("web-is-healthy", "[ -e healthy ]");
    sandbox.stand_in("sleep", "exec /bin/sleep 0.05");
    let machines = [(); 3].map(|()| sandbox.bash(restart));
    eventually("two restart", || sandbox.lines("log").len() == 2);
    eventually("one waits", || sandbox.waiters() == 1);
    let seen = sandbox.bash(look).output();
    assert!(
        seen.contains("in_use      2\n") && seen.contains("\nqueue:\n") && seen.contains("\n1\t"),
        "two hold and one waits: {seen}"
    );
    assert_eq!(sandbox.lines("log").len(), 2, "although the command has returned");
    fs::write(sandbox.path().join("healthy"), "").unwrap();
    for machine in machines {
        machine.output();
    }
    assert_eq!(sandbox.lines("log").len(), 3);
    assert_eq!(sandbox.server.counter().dumped(b"restart/web"), Some((0, 2)));
}

// ---- Leader election

#[test]
fn a_standby_service_starts_when_the_leader_ends() {
    let sandbox = Sandbox::new();
    let [line] = blocks("Leader election", "sh");
    sandbox.stand_in("scheduler", "echo leads >> log; until rm end 2>/dev/null; do sleep 0.05; done");
    let first = sandbox.bash(line);
    eventually("one leads", || sandbox.lines("log").len() == 1);
    let second = sandbox.bash(line);
    eventually("one stands by", || sandbox.waiters() == 1);
    assert_eq!(sandbox.lines("log").len(), 1);
    for (number, service) in [first, second].into_iter().enumerate() {
        fs::write(sandbox.path().join("end"), "").unwrap();
        service.output();
        eventually("the remaining service leads", || sandbox.lines("log").len() == 2 || number == 1);
    }
    assert_eq!(sandbox.sessions(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_disconnected_leader_stops_and_another_leads() {
    let server = started(|config| {
        config.session.default_ttl_s = 1;
        config.session.max_ttl_s = 1;
    });
    let proxy = Proxy::to(server.counters);
    let (leads, mut leaders) = tokio::sync::mpsc::unbounded_channel();
    let candidate = |name: &'static str, address| {
        let leads = leads.clone();
        tokio::spawn(async move {
            let client = connected(address).await;
            let work = async |term| {
                leads.send((name, term)).unwrap();
                std::future::pending().await
            };
            leader::lead(&client, work).await
        })
    };
    let first = candidate("first", proxy.address);
    let (name, old) = soon("a leader", leaders.recv()).await.unwrap();
    assert_eq!(name, "first");
    let second = candidate("second", server.counters);
    eventually("the second waits", || server.server.core().ledger_stats().waiters == 1);
    proxy.set(Mode::Silent);
    let (name, new) = soon("another leader", leaders.recv()).await.unwrap();
    assert_eq!(name, "second");
    assert!(new > old, "the fencing token increases");
    let ended = soon("the end of the first", first).await.unwrap();
    assert!(matches!(ended.unwrap_err().kind(), ErrorKind::Lost(Lost::Unreachable)));

    let direct = connected(server.counters).await.direct().await.unwrap();
    revoke(&direct, Revocation::Grant(GrantId(new)), Duration::from_secs(60)).await;
    soon("the end of the second", second).await.unwrap().unwrap();
    assert_eq!(server.server.core().ledger_stats().grants, 0, "released before the grace period ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_leader_that_completes_its_work_releases_leadership() {
    let server = started(|_| {});
    let client = connected(server.counters).await;
    for _ in 0..2 {
        soon("a term", leader::lead(&client, async |_| {})).await.unwrap();
    }
}

// ---- Several resources at once

#[test]
fn work_starts_with_all_resources_or_waits() {
    let sandbox = Sandbox::new();
    let [line] = blocks("Several resources at once", "sh");
    sandbox.stand_in("train", "echo trains >> log; until [ -e end ]; do sleep 0.05; done");
    let first = [(); 2].map(|()| sandbox.bash(line));
    eventually("two train", || sandbox.lines("log").len() == 2);
    let in_use = |name: &[u8]| sandbox.server.counter().get(name).number();
    assert_eq!((in_use(b"gpu"), in_use(b"licences")), (4, 2));
    let third = sandbox.bash(line);
    eventually("the third waits", || sandbox.waiters() == 1);
    fs::write(sandbox.path().join("end"), "").unwrap();
    first.into_iter().chain([third]).for_each(|training| drop(training.output()));
    assert_eq!(sandbox.server.server.core().ledger_stats().grants, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_program_holds_several_resources_at_once() {
    let server = started(|_| {});
    let client = connected(server.counters).await;
    let first = several::for_training(&client).await.unwrap();
    let _second = several::for_training(&client).await.unwrap();
    assert_eq!((server.counter().get(b"gpu").number(), server.counter().get(b"licences").number()), (4, 2));
    let third = tokio::spawn({
        let client = client.clone();
        async move { several::for_training(&client).await }
    });
    eventually("the third waits", || server.server.core().ledger_stats().waiters == 1);
    first.release().await.unwrap();
    assert_eq!(soon("the third", third).await.unwrap().unwrap().capacities(), [4, 10]);
}

// ---- A pool of numbered slots

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_job_gets_its_own_gpu_and_a_retired_gpu_is_not_granted() {
    let server = started(|_| {});
    let client = connected(server.counters).await;
    let direct = client.direct().await.unwrap();
    for _ in 0..2 {
        slots::declare_gpus(&direct, 2).await.unwrap();
    }
    let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let (finish, finished) = tokio::sync::watch::channel(false);
    let job = || {
        let (client, begin, mut finished) = (client.clone(), begin.clone(), finished.clone());
        tokio::spawn(async move {
            let job = async move |gpu| {
                begin.send(gpu).unwrap();
                finished.wait_for(|finished| *finished).await.unwrap();
            };
            slots::on_a_gpu(&client, job).await
        })
    };
    let mut jobs = vec![job(), job()];
    let mut gpus = Vec::new();
    for _ in 0..2 {
        gpus.push(soon("a job", begun.recv()).await.unwrap());
    }
    gpus.sort_unstable();
    assert_eq!(gpus, [0, 1]);
    jobs.push(job());
    eventually("the third waits", || server.server.core().ledger_stats().waiters == 1);

    let retired = tokio::spawn(async move { slots::retire(&direct, 1).await });
    let administrator = client.direct().await.unwrap();
    soon("the shrink", async {
        loop {
            let listed = administrator.list(b"gpus").await.unwrap().next().await.unwrap().unwrap();
            if listed.capacity == 1 {
                break assert_eq!(listed.in_use, 2, "no job lost its GPU");
            }
        }
    })
    .await;
    assert!(!retired.is_finished(), "a job uses it");
    finish.send_replace(true);
    soon("the GPU to be free", retired).await.unwrap().unwrap();
    assert_eq!(soon("the third", begun.recv()).await.unwrap(), 0);
    for job in jobs {
        soon("the end of a job", job).await.unwrap().unwrap();
    }
}

// ---- One of many fills the cache

#[test]
fn one_of_a_hundred_renders_the_page_although_workers_are_killed_and_nobody_waits_too_long() {
    const PROCESSES: usize = 100;
    let sandbox = Sandbox::new();
    let [block] = blocks("One of many fills the cache", "sh");
    fs::create_dir(sandbox.path().join("cache")).unwrap();
    fs::create_dir(sandbox.path().join("stale")).unwrap();
    fs::write(sandbox.path().join("stale/7"), "old\n").unwrap();
    let render = "echo $$ >> begun; until [ -e go ]; do sleep 0.05; done; echo $1 >> rendered; echo page $1";
    sandbox.stand_in("render", render);
    let patient: Vec<_> = (0..PROCESSES).map(|_| sandbox.bash(&format!("patience=10m\n{block}"))).collect();
    for workers in 1..=3 {
        let waiting = (PROCESSES - workers) as u64;
        eventually("one works, and the others wait", || {
            sandbox.lines("begun").len() == workers && sandbox.waiters() == waiting
        });
        let worker = Pid::from_raw(sandbox.lines("begun")[workers - 1].parse().unwrap());
        match workers {
            // With everything around it, as by a power cut: the lease has to end.
            1 => killpg(nix::unistd::getpgid(Some(worker)).unwrap(), Signal::SIGKILL).unwrap(),
            2 => kill(worker, Signal::SIGKILL).unwrap(),
            _ => {}
        }
    }
    assert_eq!(sandbox.bash(&format!("patience=0.1\n{block}")).output(), "old\n", "it does not wait longer");
    fs::write(sandbox.path().join("go"), "").unwrap();
    let outputs: Vec<_> = patient.into_iter().map(Running::ended).collect();
    let count = |text: &str| outputs.iter().filter(|output| output.stdout == text.as_bytes()).count();
    assert_eq!((count("page 7\n"), count("old\n"), count("")), (PROCESSES - 2, 1, 1), "{outputs:?}");
    assert_eq!(sandbox.lines("rendered"), ["7"]);
    assert_eq!(sandbox.bash(block).output(), "page 7\n");
}

// ---- Fencing a store

#[test]
fn a_script_publishes_with_increasing_tokens_and_releases_its_grant() {
    let sandbox = Sandbox::new();
    let [script] = blocks("Fencing a store", "sh");
    sandbox.stand_in("publish", "echo \"$@\" >> log; signalbox renew > renewed; [ ! -e fail ]");
    sandbox.bash(script).output();
    assert_eq!(sandbox.sessions(), 0, "given back");
    sandbox.bash(script).output();
    let lines = sandbox.lines("log");
    let number = |line: &String| -> u64 {
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!((words.len(), words[0], words[2]), (3, "--fence", "report.csv"));
        words[1].parse().unwrap()
    };
    assert!(number(&lines[0]) < number(&lines[1]), "{lines:?}");
    assert_eq!(sandbox.lines("renewed"), ["300"]);
    fs::write(sandbox.path().join("fail"), "").unwrap();
    assert!(!sandbox.bash(script).ended().status.success());
    assert_eq!(sandbox.sessions(), 0, "also released after a failure");
}

#[test]
fn a_script_without_a_grant_publishes_nothing() {
    let mut sandbox = Sandbox::new();
    let [script] = blocks("Fencing a store", "sh");
    sandbox.stand_in("publish", "echo \"$@\" >> log");
    let gone = Proxy::to(sandbox.server.counters);
    gone.set(Mode::Cut);
    sandbox.server.counters = gone.address;
    let output = sandbox.bash(script).ended();
    assert_eq!(output.status.code(), Some(69), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(sandbox.lines("log").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_store_refuses_an_outdated_holder() {
    let server = started(|_| {});
    let client = connected(server.counters).await;
    let mut report = fence::Report::default();
    assert_eq!(fence::publish(&client, &mut report, "a").await.unwrap(), Ok(()));
    let first = report.fence;
    assert_eq!(fence::publish(&client, &mut report, "b").await.unwrap(), Ok(()));
    assert!(report.fence > first);
    assert_eq!(report.write(report.fence, "more of b"), Ok(()), "a holder writes more than once");
    assert_eq!(report.write(first, "late"), Err(fence::Overtaken));
    assert_eq!(report.text, "more of b");
}

// ---- A lease from any language

/// A daemon with HTTP, and the directory of a [`Sandbox`] with `lease.py`.
fn daemon_with_http() -> (Daemon, Sandbox, String) {
    let mut daemon = Daemon::spawn(serve(ANY_PORTS.into_iter().chain(["--http-port", "0"])));
    let mut sandbox = Sandbox::new();
    sandbox.server.counters = daemon.address("counter");
    let [module] = blocks("A lease from any language", "python");
    fs::write(sandbox.path().join("lease.py"), module).unwrap();
    let http = format!("http://{}", daemon.address("http"));
    (daemon, sandbox, http)
}

#[test]
fn a_program_in_python_holds_waits_and_learns_of_a_revocation() {
    const PROGRAM: &str = "exec python3 -u -c '
import sys, lease
with lease.Lease({\"name\": \"db\", \"maximum\": 1}, ttl=6, on_lost=lambda: print(\"lost\")) as held:
    print(\"held\", held.grant, held.is_valid(), file=open(\"held\", \"a\"))
    while held.is_valid(): lease.time.sleep(0.05)
'";
    let (_daemon, sandbox, http) = daemon_with_http();
    let start = || sandbox.bash(&format!("export SIGNALBOX_HTTP={http}; {PROGRAM}"));
    let first = start();
    eventually("the first holds it", || sandbox.lines("held").len() == 1);
    let second = start();
    eventually("the second waits", || !sandbox.bash("signalbox status --waiters db").output().is_empty());
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(sandbox.lines("held").len(), 1, "the first renews its lease");
    let revoke = |line: usize| {
        let grant = sandbox.lines("held")[line].split(' ').nth(1).unwrap().to_owned();
        sandbox.bash(&format!("signalbox revoke --grant {grant} --grace 0")).output()
    };
    revoke(0);
    assert_eq!(first.output(), "lost\n");
    eventually("the second holds it", || sandbox.lines("held").len() == 2);
    assert!(sandbox.lines("held")[1].ends_with("True"));
    revoke(1);
    assert_eq!(second.output(), "lost\n");
}

#[test]
fn a_shell_with_curl_runs_a_job_and_ends_it_when_its_lease_is_revoked() {
    let (_daemon, sandbox, http) = daemon_with_http();
    let [script] = blocks("A lease from any language", "bash");
    let start = || sandbox.bash(&format!("export SIGNALBOX_HTTP={http}\n{script}"));
    sandbox.stand_in("nightly-report", "echo ran >> log");
    start().output();
    assert_eq!(sandbox.lines("log").len(), 1);
    let in_use = || sandbox.bash("signalbox get reports").output();
    assert_eq!(in_use(), "0\n", "it was released");
    sandbox.stand_in("nightly-report", "echo ran >> log; exec sleep 600");
    let long = start();
    eventually("it runs", || sandbox.lines("log").len() == 2);
    sandbox.bash("signalbox revoke --client 127.0.0.1 --grace 0").output();
    assert!(!long.ended().status.success());
    assert_eq!(in_use(), "0\n");
}

//! System V semaphore sets on the command line: `sysv run`, `list`, `show` and `remove`, and the option `--sysv`.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};
use signalbox_client::Client;
use signalbox_client::sysv::{Caller, Errno, Identity, Operation, Process, SEM_UNDO, SetId};
use tokio::process::Command;

use super::{assert_fails, finished, line, objects, program_at, ran, stderr, stdout, stdout_of};
use crate::support::daemon::{ANY_PORTS, Daemon, is_root, serve};
use crate::support::fake_server::{FakeServer, soon};
use crate::support::sysv_program::SysvProgram;

const KEY: i32 = 0x2a;

/// A process of another machine, which belongs to this user.
struct Worker {
    process: Process,
}

impl Worker {
    async fn start(server: SocketAddr, pid: u32, uid: u32) -> Self {
        let client = Client::builder(server.to_string().parse().unwrap()).build().unwrap();
        let direct = client.direct().await.unwrap();
        let caller = Caller { uid, gid: uid };
        let identity = Identity { pid, caller, groups: &[], label: b"php on web1" };
        Self { process: direct.open_process(&identity).await.unwrap() }
    }
}

const fn operation(number: u16, change: i16, flags: u16) -> Operation {
    Operation { number, change, flags }
}

/// A set of two semaphores with the values 1 and 0: process 77 has taken the first, with an adjustment, and process 78
/// waits for it, and for the second to be 0.
struct Scene {
    daemon: Daemon,
    server: SocketAddr,
    set: SetId,
    holder: Worker,
    _waiter: tokio::task::JoinHandle<()>,
}

impl Scene {
    async fn start() -> Self {
        let mut daemon = Daemon::start();
        let server = daemon.address("counter");
        let holder = Worker::start(server, 77, 1000).await;
        let set = holder.process.create(KEY, 2, 0o640).await.unwrap();
        holder.process.set_values(set, &[1, 0]).await.unwrap();
        holder.process.operate(set, &[operation(0, -1, SEM_UNDO)], None).await.unwrap();
        let waiter = Worker::start(server, 78, 1000).await;
        let waiting = [operation(1, 0, 0), operation(0, -1, SEM_UNDO)];
        let waiter = tokio::spawn(async move {
            // Afterwards it lives on, and keeps what it has taken.
            let _performed = waiter.process.operate(set, &waiting, None).await;
            std::future::pending::<()>().await;
        });
        let waits = async {
            while holder.process.semaphores(set).await.unwrap()[0].waiting_for_growth == 0 {
                tokio::task::yield_now().await;
            }
        };
        soon("the call to wait", waits).await;
        Self { daemon, server, set, holder, _waiter: waiter }
    }
}

#[tokio::test]
async fn sets_are_listed() {
    let scene = Scene::start().await;
    let private = scene.holder.process.create(0, 3, 0o600).await.unwrap();
    let output = ran(scene.server, &["sysv", "list", "--no-header"]).await;
    let rows: Vec<Vec<_>> = stdout(&output).lines().map(|row| row.split('\t').collect()).collect();
    let id = scene.set.to_string();
    assert_eq!(rows[0][..8], ["0x0000002a", &id[..], "1000", "1000", "0640", "2", "1", "1"]);
    assert!(rows[0][8].ends_with('Z') && rows[0][9].ends_with('Z'), "{rows:?}");
    assert_eq!(rows[0][10], "-", "without flags");
    assert_eq!((rows[1][0], rows[1][5], rows[1][8]), ("-", "3", "-"), "without a key and an operation");
    let stats = objects(scene.server, &["stats"]).await.remove(0);
    for (item, expected) in [("sysv_processes", 2), ("sysv_sets", 2), ("sysv_waiting", 1)] {
        assert_eq!(stats[item], expected, "{item}");
    }
    let listed = objects(scene.server, &["sysv", "list"]).await;
    assert_eq!(listed[0]["key"], "0x0000002a");
    assert_eq!((&listed[0]["id"], &listed[0]["mode"]), (&json!(scene.set.0), &json!("0640")));
    assert_eq!((&listed[0]["waiting"], &listed[0]["adjusting"]), (&json!(1), &json!(1)));
    assert_eq!(
        (&listed[1]["key"], &listed[1]["id"], &listed[1]["operated"]),
        (&Value::Null, &json!(private.0), &Value::Null)
    );
}

#[tokio::test]
async fn durable_sets_and_those_in_order_of_arrival_are_marked() {
    let data = tempfile::tempdir().unwrap();
    let mut command = serve(ANY_PORTS);
    command.arg("--data-dir").arg(data.path().join("data"));
    command
        .env("SIGNALBOX_CONFIG_SYSV__DURABLE_KEYS", "42 44")
        .env("SIGNALBOX_CONFIG_SYSV__FIFO_KEYS", "43 44");
    let mut daemon = Daemon::spawn(command);
    let server = daemon.address("counter");
    let worker = Worker::start(server, 77, 0).await;
    for key in 41..=44 {
        worker.process.create(key, 1, 0o600).await.unwrap();
    }
    let output = ran(server, &["sysv", "list", "--no-header"]).await;
    let flags: Vec<_> = stdout(&output).lines().map(|row| row.rsplit('\t').next().unwrap()).collect();
    assert_eq!(flags, ["-", "durable", "fifo", "durable,fifo"]);
    let listed = objects(server, &["sysv", "list"]).await;
    assert_eq!((&listed[1]["durable"], &listed[1]["fifo"]), (&json!(true), &json!(false)));
    let shown = ran(server, &["sysv", "show", "44"]).await;
    assert!(stdout(&shown).contains("\nflags       durable,fifo\n"), "{shown:?}");
}

#[tokio::test]
async fn a_set_is_shown_by_its_key_or_its_id() {
    let scene = Scene::start().await;
    let id = scene.set.to_string();
    if !is_root() {
        return;
    }
    let shown = objects(scene.server, &["sysv", "show", "42"]).await.remove(0);
    assert_eq!((&shown["kind"], &shown["semaphores"]), (&json!("sysv"), &json!(2)));
    assert_eq!(
        shown["values"],
        json!([
            {"number": 0, "value": 0, "pid": 77, "ncount": 1, "zcount": 0},
            {"number": 1, "value": 0, "pid": 77, "ncount": 0, "zcount": 0},
        ])
    );
    let holder = &shown["holders"][0];
    assert_eq!(holder["adjustments"], json!([{"semaphore": 0, "adjustment": 1}]));
    assert_eq!(
        (&holder["pid"], &holder["uid"], &holder["label"]),
        (&json!(77), &json!(1000), &json!("php on web1"))
    );
    let waiter = &shown["queue"][0];
    assert_eq!((&waiter["position"], &waiter["pid"]), (&json!(1), &json!(78)));
    assert_eq!(
        waiter["operations"],
        json!([
            {"semaphore": 1, "change": 0, "nowait": false, "undo": false},
            {"semaphore": 0, "change": -1, "nowait": false, "undo": true},
        ])
    );
    let named = id.clone();
    let by_id = format!("id:{named}");
    for arguments in [
        &["sysv", "show", "0x2a"][..],
        &["sysv", "show", "--id", &id],
        &["sysv", "show", &by_id],
        &["status", "--sysv", "0x2a"],
        &["--sysv", "status", &by_id],
    ] {
        let output = ran(scene.server, &[arguments, &["--no-header"]].concat()).await;
        let text = stdout(&output);
        assert!(text.starts_with("kind        sysv\nkey         0x0000002a\n"), "{arguments:?}: {text}");
        assert!(text.contains("\nsemaphores:\n0\t0\t77\t1\t0\n1\t0\t77\t0\t0\n"), "{arguments:?}: {text}");
        assert!(text.contains("\t77\t1000\t0:+1\tphp on web1\n"), "{arguments:?}: {text}");
        assert!(text.contains("\t78\t1000\t1:0, 0:-1 UNDO\tphp on web1\n"), "{arguments:?}: {text}");
    }
}

/// Runs the program as another user, with `setpriv`; `None` if this test may not.
async fn ran_as(user: &str, server: SocketAddr, arguments: &[&str]) -> Option<Output> {
    if !is_root() {
        return None;
    }
    // The build's directory may be closed for others; a descriptor is not.
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups", "--"]);
    command.arg(program_for_others()).args(arguments).env("SIGNALBOX_SERVER", server.to_string());
    Some(soon("the program to end", command.output()).await.unwrap())
}

/// The program at a path that every user may execute.
fn program_for_others() -> PathBuf {
    static COPY: std::sync::OnceLock<(tempfile::TempDir, PathBuf)> = std::sync::OnceLock::new();
    let (_, path) = COPY.get_or_init(|| {
        let directory = crate::support::daemon::open_directory();
        let path = directory.path().join("signalbox");
        fs::copy(env!("CARGO_BIN_EXE_signalbox"), &path).unwrap();
        (directory, path)
    });
    path.clone()
}

#[tokio::test]
async fn the_mode_and_the_owner_decide_as_in_the_kernel() {
    let scene = Scene::start().await;
    let Some(output) = ran_as("4711", scene.server, &["sysv", "show", "0x2a"]).await else { return };
    assert!(output.status.success(), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("mode 0640 does not permit user 4711 to read it; run as user 1000 or 0"), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("semaphores:") && text.contains("queue:"), "{text}");

    let output = ran_as("4711", scene.server, &["sysv", "remove", "0x2a"]).await.unwrap();
    assert_fails(
        &output,
        1,
        "semaphore set 0x0000002a was not removed: only its owner, its creator and user 0 may",
    );
    assert!(stderr(&output).contains("run by user 4711 (EPERM)"), "{}", stderr(&output));
    let output = ran_as("1000", scene.server, &["sysv", "remove", "0x2a"]).await.unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    let error = scene.holder.process.stat(scene.set).await.unwrap_err();
    assert_eq!(error.errno(), Some(Errno::Inval));
}

#[tokio::test]
async fn a_removed_set_is_gone() {
    if !is_root() {
        return;
    }
    let scene = Scene::start().await;
    let private = scene.holder.process.create(0, 1, 0o600).await.unwrap().to_string();
    assert_eq!(stdout(&ran(scene.server, &["sysv", "remove", "42"]).await), "");
    assert_eq!(stdout(&ran(scene.server, &["sysv", "remove", "--id", &private]).await), "");
    assert_eq!(stdout(&ran(scene.server, &["sysv", "list", "--no-header"]).await), "");
    for arguments in [
        &["sysv", "remove", "0x2a"][..],
        &["sysv", "show", "42"],
        &["status", "--sysv", "42"],
        &["status", "--holders", "--sysv", "42"],
        &["status", "--waiters", "--sysv", "42"],
    ] {
        let output = ran(scene.server, arguments).await;
        assert_fails(
            &output,
            1,
            "semaphore set 0x0000002a does not exist; \"signalbox sysv list\" lists the sets",
        );
    }
    let output = ran(scene.server, &["sysv", "remove", "--id", &private]).await;
    assert_fails(&output, 1, &format!("semaphore set id:{private} does not exist"));
}

#[tokio::test]
async fn holders_and_waiters_of_a_set_are_processes_and_calls() {
    let scene = Scene::start().await;
    let holders = ran(scene.server, &["status", "--holders", "--sysv", "0x2a", "--no-header"]).await;
    let row: Vec<_> = stdout(&holders).trim_end().split('\t').collect();
    assert_eq!(row[1..], ["77", "1000", "0:+1", "php on web1"]);
    let waiters = ran(scene.server, &["--sysv", "--no-header", "status", "--waiters", "0x2a"]).await;
    let row: Vec<_> = stdout(&waiters).trim_end().split('\t').collect();
    assert_eq!((row[0], &row[2..]), ("1", &["78", "1000", "1:0, 0:-1 UNDO", "php on web1"][..]));
    let [holder] = &objects(scene.server, &["status", "--holders", "--sysv", "42"]).await[..] else {
        panic!("one")
    };
    assert!(holder.get("position").is_none() && holder["process"].is_string(), "{holder}");
}

#[tokio::test]
async fn a_watch_prints_what_changes() {
    if !is_root() {
        return;
    }
    let scene = Scene::start().await;
    let arguments = ["watch", "--sysv", "*", "--json", "--interval", "0.01"];
    let mut child = program_at(scene.server, &arguments).spawn().unwrap();
    let mut events = stdout_of(&mut child);
    let mut next = async || -> Value { serde_json::from_str(&line(&mut events).await).unwrap() };
    let present = next().await;
    assert_eq!((&present["event"], &present["key"]), (&json!("present"), &json!("0x0000002a")));
    assert_eq!((&present["values"], &present["waiting"]), (&json!([0, 0]), &json!(1)));
    let live = next().await;
    assert_eq!((&live["event"], live.get("key")), (&json!("live"), None));

    let other = scene.holder.process.create(7, 1, 0o600).await.unwrap();
    let created = next().await;
    assert_eq!((&created["event"], &created["id"]), (&json!("created"), &json!(other.0)));
    scene.holder.process.set_value(other, 0, 5).await.unwrap();
    let changed = next().await;
    assert_eq!((&changed["event"], &changed["values"]), (&json!("changed"), &json!([5])));
    scene.holder.process.remove(other).await.unwrap();
    assert_eq!(next().await["event"], "removed");

    // The end of the holder is what the waiter waits for.
    let Scene { daemon, holder, .. } = scene;
    drop(holder);
    let granted = loop {
        let event = next().await;
        if event["waiting"] == 0 && event["adjusting"] == 1 {
            break event;
        }
    };
    assert_eq!((&granted["event"], &granted["values"]), (&json!("changed"), &json!([0, 0])));
    drop(daemon);
    assert_fails(&finished(child).await, 69, "the connection was lost");
}

#[tokio::test]
async fn the_shell_completes_keys() {
    let scene = Scene::start().await;
    let private = format!("id:{}", scene.holder.process.create(0, 1, 0o600).await.unwrap());
    for (words, expected) in [
        (&["sysv", "show", ""][..], &["0x0000002a", &private[..]][..]),
        (&["sysv", "remove", "0x"], &["0x0000002a"]),
        (&["status", "--holders", "--sysv", "0"], &["0x0000002a"]),
        (&["--sysv", "watch", "i"], &[&private]),
        (&["sysv", "list", ""], &[]),
        (&["status", "--holders", ""], &[]),
    ] {
        let arguments = [&["complete-names", "--"], words].concat();
        let output = ran(scene.server, &arguments).await;
        assert_eq!(stdout(&output).lines().collect::<Vec<_>>(), expected, "{words:?}");
    }
}

/// A shared library that any program can load: the C library, which it has loaded already.
fn any_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path =
        maps.lines().filter_map(|line| line.split_once('/')).find(|(_, path)| path.contains("libc.so"));
    Path::new("/").join(path.expect("tests are linked dynamically").1)
}

/// Runs `sysv run` with these options and variables, and a command that prints its environment.
async fn environment(server: SocketAddr, options: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
    let arguments = [&["sysv", "run"], options, &["--", "env"]].concat();
    let mut command = program_at(server, &arguments);
    command.envs(variables.iter().copied());
    let output = finished(command.spawn().unwrap()).await;
    let is_ours = |line: &&str| line.starts_with("LD_PRELOAD=") || line.starts_with("SIGNALBOX_SYSV_");
    let mut lines: Vec<_> = stdout(&output).lines().filter(is_ours).map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn run_sets_up_the_environment() {
    let mut daemon = Daemon::start();
    let (server, other) = (daemon.address("counter"), daemon.address("semaphore"));
    let library = any_library();
    let library = library.to_str().unwrap();
    let preload = format!("LD_PRELOAD={library}");
    let with = |options: &[&'static str]| [&["--library", library], options].concat();
    let at = |server: SocketAddr| format!("SIGNALBOX_SYSV_SERVER={server}");
    let keys = |keys: &str| format!("SIGNALBOX_SYSV_KEYS={keys}");

    let found = environment(server, &with(&["--keys", "all"]), &[]).await;
    assert_eq!(found, [preload.clone(), keys("all"), at(server)]);
    let lists = with(&["--keys", "1-5,0x10", "--map", "0x5101a2b3=16", "--keys=42"]);
    let found = environment(server, &lists, &[("LD_PRELOAD", library)]).await;
    assert_eq!(found, [preload.clone(), keys("1-5,0x10,42,0x5101a2b3=16"), at(server)]);

    // Existing variables are kept, unless an option replaces them.
    let variables = [("SIGNALBOX_SYSV_SERVER", &other.to_string()[..]), ("SIGNALBOX_SYSV_KEYS", "7")];
    let found = environment(server, &with(&[]), &variables).await;
    assert_eq!(found, [preload.clone(), keys("7"), at(other)]);
    let address = server.to_string();
    let options = ["--library", library, "--keys", "8", "--server", &address];
    let found = environment(other, &options, &variables).await;
    assert_eq!(found, [preload.clone(), keys("8"), at(server)]);

    // Programs get all addresses of a cluster, even those that do not answer now.
    let several = format!("127.0.0.1:1,no-such-host.invalid,{server}");
    let options = ["--library", library, "--keys", "all", "--server", &several];
    let found = environment(other, &options, &[]).await;
    let with_ports = format!("127.0.0.1:1,no-such-host.invalid:11215,{server}");
    assert_eq!(found[2], format!("SIGNALBOX_SYSV_SERVER={with_ports}"));
    let variables = [("SIGNALBOX_SYSV_SERVER", &format!("127.0.0.1:1, {server}")[..])];
    let found = environment(other, &with(&["--keys", "all"]), &variables).await;
    assert_eq!(found[2], format!("SIGNALBOX_SYSV_SERVER=127.0.0.1:1,{server}"));

    // A file can have the same settings as the variables.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sysv.conf");
    fs::write(&file, format!("# locks\nserver = \"{other}\"\nkeys = 1-5\n")).unwrap();
    let file = file.to_str().unwrap();
    let config = format!("SIGNALBOX_SYSV_CONFIG={file}");
    let found = environment(server, &["--library", library, "--config", file], &[]).await;
    assert_eq!(found, [preload.clone(), config.clone(), at(other)]);
    let found = environment(server, &with(&[]), &[("SIGNALBOX_SYSV_CONFIG", file)]).await;
    assert_eq!(found, [preload, config, at(other)]);
}

#[tokio::test]
async fn the_command_replaces_run() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let library = any_library();
    let library = library.to_str().unwrap();
    let run = |command: &[&str]| {
        let arguments = [&["sysv", "run", "--keys", "all", "--library", library, "--"], command].concat();
        program_at(server, &arguments)
    };
    let child = run(&["sh", "-c", "echo $$; exit 3"]).spawn().unwrap();
    let pid = child.id().unwrap();
    let output = finished(child).await;
    assert_eq!((output.status.code(), stderr(&output)), (Some(3), ""));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{pid}\n"), "no parent is left behind");
    for (command, status, message) in [
        (&["/nonexistent"][..], 127, "command \"/nonexistent\" not found; check its path"),
        (&["/etc/passwd"], 126, "cannot run command \"/etc/passwd\": Permission denied"),
    ] {
        assert_fails(&finished(run(command).spawn().unwrap()).await, status, message);
    }
}

#[tokio::test]
async fn run_starts_no_command_with_settings_that_the_library_refuses() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let library = SysvProgram::library();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sysv.conf");
    fs::write(&file, "timeout = 5d\n").unwrap();
    let file = file.to_str().unwrap();
    for (variable, value, message) in [
        (
            "SIGNALBOX_SYSV_TIMEOUT",
            "5d",
            "SIGNALBOX_SYSV_TIMEOUT: \"5d\" is not a time; write 500ms, 10s or 2m",
        ),
        ("SIGNALBOX_SYSV_TLL", "5s", "there is no setting \"tll\""),
        ("SIGNALBOX_TOKEN_FILE", "/nonexistent", "/nonexistent"),
        ("SIGNALBOX_SYSV_CONFIG", file, "sysv.conf, line 1: \"5d\" is not a time"),
    ] {
        let arguments =
            ["sysv", "run", "--keys", "all", "--library", library.to_str().unwrap(), "--", "true"];
        let mut command = program_at(server, &arguments);
        command.env(variable, value);
        assert_fails(&finished(command.spawn().unwrap()).await, 64, message);
    }
}

#[tokio::test]
async fn run_starts_no_command_that_the_library_cannot_be_loaded_into() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let library = any_library();
    let directory = crate::support::daemon::open_directory();
    let executable = |name: &str, content: &[u8], mode: u32| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let run = async |command: &str| {
        let arguments =
            ["sysv", "run", "--keys", "all", "--library", library.to_str().unwrap(), "--", command];
        let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
        finished(program_at(server, &arguments).env("PATH", path).spawn().unwrap()).await
    };
    // A program that is linked dynamically, and copies of it with another header.
    let program = fs::read("/proc/self/exe").unwrap()[..0x4000].to_vec();
    let entries = usize::from_ne_bytes(program[32..40].try_into().unwrap());
    let interpreter = (0..usize::from(program[56])).map(|index| entries + index * 56);
    let interpreter = interpreter.into_iter().find(|at| program[*at] == 3).expect("it is linked dynamically");
    let with = |at: usize, byte: u8| {
        let mut program = program.clone();
        program[at] = byte;
        program
    };
    let unlinked = executable("unlinked", &with(interpreter, 0), 0o755);
    let script = executable("script", format!("#! {unlinked} -x\n").as_bytes(), 0o755);
    executable("nested", format!("#!{script}\n").as_bytes(), 0o755);
    executable("narrow", &with(4, 1), 0o755);
    executable("foreign", &with(18, 1), 0o755);
    let round = directory.path().join("round").to_str().unwrap().to_owned();
    executable("round", format!("#!{round}\n").as_bytes(), 0o755);
    for (command, message) in [
        (&unlinked[..], "it is linked statically"),
        ("unlinked", "it is linked statically"),
        ("script", "it is linked statically"),
        ("nested", "it is linked statically"),
        ("narrow", "it is a program for another machine"),
        ("foreign", "it is a program for another machine"),
        ("round", "more than 4 scripts interpret each other"),
    ] {
        assert_fails(&run(command).await, 71, message);
    }
    executable("greeting", b"#!/bin/sh\necho hello\n", 0o755);
    executable("bare", b"echo hello\n", 0o755);
    for command in ["greeting", "bare"] {
        assert_eq!(stdout(&run(command).await), "hello\n", "{command}");
    }
    if is_root() {
        let changing = executable("changing", &program, 0o755);
        std::os::unix::fs::chown(&changing, Some(4711), Some(4712)).unwrap();
        for (mode, message) in [(0o4755, "runs as user 4711"), (0o2755, "runs with group 4712")] {
            fs::set_permissions(&changing, fs::Permissions::from_mode(mode)).unwrap();
            assert_fails(&run("changing").await, 71, message);
        }
    }
}

#[tokio::test]
async fn run_finds_the_library_beside_the_installed_program() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    // On the same file system as the program, which is large.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (bin, lib) = (directory.path().join("bin"), directory.path().join("lib/signalbox"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&lib).unwrap();
    let installed = bin.join("signalbox");
    fs::hard_link(env!("CARGO_BIN_EXE_signalbox"), &installed).unwrap();
    let run = async || {
        let mut command = Command::new(&installed);
        command
            .args(["sysv", "run", "--keys", "all", "--", "env"])
            .env("SIGNALBOX_SERVER", server.to_string());
        soon("the program to end", command.output()).await.unwrap()
    };
    assert_fails(&run().await, 71, "the library \"libsignalbox_sysv.so\" is neither in \"");
    for path in [bin.join("libsignalbox_sysv.so"), lib.join("libsignalbox_sysv.so")] {
        fs::copy(any_library(), &path).unwrap();
        let found = format!("LD_PRELOAD={}", path.canonicalize().unwrap().display());
        let output = run().await;
        assert!(stdout(&output).lines().any(|line| line == found), "{output:?}");
    }
}

#[tokio::test]
async fn run_starts_nothing_without_the_library_or_the_server() {
    let server = FakeServer::bind().await;
    let library = any_library();
    let library = library.to_str().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let in_directory = |name: &str, content: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let text = in_directory("text.so", b"not a library, but long enough for one");
    let spaced = in_directory("a b.so", &fs::read(library).unwrap());
    let no_port = in_directory("no-port.conf", b"server = box\nkeys = all\n");
    let several = "127.0.0.1:1,no-such-host.invalid";
    let run = |address: SocketAddr, options: &[&str]| {
        let arguments = [&["sysv", "run"], options, &["--", "echo", "started"]].concat();
        finished(program_at(address, &arguments).spawn().unwrap())
    };
    let mut daemon = Daemon::start();
    let real = daemon.address("counter");
    let with_library = &["--keys", "all", "--library", library][..];
    for (options, status, message) in [
        (&["--library", library][..], 64, "no keys are selected"),
        (&["--keys", "all", "--library", "/nonexistent.so"], 71, "cannot be loaded: No such file"),
        (&["--keys", "all", "--library", &text], 71, "not a shared library for this machine"),
        (&["--keys", "all", "--library", &spaced], 71, "LD_PRELOAD cannot have a path with a space"),
        (&["--config", "/nonexistent.conf"], 64, "cannot be read"),
        (&["--config", &no_port], 64, "\"server\" in "),
        (&[with_library, &["--server", several, "--timeout", "1"]].concat(), 69, "has answered within 1 s"),
    ] {
        let output = run(real, options).await;
        assert_eq!(output.stdout, b"");
        assert_fails(&output, status, message);
    }
    drop(daemon);
    assert_fails(&run(real, with_library).await, 69, "cannot connect to 127.0.0.1:");
    // A server without these operations.
    let running = tokio::spawn(run(server.address(), with_library));
    assert!(server.accept().await.next().await.is_none(), "it asks for nothing more");
    let output = running.await.unwrap();
    assert_eq!(output.stdout, b"");
    assert_fails(&output, 69, "the server does not support this operation");
}

//! The effects of a configuration file, and the messages that refuse an invalid one.

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::support::caller::{Caller, list, one_of};
use crate::support::daemon::*;
use crate::support::*;
use nix::sys::signal::Signal;
use nix::unistd::{User, geteuid};

/// The status of sysexits.h for an invalid configuration.
const EX_CONFIG: i32 = 78;

/// The status for an error of the operating system.
const EX_OSERR: i32 = 71;

fn check_config(file: &ConfigFile) -> Command {
    let mut command = Command::new(SIGNALBOX);
    command.args([OsStr::new("check-config"), file.path().as_os_str()]);
    command
}

/// Checks that `serve` and `check-config` refuse the file with a message that starts with `message`, although its port is in use.
#[track_caller]
fn refused(file: &ConfigFile, message: &str) {
    for command in [serve_file(&file.path()), check_config(file)] {
        let what = format!("{command:?}");
        let output = outcome(command);
        let said = stderr(&output);
        assert!(said.starts_with(&format!("signalbox: {message}")), "{what}: {message}: {said}");
        assert_eq!(said.lines().count(), 1, "{what}: {said}");
        assert_eq!(output.status.code(), Some(EX_CONFIG), "{what}");
        assert_eq!(output.stdout, b"");
    }
}

#[test]
fn an_invalid_file_is_refused_with_file_line_key_and_value_before_anything_is_bound() {
    // A daemon that bound first would report that the port is in use.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let toml = |last: &str| {
        ConfigFile::toml(&format!("bind_ip = '127.0.0.1'\n[counter]\nenable = true\nport = {port}\n{last}\n"))
    };
    for (last, message) in [
        ("max_names = 'many'", "counter.max_names = 'many': must be a whole number"),
        ("max_connections = -1", "counter.max_connections = -1: must be a whole number"),
        ("stat_interval = 0", "counter.stat_interval = 0: must be a time in whole seconds from 1"),
        ("max_conections = 1", "counter.max_conections is not a key of signalbox; did you mean"),
    ] {
        let file = toml(last);
        refused(&file, &format!("{}:5: {message}", file.path().display()));
    }
    let yrmcds = |last: &str| {
        ConfigFile::yrmcds(&format!(
            "bind_ip = 127.0.0.1\ncounter.enable = true\ncounter.port = {port}\n{last}\n"
        ))
    };
    for (last, message) in [
        ("workers = many", "workers = many: must be a whole number from 1 to 1024"),
        ("log.threshold = loud", "log.threshold = loud: must be error, warning, info or debug"),
        ("counter.max_connections = 5X", "counter.max_connections = 5X: must be a whole number"),
    ] {
        let file = yrmcds(last);
        refused(&file, &format!("{}:4: {message}", file.path().display()));
    }
    // Only now, so that no daemon could bind the port until here.
    drop(taken);
}

#[test]
fn check_config_accepts_a_valid_file_and_binds_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let file = ConfigFile::toml(&format!("counter.port = {port}\n"));
    let output = outcome(check_config(&file));
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, format!("{}: the configuration is valid\n", file.path().display()));
}

#[test]
fn check_config_reports_all_mistakes_and_the_server_the_first_one() {
    let file = ConfigFile::toml("");
    let (directory, path) = (file.directory().display().to_string(), file.path().display().to_string());
    fs::write(file.directory().join("plain"), "").unwrap();
    fs::write(file.directory().join("tokens"), "x").unwrap();
    file.write(&format!(
        "bind_ip = ''\nworkers = 0\nfrobnicate = 1\nuser = 'no-such'\ndata_dir = '{directory}/plain'\n\
         log.file = '{directory}'\nlog.grants = '{directory}/none/grants'\nhttp.enable = true\nhttp.bind_ip = '::'\n[session]\nmin_ttl = 60\n[access]\ntokens = '{directory}/tokens'\n\
         audit_log = '{directory}/none/audit.log'\n"
    ));
    let output = outcome(check_config(&file));
    let (said, user) = (stderr(&output), "user = no-such: there is no such user");
    assert_eq!(output.status.code(), Some(EX_CONFIG), "{said}");
    let expected = [
        format!("{path}:2: workers = 0: must be a whole number from 1 to 1024"),
        format!("{path}:3: frobnicate is not a key of signalbox"),
        format!("{path}:11: session.min_ttl is 60 and session.default_ttl is 30"),
        "access.tokens: ".to_owned(),
        user.to_owned(),
        format!("log.file = {directory}: this is a directory"),
        format!("log.grants = {directory}/none/grants: the directory {directory}/none does not exist"),
        format!("data_dir = {directory}/plain: {directory}/plain is not a directory"),
        format!(
            "access.audit_log = {directory}/none/audit.log: the directory {directory}/none does not exist"
        ),
        "bind_ip: the server listens on every address".to_owned(),
        "http.bind_ip: the server listens on every address".to_owned(),
    ];
    for sentence in &expected {
        assert_eq!(said.matches(&format!("signalbox: {sentence}")).count(), 1, "{sentence}: {said}");
    }
    assert_eq!(said.lines().count(), expected.len(), "{said}");
    let output = outcome(serve_file(&file.path()));
    assert_eq!(output.status.code(), Some(EX_CONFIG));
    let said = stderr(&output);
    assert!(said.starts_with(&format!("signalbox: {}", expected[0])) && said.contains("(2 more: "), "{said}");
}

/// This is the user that the file names, not the one who runs the command.
#[test]
fn check_config_looks_for_directories_that_the_user_of_the_server_cannot_write() {
    use std::os::unix::fs::PermissionsExt;
    if !is_root() || User::from_name("nobody").ok().flatten().is_none() {
        skipped("the tests do not run as root, or there is no user nobody");
        return;
    }
    let file = ConfigFile::toml("");
    let data = file.directory().join("data");
    fs::create_dir(&data).unwrap();
    file.write(&format!("user = 'nobody'\ndata_dir = '{}'\n", data.display()));
    let status = |mode| {
        fs::set_permissions(&data, fs::Permissions::from_mode(mode)).unwrap();
        let output = outcome(check_config(&file));
        (output.status.code(), stderr(&output))
    };
    let (code, said) = status(0o755);
    assert_eq!(code, Some(EX_CONFIG), "{said}");
    assert!(said.contains("the user \"nobody\" cannot write to"), "{said}");
    assert_eq!(status(0o777), (Some(0), String::new()));
}

#[test]
fn a_port_in_use_is_refused_with_key_and_address() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (key, free) in [("counter", "semaphore"), ("semaphore", "counter")] {
        let mut command = serve::<&str>([]);
        command.args([&format!("--{key}-port"), &port, &format!("--{free}-port"), "0"]);
        let output = outcome(command);
        let said = stderr(&output);
        let message = format!("signalbox: {key}.port = {port}: the port cannot be bound: 127.0.0.1:{port}: ");
        assert!(said.contains(&message), "{message}: {said}");
        assert_eq!(output.status.code(), Some(EX_OSERR));
    }
}

#[test]
fn an_address_is_bound_once_even_if_another_one_covers_it() {
    // yrmcds.conf includes 127.0.0.1 too, as the default of virtual_ip.
    let yrmcds = |bind_ip| ConfigFile::yrmcds(&format!("bind_ip = {bind_ip}\ncounter.enable = true\n"));
    let toml = |bind_ip| ConfigFile::toml(&format!("bind_ip = '{bind_ip}'\nsemaphore.enable = false\n"));
    let has_ipv6 = TcpListener::bind("[::1]:0").is_ok();
    for (file, address) in [
        (yrmcds("0.0.0.0"), "0.0.0.0"),
        (yrmcds("::"), "[::]"),
        (toml("0.0.0.0 127.0.0.1"), "0.0.0.0"),
        (toml("127.0.0.1 0.0.0.0 ::"), "[::]"),
        (toml(":: ::1"), "[::]"),
    ] {
        if !has_ipv6 && address == "[::]" {
            skipped("for ::, this machine has no IPv6");
            continue;
        }
        let [port] = free_ports();
        let mut command = serve_file(&file.path());
        command.args(["--counter-port", &port.to_string()]);
        let mut daemon = Daemon::spawn(command);
        assert_eq!(text(&daemon.ready(), "counter"), format!("{address}:{port}"));
        assert_eq!(Wire::connect(([127, 0, 0, 1], port).into()).ask(NOOP, &[]).status, OK);
    }
    if has_ipv6 {
        let file = toml("0.0.0.0 ::1");
        let [port] = free_ports();
        let mut command = serve_file(&file.path());
        command.args(["--counter-port", &port.to_string()]);
        let addresses = Daemon::spawn(command).addresses("counter");
        assert_eq!(addresses.len(), 2, "0.0.0.0 does not cover IPv6: {addresses:?}");
    }
}

#[test]
fn a_log_file_that_cannot_be_opened_is_refused_with_its_path() {
    let directory = open_directory();
    let log = directory.path().join("no/such/directory.log");
    let file = ConfigFile::toml(&format!("log.file = '{}'\n", log.display()));
    let output = outcome(serve_file_on_any_ports(&file.path()));
    let message = format!("signalbox: the log file {} cannot be opened: ", log.display());
    assert!(stderr(&output).starts_with(&message), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(74));
}

#[test]
fn an_account_that_does_not_exist_is_refused() {
    if !is_root() {
        skipped("only root can switch to another account");
        return;
    }
    for key in ["user", "group"] {
        let file = ConfigFile::toml(&format!("{key} = 'no-such'\n"));
        let output = outcome(serve_file_on_any_ports(&file.path()));
        let message = format!("signalbox: {key} = no-such: there is no such {key}");
        assert!(stderr(&output).contains(&message), "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(77));
    }
}

/// Debian's stock file with counters enabled, with another port and another log file so that those of the machine are
/// not affected.
struct Stock {
    file: ConfigFile,
    log: std::path::PathBuf,
    port: u16,
}

impl Stock {
    fn new() -> Self {
        let stock = fs::read_to_string("/etc/yrmcds.conf")
            .unwrap_or_else(|_| include_str!("../data/yrmcds.conf").to_owned());
        let file = ConfigFile::yrmcds("");
        let log = file.directory().join("yrmcds.log");
        let [port] = free_ports();
        let mut text = stock;
        for (old, new) in [
            ("counter.enable = false", "counter.enable = true".to_owned()),
            ("counter.port = 11215", format!("counter.port = {port}")),
            ("/var/log/yrmcds.log", log.display().to_string()),
        ] {
            assert_eq!(text.matches(old).count(), 1, "{old}");
            text = text.replace(old, &new);
        }
        file.write(&text);
        Self { file, log, port }
    }

    /// Starts the daemon with this file, through `wrapper`.
    fn serve_within(&self, wrapper: &[&str]) -> Daemon {
        let path = self.file.path();
        let command = serve_within(wrapper, [OsStr::new("--config"), path.as_os_str()]);
        Daemon::spawn_with_log_file(command, &self.log)
    }
}

/// Asserts that all four ids of a thread are this one: real, effective, saved and file system.
#[track_caller]
fn assert_account(status: &str, field: &str, number: u32) {
    assert_eq!(identity(status, field), vec![number.to_string(); 4], "{status}");
}

/// The fields of a thread's identity in /proc/PID/task/TID/status.
fn identity<'a>(status: &'a str, field: &str) -> Vec<&'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.unwrap_or_else(|| panic!("no {field} {status}")).split_whitespace().collect()
}

#[test]
fn the_stock_file_of_yrmcds_with_counters_enabled_has_the_same_meaning() {
    if is_root() && !matches!(User::from_name("yrmcds"), Ok(Some(_))) {
        skipped("the file's user yrmcds does not exist here");
        return;
    }
    let stock = Stock::new();
    let mut daemon = stock.serve_within(&[]);
    let addresses = daemon.addresses("counter");
    let loopback: [SocketAddr; 2] =
        [(IpAddr::from([127, 0, 0, 1]), stock.port).into(), ([127, 0, 0, 2], stock.port).into()];
    for address in loopback {
        assert_eq!(Wire::connect(address).ask(NOOP, &[]).status, OK, "every address is served");
    }
    if TcpListener::bind("[::1]:0").is_ok() {
        assert_eq!(addresses, [format!("[::]:{}", stock.port).parse().unwrap()]);
        assert_eq!(
            Wire::connect(SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, stock.port)))
                .ask(NOOP, &[])
                .status,
            OK
        );
    }
    assert_eq!(text(&daemon.ready(), "semaphore"), "disabled");
    let names = daemon.of_each_thread("comm");
    let workers = names.iter().filter(|name| name.starts_with("worker-")).count() as u64;
    assert_eq!(number(&daemon.ready(), "workers"), workers);
    assert!(workers <= 4, "workers = 10 of the stock file is a limit: {names:?}");

    let unused = daemon.lines_with("not used");
    assert_eq!(unused.len(), 1, "{unused:?}");
    for key in ["temp_dir", "repl_port", "slave_timeout", "memory_limit"] {
        assert!(message(&unused[0]).contains(key), "{key}: {unused:?}");
    }
    let troubles: Vec<_> = daemon.log().into_iter().filter(|line| line["level"] != "info").collect();
    // It listens on every address, and has no rules.
    assert_eq!(troubles.len(), 1, "{troubles:?}");
    assert!(message(&troubles[0]).contains("access.anonymous"), "{troubles:?}");
}

#[test]
fn root_switches_to_the_user_of_the_stock_file_in_every_thread() {
    let user = User::from_name("yrmcds").ok().flatten();
    let Some(user) = user.filter(|_| is_root()) else {
        skipped("the tests do not run as root, or there is no user yrmcds");
        return;
    };
    let stock = Stock::new();
    // With supplementary groups of root, which must be dropped.
    let mut daemon = stock.serve_within(&["setpriv", "--groups=0,4"]);
    daemon.ready();
    let mut wire = Wire::connect(([127, 0, 0, 1], stock.port).into());
    assert_eq!(wire.acquire(b"name", 1, 1).status, OK);
    let statuses = daemon.of_each_thread("status");
    assert!(statuses.len() > 1, "the workers are among them");
    for status in statuses {
        assert_account(&status, "Uid:", user.uid.as_raw());
        assert_account(&status, "Gid:", user.gid.as_raw());
        assert!(identity(&status, "Groups:").is_empty(), "{status}");
        for set in ["CapPrm:", "CapEff:"] {
            assert_eq!(identity(&status, set), ["0000000000000000"], "{status}");
        }
    }
    let log = fs::metadata(&stock.log).unwrap();
    assert_eq!((log.uid(), log.gid(), log.mode() & 0o777), (user.uid.as_raw(), user.gid.as_raw(), 0o640));

    // It can still do what it needs later.
    fs::rename(&stock.log, stock.file.directory().join("yrmcds.log.1")).unwrap();
    daemon.signal(Signal::SIGHUP);
    daemon.logged_message("the configuration was read again");
    assert_eq!(fs::metadata(&stock.log).unwrap().uid(), user.uid.as_raw());
}

#[test]
fn a_user_without_a_group_key_gets_its_primary_group() {
    let user = User::from_name("nobody").ok().flatten();
    let Some(user) = user.filter(|_| is_root()) else {
        skipped("the tests do not run as root, or there is no user nobody");
        return;
    };
    let file = ConfigFile::toml("user = 'nobody'\n");
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    daemon.ready();
    for status in daemon.of_each_thread("status") {
        assert_account(&status, "Uid:", user.uid.as_raw());
        assert_account(&status, "Gid:", user.gid.as_raw());
        assert!(identity(&status, "Groups:").is_empty());
    }
}

/// Options override the environment, and the environment overrides the file.
#[test]
fn the_environment_overrides_the_file_and_options_override_both() {
    let file = ConfigFile::toml("semaphore.enable = false\ncounter.max_names = 5\n");
    let data = file.directory().join("data");
    let mut command = serve_file(&file.path());
    command
        .args(["--counter-port", "0", "--data-dir", "data"])
        .current_dir(file.directory())
        .env("SIGNALBOX_CONFIG_COUNTER__PORT", "1")
        .env("SIGNALBOX_CONFIG_COUNTER__MAX_NAMES", "2K")
        .env("SIGNALBOX_CONFIG_DATA_DIR", "/nonexistent/data")
        .env("SIGNALBOX_CONFIG_WORKERS", "3");
    let mut daemon = Daemon::spawn(command);
    assert_eq!(daemon.counter().stat("max_names"), 2048);
    assert_eq!(number(&daemon.logged_message("signalbox is ready"), "workers"), 3);
    assert_eq!(
        text(&daemon.logged_message("restored the durable state"), "data_dir"),
        data.to_str().unwrap()
    );
    assert_eq!(
        daemon.lines_with("counter.max_names is set to \"2K\" by SIGNALBOX_CONFIG_COUNTER__MAX_NAMES").len(),
        1
    );
    daemon.reload("the configuration was read again");
    assert!(daemon.lines_with("takes effect").is_empty(), "the environment applies to a reload too");

    let mut check = check_config(&file);
    check.env("SIGNALBOX_CONFIG_COUNTER__MAX_NAMES", "2K");
    let output = outcome(check);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stderr(&output).contains("counter.max_names is set to \"2K\" by SIGNALBOX_CONFIG_COUNTER__MAX_NAMES")
    );
}

/// The user of the server may write in the directory of the log, so it could make a link there.
#[test]
fn root_opens_the_log_file_as_the_configured_user() {
    if !is_root() || User::from_name("nobody").ok().flatten().is_none() {
        skipped("the tests do not run as root, or there is no user nobody");
        return;
    }
    let file = ConfigFile::toml("");
    let [log, secret] = ["server.log", "of-root"].map(|name| file.directory().join(name));
    file.write(&format!("user = 'nobody'\nsemaphore.enable = false\n[log]\nfile = '{}'\n", log.display()));
    fs::write(&secret, "root's\n").unwrap();
    std::os::unix::fs::symlink(&secret, &log).unwrap();
    let mut command = serve_file(&file.path());
    command.args(["--counter-port", "0"]);
    let output = outcome(command);
    assert_eq!(output.status.code(), Some(74), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("cannot be opened: Permission denied") && said.contains("\"user\""), "{said}");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "root's\n");

    // A link to a file of its own is followed, on SIGHUP too.
    fs::remove_file(&log).unwrap();
    let mut command = serve_file(&file.path());
    command.args(["--counter-port", "0"]);
    let mut daemon = Daemon::spawn_with_log_file(command, &log);
    daemon.ready();
    let user = User::from_name("nobody").unwrap().unwrap();
    let metadata = fs::metadata(&log).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (user.uid.as_raw(), user.gid.as_raw()));
    fs::remove_file(&log).unwrap();
    std::os::unix::fs::symlink(&secret, &log).unwrap();
    daemon.signal(Signal::SIGHUP);
    daemon.signal(Signal::SIGTERM);
    daemon.exit_status();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "root's\n");
}

#[test]
fn user_and_group_are_ignored_with_a_notice_if_root_did_not_start_the_daemon() {
    let stock = Stock::new();
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let (wrapper, uid): (&[&str], _) =
        if is_root() { (&as_nobody, 65_534) } else { (&[], geteuid().as_raw()) };
    if is_root() && !works("setpriv", &[&as_nobody[1..], &[SIGNALBOX, "--version"]].concat()) {
        skipped(&format!("setpriv is missing, or another account may not run {SIGNALBOX}"));
        return;
    }
    let mut daemon = stock.serve_within(wrapper);
    daemon.ready();
    let notices = daemon.lines_with("user and group are ignored");
    assert_eq!(notices.len(), 1, "{:?}", daemon.log());
    assert_eq!(notices[0]["level"], "info");
    let mut wire = Wire::connect(([127, 0, 0, 1], stock.port).into());
    assert_eq!(wire.ask(NOOP, &[]).status, OK);
    for status in daemon.of_each_thread("status") {
        assert_account(&status, "Uid:", uid);
    }
}

#[test]
fn a_configured_limit_is_declared_as_soon_as_its_counter_is_idle() {
    let file = ConfigFile::toml("");
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let mut holder = Caller::new(daemon.counter());
    let held = holder.take(one_of(2, b"gpu"));
    file.write("[[semaphore.declare]]\nname = 'gpu'\ncapacity = 2\n");
    daemon.reload("the configuration was read again");
    daemon.logged_message("clients hold or wait for the counter of this name");
    assert!(list(&mut holder, b"").is_empty());
    holder.give_back(held.grant);
    daemon.logged_message("the semaphore is declared now");
    assert_eq!(list(&mut holder, b"gpu").len(), 1);
}

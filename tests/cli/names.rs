//! A server's name with several addresses. A mount namespace gives the program an /etc/hosts of its own, which needs root.

use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;

use tokio::process::Command;

use super::{assert_fails, finished, stdout};
use crate::support::daemon::{ConfigFile, Daemon, is_root, serve_file_on_any_ports, works};
use crate::support::skipped;

/// The program with the server `box`, which has these addresses, all with one port. `None` if this system does not allow that.
fn program_at_name(
    addresses: &[SocketAddr],
    arguments: &[&str],
) -> Option<(Command, tempfile::NamedTempFile)> {
    if !is_root() || !works("unshare", &["--mount", "true"]) {
        skipped("mount namespaces cannot be created here; that needs root");
        return None;
    }
    let hosts = tempfile::NamedTempFile::new().unwrap();
    let lines: String = addresses.iter().map(|address| format!("{} box\n", address.ip())).collect();
    std::fs::write(hosts.path(), lines).unwrap();
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""])
        .arg(hosts.path())
        .arg(env!("CARGO_BIN_EXE_signalbox"))
        .args(arguments)
        .env("SIGNALBOX_SERVER", format!("box:{}", addresses[0].port()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    Some((command, hosts))
}

/// A server, and an address with the same port at which connections are accepted and nothing is answered.
fn beside_a_silent_one() -> (Daemon, TcpListener, [SocketAddr; 2]) {
    // Of several loopback addresses, clients try 127.0.0.1 first, because unbound sockets have it as their source.
    let file = ConfigFile::toml("bind_ip = '127.0.0.2'\n");
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let server = daemon.address("counter");
    let silent = TcpListener::bind(("127.0.0.1", server.port())).unwrap();
    silent.set_nonblocking(true).unwrap();
    let addresses = [silent.local_addr().unwrap(), server];
    (daemon, silent, addresses)
}

#[tokio::test]
async fn each_kind_of_command_finds_the_address_of_a_name_that_answers() {
    let (_daemon, silent, addresses) = beside_a_silent_one();
    for (arguments, expected) in [
        (&["ping"][..], "answer from box:"),
        (&["run", "plain", "--max", "1", "--", "echo", "plain"], "plain\n"),
        (&["run", "leased", "--max", "1", "--lease", "10", "--", "echo", "leased"], "leased\n"),
        (&["stats"], "curr_connections"),
        (&["bench", "--count", "10", "-c", "1", "--warmup", "0"], "10"),
    ] {
        let Some((mut command, _hosts)) = program_at_name(&addresses, arguments) else { return };
        let output = finished(command.spawn().unwrap()).await;
        assert!(stdout(&output).contains(expected), "{arguments:?}: {}", stdout(&output));
        assert!(silent.accept().is_ok(), "it was tried first");
    }
}

#[tokio::test]
async fn a_name_whose_addresses_do_not_answer_is_reported_with_one_of_them() {
    let (_daemon, _silent, [silent, _]) = beside_a_silent_one();
    let other = SocketAddr::from(([127, 0, 0, 3], silent.port()));
    let arguments = ["ping", "--timeout", "0.5"];
    let Some((mut command, _hosts)) = program_at_name(&[silent, other], &arguments) else { return };
    let output = finished(command.spawn().unwrap()).await;
    assert_fails(&output, 69, "no answer from");
    assert_fails(&output, 69, "(127.0.0.1)");
}

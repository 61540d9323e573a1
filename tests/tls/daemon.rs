//! The program with a section `[tls]`: its start, its log, and SIGHUP.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::certificates::{Authority, Files, for_loopback};
use crate::support::daemon::*;
use crate::support::*;
use crate::wire::{client_side, connect, connect_as, over};

/// A daemon with its configuration file.
pub struct Started {
    daemon: Daemon,
    _file: ConfigFile,
}

impl std::ops::Deref for Started {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl std::ops::DerefMut for Started {
    fn deref_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }
}

/// A daemon on any free ports, with these lines in its configuration.
pub fn started(lines: &str) -> Started {
    let file = ConfigFile::toml(lines);
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    daemon.ready();
    Started { daemon, _file: file }
}

/// The subject of the certificate that a server shows to openssl.
fn shown(daemon: &mut Daemon, authority: &Authority) -> String {
    let address = daemon.address("counter").to_string();
    let mut command = Command::new("openssl");
    command
        .args(["s_client", "-connect", &address, "-CAfile"])
        .arg(authority.file())
        .arg("-verify_return_error");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let subject = text.lines().find_map(|line| line.trim().strip_prefix("subject=")).map(str::to_owned);
    subject.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn unfinished_handshakes_of_a_client_take_only_its_share_of_the_memory() {
    let (authority, files) = for_loopback();
    let mut daemon = started(&format!("memory_max = '8M'\n{}", files.lines()));
    let address = daemon.address("counter");
    let mut honest = Wire::connect_from("127.0.0.2", address);
    // Another client's handshake, which has begun before all others.
    let mut client = client_side(&authority, None);
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let mut slow = connect_from("127.0.0.2", address);
    slow.write_all(&hello[..50]).unwrap();
    // Most of a first message, of 16,000 bytes.
    let most = [&b"\x16\x03\x01\x3e\x80\x01\x00\x3e\x7c"[..], &[0; 15_000]].concat();
    let mut many: Vec<_> = (0..300)
        .map(|_| {
            let mut stream = connect_from("127.0.0.1", address);
            // The server may have closed it.
            let _ = stream.write_all(&most);
            stream
        })
        .collect();
    eventually("the client has used up its share", || honest.stat("refused_shares") > 0);
    many[0].set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(!matches!(many[0].read(&mut [0]), Ok(1..)), "the oldest ones are closed");
    eventually("the memory is free", || honest.stat("used_memory") < 5 << 20);
    assert_eq!(honest.stat("refused_memory"), 0);
    slow.write_all(&hello[50..]).unwrap();
    while client.is_handshaking() {
        client.complete_io(&mut slow).unwrap();
    }
    let line = daemon.logged_message("a client has used up its share of a limit");
    assert_eq!((text(&line, "client"), text(&line, "limit")), ("127.0.0.1", "memory_max"));
}

#[test]
fn openssl_gets_an_answer_on_both_ports() {
    let (authority, files) = for_loopback();
    let mut daemon = started(&files.lines());
    for port in ["counter", "semaphore"] {
        let address = daemon.address(port).to_string();
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &address, "-quiet", "-verify_return_error", "-CAfile"]);
        command.arg(authority.file()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("openssl: {error}"));
        child.stdin.as_mut().unwrap().write_all(&frame(NOOP, *b"peer", &[])).unwrap();
        let mut answer = [0; 12];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut answer).unwrap();
        assert_eq!(answer, [0x91, NOOP, 0, 0, 0, 0, 0, 0, b'p', b'e', b'e', b'r']);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// A program that forwards requests over loopback may receive them from a network.
#[test]
fn where_plain_requests_must_be_local_forwarded_ones_over_http_are_refused() {
    let (_authority, files) = for_loopback();
    let file = ConfigFile::toml(&format!("{}tls.plain = 'loopback'\n", files.lines()));
    let mut command = serve_file_on_any_ports(&file.path());
    command.args(["--http-port", "0"]);
    let mut daemon = Daemon::spawn(command);
    let address = daemon.address("http");
    let answer = |headers: &str| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let request =
            format!("GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        std::io::read_to_string(stream).unwrap()
    };
    assert!(answer("").starts_with("HTTP/1.1 200 "));
    let refused = answer("X-Forwarded-For: 203.0.113.7\r\n");
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("\"tls_required\""), "{refused}");
}

#[test]
fn a_reload_takes_new_certificates_and_keeps_the_old_ones_if_the_new_ones_are_wrong() {
    let (authority, files) = for_loopback();
    let mut daemon = started(&files.lines());
    let mut before = connect(daemon.address("counter"), &authority);
    let replace = |by: &Files| {
        fs::copy(&by.certificate, &files.certificate).unwrap();
        fs::copy(&by.key, &files.key).unwrap();
    };
    let second = authority.sign("second", "IP:127.0.0.1,DNS:localhost");
    replace(&second);
    daemon.reload("the configuration was read again");
    assert!(shown(&mut daemon, &authority).contains("second"));

    // The key of another certificate.
    fs::copy(authority.sign("third", "").key, &files.key).unwrap();
    let line = daemon.reload("the certificates and the rules of TLS are left as they were");
    assert_eq!(line["level"], "error");
    assert!(text(&line, "error").contains("this is not the key of the first certificate"), "{line}");
    assert!(shown(&mut daemon, &authority).contains("second"));

    fs::write(&files.certificate, "no certificate").unwrap();
    let line = daemon.reload("the certificates and the rules of TLS are left as they were");
    assert!(text(&line, "error").contains("has no certificate in PEM"), "{line}");
    assert!(shown(&mut daemon, &authority).contains("second"));

    fs::remove_file(&files.key).unwrap();
    replace(&authority.sign("fourth", "IP:127.0.0.1,DNS:localhost"));
    daemon.reload("the configuration was read again");
    assert!(shown(&mut daemon, &authority).contains("fourth"));
    assert_eq!(before.ask(NOOP, &[]).status, OK, "connections outlive their certificates");
}

#[test]
fn a_reload_changes_the_rules_for_new_connections() {
    let (authority, files) = for_loopback();
    let file = ConfigFile::toml("");
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let mut plain = daemon.counter();
    assert_eq!(plain.ask(NOOP, &[]).status, OK);
    file.write(&format!("{}tls.plain = \"refuse\"\n", files.lines()));
    daemon.reload("the configuration was read again");
    assert_eq!(plain.ask(NOOP, &[]).status, OK, "it was connected before");
    let mut refused = daemon.counter();
    assert_eq!(refused.ask(NOOP, &[]).status, 0x87);
    assert!(refused.is_closed());
    let line = daemon.logged("a refusal", |line| line["fields"]["error"].is_string());
    assert!(text(&line, "error").contains("tls.plain"), "{line}");
    let mut wire = connect(daemon.address("counter"), &authority);
    file.write("");
    daemon.reload("the configuration was read again");
    assert_eq!(daemon.counter().ask(NOOP, &[]).status, OK);
    assert_eq!(wire.ask(NOOP, &[]).status, OK);
}

#[test]
fn the_log_names_a_client_by_its_certificate() {
    let (authority, files) = for_loopback();
    let lines = format!(
        "{}tls.client_ca = '{}'\nlog.threshold = \"debug\"\n",
        files.lines(),
        authority.file().display()
    );
    let mut daemon = started(&lines);
    for (name, alternative_names, expected) in [
        (
            "first",
            "URI:spiffe://example.org/worker,DNS:Worker.example.org,DNS:other",
            "dns:worker.example.org",
        ),
        ("second", "URI:spiffe://example.org/worker", "uri:spiffe://example.org/worker"),
        ("third", "", "cn:third"),
    ] {
        let client = authority.sign(name, alternative_names);
        let mut wire = connect_as(daemon.address("counter"), &authority, &client);
        assert_eq!(wire.acquire(b"name", 1, 1).status, OK);
        assert_eq!(wire.release(b"name", 1).status, OK);
        let expected = format!("(certificate of \"{expected}\")");
        daemon.logged(&expected, |line| {
            message(line) == "TLS established" && text(line, "client").ends_with(&expected)
        });
    }
    let anonymous = connect(daemon.address("counter"), &authority);
    let port = anonymous.stream.sock.local_addr().unwrap().to_string();
    daemon.logged("one without", |line| message(line) == "TLS established" && text(line, "client") == port);
}

#[test]
fn failed_handshakes_are_logged_once_and_counted() {
    let (_authority, files) = for_loopback();
    let mut daemon = started(&files.lines());
    let stranger = Authority::new();
    for _ in 0..3 {
        let stream = std::net::TcpStream::connect(daemon.address("counter")).unwrap();
        assert!(over(stream, &stranger, None).is_err());
    }
    eventually("they are counted", || daemon.counter().stat("failed_handshakes") == 3);
    let line = daemon.logged_message("connection closed");
    assert!(text(&line, "error").contains("the TLS handshake failed"), "{line}");
    assert_eq!(daemon.lines_with("connection closed").len(), 1, "the rate is limited");
}

#[test]
fn a_certificate_that_has_expired_is_a_warning() {
    let authority = Authority::new();
    let expired = authority.sign_expired("server", "IP:127.0.0.1");
    let mut daemon = started(&expired.lines());
    let file = expired.certificate.display();
    let warning = format!("tls.cert = {file}: a certificate has expired; replace it and send SIGHUP");
    assert_eq!(daemon.logged_message(&warning)["level"], "warning");
    daemon.reload("the configuration was read again");
    assert_eq!(daemon.lines_with(&warning).len(), 1, "it is logged once");
}

#[test]
fn check_config_looks_at_the_files_of_certificates_and_tokens() {
    let authority = Authority::new();
    let (good, expired) = (authority.sign("good", ""), authority.sign_expired("old", ""));
    let tokens = authority.file().with_file_name("tokens.toml");
    let check = |lines: &str| {
        let file = ConfigFile::toml(lines);
        let output = Command::new(SIGNALBOX).arg("check-config").arg(file.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(check(&good.lines()), (Some(0), String::new()));
    let (status, said) = check(&expired.lines());
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("tls.cert = ") && said.contains("a certificate has expired; replace it"), "{said}");
    let missing = good.lines().replace("good.key", "missing.key");
    let (status, said) = check(&missing);
    assert_eq!(status, Some(0), "{said}");
    assert!(
        said.contains("missing.key: the file cannot be read") && said.contains("was not checked"),
        "{said}"
    );
    let (status, said) = check(&good.lines().replace("good.key", "old.key"));
    assert_eq!(status, Some(78), "{said}");
    assert!(said.contains("this is not the key of the first certificate"), "{said}");
    // The files for etcd.
    let etcd = format!(
        "[cluster]\netcd = 'https://127.0.0.1:2379'\netcd_ca = '{}'\netcd_cert = '{}'\netcd_key = '{}'\n",
        authority.file().display(),
        expired.certificate.display(),
        expired.key.display()
    );
    let (status, said) = check(&etcd);
    assert_eq!(status, Some(0), "{said}");
    assert!(
        said.contains("cluster.etcd_cert = ") && said.contains("has expired; replace it and restart"),
        "{said}"
    );
    // A token that has expired, and a file that cannot be used.
    let mut create = Command::new(SIGNALBOX);
    create.args(["token", "create", "web", "--rights", "all", "--expires-in", "1s", "--file"]).arg(&tokens);
    assert!(create.output().unwrap().status.success());
    let lines = format!("access.tokens = '{}'\n", tokens.display());
    eventually("the token has expired", || check(&lines).1.contains("the token \"web\" has expired"));
    fs::write(&tokens, "x").unwrap();
    let (status, said) = check(&lines);
    assert_eq!(status, Some(78), "{said}");
    assert!(said.contains("access.tokens: "), "{said}");
}

#[test]
fn a_server_that_requires_tls_is_healthy() {
    let (_authority, files) = for_loopback();
    let file = ConfigFile::toml("");
    let [counter, semaphore] = crate::support::ports::free_ports();
    let ports = format!("counter.port = {counter}\nsemaphore.port = {semaphore}\n");
    let lines = format!("tls.plain = 'refuse'\naccess.anonymous = 'none'\n{}", files.lines());
    file.write(&format!("{ports}{lines}"));
    let mut daemon = Daemon::spawn(serve_file(&file.path()));
    daemon.ready();
    let ping = || {
        let mut command = Command::new(SIGNALBOX);
        command.arg("ping").arg("--config").arg(file.path()).env("SIGNALBOX_SERVER", "192.0.2.1");
        command.output().unwrap()
    };
    let output = ping();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(&format!("answer from 127.0.0.1:{counter}: number=1")), "{said}");
    drop(daemon);
    let output = ping();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(
        said.contains(&format!("the server of this configuration (127.0.0.1:{counter}) does not answer")),
        "{said}"
    );
}

#[test]
fn files_that_cannot_be_used_prevent_the_start() {
    let (authority, files) = for_loopback();
    let other = authority.sign("other", "");
    let path = |path: &std::path::Path| format!("'{}'", path.display());
    let (certificate, key) = (path(&files.certificate), path(&files.key));
    for (lines, expected) in [
        (format!("tls.cert = {certificate}\n"), "tls.cert is set, but tls.key is not"),
        (format!("tls.cert = {certificate}\ntls.key = {}\n", path(&other.key)), "tls.key = "),
        (format!("tls.cert = {key}\ntls.key = {key}\n"), "has no certificate in PEM"),
        (format!("tls.cert = {certificate}\ntls.key = {certificate}\n"), "has no private key in PEM"),
        (
            format!("tls.cert = '/nonexistent'\ntls.key = {key}\n"),
            "tls.cert = /nonexistent: the file cannot be read",
        ),
        (format!("{}tls.client_cert = \"required\"\n", files.lines()), "tls.client_ca is not"),
        (format!("{}tls.plain = \"never\"\n", files.lines()), "must be allow, loopback or refuse"),
    ] {
        let file = ConfigFile::toml(&lines);
        let output = outcome(serve_file_on_any_ports(&file.path()));
        assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

#[test]
fn the_key_is_read_before_root_is_given_up() {
    if !is_root() {
        return skipped("it has to start as root");
    }
    let (authority, files) = for_loopback();
    let mut daemon = started(&format!("user = \"nobody\"\n{}", files.lines()));
    assert_eq!(connect(daemon.address("counter"), &authority).ask(NOOP, &[]).status, OK);
    // The folder of the key belongs to root alone.
    let line = daemon.reload("the certificates and the rules of TLS are left as they were");
    assert!(text(&line, "error").contains("on SIGHUP as the configured one"), "{line}");
    assert_eq!(connect(daemon.address("counter"), &authority).ask(NOOP, &[]).status, OK);
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.exit_status().success());
}

#[test]
fn rules_give_rights_by_the_names_in_a_certificate() {
    let (authority, files) = for_loopback();
    let lines = format!(
        "{}tls.client_ca = '{}'\naccess.certificates = ['dns:worker.Example.org acquire counter:web/', \
         'uri:spiffe://example.org/Worker acquire counter:web/', 'cn:worker acquire counter:web/', '* none']\n\
         access.networks = ['127.0.0.0/8 read']\n",
        files.lines(),
        authority.file().display()
    );
    let mut daemon = started(&lines);
    let not_permitted = signalbox_model::Status::NotPermitted.code();
    for (names, acquired, read) in [
        (Some(("worker", "")), OK, not_permitted),
        (Some(("worker", "DNS:first.example.org")), OK, not_permitted),
        (Some(("a", "DNS:first.example.org,DNS:WORKER.example.org")), OK, not_permitted),
        (
            Some(("b", "DNS:first.example.org,URI:spiffe://a/b,URI:spiffe://example.org/Worker")),
            OK,
            not_permitted,
        ),
        (Some(("other", "")), not_permitted, not_permitted),
        // The same texts elsewhere, or in another case.
        (Some(("worker.example.org", "")), not_permitted, not_permitted),
        (Some(("Worker", "")), not_permitted, not_permitted),
        (Some(("c", "DNS:worker")), not_permitted, not_permitted),
        (Some(("d", "URI:spiffe://example.org/worker")), not_permitted, not_permitted),
        (None, not_permitted, NOT_FOUND),
    ] {
        let address = daemon.address("counter");
        let mut wire = match names {
            Some((common, alternative)) => {
                connect_as(address, &authority, &authority.sign(common, alternative))
            }
            None => connect(address, &authority),
        };
        assert_eq!(wire.acquire(b"web/1", 1, 1).status, acquired, "{names:?}");
        assert_eq!(wire.acquire(b"other", 1, 1).status, not_permitted, "{names:?}");
        assert_eq!(wire.get(b"x").status, read, "{names:?}");
        if acquired == OK {
            assert_eq!(wire.release(b"web/1", 1).status, OK);
        }
    }
}

#[test]
fn a_rule_about_a_name_without_its_type_prevents_the_start() {
    let file = ConfigFile::toml("access.certificates = ['worker-1 read']\n");
    let output = outcome(serve_file_on_any_ports(&file.path()));
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains("a name with its type (dns:, uri: or cn:)"), "{}", stderr(&output));
}

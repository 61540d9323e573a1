//! The daemon behind proxies: what the log says of connections that do not fit `proxies`, and a real HAProxy with the
//! configuration of `docs/operations.md`.

use std::net::{SocketAddr, TcpStream};

use signalbox_model::Namespace;
use signalbox_protocol::Extended;

use crate::support::caller::Caller;
use crate::support::daemon::*;
use crate::support::documents::example;
use crate::support::haproxy::HaProxy;
use crate::support::*;

/// The document with the example that is tested here.
const OPERATIONS: &str = include_str!("../../docs/operations.md");

/// A header of the PROXY protocol for 203.0.113.7.
const HEADER: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x07\xc0\0\x02\x01\x12\x34\x2b\xcf";

#[test]
fn a_header_of_a_peer_that_is_no_proxy_is_logged_with_the_key_to_set() {
    let mut daemon = Daemon::start();
    for header in [HEADER, b"PROXY TCP4 203.0.113.7 192.0.2.1 4660 11215\r\n"] {
        let mut wire = daemon.counter();
        wire.send(header);
        assert_eq!(wire.answer().status, INVALID);
        assert!(wire.is_closed());
    }
    let line = daemon.logged("the first one is logged", |line| line["fields"]["error"].is_string());
    assert!(text(&line, "error").contains("PROXY protocol") && text(&line, "error").contains("\"proxies\""));
    assert_eq!((line["level"].as_str(), message(&line)), (Some("warning"), "connection closed"));
    assert_eq!(daemon.counter().stat("bad_input"), 2);
    assert_eq!(daemon.lines_with("connection closed").len(), 1, "the rate is limited");
}

#[test]
fn proxies_on_loopback_are_warned_of() {
    for (proxies, expected) in
        [("127.0.0.2", true), ("10.0.0.0/8 ::/0", true), ("10.0.0.0/8 192.0.2.1", false)]
    {
        let file = ConfigFile::toml(&format!("proxies = '{proxies}'\n"));
        let mut check = std::process::Command::new(SIGNALBOX);
        check.arg("check-config").arg(file.path());
        let output = outcome(check);
        assert_eq!(
            (output.status.code(), stderr(&output).contains("state any client address")),
            (Some(0), expected)
        );
        let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
        daemon.ready();
        let warned = daemon.lines_with("state any client address");
        assert_eq!(!warned.is_empty(), expected, "{proxies}");
        assert!(warned.iter().all(|line| line["level"] == "warning"), "{warned:?}");
    }
}

#[test]
fn haproxy_as_documented_lets_clients_keep_their_addresses() {
    if !HaProxy::is_installed() {
        return;
    }
    let example = |language| example(OPERATIONS, "## Behind a load balancer", language);
    let file = ConfigFile::toml(&format!("{}\n[log]\nthreshold = \"debug\"\n", example("toml")));
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let servers = ["counter", "semaphore"].map(|port| daemon.address(port));
    let proxies = free_ports::<2>().map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let mut addresses = Vec::new();
    for (ip, replacements) in [("192.0.2.1", proxies), ("127.0.0.1", servers)] {
        for (port, address) in [11215, 11216].into_iter().zip(replacements) {
            addresses.push((format!("{ip}:{port}"), address.to_string()));
        }
    }
    let _haproxy = HaProxy::start(example("haproxy"), &addresses, file.directory());

    for (namespace, proxy) in Namespace::ALL.into_iter().zip(proxies) {
        eventually("HAProxy listens", || TcpStream::connect(proxy).is_ok());
        let mut client = Wire::connect_from("127.0.0.3", proxy);
        assert_eq!(client.acquire(b"held", 1, 1).status, OK);
        // The tools of the server's machine connect without a proxy.
        let direct = match namespace {
            Namespace::Counters => daemon.counter(),
            Namespace::Semaphores => daemon.semaphore(),
        };
        let mut lister = Caller::new(direct);
        let opaque = lister.send(&Extended::Holders { namespace, name: b"held" });
        let holder = lister.answer(opaque).list_entry().unwrap().expect("there is a holder");
        let address = client.stream.local_addr().unwrap().to_string();
        assert_eq!(str::from_utf8(&holder.address).unwrap(), address);
        lister.answer(opaque);
        assert_eq!(client.release(b"held", 1).status, OK);
        assert_eq!(client.acquire(b"held", 1, 1).status, OK);
        drop(client);
        eventually("the end of the client reaches the server", || {
            lister.wire.acquire(b"held", 1, 1).status == OK
        });
        assert_eq!(lister.wire.stat("bad_input"), 0);
    }
    // A health check sends a header without an address.
    for port in ["counter", "semaphore"] {
        daemon.logged("a health check", |line| {
            let fields = &line["fields"];
            message(line) == "header received" && fields["port"] == *port && fields["client"].is_null()
        });
    }
}

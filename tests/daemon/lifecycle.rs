//! The daemon from start to stop: its listeners, its log, its shutdown.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::support::caller::{Caller, LONG, one_of};
use crate::support::daemon::*;
use crate::support::*;
use nix::sys::signal::Signal;
use signalbox_model::{Notice, Status};

#[test]
fn without_a_file_both_namespaces_answer_on_loopback_only() {
    let mut daemon = Daemon::start();
    for port in ["counter", "semaphore"] {
        let address = daemon.address(port);
        assert_eq!(address.ip(), IpAddr::from([127, 0, 0, 1]));
        let mut wire = Wire::connect(address);
        assert_eq!(wire.acquire(b"name", 1, 1).status, OK, "each port has its own namespace");
        for elsewhere in [IpAddr::from([127, 0, 0, 2]), "::1".parse().unwrap()] {
            assert!(TcpStream::connect((elsewhere, address.port())).is_err(), "{port} on {elsewhere}");
        }
    }
}

#[test]
fn any_address_can_be_bound() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        skipped("this machine has no ::1");
        return;
    }
    let mut command = serve(ANY_PORTS);
    command.args(["--bind", "::1"]);
    let mut daemon = Daemon::spawn(command);
    for port in ["counter", "semaphore"] {
        let address = daemon.address(port);
        assert_eq!(address.ip(), "::1".parse::<IpAddr>().unwrap());
        assert_eq!(Wire::connect(address).ask(NOOP, &[]).status, OK);
        let other_family = SocketAddr::from(([127, 0, 0, 1], address.port()));
        assert!(TcpStream::connect(other_family).is_err());
    }
}

#[test]
fn a_virtual_ip_that_is_not_present_is_bound_beside_bind_ip() {
    // TEST-NET-1: no machine has this address, and nothing is sent there.
    let file = ConfigFile::toml("virtual_ip = '192.0.2.1'\nsemaphore.enable = false\n");
    let [port] = free_ports();
    let mut command = serve_file(&file.path());
    command.args(["--counter-port", &port.to_string()]);
    let mut daemon = Daemon::spawn(command);
    let mut addresses = daemon.addresses("counter");
    addresses.sort();
    assert_eq!(addresses, [([127, 0, 0, 1], port).into(), ([192, 0, 2, 1], port).into()]);
    assert_eq!(Wire::connect(addresses[0]).ask(NOOP, &[]).status, OK);
    assert!(listens([192, 0, 2, 1], port));
    assert!(daemon.lines_with("does not have the address").is_empty(), "it may be elsewhere");
}

/// Whether a socket listens at this address.
fn listens(address: [u8; 4], port: u16) -> bool {
    // The file has the bytes in memory order, in hexadecimal; 0A is a listening socket.
    let number = u32::from_ne_bytes(address);
    let line = format!(" {number:08X}:{port:04X} 00000000:0000 0A ");
    std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&line)
}

#[test]
fn addresses_that_are_not_present_are_bound_with_a_warning() {
    let file = ConfigFile::toml(
        "bind_ip = ['127.0.0.1', '192.0.2.1']\nsemaphore.enable = false\nhttp.bind_ip = '203.0.113.1'\n",
    );
    let [port, http] = free_ports();
    let mut command = serve_file(&file.path());
    command.args(["--counter-port", &port.to_string(), "--http-port", &http.to_string()]);
    let mut daemon = Daemon::spawn(command);
    daemon.ready();
    assert_eq!(Wire::connect(([127, 0, 0, 1], port).into()).ask(NOOP, &[]).status, OK);
    assert!(listens([192, 0, 2, 1], port) && listens([203, 0, 113, 1], http));
    let warned = daemon.lines_with("this machine does not have the address");
    let addresses: Vec<_> = warned.iter().map(|line| text(line, "address").to_owned()).collect();
    assert_eq!(addresses, [format!("192.0.2.1:{port}"), format!("203.0.113.1:{http}")]);
}

#[test]
fn there_are_half_as_many_workers_as_cores_by_default() {
    let mut daemon = Daemon::start();
    let cores = std::thread::available_parallelism().unwrap().get() as u64;
    assert_eq!(number(&daemon.ready(), "workers"), (cores / 2).clamp(1, 4));
}

#[test]
fn one_line_at_start_states_version_ports_and_limits() {
    let file = ConfigFile::toml(
        "workers = 3\n[counter]\nmax_connections = 7\nmax_names = 8\n[semaphore]\nmax_names = 9\n",
    );
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let ready = daemon.ready();
    assert_eq!(ready["level"], "info");
    assert_eq!(text(&ready, "version"), env!("CARGO_PKG_VERSION"));
    for (field, value) in [
        ("workers", 3),
        ("counter_max_connections", 7),
        ("counter_max_names", 8),
        ("semaphore_max_connections", 0),
        ("semaphore_max_names", 9),
    ] {
        assert_eq!(number(&ready, field), value, "{field}: {ready}");
    }
    assert!(number(&ready, "files_max") > 0, "{ready}");
    for port in ["counter", "semaphore"] {
        assert_ne!(daemon.address(port).port(), 0);
    }
    assert_eq!(daemon.lines_with("ready").len(), 1);
}

#[test]
fn a_port_that_is_not_enabled_is_logged_as_disabled() {
    let file = ConfigFile::toml("counter.enable = false\n");
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let ready = daemon.ready();
    assert_eq!(text(&ready, "counter"), "disabled");
    assert_eq!(daemon.semaphore().ask(NOOP, &[]).status, OK);
}

#[test]
fn sigterm_and_sigint_stop_the_daemon_with_success() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut daemon = Daemon::start();
        let mut wire = daemon.counter();
        assert_eq!(wire.acquire(b"held", 1, 1).status, OK);
        daemon.signal(signal);
        assert_eq!(daemon.exit_status().code(), Some(0));
        assert!(wire.is_closed());
        assert_eq!(daemon.lines_with("stopped").len(), 1, "{}", daemon.said());
    }
}

/// Names whose Dump is several times larger than the socket buffers between two processes.
const NAMES: u32 = 20_000;

/// A daemon with many long names, which the returned connection holds.
fn filled() -> (Daemon, Wire) {
    let mut daemon = Daemon::start();
    let mut holder = daemon.counter();
    for chunk in (0..NAMES).collect::<Vec<_>>().chunks(1000) {
        let burst = chunk
            .iter()
            .flat_map(|i| frame(ACQUIRE, i.to_be_bytes(), &named(&[1, 1], format!("{i:0>1000}").as_bytes())));
        holder.send(&burst.collect::<Vec<u8>>());
        for _ in chunk {
            assert_eq!(holder.answer().status, OK);
        }
    }
    (daemon, holder)
}

/// Requests a Dump on a connection with a small receive buffer, and reads its first entry.
fn slow_reader(address: SocketAddr) -> Wire {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    socket.connect(&address.into()).unwrap();
    let mut reader = Wire::over(socket.into());
    reader.send(&frame(DUMP, *b"dump", &[]));
    assert!(!reader.answer().body.is_empty());
    reader
}

/// Reads the rest of a Dump over at least a second, and returns the number of entries.
fn read_slowly(reader: &mut Wire) -> u32 {
    let mut entries = 1;
    while !reader.answer().body.is_empty() {
        entries += 1;
        if entries % (NAMES / 100) == 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    entries
}

#[test]
fn dumps_in_progress_at_a_stop_arrive_completely_and_no_connection_is_accepted() {
    let (mut daemon, holder) = filled();
    let address = daemon.address("counter");
    let [mut reader, mut other] = [slow_reader(address), slow_reader(address)];
    // The server does not read this during the Dump. Closing a socket with unread input resets the connection and
    // discards its unsent output.
    other.send(&frame(NOOP, *b"more", &[]));
    daemon.signal(Signal::SIGTERM);
    daemon.logged_message("stopping");
    eventually("connections are refused", || TcpStream::connect(address).is_err());
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(read_slowly(&mut other), NAMES));
        assert_eq!(read_slowly(&mut reader), NAMES);
    });
    assert!(reader.is_closed());
    assert_eq!(daemon.exit_status().code(), Some(0));
    assert!(daemon.lines_with("did not take").is_empty(), "{}", daemon.said());
    drop(holder);
}

#[test]
fn a_client_that_never_reads_does_not_prevent_a_stop() {
    let (mut daemon, holder) = filled();
    let reader = slow_reader(daemon.address("counter"));
    let started = Instant::now();
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.exit_status().code(), Some(0));
    eprintln!("it stopped after {:?}", started.elapsed());
    assert_eq!(daemon.lines_with("did not take").len(), 1, "{}", daemon.said());
    drop((holder, reader));
}

#[test]
fn busy_clients_do_not_prevent_a_stop() {
    let mut daemon = Daemon::start();
    let mut watcher = daemon.counter();
    let clients: Vec<_> = (0..4u32)
        .map(|client| {
            let mut wire = daemon.counter();
            std::thread::spawn(move || {
                let burst: Vec<u8> = (0..16).flat_map(|_| frame(NOOP, client.to_be_bytes(), &[])).collect();
                while std::io::Write::write_all(&mut wire.stream, &burst).is_ok() {
                    for _ in 0..16 {
                        let Ok(answer) = wire.try_answer() else { return };
                        assert_eq!((answer.status, answer.opaque), (OK, client.to_be_bytes()));
                    }
                }
            })
        })
        .collect();
    eventually("all clients are busy", || watcher.stat("command:noop") > 1000);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.exit_status().code(), Some(0));
    for client in clients {
        client.join().unwrap();
    }
    assert!(daemon.lines_with("did not take").is_empty(), "{}", daemon.said());
}

#[test]
fn a_waiter_is_notified_of_a_stop() {
    let mut daemon = Daemon::start();
    let [mut holder, mut waiter] = [(); 2].map(|()| Caller::new(daemon.counter()));
    holder.take(one_of(1, b"a"));
    waiter.hello("waiter");
    let asked = waiter.want(one_of(1, b"a"), LONG);
    eventually("it waits", || holder.wire.stat("waiters") == 1);
    daemon.signal(Signal::SIGTERM);
    // The notice and the answer, in any order.
    let messages = [waiter.next(), waiter.next()];
    let answer = messages.iter().find(|message| message.opaque == asked).expect("the answer is among them");
    assert_eq!(answer.status, Status::ShuttingDown.code());
    let notice = messages.iter().find(|message| message.opaque != asked).expect("and the notice too");
    assert!(matches!(notice.notice(), Ok(Some(Notice::ShuttingDown))), "{notice:?}");
    assert!(waiter.wire.is_closed());
    assert!(daemon.exit_status().success());
}

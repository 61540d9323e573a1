//! Connections from proxies: the header that states the client's address, and what the address is used for.

use std::net::SocketAddr;
use std::time::Duration;

use signalbox::config::Config;
use signalbox_model::sysv::{Caller as User, IPC_CREAT, Operation, SEM_UNDO, SetCommand, SetId};
use signalbox_model::{Milliseconds, Namespace, Operation as Change, RequestId, RequestIds, Status};
use signalbox_protocol::{Extended, Opaque, Operations, ResponseFrame, SysvRequest, WAIT_FOREVER_MS};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::caller::Caller;
use crate::support::*;

/// The address of the proxy in most tests.
const PROXY: &str = "127.0.0.2";

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

pub(super) fn trusting(config: &mut Config) {
    config.proxies = vec![PROXY.parse().unwrap()];
}

/// A header of version 2: the byte of version and command, that of family and transport, and the rest.
fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[command, family][..], &length, rest].concat()
}

/// A header that states a client's address.
pub(super) fn header_of(client: &str) -> Vec<u8> {
    match client.parse().unwrap() {
        SocketAddr::V4(client) => {
            let ports = [client.port().to_be_bytes(), 11215_u16.to_be_bytes()].concat();
            header(0x21, 0x11, &[&client.ip().octets()[..], &[192, 0, 2, 1], &ports].concat())
        }
        SocketAddr::V6(client) => {
            let ports = [client.port().to_be_bytes(), 11215_u16.to_be_bytes()].concat();
            header(0x21, 0x21, &[&client.ip().octets()[..], &[0; 16], &ports].concat())
        }
    }
}

/// The header of a connection of the proxy itself.
fn local() -> Vec<u8> {
    header(0x20, 0x00, &[])
}

pub(super) fn from_proxy(server: &TestServer, header: &[u8]) -> Wire {
    let mut wire = Wire::connect_from(PROXY, server.counters);
    wire.send(header);
    wire
}

/// The address of the only holder of a counter.
fn address_of_holder(server: &TestServer, name: &[u8]) -> String {
    let mut lister = Caller::new(server.counter());
    let opaque = lister.send(&Extended::Holders { namespace: Namespace::Counters, name });
    let entry = lister.answer(opaque).list_entry().unwrap().expect("there is a holder");
    assert!(lister.answer(opaque).list_entry().unwrap().is_none(), "there is one holder");
    String::from_utf8(entry.address.to_vec()).unwrap()
}

/// The status of the answer to an administrative request: `NOT_FOUND` if it is permitted.
fn administration(wire: Wire) -> u8 {
    Caller::new(wire).change(Change::DeleteCounter { name: b"absent" }).status
}

const REFUSED: u8 = Status::NotPermitted as u8;

#[test]
fn a_header_may_be_split_anywhere() {
    let server = TestServer::start_with(trusting);
    let mut other = server.counter();
    for client in ["203.0.113.7:4660", "[2001:db8::7]:4660"] {
        let mut bytes = header_of(client);
        let header_bytes = bytes.len();
        bytes.extend(frame(ACQUIRE, *b"held", &named(&[1, 1], b"held")));
        for cut in 1..=header_bytes + 1 {
            let mut wire = from_proxy(&server, &bytes[..cut]);
            // The first piece is read separately: a round trip of another connection separates the two.
            assert_eq!(other.ask(NOOP, &[]).status, OK);
            wire.send(&bytes[cut..]);
            assert_eq!(wire.answer().status, OK, "{client} cut at {cut}");
            assert_eq!(address_of_holder(&server, b"held"), client);
            assert_eq!(wire.release(b"held", 1).status, OK);
        }
    }
    assert_eq!(server.counter().stat("bad_input"), 0);
}

#[test]
fn the_first_frames_may_come_with_the_header() {
    let server = TestServer::start_with(trusting);
    // Additional fields up to the limit of 536 bytes in all.
    let with_fields =
        header(0x21, 0x11, &[&[203, 0, 113, 7, 0, 0, 0, 0, 1, 0, 2, 0][..], &[4; 508]].concat());
    for header in [header_of("203.0.113.7:256"), with_fields] {
        let mut bytes = header;
        for serial in 0..500_u32 {
            bytes.extend(frame(ACQUIRE, serial.to_be_bytes(), &named(&[1, 1000], b"held")));
        }
        let mut wire = from_proxy(&server, &bytes);
        for serial in 0..500_u32 {
            let answer = wire.answer();
            assert_eq!((answer.status, answer.opaque), (OK, serial.to_be_bytes()));
        }
        assert_eq!(address_of_holder(&server, b"held"), "203.0.113.7:256");
        drop(wire);
        eventually("all is released", || server.counter().get(b"held").number() == 0);
    }
}

#[test]
fn a_connection_of_the_proxy_itself_has_the_proxys_address() {
    let server = TestServer::start_with(trusting);
    // LOCAL, with and without addresses; an unspecified family; a client on a Unix socket.
    let unspecified = header(0x21, 0x00, &[]);
    let local_with_addresses = header(0x20, 0x11, &[203, 0, 113, 7, 0, 0, 0, 0, 1, 0, 2, 0]);
    for header in [local(), local_with_addresses, unspecified, header(0x21, 0x31, &[0; 216])] {
        let mut wire = from_proxy(&server, &header);
        assert_eq!(wire.acquire(b"held", 1, 1).status, OK);
        let address: SocketAddr = address_of_holder(&server, b"held").parse().unwrap();
        assert_eq!(address, wire.stream.local_addr().unwrap());
        assert_eq!(wire.release(b"held", 1).status, OK);
        assert_eq!(administration(wire), REFUSED, "a health check is not an administrator, even on loopback");
    }
}

#[test]
fn the_stated_address_decides_who_is_an_administrator() {
    let server = TestServer::start_with(|config| {
        trusting(config);
        config.admin_from = vec!["203.0.113.9".parse().unwrap()];
    });
    assert_eq!(administration(server.counter()), NOT_FOUND, "loopback without a proxy");
    for (client, expected) in [
        ("203.0.113.7:1", REFUSED),
        ("[2001:db8::7]:1", REFUSED),
        ("203.0.113.9:1", NOT_FOUND),
        ("[::ffff:203.0.113.9]:1", NOT_FOUND),
        // The proxy is on this machine, so loopback is this machine.
        ("127.0.0.1:1", NOT_FOUND),
        ("[::1]:1", NOT_FOUND),
    ] {
        assert_eq!(administration(from_proxy(&server, &header_of(client))), expected, "{client}");
    }
}

#[tokio::test(start_paused = true)]
async fn loopback_of_a_remote_proxy_is_another_machine() {
    let server = NearServer::start_with(|config| {
        config.access.networks = ["127.0.0.0/8 all", "::1 all"].map(|rule| rule.parse().unwrap()).to_vec();
        config.proxies = vec!["192.0.2.0/24".parse().unwrap()];
        config.admin_from = ["192.0.2.1", "203.0.113.9", "127.0.0.1"].map(|ip| ip.parse().unwrap()).to_vec();
    });
    for (header, expected) in [
        (header_of("127.0.0.1:1"), REFUSED),
        (header_of("[::1]:1"), REFUSED),
        (header_of("[::ffff:127.0.0.1]:1"), REFUSED),
        (header_of("203.0.113.7:1"), REFUSED),
        (local(), REFUSED),
        (header_of("203.0.113.9:1"), NOT_FOUND),
    ] {
        let mut client = server.connect(1000);
        let mut bytes = header.to_vec();
        let operation = Change::DeleteCounter { name: b"absent" };
        Extended::Change { ids: RequestIds::FIRST, operation }.compose(Opaque([0; 4]), &mut bytes);
        client.write_all(&bytes).await.unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[2], expected, "{header:?}");
    }
}

#[test]
fn a_proxy_has_to_send_a_header_of_version_2() {
    let server = TestServer::start_with(trusting);
    let acquire = frame(ACQUIRE, *b"held", &named(&[1, 1], b"held"));
    let mut other_signature = header_of("203.0.113.7:1");
    other_signature[11] = b'\r';
    let starts = [
        Vec::new(),
        b"PROXY TCP4 203.0.113.7 192.0.2.1 1 11215\r\n".to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        other_signature,
        header(0x21, 0x12, &[0; 12]),
        header(0x11, 0x11, &[0; 12]),
        header(0x21, 0x11, &[0; 11]),
        // One byte more than the limit, although all of it is sent.
        header(0x21, 0x11, &[0; 521]),
        header(0x21, 0x11, &[0; 65_535]),
    ];
    for (count, start) in starts.iter().enumerate() {
        let mut wire = from_proxy(&server, &[&start[..], &acquire].concat());
        assert!(wire.is_closed(), "{start:?}");
        let mut other = server.counter();
        assert_eq!(other.stat("bad_input"), count as u64 + 1, "{start:?}");
        assert_eq!(other.get(b"held").status, NOT_FOUND, "nothing was executed: {start:?}");
    }
    assert_eq!(server.counter().stat("frame_timeouts"), 0);
}

#[test]
fn a_header_of_any_other_peer_is_bad_input() {
    let server = TestServer::start_with(trusting);
    for source in ["127.0.0.1", "127.0.0.3"] {
        let mut wire = Wire::connect_from(source, server.counters);
        wire.send(&header_of("203.0.113.7:1"));
        wire.send(&frame(ACQUIRE, *b"held", &named(&[1, 1], b"held")));
        assert_eq!(wire.answer().status, INVALID);
        assert!(wire.is_closed(), "{source}");
    }
    let mut other = server.counter();
    assert_eq!(other.stat("bad_input"), 2);
    assert_eq!(other.get(b"held").status, NOT_FOUND);
}

#[test]
fn a_header_must_be_completed_in_time() {
    let server = TestServer::start_with(|config| {
        trusting(config);
        config.frame_timeout_s = 1;
    });
    let header = header_of("203.0.113.7:1");
    for (count, start) in [&[][..], &header[..1], &header[..header.len() - 1]].into_iter().enumerate() {
        assert!(from_proxy(&server, start).is_closed());
        assert_eq!(server.counter().stat("frame_timeouts"), count as u64 + 1);
    }
    assert_eq!(server.counter().stat("bad_input"), 0);
}

#[tokio::test(start_paused = true)]
async fn after_the_header_a_connection_may_be_idle() {
    let server = NearServer::start_with(|config| {
        config.proxies = vec!["192.0.2.1".parse().unwrap()];
        config.frame_timeout_s = 1;
    });
    let mut client = server.connect(1000);
    client.write_all(&header_of("203.0.113.7:1")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    client.write_all(&frame(NOOP, *b"late", &[])).await.unwrap();
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!((answer[2], &answer[8..]), (OK, &b"late"[..]));
}

#[test]
fn a_proxy_that_closes_within_the_header_is_no_bad_input() {
    let server = TestServer::start_with(trusting);
    for start in [&[][..], &header_of("203.0.113.7:1")[..20]] {
        drop(from_proxy(&server, start));
    }
    let mut wire = server.counter();
    eventually("only this connection is left", || wire.stat("curr_connections") == 1);
    assert_eq!((wire.stat("bad_input"), wire.stat("frame_timeouts")), (0, 0));
}

#[test]
fn a_change_of_the_proxies_applies_to_new_connections() {
    let server = TestServer::start();
    let mut before = Wire::connect_from(PROXY, server.counters);
    assert_eq!(before.ask(NOOP, &[]).status, OK);
    let mut config = Config::default();
    trusting(&mut config);
    server.server.apply(&config);
    assert_eq!(before.ask(NOOP, &[]).status, OK);
    let mut behind = from_proxy(&server, &header_of("203.0.113.7:1"));
    assert_eq!(behind.acquire(b"held", 1, 1).status, OK);
    assert!(from_proxy(&server, &frame(NOOP, *b"bare", &[])).is_closed());

    server.server.apply(&Config::default());
    assert_eq!(Wire::connect_from(PROXY, server.counters).ask(NOOP, &[]).status, OK);
    assert_eq!(behind.ask(NOOP, &[]).status, OK);
    assert_eq!(administration(behind), REFUSED, "the connection keeps the stated address");
}

#[test]
fn what_a_client_behind_a_proxy_held_is_released_when_its_connection_ends() {
    let server = TestServer::start_with(trusting);
    let mut wire = from_proxy(&server, &header_of("203.0.113.7:1"));
    assert_eq!(wire.acquire(b"held", 1, 1).status, OK);
    drop(wire);
    eventually("it is released", || server.counter().get(b"held").number() == 0);
    server.assert_books_balance();
}

/// A process of System V calls on a connection of its own.
struct Process {
    wire: Wire,
    request: u64,
}

const USER: User = User { uid: 1, gid: 1 };

impl Process {
    fn open(mut wire: Wire, ttl_ms: u32) -> Self {
        let (ttl, groups) = (Some(Milliseconds(ttl_ms)), Vec::new());
        let open = SysvRequest::OpenProcess { ttl, pid: 77, caller: USER, groups, label: b"php" };
        Self::ask(&mut wire, &open).opened_process().unwrap();
        Self { wire, request: 0 }
    }

    fn ask(wire: &mut Wire, request: &SysvRequest<'_>) -> ResponseFrame {
        let mut bytes = Vec::new();
        request.compose(Opaque([7; 4]), &mut bytes);
        wire.send(&bytes);
        let Answer { opcode, status, opaque, body, .. } = wire.answer();
        ResponseFrame { opcode, status, opaque: Opaque(opaque), body: body.into() }
    }

    fn ids(&mut self) -> RequestIds {
        self.request += 1;
        RequestIds { own: RequestId(self.request), lowest_unanswered: RequestId(1) }
    }

    fn get(&mut self, key: i32) -> SetId {
        let get =
            SysvRequest::SemGet { ids: self.ids(), caller: USER, key, count: 1, flags: IPC_CREAT | 0o600 };
        Self::ask(&mut self.wire, &get).call_set().unwrap().unwrap().0
    }

    /// Adds one, which the server takes back when the process ends.
    fn add_with_undo(&mut self, set: SetId) {
        let mut bytes = Vec::new();
        let add = [Operation { number: 0, change: 1, flags: SEM_UNDO }];
        let operations = Operations::encode(&add, &mut bytes).unwrap();
        let ids = self.ids();
        let call = SysvRequest::SemOp { ids, caller: USER, set, wait_ms: WAIT_FOREVER_MS, operations };
        Self::ask(&mut self.wire, &call).call_done().unwrap().unwrap();
    }

    fn value(&mut self, set: SetId) -> u32 {
        let ids = self.ids();
        let call = SysvRequest::SemCtl { ids, caller: USER, set, command: SetCommand::GetValue(0) };
        Self::ask(&mut self.wire, &call).call_number().unwrap().unwrap()
    }
}

/// The server cannot know whether a proxy closes because its client did or because it lost the client.
#[test]
fn a_process_behind_a_proxy_lives_on_for_its_time_to_live() {
    let server = TestServer::start_with(trusting);
    let mut witness = Process::open(server.counter(), 60_000);
    let (near, behind) = (witness.get(1), witness.get(2));
    for (wire, set) in [(from_proxy(&server, &header_of("203.0.113.7:1")), behind), (server.counter(), near)]
    {
        let mut process = Process::open(wire, 3_600_000);
        process.add_with_undo(set);
        assert_eq!(witness.value(set), 1);
        drop(process);
    }
    // The connection through the proxy was closed first.
    eventually("its own machine closed it", || witness.value(near) == 0);
    eventually("both connections have ended", || witness.wire.stat("curr_connections") == 1);
    assert_eq!(witness.value(behind), 1);

    // The time to live ends it.
    let mut process = Process::open(from_proxy(&server, &header_of("203.0.113.7:1")), 1_000);
    process.add_with_undo(near);
    drop(process);
    eventually("its time to live is over", || witness.value(near) == 0);
}

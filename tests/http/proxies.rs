//! Clients behind proxies: those that state addresses by the PROXY protocol, and those that only forward requests.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use crate::client::{HttpDaemon, Reply, ask};
use crate::support::daemon::text;

const PROXY: &str = "127.0.0.2";

/// Clients have no rights by their addresses.
const STRICT: &str = "[access]\nanonymous = 'none'\n";

/// A connection from the proxy, which states this client.
fn behind_proxy(http: &HttpDaemon, client: Ipv4Addr) -> TcpStream {
    let mut stream = http.connect_from(PROXY);
    let header =
        [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &client.octets(), &[192, 0, 2, 1, 18, 52, 43, 207]];
    stream.write_all(&header.concat()).unwrap();
    stream
}

fn get(stream: TcpStream, path: &str, headers: &str) -> Reply {
    ask(stream, format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").as_bytes())
}

/// Whether the server closes the connection without an answer.
fn is_closed(mut stream: TcpStream) -> bool {
    !matches!(stream.read(&mut [0]), Ok(1..))
}

#[test]
fn requests_that_a_program_forwards_are_not_of_this_machine() {
    for rule in ["", "networks = ['127.0.0.0/8 all']"] {
        let (http, _config) = HttpDaemon::with(&format!("{STRICT}{rule}"));
        assert_eq!(get(http.connect(), "/api/v1/sessions", "").status, 200);
        for header in
            ["Forwarded: for=203.0.113.7", "X-Forwarded-For: 127.0.0.1", "via: 1.1 proxy", "X-Real-IP:"]
        {
            let reply = get(http.connect(), "/api/v1/sessions", &format!("{header}\r\n"));
            assert_eq!((reply.status, reply.code()), (403, "not_permitted".to_owned()), "{header} {rule}");
            assert_eq!(get(http.connect(), "/healthz", &format!("{header}\r\n")).status, 200);
        }
    }
}

#[test]
fn clients_have_the_address_that_the_header_of_their_proxy_states() {
    let (mut http, _config) = HttpDaemon::configured(&format!("proxies = '{PROXY}'"), STRICT);
    let status = |client: [u8; 4], headers| {
        get(behind_proxy(&http, client.into()), "/api/v1/sessions", headers).status
    };
    assert_eq!(status([203, 0, 113, 7], ""), 403);
    assert_eq!(status([127, 0, 0, 1], ""), 200, "the proxy is on this machine, and so is its client");
    assert_eq!(status([127, 0, 0, 1], "Via: 1.1 another\r\n"), 403);
    assert_eq!(get(http.connect(), "/api/v1/sessions", "").status, 200, "another address needs no header");
    let mut plain = http.connect_from(PROXY);
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(is_closed(plain));
    let line = http.daemon.logged_message("HTTP connection closed");
    assert!(text(&line, "error").contains("send-proxy-v2"), "{line}");
}

#[test]
fn clients_behind_a_proxy_have_their_own_shares() {
    let (mut http, _config) = HttpDaemon::configured(&format!("proxies = '{PROXY}'"), "");
    let [many, few] = [Ipv4Addr::new(203, 0, 113, 7), Ipv4Addr::new(203, 0, 113, 8)];
    // Each has answered a request, so it is counted for its client.
    let mut open: Vec<_> = (0..32)
        .map(|_| {
            let stream = behind_proxy(&http, many);
            assert_eq!(get(stream.try_clone().unwrap(), "/healthz", "").status, 200);
            stream
        })
        .collect();
    assert_eq!(get(behind_proxy(&http, many), "/healthz", "").status, 200);
    assert!(is_closed(open.remove(0)), "it replaces the client's oldest one");
    assert_eq!(get(behind_proxy(&http, few), "/healthz", "").status, 200);
    let line = http.daemon.logged_message("a client has used up its share of a limit");
    assert_eq!((text(&line, "client"), text(&line, "limit")), ("203.0.113.7", "HTTP connections"));
}

#[test]
fn each_client_gets_a_connection_though_all_are_in_use() {
    let (http, _config) = HttpDaemon::configured(&format!("proxies = '{PROXY}'"), "");
    let client = |number| Ipv4Addr::new(203, 0, 113, number);
    // One client has more of them than any other.
    let many: Vec<_> = [7; 10].into_iter().chain((10..28).flat_map(|number| [number; 3])).collect();
    let mut open: Vec<_> = many
        .iter()
        .map(|number| {
            let stream = behind_proxy(&http, client(*number));
            assert_eq!(get(stream.try_clone().unwrap(), "/healthz", "").status, 200);
            stream
        })
        .collect();
    assert_eq!(open.len(), 64);
    let further: Vec<_> = (100..105)
        .map(|number| {
            let stream = behind_proxy(&http, client(number));
            assert_eq!(get(stream.try_clone().unwrap(), "/healthz", "").status, 200);
            stream
        })
        .collect();
    let (greedy, others) = open.split_at_mut(10);
    assert_eq!(get(greedy[9].try_clone().unwrap(), "/healthz", "").status, 200);
    for stream in &greedy[..5] {
        assert!(is_closed(stream.try_clone().unwrap()), "the client with the most loses its oldest ones");
    }
    for stream in others.iter().chain(&further) {
        assert_eq!(get(stream.try_clone().unwrap(), "/healthz", "").status, 200);
    }
    let refusals = get(further[0].try_clone().unwrap(), "/api/v1/refusals", "").json();
    assert_eq!(refusals["http_connections"], 5);
}

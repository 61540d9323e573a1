//! The addresses of the server, or of the nodes of a cluster, of which some may refuse connections. A host name means
//! all its addresses, and is resolved for each attempt.
//!
//! They are tried in turn, from the one that served last. All threads share the position at which the next attempt
//! begins. It is only a hint: each attempt may reach every address, whatever other threads do meanwhile.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Servers, at least one.
#[derive(Debug)]
pub struct Servers {
    all: Vec<Server>,
    /// The position of the server with which the next attempt begins.
    first: AtomicUsize,
    /// The hash of the address of that server with which the attempt begins. If no address has this hash, the attempt
    /// begins with the first one.
    first_address: AtomicU64,
}

/// One server, as it was given.
#[derive(Debug)]
struct Server {
    text: String,
    host: String,
    port: u16,
}

/// One of the addresses of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub address: SocketAddr,
    /// The next address of the same host.
    next: Option<SocketAddr>,
    /// The number of addresses of the host.
    of: u32,
    /// The position of the server.
    server: usize,
}

/// A host whose addresses are not known.
#[derive(Debug)]
pub struct Unresolved {
    /// The position of the server.
    server: usize,
    pub error: io::Error,
}

impl Servers {
    /// Returns all addresses, in the order in which an attempt tries them.
    pub fn in_turn(&self) -> impl Iterator<Item = Result<Place, Unresolved>> {
        self.in_turn_by(|Server { host, port, .. }| Ok((host.as_str(), *port).to_socket_addrs()?.collect()))
    }

    fn in_turn_by(
        &self,
        resolve: impl Fn(&Server) -> io::Result<Vec<SocketAddr>>,
    ) -> impl Iterator<Item = Result<Place, Unresolved>> {
        let first = self.first.load(Ordering::Relaxed);
        let places = move |server: usize| match resolve(&self.all[server]) {
            Ok(addresses) => places(&addresses, server),
            Err(error) => vec![Err(Unresolved { server, error })],
        };
        let mut of_first = places(first);
        let begin = self.first_address.load(Ordering::Relaxed);
        let is_begin = |place: &Result<Place, Unresolved>| {
            place.as_ref().is_ok_and(|place| hash(place.address) == begin)
        };
        let rest = of_first.split_off(of_first.iter().position(is_begin).unwrap_or(0));
        let others = (first + 1..self.all.len()).chain(0..first);
        rest.into_iter().chain(others.flat_map(places)).chain(of_first)
    }

    /// Makes the next attempt begin with this address, whose server serves.
    pub fn begin_with(&self, place: Place) {
        self.begin(place.server, hash(place.address));
    }

    /// Makes the next attempt begin after this address, whose server does not serve and may be slow to refuse.
    pub fn begin_behind(&self, place: Place) {
        match place.next {
            Some(next) => self.begin(place.server, hash(next)),
            None => self.begin_behind_server(place.server),
        }
    }

    /// Makes the next attempt begin after a host whose name was not resolved, which may take long.
    pub fn begin_behind_host(&self, host: &Unresolved) {
        self.begin_behind_server(host.server);
    }

    fn begin_behind_server(&self, server: usize) {
        self.begin((server + 1) % self.all.len(), 0);
    }

    fn begin(&self, server: usize, address: u64) {
        if self.first.load(Ordering::Relaxed) != server {
            self.first.store(server, Ordering::Relaxed);
        }
        if self.first_address.load(Ordering::Relaxed) != address {
            self.first_address.store(address, Ordering::Relaxed);
        }
    }

    /// Returns whether there are addresses other than this one.
    pub fn has_others(&self, place: Place) -> bool {
        self.all.len() > 1 || place.of > 1
    }

    /// Returns the part of a time limit for this address, so that all addresses are tried within the limit.
    pub fn share_of(&self, limit: Duration, place: Place) -> Duration {
        limit / u32::try_from(self.all.len()).unwrap_or(u32::MAX).saturating_mul(place.of)
    }
}

/// Returns the addresses of a server, each once.
fn places(addresses: &[SocketAddr], server: usize) -> Vec<Result<Place, Unresolved>> {
    let mut each: Vec<SocketAddr> = Vec::with_capacity(addresses.len());
    for address in addresses {
        if !each.contains(address) {
            each.push(*address);
        }
    }
    if each.is_empty() {
        let error = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        return vec![Err(Unresolved { server, error })];
    }
    let of = u32::try_from(each.len()).unwrap_or(u32::MAX);
    let next = each.iter().skip(1).copied().map(Some).chain([None]);
    let places = each.iter().zip(next);
    places.map(|(address, next)| Ok(Place { address: *address, next, of, server })).collect()
}

/// Returns a hash that is not 0. A position cannot identify an address, because resolvers change the order of
/// addresses.
fn hash(address: SocketAddr) -> u64 {
    let mut hasher = DefaultHasher::new();
    address.hash(&mut hasher);
    hasher.finish() | 1
}

impl FromStr for Servers {
    type Err = String;

    /// Parses `host:port`, or several of them with commas between them. There may be blanks around the commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let all = text.split(',').map(|item| server(item.trim())).collect::<Option<_>>();
        let all = all.ok_or_else(|| {
            format!(
                "\"{text}\" is not of the form host:port, or host:port,host:port for the nodes of a cluster"
            )
        })?;
        Ok(Self { all, first: AtomicUsize::new(0), first_address: AtomicU64::new(0) })
    }
}

fn server(text: &str) -> Option<Server> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then(|| Server { text: text.to_owned(), host: host.to_owned(), port })
}

/// Writes the servers as they were given, for messages.
impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, server) in self.all.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}", server.text)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ports stand for the addresses: the host `b12` has two.
    fn places_of(servers: &Servers) -> Vec<Place> {
        let resolve = |server: &Server| {
            let ports = server.host.chars().filter_map(|digit| digit.to_digit(10));
            Ok(ports.map(|port| ([127, 0, 0, 1], port as u16).into()).collect())
        };
        servers.in_turn_by(resolve).map(Result::unwrap).collect()
    }

    fn ports(servers: &Servers) -> Vec<u16> {
        places_of(servers).iter().map(|place| place.address.port()).collect()
    }

    #[test]
    fn addresses_are_separated_by_commas() {
        let servers: Servers = "a:1, [::1]:2,b:3".parse().unwrap();
        let hosts: Vec<_> = servers.all.iter().map(|server| server.host.as_str()).collect();
        assert_eq!(hosts, ["a", "::1", "b"]);
        assert_eq!(servers.to_string(), "a:1,[::1]:2,b:3");
        for wrong in ["", "a", "a:0", ":1", "a:1,", ",a:1", "a:1,,b:1", "a:1,b", "a:1 b:1,"] {
            let said = wrong.parse::<Servers>().unwrap_err();
            assert!(said.starts_with(&format!("\"{wrong}\" is not")), "{said}");
        }
    }

    #[test]
    fn an_attempt_begins_with_the_one_that_served_and_reaches_all() {
        let servers: Servers = "a1:1,b23:1,c4:1".parse().unwrap();
        let place = |port: u16| places_of(&servers).into_iter().find(|place| place.address.port() == port);
        let place = |port| place(port).unwrap();
        assert_eq!(ports(&servers), [1, 2, 3, 4]);
        servers.begin_with(place(3));
        assert_eq!(ports(&servers), [3, 4, 1, 2]);
        servers.begin_behind(place(4));
        assert_eq!(ports(&servers), [1, 2, 3, 4]);
        servers.begin_behind(place(1));
        assert_eq!(ports(&servers), [2, 3, 4, 1]);
        servers.begin_behind(place(2));
        assert_eq!(ports(&servers), [3, 4, 1, 2]);
        servers.begin_behind(place(3));
        assert_eq!(ports(&servers), [4, 1, 2, 3]);
        let share = |port| servers.share_of(Duration::from_secs(6), place(port));
        assert_eq!([share(1), share(2)], [Duration::from_secs(2), Duration::from_secs(1)]);
    }

    #[test]
    fn a_host_with_several_addresses_has_others_as_several_hosts_do() {
        for (text, has_others) in [("a1:1", false), ("a12:1", true), ("a1:1,b2:1", true)] {
            let servers: Servers = text.parse().unwrap();
            assert_eq!(servers.has_others(places_of(&servers)[0]), has_others, "{text}");
        }
    }

    #[test]
    fn a_name_that_cannot_be_resolved_is_one_failure_and_the_others_are_reached() {
        let servers: Servers = "a1:1,b:1,c2:1".parse().unwrap();
        let resolve = |server: &Server| match server.host.as_str() {
            "a1" => Err(io::ErrorKind::NotFound.into()),
            "b" => Ok(Vec::new()),
            _ => Ok(vec![([127, 0, 0, 1], 2).into(); 2]),
        };
        let reached: Vec<_> = servers.in_turn_by(resolve).map(Result::ok).collect();
        assert_eq!(reached.len(), 3, "an address counts once");
        assert!(matches!(reached[..], [None, None, Some(place)] if place.of == 1));
    }
}

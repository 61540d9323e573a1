//! The addresses of the server: of one, or of the nodes of a cluster, of which one serves and the others refuse
//! connections.
//!
//! They are tried in turn, from the one that served last. All threads share the position at which the next attempt begins;
//! it is advice, and each attempt may reach every address, whatever other threads do meanwhile.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Addresses, at least one.
#[derive(Debug)]
pub struct Servers {
    all: Vec<Server>,
    /// The position at which the next attempt begins.
    first: AtomicUsize,
}

/// The position of an address among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerIndex(usize);

/// One address.
#[derive(Debug, PartialEq, Eq)]
pub struct Server {
    text: String,
    host: String,
    port: u16,
}

impl Servers {
    /// Whether there are several.
    pub fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    /// All of them, in the order in which an attempt has to try them.
    pub fn in_turn(&self) -> impl Iterator<Item = (ServerIndex, &Server)> {
        let first = self.first.load(Ordering::Relaxed);
        let indexes = (first..self.all.len()).chain(0..first);
        indexes.map(|index| (ServerIndex(index), &self.all[index]))
    }

    /// The server at this address serves.
    pub fn begin_with(&self, ServerIndex(index): ServerIndex) {
        if self.first.load(Ordering::Relaxed) != index {
            self.first.store(index, Ordering::Relaxed);
        }
    }

    /// The server at this address does not serve, and may be slow to say so.
    pub fn begin_behind(&self, ServerIndex(index): ServerIndex) {
        self.begin_with(ServerIndex((index + 1) % self.all.len()));
    }

    /// What each address may take of a time limit, so that all are tried within it.
    pub fn share_of(&self, limit: Duration) -> Duration {
        limit / u32::try_from(self.all.len()).unwrap_or(u32::MAX)
    }
}

impl Server {
    /// The addresses of the host.
    pub fn addresses(&self) -> io::Result<impl Iterator<Item = SocketAddr>> {
        (self.host.as_str(), self.port).to_socket_addrs()
    }
}

impl FromStr for Servers {
    type Err = String;

    /// Blanks may stand beside the commas, as in lists of keys.
    fn from_str(text: &str) -> Result<Self, String> {
        let all = text.split(',').map(|item| server(item.trim())).collect::<Option<_>>();
        let all = all.ok_or_else(|| {
            format!(
                "\"{text}\" is not of the form host:port, or host:port,host:port for the nodes of a cluster"
            )
        })?;
        Ok(Self { all, first: AtomicUsize::new(0) })
    }
}

fn server(text: &str) -> Option<Server> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then(|| Server { text: text.to_owned(), host: host.to_owned(), port })
}

/// For messages.
impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, server) in self.all.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}", server.text)?;
        }
        Ok(())
    }
}

/// Where attempts begin makes no difference.
impl PartialEq for Servers {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all
    }
}

impl Eq for Servers {}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(servers: &Servers) -> Vec<&str> {
        servers.in_turn().map(|(_, server)| server.host.as_str()).collect()
    }

    #[test]
    fn addresses_are_separated_by_commas() {
        let servers: Servers = "a:1, [::1]:2,b:3".parse().unwrap();
        assert_eq!(hosts(&servers), ["a", "::1", "b"]);
        assert_eq!(servers.to_string(), "a:1,[::1]:2,b:3");
        for wrong in ["", "a", "a:0", ":1", "a:1,", ",a:1", "a:1,,b:1", "a:1,b", "a:1 b:1,"] {
            let said = wrong.parse::<Servers>().unwrap_err();
            assert!(said.starts_with(&format!("\"{wrong}\" is not")), "{said}");
        }
    }

    #[test]
    fn an_attempt_begins_with_the_one_that_served_and_reaches_all() {
        let servers: Servers = "a:1,b:1,c:1".parse().unwrap();
        let index = |host: &str| servers.in_turn().find(|(_, server)| server.host == host).unwrap().0;
        assert_eq!(hosts(&servers), ["a", "b", "c"]);
        servers.begin_with(index("b"));
        assert_eq!(hosts(&servers), ["b", "c", "a"]);
        servers.begin_behind(index("c"));
        assert_eq!(hosts(&servers), ["a", "b", "c"]);
        servers.begin_behind(index("b"));
        assert_eq!(hosts(&servers), ["c", "a", "b"]);
        assert_eq!(servers.share_of(Duration::from_secs(9)), Duration::from_secs(3));
    }
}

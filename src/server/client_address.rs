//! The client of a connection: its address, which is that of the peer or the one that a proxy or a relay states, and
//! the names in its certificate.
//!
//! Whether a client is an administrator depends on the address and on its source, so the two are kept together.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::relay::proof::ChannelProof;
use signalbox_access::CertificateName;
use signalbox_core::ClientKey;

/// The client of a connection. The log shows its address and the first name in its certificate.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) address: ClientAddress,
    /// The names in its verified certificate. Empty: it has shown no certificate, or one without names.
    pub(super) certificate: Arc<[CertificateName]>,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.socket().fmt(f)?;
        match self.certificate.first() {
            Some(name) => write!(f, " (certificate of \"{}\")", name.to_string().escape_default()),
            None => Ok(()),
        }
    }
}

/// The number of bits of an IPv6 address that distinguish the interfaces of one network.
const INTERFACE_BITS: u32 = 64;

/// The address of a client, and the source of that address.
#[derive(Clone, Copy, Debug)]
pub struct ClientAddress {
    address: SocketAddr,
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    /// The client is the peer of the connection.
    Connection,
    /// The header of a proxy states the address.
    Header {
        /// The proxy connects from loopback of this machine.
        is_proxy_local: bool,
    },
    /// The header states no address, so this is the proxy's own.
    Proxy {
        /// The proxy connects from loopback of this machine.
        is_proxy_local: bool,
    },
    /// Another node relays the connection, and states the address of its client.
    Relay {
        /// The relay's own address.
        relay: IpAddr,
        over: RelayedOver,
    },
}

/// How a relay's connection to the leader is protected. This decides whether the address that the relay states is
/// trusted.
#[derive(Clone, Copy, Debug)]
pub(super) enum RelayedOver {
    /// TLS, which the relay begins with this proof.
    Tls(ChannelProof),
    /// A network in which no other program forges connections.
    Trusted,
    /// A network in which another program may pose as the relay, so that the address gives no rights.
    Untrusted,
}

impl ClientAddress {
    /// Returns the address of a client that is connected directly.
    pub fn of_peer(peer: SocketAddr) -> Self {
        Self { address: peer, source: Source::Connection }
    }

    /// Returns the address of a client that is connected to the node at `relay`, which relays the connection.
    pub(super) fn relayed(client: SocketAddr, relay: SocketAddr, over: RelayedOver) -> Self {
        Self { address: client, source: Source::Relay { relay: relay.ip(), over } }
    }

    /// Returns the address of a client whose request a node forwards over a connection of its own. It gives rights only
    /// if the client is connected to the node directly, and the node has begun TLS.
    pub(super) fn of_request(node: Self, client: SocketAddr, is_direct: bool) -> Self {
        let over = match node.source {
            Source::Relay { over, .. } if is_direct => over,
            _ => RelayedOver::Untrusted,
        };
        Self::relayed(client, node.address, over)
    }

    /// Returns the address of a client of a proxy: the one that the header states, or else the proxy's own. Another node
    /// may relay the proxy's connection.
    pub(super) fn behind(proxy: Self, stated: Option<SocketAddr>) -> Self {
        let is_proxy_local = proxy.address.ip().to_canonical().is_loopback() && !proxy.is_relayed();
        match stated {
            Some(address) => Self { address, source: Source::Header { is_proxy_local } },
            None => Self { address: proxy.address, source: Source::Proxy { is_proxy_local } },
        }
    }

    /// Returns the address of a client whose requests this peer forwards without stating a trusted address: the peer's
    /// own, which does not count as local, because the client may be on another machine.
    pub(super) fn forwarded(self) -> Self {
        Self { address: self.address, source: Source::Proxy { is_proxy_local: false } }
    }

    /// Returns the address, for listings and the log.
    pub(super) fn socket(&self) -> SocketAddr {
        self.address
    }

    /// Returns the key of the client whose shares the connection counts against: its address, or for IPv6 its /64
    /// network, because one machine can take any address in it. Once a client proves an identity, the shares are those
    /// of the identity.
    pub(super) fn key(&self) -> ClientKey {
        match self.direct().address.ip().to_canonical() {
            IpAddr::V4(ip) => ClientKey(ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => {
                let network = ip.to_bits() >> INTERFACE_BITS << INTERFACE_BITS;
                ClientKey(network.to_be_bytes())
            }
        }
    }

    /// Returns the same as [`Self::key`], except that all loopback addresses are one client, because any program of the
    /// machine can use all of them.
    pub(super) fn machine_key(&self) -> ClientKey {
        match self.direct().address.ip().to_canonical() {
            ip if ip.is_loopback() => ClientKey(Ipv6Addr::LOCALHOST.octets()),
            _ => self.key(),
        }
    }

    /// Returns the address that the client would have if it were connected directly. A client on loopback of a relay has
    /// the relay's address.
    pub(super) fn direct(&self) -> Self {
        match self.source {
            Source::Relay { relay, .. } if self.address.ip().to_canonical().is_loopback() => {
                Self::of_peer(SocketAddr::new(relay, self.address.port()))
            }
            _ => Self::of_peer(self.address),
        }
    }

    /// Returns whether another node relays the connection.
    pub(super) fn is_relayed(&self) -> bool {
        matches!(self.source, Source::Relay { .. })
    }

    /// Returns whether the relay encrypts the connection, in place of the client's own TLS, which ends at the relay.
    pub(super) fn is_encrypted_by_relay(&self) -> bool {
        self.channel_proof().is_some()
    }

    /// Returns the proof that the relay must send first over TLS; `None`: no relay encrypts the connection.
    pub(super) fn channel_proof(&self) -> Option<ChannelProof> {
        match self.source {
            Source::Relay { over: RelayedOver::Tls(proof), .. } => Some(proof),
            Source::Relay { .. } | Source::Connection | Source::Header { .. } | Source::Proxy { .. } => None,
        }
    }

    /// Returns whether the connection comes from a proxy. If so, its end says nothing about the client: a proxy closes the
    /// connection in the same way when the client closes it and when it loses the client.
    pub(super) fn is_proxied(&self) -> bool {
        matches!(self.source, Source::Header { .. } | Source::Proxy { .. })
    }

    /// Returns whether the client is on the machine to which it is connected, so that its requests cross no network in the
    /// clear. A proxy that states no address is itself the client.
    pub(super) fn is_local(&self) -> bool {
        let is_loopback = self.address.ip().to_canonical().is_loopback();
        match self.source {
            Source::Connection => is_loopback,
            // If a remote proxy states loopback, the client is on the proxy's machine.
            Source::Header { is_proxy_local } | Source::Proxy { is_proxy_local } => {
                is_loopback && is_proxy_local
            }
            Source::Relay { over, .. } => is_loopback && matches!(over, RelayedOver::Tls(_)),
        }
    }

    /// Returns whether rights may depend on the address.
    pub(super) fn is_trusted(&self) -> bool {
        !matches!(self.source, Source::Relay { over: RelayedOver::Untrusted, .. })
    }

    /// Returns whether the client's address makes it an administrator: the address is listed, or it is loopback of the
    /// machine to which the client is connected. A proxy's own address and an address that is not trusted never do.
    /// `listed` must not have IPv4 addresses that are mapped to IPv6.
    pub(super) fn is_administrator(&self, listed: &[IpAddr]) -> bool {
        let ip = self.address.ip().to_canonical();
        match self.source {
            Source::Relay { over: RelayedOver::Untrusted, .. } => false,
            Source::Connection | Source::Relay { .. } => ip.is_loopback() || listed.contains(&ip),
            // If a remote proxy states loopback, the client is on the proxy's machine, even if `listed` has loopback.
            Source::Header { is_proxy_local } if ip.is_loopback() => is_proxy_local,
            Source::Header { .. } => listed.contains(&ip),
            Source::Proxy { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().unwrap(), 4660)
    }

    fn of_peer(text: &str) -> ClientAddress {
        ClientAddress::of_peer(address(text))
    }

    #[test]
    fn a_client_that_is_connected_itself_is_an_administrator_on_loopback_or_if_it_is_listed() {
        let listed = [IpAddr::from([192, 0, 2, 7])];
        for (ip, expected) in [
            ("127.0.0.1", true),
            ("127.8.8.8", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("192.0.2.7", true),
            ("::ffff:192.0.2.7", true),
            ("192.0.2.8", false),
        ] {
            let client = ClientAddress::of_peer(address(ip));
            assert_eq!(client.is_administrator(&listed), expected, "{ip}");
            assert_eq!(client.is_local(), client.is_administrator(&[]), "{ip}");
            assert!(!client.is_proxied());
        }
    }

    #[test]
    fn clients_are_told_apart_by_their_ipv4_address_or_ipv6_network() {
        let key = |ip| ClientAddress::of_peer(address(ip)).key();
        assert_eq!(key("192.0.2.7"), key("::ffff:192.0.2.7"));
        assert_ne!(key("192.0.2.7"), key("192.0.2.8"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:0:0:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        let proxied = ClientAddress::behind(of_peer("192.0.2.1"), Some(address("192.0.2.7")));
        assert_eq!(proxied.key(), key("192.0.2.7"));
        let machine = |ip| of_peer(ip).machine_key();
        for ip in ["127.0.0.1", "127.8.8.8", "::ffff:127.0.0.2"] {
            assert_eq!(machine(ip), machine("::1"), "{ip}");
        }
        assert_eq!(machine("192.0.2.7"), key("192.0.2.7"));
    }

    #[test]
    fn loopback_of_a_relay_is_the_machine_of_the_relay() {
        let relayed =
            |client, relay| ClientAddress::relayed(address(client), address(relay), RelayedOver::Trusted);
        for (client, relay, direct) in [
            ("127.0.0.1", "192.0.2.1", "192.0.2.1"),
            ("::ffff:127.0.0.1", "192.0.2.1", "192.0.2.1"),
            ("192.0.2.7", "192.0.2.1", "192.0.2.7"),
            ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ] {
            let client = relayed(client, relay);
            assert_eq!(client.direct().socket(), address(direct));
            assert_eq!(client.key(), ClientAddress::of_peer(address(direct)).key());
        }
        let machines = ["192.0.2.1", "192.0.2.2"].map(|relay| relayed("127.0.0.1", relay).key());
        assert_ne!(machines[0], machines[1], "local clients of two machines are two clients");
    }

    #[test]
    fn a_relayed_client_has_rights_by_its_address_only_if_nobody_can_have_taken_the_place_of_the_relay() {
        let listed = [IpAddr::from([192, 0, 2, 7])];
        for ip in ["127.0.0.1", "192.0.2.7"] {
            for (over, expected) in [
                (RelayedOver::Trusted, true),
                (RelayedOver::Tls(ChannelProof([0; 32])), true),
                (RelayedOver::Untrusted, false),
            ] {
                let client = ClientAddress::relayed(address(ip), address("192.0.2.1"), over);
                assert_eq!((client.is_administrator(&listed), client.is_trusted()), (expected, expected));
            }
        }
        let proxy = ClientAddress::relayed(address("127.0.0.1"), address("192.0.2.1"), RelayedOver::Trusted);
        assert!(!ClientAddress::behind(proxy, None).is_local(), "loopback of another machine");
        let behind = ClientAddress::behind(proxy, Some(address("127.0.0.1")));
        assert!(!behind.is_local() && !behind.is_administrator(&listed), "likewise");
    }

    #[test]
    fn a_request_that_a_node_forwards_is_one_of_its_client() {
        for (over, is_direct, is_trusted) in [
            (RelayedOver::Tls(ChannelProof([0; 32])), true, true),
            (RelayedOver::Tls(ChannelProof([0; 32])), false, false),
            (RelayedOver::Untrusted, true, false),
        ] {
            let node = ClientAddress::relayed(address("192.0.2.1"), address("192.0.2.1"), over);
            let client = ClientAddress::of_request(node, address("192.0.2.7"), is_direct);
            assert_eq!(client.key(), of_peer("192.0.2.7").key(), "it counts for itself");
            assert_eq!(client.is_trusted(), is_trusted, "{over:?}");
            let local = ClientAddress::of_request(node, address("127.0.0.1"), is_direct);
            assert_eq!((local.key(), local.is_local()), (of_peer("192.0.2.1").key(), is_trusted));
        }
    }
}

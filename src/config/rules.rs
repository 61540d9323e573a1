//! Clients as an administrator names them, by their addresses, tokens and certificates; and the section `[access]`, which gives
//! them rights.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use signalbox_access::{CertificateName, Rights};
use signalbox_model::{AddressRange, Revocation};

/// An address or a network: all addresses that begin with the same bits.
///
/// IPv4 addresses that are mapped to IPv6 count as the IPv4 addresses. No bits are set after the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

/// The number of bits before an IPv4 address that is mapped to IPv6.
const MAPPED_PREFIX: u8 = 96;

impl Network {
    /// Returns whether the network contains this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Returns whether it contains loopback addresses.
    pub(super) fn has_loopback(&self) -> bool {
        let loopback = Self(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into()).range();
        let range = self.range();
        self.contains(Ipv6Addr::LOCALHOST.into())
            || (range.start() <= loopback.end() && loopback.start() <= range.end())
    }

    /// Returns whether the network contains all addresses of the family of `address`.
    pub fn is_everywhere(&self, address: IpAddr) -> bool {
        self.0.prefix_len() == 0 && self.0.addr().is_ipv4() == address.is_ipv4()
    }

    /// Returns the first and the last address. Those of IPv4 are mapped to IPv6.
    pub fn range(&self) -> RangeInclusive<Ipv6Addr> {
        match self.0 {
            IpNet::V4(net) => net.network().to_ipv6_mapped()..=net.broadcast().to_ipv6_mapped(),
            IpNet::V6(net) => net.network()..=net.broadcast(),
        }
    }
}

impl FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        const EXPECTED: &str = "must be an IP address or a network, such as 192.0.2.1 or 10.0.0.0/8";
        let network = match text.split_once('/') {
            None => text.parse::<IpAddr>().or(Err(EXPECTED))?.into(),
            // The parser of `ipnet` accepts addresses that the standard one refuses, and `parse` would accept a sign.
            Some((address, prefix)) if prefix.bytes().all(|byte| byte.is_ascii_digit()) => {
                let (address, prefix) =
                    (address.parse().or(Err(EXPECTED))?, prefix.parse().or(Err(EXPECTED))?);
                IpNet::new(address, prefix).or(Err(EXPECTED))?
            }
            Some(_) => return Err(EXPECTED),
        };
        // With bits after the prefix, the address or the prefix is a typing error.
        if network != network.trunc() {
            return Err(EXPECTED);
        }
        let mapped = match network {
            IpNet::V6(net) if net.prefix_len() >= MAPPED_PREFIX => net.addr().to_ipv4_mapped(),
            _ => None,
        };
        let of_ipv4 = |address| Ipv4Net::new_assert(address, network.prefix_len() - MAPPED_PREFIX).into();
        Ok(Self(mapped.map_or(network, of_ipv4)))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() { self.0.addr().fmt(f) } else { self.0.fmt(f) }
    }
}

/// Clients, by an address or an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Clients with an address of this network.
    Network(Network),
    /// Clients with this identity: `token:NAME`, or `certificate:` and a name with its type.
    Identity(String),
}

impl Clients {
    /// Returns the revocation of their leased sessions.
    pub fn revocation(&self) -> Revocation<'_> {
        match self {
            Self::Network(network) => {
                let (first, last) = network.range().into_inner();
                Revocation::Addresses(AddressRange { first, last })
            }
            Self::Identity(identity) => Revocation::Identity(identity.as_bytes()),
        }
    }
}

impl FromStr for Clients {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        const EXPECTED: &str = "must be an IP address, a network such as 10.0.0.0/8, token:NAME, or certificate:NAME with a name such as \
            dns:worker-1, uri:… or cn:…";
        match text.split_once(':') {
            Some(("token", "")) => Err(EXPECTED),
            Some(("token", _)) => Ok(Self::Identity(text.to_owned())),
            Some(("certificate", name)) => {
                let name: CertificateName = name.parse().or(Err(EXPECTED))?;
                Ok(Self::Identity(format!("certificate:{name}")))
            }
            _ => text.parse().map(Self::Network).or(Err(EXPECTED)),
        }
    }
}

/// The subject of a rule about all certificates.
const ANY: &str = "*";

/// The section about the rights of clients. The default is that of an empty section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConfig {
    /// The file of tokens; `None` if no token is accepted.
    pub tokens: Option<PathBuf>,
    /// Whether tokens are accepted over connections without TLS from other machines.
    pub tokens_over_plain: bool,
    /// The rights of clients without a rule; `None` for read and acquire.
    pub anonymous: Option<Rights>,
    /// The rules for clients in networks; the first one whose network contains the address decides.
    pub networks: Vec<NetworkRule>,
    /// The rules for clients with certificates; the first one about one of their names decides.
    pub certificates: Vec<CertificateRule>,
    /// The log of administrative changes, if there is one.
    pub audit_log: Option<PathBuf>,
}

/// The rights of the clients in a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkRule {
    /// The network.
    pub network: Network,
    /// Their rights.
    pub rights: Rights,
}

/// The rights of the clients with a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRule {
    /// A name in the certificate; `None` for any.
    pub name: Option<CertificateName>,
    /// Their rights.
    pub rights: Rights,
}

impl AccessConfig {
    /// Returns the rights of a client without a token and a certificate, wherever it is: those of the network rule for all
    /// addresses of its family, or else the anonymous ones. If the families differ, returns the rights of IPv4 if they
    /// include those of IPv6, and otherwise those of IPv6.
    pub fn rights_of_every_client(&self) -> Rights {
        let anonymous = || self.anonymous.clone().unwrap_or(Rights::READ_AND_ACQUIRE);
        let of_family = |any: IpAddr| {
            let rule = self.networks.iter().find(|rule| rule.network.is_everywhere(any));
            rule.map_or_else(anonymous, |rule| rule.rights.clone())
        };
        let rights = [of_family(Ipv4Addr::UNSPECIFIED.into()), of_family(Ipv6Addr::UNSPECIFIED.into())];
        let [of_ipv4, of_ipv6] = rights;
        if of_ipv4.include(&of_ipv6) { of_ipv4 } else { of_ipv6 }
    }
}

impl CertificateRule {
    /// Returns the first of a certificate's names that the rule is about.
    pub fn find<'a>(&self, names: &'a [CertificateName]) -> Option<&'a CertificateName> {
        names.iter().find(|name| self.name.as_ref().is_none_or(|own| own == *name))
    }
}

impl FromStr for NetworkRule {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (network, rights) = subject_and_rights(text)?;
        Ok(Self { network: network.parse().or(Err(()))?, rights })
    }
}

impl FromStr for CertificateRule {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (name, rights) = subject_and_rights(text)?;
        let name = if name == ANY { None } else { Some(name.parse().or(Err(()))?) };
        Ok(Self { name, rights })
    }
}

fn subject_and_rights(rule: &str) -> Result<(&str, Rights), ()> {
    let (subject, rights) = rule.trim().split_once(char::is_whitespace).ok_or(())?;
    Ok((subject, rights.parse().or(Err(()))?))
}

impl fmt::Display for NetworkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.network, self.rights)
    }
}

impl fmt::Display for CertificateRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} {}", self.rights),
            None => write!(f, "{ANY} {}", self.rights),
        }
    }
}

//! The section `[access]`: what clients may do.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use super::network::Network;
use signalbox_access::{CertificateName, Rights};

/// The subject of a rule about all certificates.
const ANY: &str = "*";

/// What clients may do. The default is that of an empty section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConfig {
    /// The file of tokens; `None`: no token is accepted.
    pub tokens: Option<PathBuf>,
    /// Whether tokens are accepted over connections without TLS from other machines.
    pub tokens_over_plain: bool,
    /// What clients may do that no rule is about; `None`: to read and to acquire.
    pub anonymous: Option<Rights>,
    /// What clients in networks may do; the first that has the address decides.
    pub networks: Vec<NetworkRule>,
    /// What clients with certificates may do; the first that is about one of their names decides.
    pub certificates: Vec<CertificateRule>,
    /// The log of administrative changes; `None`: there is none.
    pub audit_log: Option<PathBuf>,
}

/// What the clients in a network may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkRule {
    /// Where they are.
    pub network: Network,
    /// What they may do.
    pub rights: Rights,
}

/// What the clients with a certificate may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRule {
    /// A name in the certificate; `None`: any.
    pub name: Option<CertificateName>,
    /// What they may do.
    pub rights: Rights,
}

/// The text is not a rule, or not one of the allowed words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownRule;

impl AccessConfig {
    /// The rights that every client has, wherever it is, without a token and a certificate: those of a network rule for all
    /// addresses of a family, or else the anonymous ones.
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
    /// The first of the names of a certificate that the rule is about.
    pub fn find<'a>(&self, names: &'a [CertificateName]) -> Option<&'a CertificateName> {
        names.iter().find(|name| self.name.as_ref().is_none_or(|own| own == *name))
    }
}

impl FromStr for NetworkRule {
    type Err = UnknownRule;

    fn from_str(text: &str) -> Result<Self, UnknownRule> {
        let (network, rights) = subject_and_rights(text)?;
        Ok(Self { network: network.parse().map_err(|_| UnknownRule)?, rights })
    }
}

impl FromStr for CertificateRule {
    type Err = UnknownRule;

    fn from_str(text: &str) -> Result<Self, UnknownRule> {
        let (name, rights) = subject_and_rights(text)?;
        let name = if name == ANY { None } else { Some(name.parse().map_err(|_| UnknownRule)?) };
        Ok(Self { name, rights })
    }
}

fn subject_and_rights(rule: &str) -> Result<(&str, Rights), UnknownRule> {
    let (subject, rights) = rule.trim().split_once(char::is_whitespace).ok_or(UnknownRule)?;
    Ok((subject, rights.parse().map_err(|_| UnknownRule)?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_shown_as_they_are_written() {
        for text in ["10.0.0.0/8 read,acquire counter:web/ sysv", "::1 none"] {
            assert_eq!(text.parse::<NetworkRule>().unwrap().to_string(), text);
        }
        for text in ["dns:worker-1 read", "uri:spiffe://a/b none", "cn:A read", "* acquire semaphore"] {
            assert_eq!(text.parse::<CertificateRule>().unwrap().to_string(), text);
        }
        for text in ["worker-1 read", "ip:192.0.2.1 read", "dns: read", "dns:a", "dns:a write"] {
            assert!(text.parse::<CertificateRule>().is_err(), "{text}");
        }
        for text in ["", "10.0.0.0/8", "10.0.0.1/8 read", "10.0.0.0/8 write", "10.0.0.0/8 read queue"] {
            assert!(text.parse::<NetworkRule>().is_err(), "{text}");
        }
    }

    #[test]
    fn everybody_has_what_a_rule_for_all_addresses_permits_or_else_anonymous_clients() {
        for (anonymous, networks, expected) in [
            (None, &[][..], "read,acquire"),
            (Some("all"), &[], "all"),
            (Some("read"), &[], "read"),
            (None, &["10.0.0.0/8 all"], "read,acquire"),
            (Some("none"), &["10.0.0.0/8 all"], "none"),
            (None, &["0.0.0.0/0 none"], "read,acquire"),
            (None, &["0.0.0.0/0 none", "::/0 none"], "none"),
            (Some("none"), &["0.0.0.0/0 all"], "all"),
        ] {
            let access = AccessConfig {
                anonymous: anonymous.map(|rights| rights.parse().unwrap()),
                networks: networks.iter().map(|rule| rule.parse().unwrap()).collect(),
                ..AccessConfig::default()
            };
            assert_eq!(
                access.rights_of_every_client(),
                expected.parse().unwrap(),
                "{anonymous:?} {networks:?}"
            );
        }
    }
}

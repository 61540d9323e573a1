//! The section `[cluster]`.

use std::net::SocketAddr;
use std::path::PathBuf;

/// How this node takes part in a cluster. Without members of etcd, it is a server of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The name of the cluster, which is a part of its keys in etcd.
    pub name: String,
    /// The name of this node, unique in the cluster; `None` means the name of the machine.
    pub node: Option<String>,
    /// The URLs of the members of etcd, without duplicates.
    pub etcd: Vec<String>,
    /// The certificates of the authorities that have signed those of etcd's members, in PEM. Members with `https` need it.
    pub etcd_ca: Option<PathBuf>,
    /// The certificate with which this node connects to etcd, in PEM.
    pub etcd_cert: Option<PathBuf>,
    /// The key of that certificate, in PEM.
    pub etcd_key: Option<PathBuf>,
    /// The user as whom this node connects to etcd.
    pub etcd_user: Option<String>,
    /// The file whose first line is the password of that user.
    pub etcd_password_file: Option<PathBuf>,
    /// Seconds for which a leader serves after its last successful renewal. It is the same on all nodes.
    pub renew_deadline_s: u32,
    /// Where this node accepts connections that other nodes relay when it leads; `None`: it relays none, and none are
    /// relayed to it.
    pub bind: Option<SocketAddr>,
    /// Where clients reach this node: names or IP addresses of hosts, without ports and duplicates. Empty: its addresses in
    /// `bind_ip`.
    pub advertise: Vec<String>,
    /// The certificates of the authorities that have signed those of the nodes, in PEM. With it, the connections of clients
    /// without TLS are relayed over TLS.
    pub relay_ca: Option<PathBuf>,
    /// Whether this node may lead.
    pub is_eligible: bool,
    /// Seconds for which a client waits for a leader.
    pub hold_s: u32,
}

impl ClusterConfig {
    /// Whether the node takes part in a cluster.
    pub fn is_enabled(&self) -> bool {
        !self.etcd.is_empty()
    }

    /// Whether the node relays clients to the leader while it does not lead.
    pub fn relays(&self) -> bool {
        self.is_enabled() && (self.bind.is_some() || !self.is_eligible)
    }
}

/// Whether a text can be the name of a cluster or a node, which are parts of keys in etcd.
pub(super) fn is_name(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=64).contains(&text.len()) && text.chars().all(is_allowed)
}

/// Whether a text is the URL of a member of etcd: a scheme, a host and a port.
pub(super) fn is_member(text: &str) -> bool {
    let rest = ["http://", "https://"].into_iter().find_map(|scheme| text.strip_prefix(scheme));
    let Some((host, port)) = rest.and_then(|rest| rest.rsplit_once(':')) else { return false };
    let is_host = !host.is_empty()
        && (!host.contains(':') || (host.starts_with('[') && host.ends_with(']')))
        && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '[' | ']'));
    is_host && port.parse::<u16>().is_ok_and(|port| port != 0)
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            name: "main".to_owned(),
            node: None,
            etcd: Vec::new(),
            etcd_ca: None,
            etcd_cert: None,
            etcd_key: None,
            etcd_user: None,
            etcd_password_file: None,
            renew_deadline_s: 3,
            bind: None,
            advertise: Vec::new(),
            relay_ca: None,
            is_eligible: true,
            hold_s: 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_has_a_scheme_a_host_and_a_port() {
        for member in ["http://10.0.0.1:2379", "https://etcd-1.example.org:2379", "http://[::1]:2379"] {
            assert!(is_member(member), "{member}");
        }
        for other in [
            "",
            "10.0.0.1:2379",
            "http://10.0.0.1",
            "http://a:0",
            "http://a:1/x",
            "http://::1:1",
            "ftp://a:1",
        ] {
            assert!(!is_member(other), "{other}");
        }
    }

    #[test]
    fn a_name_can_be_a_part_of_a_key() {
        for name in ["a", "node-1.example.org", "A_b"] {
            assert!(is_name(name), "{name}");
        }
        for other in ["", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(!is_name(other), "{other}");
        }
    }
}

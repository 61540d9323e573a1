//! The section `[cluster]`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use super::{Config, Contradiction};

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
    /// [`Config::bind`].
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

    /// The hosts at which clients on other machines reach this node; empty: that is not known.
    pub fn advertised(&self, config: &Config) -> Vec<String> {
        let is_usable = |ip: &IpAddr| !ip.is_loopback() && !ip.is_unspecified();
        if !self.advertise.is_empty() {
            return self.advertise.clone();
        }
        let is_everywhere = config.bind.is_empty() || config.bind.iter().any(IpAddr::is_unspecified);
        let own: Vec<IpAddr> = match self.bind.filter(|_| is_everywhere) {
            Some(relays) => vec![relays.ip()],
            None => config.bind.clone(),
        };
        own.into_iter().filter(is_usable).map(|ip| ip.to_string()).collect()
    }

    /// Checks the section as a whole, and against the rest of the configuration.
    pub(super) fn validate(&self, config: &Config) -> Result<(), Contradiction> {
        if !self.is_enabled() {
            let set = [
                ("cluster.node", self.node.is_some()),
                ("cluster.etcd_ca", self.etcd_ca.is_some()),
                ("cluster.etcd_cert", self.etcd_cert.is_some()),
                ("cluster.etcd_key", self.etcd_key.is_some()),
                ("cluster.etcd_user", self.etcd_user.is_some()),
                ("cluster.etcd_password_file", self.etcd_password_file.is_some()),
                ("cluster.bind", self.bind.is_some()),
                ("cluster.advertise", !self.advertise.is_empty()),
                ("cluster.relay_ca", self.relay_ca.is_some()),
            ];
            return match set.into_iter().find(|(_, is_set)| *is_set) {
                Some((key, _)) => Contradiction::without(key, "cluster.etcd"),
                None => Ok(()),
            };
        }
        for (one, other) in [
            (("cluster.etcd_cert", self.etcd_cert.is_some()), ("cluster.etcd_key", self.etcd_key.is_some())),
            (
                ("cluster.etcd_user", self.etcd_user.is_some()),
                ("cluster.etcd_password_file", self.etcd_password_file.is_some()),
            ),
        ] {
            match (one.1, other.1) {
                (true, false) => return Contradiction::without(one.0, other.0),
                (false, true) => return Contradiction::without(other.0, one.0),
                _ => {}
            }
        }
        if self.etcd_ca.is_none() && self.etcd.iter().any(|member| member.starts_with("https:")) {
            return Contradiction::of(
                ["cluster.etcd", "cluster.etcd_ca"],
                "cluster.etcd has a member with https, but cluster.etcd_ca is not set; set it to the file with the certificate \
                 of the authority that signed those of etcd's members",
            );
        }
        if self.bind.is_some_and(|address| address.ip().is_unspecified()) {
            return Contradiction::of(
                ["cluster.bind", "cluster.etcd"],
                "cluster.bind has the address of no network; set the address at which the other nodes reach this one, such as \
                 10.0.0.1:11218",
            );
        }
        if self.relay_ca.is_some() && !self.relays() {
            return Contradiction::without("cluster.relay_ca", "cluster.bind");
        }
        if self.relay_ca.is_some() && config.tls.cert.is_none() {
            return Contradiction::without("cluster.relay_ca", "tls.cert");
        }
        if self.relay_ca.is_some() && !config.proxies.is_empty() {
            return Contradiction::of(
                ["cluster.relay_ca", "proxies"],
                "cluster.relay_ca and proxies are both set, but a relay that encrypts cannot pass on the header of a proxy; \
                 remove one of the two: without proxies, clients count as their proxy, and without relay_ca, only clients with \
                 TLS of their own are encrypted between the nodes",
            );
        }
        if config.data_dir.is_some() {
            return Contradiction::of(
                ["cluster.etcd", "data_dir"],
                "cluster.etcd and data_dir are both set, but a node of a cluster stores everything in etcd; remove data_dir \
                 (\"signalbox data export\" and \"signalbox data import --cluster\" move its contents into the cluster)",
            );
        }
        if !config.semaphore.declare.is_empty() {
            return Contradiction::of(
                ["cluster.etcd", "semaphore.declare"],
                "cluster.etcd and semaphore.declare are both set, but nodes with different files would undo each other's \
                 declarations; remove the [[semaphore.declare]] tables, and declare each semaphore once with \"signalbox \
                 declare\": the cluster keeps it",
            );
        }
        Ok(())
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
    fn members_with_https_need_their_authority() {
        let checked = |member: &str, etcd_ca: Option<&str>| {
            let mut config = Config::default();
            config.cluster.etcd = vec!["http://10.0.0.1:2379".to_owned(), member.to_owned()];
            config.cluster.etcd_ca = etcd_ca.map(PathBuf::from);
            config.cluster.validate(&config)
        };
        let refused = checked("https://10.0.0.2:2379", None);
        assert_eq!(refused.unwrap_err().keys, ["cluster.etcd", "cluster.etcd_ca"]);
        assert!(checked("https://10.0.0.2:2379", Some("/etc/ca.pem")).is_ok());
        assert!(checked("http://10.0.0.2:2379", None).is_ok());
    }

    #[test]
    fn relays_need_an_address_that_other_nodes_reach() {
        let checked = |bind: Option<&str>, relay_ca: Option<&str>, cert: Option<&str>| {
            let mut config = Config::default();
            config.cluster.etcd = vec!["http://10.0.0.1:2379".to_owned()];
            config.cluster.bind = bind.map(|bind| bind.parse().unwrap());
            config.cluster.relay_ca = relay_ca.map(PathBuf::from);
            config.tls.cert = cert.map(PathBuf::from);
            config.cluster.validate(&config).map(|()| config.cluster.relays())
        };
        assert!(matches!(checked(None, None, None), Ok(false)));
        assert!(matches!(checked(Some("10.0.0.1:11218"), None, None), Ok(true)));
        let unspecified = checked(Some("0.0.0.0:11218"), None, None);
        assert_eq!(unspecified.unwrap_err().keys, ["cluster.bind", "cluster.etcd"]);
        let alone = checked(None, Some("/ca.pem"), None);
        assert_eq!(alone.unwrap_err().keys, ["cluster.relay_ca", "cluster.bind"]);
        let without_tls = checked(Some("10.0.0.1:11218"), Some("/ca.pem"), None);
        assert_eq!(without_tls.unwrap_err().keys, ["cluster.relay_ca", "tls.cert"]);
        assert!(matches!(checked(Some("10.0.0.1:11218"), Some("/ca.pem"), Some("/cert.pem")), Ok(true)));
        let mut config = Config { proxies: vec!["10.0.0.9".parse().unwrap()], ..Config::default() };
        config.cluster.etcd = vec!["http://10.0.0.1:2379".to_owned()];
        config.cluster.bind = Some("10.0.0.1:11218".parse().unwrap());
        assert!(matches!(config.cluster.validate(&config), Ok(())));
        config.cluster.relay_ca = Some("/ca.pem".into());
        config.tls.cert = Some("/cert.pem".into());
        let refused = config.cluster.validate(&config);
        assert_eq!(refused.unwrap_err().keys, ["cluster.relay_ca", "proxies"]);
    }

    #[test]
    fn a_node_keeps_nothing_on_its_disk() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            config.cluster.etcd = vec!["http://10.0.0.1:2379".to_owned()];
            change(&mut config);
            config.cluster.validate(&config)
        };
        let disk = with(|config| config.data_dir = Some("/var/lib/signalbox".into()));
        assert_eq!(disk.unwrap_err().keys, ["cluster.etcd", "data_dir"]);
        let declared =
            with(|config| config.semaphore.declare = vec![crate::config::DeclareConfig::default()]);
        assert_eq!(declared.unwrap_err().keys, ["cluster.etcd", "semaphore.declare"]);
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

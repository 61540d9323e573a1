//! Checks a configuration as a whole: settings that contradict each other. The ranges of each key are in `schema`.

use super::error::Contradiction;
use super::root::{ClientCert, ClusterConfig, Config, SessionConfig, TlsConfig};

impl Config {
    /// Checks that no settings contradict each other, after the command line has overridden keys. For example, an extension
    /// is enabled, listeners have different ports, durable keys have a store, and times are within their limits. Fails with
    /// the first contradiction.
    pub fn validate(&self) -> Result<(), Contradiction> {
        self.contradictions().into_iter().next().map_or(Ok(()), Err)
    }

    /// Returns all contradictions.
    pub(super) fn contradictions(&self) -> Vec<Contradiction> {
        let mut found = Vec::new();
        let (counter, semaphore) = (&self.counter.port, &self.semaphore.port);
        if !counter.enable && !semaphore.enable {
            found.push(Contradiction::of(
                ["counter.enable", "semaphore.enable"],
                "counter.enable and semaphore.enable are both false; set `counter.enable = true`, `semaphore.enable = true` \
                 or both in the configuration file",
            ));
        }
        found.extend(self.same_ports());
        if !self.sysv.durable_keys.is_empty() && !self.has_store() {
            found.push(Contradiction::of(
                ["sysv.durable_keys", "data_dir"],
                "sysv.durable_keys is set, but data_dir is not; set data_dir to the directory in which these sets are kept, \
                 such as `data_dir = \"/var/lib/signalbox\"`, or make this server a node of a cluster",
            ));
        }
        found.extend(self.tls.contradiction());
        found.extend(self.cluster.contradictions(self));
        found.extend(self.session.contradictions());
        found
    }

    /// Returns a contradiction for each port that two listeners would have. Port 0, which only the command line can
    /// set, means any free port, and so a different one each time.
    fn same_ports(&self) -> Vec<Contradiction> {
        let counter = ("counter.port", self.counter.port.enable, self.counter.port.port);
        let semaphore = ("semaphore.port", self.semaphore.port.enable, self.semaphore.port.port);
        let http = ("http.port", self.http.enable, self.http.port);
        let is_free = |free: &u16| [counter, semaphore, http].iter().all(|(.., port)| port != free);
        let free = (11215..).find(is_free).unwrap_or_default();
        let pairs = [(counter, semaphore, semaphore), (http, counter, http), (http, semaphore, http)];
        let same = pairs.into_iter().filter(|((_, is_used, port), (_, is_other_used, other_port), _)| {
            *is_used && *is_other_used && port == other_port && *port != 0
        });
        type Port = (&'static str, bool, u16);
        let contradiction = |((key, _, port), (other, ..), (moved, ..)): (Port, Port, Port)| {
            let sentence = format!(
                "{key} and {other} are both {port}; set one of them to another port, such as `{moved} = {free}`"
            );
            Contradiction::of([key, other], sentence)
        };
        same.map(contradiction).collect()
    }
}

impl TlsConfig {
    /// Returns a contradiction within the section.
    fn contradiction(&self) -> Option<Contradiction> {
        let default = Self::default();
        if self.cert.is_none() {
            let set = [
                ("tls.key", self.key.is_some()),
                ("tls.client_ca", self.client_ca.is_some()),
                ("tls.client_cert", self.client_cert != default.client_cert),
                ("tls.plain", self.plain != default.plain),
            ];
            let (key, _) = set.into_iter().find(|(_, is_set)| *is_set)?;
            return Some(Contradiction::without(key, "tls.cert"));
        }
        if self.key.is_none() {
            return Some(Contradiction::without("tls.cert", "tls.key"));
        }
        if self.client_cert == ClientCert::Required && self.client_ca.is_none() {
            return Some(Contradiction::without("tls.client_cert", "tls.client_ca"));
        }
        None
    }
}

impl ClusterConfig {
    /// Returns the contradictions within the section, and with the rest of the configuration.
    fn contradictions(&self, config: &Config) -> Vec<Contradiction> {
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
            let first = set.into_iter().find(|(_, is_set)| *is_set);
            return first.map(|(key, _)| Contradiction::without(key, "cluster.etcd")).into_iter().collect();
        }
        let mut found = Vec::new();
        for (one, other) in [
            (("cluster.etcd_cert", self.etcd_cert.is_some()), ("cluster.etcd_key", self.etcd_key.is_some())),
            (
                ("cluster.etcd_user", self.etcd_user.is_some()),
                ("cluster.etcd_password_file", self.etcd_password_file.is_some()),
            ),
        ] {
            match (one.1, other.1) {
                (true, false) => found.push(Contradiction::without(one.0, other.0)),
                (false, true) => found.push(Contradiction::without(other.0, one.0)),
                _ => {}
            }
        }
        if self.etcd_ca.is_none() && self.etcd.iter().any(|member| member.starts_with("https:")) {
            found.push(Contradiction::of(
                ["cluster.etcd", "cluster.etcd_ca"],
                "cluster.etcd has a member with https, but cluster.etcd_ca is not set; set it to the file with the certificate \
                 of the authority that signed those of etcd's members",
            ));
        }
        if self.bind.is_some_and(|address| address.ip().is_unspecified()) {
            found.push(Contradiction::of(
                ["cluster.bind", "cluster.etcd"],
                "cluster.bind is an unspecified address; set the address at which the other nodes reach this one, such as \
                 10.0.0.1:11218",
            ));
        }
        if self.relay_ca.is_some() && !self.relays() {
            found.push(Contradiction::without("cluster.relay_ca", "cluster.bind"));
        }
        if self.relay_ca.is_some() && config.tls.cert.is_none() {
            found.push(Contradiction::without("cluster.relay_ca", "tls.cert"));
        }
        if self.relay_ca.is_some() && !config.proxies.is_empty() {
            found.push(Contradiction::of(
                ["cluster.relay_ca", "proxies"],
                "cluster.relay_ca and proxies are both set, but a relay that encrypts cannot pass on the header of a proxy; \
                 remove one of the two: without proxies, clients count as their proxy, and without relay_ca, only clients with \
                 TLS of their own are encrypted between the nodes",
            ));
        }
        if config.data_dir.is_some() {
            found.push(Contradiction::of(
                ["cluster.etcd", "data_dir"],
                "cluster.etcd and data_dir are both set, but a node of a cluster stores everything in etcd; remove data_dir \
                 (\"signalbox data export\" and \"signalbox data import --cluster\" move its contents into the cluster)",
            ));
        }
        if !config.semaphore.declare.is_empty() {
            found.push(Contradiction::of(
                ["cluster.etcd", "semaphore.declare"],
                "cluster.etcd and semaphore.declare are both set, but nodes with different files would undo each other's \
                 declarations; move the [[semaphore.declare]] tables to a file of their own, and apply it with \"signalbox apply\": \
                 the cluster keeps them",
            ));
        }
        found
    }
}

impl SessionConfig {
    fn contradictions(&self) -> Vec<Contradiction> {
        let min_ttl = ("session.min_ttl", self.min_ttl_s);
        let default_ttl = ("session.default_ttl", self.default_ttl_s);
        let max_ttl = ("session.max_ttl", self.max_ttl_s);
        let default_wait = ("session.default_wait", self.default_wait_s);
        let max_wait = ("session.max_wait", self.max_wait_s);
        let pairs = [(min_ttl, default_ttl), (default_ttl, max_ttl), (default_wait, max_wait)];
        let wrong = pairs.into_iter().filter(|(lower, upper)| lower.1 > upper.1);
        let contradiction = |(lower, upper): ((&'static str, u32), (&'static str, u32))| {
            let sentence = format!(
                "{} is {} and {} is {}; lower the first or raise the second",
                lower.0, lower.1, upper.0, upper.1
            );
            Contradiction::of([lower.0, upper.0], sentence)
        };
        wrong.map(contradiction).collect()
    }
}

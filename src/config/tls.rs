//! The section `[tls]`.

use std::path::PathBuf;

use super::access::UnknownRule;
use super::error::Contradiction;
use super::words::words;

/// TLS on the service ports. Without a certificate, there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate of the server, and those between it and its authority, in PEM.
    pub cert: Option<PathBuf>,
    /// The key of that certificate, in PEM.
    pub key: Option<PathBuf>,
    /// The certificates of the authorities that sign those of clients, in PEM; `None`: clients are asked for none.
    pub client_ca: Option<PathBuf>,
    /// Whether clients over TLS need a certificate.
    pub client_cert: ClientCert,
    /// Which clients may connect without TLS.
    pub plain: PlainRule,
}

/// Whether clients over TLS need a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCert {
    /// A client that shows one is verified, and one without is served too.
    #[default]
    Optional,
    /// A client without one is refused.
    Required,
}

/// Which clients may connect without TLS, where TLS is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlainRule {
    /// All of them.
    #[default]
    Allow,
    /// Those on the server's machine.
    Loopback,
    /// None.
    Refuse,
}

impl TlsConfig {
    /// Checks the section as a whole.
    pub(super) fn contradiction(&self) -> Option<Contradiction> {
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

words!(ClientCert, UnknownRule: Optional "optional", Required "required");
words!(PlainRule, UnknownRule: Allow "allow", Loopback "loopback", Refuse "refuse");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_without_what_it_needs_is_refused() {
        let path = || Some(PathBuf::from("/etc/signalbox/x.pem"));
        let with_cert = TlsConfig { cert: path(), key: path(), ..TlsConfig::default() };
        for (config, expected) in [
            (TlsConfig { key: None, ..with_cert.clone() }, "tls.cert is set, but tls.key is not"),
            (TlsConfig { cert: None, ..with_cert.clone() }, "tls.key is set, but tls.cert is not"),
            (TlsConfig { client_ca: path(), ..TlsConfig::default() }, "tls.client_ca is set, but tls.cert"),
            (
                TlsConfig { plain: PlainRule::Refuse, ..TlsConfig::default() },
                "tls.plain is set, but tls.cert",
            ),
            (
                TlsConfig { client_cert: ClientCert::Required, ..with_cert.clone() },
                "tls.client_cert is set, but tls.client_ca is not",
            ),
        ] {
            let refused = config.contradiction().unwrap().to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
        assert!(TlsConfig::default().contradiction().is_none());
        assert!(with_cert.contradiction().is_none());
    }
}

//! The rules: who may do what. They do no I/O and read no clock.
//!
//! The first of these that applies decides alone: a token that the client has shown; a rule about its certificate; a
//! rule about its network; its address, if that makes it an administrator; the anonymous rights.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::super::client_address::Client;
use crate::config::{AccessConfig, CertificateRule, Config, NetworkRule};
use signalbox_access::{CertificateName, Entry, Right, Rights, Token, Tokens, Verdict};
use signalbox_model::{Target, TokenRefusal, UnixSeconds};

/// The identity that a client has proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server) enum Identity {
    /// The name of its token.
    Token(Arc<str>),
    /// The name in its certificate that a rule is about.
    Certificate(CertificateName),
}

/// The rights of a client.
#[derive(Clone, Debug)]
pub(in crate::server) struct Permissions {
    rights: Arc<Rights>,
    identity: Option<Identity>,
    /// When the token that gives the rights expires.
    expires_at: Option<UnixSeconds>,
}

impl Permissions {
    /// Returns whether the client may do this.
    pub(in crate::server) fn may(&self, right: Right, target: Target<'_>) -> bool {
        self.rights.permit(right, target)
    }

    /// Returns the identity that the client has proven.
    pub(in crate::server) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Returns whether they include all rights of `others`.
    pub(in crate::server) fn include(&self, others: &Self) -> bool {
        self.rights.include(&others.rights)
    }

    /// Returns whether they include all rights of `others`, apart from administration.
    pub(super) fn include_use(&self, others: &Self) -> bool {
        self.rights.include(&others.rights.without(Right::Administer))
    }

    /// Returns whether some plain request must be refused.
    pub(super) fn restrict_plain(&self) -> bool {
        !self.rights.include(&Rights::READ_AND_ACQUIRE)
    }

    pub(super) fn expires_at(&self) -> Option<UnixSeconds> {
        self.expires_at
    }
}

/// The form in listings, in the log, and in revocations of all sessions of a client.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(name) => write!(f, "token:{name}"),
            Self::Certificate(name) => write!(f, "certificate:{}", name.to_string().escape_default()),
        }
    }
}

/// The permissions that a valid token has proven.
#[derive(Debug)]
pub(super) struct Proven {
    pub(super) permissions: Permissions,
    pub(super) entry: Entry,
}

/// The rules in force.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    anonymous: Arc<Rights>,
    administrator: Arc<Rights>,
    networks: Vec<(NetworkRule, Arc<Rights>)>,
    certificates: Vec<(CertificateRule, Arc<Rights>)>,
    admin_from: Vec<IpAddr>,
    accepts_tokens: bool,
    tokens_over_plain: bool,
    tokens: Arc<Tokens>,
}

impl Policy {
    pub(super) fn of(config: &Config, tokens: Arc<Tokens>) -> Self {
        let AccessConfig { anonymous, networks, certificates, tokens_over_plain, .. } = &config.access;
        let shared = |rights: &Rights| Arc::new(rights.clone());
        Self {
            anonymous: Arc::new(anonymous.clone().unwrap_or(Rights::READ_AND_ACQUIRE)),
            administrator: Arc::new(Rights::ALL),
            networks: networks.iter().map(|rule| (rule.clone(), shared(&rule.rights))).collect(),
            certificates: certificates.iter().map(|rule| (rule.clone(), shared(&rule.rights))).collect(),
            // In the form in which clients are looked up: IPv4 addresses are not mapped to IPv6.
            admin_from: config.admin_from.iter().map(IpAddr::to_canonical).collect(),
            accepts_tokens: config.access.tokens.is_some(),
            tokens_over_plain: *tokens_over_plain,
            tokens,
        }
    }

    pub(super) fn tokens(&self) -> Arc<Tokens> {
        Arc::clone(&self.tokens)
    }

    pub(super) fn with_tokens(&self, tokens: Arc<Tokens>) -> Self {
        Self { tokens, ..self.clone() }
    }

    /// Returns the permissions of a client that has shown no token.
    pub(super) fn permissions_of(&self, client: &Client) -> Permissions {
        let rules = &mut self.certificates.iter();
        let decided = rules.find_map(|(rule, rights)| Some((rule.find(&client.certificate)?, rights)));
        if let Some((name, rights)) = decided {
            let identity = Identity::Certificate(name.clone());
            return Permissions { rights: Arc::clone(rights), identity: Some(identity), expires_at: None };
        }
        let rights = match self.rule_of_network(client) {
            Some(rights) => rights,
            None if client.address.is_administrator(&self.admin_from) => &self.administrator,
            None => &self.anonymous,
        };
        Permissions { rights: Arc::clone(rights), identity: None, expires_at: None }
    }

    fn rule_of_network(&self, client: &Client) -> Option<&Arc<Rights>> {
        let ip = client.address.socket().ip().to_canonical();
        // If a remote proxy states loopback, that is the proxy's machine, and no rule applies. Loopback that a relay
        // states counts as loopback, as it does for administrators.
        let is_of_node = client.address.is_local() || client.address.is_relayed();
        if !client.address.is_trusted() || (ip.is_loopback() && !is_of_node) {
            return None;
        }
        self.networks.iter().find(|(rule, _)| rule.network.contains(ip)).map(|(_, rights)| rights)
    }

    /// Returns the permissions of a client that shows a token.
    pub(super) fn authenticate(
        &self,
        client: &Client,
        is_encrypted: bool,
        token: &[u8],
        now: UnixSeconds,
    ) -> Result<Proven, TokenRefusal> {
        if !self.accepts_tokens {
            return Err(TokenRefusal::NoTokens);
        }
        if !self.accepts_token_of(client, is_encrypted) {
            return Err(TokenRefusal::OverPlain);
        }
        let token = Token::parse(token).ok_or(TokenRefusal::Malformed)?;
        Proven::of(self.tokens.verify(&token, now.0))
    }

    /// Returns whether a client may show a token over its connection.
    pub(super) fn accepts_token_of(&self, client: &Client, is_encrypted: bool) -> bool {
        is_encrypted || client.address.is_local() || self.tokens_over_plain
    }

    /// Returns the present permissions of a token that was accepted earlier, or why it is no longer accepted.
    pub(super) fn revalidate(&self, earlier: &Entry, now: UnixSeconds) -> Result<Proven, TokenRefusal> {
        if !self.accepts_tokens {
            return Err(TokenRefusal::NoTokens);
        }
        Proven::of(self.tokens.revalidate(earlier, now.0))
    }
}

impl Proven {
    fn of(verdict: Verdict<'_>) -> Result<Self, TokenRefusal> {
        let entry = match verdict {
            Verdict::Valid(entry) => entry,
            Verdict::Expired(_) => return Err(TokenRefusal::Expired),
            Verdict::Unknown => return Err(TokenRefusal::Unknown),
        };
        let identity = Identity::Token(entry.name.as_str().into());
        let permissions = Permissions {
            rights: Arc::new(entry.rights.clone()),
            identity: Some(identity),
            expires_at: entry.expires_at_s.map(UnixSeconds),
        };
        Ok(Self { permissions, entry: entry.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::super::client_address::{ClientAddress, RelayedOver};
    use super::*;

    /// A client with a certificate that has these names.
    fn client(ip: &str, names: &[&str]) -> Client {
        let address = ClientAddress::of_peer(SocketAddr::new(ip.parse().unwrap(), 1));
        Client { address, certificate: names.iter().map(|name| name.parse().unwrap()).collect() }
    }

    fn policy(change: impl FnOnce(&mut Config)) -> Policy {
        let mut config = Config::default();
        change(&mut config);
        Policy::of(&config, Arc::default())
    }

    fn rights(permissions: &Permissions) -> [bool; 3] {
        [Right::Read, Right::Acquire, Right::Administer].map(|right| permissions.may(right, Target::Server))
    }

    #[test]
    fn the_first_rule_that_is_about_a_client_decides_alone() {
        let policy = policy(|config| {
            config.access.anonymous = Some("none".parse().unwrap());
            config.access.networks = ["10.1.0.0/16 all", "10.0.0.0/8 read", "127.0.0.0/8 acquire"]
                .map(|r| r.parse().unwrap())
                .to_vec();
            config.access.certificates =
                ["dns:Worker acquire", "* read"].map(|r| r.parse().unwrap()).to_vec();
            config.admin_from = vec!["10.0.0.9".parse().unwrap()];
        });
        for (ip, certificate, expected) in [
            ("10.1.2.3", &[][..], [true, true, true]),
            ("10.2.2.3", &[], [true, false, false]),
            ("::ffff:10.2.2.3", &[], [true, false, false]),
            ("10.0.0.9", &[], [true, false, false]),
            ("127.0.0.1", &[], [false, true, false]),
            ("::1", &[], [true, true, true]),
            ("192.0.2.1", &[], [false; 3]),
            ("10.1.2.3", &["dns:worker"], [false, true, false]),
            ("10.1.2.3", &["uri:a", "cn:b", "dns:WORKER"], [false, true, false]),
            ("10.1.2.3", &["cn:worker", "uri:worker"], [true, false, false]),
            ("192.0.2.1", &["cn:other"], [true, false, false]),
        ] {
            assert_eq!(
                rights(&policy.permissions_of(&client(ip, certificate))),
                expected,
                "{ip} {certificate:?}"
            );
        }
    }

    #[test]
    fn a_client_is_known_by_the_name_that_a_rule_is_about() {
        let policy = policy(|config| {
            config.access.certificates =
                ["dns:w acquire", "* read"].map(|rule| rule.parse().unwrap()).to_vec();
        });
        let identity = |names: &[&str]| {
            let permissions = policy.permissions_of(&client("192.0.2.1", names));
            permissions.identity().map(ToString::to_string)
        };
        assert_eq!(identity(&["uri:a", "dns:w"]).as_deref(), Some("certificate:dns:w"));
        assert_eq!(identity(&["cn:a\nb", "uri:c"]).as_deref(), Some("certificate:cn:a\\nb"), "on one line");
        assert_eq!(identity(&[]), None);
    }

    #[test]
    fn an_address_that_nobody_vouches_for_and_one_in_another_form() {
        let policy = policy(|config| {
            config.access.anonymous = Some("none".parse().unwrap());
            config.access.networks = vec!["10.0.0.0/8 all".parse().unwrap()];
            config.admin_from = vec!["::ffff:192.0.2.9".parse().unwrap()];
        });
        let [stated, relay] = ["10.1.2.3:1", "192.0.2.1:1"].map(|address| address.parse().unwrap());
        for (over, expected) in [(RelayedOver::Trusted, true), (RelayedOver::Untrusted, false)] {
            let address = ClientAddress::relayed(stated, relay, over);
            let client = Client { address, certificate: Arc::default() };
            assert_eq!(rights(&policy.permissions_of(&client)), [expected; 3], "{over:?}");
        }
        for (ip, expected) in [("192.0.2.9", true), ("::ffff:192.0.2.9", true), ("192.0.2.8", false)] {
            assert_eq!(rights(&policy.permissions_of(&client(ip, &[]))), [expected; 3], "{ip}");
        }
    }

    #[test]
    fn a_token_crosses_a_network_over_tls_alone_unless_that_is_allowed() {
        let tokens = |over_plain| {
            policy(|config| {
                config.access.tokens = Some("/tokens.toml".into());
                config.access.tokens_over_plain = over_plain;
            })
        };
        let unknown = super::super::token_of_test(7);
        for (ip, is_encrypted, over_plain, expected) in [
            ("192.0.2.7", true, false, true),
            ("192.0.2.7", false, true, true),
            ("192.0.2.7", false, false, false),
            ("127.0.0.1", false, false, true),
        ] {
            let (policy, client) = (tokens(over_plain), client(ip, &[]));
            let refused =
                |text: &[u8]| policy.authenticate(&client, is_encrypted, text, UnixSeconds(0)).err();
            let [other, malformed] = match expected {
                true => [TokenRefusal::Unknown, TokenRefusal::Malformed],
                false => [TokenRefusal::OverPlain; 2],
            };
            assert_eq!(refused(unknown.reveal().as_bytes()), Some(other), "{ip} {is_encrypted} {over_plain}");
            assert_eq!(refused(b"sbx_"), Some(malformed), "{ip} {is_encrypted} {over_plain}");
        }
        let none = policy(|_| ());
        let refused = none.authenticate(&client("127.0.0.1", &[]), true, b"sbx_", UnixSeconds(0)).err();
        assert_eq!(refused, Some(TokenRefusal::NoTokens));
        let entry = Entry::of(&unknown, "web".to_owned(), Rights::ALL, 0, None);
        assert_eq!(none.revalidate(&entry, UnixSeconds(0)).err(), Some(TokenRefusal::NoTokens));
    }

    #[test]
    fn a_rule_about_loopback_is_about_clients_on_the_machine_of_a_relay_too() {
        let policy = policy(|config| config.access.networks = vec!["127.0.0.0/8 acquire".parse().unwrap()]);
        let [local, relay] = ["127.0.0.1:1", "192.0.2.1:1"].map(|address| address.parse().unwrap());
        let address = ClientAddress::relayed(local, relay, RelayedOver::Trusted);
        let client = Client { address, certificate: Arc::default() };
        assert_eq!(rights(&policy.permissions_of(&client)), [false, true, false]);
    }
}

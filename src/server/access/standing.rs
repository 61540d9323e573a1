//! The present rights of a connection.
//!
//! Invariant: `may` answers by the rules as of the last `refresh`. `refresh` is called before requests are executed and
//! before messages are sent; it decides again if the rules were replaced or the token has expired.

use super::super::client_address::Client;
use super::policy::{Permissions, Proven};
use super::{Access, InUse, Right};
use signalbox_access::Entry;
use signalbox_model::{Refusal, Target, TokenRefusal, UnixSeconds};

/// The number of refused tokens after which a connection is closed.
const FAILURES_MAX: u32 = 3;

/// The rights of a connection, and where they come from.
#[derive(Debug)]
pub(in crate::server) struct Standing {
    permissions: Permissions,
    restricts_plain: bool,
    generation: u64,
    /// The token that the client has proven.
    proof: Option<Entry>,
    /// Why a token that the client had proven is no longer accepted.
    lost_token: Option<TokenRefusal>,
    in_use: Option<InUse>,
    failures: u32,
}

impl Standing {
    /// Returns the standing of a client that has shown no token.
    pub(in crate::server) fn of(access: &Access, client: &Client) -> Self {
        // Read first, so that the standing is stale if the rules are replaced in between.
        let generation = access.generation();
        let permissions = access.permissions_of(client);
        let restricts_plain = permissions.restrict_plain();
        Self {
            permissions,
            restricts_plain,
            generation,
            proof: None,
            lost_token: None,
            in_use: None,
            failures: 0,
        }
    }

    /// Gives the connection the rights of a token.
    pub(in crate::server) fn authenticate(
        &mut self,
        access: &Access,
        client: &Client,
        is_encrypted: bool,
        token: &[u8],
    ) -> Result<(), TokenRefused> {
        match access.prove(client, is_encrypted, token) {
            Ok(proven) => {
                self.apply(access, proven);
                Ok(())
            }
            Err(why) => {
                self.failures += 1;
                let is_closed = access.note_failure(client, "Hello", why) || self.failures >= FAILURES_MAX;
                Err(TokenRefused { why, is_closed })
            }
        }
    }

    /// Returns whether [`Self::refresh`] has something to do.
    #[inline]
    pub(in crate::server) fn is_stale(&self, access: &Access, now: UnixSeconds) -> bool {
        self.generation != access.generation() || self.permissions.expires_at().is_some_and(|at| at <= now)
    }

    /// Decides again what the connection may do, if the rules were replaced or the token has expired. Returns whether
    /// the client lost rights.
    pub(in crate::server) fn refresh(
        &mut self,
        access: &Access,
        client: &Client,
        is_encrypted: bool,
    ) -> bool {
        if !self.is_stale(access, access.now()) {
            return false;
        }
        self.generation = access.generation();
        let before = self.permissions.clone();
        let valid = self.proof.take().map(|entry| match access.accepts_token_of(client, is_encrypted) {
            true => access.revalidate(&entry),
            false => Err(TokenRefusal::OverPlain),
        });
        match valid {
            Some(Ok(proven)) => self.apply(access, proven),
            refused => {
                self.lost_token = refused.and_then(Result::err).or(self.lost_token);
                self.in_use = None;
                self.permissions = access.permissions_of(client);
                self.restricts_plain = self.permissions.restrict_plain();
            }
        }
        !self.permissions.include(&before)
    }

    /// Returns whether a client that another node relays could do as much, apart from administration, if it connected
    /// without the relay.
    pub(in crate::server) fn is_kept_directly(
        &self,
        access: &Access,
        client: &Client,
        is_encrypted: bool,
    ) -> bool {
        let direct = Client { address: client.address.direct(), certificate: client.certificate.clone() };
        match self.proof {
            Some(_) => access.accepts_token_of(&direct, is_encrypted),
            None => access.permissions_of(&direct).include_use(&self.permissions),
        }
    }

    fn apply(&mut self, access: &Access, proven: Proven) {
        self.in_use = Some(access.uses.begin(proven.entry.id));
        self.restricts_plain = proven.permissions.restrict_plain();
        self.permissions = proven.permissions;
        self.proof = Some(proven.entry);
        self.lost_token = None;
    }

    /// Returns whether some plain request must be refused.
    #[inline]
    pub(in crate::server) fn restricts_plain(&self) -> bool {
        self.restricts_plain
    }

    /// Returns the refusal of a request that the client may not make.
    pub(in crate::server) fn refusal(&self) -> Refusal {
        self.lost_token.map_or(Refusal::NotPermitted, Refusal::Token)
    }

    pub(in crate::server) fn permissions(&self) -> &Permissions {
        &self.permissions
    }

    /// Returns whether the client may do this.
    pub(in crate::server) fn may(&self, right: Right, target: Target<'_>) -> bool {
        self.permissions.may(right, target)
    }
}

/// A token was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct TokenRefused {
    pub(in crate::server) why: TokenRefusal,
    /// Whether the connection must be closed, because too many tokens were refused.
    pub(in crate::server) is_closed: bool,
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::super::client_address::{ClientAddress, RelayedOver};
    use super::super::super::clock::Clock;
    use super::*;
    use crate::config::Config;
    use signalbox_access::Tokens;

    fn kept(rules: impl FnOnce(&mut Config), client: &str, is_encrypted: bool) -> bool {
        let address = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 1);
        let mut config = Config::default();
        rules(&mut config);
        let access = Access::of(&config, Clock::system());
        let client = Client {
            address: ClientAddress::relayed(address(client), address("192.0.2.1"), RelayedOver::Trusted),
            certificate: Arc::default(),
        };
        Standing::of(&access, &client).is_kept_directly(&access, &client, is_encrypted)
    }

    /// The rights of a client before it shows its token, those of the token, whether some plain requests are refused before, with
    /// the token, and when it has expired, and whether it loses rights then.
    #[test]
    fn plain_requests_are_refused_by_the_rights_of_now() {
        for (anonymous, of_token, expected, loses) in [
            ("read,acquire", "read", [false, true, false], false),
            ("read,acquire", "all counter:web/", [false, true, false], true),
            ("none", "read,acquire", [true, false, true], true),
            ("all", "all", [false; 3], false),
        ] {
            let token = super::super::token_of_test(7);
            let mut tokens = Tokens::default();
            let rights = of_token.parse().unwrap();
            tokens.add(Entry::of(&token, "web".to_owned(), rights, 1, Some(100))).unwrap();
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), tokens.to_string()).unwrap();
            let mut config = Config::default();
            config.access.anonymous = Some(anonymous.parse().unwrap());
            config.access.tokens = Some(file.path().to_owned());
            let now = Arc::new(AtomicU64::new(99));
            let read = Arc::clone(&now);
            let access =
                Access::of(&config, Clock::from_fn(move || UnixSeconds(read.load(Ordering::Relaxed))));
            access.load_tokens(&config.access).unwrap();

            let address = ClientAddress::of_peer(([192, 0, 2, 7], 1).into());
            let client = Client { address, certificate: Arc::default() };
            let mut standing = Standing::of(&access, &client);
            let mut found = vec![standing.restricts_plain()];
            standing.authenticate(&access, &client, true, token.reveal().as_bytes()).unwrap();
            found.push(standing.restricts_plain());
            assert!(
                !standing.is_stale(&access, UnixSeconds(99)) && standing.is_stale(&access, UnixSeconds(100))
            );
            assert!(!standing.refresh(&access, &client, true), "it has not expired");
            now.store(100, Ordering::Relaxed);
            let has_lost = standing.refresh(&access, &client, true);
            assert_eq!(has_lost, loses, "{anonymous} {of_token}");
            assert_eq!(standing.refusal(), Refusal::Token(TokenRefusal::Expired));
            found.push(standing.restricts_plain());
            assert_eq!(found, expected, "{anonymous} {of_token}");
            now.store(200, Ordering::Relaxed);
            assert_eq!(access.uses.last(token.id()), Some(UnixSeconds(100)), "no connection uses it");

            // Without a file, none is left.
            config.access.tokens = None;
            access.load_tokens(&config.access).unwrap();
            assert_eq!(access.tokens().iter().count(), 0);
        }
    }

    #[test]
    fn a_relayed_client_is_as_well_off_directly_unless_rules_prefer_the_machine_of_its_relay() {
        let anonymous = |rights: &'static str| {
            move |config: &mut Config| config.access.anonymous = Some(rights.parse().unwrap())
        };
        assert!(kept(|_| (), "127.0.0.1", false), "it administers over other connections");
        assert!(!kept(anonymous("read"), "127.0.0.1", false), "on loopback it may acquire");
        assert!(!kept(anonymous("read,acquire counter:web/"), "::1", false));
        assert!(kept(anonymous("read"), "192.0.2.7", false), "it may as little either way");
        let network = |config: &mut Config| {
            config.access.anonymous = Some("none".parse().unwrap());
            config.access.networks = vec!["192.0.2.0/24 read,acquire".parse().unwrap()];
        };
        assert!(kept(network, "127.0.0.1", false), "the rule of the machine of its relay");
    }
}

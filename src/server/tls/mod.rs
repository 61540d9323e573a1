//! TLS on the service ports.
//!
//! A connection whose first byte begins a TLS record does a [`handshake`], and is served over the stream of tokio-rustls from
//! then on; all others are plain and never come here. `files` reads the certificates of the configuration, `der` finds the
//! names in a client's certificate.
//!
//! There is no resumption: each connection is verified with the certificates that are in force, also after a reload. Only
//! TLS 1.3 is spoken; its half-close lets a client that has sent its last request receive the answers.

pub(super) mod der;
mod files;
mod handshake;

use std::fmt;

pub use files::TlsError;
pub(super) use handshake::{Handshake, HandshakeError, Terms};

use super::client_address::ClientAddress;
use super::expirations::Expiration;
use crate::config::PlainRule;

/// What the server needs for TLS.
pub(super) struct Tls {
    terms: Terms,
    /// For the connections that relays encrypt. They need no certificate: they have proven themselves already.
    for_relays: Terms,
    plain: PlainRule,
    /// Of the certificates in the files.
    pub(super) expirations: Vec<Expiration>,
}

/// How the connection of a client may begin.
#[derive(Clone, Copy, Debug)]
pub(super) enum FirstBytes {
    /// With a request, or perhaps with TLS.
    Any { may_begin_tls: bool },
    /// Only with TLS.
    Tls,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("plain", &self.plain).finish_non_exhaustive()
    }
}

impl Tls {
    /// What new connections are served with.
    pub(super) fn terms(&self) -> Terms {
        self.terms.clone()
    }

    /// What the connection of this client is served with.
    pub(super) fn terms_for(&self, client: ClientAddress) -> Terms {
        if client.is_encrypted_by_relay() { self.for_relays.clone() } else { self.terms() }
    }

    /// Whether this client may send requests without TLS of its own.
    pub(super) fn permits_plain(&self, client: ClientAddress) -> bool {
        match self.plain {
            PlainRule::Allow => true,
            PlainRule::Loopback => client.is_local(),
            PlainRule::Refuse => false,
        }
    }

    /// How the connection of a client may begin that no relay encrypts.
    pub(super) fn first_bytes_of(&self, client: ClientAddress) -> FirstBytes {
        if self.permits_plain(client) { FirstBytes::Any { may_begin_tls: true } } else { FirstBytes::Tls }
    }
}

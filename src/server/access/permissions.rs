//! What one client may do, and as whom.

use std::fmt;
use std::sync::Arc;

use signalbox_access::{CertificateName, Right, Rights};
use signalbox_model::{Target, UnixSeconds};

/// Who a client has proven to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server) enum Identity {
    /// The name of its token.
    Token(Arc<str>),
    /// The name in its certificate which a rule is about.
    Certificate(CertificateName),
}

/// What a client may do.
#[derive(Clone, Debug)]
pub(in crate::server) struct Permissions {
    rights: Arc<Rights>,
    identity: Option<Identity>,
    /// When the token that gives them expires.
    expires_at: Option<UnixSeconds>,
}

impl Permissions {
    pub(super) fn new(
        rights: Arc<Rights>,
        identity: Option<Identity>,
        expires_at: Option<UnixSeconds>,
    ) -> Self {
        Self { rights, identity, expires_at }
    }

    /// Whether the client may do this.
    pub(in crate::server) fn may(&self, right: Right, target: Target<'_>) -> bool {
        self.rights.permit(right, target)
    }

    /// Who the client has proven to be.
    pub(in crate::server) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Whether they include all rights of others.
    pub(in crate::server) fn include(&self, others: &Self) -> bool {
        self.rights.include(&others.rights)
    }

    /// Whether they include all rights of others, apart from administration.
    pub(super) fn include_use(&self, others: &Self) -> bool {
        self.rights.include(&others.rights.without(Right::Administer))
    }

    /// Whether some plain request must be refused.
    pub(super) fn restrict_plain(&self) -> bool {
        !self.rights.include(&Rights::READ_AND_ACQUIRE)
    }

    pub(super) fn expires_at(&self) -> Option<UnixSeconds> {
        self.expires_at
    }
}

/// As in listings, in the log and in revocations of all sessions of a client.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(name) => write!(f, "token:{name}"),
            Self::Certificate(name) => write!(f, "certificate:{}", name.to_string().escape_default()),
        }
    }
}

//! The names in certificates of clients, each with its type.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

/// A name in a certificate. It is shown, and parsed, as `dns:NAME`, `uri:NAME` or `cn:NAME`.
///
/// Names are equal if their types and texts are. DNS names are in lower case, because their case has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CertificateName {
    kind: NameKind,
    text: Arc<str>,
}

/// The field of a certificate that has the name. The same text means different things in different fields, and authorities
/// check them differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameKind {
    /// A DNS name among the subject alternative names.
    Dns,
    /// A URI among the subject alternative names.
    Uri,
    /// A common name of the subject.
    CommonName,
}

/// The text is not a name in a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("must be dns:NAME, uri:NAME or cn:NAME")]
pub struct UnknownCertificateName;

impl NameKind {
    const ALL: [Self; 3] = [Self::Dns, Self::Uri, Self::CommonName];

    fn word(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Uri => "uri",
            Self::CommonName => "cn",
        }
    }
}

impl CertificateName {
    /// Returns the name of this type with this text.
    pub fn new(kind: NameKind, text: &str) -> Self {
        let text = match kind {
            NameKind::Dns => text.to_ascii_lowercase().into(),
            NameKind::Uri | NameKind::CommonName => text.into(),
        };
        Self { kind, text }
    }
}

impl FromStr for CertificateName {
    type Err = UnknownCertificateName;

    fn from_str(text: &str) -> Result<Self, UnknownCertificateName> {
        let (word, name) = text.split_once(':').ok_or(UnknownCertificateName)?;
        let kind =
            NameKind::ALL.into_iter().find(|kind| kind.word() == word).ok_or(UnknownCertificateName)?;
        if name.is_empty() { Err(UnknownCertificateName) } else { Ok(Self::new(kind, name)) }
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.word(), self.text)
    }
}

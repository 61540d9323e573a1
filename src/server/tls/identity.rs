//! Who a client is, by the certificate that rustls has verified.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::der::common_name;

/// The name of a certificate: its first DNS name, else its first URI, else its common name. `None` if it has none of
/// them.
pub(super) fn identity(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    let name = parsed
        .valid_dns_names()
        .next()
        .or_else(|| parsed.valid_uri_names().next())
        .or_else(|| common_name(parsed.subject()))?;
    Some(name.into())
}

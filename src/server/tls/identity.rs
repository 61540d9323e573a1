//! Who a client is, by the certificate that rustls has verified.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::der::common_names;
use signalbox_access::{CertificateName, NameKind};

/// The names in a certificate: its DNS names, then its URIs, then its common names, of which the last is the most specific one
/// and comes first.
pub(super) fn names(certificate: &CertificateDer<'_>) -> Vec<CertificateName> {
    let Ok(parsed) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let of = |kind| move |text| CertificateName::new(kind, text);
    let mut names: Vec<_> = parsed.valid_dns_names().map(of(NameKind::Dns)).collect();
    names.extend(parsed.valid_uri_names().map(of(NameKind::Uri)));
    names.extend(common_names(parsed.subject()).into_iter().rev().map(of(NameKind::CommonName)));
    names
}

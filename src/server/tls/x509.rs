//! The few fields of a certificate that rustls does not provide: its names, and its validity.
//!
//! The certificates are those of the configuration, or of clients that rustls has verified. A part that does not parse
//! is skipped.

use std::ops::Range;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;
use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Decode, Tag, Tagged};
use x509_cert::name::Name;

use signalbox_access::{CertificateName, NameKind};

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// Returns the names in a certificate: its DNS names, then its URIs, then its common names, of which the last is the
/// most specific one and comes first.
pub(super) fn names(certificate: &CertificateDer<'_>) -> Vec<CertificateName> {
    let Ok(parsed) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let of = |kind| move |text| CertificateName::new(kind, text);
    let mut names: Vec<_> = parsed.valid_dns_names().map(of(NameKind::Dns)).collect();
    names.extend(parsed.valid_uri_names().map(of(NameKind::Uri)));
    if let Ok(certificate) = Certificate::from_der(certificate) {
        let common = common_names(certificate.tbs_certificate().subject());
        names.extend(common.into_iter().rev().map(of(NameKind::CommonName)));
    }
    names
}

/// Returns the common names of a subject, in order.
fn common_names(subject: &Name) -> Vec<&str> {
    let named = subject.iter().filter(|attribute| attribute.oid == COMMON_NAME);
    let texts = named.filter_map(|attribute| match attribute.value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String => {
            str::from_utf8(attribute.value.value()).ok()
        }
        _ => None,
    });
    texts.collect()
}

/// Returns the validity of a certificate, in seconds of Unix time; `None`: it cannot be parsed.
pub(in crate::server) fn validity(certificate: &[u8]) -> Option<Range<u64>> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let validity = certificate.tbs_certificate().validity();
    let [begin, end] =
        [validity.not_before, validity.not_after].map(|time| time.to_unix_duration().as_secs());
    Some(begin..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_names_of_a_subject_are_found() {
        // Written as in RFC 4514, from the last to the first.
        let subject: Name = "CN=worker-ä,CN=department,O=Example".parse().unwrap();
        assert_eq!(common_names(&subject), ["department", "worker-ä"]);
        assert!(common_names(&"O=Example".parse().unwrap()).is_empty());
    }

    #[test]
    fn nothing_is_found_in_other_bytes() {
        for bytes in [&[][..], &[0x30], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0x30, 0x80, 0, 0]] {
            assert_eq!((names(&bytes.into()), validity(bytes)), (Vec::new(), None));
        }
    }
}

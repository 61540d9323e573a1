//! Messages about files of certificates.

use std::path::Path;

use rustls::server::ParsedCertificate;
use signalbox_tls::{FileError, certificates};

/// The file is what `openssl x509 -req` makes without extensions.
#[test]
fn a_certificate_of_version_1_is_named_by_its_file() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/version-1.pem"));
    let certificates = certificates(path).unwrap();
    let problem = ParsedCertificate::try_from(&certificates[0]).err().unwrap();
    let error = FileError::unusable(path)(problem);
    assert!(matches!(error, FileError::Version1 { .. }), "{error:?}");
    let message = error.to_string();
    assert!(message.starts_with(&format!("{}: ", path.display())), "{message}");
    assert!(message.contains("version 3") && message.contains("subjectAltName"), "{message}");
}

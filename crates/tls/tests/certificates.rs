//! Files of certificates and keys, and the messages about them.

use std::fs;
use std::path::Path;

use rustls::server::ParsedCertificate;
use signalbox_tls::{FileError, certificates, private_key};

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

#[test]
fn a_file_has_certificates_or_a_key_and_says_what_is_missing() {
    let own = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/version-1.pem")).unwrap();
    let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.pem");
    let write = |text: &str| fs::write(&path, text).unwrap();
    write(&[&own, key, &own].concat());
    assert_eq!(certificates(&path).unwrap().len(), 2, "those between the first one and its authority too");
    assert!(private_key(&path).is_ok());
    for text in ["", key, "no PEM"] {
        write(text);
        assert!(matches!(certificates(&path), Err(FileError::NoCertificate(_))), "{text}");
    }
    for text in
        ["", &own, "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"]
    {
        write(text);
        assert!(matches!(private_key(&path), Err(FileError::NoKey(_))), "{text}");
    }
    write(&own[..own.len() / 2]);
    assert!(matches!(certificates(&path), Err(FileError::NotPem { .. })));
    fs::remove_file(&path).unwrap();
    assert!(matches!(certificates(&path), Err(FileError::Unreadable { .. })));
    assert!(matches!(private_key(&path), Err(FileError::Unreadable { .. })));
}

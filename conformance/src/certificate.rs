//! The certificates of the servers and of the authority that drivers trust, made with openssl.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

#[derive(Debug)]
pub struct Certificate {
    /// The certificate of the authority.
    pub authority: PathBuf,
    /// The certificate of the servers, for 127.0.0.1, where their proxies listen.
    pub file: PathBuf,
    pub key: PathBuf,
    _directory: TempDir,
}

impl Certificate {
    pub fn make() -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
        let make = |arguments: &[&str]| {
            openssl(directory.path(), &[&["req", "-x509"], &key[..], arguments].concat())
        };
        let usage = ["-addext", "keyUsage=critical,keyCertSign"];
        make(&[&["-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"], &usage[..]].concat())?;
        make(&[
            "-subj",
            "/CN=server",
            "-keyout",
            "server.key",
            "-out",
            "server.pem",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ])?;
        let [authority, file, key] =
            ["ca.pem", "server.pem", "server.key"].map(|name| directory.path().join(name));
        Ok(Self { authority, file, key, _directory: directory })
    }
}

fn openssl(directory: &Path, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("openssl").args(arguments).current_dir(directory).output();
    let output = output.map_err(|error| format!("cannot run openssl (apt-get install openssl): {error}"))?;
    let failure = || format!("openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(()) } else { Err(failure()) }
}

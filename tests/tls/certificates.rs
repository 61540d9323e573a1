//! Authorities and certificates, made with openssl.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use signalbox::config::TlsConfig;
use tempfile::TempDir;

/// A folder with an authority, and what it has signed.
pub struct Authority {
    folder: TempDir,
}

/// The files of a certificate.
#[derive(Clone, Debug)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

const NEW_KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];

impl Authority {
    pub fn new() -> Self {
        let authority = Self { folder: tempfile::tempdir().unwrap() };
        let request =
            ["req", "-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"];
        authority.openssl(&[&request[..], &NEW_KEY].concat());
        authority
    }

    /// The certificate of the authority.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Signs a certificate that is valid for two days, with a common name and subject alternative names.
    pub fn sign(&self, name: &str, alternative_names: &str) -> Files {
        self.sign_with(name, alternative_names, &["-days", "2"])
    }

    /// Signs a certificate that expired at the beginning of 2021.
    pub fn sign_expired(&self, name: &str, alternative_names: &str) -> Files {
        let files = self.request(name, alternative_names);
        let folder = self.folder.path();
        fs::write(folder.join("index.txt"), "").unwrap();
        let config = "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\nnew_certs_dir=.\nrand_serial=yes\n\
                      default_md=sha256\npolicy=p\nunique_subject=no\n[p]\ncommonName=supplied\n";
        fs::write(folder.join("ca.cnf"), config).unwrap();
        let [request, extensions, certificate] = ["csr", "ext", "pem"].map(|end| format!("{name}.{end}"));
        let dates = ["-startdate", "20200101000000Z", "-enddate", "20210101000000Z"];
        let files_of = ["-cert", "ca.pem", "-keyfile", "ca.key", "-in", &request, "-out", &certificate];
        let ca = ["ca", "-batch", "-notext", "-config", "ca.cnf", "-extfile", &extensions];
        self.openssl(&[&ca[..], &files_of, &dates].concat());
        files
    }

    fn sign_with(&self, name: &str, alternative_names: &str, validity: &[&str]) -> Files {
        let files = self.request(name, alternative_names);
        let [request, extensions, certificate] = ["csr", "ext", "pem"].map(|end| format!("{name}.{end}"));
        let sign = ["x509", "-req", "-in", &request, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"];
        self.openssl(&[&sign[..], &["-extfile", &extensions, "-out", &certificate], validity].concat());
        files
    }

    /// Makes a key and a request for a certificate.
    fn request(&self, name: &str, alternative_names: &str) -> Files {
        let [key, request, extensions, certificate] =
            ["key", "csr", "ext", "pem"].map(|end| format!("{name}.{end}"));
        let subject = format!("/CN={name}");
        self.openssl(
            &[&["req", "-subj", &subject, "-keyout", &key, "-out", &request][..], &NEW_KEY].concat(),
        );
        let names = match alternative_names {
            "" => String::new(),
            names => format!("subjectAltName={names}\n"),
        };
        let folder = self.folder.path();
        fs::write(folder.join(&extensions), format!("basicConstraints=CA:FALSE\n{names}")).unwrap();
        Files { certificate: folder.join(certificate), key: folder.join(key) }
    }

    fn openssl(&self, arguments: &[&str]) {
        let output = Command::new("openssl").args(arguments).current_dir(self.folder.path()).output();
        let output = output.unwrap_or_else(|error| panic!("openssl (apt-get install openssl): {error}"));
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Files {
    /// The section of a server with this certificate.
    pub fn config(&self) -> TlsConfig {
        let (cert, key) = (Some(self.certificate.clone()), Some(self.key.clone()));
        TlsConfig { cert, key, ..TlsConfig::default() }
    }

    /// The lines of a configuration file.
    pub fn lines(&self) -> String {
        format!("tls.cert = '{}'\ntls.key = '{}'\n", self.certificate.display(), self.key.display())
    }
}

/// An authority, and a certificate of it for servers on loopback.
pub fn for_loopback() -> (Authority, Files) {
    let authority = Authority::new();
    let server = authority.sign("server", "IP:127.0.0.1,IP:127.0.0.2,DNS:localhost");
    (authority, server)
}

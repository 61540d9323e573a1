//! The configuration: TOML or yrmcds.conf in, one validated [`Config`] out.
//!
//! Both languages are read into the same flat list of settings, and the same table of keys ([`Key`]) is applied to them,
//! so that names, ranges and messages are the same. Every error names the file, the line, the key, the value and what is
//! allowed. Nothing here opens a socket, so a bad configuration is found before anything is bound.
//!
//! Variables of the environment override the file. The caller overrides keys from the command line and then calls
//! [`Loaded::validate`], logs the notices, looks up accounts, binds addresses and opens the log file.

mod access;
mod apply;
mod changes;
mod clients;
mod cluster;
mod declarations;
mod error;
mod http;
mod language;
mod load;
mod network;
mod root;
mod schema;
mod setting;
#[cfg(test)]
mod tests;
mod tls;
mod toml;
mod validate;
mod words;
mod workers;
mod yrmcds;

pub use access::{AccessConfig, CertificateRule, NetworkRule, UnknownRule};
pub(crate) use apply::closest;
pub use changes::Change;
pub(crate) use changes::declaration_key;
pub use clients::{Clients, UnknownClients};
pub use cluster::ClusterConfig;
pub(crate) use declarations::DeclarationsFile;
pub use error::{ConfigError, Contradiction, Notice, Severity};
pub use http::HttpConfig;
pub use language::Language;
pub use load::Loaded;
pub use network::{Network, UnknownNetwork};
pub use root::{
    Config, Counter, DeclareConfig, Log, PortConfig, Semaphore, SessionConfig, SysvConfig, Threshold,
    UnknownThreshold,
};
pub(crate) use root::{is_covered, ms};
pub use schema::Key;
pub use tls::{ClientCert, PlainRule, TlsConfig};
pub use workers::WorkerCount;

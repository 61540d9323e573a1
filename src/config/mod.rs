//! The configuration: TOML or yrmcds.conf in, one validated [`Config`] out.
//!
//! Both languages are read into the same flat list of settings, and the same table of keys ([`Key`]) is applied to them,
//! so that names, ranges and messages are the same. Every error names the file, the line, the key, the value and what is
//! allowed. Nothing here opens a socket, so a bad configuration is found before anything is bound.
//!
//! Variables of the environment override the file. The caller overrides keys from the command line and then calls
//! [`Loaded::validate`], logs the notices, looks up accounts, binds addresses and opens the log file.

mod apply;
mod declarations;
mod error;
mod load;
mod root;
mod rules;
mod schema;
mod setting;
mod toml;
mod validate;

pub(crate) use apply::closest;
pub(crate) use declarations::DeclarationsFile;
pub use error::{ConfigError, Contradiction, Notice, Severity};
pub(crate) use load::declaration_key;
pub use load::{Change, Loaded};
pub use root::{
    ClientCert, ClusterConfig, Config, Counter, DeclareConfig, HttpConfig, Log, PlainRule, PortConfig,
    Semaphore, SessionConfig, SysvConfig, Threshold, TlsConfig, WorkerCount,
};
pub(crate) use root::{is_covered, ms};
pub use rules::{AccessConfig, CertificateRule, Clients, Network, NetworkRule};
pub use schema::Key;
pub use setting::Language;

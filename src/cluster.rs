//! The cluster of a configuration: the client of its etcd, the name of this node, and the times.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::unistd::gethostname;

use crate::config::ClusterConfig;
use signalbox_cluster::etcd::{EtcdClient, Settings, SettingsError, Tls, User};
use signalbox_cluster::timing::Timing;

/// Returns a client of the cluster's etcd, which connects when it is used. Reads the files that `config` names,
/// with the rights of the current user.
pub fn client(config: &ClusterConfig, request_timeout: Duration) -> Result<EtcdClient, SettingsError> {
    let tls = config
        .etcd_ca
        .clone()
        .map(|ca| Tls { ca, identity: config.etcd_cert.clone().zip(config.etcd_key.clone()) });
    let user = match (&config.etcd_user, &config.etcd_password_file) {
        (Some(name), Some(file)) => Some(User { name: name.clone(), password: password(file)? }),
        _ => None,
    };
    EtcdClient::new(&Settings { endpoints: config.etcd.clone(), tls, user, request_timeout })
}

/// Returns the name of this node: by default that of the machine.
pub fn node_name(config: &ClusterConfig) -> Result<String, SettingsError> {
    match &config.node {
        Some(node) => Ok(node.clone()),
        None => {
            let name = gethostname().map_err(|error| SettingsError::NodeName(error.into()))?;
            Ok(name.to_string_lossy().into_owned())
        }
    }
}

pub fn timing(config: &ClusterConfig) -> Timing {
    let renew_deadline = Duration::from_secs(config.renew_deadline_s.into());
    Timing::new(renew_deadline).expect("the configuration was validated")
}

/// Returns the password in a file: its first line.
fn password(file: &Path) -> Result<String, SettingsError> {
    let unreadable = |error| SettingsError::Unreadable { path: file.to_owned(), error };
    let text = fs::read_to_string(file).map_err(unreadable)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

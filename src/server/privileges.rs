//! Leaving root: the configured user and group are taken on once the ports are bound.

use nix::unistd::{Gid, Group, Uid, User, geteuid, setgid, setgroups, setuid};
use thiserror::Error;
use tracing::info;

use crate::config::Config;

/// Whom the process becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    uid: Option<Uid>,
    gid: Option<Gid>,
}

/// The configured user or group cannot be taken on.
#[derive(Debug, Error)]
pub enum PrivilegeError {
    /// The system knows no such user.
    #[error("user = {0}: there is no such user; create it (adduser --system {0}) or name another")]
    NoSuchUser(String),
    /// The system knows no such group.
    #[error("group = {0}: there is no such group; create it (addgroup --system {0}) or name another")]
    NoSuchGroup(String),
    /// The system's list of users or groups could not be read.
    #[error("the list of users and groups could not be read: {0}")]
    Lookup(nix::Error),
    /// The kernel refused.
    #[error("the privileges of root could not be given up: {0}")]
    Refused(nix::Error),
}

impl Identity {
    /// Looks up the configured user and group. Nobody to become, where none is configured or the process is not
    /// root's; the latter is said in the log by [`assume`](Self::assume)'s caller.
    pub(super) fn of(config: &Config) -> Result<Self, PrivilegeError> {
        if !geteuid().is_root() {
            return Ok(Self { uid: None, gid: None });
        }
        let user = config.user.as_deref().map(find_user).transpose()?;
        let group = config.group.as_deref().map(find_group).transpose()?;
        // A user without a configured group takes its own with it, rather than keep root's.
        let gid = group.map(|group| group.gid).or(user.as_ref().map(|user| user.gid));
        Ok(Self { uid: user.map(|user| user.uid), gid })
    }

    /// Numbers of the user and the group, for files that must stay writable.
    pub(super) fn owner(self) -> Option<(u32, u32)> {
        self.uid.map(|uid| (uid.as_raw(), self.gid.unwrap_or(Gid::from_raw(0)).as_raw()))
    }

    /// Becomes that user and group, all threads of the process, with no supplementary groups.
    pub(super) fn assume(self) -> Result<(), PrivilegeError> {
        // Groups first: without root's identity they cannot be changed any more.
        if let Some(gid) = self.gid {
            setgroups(&[]).map_err(PrivilegeError::Refused)?;
            setgid(gid).map_err(PrivilegeError::Refused)?;
        }
        if let Some(uid) = self.uid {
            setuid(uid).map_err(PrivilegeError::Refused)?;
        }
        if self.uid.is_some() || self.gid.is_some() {
            info!(
                uid = self.uid.map(Uid::as_raw),
                gid = self.gid.map(Gid::as_raw),
                "left the identity of root"
            );
        }
        Ok(())
    }
}

/// Whether the configuration names a user or group that this process cannot become.
pub(super) fn is_ignored(config: &Config) -> bool {
    !geteuid().is_root() && (config.user.is_some() || config.group.is_some())
}

fn find_user(name: &str) -> Result<User, PrivilegeError> {
    let found = User::from_name(name).map_err(PrivilegeError::Lookup)?;
    found.ok_or_else(|| PrivilegeError::NoSuchUser(name.to_owned()))
}

fn find_group(name: &str) -> Result<Group, PrivilegeError> {
    let found = Group::from_name(name).map_err(PrivilegeError::Lookup)?;
    found.ok_or_else(|| PrivilegeError::NoSuchGroup(name.to_owned()))
}

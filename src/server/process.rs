//! The process: its account, its secrets, its limit on files, and its end.
//!
//! It drops the privileges of root: it switches to the configured user and group after the ports are bound. Before
//! that, it opens files with the rights of that user and group, so that a link that the user made does not lead to a
//! file of root.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::prctl::set_dumpable;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{
    Gid, Group, Pid, Uid, User, getegid, geteuid, getgroups, setegid, seteuid, setgid, setgroups, setuid,
};
use thiserror::Error;
use tracing::{error, info};

use crate::config::Config;

/// How long writing the last line of the log may take before the process is killed.
const LAST_LINE_MAX: Duration = Duration::from_millis(100);

/// The user and group to switch to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    uid: Option<Uid>,
    gid: Option<Gid>,
}

/// The reason why the process cannot switch to the configured user or group.
#[derive(Debug, Error)]
pub enum PrivilegeError {
    /// The system has no such user.
    #[error("user = {0}: there is no such user; create it (adduser --system {0}) or name another")]
    NoSuchUser(String),
    /// The system has no such group.
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
    /// Looks up the configured user and group. The identity is empty if none is configured or if the process does not run
    /// as root.
    pub(super) fn of(config: &Config) -> Result<Self, PrivilegeError> {
        if !geteuid().is_root() {
            return Ok(Self { uid: None, gid: None });
        }
        let user = config.user.as_deref().map(find_user).transpose()?;
        let group = config.group.as_deref().map(find_group).transpose()?;
        // Without a configured group, the process takes the user's own group, so that it does not keep root's.
        let gid = group.map(|group| group.gid).or(user.as_ref().map(|user| user.gid));
        Ok(Self { uid: user.map(|user| user.uid), gid })
    }

    /// Calls a function as the user and group, with their rights. Then the process is root again.
    pub(super) fn act<T>(self, call: impl FnOnce() -> T) -> Result<T, PrivilegeError> {
        let act = || {
            let (uid, gid, groups) = (geteuid(), getegid(), getgroups()?);
            // Only root can change the groups, so they are changed first and restored last.
            if let Some(gid) = self.gid {
                setgroups(&[])?;
                setegid(gid)?;
            }
            self.uid.map_or(Ok(()), seteuid)?;
            let result = call();
            self.uid.map_or(Ok(()), |_| seteuid(uid))?;
            if self.gid.is_some() {
                setegid(gid)?;
                setgroups(&groups)?;
            }
            Ok(result)
        };
        act().map_err(PrivilegeError::Refused)
    }

    /// Switches all threads of the process to the user and group, and drops supplementary groups.
    pub(super) fn assume(self) -> Result<(), PrivilegeError> {
        let assume = || {
            // Groups first: only root can change them.
            if let Some(gid) = self.gid {
                setgroups(&[])?;
                setgid(gid)?;
            }
            self.uid.map_or(Ok(()), setuid)
        };
        assume().map_err(PrivilegeError::Refused)?;
        if self.uid.is_some() || self.gid.is_some() {
            info!(
                uid = self.uid.map(Uid::as_raw),
                gid = self.gid.map(Gid::as_raw),
                "switched from root to the configured account"
            );
        }
        Ok(())
    }
}

/// Returns the errors about a configured user and group that do not exist. Needs no privileges.
pub(super) fn missing(config: &Config) -> Vec<PrivilegeError> {
    let user = config.user.as_deref().map(find_user).and_then(Result::err);
    let group = config.group.as_deref().map(find_group).and_then(Result::err);
    user.into_iter().chain(group).collect()
}

/// Returns whether the configuration names a user or group although this process cannot switch to it.
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

/// Switches core dumps of the process off: a dump would have tokens that clients have sent, and the keys of sessions and
/// certificates. The kernel then also refuses debuggers of the same user. Must be called again after a change of
/// account, which may switch core dumps on.
pub(super) fn disable_core_dumps() -> io::Result<()> {
    Ok(set_dumpable(false)?)
}

/// Raises the limit on open files as far as the process may. Returns the limit in force, or 0 if it cannot be read.
pub(super) fn raise_file_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    }
}

/// Returns how many files the process may have open.
pub(super) fn files_max() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Kills the process, so that the kernel closes all connections at once. An abort could first write a core file, which
/// would keep the connections open for that long and contain the keys of sessions. A last line is logged if that
/// succeeds in time.
pub(super) fn end_at_once(message: &'static str, reason: String) -> ! {
    let (sender, written) = mpsc::channel();
    let logger = thread::Builder::new().spawn(move || {
        error!(reason, "{message}");
        let _ = sender.send(());
    });
    if logger.is_ok() {
        let _ = written.recv_timeout(LAST_LINE_MAX);
    }
    let _ = kill(Pid::this(), Signal::SIGKILL);
    // Not reached, unless the system forbids this process to kill itself.
    std::process::abort()
}

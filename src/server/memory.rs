//! The memory budget: how much the process may have allocated, whatever it is for.
//!
//! Everything that clients can make grow is allocated from one heap: names, holders, sessions, grants, waiters, cached
//! replies, watches, queued events and output, and incomplete input. So the budget is a limit on the whole heap, and
//! nothing can be overlooked (`docs/decisions/0024`). Beyond it, requests that need memory are refused, and those that
//! free memory are not.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sys::sysinfo::sysinfo;
use signalbox_memory::bytes_in_use;
use tracing::{info, warn};

use super::metrics::Count;
use signalbox_core::MemoryLimit;

/// The budget in bytes, if the configuration sets none and the memory that the process may use is unknown.
const UNKNOWN_MAX: u64 = 1 << 30;

/// After a refusal was logged, no further ones are logged until this percentage of the budget is free again.
const FREE_AGAIN_PERCENT: u64 = 10;

/// The memory budget of a server.
#[derive(Debug, Default)]
pub(super) struct MemoryBudget {
    /// In bytes; 0: no limit.
    max: AtomicU64,
    /// Requests and connections that were refused.
    pub(super) refused: Count,
    is_refusing: AtomicBool,
}

impl MemoryBudget {
    pub(super) fn in_use() -> u64 {
        bytes_in_use() as u64
    }

    /// Returns the limit, for the core.
    pub(super) fn limit(&self) -> MemoryLimit {
        let max = match self.max() {
            0 => u64::MAX,
            max => max,
        };
        MemoryLimit { in_use: Self::in_use, max }
    }

    /// Returns the limit in bytes; 0: none.
    pub(super) fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// Changes the limit, in bytes. `Some(0)` removes it; `None` sets it to half of the memory that the process may use.
    pub(super) fn set_max(&self, max: Option<u64>) {
        self.max.store(max.unwrap_or_else(default_max), Ordering::Relaxed);
    }

    /// Returns whether the budget is used up, so that nothing may grow.
    pub(super) fn is_exhausted(&self) -> bool {
        self.limit().is_exceeded()
    }

    /// Counts a refusal. Logs it if it is the first one since memory was free.
    pub(super) fn note_refusal(&self) {
        self.refused.add(1);
        if !self.is_refusing.swap(true, Ordering::Relaxed) {
            warn!(
                used = Self::in_use(),
                memory_max = self.max(),
                "memory_max is reached: what needs memory is refused, and releases still work; find the client that holds so \
                 much, or raise memory_max"
            );
        }
    }

    /// Returns whether the budget is exhausted, or was exhausted and less than [`FREE_AGAIN_PERCENT`] of it is free.
    /// Logs when memory is free again. Must be called regularly.
    pub(super) fn is_scarce(&self) -> bool {
        let (in_use, max) = (Self::in_use(), self.limit().max);
        let is_free = in_use < max - max / 100 * FREE_AGAIN_PERCENT;
        if is_free && self.is_refusing.swap(false, Ordering::Relaxed) {
            info!(
                used = in_use,
                memory_max = self.max(),
                "there is memory again: nothing is refused for lack of it"
            );
        }
        !is_free && (self.is_refusing.load(Ordering::Relaxed) || self.is_exhausted())
    }
}

/// Returns half of the memory that the machine has or that the control groups of the process allow, whichever is less; if
/// neither is known, [`UNKNOWN_MAX`]. The other half is for fragmentation and the kernel's buffers.
fn default_max() -> u64 {
    // Not read from /proc/meminfo, which the systemd unit hides.
    let machine = sysinfo().ok().map(|machine| machine.ram_total());
    let groups = fs::read_to_string("/proc/self/cgroup").ok();
    let groups = groups.and_then(|text| group_limit(&text, |file| fs::read_to_string(file).ok()));
    machine.into_iter().chain(groups).min().map_or(UNKNOWN_MAX, |bytes| bytes / 2)
}

/// The files with limits of a control group of version 2. Above `memory.high`, the kernel slows the process down.
const GROUP_FILES: &[&str] = &["memory.max", "memory.high"];

/// The file with the limit of a control group of version 1.
const GROUP_FILES_V1: &[&str] = &["memory.limit_in_bytes"];

/// Returns the lowest limit, in bytes, of the control groups in the text of `/proc/self/cgroup` and of those above
/// them. `read` reads a file.
fn group_limit(cgroup: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let groups = cgroup.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(":/")?;
        match controllers {
            "" => Some((Path::new("/sys/fs/cgroup").join(path), GROUP_FILES)),
            of if of.split(',').any(|of| of == "memory") => {
                Some((Path::new("/sys/fs/cgroup/memory").join(path), GROUP_FILES_V1))
            }
            _ => None,
        }
    });
    let limits = groups.flat_map(|(group, files)| {
        let files = group.ancestors().flat_map(|group| files.iter().map(|file| group.join(file)));
        // "max" is not a number: the group has no limit.
        files.filter_map(|file| read(&file)?.trim().parse().ok()).collect::<Vec<_>>()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit of the groups in this text, where these files exist.
    fn limit(cgroup: &str, files: &[(&str, &str)]) -> Option<u64> {
        group_limit(cgroup, |path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| format!("{text}\n"))
        })
    }

    #[test]
    fn the_least_limit_of_the_control_groups_counts() {
        let files = [
            ("/sys/fs/cgroup/system.slice/signalbox.service/memory.max", "max"),
            ("/sys/fs/cgroup/system.slice/signalbox.service/memory.high", "1500"),
            ("/sys/fs/cgroup/system.slice/memory.max", "2000"),
            ("/sys/fs/cgroup/system.slice/memory.high", "max"),
            ("/sys/fs/cgroup/memory.max", "3000"),
        ];
        let service = "1:name=x:/\n0::/system.slice/signalbox.service\n";
        assert_eq!(limit(service, &files), Some(1500));
        assert_eq!(limit(service, &files[2..]), Some(2000));
        assert_eq!(limit("0::/other\n", &files), Some(3000));
        assert_eq!(limit("0::/other\n", &files[..1]), None);
    }

    #[test]
    fn so_do_those_of_version_1() {
        let files = [
            ("/sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes", "9223372036854771712"),
            ("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "2000"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "3000"),
            ("/sys/fs/cgroup/docker/a/memory.max", "1000"),
        ];
        assert_eq!(limit("5:cpu,memory:/docker/a\n4:cpuset:/docker/a\n0::/\n", &files), Some(2000));
        assert_eq!(limit("5:memory:/docker/a\n0::/docker/a\n", &files), Some(1000));
        assert_eq!(limit("5:memory:/not/visible/in/a/container\n", &files), Some(3000));
        assert_eq!(limit("4:cpuset:/docker/a\n", &files), None);
    }
}

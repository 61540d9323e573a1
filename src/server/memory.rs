//! The memory budget: how much the process may have allocated, whatever it is for.
//!
//! Everything that clients can make grow is allocated from one heap: names, holders, sessions, grants, waiters, remembered
//! answers, watches, queued events and output, and incomplete frames. So the budget is a limit on the whole heap, and
//! nothing can be forgotten (`docs/decisions/0024`). Past it, what needs memory is refused, and what gives it back is not.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sys::sysinfo::sysinfo;
use signalbox_memory::bytes_in_use;
use tracing::{info, warn};

use super::metrics::Count;
use signalbox_core::MemoryLimit;

/// The budget where neither the configuration nor the system sets a limit.
const UNKNOWN_MAX: u64 = 1 << 30;

/// Refusals until this much of the budget is free again, in percent, are one event in the log.
const FREE_AGAIN_PERCENT: u64 = 10;

/// How much of an incomplete frame is kept although memory is short.
const FRAME_BYTES_ALWAYS: u64 = 4 * 1024;

/// The share of the budget that incomplete frames may always take is one in so many.
const FRAMES_SHARE: u64 = 8;

/// The bytes of all incomplete frames of the process.
static FRAME_BYTES: AtomicU64 = AtomicU64::new(0);

/// The bytes of a connection's incomplete frame, which are a part of those of all.
#[derive(Debug, Default)]
pub(super) struct FrameBytes(u64);

impl FrameBytes {
    /// The connection has so many now.
    pub(super) fn set(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        if bytes != self.0 {
            FRAME_BYTES.fetch_add(bytes, Ordering::Relaxed);
            FRAME_BYTES.fetch_sub(self.0, Ordering::Relaxed);
            self.0 = bytes;
        }
    }
}

impl Drop for FrameBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

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
    /// The bytes in use.
    pub(super) fn in_use() -> u64 {
        bytes_in_use() as u64
    }

    /// The limit, for the core.
    pub(super) fn limit(&self) -> MemoryLimit {
        let max = match self.max() {
            0 => u64::MAX,
            max => max,
        };
        MemoryLimit { in_use: Self::in_use, max }
    }

    /// The limit in bytes; 0: none.
    pub(super) fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// Changes the limit; 0: none. `None`: half of the memory that the process may use.
    pub(super) fn set_max(&self, max: Option<u64>) {
        self.max.store(max.unwrap_or_else(default_max), Ordering::Relaxed);
    }

    /// Whether nothing may grow.
    pub(super) fn is_exhausted(&self) -> bool {
        self.limit().is_exceeded()
    }

    /// Whether the rest of an incomplete frame must not be read. Incomplete frames may take a share of the budget even when
    /// it is exhausted, so that releases of long names arrive.
    pub(super) fn refuses_frame(&self, frame: &FrameBytes) -> bool {
        frame.0 > FRAME_BYTES_ALWAYS
            && self.is_exhausted()
            && FRAME_BYTES.load(Ordering::Relaxed) > self.max() / FRAMES_SHARE
    }

    /// Counts a refusal, and logs the first one.
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

    /// Whether the budget is exhausted, or was and is not free again. Logs when it is free. To be called once in a while.
    pub(super) fn is_scarce(&self) -> bool {
        let (in_use, max) = (Self::in_use(), self.limit().max);
        let is_free = in_use < max - max / 100 * FREE_AGAIN_PERCENT;
        if is_free && self.is_refusing.swap(false, Ordering::Relaxed) {
            info!(
                used = in_use,
                memory_max = self.max(),
                "there is memory again: nothing is refused for want of it"
            );
        }
        !is_free && (self.is_refusing.load(Ordering::Relaxed) || self.is_exhausted())
    }
}

/// Half of the memory that the machine has or that the control groups of the process allow, so that fragments and the
/// kernel's buffers fit beside it.
fn default_max() -> u64 {
    // Not from /proc/meminfo, which the systemd unit hides.
    let machine = sysinfo().ok().map(|machine| machine.ram_total());
    let groups = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        let limit = |group: &Path| fs::read_to_string(group.join("memory.max")).ok();
        group_limit(&text, limit)
    });
    machine.into_iter().chain(groups).min().map_or(UNKNOWN_MAX, |bytes| bytes / 2)
}

/// The least limit of the control group (version 2) in the text of `/proc/self/cgroup` and of those above it. `limit` reads
/// the file `memory.max` of a group.
fn group_limit(cgroup: &str, limit: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = Path::new("/sys/fs/cgroup").join(path);
    // "max" is no number: the group has no limit.
    group.ancestors().filter_map(limit).filter_map(|text| text.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_the_control_groups_counts() {
        let limit = |group: &Path| match group.to_str().unwrap() {
            "/sys/fs/cgroup/system.slice/signalbox.service" => Some("max\n".to_owned()),
            "/sys/fs/cgroup/system.slice" => Some("2000\n".to_owned()),
            "/sys/fs/cgroup" => Some("3000\n".to_owned()),
            _ => None,
        };
        assert_eq!(group_limit("1:name=x:/\n0::/system.slice/signalbox.service\n", limit), Some(2000));
        assert_eq!(group_limit("0::/other\n", limit), Some(3000));
        assert_eq!(group_limit("3:memory:/a\n", limit), None);
    }
}

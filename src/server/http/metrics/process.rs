//! What the system knows of the process, under the names that Prometheus' own libraries use.

use std::fs;

use nix::unistd::{SysconfVar, sysconf};

/// The figures of the process. Each is `None` where the system does not say.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) cpu_s: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) open_files: Option<u64>,
}

impl Process {
    pub(super) fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The name of the program may have spaces; it is in parentheses. The fields behind it begin with the third.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let system = |name| sysconf(name).ok().flatten().and_then(|value| u64::try_from(value).ok());
        let ticks = field(14).zip(field(15)).map(|(user, kernel)| user + kernel);
        Self {
            cpu_s: ticks.zip(system(SysconfVar::CLK_TCK)).map(|(ticks, per_s)| ticks as f64 / per_s as f64),
            resident_bytes: field(24).zip(system(SysconfVar::PAGE_SIZE)).map(|(pages, bytes)| pages * bytes),
            open_files: fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_knows_the_process() {
        let process = Process::read();
        assert!(process.cpu_s.is_some_and(|cpu_s| cpu_s < 1e6), "{process:?}");
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 100_000), "{process:?}");
        assert!(process.open_files.is_some_and(|files| files > 2), "{process:?}");
    }
}

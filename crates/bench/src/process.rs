//! The CPU time and memory of a server's process, as the kernel counts them.

use std::fs;
use std::io;
use std::time::Duration;

use thiserror::Error;

/// The CPU time and the memory of a process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of all threads that have not ended, from the scheduler's nanosecond accounting. The present time slice of
    /// a running thread may be missing.
    pub cpu: Duration,
    /// Resident memory at this moment.
    pub resident_bytes: u64,
}

/// The usage of a process cannot be read.
#[derive(Debug, Error)]
#[error("cannot read what process {pid} has used ({source}); check the number, and that /proc has schedstat")]
pub struct ProcessError {
    pid: u32,
    source: io::Error,
}

impl ProcessError {
    /// Returns whether the process does not exist.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

impl Usage {
    /// Reads the present usage of the process with this id.
    pub fn of(pid: u32) -> Result<Self, ProcessError> {
        let read = || Ok(Self { cpu: cpu(pid)?, resident_bytes: resident_bytes(pid)? });
        read().map_err(|source| ProcessError { pid, source })
    }
}

fn cpu(pid: u32) -> io::Result<Duration> {
    let mut cpu_ns = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // The thread may have ended since the directory was read.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        cpu_ns += first_number(&text)?;
    }
    Ok(Duration::from_nanos(cpu_ns))
}

fn resident_bytes(pid: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(first_number(line.ok_or(io::ErrorKind::InvalidData)?)? * 1024)
}

fn first_number(text: &str) -> io::Result<u64> {
    let number = text.split_whitespace().next().and_then(|number| number.parse().ok());
    number.ok_or(io::ErrorKind::InvalidData.into())
}

//! What a server's process has used, as the kernel counts it.

use std::fs;
use std::io;
use std::time::Duration;

use thiserror::Error;

/// What a process has used at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// CPU of all its threads that still run, from the scheduler's nanosecond accounting. A thread that is on a CPU
    /// right now may lack its present time slice.
    pub cpu: Duration,
    /// Memory that is resident.
    pub resident_bytes: u64,
}

/// Why nothing is known of a process.
#[derive(Debug, Error)]
#[error("cannot read what process {pid} has used ({source}); check the number, and that /proc has schedstat")]
pub struct ProcessError {
    pid: u32,
    source: io::Error,
}

impl ProcessError {
    /// Whether there is no such process.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

impl Usage {
    /// What the process with this number has used until now.
    pub fn of(pid: u32) -> Result<Self, ProcessError> {
        let read = || Ok(Self { cpu: cpu(pid)?, resident_bytes: resident_bytes(pid)? });
        read().map_err(|source| ProcessError { pid, source })
    }
}

fn cpu(pid: u32) -> io::Result<Duration> {
    let mut cpu_ns = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that ended since the directory was read is one that does not run.
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

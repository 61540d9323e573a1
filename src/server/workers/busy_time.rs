//! How long a thread has been busy, as the kernel counts it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The time in which a thread ran or waited for a core. In the rest, it slept.
#[derive(Debug)]
pub(super) struct BusyTime {
    /// `schedstat` of the thread: nanoseconds on a core, nanoseconds of waiting for one, number of time slices.
    file: File,
}

impl BusyTime {
    /// Of the calling thread. Fails on a kernel that does not count this.
    pub(super) fn of_this_thread() -> io::Result<Self> {
        let busy_time = Self { file: File::open("/proc/thread-self/schedstat")? };
        busy_time.read()?;
        Ok(busy_time)
    }

    /// The time since the thread started.
    pub(super) fn read(&self) -> io::Result<Duration> {
        let mut bytes = [0; 64];
        let length = self.file.read_at(&mut bytes, 0)?;
        let text = str::from_utf8(&bytes[..length]).map_err(io::Error::other)?;
        let mut numbers = text.split_ascii_whitespace().map_while(|number| number.parse().ok());
        let (Some(running_ns), Some(waiting_ns)) = (numbers.next(), numbers.next()) else {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("unexpected schedstat {text:?}")));
        };
        Ok(Duration::from_nanos(running_ns) + Duration::from_nanos(waiting_ns))
    }
}

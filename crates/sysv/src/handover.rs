//! How a program that replaces itself hands its process on the server to the next one: in an environment variable.
//!
//! In the kernel, adjustments survive `exec`. Here the connections end, as their descriptors are closed. So the old
//! program announces that it will be replaced, and the new one attaches to the process. The variable names the process
//! id: a child that inherits it has another one. The new program removes the variable at once.

use std::ffi::CStr;
use std::io::Write;

use signalbox_model::sysv::ProcessId;
use signalbox_model::{Milliseconds, SessionKey};

use crate::call;
use crate::process::{Name, Process};
use crate::settings::Settings;
use crate::signals::Shield;

/// The variable.
const VARIABLE: &CStr = c"SIGNALBOX_SYSV_PROCESS";

/// The time in which the new program has to attach. The server limits it to the process's time to live.
pub const GRACE: Milliseconds = Milliseconds(30_000);

/// The longest text of the variable, with its name and the zero byte.
const BYTES_MAX: usize = 160;

/// The variable as it stands in the new program's environment.
pub struct Variable([u8; BYTES_MAX]);

impl Variable {
    /// The variable that hands over this process.
    pub fn of(process: &Process) -> Self {
        let mut bytes = [0; BYTES_MAX];
        let Name { process: number, key } = process.name();
        let key = u128::from_be_bytes(key.0);
        let (pid, next, adjusts) = (std::process::id(), process.next_request(), u8::from(process.adjusts()));
        let name = VARIABLE.to_str().expect("it is ASCII");
        let room = &mut bytes[..BYTES_MAX - 1];
        write!({ room }, "{name}={pid}:{number}:{key:032x}:{next}:{adjusts}")
            .expect("five numbers have room");
        Self(bytes)
    }

    /// Its text.
    pub fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).expect("the last byte is zero")
    }

    /// Whether a line of an environment is this variable.
    pub fn is_line(line: &CStr) -> bool {
        let rest = line.to_bytes().strip_prefix(VARIABLE.to_bytes());
        rest.is_some_and(|rest| rest.first() == Some(&b'='))
    }
}

/// What the variable says.
#[derive(Debug, PartialEq)]
struct Handed {
    pid: u32,
    process: ProcessId,
    key: [u8; 16],
    next_request: u64,
    adjusts: bool,
}

impl Handed {
    fn parse(value: &str) -> Option<Self> {
        let mut parts = value.split(':');
        let handed = Self {
            pid: parts.next()?.parse().ok()?,
            process: ProcessId(parts.next()?.parse().ok()?),
            key: u128::from_str_radix(parts.next()?, 16).ok()?.to_be_bytes(),
            next_request: parts.next()?.parse().ok().filter(|next| *next > 0)?,
            adjusts: parts.next()? == "1",
        };
        parts.next().is_none().then_some(handed)
    }
}

/// When the program starts: takes over the process of the one before, if there was one.
pub fn take_over(settings: Option<&Settings>) {
    let Some(handed) = take_variable() else { return };
    // A child has inherited the variable of a program that does not load this library.
    let (true, Some(settings)) = (handed.pid == std::process::id(), settings) else { return };
    let name = Name { process: handed.process, key: SessionKey(handed.key) };
    let (process, _) = Process::publish(name, handed.next_request, handed.adjusts, None);
    call::attach_at_once(process, settings, &Shield::raise());
}

/// Reads the variable, and removes it from the environment. The place where it stood is overwritten, as it has the key.
fn take_variable() -> Option<Handed> {
    // SAFETY: the library is being loaded: the program does not run yet, and no thread changes the environment.
    unsafe {
        let value = libc::getenv(VARIABLE.as_ptr());
        if value.is_null() {
            return None;
        }
        let bytes = CStr::from_ptr(value).to_bytes().len();
        let handed = CStr::from_ptr(value).to_str().ok().and_then(Handed::parse);
        std::ptr::write_bytes(value, b'0', bytes);
        libc::unsetenv(VARIABLE.as_ptr());
        handed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_handed_over_as_it_is() {
        let name = Name { process: ProcessId(u64::MAX), key: SessionKey([0xfe; 16]) };
        let (process, _) = Process::publish(name, 77, true, None);
        let variable = Variable::of(process);
        assert!(Variable::is_line(variable.text()));
        let (_, value) = variable.text().to_str().unwrap().split_once('=').unwrap();
        let (pid, key) = (std::process::id(), [0xfe; 16]);
        let expected = Handed { pid, process: ProcessId(u64::MAX), key, next_request: 77, adjusts: true };
        assert_eq!(Handed::parse(value), Some(expected));
        process.forget();
    }

    #[test]
    fn what_was_not_handed_over_is_ignored() {
        for value in ["", "1:2:3", "1:2:3:4:1:5", "1:2:x:4:1", "-1:2:3:4:1", "1:2:3:0:1"] {
            assert_eq!(Handed::parse(value), None, "{value}");
        }
        assert!(!Variable::is_line(c"SIGNALBOX_SYSV_PROCESSES=1"));
        assert!(!Variable::is_line(c"PATH=/bin"));
    }
}

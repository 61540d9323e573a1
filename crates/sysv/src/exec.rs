//! The functions that replace the program. They hand over its process on the server to the next program, in an
//! environment variable.
//!
//! In the kernel, adjustments survive `exec`. Here the connections end, because their descriptors are closed. So the
//! old program announces that it will be replaced, and the new one attaches to the process. The variable has the
//! process id, so that a child that inherits it ignores it. The new program removes the variable at once.
//!
//! The child of a fork or vfork has no process on the server yet. Its calls of these functions only read the list of
//! processes, and pass their arguments on unchanged. `posix_spawn`, `system` and `popen` make new processes through
//! functions within the C library, which cannot be replaced and need not be: a new process has nothing to take over.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use signalbox_model::sysv::ProcessId;
use signalbox_model::{Milliseconds, SessionKey};

use crate::call;
use crate::errno;
use crate::next::{self, Next};
use crate::process::{Name, Process};
use crate::settings::{Mode, Settings, mode};
use crate::signals::Shield;

/// A list of texts with a null pointer at its end.
type List = *const *const c_char;

unsafe extern "C" {
    static environ: List;
}

/// # Safety
/// The same as for the function of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execve(path: *const c_char, argv: List, envp: List) -> c_int {
    // SAFETY: the arguments are those of the program.
    unsafe { hand_over(envp, |envp| call_next(&next::EXECVE, |exec| exec(path, argv, envp))) }
}

/// # Safety
/// The same as for the function of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execv(path: *const c_char, argv: List) -> c_int {
    // SAFETY: the arguments are those of the program; the environment is the program's.
    unsafe { hand_over(environ, |envp| call_next(&next::EXECVE, |exec| exec(path, argv, envp))) }
}

/// # Safety
/// The same as for the function of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: List, envp: List) -> c_int {
    // SAFETY: the arguments are those of the program.
    unsafe { hand_over(envp, |envp| call_next(&next::EXECVPE, |exec| exec(file, argv, envp))) }
}

/// # Safety
/// The same as for the function of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: List) -> c_int {
    // SAFETY: the arguments are those of the program; the environment is the program's.
    unsafe { hand_over(environ, |envp| call_next(&next::EXECVPE, |exec| exec(file, argv, envp))) }
}

/// # Safety
/// The same as for the function of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fexecve(descriptor: c_int, argv: List, envp: List) -> c_int {
    // SAFETY: the arguments are those of the program.
    unsafe { hand_over(envp, |envp| call_next(&next::FEXECVE, |exec| exec(descriptor, argv, envp))) }
}

/// # Safety
/// The same as for the function of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    argv: List,
    envp: List,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are those of the program.
    unsafe {
        hand_over(envp, |envp| call_next(&next::EXECVEAT, |exec| exec(directory, path, argv, envp, flags)))
    }
}

/// Calls a function of the C library.
fn call_next<F: Copy>(next: &Next<F>, call: impl FnOnce(F) -> c_int) -> c_int {
    match next.function() {
        Some(function) => call(function),
        None => {
            errno::set(libc::ENOSYS);
            -1
        }
    }
}

/// Calls `exec` with the environment for the new program. Returns only if it fails.
///
/// # Safety
/// The environment is a list of texts, or null.
unsafe fn hand_over(envp: List, exec: impl Fn(List) -> c_int) -> c_int {
    // A panic in the preparation must not prevent the replacement.
    // SAFETY: as the caller promises.
    let prepared = catch_unwind(AssertUnwindSafe(|| unsafe { Departure::prepare(envp) })).unwrap_or(None);
    let Some(departure) = prepared else { return exec(envp) };
    let result = exec(departure.environment.list());
    let errno = errno::current();
    let withdrawn = catch_unwind(AssertUnwindSafe(|| departure.withdraw()));
    std::mem::forget(withdrawn);
    errno::set(errno);
    result
}

/// A prepared replacement of this program, with the process of the server that is handed over.
struct Departure {
    process: &'static Process,
    settings: &'static Settings,
    environment: Environment,
}

impl Departure {
    /// Announces the replacement; `None` if there is no process to hand over.
    ///
    /// # Safety
    /// The environment is a list of texts, or null.
    unsafe fn prepare(envp: List) -> Option<Self> {
        let process = Process::current()?;
        let Mode::On(settings) = mode() else { return None };
        let is_announced = call::announce(process, GRACE, settings, &Shield::raise());
        // A process whose connection was lost still exists for a time, and the new program can attach to it; or it has
        // ended, and the new program has to report that its adjustments are lost.
        if !is_announced && !process.adjusts() {
            return None;
        }
        // SAFETY: as the caller promises.
        let environment = unsafe { Environment::with(envp, &Variable::of(process)) }?;
        Some(Self { process, settings, environment })
    }

    /// Tells the server that the program was not replaced.
    fn withdraw(&self) {
        call::withdraw(self.process, self.settings, &Shield::raise());
    }
}

/// An environment with the variable. It is in mapped memory, because a signal handler that interrupted an allocation
/// may replace the program.
struct Environment {
    list: *mut *const c_char,
    bytes: usize,
}

impl Environment {
    /// # Safety
    /// The environment is a list of texts, or null.
    unsafe fn with(envp: List, variable: &Variable) -> Option<Self> {
        // SAFETY: as the caller promises.
        let lines = || unsafe { lines_of(envp) };
        let text = variable.text().to_bytes_with_nul();
        let list_bytes = (lines().count() + 2) * size_of::<*const c_char>();
        let bytes = list_bytes + text.len();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, which is zero.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        if memory == libc::MAP_FAILED {
            return None;
        }
        let list = memory.cast::<*const c_char>();
        // SAFETY: the lines are texts.
        let kept = lines().filter(|line| !Variable::is_line(unsafe { CStr::from_ptr(*line) }));
        // SAFETY: there is room for all lines, the variable, the null pointer that is there already, and then the text.
        unsafe {
            let copy = memory.cast::<c_char>().add(list_bytes);
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), copy, text.len());
            for (index, line) in kept.chain([copy.cast_const()]).enumerate() {
                list.add(index).write(line);
            }
        }
        Some(Self { list, bytes })
    }

    fn list(&self) -> List {
        self.list
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped with this size, and nothing refers to it.
        unsafe { libc::munmap(self.list.cast(), self.bytes) };
    }
}

/// # Safety
/// The list is null, or ends with a null pointer.
unsafe fn lines_of(list: List) -> impl Iterator<Item = *const c_char> {
    let count = if list.is_null() { 0 } else { usize::MAX };
    // SAFETY: the iteration ends at the null pointer.
    (0..count).map(move |index| unsafe { *list.add(index) }).take_while(|line| !line.is_null())
}

/// `execl` and `execlp` get their arguments as separate arguments: some in registers, the rest on the stack. The
/// functions below store the registers in front of the rest, which makes the list that `execv` expects, and pass its
/// address.
macro_rules! listed {
    ($($name:ident => $target:ident;)*) => {$(
        /// # Safety
        /// The same as for the function of the C library.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                "pop r11",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                // The sixth word aligns the stack for the call.
                "push r11",
                "call {target}",
                "pop r11",
                "add rsp, 40",
                "push r11",
                "ret",
                target = sym $target,
            )
        }

        /// # Safety
        /// The same as for the function of the C library.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                "sub sp, sp, #64",
                "str x30, [sp]",
                "str x1, [sp, #8]",
                "stp x2, x3, [sp, #16]",
                "stp x4, x5, [sp, #32]",
                "stp x6, x7, [sp, #48]",
                "add x1, sp, #8",
                "bl {target}",
                "ldr x30, [sp]",
                "add sp, sp, #64",
                "ret",
                target = sym $target,
            )
        }
    )*};
}

listed! {
    execl => execl_listed;
    execlp => execlp_listed;
    execle => execle_listed;
}

unsafe extern "C" fn execl_listed(path: *const c_char, argv: List) -> c_int {
    // SAFETY: the arguments are those of the program, as a list.
    unsafe { execv(path, argv) }
}

unsafe extern "C" fn execlp_listed(file: *const c_char, argv: List) -> c_int {
    // SAFETY: the arguments are those of the program, as a list.
    unsafe { execvp(file, argv) }
}

/// The environment follows the null pointer at the end of the arguments.
unsafe extern "C" fn execle_listed(path: *const c_char, argv: List) -> c_int {
    // SAFETY: the arguments are those of the program, as a list.
    unsafe {
        let arguments = lines_of(argv).count();
        let envp = (*argv.add(arguments + 1)).cast::<*const c_char>();
        execve(path, argv, envp)
    }
}

/// The name of the variable that hands over a process.
const VARIABLE: &CStr = c"SIGNALBOX_SYSV_PROCESS";

/// The time in which the new program has to attach. The server limits it to the process's time to live.
const GRACE: Milliseconds = Milliseconds(30_000);

/// The longest text of the variable in bytes, with its name and the zero byte.
const BYTES_MAX: usize = 160;

/// The variable as a line of the new program's environment.
struct Variable([u8; BYTES_MAX]);

impl Variable {
    /// The variable that hands over this process.
    fn of(process: &Process) -> Self {
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

    fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).expect("the last byte is zero")
    }

    /// Returns whether a line of an environment is this variable.
    fn is_line(line: &CStr) -> bool {
        let rest = line.to_bytes().strip_prefix(VARIABLE.to_bytes());
        rest.is_some_and(|rest| rest.first() == Some(&b'='))
    }
}

/// The content of the variable.
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

/// Takes over the process of the previous program, if there was one. The library calls this when the program starts.
pub fn take_over(settings: Option<&Settings>) {
    let Some(handed) = take_variable() else { return };
    // A child may have inherited the variable from a program that does not load this library.
    let (true, Some(settings)) = (handed.pid == std::process::id(), settings) else { return };
    let name = Name { process: handed.process, key: SessionKey(handed.key) };
    let (process, _) = Process::publish(name, handed.next_request, handed.adjusts, None);
    call::attach_at_once(process, settings, &Shield::raise());
}

/// Reads the variable, and removes it from the environment. Its memory is overwritten, because it has the key.
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

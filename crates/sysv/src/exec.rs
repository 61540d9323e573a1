//! The functions that replace the program: they announce it to the server, and hand the process over.
//!
//! The child of a fork or vfork has no process of its own yet: its calls go on unchanged, and read nothing but the list of
//! processes. `posix_spawn`, `system` and `popen` make new processes through functions within the C library, which cannot
//! be replaced and need not be.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::call;
use crate::errno;
use crate::handover::{GRACE, Variable};
use crate::next::{self, Next};
use crate::process::Process;
use crate::settings::{Mode, Settings, mode};
use crate::signals::Shield;

/// A list of texts with a null pointer at its end.
type List = *const *const c_char;

unsafe extern "C" {
    static environ: List;
}

/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execve(path: *const c_char, argv: List, envp: List) -> c_int {
    // SAFETY: the arguments are those of the program.
    unsafe { handing_over(envp, |envp| with(&next::EXECVE, |exec| exec(path, argv, envp))) }
}

/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execv(path: *const c_char, argv: List) -> c_int {
    // SAFETY: the arguments are those of the program; the environment is the program's.
    unsafe { handing_over(environ, |envp| with(&next::EXECVE, |exec| exec(path, argv, envp))) }
}

/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: List, envp: List) -> c_int {
    // SAFETY: the arguments are those of the program.
    unsafe { handing_over(envp, |envp| with(&next::EXECVPE, |exec| exec(file, argv, envp))) }
}

/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: List) -> c_int {
    // SAFETY: the arguments are those of the program; the environment is the program's.
    unsafe { handing_over(environ, |envp| with(&next::EXECVPE, |exec| exec(file, argv, envp))) }
}

/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fexecve(descriptor: c_int, argv: List, envp: List) -> c_int {
    // SAFETY: the arguments are those of the program.
    unsafe { handing_over(envp, |envp| with(&next::FEXECVE, |exec| exec(descriptor, argv, envp))) }
}

/// # Safety
/// As the C library's.
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
        handing_over(envp, |envp| with(&next::EXECVEAT, |exec| exec(directory, path, argv, envp, flags)))
    }
}

/// Calls a function of the C library.
fn with<F: Copy>(next: &Next<F>, call: impl FnOnce(F) -> c_int) -> c_int {
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
unsafe fn handing_over(envp: List, exec: impl Fn(List) -> c_int) -> c_int {
    // A panic before the program is replaced must not keep it from being replaced.
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

/// The process is about to leave this program.
struct Departure {
    process: &'static Process,
    settings: &'static Settings,
    environment: Environment,
}

impl Departure {
    /// Announces the departure; `None`: there is no process that could depart.
    ///
    /// # Safety
    /// The environment is a list of texts, or null.
    unsafe fn prepare(envp: List) -> Option<Self> {
        let process = Process::current()?;
        let Mode::On(settings) = mode() else { return None };
        let is_announced = call::announce(process, GRACE, settings, &Shield::raise());
        // A process whose connection was lost lives on for a time, and the new program can attach to it; or it has ended,
        // and the new program has to report that its adjustments are lost.
        if !is_announced && !process.adjusts() {
            return None;
        }
        // SAFETY: as the caller promises.
        let environment = unsafe { Environment::with(envp, &Variable::of(process)) }?;
        Some(Self { process, settings, environment })
    }

    /// The program was not replaced.
    fn withdraw(&self) {
        call::withdraw(self.process, self.settings, &Shield::raise());
    }
}

/// An environment with the variable, in memory from the system: a handler that interrupted an allocation may replace the
/// program.
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

/// `execl` and `execlp` have their arguments where a call has them: some in registers, the rest on the stack. The
/// functions below write the registers down in front of the rest, which makes the list that `execv` expects, and pass its
/// address on.
macro_rules! listed {
    ($($name:ident => $target:ident;)*) => {$(
        /// # Safety
        /// As the C library's.
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
        /// As the C library's.
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

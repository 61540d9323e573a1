//! The calls of the C library that the stepper makes, with their errors as values.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{sembuf, semid_ds, size_t, timespec};

unsafe extern "C" {
    fn semtimedop(semid: c_int, sops: *mut sembuf, nsops: size_t, timeout: *const timespec) -> c_int;
    fn execvpe(
        file: *const libc::c_char,
        argv: *const *const libc::c_char,
        envp: *const *const libc::c_char,
    ) -> c_int;
    fn execveat(
        directory: c_int,
        path: *const libc::c_char,
        argv: *const *const libc::c_char,
        envp: *const *const libc::c_char,
        flags: c_int,
    ) -> c_int;
}

/// The commands of semctl that `libc` does not name.
pub const SEM_STAT_ANY: c_int = 20;

/// The number of the error of a call that failed.
pub type Errno = c_int;

fn result(returned: c_int) -> Result<c_int, Errno> {
    if returned == -1 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    Ok(returned)
}

/// The name of an error.
pub fn name_of(errno: Errno) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EBADF => "EBADF",
        libc::EINTR => "EINTR",
        libc::E2BIG => "E2BIG",
        libc::EAGAIN => "EAGAIN",
        libc::EIO => "EIO",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EEXIST => "EEXIST",
        libc::EINVAL => "EINVAL",
        libc::EFBIG => "EFBIG",
        libc::ENOSPC => "ENOSPC",
        libc::ERANGE => "ERANGE",
        libc::ENOSYS => "ENOSYS",
        libc::EIDRM => "EIDRM",
        other => return format!("E{other}"),
    };
    name.to_owned()
}

/// `semget`.
pub fn get(key: c_int, count: c_int, flags: c_int) -> Result<c_int, Errno> {
    // SAFETY: semget has no arguments in memory.
    result(unsafe { libc::semget(key, count, flags) })
}

/// `semop`, or `semtimedop` if there is a timeout.
pub fn op(set: c_int, operations: &mut [sembuf], timeout: Option<timespec>) -> Result<c_int, Errno> {
    let (list, count) = (operations.as_mut_ptr(), operations.len());
    result(match timeout {
        // SAFETY: the list has this many operations.
        None => unsafe { libc::semop(set, list, count) },
        // SAFETY: as above, and the timeout lives until the call returns.
        Some(timeout) => unsafe { semtimedop(set, list, count, &raw const timeout) },
    })
}

/// `semop` with the null pointer as a list.
pub fn op_of_nothing(set: c_int) -> Result<c_int, Errno> {
    // SAFETY: the call has to refuse the pointer.
    result(unsafe { libc::semop(set, std::ptr::null_mut(), 1) })
}

/// `semctl` of a command without an argument.
pub fn ctl(set: c_int, number: c_int, command: c_int) -> Result<c_int, Errno> {
    // SAFETY: the command has no argument.
    result(unsafe { libc::semctl(set, number, command) })
}

/// `semctl` with a number.
pub fn ctl_value(set: c_int, number: c_int, command: c_int, value: c_int) -> Result<c_int, Errno> {
    // SAFETY: the command reads a number.
    result(unsafe { libc::semctl(set, number, command, value) })
}

/// `semctl` with values: SETALL reads them, GETALL writes them.
pub fn ctl_values(set: c_int, number: c_int, command: c_int, values: &mut [u16]) -> Result<c_int, Errno> {
    // SAFETY: the caller gives as many values as a set can have, or as this one has.
    result(unsafe { libc::semctl(set, number, command, values.as_mut_ptr()) })
}

/// `semctl` with a description of the set: IPC_SET reads it, IPC_STAT and SEM_STAT write it.
pub fn ctl_stat(set: c_int, number: c_int, command: c_int, stat: &mut semid_ds) -> Result<c_int, Errno> {
    // SAFETY: the description is of the size that the C library expects.
    result(unsafe { libc::semctl(set, number, command, &raw mut *stat) })
}

/// A description of a set, all zeroes.
pub fn empty_stat() -> semid_ds {
    // SAFETY: the structure consists of integers.
    unsafe { std::mem::zeroed() }
}

/// The process id, or 0 in the child.
pub fn fork() -> Result<c_int, Errno> {
    // SAFETY: the child continues with what this thread alone uses.
    result(unsafe { libc::fork() })
}

/// Waits for a child to end.
pub fn wait_for_child(child: c_int) -> Result<c_int, Errno> {
    let mut status = 0;
    // SAFETY: the status is ours.
    result(unsafe { libc::waitpid(child, &raw mut status, 0) }).map(|_| status)
}

/// Sets the user and the group of the process.
pub fn become_user(uid: u32, gid: u32) -> Result<c_int, Errno> {
    // SAFETY: no pointers but an empty list.
    unsafe {
        result(libc::setgroups(0, std::ptr::null()))?;
        result(libc::setresgid(gid, gid, gid))?;
        result(libc::setresuid(uid, uid, uid))
    }
}

/// Closes every descriptor from 3 on, as daemons do.
pub fn close_all() {
    for descriptor in 3..4096 {
        // SAFETY: the stepper's own descriptors there are not used again.
        unsafe { libc::close(descriptor) };
    }
}

/// Puts a file in the place of every open descriptor from 3 on.
pub fn replace_all(path: &str) -> Result<c_int, Errno> {
    let path = CString::new(path).expect("a path");
    // SAFETY: the path ends with a zero byte.
    let file = result(unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600) })?;
    let mut replaced = 0;
    for descriptor in (3..4096).filter(|descriptor| *descriptor != file) {
        // SAFETY: the stepper's own descriptors there are not used again.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } != -1 {
            // SAFETY: as above.
            result(unsafe { libc::dup2(file, descriptor) })?;
            replaced += 1;
        }
    }
    Ok(replaced)
}

/// Replaces the program by itself, through one of the functions for that: `execveat` by the path, `execveat-beside` by the
/// name in its directory, `execveat-open` as an open file, which is closed then. Returns only if that fails.
pub fn exec(function: &str, program: &str) -> Result<c_int, Errno> {
    let program = CString::new(program).expect("a path");
    let name = c"sysv-stepper";
    let argv = [name.as_ptr(), std::ptr::null()];
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let (path, argv, end) = (program.as_ptr(), argv.as_ptr(), std::ptr::null::<c_void>());
    let (a, b) = (c"second".as_ptr(), c"third".as_ptr());
    let (directory, file) = split(&program);
    // SAFETY: the path ends with a zero byte.
    let open = |path: &CStr, flags| unsafe { libc::open(path.as_ptr(), libc::O_CLOEXEC | flags) };
    // SAFETY: paths, arguments and environment are lists that end with a null pointer.
    result(unsafe {
        match function {
            "execve" => libc::execve(path, argv, environ),
            "execv" => libc::execv(path, argv),
            "execvp" => libc::execvp(path, argv),
            "execvpe" => execvpe(path, argv, environ),
            "execl" => libc::execl(path, name.as_ptr(), end),
            "execl-long" => libc::execl(path, name.as_ptr(), a, b, a, b, a, b, a, b, a, end),
            "execlp" => libc::execlp(path, name.as_ptr(), a, b, end),
            "execle" => libc::execle(path, name.as_ptr(), a, b, a, b, a, end, environ),
            "fexecve" => libc::fexecve(open(&program, libc::O_RDONLY), argv, environ),
            "execveat" => execveat(libc::AT_FDCWD, path, argv, environ, 0),
            "execveat-beside" => execveat(open(&directory, libc::O_PATH), file.as_ptr(), argv, environ, 0),
            "execveat-open" => {
                execveat(open(&program, libc::O_PATH), c"".as_ptr(), argv, environ, libc::AT_EMPTY_PATH)
            }
            _ => -1,
        }
    })
}

/// The directory of a path, and the name in it.
fn split(path: &CStr) -> (CString, CString) {
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let [directory, file] = [path.parent().map(Path::as_os_str), path.file_name()]
        .map(|part| CString::new(part.unwrap_or_default().as_bytes()).expect("the path has no zero byte"));
    (directory, file)
}

/// A handler of a signal.
pub type Handler = extern "C" fn(c_int);

/// Catches a signal, with SA_RESTART.
pub fn catch(signal: c_int, handler: Handler) -> Result<c_int, Errno> {
    // SAFETY: the structure consists of integers.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler is a function of this program.
    result(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) })
}

/// Loads a library with these flags and calls a function of it that takes and returns a number.
pub fn load_and_call(path: &str, flags: c_int, function: &str, argument: c_int) -> Option<c_int> {
    let (path, function) = (CString::new(path).ok()?, CString::new(function).ok()?);
    // SAFETY: the test names a library that it built, and a function of this type.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), flags);
        if library.is_null() {
            return None;
        }
        let address = libc::dlsym(library, function.as_ptr());
        if address.is_null() {
            return None;
        }
        let function: extern "C" fn(c_int) -> c_int = std::mem::transmute(address);
        Some(function(argument))
    }
}

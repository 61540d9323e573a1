//! The calls that programs make: `semget`, `semop`, `semtimedop` and `semctl`.
//!
//! Each decides whether the call is for the server. If not, it calls the C library's function with the same arguments.
//! If so, it checks the arguments in the order in which the kernel checks them.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use libc::{key_t, sembuf, size_t, timespec};
use signalbox_model::sysv::{IPC_CREAT, IPC_EXCL, IPC_PRIVATE, OPERATIONS_MAX, Operation, SetId};
use signalbox_protocol::ResponseFrame;

use crate::call::perform;
use crate::control::{self, Argument};
use crate::errno::{self, Failed};
use crate::operation::{Call, operation_of};
use crate::settings::{Mode, Settings, SettingsError, mode, report_ignored};
use crate::signals::Shield;
use crate::{ids, message, next};

/// # Safety
/// The same as for the function of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semget(key: key_t, nsems: c_int, flags: c_int) -> c_int {
    guarded(libc::ENOMEM, || {
        let mode = mode();
        report_ignored();
        match mode {
            Mode::On(settings) => match settings.keys.shared(key) {
                Some(shared) => with_shield(|shield| get(shared, nsems, flags, settings, shield)),
                None => get_of_kernel(key, nsems, flags),
            },
            Mode::Off => get_of_kernel(key, nsems, flags),
            Mode::Wrong(error) => Err(refuse(error)),
        }
    })
}

/// # Safety
/// The same as for the function of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semop(set: c_int, operations: *mut sembuf, count: size_t) -> c_int {
    guarded(libc::EIDRM, || match settings_for(set)? {
        // SAFETY: the program passes a list of this many operations.
        Some(settings) => unsafe { operate(set, operations, count, std::ptr::null(), settings) },
        None => {
            let function = next::SEMOP.function().ok_or(MISSING)?;
            // SAFETY: the arguments are those of the program.
            returned(unsafe { function(set, operations, count) })
        }
    })
}

/// # Safety
/// The same as for the function of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semtimedop(
    set: c_int,
    operations: *mut sembuf,
    count: size_t,
    timeout: *const timespec,
) -> c_int {
    guarded(libc::EIDRM, || match settings_for(set)? {
        // SAFETY: the program passes a list of this many operations, and a time or the null pointer.
        Some(settings) => unsafe { operate(set, operations, count, timeout, settings) },
        None => {
            let function = next::SEMTIMEDOP.function().ok_or(MISSING)?;
            // SAFETY: the arguments are those of the program.
            returned(unsafe { function(set, operations, count, timeout) })
        }
    })
}

/// In C, the fourth argument is variadic. Both architectures pass it like a fixed argument. It has no meaning if the
/// program passed none, so it is used only for commands that have one.
///
/// # Safety
/// The same as for the function of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semctl(set: c_int, number: c_int, command: c_int, argument: *mut c_void) -> c_int {
    guarded(libc::EIDRM, || {
        let settings = settings_for(set)?.filter(|_| !control::is_of_kernel(command));
        match settings {
            // SAFETY: the program passes the argument of the command.
            Some(settings) => with_shield(|shield| unsafe {
                control::control(set, number, command, Argument(argument), settings, shield)
            }),
            None => {
                let function = next::SEMCTL.function().ok_or(MISSING)?;
                // SAFETY: the arguments are those of the program.
                returned(unsafe { function(set, number, command, argument) })
            }
        }
    })
}

/// The error of a call whose function is in no library after this one in the search order.
const MISSING: Failed = Failed(libc::ENOSYS);

/// Runs a call. A success leaves `errno` unchanged. A panic fails with `errno_of_panic`, as the outcome is unknown.
fn guarded(errno_of_panic: c_int, call: impl FnOnce() -> Result<c_int, Failed>) -> c_int {
    let errno_before = errno::current();
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => {
            errno::set(errno_before);
            value
        }
        Ok(Err(Failed(errno))) => {
            errno::set(errno);
            -1
        }
        Err(payload) => {
            // The payload may panic when it is dropped.
            std::mem::forget(payload);
            errno::set(errno_of_panic);
            -1
        }
    }
}

fn with_shield<T>(call: impl FnOnce(&Shield) -> T) -> T {
    call(&Shield::raise())
}

/// The settings, if the set is the server's.
fn settings_for(set: c_int) -> Result<Option<&'static Settings>, Failed> {
    match mode() {
        Mode::On(settings) => Ok(ids::is_of_server(set).then_some(settings)),
        Mode::Off => Ok(None),
        Mode::Wrong(error) => Err(refuse(error)),
    }
}

fn refuse(error: &SettingsError) -> Failed {
    let (errno, name) = match error {
        SettingsError::Token(_) => (libc::EACCES, "EACCES"),
        _ => (libc::EINVAL, "EINVAL"),
    };
    message::SETTINGS.report(format_args!("{error}; all semaphore calls fail with {name}"));
    Failed(errno)
}

/// Converts the result of the C library's function.
fn returned(value: c_int) -> Result<c_int, Failed> {
    if value == -1 { Err(Failed(errno::current())) } else { Ok(value) }
}

fn get_of_kernel(key: key_t, nsems: c_int, flags: c_int) -> Result<c_int, Failed> {
    let function = next::SEMGET.function().ok_or(MISSING)?;
    // SAFETY: the arguments are those of the program.
    let set = returned(unsafe { function(key, nsems, flags) })?;
    ids::note_kernel_id(set).map_err(|()| {
        message::SETTINGS.report(format_args!(
            "the kernel's set {set} could be taken for one of the server, as this program has used many whose ids are \
             that high; restart the program, or the host, whose ids then start at 0 again"
        ));
        Failed(libc::ENOSPC)
    })?;
    Ok(set)
}

fn get(
    key: key_t,
    nsems: c_int,
    flags: c_int,
    settings: &Settings,
    shield: &Shield,
) -> Result<c_int, Failed> {
    let count = u32::try_from(nsems).map_err(|_| Failed(libc::EINVAL))?;
    let flags = flags.cast_unsigned();
    let call = Call::Get { key, count, flags };
    let is_new = key == IPC_PRIVATE || flags & (IPC_CREAT | IPC_EXCL) == IPC_CREAT | IPC_EXCL;
    let (SetId(set), count) = perform(&call, settings, shield, |response| match response.call_set() {
        // The program has memory for as many values as it asked for.
        Ok(Ok((SetId(set), found))) if found < count || is_new && found != count => {
            Err(format!("set {set} with {found} semaphores, where {count} were asked for"))
        }
        answer => answer.map_err(|malformed| malformed.to_string()),
    })?;
    if !ids::is_of_server(set) {
        message::SETTINGS.report(format_args!("the server's set {set} has the id of a set of the kernel"));
        return Err(Failed(libc::ENOSPC));
    }
    ids::note_count(set, count);
    Ok(set)
}

/// # Safety
/// The pointers are null, or point to a list of this many operations and to a time.
unsafe fn operate(
    set: c_int,
    operations: *mut sembuf,
    count: size_t,
    timeout: *const timespec,
    settings: &Settings,
) -> Result<c_int, Failed> {
    if count > OPERATIONS_MAX {
        return Err(Failed(libc::E2BIG));
    }
    if count == 0 {
        return Err(Failed(libc::EINVAL));
    }
    if operations.is_null() {
        return Err(Failed(libc::EFAULT));
    }
    // SAFETY: as the caller promises.
    let deadline = match unsafe { timeout.as_ref() } {
        None => None,
        Some(timeout) => deadline_after(timeout)?,
    };
    // SAFETY: as the caller promises.
    let given = unsafe { std::slice::from_raw_parts(operations, count) };
    let mut list = [Operation { number: 0, change: 0, flags: 0 }; OPERATIONS_MAX];
    for (slot, operation) in list.iter_mut().zip(given) {
        *slot = operation_of(operation);
    }
    let call = Call::Operate { set: SetId(set), operations: &list[..count], deadline };
    with_shield(|shield| perform(&call, settings, shield, ResponseFrame::call_done)).map(|()| 0)
}

/// Returns the deadline; `None` if it is too late to be represented.
fn deadline_after(timeout: &timespec) -> Result<Option<Instant>, Failed> {
    let wrong = Failed(libc::EINVAL);
    let seconds = u64::try_from(timeout.tv_sec).map_err(|_| wrong)?;
    let nanoseconds = u32::try_from(timeout.tv_nsec).ok().filter(|nanoseconds| *nanoseconds < 1_000_000_000);
    Ok(Instant::now().checked_add(Duration::new(seconds, nanoseconds.ok_or(wrong)?)))
}

//! `dlopen`, without RTLD_DEEPBIND.
//!
//! A library that is loaded with this flag finds its functions in its own dependencies first, and so the C library's
//! `semop` instead of this one's. PHP loads its extensions that way up to version 8.4.
//!
//! The C library looks for a file along the paths of the library that calls `dlopen`, which it knows by the return
//! address. So the function here jumps to the C library's and leaves the return address of its own caller in place.

use std::arch::naked_asm;
use std::ffi::c_void;
use std::panic::catch_unwind;

use crate::next;
use crate::settings::{Mode, mode};

/// The function to jump to, and the flags to keep. Both architectures return this in two registers.
#[repr(C)]
struct Onward {
    function: *mut c_void,
    kept_flags: usize,
}

/// Returns the C library's function and the flags to keep. Without settings, RTLD_DEEPBIND is kept too, because the
/// library then does nothing.
extern "C" fn onward() -> Onward {
    let is_off = catch_unwind(|| matches!(mode(), Mode::Off)).unwrap_or(false);
    let kept_flags = if is_off { usize::MAX } else { !(libc::RTLD_DEEPBIND as usize) };
    let function = next::DLOPEN.address();
    let function = if function.is_null() { missing as *mut c_void } else { function };
    Onward { function, kept_flags }
}

extern "C" fn missing() -> *mut c_void {
    std::ptr::null_mut()
}

/// # Safety
/// The same as for the function of the C library.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlopen() {
    naked_asm!(
        "push rdi",
        "push rsi",
        // Aligns the stack for the call.
        "sub rsp, 8",
        "call {onward}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "and rsi, rdx",
        "jmp rax",
        onward = sym onward,
    )
}

/// # Safety
/// The same as for the function of the C library.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlopen() {
    naked_asm!(
        "stp x0, x1, [sp, #-32]!",
        "str x30, [sp, #16]",
        "bl {onward}",
        "mov x16, x0",
        "mov x17, x1",
        "ldr x30, [sp, #16]",
        "ldp x0, x1, [sp], #32",
        "and x1, x1, x17",
        "br x16",
        onward = sym onward,
    )
}

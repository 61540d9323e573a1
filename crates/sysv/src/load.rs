//! When the library is loaded, before the program runs.

use std::panic::catch_unwind;

use crate::settings::{Mode, is_check, mode};
use crate::{fork, handover, message, next};

/// The dynamic linker calls what this section lists.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// Prepares the library, and takes over the process of a program that was replaced by this one.
pub extern "C" fn loaded() {
    let prepared = catch_unwind(|| {
        next::find_all();
        fork::watch();
        let settings = match mode() {
            Mode::On(settings) => Some(settings),
            Mode::Wrong(error) if is_check() => message::end_with(error),
            Mode::Off | Mode::Wrong(_) => None,
        };
        handover::take_over(settings);
    });
    // What was thrown may panic when it is dropped.
    std::mem::forget(prepared);
}

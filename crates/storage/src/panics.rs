//! Panics of the engine: it panics on some kinds of damage, because it takes them for bugs of its own. For an operator
//! they are errors like others, so nothing is printed or logged about the panic itself.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether this thread is in a call whose panic is expected.
    static IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// A panic that was caught.
pub(super) struct Panicked;

/// Calls a function and catches its panic, without the message that a panic prints.
pub(super) fn catch<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_EXPECTED.get() {
                report(panic);
            }
        }));
    });
    let was_expected = IS_EXPECTED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    IS_EXPECTED.set(was_expected);
    result.map_err(|_| Panicked)
}

//! Failures of the engine as errors of this package. The engine panics on some kinds of damage, because it takes them for bugs
//! of its own. For an operator they are errors like others, so nothing is printed or logged about the panic itself.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::Once;

use super::error::StorageError;

thread_local! {
    /// Whether this thread is in a call whose panic is expected.
    static IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function and catches its panic, without the message that a panic prints; `None`: it has panicked.
pub(super) fn catch<T>(call: impl FnOnce() -> T) -> Option<T> {
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
    result.ok()
}

/// In the engine's message about a commit that has the flush mark and cannot be read.
const COMPLETE_BUT_UNREADABLE: &str = "despite 2-phase commit";

/// Calls the engine on a file that may be damaged: a panic means that it is.
pub(super) fn catch_panics<T, E: Into<redb::Error>>(
    path: &Path,
    call: impl FnOnce() -> Result<T, E>,
) -> Result<T, StorageError> {
    match catch(call) {
        Some(result) => result.map_err(|error| engine_error(path, error)),
        None => {
            let problem = "parts of it contradict each other".to_owned();
            Err(StorageError::Damaged { path: path.to_owned(), problem })
        }
    }
}

/// Converts an error of the engine.
pub(super) fn engine_error<E: Into<redb::Error>>(path: &Path, error: E) -> StorageError {
    let path = path.to_owned();
    match error.into() {
        redb::Error::Io(source)
            if !matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            StorageError::Unusable { path, source }
        }
        redb::Error::PreviousIo => {
            let source = io::Error::other("an earlier read or write failed");
            StorageError::Unusable { path, source }
        }
        redb::Error::DatabaseAlreadyOpen => StorageError::InUse { path },
        redb::Error::Corrupted(problem) if problem.contains(COMPLETE_BUT_UNREADABLE) => {
            let problem = "the latest changes, which were stored completely, cannot be read".to_owned();
            StorageError::Damaged { path, problem }
        }
        other => StorageError::Damaged { path, problem: other.to_string() },
    }
}

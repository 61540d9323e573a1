//! Failures of the engine as errors of this package.

use std::io;
use std::path::Path;

use super::error::StorageError;
use super::panics;

/// In the engine's message about a commit that has the flush mark and cannot be read.
const COMPLETE_BUT_UNREADABLE: &str = "despite 2-phase commit";

/// Calls the engine on a file that may be damaged: a panic means that it is.
pub(super) fn catch_panics<T, E: Into<redb::Error>>(
    path: &Path,
    call: impl FnOnce() -> Result<T, E>,
) -> Result<T, StorageError> {
    match panics::catch(call) {
        Ok(result) => result.map_err(|error| engine_error(path, error)),
        Err(panics::Panicked) => {
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

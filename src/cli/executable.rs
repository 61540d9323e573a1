//! Finds the executable file of a command.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// Returns the file that `execvp` would execute, if there is one.
pub(super) fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(command)).filter(|path| is_executable(path));
    }
    let directories = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    // Without a directory, a name that starts with "-" would be treated as an option by a shell that runs the file.
    std::env::split_paths(&directories)
        .map(|directory| Path::new(".").join(directory).join(command))
        .find(|path| is_executable(path))
}

/// Returns whether this is a file that this user may execute.
pub(super) fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, AccessFlags::X_OK).is_ok()
}

//! The file of tokens: it is read as a whole, and replaced as a whole.
//!
//! Invariants: a reader sees the file before or after a change, never a part of one. Concurrent changes do not overwrite each
//! other. Only the owner can write the file, and users outside its group cannot read it. A process that cannot read the file
//! cannot block changes with a lock.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::tokens::{Tokens, TokensError};

/// The mode of a new file.
const MODE: u32 = 0o600;

/// The permissions that a file of tokens must not give: any to others, and write to the group.
const MODE_REFUSED: u32 = 0o027;

/// How long a change waits for a concurrent one.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);

/// The time between two attempts to lock.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// An error in reading or changing a file of tokens.
#[derive(Debug, Error)]
pub enum TokenFileError {
    /// It cannot be read or written.
    #[error("{}: the file of tokens cannot be {action}: {source}; check the path and its permissions", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// "read", "locked" or "written".
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another process has held the lock for too long.
    #[error(
        "{}: another process has locked this file for {} s, so the tokens cannot be changed; find it with: fuser {}",
        .0.display(), LOCK_WAIT_MAX.as_secs(), .0.display()
    )]
    Locked(PathBuf),
    /// The path is a symbolic link to a file that does not exist.
    #[error(
        "{}: the file of tokens is a symbolic link to a file that does not exist; correct or remove the link", .0.display()
    )]
    Dangling(PathBuf),
    /// The path is a mount point, so the file cannot be replaced.
    #[error(
        "{}: the file of tokens is mounted by itself, as a volume of a container may be, so it cannot be replaced; change it \
         where it comes from, or mount its directory instead", .0.display()
    )]
    Mounted(PathBuf),
    /// Others can change or read it.
    #[error(
        "{}: the file of tokens has the mode {mode:04o}, so others can change or read it; run chmod 0600 on it", path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Its content cannot be parsed.
    #[error("{}: {problem}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: TokensError,
    },
}

/// Reads a file of tokens.
pub fn read_tokens(path: &Path) -> Result<Tokens, TokenFileError> {
    let failed = |source| TokenFileError::Io { path: path.to_owned(), action: "read", source };
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
    if mode & MODE_REFUSED != 0 {
        return Err(TokenFileError::Open { path: path.to_owned(), mode });
    }
    let content = io::read_to_string(file).map_err(failed)?;
    content.parse().map_err(|problem| TokenFileError::Text { path: path.to_owned(), problem })
}

/// Changes a file of tokens, and returns what `change` returns. A file that does not exist is created. A symbolic link is followed,
/// and stays. If `change` fails, its error is returned, and the file stays as it is.
pub fn update_tokens<T, E: From<TokenFileError>>(
    path: &Path,
    change: impl FnOnce(&mut Tokens) -> Result<T, E>,
) -> Result<T, E> {
    let path = &file_to_replace(path)?;
    let failed = |source| TokenFileError::Io { path: path.clone(), action: "written", source };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = File::open(directory).map_err(failed)?;
    // This decides only the owner of the lock file: until the lock is held, another change may replace the file.
    let earlier_owner = fs::metadata(path).ok();
    let _lock = lock(path, earlier_owner.as_ref(), LOCK_WAIT_MAX)?;
    let earlier = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error).into()),
    };
    let mut tokens = if earlier.is_some() { read_tokens(path)? } else { Tokens::default() };
    let changed = change(&mut tokens)?;
    replace(path, earlier.as_ref(), &tokens.to_string()).map_err(failed)?;
    directory.sync_all().map_err(failed)?;
    Ok(changed)
}

/// Returns the path of the file that a change replaces: the target of a symbolic link, so that the link stays.
fn file_to_replace(path: &Path) -> Result<PathBuf, TokenFileError> {
    match fs::canonicalize(path) {
        Ok(path) if is_mount_point(&path) => Err(TokenFileError::Mounted(path)),
        Ok(path) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_ok() => {
            Err(TokenFileError::Dangling(path.to_owned()))
        }
        // The file does not exist yet, or the change fails with the reason.
        Err(_) => Ok(path.to_owned()),
    }
}

/// Returns whether something is mounted at this path, which must have no symbolic links.
fn is_mount_point(path: &Path) -> bool {
    // The fifth field of each line is the path, with some characters in octal digits (proc(5)).
    let escape = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    let wanted: Vec<u8> = path.as_os_str().as_bytes().iter().flat_map(escape).collect();
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    mounts.split(|byte| *byte == b'\n').any(|line| line.split(|byte| *byte == b' ').nth(4) == Some(&*wanted))
}

/// Locks a file in the same directory until the returned file is closed, so that changes do not run concurrently. A lock
/// of the file of tokens itself would be lost when that file is replaced. The directory is not locked either, because
/// every program that may read it could lock it.
fn lock(path: &Path, earlier: Option<&fs::Metadata>, wait_max: Duration) -> Result<File, TokenFileError> {
    let path = with_suffix(path, ".lock");
    let failed = |source| TokenFileError::Io { path: path.clone(), action: "locked", source };
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(&path);
    let file = file.map_err(failed)?;
    if let Some(earlier) = earlier {
        keep_owner(&file, earlier).map_err(failed)?;
    }
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) if begun.elapsed() >= wait_max => {
                return Err(TokenFileError::Locked(path));
            }
            Err(TryLockError::WouldBlock) => sleep(LOCK_RETRY_INTERVAL),
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    PathBuf::from(path)
}

/// Gives a file the owner and the group of the earlier one.
fn keep_owner(file: &File, earlier: &fs::Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) == (earlier.uid(), earlier.gid()) {
        return Ok(());
    }
    fchown(file, Some(earlier.uid()), Some(earlier.gid()))
}

/// Writes the content to a new file, and renames that to `path`. Owner, group and mode of the earlier file are kept.
fn replace(path: &Path, earlier: Option<&fs::Metadata>, content: &str) -> io::Result<()> {
    let new_path = with_suffix(path, ".new");
    // An interrupted change may have left this file; the lock excludes a change in progress. If it cannot be removed, the next
    // line fails.
    let _ = fs::remove_file(&new_path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new_path)?;
    if let Some(earlier) = earlier {
        keep_owner(&file, earlier)?;
        file.set_permissions(fs::Permissions::from_mode(earlier.mode() & 0o7777))?;
    }
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new_path, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_the_directory_delays_no_change_and_one_that_does_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        let of_others = File::open(directory.path()).unwrap();
        of_others.lock().unwrap();
        update_tokens(&path, |_| Ok::<_, TokenFileError>(())).unwrap();
        let _held = lock(&path, None, Duration::ZERO).unwrap();
        let error = lock(&path, None, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains(&format!("fuser {}.lock", path.display())), "{error}");
    }
}

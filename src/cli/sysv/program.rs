//! Checks that the dynamic linker can load the library into the program that `sysv run` starts.
//!
//! Otherwise the program would run without the library, often without a message, and use the semaphores of its own host.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{getgid, getuid};

use super::library;
use crate::cli::executable::{self, is_executable};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::escaped;

/// The maximum length of a chain of scripts in which each is the interpreter of the one before it.
const SCRIPTS_MAX: usize = 4;

/// How much of the first line of a script the kernel reads.
const LINE_BYTES: usize = 256;

/// The maximum length of the path of a dynamic linker that is read.
const LINKER_BYTES: usize = 4096;

/// The interpreter of a script that does not name one.
const SHELL: &str = "/bin/sh";

/// Fails if the library cannot be loaded into the program of this command. A command that cannot be executed passes:
/// executing it will fail.
pub(super) fn check(command: &OsStr) -> Result<(), Failure> {
    let Some(mut path) = executable::find(command) else { return Ok(()) };
    for _ in 0..=SCRIPTS_MAX {
        match interpreter(&path) {
            Ok(None) => return Ok(()),
            Ok(Some(next)) if !is_executable(&next) => return Ok(()),
            Ok(Some(next)) => path = next,
            Err(why) => return Err(refused(command, &path, &why)),
        }
    }
    Err(refused(command, &path, &format!("more than {SCRIPTS_MAX} scripts interpret each other")))
}

/// Returns the interpreter of a script; `None` for a program into which the library can be loaded. Fails with the
/// reason why it cannot be loaded.
fn interpreter(path: &Path) -> Result<Option<PathBuf>, String> {
    let unreadable =
        |error: io::Error| format!("it cannot be read, to see whether it is linked dynamically: {error}");
    let file = File::open(path).map_err(unreadable)?;
    let start = read(&file, 0, LINE_BYTES).map_err(unreadable)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
        let name = line.split(|byte| matches!(byte, b' ' | b'\t')).next().unwrap_or_default();
        return Ok(Some(PathBuf::from(OsStr::from_bytes(name))));
    }
    if !start.starts_with(b"\x7fELF") {
        return Ok(Some(PathBuf::from(SHELL)));
    }
    let own = library::header(Path::new("/proc/self/exe")).map_err(unreadable)?;
    if start.len() < own.len() || start[..6] != own[..6] || start[18..20] != own[18..20] {
        return Err("it is a program for another machine, such as a 32-bit one".to_owned());
    }
    let linker = linker(&file, &start).map_err(unreadable)?.ok_or("it is linked statically")?;
    if !linker.rsplit(|byte| *byte == b'/').next().unwrap_or_default().starts_with(b"ld-linux") {
        return Err(format!("its dynamic linker \"{}\" is not that of glibc", escaped(&linker)));
    }
    let (metadata, user, group) = (file.metadata().map_err(unreadable)?, getuid(), getgid());
    if metadata.mode() & 0o4000 != 0 && metadata.uid() != user.as_raw() {
        return Err(format!("it is set-user-id, and runs as user {} instead of {user}", metadata.uid()));
    }
    if metadata.mode() & 0o2010 == 0o2010 && metadata.gid() != group.as_raw() {
        return Err(format!("it is set-group-id, and runs with group {} instead of {group}", metadata.gid()));
    }
    Ok(None)
}

/// Returns the path in the program header `PT_INTERP` of a 64-bit file in this machine's byte order.
fn linker(file: &File, header: &[u8]) -> io::Result<Option<Vec<u8>>> {
    const PT_INTERP: u64 = 3;
    let (first, bytes, count) = (number(header, 32, 8), number(header, 54, 2), number(header, 56, 2));
    for index in 0..count {
        let entry = read(file, first.saturating_add(index * bytes), 56)?;
        if number(&entry, 0, 4) == PT_INTERP {
            let bytes = usize::try_from(number(&entry, 32, 8)).unwrap_or(LINKER_BYTES).min(LINKER_BYTES);
            let mut path = read(file, number(&entry, 8, 8), bytes)?;
            path.truncate(path.iter().position(|byte| *byte == 0).unwrap_or(path.len()));
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Returns a number of a header; 0 if the file is too short.
fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    let mut number = [0; 8];
    if let Some(bytes) = bytes.get(at..at + size) {
        let start = if cfg!(target_endian = "big") { 8 - size } else { 0 };
        number[start..start + size].copy_from_slice(bytes);
    }
    u64::from_ne_bytes(number)
}

/// Reads `bytes` bytes from the offset `at`, or fewer at the end of the file.
fn read(mut file: &File, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    file.seek(SeekFrom::Start(at))?;
    file.take(bytes as u64).read_to_end(&mut read)?;
    Ok(read)
}

fn refused(command: &OsStr, file: &Path, why: &str) -> Failure {
    let (command, file) = (escaped(command.as_bytes()), escaped(file.as_os_str().as_bytes()));
    Failure::new(
        Exit::System,
        format!(
            "the library cannot be loaded into \"{file}\": {why}; the command \"{command}\" was not started, because its \
         semaphores would be those of this host; run a program that is linked dynamically to the glibc of this machine, and change the \
         user before: \"sudo signalbox sysv run …\""
        ),
    )
}

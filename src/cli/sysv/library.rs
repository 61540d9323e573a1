//! The library that sends the calls of a program to the server: where it is, and whether it can be loaded.
//!
//! The dynamic linker only warns of a library that it cannot load, and the program would then run with the semaphores
//! of its own host. So everything that can be known is checked beforehand.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::exit::{Exit, Failure};
use crate::cli::output::escaped;

/// The environment variable with the libraries that the dynamic linker loads first.
pub(super) const PRELOAD: &str = "LD_PRELOAD";

/// The environment variable that makes the library end the program that loads it if the settings cannot be used.
const CHECK: &str = "SIGNALBOX_SYSV_CHECK";

const NAME: &str = "libsignalbox_sysv.so";

/// The length of the start of an ELF header, up to and including the machine.
const HEADER_BYTES: usize = 20;

/// Returns the absolute path of the library: the one of `--library`, or the one that belongs to this program.
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => installed()?,
    };
    // The command may run in another directory.
    let path = path.canonicalize().map_err(|error| unusable(&path, &error.to_string()))?;
    match (header(&path), header(Path::new("/proc/self/exe"))) {
        (Ok(library), Ok(program)) if is_for(&library, &program) => Ok(path),
        (Ok(_), Ok(_)) => Err(unusable(&path, "it is not a shared library for this machine")),
        (Err(error), _) | (_, Err(error)) => Err(unusable(&path, &error.to_string())),
    }
}

/// Returns the library that belongs to this program: in `../lib/signalbox` if the program is installed, for example by
/// the Debian package; in the same directory if it was built.
fn installed() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        unusable(Path::new(NAME), &format!("the path of this program is unknown: {error}"))
    })?;
    let directory = program.parent().unwrap_or(Path::new("/"));
    let prefix = directory.parent().unwrap_or(Path::new("/"));
    let directories = [prefix.join("lib/signalbox"), directory.to_owned()];
    let found = directories.iter().map(|directory| directory.join(NAME)).find(|path| path.exists());
    found.ok_or_else(|| {
        let [installed, built] = directories.map(|directory| escaped(directory.as_os_str().as_bytes()));
        Failure::new(Exit::System, format!(
            "the library \"{NAME}\" is neither in \"{installed}\" nor in \"{built}\"; install it (the Debian package has \
             it; in the sources, \"cargo build -p signalbox-sysv\" makes it), or give it with --library PATH"
        ))
    })
}

/// Reads the start of a file.
pub(super) fn header(path: &Path) -> io::Result<[u8; HEADER_BYTES]> {
    let mut header = [0; HEADER_BYTES];
    match File::open(path)?.read_exact(&mut header) {
        // Too short for anything that can be loaded.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok([0; HEADER_BYTES]),
        read => read.map(|()| header),
    }
}

/// Returns whether both are ELF files of the same class, byte order and machine, and the first is a shared library.
fn is_for(library: &[u8; HEADER_BYTES], program: &[u8; HEADER_BYTES]) -> bool {
    /// `ET_DYN` in either byte order.
    const SHARED: [[u8; 2]; 2] = [[3, 0], [0, 3]];
    library[..6] == program[..6]
        && SHARED.contains(&[library[16], library[17]])
        && library[18..] == program[18..]
}

fn unusable(path: &Path, why: &str) -> Failure {
    let path = escaped(path.as_os_str().as_bytes());
    Failure::new(
        Exit::System,
        format!(
            "the library \"{path}\" cannot be loaded: {why}; give the path of {NAME} with --library, or omit --library if \
         the Debian package is installed"
        ),
    )
}

/// Returns the value of [`PRELOAD`] for the command: the library, then the previous value.
pub(super) fn preload(library: &Path) -> Result<OsString, Failure> {
    let path = library.as_os_str();
    if path.as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'$')) {
        let why = "LD_PRELOAD cannot have a path with a space, a colon or a dollar sign";
        return Err(unusable(library, why));
    }
    Ok(before(path, std::env::var_os(PRELOAD).as_deref()))
}

/// Checks that the library can use the settings in the environment of a command: another run of this program loads the
/// library, which ends that run if it cannot.
pub(super) fn check_settings(command: &Command) -> Result<(), Failure> {
    let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let itself = std::env::current_exe();
    let result = itself
        .and_then(|itself| Command::new(itself).arg("--version").envs(variables).env(CHECK, "1").output());
    let output = result.map_err(|error| {
        Failure::new(
            Exit::System,
            format!("cannot ask the library whether its settings are right: {error}; try again"),
        )
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::usage(format!("settings of the library: {}", escaped(output.stderr.trim_ascii()))))
}

/// Returns the value of [`PRELOAD`] with the library first, and the other libraries of `others` after it.
fn before(library: &OsStr, others: Option<&OsStr>) -> OsString {
    let others = others.unwrap_or_default().as_bytes().split(|byte| matches!(byte, b' ' | b':'));
    let mut all = library.to_owned();
    for other in others.filter(|other| !other.is_empty() && *other != library.as_bytes()) {
        all.push(":");
        all.push(OsStr::from_bytes(other));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_once() {
        let before = |others: Option<&str>| before(OsStr::new("/l.so"), others.map(OsStr::new));
        assert_eq!(before(None), "/l.so");
        assert_eq!(before(Some("")), "/l.so");
        assert_eq!(before(Some("/a.so /b.so:/c.so")), "/l.so:/a.so:/b.so:/c.so");
        assert_eq!(before(Some("/a.so:/l.so")), "/l.so:/a.so");
    }

    #[test]
    fn only_a_shared_library_for_this_machine_can_be_loaded() {
        let program = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0";
        let library = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0";
        assert!(is_for(&library, &program));
        assert!(!is_for(&program, &program), "a program");
        assert!(!is_for(&[0; HEADER_BYTES], &program), "no ELF file");
        for other in [4, 5, 18] {
            let mut library = library;
            library[other] ^= 3;
            assert!(!is_for(&library, &program), "another class, byte order or machine: {other}");
        }
    }
}

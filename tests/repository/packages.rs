//! Checks of the packages that cargo does not make: which crates they build, and that the lowest ones read no clock and do
//! no I/O.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates that are built for a package, without those for tests and those of this workspace.
fn crates_of(package: &str, features: &str) -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--locked", "--offline", "--edges", "normal,build", "--prefix", "none"]);
    cargo.args(["--format", "{p}", "--package", package, "--features", features]);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    names.filter(|name| !name.is_empty() && !name.starts_with("signalbox")).map(str::to_owned).collect()
}

#[test]
fn the_codec_needs_no_runtime() {
    let for_errors = ["proc-macro2", "quote", "syn", "thiserror", "thiserror-impl", "unicode-ident"];
    let expected = for_errors.into_iter().chain(["bytes"]).map(str::to_owned).collect();
    assert_eq!(crates_of("signalbox-protocol", ""), expected, "the codec runs in other programs' processes");
}

#[test]
fn the_core_needs_no_runtime() {
    let crates = crates_of("signalbox-core", "");
    let unwanted = ["tokio", "clap", "redb", "serde", "nix"];
    assert!(unwanted.iter().all(|name| !crates.contains(*name)), "{crates:?}");
}

#[test]
fn programs_and_the_client_depend_on_few_crates() {
    for (package, features, most) in
        [("signalbox-client", "", 22), ("signalbox-client", "tls", 36), ("signalbox", "", 160)]
    {
        let crates = crates_of(package, features);
        assert!(crates.len() <= most, "{package} builds {}: {crates:?}", crates.len());
    }
}

#[test]
fn every_dependency_has_a_reason() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let section = manifest.split("[workspace.dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
    for line in section.lines().filter(|line| line.contains(" = ") && !line.starts_with("signalbox-")) {
        assert!(line.contains(" # "), "each dependency needs a reason in its line: {line}");
    }
}

/// Clocks, I/O and randomness belong to the server: protocol and core receive such values as arguments. Addresses are
/// values; sockets are not.
const NEVER_SANS_IO: [&str; 9] = [
    "Instant",
    "SystemTime",
    "TcpListener",
    "TcpStream",
    "ToSocketAddrs",
    "UdpSocket",
    "std::fs",
    "std::thread",
    "RandomState::new",
];

fn files_of(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_of(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
}

/// The files of a folder, each with its lines of code, without comments and tests.
fn code_of(folder: &str) -> Vec<(PathBuf, Vec<String>)> {
    let mut files = Vec::new();
    files_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut files);
    let code = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap().lines();
        code.filter(|line| !line.trim_start().starts_with("//")).map(str::to_owned).collect()
    };
    files.into_iter().map(|file| (file.clone(), code(&file))).collect()
}

#[test]
fn model_protocol_and_core_read_no_clock_and_do_no_io() {
    let sans_io = ["crates/model/src", "crates/protocol/src", "crates/core/src"];
    for (file, code) in sans_io.into_iter().flat_map(code_of) {
        for line in code {
            let breach = NEVER_SANS_IO.iter().find(|what| line.contains(**what));
            assert_eq!(breach, None, "{}: {}", file.display(), line.trim());
        }
    }
}

#[test]
fn only_dispatch_uses_both_protocol_and_core() {
    for (file, code) in code_of("src/server") {
        let uses = |package: &str| code.iter().any(|line| line.contains(package));
        let folder = file.parent().unwrap();
        let is_dispatch = folder.ends_with("server/dispatch");
        let frames_only = ["statistics.rs", "metrics.rs"].iter().any(|name| file.ends_with(name));
        if uses("signalbox_protocol::") && uses("signalbox_core::") && !frames_only {
            assert!(is_dispatch, "{} uses protocol and core", file.display());
        }
    }
}

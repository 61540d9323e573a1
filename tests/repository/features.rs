//! The dependencies of each cargo feature: a program that uses a part of the library does not build the rest.

use std::collections::BTreeSet;
use std::process::Command;

/// The crates that are built for the library with these features, without those for tests and `signalbox` itself.
fn crates_with(features: &str) -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--locked", "--offline", "--edges", "normal,build", "--prefix", "none"]);
    cargo.args(["--format", "{p}", "--no-default-features", "--features", features]);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "signalbox").map(str::to_owned).collect()
}

#[test]
fn the_codec_needs_no_runtime() {
    let for_errors = ["proc-macro2", "quote", "syn", "thiserror", "thiserror-impl", "unicode-ident"];
    let expected = for_errors.into_iter().chain(["bytes"]).map(str::to_owned).collect();
    assert_eq!(crates_with(""), expected, "the codec runs in other programs' processes");
}

#[test]
fn the_client_depends_on_few_crates() {
    let crates = crates_with("client");
    assert!(crates.len() <= 22, "each program that uses the client builds {}: {crates:?}", crates.len());
}

#[test]
fn tls_adds_few_crates_to_the_client() {
    let crates = crates_with("tls");
    assert!(crates.len() <= 36, "each program that uses TLS builds {}: {crates:?}", crates.len());
}

#[test]
fn the_core_needs_no_runtime() {
    let crates = crates_with("core");
    let unwanted = ["tokio", "clap", "redb", "serde", "nix"];
    assert!(unwanted.iter().all(|name| !crates.contains(*name)), "{crates:?}");
}

#[test]
fn the_program_depends_on_few_crates() {
    let crates = crates_with("program");
    assert!(crates.len() <= 180, "the first command of the README builds {}: {crates:?}", crates.len());
}

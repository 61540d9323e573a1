//! The patches of `tests/faults` still apply to the code, so that `tests/faults/run` can show that tests find each
//! fault.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

fn patches() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "patch")).collect()
}

/// The folders of tests: that of the program, and those of the packages.
fn test_folders() -> impl Iterator<Item = PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let packages = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    packages.chain([root.to_owned()]).map(|package| package.join("tests"))
}

#[test]
fn every_fault_patch_applies() {
    let patches = patches();
    assert!(!patches.is_empty());
    for patch in patches {
        let mut command = Command::new("git");
        command.args(["apply", "--check"]).arg(&patch).current_dir(env!("CARGO_MANIFEST_DIR"));
        let Ok(checked) = command.output() else {
            let _ = writeln!(std::io::stderr(), "skipped: git is not installed");
            return;
        };
        assert!(
            checked.status.success(),
            "{} no longer applies to the code: recreate it\n{}",
            patch.display(),
            String::from_utf8_lossy(&checked.stderr)
        );
    }
}

#[test]
fn every_fault_names_a_test_that_finds_it() {
    for patch in patches() {
        let text = fs::read_to_string(&patch).unwrap();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        assert!(field("Fault: ").is_some_and(|fault| fault.ends_with('.')), "{}", patch.display());
        let finder = field("Found by: ").unwrap_or_else(|| panic!("{}", patch.display()));
        // "Found by: BINARY MODULE", or "Found by: BINARY" if the binary is one file.
        let path = format!("{}.rs", finder.replace(' ', "/"));
        let found = test_folders().any(|folder| folder.join(&path).exists());
        assert!(found, "{}: there is no test {path}", patch.display());
    }
}

//! The file of tokens.

use std::error::Error;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use super::entry;
use signalbox_access::{TokenFileError, read_tokens, update_tokens};

fn add(path: &Path, byte: u8) -> Result<(), Box<dyn Error>> {
    update_tokens(path, |tokens| tokens.add(entry(byte)).map_err(Box::<dyn Error>::from))
}

#[test]
fn changes_create_and_replace_the_file_and_keep_its_mode() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    add(&path, 1).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    add(&path, 2).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(read_tokens(&path).unwrap().iter().count(), 2);
    assert!(add(&path, 2).is_err());
    assert_eq!(read_tokens(&path).unwrap().iter().count(), 2);
    // An interrupted change leaves this file.
    fs::write(directory.path().join("tokens.toml.new"), "[[token").unwrap();
    add(&path, 3).unwrap();
    assert_eq!(read_tokens(&path).unwrap().iter().count(), 3);
    let lock = fs::metadata(directory.path().join("tokens.toml.lock")).unwrap();
    assert_eq!(lock.mode() & 0o7777, 0o600, "others cannot open it");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
}

#[test]
fn a_change_that_fails_leaves_the_file_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    add(&path, 1).unwrap();
    let before = fs::read_to_string(&path).unwrap();
    let failed = update_tokens(&path, |tokens| -> Result<(), Box<dyn Error>> {
        tokens.remove("t1", None)?;
        Err("too late".into())
    });
    assert!(failed.is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), before);
}

#[test]
fn the_owner_of_a_file_stays_its_owner() {
    let directory = tempfile::tempdir().unwrap();
    let [path, lock] = ["tokens.toml", "tokens.toml.lock"].map(|name| directory.path().join(name));
    add(&path, 1).unwrap();
    if chown(&path, Some(12_345), Some(54_321)).is_err() {
        eprintln!("skipped: only root can give a file to another user");
        return;
    }
    add(&path, 2).unwrap();
    for file in [&path, &lock] {
        let metadata = fs::metadata(file).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (12_345, 54_321), "{}", file.display());
    }
}

#[test]
fn a_link_that_leads_nowhere_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    for target in ["tokens.toml", "missing.toml"] {
        let path = directory.path().join("tokens.toml");
        symlink(target, &path).unwrap();
        add(&path, 1).unwrap_err();
        assert_eq!(fs::read_link(&path).unwrap(), Path::new(target));
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_file_that_others_can_change_or_read_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    add(&path, 1).unwrap();
    for mode in [0o644, 0o660, 0o602] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(read_tokens(&path), Err(TokenFileError::Open { .. })), "{mode:o}");
    }
}

#[test]
fn changes_at_the_same_time_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    std::thread::scope(|scope| {
        for byte in 0..8 {
            let path = &path;
            scope.spawn(move || add(path, byte).unwrap());
        }
    });
    assert_eq!(read_tokens(&path).unwrap().iter().count(), 8);
}

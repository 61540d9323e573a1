//! Libraries that a program loads: they do not get past this one, and are found where they were before.

use std::path::Path;
use std::process::Command;

use crate::stepper::Stepper;
use crate::support::TestServer;

/// A library with a function `probe` that returns the id of the set with its argument as key.
const ASKING: &str = r#"
#[unsafe(no_mangle)]
pub extern "C" fn probe(key: i32) -> i32 {
    unsafe extern "C" { fn semget(key: i32, count: i32, flags: i32) -> i32; }
    unsafe { semget(key, 1, 0o1600) }
}
"#;

/// A library that loads the other one by its bare name, and calls its function.
const LOADING: &str = r#"
use std::ffi::{c_char, c_int, c_void};
#[unsafe(no_mangle)]
pub extern "C" fn probe(key: i32) -> i32 {
    unsafe extern "C" {
        fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
        fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    }
    unsafe {
        let library = dlopen(c"libasking.so".as_ptr(), 0x2 | 0x8);
        if library.is_null() { return -2; }
        let probe: extern "C" fn(i32) -> i32 = std::mem::transmute(dlsym(library, c"probe".as_ptr()));
        probe(key)
    }
}
"#;

/// Builds a library, which looks for others in its own folder.
fn build(folder: &Path, name: &str, source: &str) -> String {
    let file = folder.join(format!("{name}.rs"));
    std::fs::write(&file, source).unwrap();
    let library = folder.join(format!("lib{name}.so"));
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "--crate-type", "cdylib", "-C", "link-arg=-Wl,-rpath,$ORIGIN", "-o"]);
    assert!(rustc.arg(&library).arg(&file).status().unwrap().success());
    library.to_str().unwrap().to_owned()
}

#[test]
fn a_library_that_is_bound_deeply_is_reached_all_the_same() {
    let server = TestServer::start();
    let mut a = Stepper::start(server.address);
    let folder = tempfile::tempdir().unwrap();
    let asking = build(folder.path(), "asking", ASKING);
    let set = a.set(7, "1");
    let flags = libc::RTLD_NOW | libc::RTLD_DEEPBIND;
    assert_eq!(a.ask(format!("dlopen {asking} {flags} probe 7")), format!("= {set}"));
}

#[test]
fn a_library_finds_others_along_its_own_path() {
    let server = TestServer::start();
    let mut a = Stepper::start(server.address);
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), "asking", ASKING);
    let loading = build(folder.path(), "loading", LOADING);
    let set = a.set(7, "1");
    assert_eq!(a.ask("dlopen libasking.so 2 probe 7"), "! ENOENT", "the program itself does not look there");
    assert_eq!(a.ask(format!("dlopen {loading} {} probe 7", libc::RTLD_NOW)), format!("= {set}"));
}

//! The inputs that fuzzing found, run again through the functions that it runs (`tests/fuzz`).

#[path = "../fuzz/src/lib.rs"]
mod fuzz;

use std::fs;
use std::path::Path;

/// Runs every kept input of a target. The harness prints nothing of a test that passes, so a failure names its input.
fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let mut inputs: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{} holds what was found", folder.display());
    for input in inputs {
        println!("{}", input.display());
        run(&fs::read(input).unwrap());
    }
}

#[test]
fn kept_inputs_in_pieces_give_what_the_whole_gives() {
    replay("decode", fuzz::decode);
}

#[test]
fn kept_inputs_are_encoded_as_they_were_decoded() {
    replay("roundtrip", fuzz::roundtrip);
}

#[test]
fn kept_requests_of_grants_never_break_the_ledger() {
    replay("grants", fuzz::grants);
}

#[test]
fn kept_requests_never_break_the_books() {
    replay("requests", fuzz::requests);
}

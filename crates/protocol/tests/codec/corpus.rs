//! Replays the inputs that fuzzing found, with the functions of the fuzz targets (`tests/fuzz`).

#[path = "../../../../tests/fuzz/src/lib.rs"]
pub mod fuzz;

use std::fs;
use std::path::Path;

/// Runs every saved input of a target. The harness prints output only for a failed test, so a failure names its input.
fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus").join(target);
    let mut inputs: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{} has inputs", folder.display());
    for input in inputs {
        println!("{}", input.display());
        run(&fs::read(input).unwrap());
    }
}

#[test]
fn saved_inputs_decode_the_same_in_pieces_and_as_a_whole() {
    replay("decode", fuzz::decode);
}

#[test]
fn saved_inputs_are_encoded_as_they_were_decoded() {
    replay("roundtrip", fuzz::roundtrip);
}

#[test]
fn saved_headers_of_proxies_are_parsed_as_soon_as_they_are_complete() {
    replay("proxy_header", fuzz::proxy_header);
}

#[test]
fn saved_tokens_are_written_as_they_were_read() {
    replay("tokens", fuzz::tokens);
}

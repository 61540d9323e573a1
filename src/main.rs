//! The program. Everything is in the library, so that tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    signalbox::cli::main()
}

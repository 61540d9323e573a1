//! The signalbox program. Its code is in the library, where tests can call it.

use std::process::ExitCode;

fn main() -> ExitCode {
    signalbox::cli::main()
}

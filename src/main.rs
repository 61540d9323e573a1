//! The signalbox program. Its code is in the library, where tests can call it.

use std::process::ExitCode;

use signalbox_memory::CountingAllocator;

/// Counts the allocated bytes, for the key "memory_max".
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    signalbox::cli::main()
}

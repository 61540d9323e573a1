//! Says that a test is skipped, and why.

use std::io::Write;

/// Written to standard error itself: what a passing test prints by the usual macros is never seen.
pub fn skipped(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "{test} is skipped: {why}");
}

//! What a client proves its rights with.

use std::fmt;

/// A token in Hello (`docs/protocol.md`, "Hello"); empty: none. `Debug` does not show it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Credentials<'a>(pub &'a [u8]);

impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "Credentials(none)" } else { "Credentials(hidden)" })
    }
}

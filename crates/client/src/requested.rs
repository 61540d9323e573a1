//! What a request was about, for the text of its error: `acquire 2 of semaphore "gpu" (capacity 4) within 5 s`.

use std::fmt::{self, Write as _};

use super::{Error, is_unsafe};
use signalbox_protocol::Namespace;

/// The longest part of a name that a message shows, in bytes.
const NAME_SHOWN_MAX: usize = 255;

/// The most names that a message shows.
const NAMES_SHOWN_MAX: usize = 8;

/// A request about one name.
pub(super) fn about(operation: &str, namespace: Namespace, name: &[u8]) -> String {
    format!("{operation} {}", named(namespace, name))
}

/// A request about several names, each with its amount.
pub(super) fn about_all(operation: &str, names: impl ExactSizeIterator<Item = String>) -> String {
    let count = names.len();
    let mut text = operation.to_owned();
    for (index, name) in names.take(NAMES_SHOWN_MAX).enumerate() {
        text += match index {
            0 => " ",
            _ if index + 1 == count => " and ",
            _ => ", ",
        };
        text += &name;
    }
    if let Some(more) = count.checked_sub(NAMES_SHOWN_MAX).filter(|more| *more > 0) {
        text += &format!(" and {more} more");
    }
    text
}

/// A name with its kind.
pub(super) fn named(namespace: Namespace, name: &[u8]) -> String {
    let kind = match namespace {
        Namespace::Counters => "counter",
        Namespace::Semaphores => "semaphore",
    };
    format!("{kind} {}", Quoted(name))
}

/// Makes a call, and adds the request to its error.
pub(super) async fn requesting<T>(
    requested: impl FnOnce() -> String,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    call.await.map_err(|error| error.of(requested()))
}

/// A name in quotes, on one line and without characters that a terminal would execute. A long one is cut.
pub(super) struct Quoted<'a>(pub(super) &'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(NAME_SHOWN_MAX)];
        f.write_str("\"")?;
        for chunk in shown.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '"' | '\\' => write!(f, "\\{character}")?,
                    unsafe_one if is_unsafe(unsafe_one) => write!(f, "{}", unsafe_one.escape_default())?,
                    other => f.write_char(other)?,
                }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        f.write_str(if shown.len() < self.0.len() { "…\"" } else { "\"" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_and_long_lists_are_cut_and_controls_are_escaped() {
        let long = about("inspect", Namespace::Counters, &[b'a'; 70_000]);
        assert_eq!(long, format!("inspect counter \"{}…\"", "a".repeat(NAME_SHOWN_MAX)));
        let name = |index: u8| named(Namespace::Semaphores, index.to_string().as_bytes());
        let few = about_all("acquire", (0..3).map(name));
        assert_eq!(few, "acquire semaphore \"0\", semaphore \"1\" and semaphore \"2\"");
        let many = about_all("acquire", (0..10).map(name));
        assert!(many.ends_with(", semaphore \"7\" and 2 more"), "{many}");
        let odd = about("inspect", Namespace::Counters, b"a\x1b[0m\"\xff\xc3\xa9\xe3\x85\xa4");
        assert_eq!(odd, "inspect counter \"a\\u{1b}[0m\\\"\\xff\u{e9}\\u{3164}\"");
    }
}

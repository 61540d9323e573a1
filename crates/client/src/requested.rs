//! What a request for names was about, for the error of one that failed.

use std::fmt::{self, Write as _};

use super::{Error, is_unsafe};
use signalbox_protocol::Namespace;

/// The longest part of a name that a message shows, in bytes.
const NAME_SHOWN_MAX: usize = 255;

/// The most names that a message shows.
const NAMES_SHOWN_MAX: usize = 8;

/// A request for one or several names: what was to be done, with which names, and how much of each. Its text is, for
/// example, `acquire 2 of semaphore "gpu" (capacity 4) within 5 s`.
///
/// ```no_run
/// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
/// if let Err(error) = client.counter("tenant/7").maximum(8).try_acquire().await
///     && let Some(requested) = error.requested()
/// {
///     for name in requested.names() {
///         println!("{}", name.name.escape_ascii());
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// What was to be done with the names, such as `acquire`.
    operation: &'static str,
    names: Vec<RequestedName>,
    /// What else was requested, such as `within 5 s`; may be empty.
    details: String,
}

/// One of the names of a request.
///
/// ```no_run
/// # fn example(error: signalbox_client::Error) {
/// use signalbox_client::Namespace;
///
/// let names = error.requested().map_or(&[][..], |requested| requested.names());
/// let counters = names.iter().filter(|name| name.namespace == Some(Namespace::Counters)).count();
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestedName {
    /// The kind of the name; `None` for a plain operation, where the server's port decides.
    pub namespace: Option<Namespace>,
    /// The bytes of the name.
    pub name: Vec<u8>,
    /// How much of it was requested.
    pub amount: RequestedAmount,
}

/// How much of a name was requested.
///
/// ```no_run
/// # fn example(name: signalbox_client::RequestedName) {
/// use signalbox_client::RequestedAmount;
///
/// if let RequestedAmount::Resources { resources, .. } = name.amount {
///     println!("{resources} requested");
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestedAmount {
    /// The request was about the name as a whole.
    Whole,
    /// A number of resources.
    #[non_exhaustive]
    Resources {
        /// How many.
        resources: u32,
        /// The maximum of a counter, or the capacity with which a semaphore is created, if the request gave one.
        limit: Option<u32>,
    },
    /// A particular slot of a semaphore.
    Slot(u16),
}

impl Requested {
    pub(super) fn new(operation: &'static str, names: Vec<RequestedName>) -> Self {
        Self { operation, names, details: String::new() }
    }

    /// A request about one name as a whole.
    pub(super) fn whole(operation: &'static str, namespace: Namespace, name: &[u8]) -> Self {
        Self::of(operation, Some(namespace), name, RequestedAmount::Whole)
    }

    /// A request about one name.
    pub(super) fn of(
        operation: &'static str,
        namespace: Option<Namespace>,
        name: &[u8],
        amount: RequestedAmount,
    ) -> Self {
        Self::new(operation, vec![RequestedName { namespace, name: name.to_vec(), amount }])
    }

    /// The same request with more details, as they follow the names in its text.
    pub(super) fn with(self, details: String) -> Self {
        Self { details, ..self }
    }

    /// The names, in the order of the request.
    ///
    /// ```no_run
    /// # fn example(requested: &signalbox_client::Requested) {
    /// println!("{} names", requested.names().len());
    /// # }
    /// ```
    pub fn names(&self) -> &[RequestedName] {
        &self.names
    }
}

impl RequestedAmount {
    pub(super) fn resources(resources: u32, limit: Option<u32>) -> Self {
        Self::Resources { resources, limit }
    }
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.operation)?;
        for (index, name) in self.names.iter().take(NAMES_SHOWN_MAX).enumerate() {
            let separator = match index {
                0 => " ",
                _ if index + 1 == self.names.len() => " and ",
                _ => ", ",
            };
            write!(f, "{separator}{name}")?;
        }
        if let Some(more) = self.names.len().checked_sub(NAMES_SHOWN_MAX).filter(|more| *more > 0) {
            write!(f, " and {more} more")?;
        }
        match self.details.as_str() {
            "" => Ok(()),
            details => write!(f, " {details}"),
        }
    }
}

impl fmt::Display for RequestedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name, amount } = self;
        match amount {
            RequestedAmount::Whole => {}
            RequestedAmount::Resources { resources, .. } => write!(f, "{resources} of ")?,
            RequestedAmount::Slot(slot) => write!(f, "slot {slot} of ")?,
        }
        let (kind, limit_name) = match namespace {
            Some(Namespace::Counters) => ("counter ", "maximum"),
            Some(Namespace::Semaphores) => ("semaphore ", "capacity"),
            None => ("", "maximum"),
        };
        write!(f, "{kind}{}", Quoted(name))?;
        match amount {
            RequestedAmount::Resources { limit: Some(limit), .. } => write!(f, " ({limit_name} {limit})"),
            _ => Ok(()),
        }
    }
}

/// Makes a call, and adds the request to its error.
pub(super) async fn requesting<T>(
    requested: impl FnOnce() -> Requested,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    call.await.map_err(|error| error.of(requested()))
}

/// A name in quotes, on one line and without characters that a terminal would execute. A long one is cut.
struct Quoted<'a>(&'a [u8]);

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

    fn semaphore(name: &str) -> RequestedName {
        let (namespace, amount) = (Some(Namespace::Semaphores), RequestedAmount::resources(1, None));
        RequestedName { namespace, name: name.into(), amount }
    }

    #[test]
    fn the_text_has_each_name_with_its_kind_and_its_amount() {
        let counter = RequestedName {
            namespace: Some(Namespace::Counters),
            name: b"licences".to_vec(),
            amount: RequestedAmount::resources(2, Some(10)),
        };
        let both = Requested::new("acquire", vec![semaphore("gpu"), counter]).with("within 5 s".to_owned());
        assert_eq!(
            both.to_string(),
            "acquire 1 of semaphore \"gpu\" and 2 of counter \"licences\" (maximum 10) within 5 s"
        );
        let plain = Requested::of("get", None, b"backup", RequestedAmount::Whole);
        assert_eq!(plain.to_string(), "get \"backup\"");
        let slot = Requested::of("acquire", Some(Namespace::Semaphores), b"gpu", RequestedAmount::Slot(3));
        assert_eq!(slot.to_string(), "acquire slot 3 of semaphore \"gpu\"");
    }

    #[test]
    fn long_names_and_long_lists_are_cut_and_controls_are_escaped() {
        let long = Requested::whole("inspect", Namespace::Counters, &[b'a'; 70_000]);
        assert_eq!(long.to_string(), format!("inspect counter \"{}…\"", "a".repeat(NAME_SHOWN_MAX)));
        let many = Requested::new("acquire", (0..10).map(|index| semaphore(&index.to_string())).collect());
        assert!(many.to_string().ends_with(", 1 of semaphore \"7\" and 2 more"), "{many}");
        let odd = Requested::whole("inspect", Namespace::Counters, b"a\x1b[0m\"\xff\xc3\xa9\xe3\x85\xa4");
        assert_eq!(odd.to_string(), "inspect counter \"a\\u{1b}[0m\\\"\\xff\u{e9}\\u{3164}\"");
    }
}

//! What a request was about, for the text of its error: `acquire 2 of semaphore "gpu" (capacity 4) within 5 s`.

use super::Error;
use signalbox_model::{Namespace, Target};

/// A request about one name.
pub(super) fn about(operation: &str, namespace: Namespace, name: &[u8]) -> String {
    format!("{operation} {}", Target::Name(namespace, name))
}

/// Makes a call, and adds the request to its error.
pub(super) async fn requesting<T>(
    requested: impl FnOnce() -> String,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    call.await.map_err(|error| error.of(requested()))
}

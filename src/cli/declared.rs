//! Declared semaphores, as the server lists them.

use bytes::Bytes;
use serde_json::json;

use super::table;
use signalbox_client::{DeclaredEntry, Direct, Error, Namespace, Status};
use signalbox_model::views::Declaration;

/// The most resources of a semaphore with numbered slots.
pub(super) const SLOTS_MAX: u32 = 65_536;

/// The declared semaphore of a name, if there is one. The list is ordered by name, so the name itself precedes all longer
/// ones.
pub(super) async fn find(direct: &Direct, name: &[u8]) -> Result<Option<DeclaredEntry<Bytes>>, Error> {
    let first = direct.list(name).await?.next().await.transpose()?;
    Ok(first.filter(|entry| entry.name == name))
}

/// As [`find`]; `None` also if the name is a counter, or the server has no declared semaphores.
pub(super) async fn find_as(
    direct: &Direct,
    namespace: Namespace,
    name: &[u8],
) -> Result<Option<DeclaredEntry<Bytes>>, Error> {
    match namespace {
        Namespace::Counters => Ok(None),
        Namespace::Semaphores => match find(direct, name).await {
            Err(error) if error.status() == Some(Status::UnknownCommand) => Ok(None),
            found => found,
        },
    }
}

/// Why a declared semaphore does not have a slot.
pub(super) fn no_such_slot(entry: &DeclaredEntry<Bytes>) -> String {
    match (entry.numbered, entry.capacity) {
        (false, _) => {
            "its resources are not numbered; \"signalbox declare --slots --if-exists set\" numbers them"
                .to_owned()
        }
        (true, 0) => "its capacity is 0; \"signalbox resize\" changes it".to_owned(),
        (true, capacity) => format!(
            "its capacity is {capacity}, so its slots are 0 to {}; \"signalbox resize\" changes the capacity",
            capacity - 1
        ),
    }
}

/// The flags of a semaphore, separated by commas.
pub(super) fn flags(entry: &DeclaredEntry<Bytes>) -> String {
    table::flags(&json!(Declaration::of(entry)))
}

//! The differences between two configurations, for a reload.

use std::collections::{BTreeMap, BTreeSet};

use super::root::{Config, DeclareConfig};
use super::schema::Key;

impl Config {
    /// The keys whose values differ in `new`.
    pub fn changes(&self, new: &Self) -> Vec<Change> {
        let of_key = |key: &&Key| !key.name().starts_with("semaphore.declare");
        let mut changes: Vec<_> = Key::all()
            .iter()
            .filter(of_key)
            .map(|key| Change {
                key: key.name().to_owned(),
                from: shown(key.value_in(self)),
                to: shown(key.value_in(new)),
                takes_effect: key.changes_while_running(),
            })
            .collect();
        let [old, new] = [self, new].map(|config| {
            let declared = config.semaphore.declare.iter().map(|of| (of.name.as_str(), of));
            declared.collect::<BTreeMap<_, _>>()
        });
        let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        changes.extend(names.into_iter().map(|name| Change {
            key: declaration_key(name),
            from: described(old.get(name).copied()),
            to: described(new.get(name).copied()),
            takes_effect: true,
        }));
        changes.retain(|change| change.from != change.to);
        changes
    }
}

/// What a [`Change`] of a declared semaphore has as its key.
pub(crate) fn declaration_key(name: &str) -> String {
    format!("semaphore.declare \"{}\"", name.escape_default())
}

/// A key whose value differs between two configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key. For a declared semaphore, `semaphore.declare` with its name.
    pub key: String,
    /// The value before.
    pub from: String,
    /// The value after.
    pub to: String,
    /// Whether a running server applies it; else it needs a restart.
    pub takes_effect: bool,
}

fn shown(value: String) -> String {
    if value.is_empty() { "not set".to_owned() } else { value }
}

fn described(declared: Option<&DeclareConfig>) -> String {
    match declared {
        None => "not declared".to_owned(),
        Some(DeclareConfig { name: _, capacity, slots, label }) => {
            format!("capacity {capacity}, slots {slots}, label \"{}\"", label.escape_default())
        }
    }
}

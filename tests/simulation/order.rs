//! Checks that queues are served in order, by comparing consecutive steps.

use std::collections::{BTreeMap, BTreeSet};

use signalbox::core::{Listed, ListingKind, Namespace};
use signalbox::server::Server;

use crate::scene::{Key, key};

/// The holders and waiters of a name after a step.
#[derive(Default)]
struct Snapshot {
    waiting: BTreeSet<u64>,
    held: BTreeSet<u64>,
    /// What plain Acquires hold.
    plain: u64,
}

/// The names after the previous step.
#[derive(Default)]
pub struct Order {
    snapshot: BTreeMap<Key, Snapshot>,
    /// The greatest id of a grant or waiter so far.
    last: u64,
}

impl Order {
    /// Returns an error if a waiter was overtaken in the last step.
    pub fn check<'a>(
        &mut self,
        server: &Server,
        names: impl Iterator<Item = &'a Vec<u8>>,
    ) -> Result<(), String> {
        let (before, last) = (std::mem::take(&mut self.snapshot), self.last);
        for name in names {
            for namespace in Namespace::ALL {
                let key = key(namespace, name);
                let now = look(server, namespace, name);
                if let Some(before) = before.get(&key) {
                    check_name(before, &now, last).map_err(|what| {
                        let name = name.escape_ascii();
                        format!("{what} of {name}, a {namespace:?}")
                    })?;
                }
                let greatest = now.waiting.iter().chain(&now.held).max().copied().unwrap_or(0);
                self.last = greatest.max(self.last);
                self.snapshot.insert(key, now);
            }
        }
        Ok(())
    }
}

fn look(server: &Server, namespace: Namespace, name: &[u8]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for Listed { grant, .. } in list(server, namespace, name, ListingKind::Waiters) {
        snapshot.waiting.extend(grant.map(|grant| grant.0));
    }
    for Listed { grant, resources, .. } in list(server, namespace, name, ListingKind::Holders) {
        match grant {
            Some(grant) => _ = snapshot.held.insert(grant.0),
            None => snapshot.plain += u64::from(resources),
        }
    }
    snapshot
}

pub fn list(server: &Server, namespace: Namespace, name: &[u8], kind: ListingKind) -> Vec<Listed> {
    let Ok(mut listing) = server.core().listing(namespace, name, kind) else { return Vec::new() };
    let mut all = Vec::new();
    loop {
        let some = server.core().list(&mut listing);
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

fn check_name(before: &Snapshot, now: &Snapshot, last: u64) -> Result<(), String> {
    // Waiters of both steps. A waiter that moved here from another queue of its AcquireAll does not count.
    let Some(first) = before.waiting.intersection(&now.waiting).next() else { return Ok(()) };
    let is_overtaker = |grant: &&u64| {
        let has_waited = before.waiting.contains(grant);
        let is_new = **grant > last;
        **grant > *first && (has_waited || is_new)
    };
    if let Some(grant) = now.held.iter().find(is_overtaker) {
        return Err(format!("{grant} has overtaken {first}, which waits in the queue"));
    }
    if now.plain > before.plain {
        return Err(format!("plain Acquires have overtaken {first}, which waits in the queue"));
    }
    Ok(())
}

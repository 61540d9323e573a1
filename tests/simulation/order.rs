//! Checks that queues are served in order, by comparing consecutive steps.

use std::collections::{BTreeMap, BTreeSet};

use signalbox::server::Server;
use signalbox_core::{ListingKind, NameEntry};
use signalbox_model::{Namespace, SessionId};

use crate::scene::{Key, key};

/// The holders and waiters of a name after a step.
#[derive(Default)]
struct Snapshot {
    waiting: BTreeMap<u64, SessionId>,
    held: BTreeMap<u64, SessionId>,
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
                let now = snapshot(server, namespace, name);
                let greatest = now.ids().map(|(id, _)| *id).max().unwrap_or(0);
                self.last = greatest.max(self.last);
                self.snapshot.insert(key(namespace, name), now);
            }
        }
        // A waiter that was repeated after a restart, or overtaken by one, has another id as a grant.
        let present: BTreeSet<_> =
            self.snapshot.values().flat_map(Snapshot::ids).map(|(id, _)| *id).collect();
        let all_before = before.values().flat_map(Snapshot::ids);
        let renumbered: BTreeSet<_> =
            all_before.filter(|(id, _)| !present.contains(id)).map(|(id, session)| (*session, *id)).collect();
        for (key, now) in &self.snapshot {
            if let Some(before) = before.get(key) {
                check_name(before, now, last, &renumbered).map_err(|what| {
                    let (is_semaphore, name) = key;
                    let kind = if *is_semaphore { "semaphore" } else { "counter" };
                    format!("{what} of {kind} {}", name.escape_ascii())
                })?;
            }
        }
        Ok(())
    }
}

impl Snapshot {
    fn ids(&self) -> impl Iterator<Item = (&u64, &SessionId)> {
        self.waiting.iter().chain(&self.held)
    }
}

fn snapshot(server: &Server, namespace: Namespace, name: &[u8]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for NameEntry { grant, session, .. } in list(server, namespace, name, ListingKind::Waiters) {
        let session = SessionId::new(session);
        snapshot.waiting.extend(grant.map(|grant| (grant.0, session)));
    }
    for NameEntry { grant, session, resources, .. } in list(server, namespace, name, ListingKind::Holders) {
        let session = SessionId::new(session);
        match grant {
            Some(grant) => _ = snapshot.held.insert(grant.0, session),
            None => snapshot.plain += u64::from(resources),
        }
    }
    snapshot
}

pub fn list(server: &Server, namespace: Namespace, name: &[u8], kind: ListingKind) -> Vec<NameEntry> {
    let Ok(mut listing) = server.core().listing(namespace, name, kind) else { return Vec::new() };
    let mut all = Vec::new();
    loop {
        let some = server.core().list(&mut listing);
        if some.is_empty() {
            return all;
        }
        all.extend(some.into_iter().map(|(entry, _)| entry));
    }
}

/// `renumbered` has the ids that are gone, by session: a new grant of the session may have come from one of them.
fn check_name(
    before: &Snapshot,
    now: &Snapshot,
    last: u64,
    renumbered: &BTreeSet<(SessionId, u64)>,
) -> Result<(), String> {
    // Waiters of both steps. A waiter that moved here from another queue of its AcquireAll does not count.
    let mut waiting = before.waiting.keys().filter(|id| now.waiting.contains_key(id));
    let Some(first) = waiting.next() else { return Ok(()) };
    let is_overtaker = |(grant, session): &(&u64, &SessionId)| {
        let has_waited = before.waiting.contains_key(grant);
        let had_a_place_before = renumbered.range((**session, 0)..(**session, *first)).next().is_some();
        // It has taken this name before the first came here from another queue of its AcquireAll.
        let had_taken =
            before.held.iter().any(|(id, owner)| renumbered.contains(&(*owner, *id)) && owner == *session);
        let is_new = **grant > last && !had_a_place_before && !had_taken;
        **grant > *first && (has_waited || is_new)
    };
    if let Some((grant, _)) = now.held.iter().find(is_overtaker) {
        return Err(format!("{grant} has overtaken {first}, which waits in the queue"));
    }
    if now.plain > before.plain {
        return Err(format!("plain Acquires have overtaken {first}, which waits in the queue"));
    }
    Ok(())
}

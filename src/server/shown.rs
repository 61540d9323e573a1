//! What a listed holder or waiter lacks in the core: the address of its client, and the time that is left of its lease.

use super::state::Server;
use signalbox_core::{Claimed, Listed, NameEntry};
use signalbox_model::{HeldEntry, TtlLeft};

impl Server {
    /// The entry with its address, and how long its grant is held without a renewal.
    pub(super) fn shown(&self, (mut entry, connection): Listed) -> (NameEntry, TtlLeft) {
        entry.address = self.peers.address_text(connection);
        // A request over HTTP is a connection of the core, and not of a port.
        if entry.address.is_empty()
            && let Some(client) = connection.and_then(|connection| self.core.client_of(connection))
        {
            entry.address = client.address.to_string().into_bytes().into();
        }
        let held = entry.grant.filter(|_| entry.position == 0);
        let verified = held.and_then(|grant| self.core.verify(grant, self.moment()).ok());
        (entry, verified.map_or(TtlLeft::Connection, |verified| verified.ttl_left))
    }

    /// As [`Self::shown`], of what a session holds or waits for.
    pub(super) fn held_entry(&self, claimed: Claimed) -> HeldEntry<Box<[u8]>, Box<[u16]>> {
        let Claimed { namespace, name, is_held, listed } = claimed;
        let (entry, ttl_left) = self.shown(listed);
        HeldEntry { namespace, name, is_held, ttl_left, entry }
    }
}

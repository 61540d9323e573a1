//! The listing of all sessions: leased ones, those of connections, and processes of System V calls. It takes some entries
//! a step, so that a long one delays no other request. A session that opens or ends during the listing may be in it or not.

use crate::session_client::SessionClient;
use crate::state::Core;
use crate::time::{Moment, MonotonicMs};
use signalbox_model::sysv::ProcessId;
use signalbox_model::{ConnectionId, Milliseconds, SessionEntry, SessionId, TtlLeft};

/// A session of any kind in the listing.
pub type ListedSession = SessionEntry<Box<[u8]>>;

/// A connection, as its server knows it.
#[derive(Clone, Debug)]
pub struct Connected {
    /// The connection.
    pub connection: ConnectionId,
    /// Its client.
    pub client: SessionClient,
    /// When it was opened.
    pub opened: MonotonicMs,
}

/// How far a listing of all sessions has come: first come leased sessions, then connections, then processes, each in the
/// order of their ids.
#[derive(Debug)]
pub struct SessionListing(Left);

/// What a listing of all sessions has left: the sessions after the last one.
#[derive(Clone, Copy, Debug)]
enum Left {
    Leased(Option<SessionId>),
    Connections(Option<SessionId>),
    Processes(Option<ProcessId>),
}

impl Core {
    /// Begins a listing of all sessions.
    pub fn sessions(&self) -> SessionListing {
        SessionListing(Left::Leased(None))
    }

    /// The next sessions of a listing; none at its end. `connected` finds the next connections after the one with this
    /// session, in the order of ids.
    pub fn list_sessions(
        &self,
        listing: &mut SessionListing,
        connected: impl Fn(Option<SessionId>) -> Vec<Connected>,
        now: Moment,
    ) -> Vec<ListedSession> {
        if let Left::Leased(after) = listing.0 {
            let leased = self.ledger().list_leased(after, now.monotonic);
            if let Some((last, _)) = leased.last() {
                listing.0 = Left::Leased(Some(*last));
                return leased.into_iter().map(|(_, listed)| listed).collect();
            }
            listing.0 = Left::Connections(None);
        }
        if let Left::Connections(after) = listing.0 {
            let connected = connected(after);
            if let Some(last) = connected.last() {
                listing.0 = Left::Connections(Some(last.connection.session()));
                let ledger = self.ledger();
                let listed = connected.into_iter().map(|one| ledger.list_connection(one, now.monotonic));
                return listed.collect();
            }
            listing.0 = Left::Processes(None);
        }
        let Left::Processes(after) = listing.0 else { return Vec::new() };
        let processes = self.sysv().list_processes(after, now.monotonic);
        if let Some((last, _)) = processes.last() {
            listing.0 = Left::Processes(Some(*last));
        }
        processes.into_iter().map(|(_, listed)| listed).collect()
    }
}

/// The parts of an entry that show the client.
pub(crate) fn shown(client: Option<&SessionClient>) -> (Box<[u8]>, Box<[u8]>) {
    let address = client.map(|client| client.address.to_string()).unwrap_or_default();
    let identity = client.and_then(|client| client.identity.as_deref()).unwrap_or_default();
    (address.into_bytes().into(), identity.as_bytes().into())
}

/// An age in whole seconds. One of more than a century is shown as that.
pub(crate) fn age_s(since: MonotonicMs, now: MonotonicMs) -> u32 {
    u32::try_from(since.age_ms(now) / 1000).unwrap_or(u32::MAX - 1)
}

/// What is left of a lease.
pub(crate) fn ttl_left(left_ms: Option<u32>) -> TtlLeft {
    left_ms.map_or(TtlLeft::Connection, |left_ms| TtlLeft::For(Milliseconds(left_ms)))
}

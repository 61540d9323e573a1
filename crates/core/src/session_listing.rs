//! The listing of all sessions: leased ones, those of connections, and processes of System V calls. It takes some entries
//! a step, so that a long one delays no other request. A session that opens or ends during the listing may be in it or not.

use crate::ids::{ConnectionId, SessionId};
use crate::session_client::SessionClient;
use crate::state::Core;
use crate::sysv::ProcessId;
use crate::time::{Moment, MonotonicMs};

/// A session of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSession {
    /// Its kind and its id.
    pub id: ListedId,
    /// Its label.
    pub label: Box<[u8]>,
    /// The client that is attached or was last; `None`: not known since the start of the server.
    pub client: Option<SessionClient>,
    /// Whether a connection is attached; a connection is to its own session.
    pub is_attached: bool,
    /// How long it has existed, in milliseconds; `None`: since before the start of the server.
    pub age_ms: Option<u64>,
    /// Grants that it holds; of a process, the sets that it has adjustments of.
    pub grants: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// The time until it ends unless it is renewed, in milliseconds; `None`: as long as its connection lasts.
    pub ttl_left_ms: Option<u32>,
}

/// The id of a listed session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedId {
    /// A leased session.
    Leased(SessionId),
    /// The session of a connection.
    Connection(ConnectionId),
    /// A process of System V calls.
    Process(ProcessId),
}

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

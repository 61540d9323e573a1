//! What the ledger knows of sessions, for the listing of all of them.

use super::listing::STEP_ENTRIES;
use super::sessions::SessionState;
use super::state::Ledger;
use crate::session_listing::{Connected, ListedSession, age_s, shown, ttl_left};
use crate::time::MonotonicMs;
use signalbox_model::{SessionId, SessionKind};

impl Ledger {
    /// The next leased sessions after one; none at the end.
    pub(crate) fn list_leased(
        &self,
        after: Option<SessionId>,
        now: MonotonicMs,
    ) -> Vec<(SessionId, ListedSession)> {
        let listed = |(session, state): (SessionId, &SessionState)| {
            let (address, identity) = shown(state.client());
            let listed = ListedSession {
                kind: SessionKind::Leased,
                session: session.number(),
                label: state.label().into(),
                address,
                identity,
                attached: self.sessions.connection_of(session).is_some(),
                age_s: state.opened().map(|opened| age_s(opened, now)),
                grants: held(state),
                waiting: state.waiting(),
                ttl_left: ttl_left(self.sessions.ttl_left_ms(session, now)),
            };
            (session, listed)
        };
        self.sessions.leased_after(after).take(STEP_ENTRIES).map(listed).collect()
    }

    /// The session of a connection. The ledger need not know it: a plain client has no label and no grants.
    pub(crate) fn list_connection(&self, connected: Connected, now: MonotonicMs) -> ListedSession {
        let Connected { connection, client, opened } = connected;
        let state = self.sessions.get(connection.session());
        let (address, identity) = shown(Some(&client));
        ListedSession {
            kind: SessionKind::Connection,
            session: connection.number(),
            label: state.map_or_else(Box::default, |state| state.label().into()),
            address,
            identity,
            attached: true,
            age_s: Some(age_s(opened, now)),
            grants: state.map_or(0, held),
            waiting: state.map_or(0, SessionState::waiting),
            ttl_left: ttl_left(state.and_then(SessionState::revoked).map(|at| now.until(at))),
        }
    }
}

/// The grants that a session holds.
fn held(state: &SessionState) -> u32 {
    u32::try_from(state.grant_count()).unwrap_or(u32::MAX) - state.waiting()
}

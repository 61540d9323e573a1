//! Which permits of a session are going to be taken away, and from when on that is to be believed.
//!
//! The server tells it by notices. One that was told to a connection that was lost is never heard, so the grants that were
//! held then are doubtful, and are asked about.

use std::collections::BTreeSet;

use super::book::Book;
use super::clock::Moment;
use super::standing::Standing;
use crate::client::Lost;
use crate::protocol::GrantId;

#[derive(Debug)]
pub(super) struct Revocations {
    grants: Vec<(Moment, GrantId)>,
    session: Option<Moment>,
    doubtful: BTreeSet<GrantId>,
    /// When the doubtful ones are asked about next.
    ask_at: Moment,
}

impl Revocations {
    pub(super) fn new(now: Moment) -> Self {
        Self { grants: Vec::new(), session: None, doubtful: BTreeSet::new(), ask_at: now }
    }

    /// The revocation of a grant may have been told unheard.
    pub(super) fn doubt(&mut self, grant: GrantId, now: Moment) {
        self.doubtful.insert(grant);
        self.ask_at = now;
    }

    /// There is a new connection: it is told nothing of what the one before it was told.
    pub(super) fn doubt_all(&mut self, book: &Book, now: Moment) {
        self.doubtful = book.grants.keys().copied().collect();
        self.ask_at = now;
    }

    /// There is nothing to doubt about a grant any more: it is gone, or it is known when it goes.
    pub(super) fn forget(&mut self, grant: GrantId) {
        self.doubtful.remove(&grant);
    }

    /// A grant is going to be taken away.
    pub(super) fn add(&mut self, grant: GrantId, standing: &Standing, at: Moment) {
        standing.revoke_at(at);
        self.grants.push((at, grant));
        self.forget(grant);
    }

    /// The session is going to be taken away, with all that it holds.
    pub(super) fn add_session(&mut self, book: &Book, at: Moment) {
        book.grants.values().for_each(|standing| standing.revoke_at(at));
        self.session = Some(self.session.map_or(at, |earlier| earlier.min(at)));
    }

    /// When the session goes.
    pub(super) fn of_session(&self) -> Option<Moment> {
        self.session
    }

    /// When the first of all goes.
    pub(super) fn due(&self) -> Option<Moment> {
        self.grants.iter().map(|(at, _)| *at).chain(self.session).min()
    }

    /// When doubtful grants are to be asked about.
    pub(super) fn ask_due(&self) -> Option<Moment> {
        (!self.doubtful.is_empty()).then_some(self.ask_at)
    }

    /// The grants to ask about now; they are asked about again at `next`, as long as they are doubtful.
    pub(super) fn ask_about(&mut self, now: Moment, next: Moment) -> impl Iterator<Item = GrantId> {
        let is_due = now >= self.ask_at;
        if is_due {
            self.ask_at = next;
        }
        self.doubtful.iter().copied().filter(move |_| is_due)
    }

    /// Tells the permits whose time is up.
    pub(super) fn take_effect(&mut self, book: &Book, now: Moment) {
        self.grants.retain(|(at, grant)| {
            if now < *at {
                return true;
            }
            if let Some(standing) = book.grants.get(grant) {
                standing.lose(Lost::Revoked);
            }
            false
        });
    }
}

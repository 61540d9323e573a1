//! The sessions of a client: which one the next acquire uses, and when another one is opened.
//!
//! A label and a time to live belong to a session, so permits with other terms than those of the client are held by
//! sessions of their own. Each session has a connection.
//!
//! Invariants:
//! - An acquire gets a session with its terms that has room, or a new one.
//! - A session with the client's own terms stays open while the client exists, so that the next acquire finds it. The
//!   others end with their last user: labels may be as many as there are jobs.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::driver::Losses;
use super::executor::Executor;
use super::session_handle::SessionHandle;
use super::settings::{Settings, Terms};

#[derive(Default)]
pub(super) struct SessionPool {
    /// The session of the next acquire with the client's own terms, if it has room.
    own: Option<Arc<SessionHandle>>,
    /// The session of the next acquire with other terms, if it exists and has room.
    others: HashMap<Terms, Weak<SessionHandle>>,
    /// All sessions that may still exist.
    all: Vec<Weak<SessionHandle>>,
    /// How many sessions were opened so far.
    opened: u64,
    losses: Losses,
    /// How many sessions were lost when the last one was opened.
    losses_before: u64,
}

impl SessionPool {
    /// The session for the next acquire with these terms.
    pub(super) fn session(
        &mut self,
        settings: &Settings,
        terms: &Terms,
        executor: &Executor,
    ) -> Arc<SessionHandle> {
        let current = if *terms == settings.terms {
            self.own.clone()
        } else {
            self.others.get(terms).and_then(Weak::upgrade)
        };
        match current.filter(|session| session.has_room()) {
            Some(session) => session,
            None => self.open(settings, terms, executor),
        }
    }

    fn open(&mut self, settings: &Settings, terms: &Terms, executor: &Executor) -> Arc<SessionHandle> {
        self.opened += 1;
        let seed = settings.seed.wrapping_add(self.opened);
        let settings_of_session = Settings { seed, terms: terms.clone(), ..settings.clone() };
        let losses = self.losses.count();
        let replaces_lost = std::mem::replace(&mut self.losses_before, losses) != losses;
        let session = SessionHandle::open(settings_of_session, executor, self.losses.clone(), replaces_lost);
        let session = Arc::new(session);
        self.all.retain(|session| session.strong_count() > 0);
        self.all.push(Arc::downgrade(&session));
        if *terms == settings.terms {
            self.own = Some(Arc::clone(&session));
        } else {
            self.others.retain(|_, session| session.strong_count() > 0);
            self.others.insert(terms.clone(), Arc::downgrade(&session));
        }
        session
    }

    /// Takes all sessions, to close them.
    pub(super) fn take_all(&mut self) -> Vec<Arc<SessionHandle>> {
        // Kept until `all` was read: if this is the last handle, dropping it would end the session before the caller
        // can close it.
        let _own = self.own.take();
        self.others.clear();
        self.all.drain(..).filter_map(|session| session.upgrade()).collect()
    }
}

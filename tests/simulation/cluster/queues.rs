//! Queues keep their order over takeovers.
//!
//! A request whose client was told its place has the same place at the next node, if its session is still there; nothing that
//! waited behind it is granted before it has come back, for the time of the reconnect window; and at each node, nothing
//! overtakes what waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use signalbox::server::Server;
use signalbox_core::{Key, ListingKind};
use signalbox_model::{Namespace, SessionId};

use super::beliefs::Resource;
use super::etcd::Etcd;
use super::world::World;
use crate::order::list;
use crate::scene::Scene;

/// `session.reconnect_window`.
const WINDOW_MS: u64 = 5000;

/// How long a request that was given up may still be granted, before its cancellation arrives.
const ABANDONED_MS: u64 = 30_000;

/// A request that waits for an answer; it is over when this is dropped. Each task has a session of its own, with the task's
/// name as its label, and one such request at a time.
pub struct Asked {
    world: Arc<World>,
    task: String,
    is_answered: bool,
}

impl Asked {
    pub fn new(world: &Arc<World>, task: &str) -> Self {
        let mut state = world.queues.state();
        let request = Request { after: state.listed_id, place: None };
        state.asked.insert(task.to_owned(), request);
        drop(state);
        Self { world: Arc::clone(world), task: task.to_owned(), is_answered: false }
    }

    /// The request has an answer: it is granted or refused.
    pub fn answered(mut self, is_granted: bool) -> Result<(), String> {
        self.is_answered = true;
        if !is_granted {
            return Ok(());
        }
        self.world.queues.check_granted(&self.task, &self.world.etcd)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let queues = &self.world.queues;
        let now_ms = queues.scene.state().now_ms;
        let mut state = queues.state();
        state.asked.remove(&self.task);
        if !self.is_answered {
            state.abandoned.insert(self.task.clone(), now_ms);
        }
    }
}

/// Where a request waits.
#[derive(Clone, Copy, Debug)]
struct Place {
    resource: usize,
    session: SessionId,
    id: u64,
    /// The epoch of the node that listed it last, and when.
    epoch: u32,
    listed_ms: u64,
    /// Whether it has come back to that node from another one.
    is_back: bool,
}

/// A request that a task waits for.
#[derive(Debug)]
struct Request {
    /// The highest id of a waiter that had been listed when it was requested.
    after: u64,
    place: Option<Place>,
}

#[derive(Default)]
struct State {
    /// By task.
    asked: BTreeMap<String, Request>,
    /// The places that clients were told.
    told: BTreeSet<u64>,
    /// When a task last gave a request up.
    abandoned: BTreeMap<String, u64>,
    /// By resource, the last lists of the node that serves.
    lists: BTreeMap<usize, Lists>,
    /// The node that served last: its epoch, when it began, and when its queues were listed last.
    epoch: u32,
    restored_ms: u64,
    listed_ms: u64,
    /// When the queues of the node before were listed last.
    listed_before_ms: u64,
    /// The highest id of a waiter that was listed.
    listed_id: u64,
    /// Requests that were seen to come back with their places.
    kept: u64,
}

/// The queue of a resource, and its holders, by id.
#[derive(Default)]
struct Lists {
    waiting: BTreeSet<u64>,
    held: BTreeMap<u64, String>,
}

pub struct Queues {
    scene: Arc<Scene>,
    state: Mutex<State>,
}

impl Queues {
    pub fn new(scene: Arc<Scene>) -> Self {
        Self { scene, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it changes queues")
    }

    /// A client was told its place.
    pub fn told(&self, place: u64) {
        self.state().told.insert(place);
    }

    /// How many requests came back with their places.
    pub fn kept(&self) -> u64 {
        self.state().kept
    }

    /// A node has restored the records.
    pub fn restored(&self, epoch: u32) {
        let mut state = self.state();
        state.lists.clear();
        state.epoch = epoch;
        state.restored_ms = self.scene.state().now_ms;
        state.listed_before_ms = state.listed_ms;
    }

    /// Checks the node that serves.
    pub fn check(&self, server: &Server, resources: &[Resource]) -> Result<(), String> {
        let now_ms = self.scene.state().now_ms;
        let mut state = self.state();
        state.listed_ms = now_ms;
        for (resource, Resource { name, .. }) in resources.iter().enumerate() {
            let label = |label: &[u8]| String::from_utf8_lossy(label).into_owned();
            let listed = |kind| list(server, Namespace::Semaphores, name, kind).into_iter();
            let mut now = Lists::default();
            now.held
                .extend(listed(ListingKind::Holders).filter_map(|it| Some((it.grant?.0, label(&it.label)))));
            for waiter in listed(ListingKind::Waiters) {
                let Some(id) = waiter.grant else { continue };
                now.waiting.insert(id.0);
                state.note_waiter(resource, &label(&waiter.label), SessionId::new(waiter.session), id.0)?;
            }
            if let Some(before) = state.lists.get(&resource) {
                state.check_order(before, &now, now_ms)?;
            }
            state.lists.insert(resource, now);
        }
        Ok(())
    }

    fn check_granted(&self, task: &str, etcd: &Etcd) -> Result<(), String> {
        let now_ms = self.scene.state().now_ms;
        let state = self.state();
        let Some(granted) = state.asked.get(task).and_then(|request| request.place) else { return Ok(()) };
        // A new request may be granted while the head of the queue is missing.
        let is_back = granted.epoch == state.epoch && granted.is_back;
        if !is_back || now_ms >= state.restored_ms + WINDOW_MS {
            return Ok(());
        }
        let lists = state.lists.get(&granted.resource);
        let holds =
            |task: &String| lists.is_some_and(|lists| lists.held.values().any(|holder| holder == task));
        let is_missing = |(other, request): (&String, &Request)| {
            request.place.filter(|place| {
                place.resource == granted.resource
                    && place.id < granted.id
                    && place.epoch != state.epoch
                    && place.listed_ms == state.listed_before_ms
                    && state.told.contains(&place.id)
                    && !holds(other)
                    && etcd.has(&Key::Session(place.session))
            })
        };
        match state.asked.iter().find_map(is_missing) {
            Some(missing) => Err(format!("{granted:?} is granted before {missing:?} has come back")),
            None => Ok(()),
        }
    }
}

impl State {
    /// A request waits at the node that serves.
    fn note_waiter(
        &mut self,
        resource: usize,
        task: &str,
        session: SessionId,
        id: u64,
    ) -> Result<(), String> {
        self.listed_id = id.max(self.listed_id);
        // Another request of the same task may be about to be canceled.
        let asked = self.asked.get_mut(task).filter(|asked| id > asked.after);
        let Some(Request { place: known, .. }) = asked else { return Ok(()) };
        let mut place =
            Place { resource, session, id, epoch: self.epoch, listed_ms: self.listed_ms, is_back: false };
        if let Some(before) = known.filter(|before| before.session == session) {
            if before.id != id && self.told.contains(&before.id) {
                return Err(format!("{before:?} has become {place:?}"));
            }
            let comes_back = before.id == id && before.epoch != self.epoch;
            self.kept += u64::from(comes_back);
            place.is_back = comes_back || before.is_back;
        }
        *known = Some(place);
        Ok(())
    }

    /// Checks that nothing has overtaken the first waiter of both lists.
    fn check_order(&self, before: &Lists, now: &Lists, now_ms: u64) -> Result<(), String> {
        let Some(first) = before.waiting.intersection(&now.waiting).next() else { return Ok(()) };
        for (grant, task) in now.held.iter().filter(|(grant, _)| !before.held.contains_key(grant)) {
            let was_abandoned = self.abandoned.get(task).is_some_and(|ms| ms + ABANDONED_MS > now_ms);
            let Some(Request { place, .. }) = self.asked.get(task).filter(|_| !was_abandoned) else {
                continue;
            };
            // A request that came back and was granted at once has the place that it had at another node.
            let place = place.map_or(*grant, |place| place.id);
            if place > *first {
                return Err(format!("grant {grant} of {task}, at place {place}, has overtaken {first}"));
            }
        }
        Ok(())
    }
}

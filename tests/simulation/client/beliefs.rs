//! What programs believe to hold, compared with what the server knows after each step; and what excuses a loss.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use signalbox::client::Permit;
use signalbox::core::{self, Moment, MonotonicMs, UnixSeconds};

use super::declared::Registry;
use crate::scene::{Key, Scene};

/// How long what was sent is on its way at most, with what runs on its arrival.
const TRAVEL_MS_MAX: u64 = 1000;

/// A permit, until its program gives it back.
pub type Cell = Mutex<Option<Permit>>;

/// A client: its number, its machine, and the time to live that its sessions have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    pub client: usize,
    pub machine: usize,
    pub ttl_ms: u64,
}

/// A permit that a program has.
struct Belief {
    who: Who,
    grant: u64,
    parts: Vec<(Key, u64)>,
    slots: Vec<(Key, Vec<u16>)>,
    cell: Weak<Cell>,
    /// When somebody asked first for it to be revoked, and the shortest grace.
    revoked: Option<(u64, u64)>,
    /// When the server was first seen not to hold it.
    freed_ms: Option<u64>,
}

/// A time in which a machine had no way to the server.
#[derive(Clone, Copy)]
struct Cut {
    from_ms: u64,
    until_ms: u64,
}

#[derive(Default)]
struct State {
    beliefs: BTreeMap<u64, Belief>,
    last: u64,
    /// The least id of grants in each life of the server, and when it began.
    lives: Vec<(u64, u64)>,
    /// By machine.
    cuts: Vec<Vec<Cut>>,
    /// Grants that somebody asked to revoke, held by a program still or just given back.
    revoked: BTreeSet<u64>,
    /// When a session of a client was asked to be revoked last, and the grace.
    revoked_sessions: BTreeMap<usize, (u64, u64)>,
    /// Clients that know a session of theirs, on which machine, and since when.
    sessions: BTreeMap<usize, (usize, u64)>,
    delays_an_attachment: bool,
    losses_expected: bool,
}

pub struct Beliefs {
    pub scene: Arc<Scene>,
    pub declared: Registry,
    state: Mutex<State>,
}

impl Beliefs {
    pub fn new(scene: Arc<Scene>) -> Arc<Self> {
        let cuts = vec![Vec::new(); scene.state().machines.len()];
        let declared = Registry::new(Arc::clone(&scene));
        Arc::new(Self { scene, declared, state: Mutex::new(State { cuts, ..State::default() }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it changes beliefs")
    }

    fn now_ms(&self) -> u64 {
        self.scene.state().now_ms
    }

    /// A server is started whose grants have ids from there on.
    pub fn server_starts(&self, first: u64) {
        let now_ms = self.now_ms();
        self.state().lives.push((first, now_ms));
    }

    /// A machine has no way to the server for so long.
    pub fn cut(&self, machine: usize, from_ms: u64, until_ms: u64) {
        self.state().cuts[machine].push(Cut { from_ms, until_ms });
    }

    /// The programs of a machine are gone, and all that they knew.
    pub fn forget(&self, machine: usize) {
        self.state().sessions.retain(|_, (of, _)| *of != machine);
    }

    /// A program has a permit.
    pub fn hold(&self, who: Who, parts: Vec<(Key, u64)>, permit: Permit) -> Arc<Cell> {
        let (grant, now_ms) = (permit.id().0, self.now_ms());
        let slots = |(index, (key, _)): (usize, &(Key, u64))| (key.clone(), permit.slots_of(index).to_vec());
        let slots = parts.iter().enumerate().map(slots).collect();
        let cell = Arc::new(Mutex::new(Some(permit)));
        let mut state = self.state();
        state.last += 1;
        let serial = state.last;
        let cell_of_it = Arc::downgrade(&cell);
        // Of a session that is being revoked, everything is.
        let revoked = state.revoked_sessions.get(&who.client).copied();
        let revoked = revoked.filter(|(at_ms, grace_ms)| at_ms + grace_ms + who.ttl_ms >= now_ms);
        let belief = Belief { who, grant, parts, slots, cell: cell_of_it, revoked, freed_ms: None };
        state.beliefs.insert(serial, belief);
        cell
    }

    /// Grants that are held, with whose they are.
    pub fn grants(&self) -> Vec<(u64, Who)> {
        self.state().beliefs.values().map(|belief| (belief.grant, belief.who)).collect()
    }

    /// Somebody asks for a grant to be revoked, or for the session of its holder.
    pub fn revoke(&self, (grant, who): (u64, Who), is_session: bool, grace_ms: u64) {
        let now_ms = self.now_ms();
        let mut state = self.state();
        if is_session {
            state.revoked_sessions.insert(who.client, (now_ms, grace_ms));
        } else {
            state.revoked.insert(grant);
        }
        for belief in state.beliefs.values_mut() {
            if belief.grant == grant || is_session && belief.who.client == who.client {
                let (from_ms, shortest_ms) = belief.revoked.unwrap_or((now_ms, grace_ms));
                belief.revoked = Some((from_ms, shortest_ms.min(grace_ms)));
            }
        }
    }

    /// Whether a session of a client was being revoked then or a while before.
    pub fn is_session_revoked(&self, who: Who, since_ms: u64) -> bool {
        self.state().revoked_sessions.get(&who.client).is_some_and(|(at_ms, _)| *at_ms + 10_000 >= since_ms)
    }

    /// Whether a grant was asked to be revoked, or one of its names was removed at once.
    pub fn is_revoked(&self, grant: u64) -> bool {
        let state = self.state();
        let mut own = state.beliefs.values().filter(|belief| belief.grant == grant);
        state.revoked.contains(&grant)
            || own.any(|belief| {
                belief.revoked.or_else(|| self.declared.eviction(grant, belief.names())).is_some()
            })
    }

    /// Whether a grant may be about to be revoked, or its session.
    pub fn is_doubtful(&self, grant: u64) -> bool {
        let state = self.state();
        let mut own = state.beliefs.values().filter(|belief| belief.grant == grant);
        own.any(|belief| belief.revoked.is_some() || state.revoked_sessions.contains_key(&belief.who.client))
            || !state.beliefs.values().any(|belief| belief.grant == grant)
    }

    /// Whether a client may have lost a session that it had since then: the server was started again, or the way to it
    /// was cut for longer than a session must survive, or cut again before a first cut was got over.
    pub fn may_be_lost(&self, who: Who, since_ms: u64) -> bool {
        let now_ms = self.now_ms();
        let state = self.state();
        let since_ms = since_ms.saturating_sub(who.ttl_ms);
        if state.lives.iter().skip(1).any(|(_, started_ms)| *started_ms >= since_ms) {
            return true;
        }
        // The server is down, and will be another one.
        if self.scene.disk.is_none() && self.scene.state().server.is_none() {
            return true;
        }
        let cuts = state.cuts[who.machine].iter();
        let cuts: Vec<_> = cuts.filter(|cut| cut.until_ms >= since_ms && cut.from_ms <= now_ms).collect();
        match cuts[..] {
            [] => false,
            [cut] => cut.until_ms - cut.from_ms > survived_ms(who),
            _ => true,
        }
    }

    /// Whether a machine had its way to the server all the time since then.
    pub fn was_undisturbed(&self, who: Who, since_ms: u64) -> bool {
        self.scene.was_undisturbed(who.machine, since_ms)
    }

    /// A client has a session.
    pub fn session_opened(&self, who: Who) {
        let now_ms = self.now_ms();
        self.state().sessions.insert(who.client, (who.machine, now_ms));
        self.scene.event(who.client, format_args!("has a session"));
    }

    /// The next attachment that any client sends arrives late.
    pub fn delay_an_attachment(&self) {
        self.state().delays_an_attachment = true;
    }

    pub fn is_next_attachment_stuck(&self) -> bool {
        std::mem::take(&mut self.state().delays_an_attachment)
    }

    /// Sessions may be lost from now on, and there may be several at a time.
    pub fn expect_losses(&self) {
        self.state().losses_expected = true;
    }

    /// A client asks for a session. It must not have lost another one for nothing.
    pub fn opens_session(&self, who: Who) {
        self.scene.event(who.client, format_args!("opens a session"));
        let before = self.state().sessions.remove(&who.client);
        let now_ms = self.now_ms();
        if let Some((_, since_ms)) = before
            && !self.state().losses_expected
            && !self.may_be_lost(who, since_ms.max(now_ms.saturating_sub(who.ttl_ms)))
            && !self.is_session_revoked(who, since_ms)
        {
            self.scene.fail(format!("{who:?} has lost a session, and the places of all that waits there"));
        }
    }

    /// Compares what all programs believe at this moment with what there is.
    pub fn check(&self) -> Result<(), String> {
        self.declared.check()?;
        let (now_ms, server, capacities) = {
            let state = self.scene.state();
            let capacity = |shared: &crate::scene::Shared| (shared.name.clone(), u64::from(shared.capacity));
            let capacities: BTreeMap<_, _> = self.scene.shared.iter().map(capacity).collect();
            (state.now_ms, state.server.clone(), capacities)
        };
        let mut state = self.state();
        let State { beliefs, lives, .. } = &mut *state;
        let mut sums: BTreeMap<(usize, Key), u64> = BTreeMap::new();
        let mut holders: BTreeMap<(usize, Key, u16), u64> = BTreeMap::new();
        let mut wrong = None;
        beliefs.retain(|_, belief| {
            let Some(cell) = belief.cell.upgrade() else { return false };
            let is_held = match &*cell.lock().expect("nothing panics while it has a permit") {
                Some(permit) => permit.is_held(),
                None => return false,
            };
            let life = lives.iter().filter(|(first, _)| *first <= belief.grant).count();
            if let Some(server) = server.as_ref().filter(|_| life == lives.len()) {
                let moment = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
                if server.core().verify(core::GrantId(belief.grant), moment).is_err() {
                    belief.freed_ms.get_or_insert(now_ms);
                }
            }
            if !is_held {
                return true;
            }
            if let Some(freed_ms) = belief.freed_ms {
                // Only the server's word ends a grant before its lease does, and a word needs a way.
                let Who { machine, ttl_ms, .. } = belief.who;
                let evicted = self.declared.eviction(belief.grant, belief.names());
                let is_excused = belief.revoked.into_iter().chain(evicted).any(|(asked_ms, grace_ms)| {
                    let scene = self.scene.state();
                    let disturbed_ms = scene.machines[machine].disturbed_ms;
                    if disturbed_ms + ttl_ms < asked_ms {
                        grace_ms < TRAVEL_MS_MAX && now_ms < freed_ms + TRAVEL_MS_MAX
                    } else {
                        now_ms < disturbed_ms.max(freed_ms) + ttl_ms
                    }
                });
                if !is_excused {
                    wrong.get_or_insert_with(|| {
                        format!(
                            "{:?} relies on grant {}, which the server took from it at {freed_ms} ms; revoked: {:?}",
                            belief.who, belief.grant, belief.revoked
                        )
                    });
                }
                return true;
            }
            for (key, slot) in belief.slots.iter().flat_map(|(key, slots)| slots.iter().map(move |slot| (key, slot))) {
                if let Some(other) = holders.insert((life, key.clone(), *slot), belief.grant) {
                    wrong.get_or_insert_with(|| {
                        format!("slot {slot} of {} is of grants {other} and {}", key.1.escape_ascii(), belief.grant)
                    });
                }
            }
            for (key, resources) in &belief.parts {
                *sums.entry((life, key.clone())).or_insert(0) += resources;
            }
            true
        });
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        for ((_, (is_semaphore, name)), resources) in sums {
            let capacity = capacities.get(&name).copied().unwrap_or(u64::MAX);
            if resources > capacity {
                let name = name.escape_ascii();
                return Err(format!(
                    "programs hold {resources} of {name} (semaphore: {is_semaphore}), of which there are {capacity}"
                ));
            }
        }
        Ok(())
    }
}

impl Belief {
    /// The semaphores that it is of.
    fn names(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.parts.iter().filter(|((is_semaphore, _), _)| *is_semaphore).map(|((_, name), _)| name)
    }
}

/// How long a single cut may be that a session must survive. When it begins, the last sign of life is a quarter of the
/// time to live old at most; what is left after it must do for noticing and for connecting again.
pub fn survived_ms(who: Who) -> u64 {
    who.ttl_ms * 2 / 5
}

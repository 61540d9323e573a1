//! What applications expect to hold, compared with what the server holds after each step; and the causes of losses.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};

use signalbox_client::{Lost, Permit};
use signalbox_core::{self, Moment, MonotonicMs};
use signalbox_model::UnixSeconds;

use crate::scene::{Key, Scene};

/// The longest time for which a message is in flight, including the work on its arrival.
const TRAVEL_MS_MAX: u64 = 1000;

/// A permit, until its application releases it.
pub type Cell = Mutex<Option<Permit>>;

/// A client: its number, its machine, and the time to live of its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    pub client: usize,
    pub machine: usize,
    pub ttl_ms: u64,
}

/// A permit that an application has.
struct ExpectedPermit {
    info: ClientInfo,
    grant: u64,
    parts: Vec<(Key, u64)>,
    slots: Vec<(Key, Vec<u16>)>,
    cell: Weak<Cell>,
    received_ms: u64,
    /// When a revocation was first requested, and the shortest grace period.
    revoked: Option<(u64, u64)>,
    /// When the server was first observed not to hold it.
    freed_ms: Option<u64>,
}

/// A period in which a machine was disconnected from the server.
#[derive(Clone, Copy)]
struct Cut {
    from_ms: u64,
    until_ms: u64,
}

#[derive(Default)]
struct State {
    expectations: BTreeMap<u64, ExpectedPermit>,
    last: u64,
    /// For each life of the server, the least grant id and its start.
    lives: Vec<(u64, u64)>,
    /// By machine.
    cuts: Vec<Vec<Cut>>,
    /// Grants whose revocation was requested, also those that were released since.
    revoked: BTreeSet<u64>,
    /// When the revocation of a client's session was last requested, and the grace period.
    revoked_sessions: BTreeMap<usize, (u64, u64)>,
    /// The clients that have received a session, with their machine and the time.
    sessions: BTreeMap<usize, (usize, u64)>,
    delays_an_attachment: bool,
    losses_expected: bool,
}

pub struct Expectations {
    pub scene: Arc<Scene>,
    state: Mutex<State>,
}

impl Expectations {
    pub fn new(scene: Arc<Scene>) -> Arc<Self> {
        let cuts = vec![Vec::new(); scene.state().machines.len()];
        Arc::new(Self { scene, state: Mutex::new(State { cuts, ..State::default() }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it changes expectations")
    }

    fn now_ms(&self) -> u64 {
        self.scene.state().now_ms
    }

    /// A server starts whose grant ids begin with this one.
    pub fn server_starts(&self, first: u64) {
        let now_ms = self.now_ms();
        self.state().lives.push((first, now_ms));
    }

    /// A machine is disconnected from the server for this time.
    pub fn cut(&self, machine: usize, from_ms: u64, until_ms: u64) {
        self.state().cuts[machine].push(Cut { from_ms, until_ms });
    }

    /// The applications of a machine have ended.
    pub fn forget(&self, machine: usize) {
        self.state().sessions.retain(|_, (of, _)| *of != machine);
    }

    /// An application received a permit.
    pub fn hold(&self, info: ClientInfo, parts: Vec<(Key, u64)>, permit: Permit) -> Arc<Cell> {
        let (grant, now_ms) = (permit.id().0, self.now_ms());
        let slots = |(index, (key, _)): (usize, &(Key, u64))| (key.clone(), permit.slots_of(index).to_vec());
        let slots = parts.iter().enumerate().map(slots).collect();
        let cell = Arc::new(Mutex::new(Some(permit)));
        let mut state = self.state();
        state.last += 1;
        let serial = state.last;
        let cell_of_it = Arc::downgrade(&cell);
        // If the session is being revoked, all its grants are.
        let revoked = state.revoked_sessions.get(&info.client).copied();
        let revoked = revoked.filter(|(at_ms, grace_ms)| at_ms + grace_ms + info.ttl_ms >= now_ms);
        let permit = ExpectedPermit {
            info,
            grant,
            parts,
            slots,
            cell: cell_of_it,
            received_ms: now_ms,
            revoked,
            freed_ms: None,
        };
        state.expectations.insert(serial, permit);
        cell
    }

    /// The grants that are held, with their clients.
    pub fn grants(&self) -> Vec<(u64, ClientInfo)> {
        self.state().expectations.values().map(|permit| (permit.grant, permit.info)).collect()
    }

    /// The revocation of a grant or of its holder's session is requested.
    pub fn revoke(&self, (grant, info): (u64, ClientInfo), is_session: bool, grace_ms: u64) {
        let now_ms = self.now_ms();
        let mut state = self.state();
        if is_session {
            state.revoked_sessions.insert(info.client, (now_ms, grace_ms));
        } else {
            state.revoked.insert(grant);
        }
        for permit in state.expectations.values_mut() {
            if permit.grant == grant || is_session && permit.info.client == info.client {
                let (from_ms, shortest_ms) = permit.revoked.unwrap_or((now_ms, grace_ms));
                permit.revoked = Some((from_ms, shortest_ms.min(grace_ms)));
            }
        }
    }

    /// Whether a session of a client was being revoked then or shortly before.
    pub fn is_session_revoked(&self, info: ClientInfo, since_ms: u64) -> bool {
        self.state().revoked_sessions.get(&info.client).is_some_and(|(at_ms, _)| *at_ms + 10_000 >= since_ms)
    }

    /// Whether the revocation of a grant was requested.
    pub fn is_revoked(&self, grant: u64) -> bool {
        let state = self.state();
        let mut own = state.expectations.values().filter(|permit| permit.grant == grant);
        state.revoked.contains(&grant) || own.any(|permit| permit.revoked.is_some())
    }

    /// Whether a client may have lost a session that it had since then: because the server was restarted, or because
    /// the client was disconnected for longer than a session must survive, or again before it had recovered.
    pub fn may_be_lost(&self, info: ClientInfo, since_ms: u64) -> bool {
        let now_ms = self.now_ms();
        let state = self.state();
        let since_ms = since_ms.saturating_sub(info.ttl_ms);
        if state.lives.iter().skip(1).any(|(_, started_ms)| *started_ms >= since_ms) {
            return true;
        }
        // The server is down, and the next one will have no sessions.
        if self.scene.disk.is_none() && self.scene.state().server.is_none() {
            return true;
        }
        let cuts = state.cuts[info.machine].iter();
        let cuts: Vec<_> = cuts.filter(|cut| cut.until_ms >= since_ms && cut.from_ms <= now_ms).collect();
        match cuts[..] {
            [] => false,
            [cut] => cut.until_ms - cut.from_ms > survived_ms(info),
            _ => true,
        }
    }

    /// Whether a machine was connected to the server all the time since then.
    pub fn was_undisturbed(&self, info: ClientInfo, since_ms: u64) -> bool {
        self.scene.was_undisturbed(info.machine, since_ms)
    }

    /// A client received a session.
    pub fn session_opened(&self, info: ClientInfo) {
        let now_ms = self.now_ms();
        self.state().sessions.insert(info.client, (info.machine, now_ms));
        self.scene.event(info.client, format_args!("has a session"));
    }

    /// Delays the next attachment that any client sends.
    pub fn delay_an_attachment(&self) {
        self.state().delays_an_attachment = true;
    }

    pub fn is_next_attachment_delayed(&self) -> bool {
        std::mem::take(&mut self.state().delays_an_attachment)
    }

    /// From now on, sessions may be lost, and several may exist at a time.
    pub fn expect_losses(&self) {
        self.state().losses_expected = true;
    }

    /// A client opens a session. It must not have lost another one without a cause.
    pub fn opens_session(&self, info: ClientInfo) {
        self.scene.event(info.client, format_args!("opens a session"));
        let before = self.state().sessions.remove(&info.client);
        let now_ms = self.now_ms();
        if let Some((_, since_ms)) = before
            && !self.state().losses_expected
            && !self.may_be_lost(info, since_ms.max(now_ms.saturating_sub(info.ttl_ms)))
            && !self.is_session_revoked(info, since_ms)
        {
            self.scene.fail(format!("{info:?} has lost a session, and the places of its waiting requests"));
        }
    }

    /// Compares what all applications expect with what the server holds.
    pub fn check(&self) -> Result<(), String> {
        let (now_ms, server, capacities) = {
            let state = self.scene.state();
            let capacity = |shared: &crate::scene::Shared| (shared.name.clone(), u64::from(shared.capacity));
            let capacities: BTreeMap<_, _> = self.scene.shared.iter().map(capacity).collect();
            (state.now_ms, state.server.clone(), capacities)
        };
        let mut state = self.state();
        let State { expectations, lives, .. } = &mut *state;
        let mut sums: BTreeMap<(usize, Key), u64> = BTreeMap::new();
        let mut holders: BTreeMap<(usize, Key, u16), u64> = BTreeMap::new();
        let mut wrong = None;
        expectations.retain(|_, permit| {
            let Some(cell) = permit.cell.upgrade() else { return false };
            let (is_held, is_revoked) = match &*cell.lock().expect("nothing panics while it has a permit") {
                Some(permit) => (permit.is_held(), is_lost_by_revocation(permit)),
                None => return false,
            };
            let life = lives.iter().filter(|(first, _)| *first <= permit.grant).count();
            if let Some(server) = server.as_ref().filter(|_| life == lives.len()) {
                let moment = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
                if server.core().verify(signalbox_model::GrantId(permit.grant), moment).is_err() {
                    permit.freed_ms.get_or_insert(now_ms);
                }
            }
            if let Some((requested_ms, grace_ms)) = permit.revoked.filter(|_| is_revoked) {
                let ClientInfo { machine, ttl_ms, .. } = permit.info;
                // The client counts from its last request.
                let age_ms = (ttl_ms / 4).min(10_000) + TRAVEL_MS_MAX;
                let lost_ms = now_ms + TRAVEL_MS_MAX + (age_ms + grace_ms) / 20;
                if lost_ms < requested_ms + grace_ms
                    && permit.received_ms < requested_ms
                    && self.scene.was_undisturbed(machine, requested_ms.saturating_sub(ttl_ms))
                {
                    wrong.get_or_insert_with(|| {
                        format!(
                            "{:?} lost grant {} before its grace period; revoked: {:?}",
                            permit.info, permit.grant, permit.revoked
                        )
                    });
                }
            }
            if !is_held {
                return true;
            }
            if let Some(freed_ms) = permit.freed_ms {
                // Before its lease ends, only a notice from the server ends a grant, and a notice needs a connection.
                let ClientInfo { machine, ttl_ms, .. } = permit.info;
                let is_excused = permit.revoked.is_some_and(|(requested_ms, grace_ms)| {
                    let scene = self.scene.state();
                    let disturbed_ms = scene.machines[machine].disturbed_ms;
                    if disturbed_ms + ttl_ms < requested_ms {
                        grace_ms < TRAVEL_MS_MAX && now_ms < freed_ms + TRAVEL_MS_MAX
                    } else {
                        now_ms < disturbed_ms.max(freed_ms) + ttl_ms
                    }
                });
                if !is_excused {
                    wrong.get_or_insert_with(|| {
                        format!(
                            "{:?} counts on grant {}, which the server released at {freed_ms} ms; revoked: {:?}",
                            permit.info, permit.grant, permit.revoked
                        )
                    });
                }
                return true;
            }
            for (key, slot) in permit.slots.iter().flat_map(|(key, slots)| slots.iter().map(move |slot| (key, slot))) {
                if let Some(other) = holders.insert((life, key.clone(), *slot), permit.grant) {
                    wrong.get_or_insert_with(|| {
                        format!("slot {slot} of {} belongs to grants {other} and {}", key.1.escape_ascii(), permit.grant)
                    });
                }
            }
            for (key, resources) in &permit.parts {
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
                    "applications hold {resources} of {name} (semaphore: {is_semaphore}), whose capacity is {capacity}"
                ));
            }
        }
        Ok(())
    }
}

pub fn is_lost_by_revocation(permit: &Permit) -> bool {
    pin!(permit.lost()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(Lost::Revoked)
}

/// The longest single disconnect that a session must survive. When it begins, the last renewal is up to a quarter of
/// the time to live old; the rest must suffice to detect the disconnect and to connect again.
pub fn survived_ms(info: ClientInfo) -> u64 {
    info.ttl_ms * 2 / 5
}

//! Which workers serve connections, as a pure function of the loads of the workers.
//!
//! As few workers as can keep up serve all connections: a request costs least, and waits least, if its thread is awake
//! already and no other worker competes for a core. When a worker is saturated, a part of its load moves to a worker with
//! room or, for a trial, to one more worker. The trial fails if the server then answers no more requests than before, as
//! where its clients use the other cores. When the load would fit into fewer workers with room to spare, the others are
//! retired.
//!
//! Invariant: the first [`active`](Placement::active) workers are active, at least one, and loads move only to them.

use super::WorkerIndex;

/// A worker that was awake, or waited for a core, for this share of a tick is saturated.
const SATURATED: f64 = 0.95;

/// Saturated ticks in a row after which load moves: one alone may be a burst.
const SATURATED_TICKS: u32 = 3;

/// A worker that was less busy takes a part of another one's load, before one more worker does.
const ROOM: f64 = 0.6;

/// A worker that was less busy than this takes a part when no further worker may be activated.
const LITTLE_ROOM: f64 = 0.85;

/// Workers are retired if the others stay less busy than this without them, so that the retired ones are not needed
/// again soon.
const CALM: f64 = 0.6;

/// Calm ticks in a row after which workers are retired. Fewer would retire them between two bursts.
const CALM_TICKS: u32 = 20;

/// Ticks after which a transfer shows in measurements: connections have moved, and caches are filled.
const SETTLE_TICKS: u32 = 3;

/// Ticks in which a trial is measured.
const TRIAL_TICKS: u32 = 5;

/// The share of what further workers could add at best that makes a trial a success.
const GAIN: f64 = 0.1;

/// Ticks between a failed trial and the next one. Each further failure doubles them.
const PAUSE_TICKS_MIN: u32 = 50;
const PAUSE_TICKS_MAX: u32 = 600;

/// Ticks in a row without a saturated worker after which failures are forgotten: another load comes.
const FORGET_TICKS: u32 = 100;

/// The load of a worker in a tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// The share of the tick in which the thread ran or waited for a core.
    pub(super) busy: f64,
    /// Requests that it executed, in a second.
    pub(super) requests_per_s: f64,
}

/// What moves from a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Transfer {
    pub(super) to: WorkerIndex,
    pub(super) amount: Amount,
}

/// How much moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Amount {
    /// A share of the worker's load, below 1.
    Share(f64),
    /// All connections.
    All,
}

/// The placement of connections on workers.
#[derive(Debug)]
pub(super) struct Placement {
    active: usize,
    saturation: Saturation,
    /// For each worker, the ticks until it may get load again: until the load that it got last is measured.
    settling: Box<[u32]>,
    growth: Growth,
    calm: Calm,
}

/// Since when workers have been saturated.
#[derive(Debug)]
struct Saturation {
    /// For each worker, the ticks in a row in which it was saturated.
    ticks: Box<[u32]>,
    /// Requests in a second in each of the last ticks, the newest last.
    requests_per_s: [f64; SATURATED_TICKS as usize],
    /// Ticks in a row without a saturated worker.
    ticks_without: u32,
}

/// Whether another worker may be activated.
#[derive(Debug)]
enum Growth {
    Allowed {
        /// The pause if the next trial fails.
        pause_ticks: u32,
    },
    /// Workers were activated, and stay so if that helps.
    Trial {
        active_before: usize,
        requests_per_s_before: f64,
        /// Since the beginning.
        ticks: u32,
        /// The sum over the measured ticks.
        requests_per_s: f64,
        was_saturated: bool,
        pause_ticks: u32,
    },
    /// A trial has failed.
    Paused { ticks_left: u32, pause_ticks: u32 },
}

/// Since when fewer workers would have been enough.
#[derive(Debug)]
struct Calm {
    ticks: u32,
    /// The most workers that were needed in one of these ticks.
    needed: usize,
}

impl Placement {
    /// One active worker of so many.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            active: 1,
            saturation: Saturation {
                ticks: vec![0; workers].into(),
                requests_per_s: [0.0; SATURATED_TICKS as usize],
                ticks_without: 0,
            },
            settling: vec![0; workers].into(),
            growth: Growth::START,
            calm: Calm::START,
        }
    }

    /// How many workers serve connections.
    pub(super) fn active(&self) -> usize {
        self.active
    }

    /// Takes the loads of all workers in the last tick, and decides what moves from each worker in the next tick.
    pub(super) fn observe(&mut self, measured: &[Measured]) -> Vec<Option<Transfer>> {
        self.saturation.observe(measured);
        if self.saturation.ticks_without >= FORGET_TICKS {
            self.growth.forget_failures();
        }
        self.measure_trial(measured);
        let mut transfers = self.relieve(measured);
        if !matches!(self.growth, Growth::Trial { .. })
            && let Some(needed) = self.calm.observe(measured, self.active)
        {
            self.active = needed;
        }
        // What is left on the other workers moves with its next turn.
        let mut targets: Vec<_> = (0..self.active).collect();
        targets.sort_by(|one, other| measured[*one].busy.total_cmp(&measured[*other].busy));
        for (transfer, target) in transfers[self.active..].iter_mut().zip(targets.into_iter().cycle()) {
            *transfer = Some(Transfer { to: WorkerIndex::new(target), amount: Amount::All });
        }
        transfers
    }

    /// Ends a trial when it has been measured, and a pause when it is over.
    fn measure_trial(&mut self, measured: &[Measured]) {
        let is_saturated = self.saturation.ticks.iter().any(|ticks| *ticks > 0);
        match &mut self.growth {
            Growth::Allowed { .. } => {}
            Growth::Paused { ticks_left, pause_ticks } => {
                *ticks_left -= 1;
                if *ticks_left == 0 {
                    self.growth = Growth::Allowed { pause_ticks: *pause_ticks };
                }
            }
            Growth::Trial {
                active_before,
                requests_per_s_before,
                ticks,
                requests_per_s,
                was_saturated,
                pause_ticks,
            } => {
                *ticks += 1;
                if *ticks <= SETTLE_TICKS {
                    return;
                }
                *requests_per_s += sum_of_requests(measured);
                *was_saturated |= is_saturated;
                if *ticks < SETTLE_TICKS + TRIAL_TICKS {
                    return;
                }
                let ratio = *requests_per_s / f64::from(TRIAL_TICKS) / *requests_per_s_before;
                let best = self.active as f64 / *active_before as f64;
                // Without a saturated worker, all that was requested is answered, and more cannot be gained.
                if ratio - 1.0 >= GAIN * (best - 1.0) || (ratio >= 1.0 && !*was_saturated) {
                    self.growth = Growth::START;
                } else {
                    self.active = *active_before;
                    self.growth = Growth::Paused {
                        ticks_left: *pause_ticks,
                        pause_ticks: (*pause_ticks * 2).min(PAUSE_TICKS_MAX),
                    };
                }
            }
        }
    }

    /// Moves load from each worker that is saturated for long to another one.
    fn relieve(&mut self, measured: &[Measured]) -> Vec<Option<Transfer>> {
        let mut transfers = vec![None; measured.len()];
        for ticks in &mut self.settling {
            *ticks = ticks.saturating_sub(1);
        }
        let active_before = self.active;
        let requests_per_s = self.saturation.requests_per_s();
        for from in 0..active_before {
            if self.saturation.ticks[from] < SATURATED_TICKS {
                continue;
            }
            let Some(to) = self.target(measured) else { continue };
            self.settling[to] = SETTLE_TICKS;
            // It takes some ticks until the effect shows.
            self.saturation.ticks[from] = 0;
            let share = (measured[from].busy - measured[to].busy).max(0.0) / 2.0 / measured[from].busy;
            transfers[from] = Some(Transfer { to: WorkerIndex::new(to), amount: Amount::Share(share) });
        }
        if self.active > active_before
            && let Growth::Allowed { pause_ticks } = self.growth
        {
            self.growth = Growth::Trial {
                active_before,
                requests_per_s_before: requests_per_s,
                ticks: 0,
                requests_per_s: 0.0,
                was_saturated: false,
                pause_ticks,
            };
        }
        transfers
    }

    /// The worker that takes a part of a saturated worker's load: one with room, one that was not active, or one with
    /// little room.
    fn target(&mut self, measured: &[Measured]) -> Option<usize> {
        let below = |busy: f64| {
            let fits = |worker: &usize| measured[*worker].busy < busy && self.settling[*worker] == 0;
            let order = |one: &usize, other: &usize| measured[*one].busy.total_cmp(&measured[*other].busy);
            (0..self.active).filter(fits).min_by(order)
        };
        if let Some(worker) = below(ROOM) {
            return Some(worker);
        }
        if matches!(self.growth, Growth::Allowed { .. }) && self.active < measured.len() {
            self.active += 1;
            return Some(self.active - 1);
        }
        below(LITTLE_ROOM)
    }
}

impl Saturation {
    fn observe(&mut self, measured: &[Measured]) {
        let mut is_any = false;
        for (ticks, worker) in self.ticks.iter_mut().zip(measured) {
            let is_saturated = worker.busy >= SATURATED;
            *ticks = if is_saturated { *ticks + 1 } else { 0 };
            is_any |= is_saturated;
        }
        self.ticks_without = if is_any { 0 } else { self.ticks_without.saturating_add(1) };
        self.requests_per_s.rotate_left(1);
        if let Some(newest) = self.requests_per_s.last_mut() {
            *newest = sum_of_requests(measured);
        }
    }

    /// The mean of the last ticks.
    fn requests_per_s(&self) -> f64 {
        self.requests_per_s.iter().sum::<f64>() / self.requests_per_s.len() as f64
    }
}

impl Growth {
    const START: Self = Self::Allowed { pause_ticks: PAUSE_TICKS_MIN };

    fn forget_failures(&mut self) {
        if let Self::Allowed { .. } | Self::Paused { .. } = self {
            *self = Self::START;
        }
    }
}

impl Calm {
    const START: Self = Self { ticks: 0, needed: 1 };

    /// Returns how many workers stay active when fewer are enough for long.
    fn observe(&mut self, measured: &[Measured], active: usize) -> Option<usize> {
        let load: f64 = measured.iter().map(|worker| worker.busy).sum();
        let needed = (load / CALM) as usize + 1;
        if needed >= active {
            *self = Self::START;
            return None;
        }
        self.ticks += 1;
        self.needed = self.needed.max(needed);
        if self.ticks < CALM_TICKS {
            return None;
        }
        let needed = self.needed;
        *self = Self::START;
        Some(needed)
    }
}

fn sum_of_requests(measured: &[Measured]) -> f64 {
    measured.iter().map(|worker| worker.requests_per_s).sum()
}

//! Clients of the extended operations: what they do with their sessions, and when.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use signalbox::core::Namespace;
use signalbox::protocol::{Extended, GrantId, Opaque, RequestId, Revocation, Scope, WaitingRequest};
use tokio::time::sleep;

use super::line::Outcome;
use super::stay::{Guest, Stay};
use super::tenancy::{Errand, NO_GRANT, Part};
use super::verdict::Place;
use crate::random::Random;
use crate::scene::{Phase, Scene, Shared};
use crate::support::caller::on_wire;

/// What a client does next; the weights are the seed's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Acquire,
    AcquireAll,
    /// Many requests, sent without waiting for answers.
    Pipeline,
    Release,
    /// Sends a request again, answered or not.
    Repeat,
    Cancel,
    KeepAlive,
    Verify,
    List,
    Watch,
    Unwatch,
    Revoke,
    /// Reads what comes.
    Hear,
    /// Reads nothing.
    Ignore,
    /// Says nothing for about as long as its lease lasts.
    FallSilent,
    /// Closes the connection, within a frame perhaps.
    Cut,
    /// Says that it has no more to ask.
    HalfClose,
    /// Attaches to its session with another connection while this one lives.
    Attach,
    /// Asks the connection that it left whether that is attached still.
    Outlive,
    /// Closes the connection that it left.
    CutLeft,
    CloseSession,
}

const ACTS: [(Act, u64); 21] = [
    (Act::Acquire, 8),
    (Act::AcquireAll, 3),
    (Act::Pipeline, 1),
    (Act::Release, 6),
    (Act::Repeat, 2),
    (Act::Cancel, 2),
    (Act::KeepAlive, 2),
    (Act::Verify, 2),
    (Act::List, 2),
    (Act::Watch, 1),
    (Act::Unwatch, 1),
    (Act::Revoke, 1),
    (Act::Hear, 6),
    (Act::Ignore, 1),
    (Act::FallSilent, 1),
    (Act::Cut, 2),
    (Act::HalfClose, 1),
    (Act::Attach, 2),
    (Act::Outlive, 2),
    (Act::CutLeft, 1),
    (Act::CloseSession, 1),
];

/// How those with leases behave in a seed.
#[derive(Clone)]
pub struct Leases {
    acts: Vec<(Act, u64)>,
    ttl_ms_max: u64,
    wait_ms_max: u64,
    /// How many use their connection's own session.
    own_percent: u64,
    bytewise_percent: u64,
}

impl Leases {
    pub fn of(random: &mut Random) -> Self {
        let acts = ACTS.map(|(act, weight)| (act, weight * random.between(0, 3)));
        let mut acts = acts.to_vec();
        acts.extend([(Act::Acquire, 4), (Act::Hear, 4), (Act::Release, 2)]);
        Self {
            acts,
            ttl_ms_max: random.between(1000, 8000),
            wait_ms_max: random.weighted(&[(300, 1), (3000, 1), (20_000, 1)]),
            own_percent: random.weighted(&[(0, 2), (30, 2), (100, 1)]),
            bytewise_percent: random.between(0, 30),
        }
    }
}

pub struct Lessee {
    scene: Arc<Scene>,
    number: usize,
    machine: usize,
    random: Random,
    leases: Leases,
}

impl Lessee {
    pub fn new(scene: Arc<Scene>, number: usize, machine: usize, random: Random, leases: Leases) -> Self {
        Self { scene, number, machine, random, leases }
    }

    /// Lives until its machine stops.
    pub async fn run(mut self) {
        loop {
            match self.scene.phase() {
                Phase::Work => {
                    let scene = Arc::clone(&self.scene);
                    let rest = async {
                        while scene.phase() == Phase::Work {
                            sleep(Duration::from_millis(20)).await;
                        }
                    };
                    // In this order always, since chance would differ between two runs of a seed.
                    tokio::select! {
                        biased;
                        () = self.work() => {}
                        () = rest => {}
                    }
                }
                Phase::Ask => self.ask().await,
                Phase::Rest => {}
            }
            let pause_ms = self.random.between(10, 200);
            sleep(Duration::from_millis(pause_ms)).await;
        }
    }

    async fn begin(&mut self, own_percent: u64) -> Option<Stay> {
        let ttl_ms = self.random.between(1000, self.leases.ttl_ms_max) as u32;
        let ttl_ms = if self.random.percent(own_percent) { None } else { Some(ttl_ms) };
        let guest = Guest {
            scene: Arc::clone(&self.scene),
            number: self.number,
            machine: self.machine,
            bytewise_percent: self.leases.bytewise_percent,
        };
        Stay::begin(guest, ttl_ms, &mut self.random).await
    }

    /// One session, from its opening until it is over.
    async fn work(&mut self) {
        let Some(mut stay) = self.begin(self.leases.own_percent).await else { return };
        while !stay.is_over {
            if stay.newest.is_none() {
                // Sometimes too late.
                let pause_ms =
                    self.random.weighted(&[(0, 3), (500, 3), (2 * u64::from(stay.tenancy.ttl_ms), 1)]);
                let pause_ms = self.random.between(0, pause_ms) + 10;
                sleep(Duration::from_millis(pause_ms)).await;
                stay.attach(&mut self.random).await;
                continue;
            }
            let act = self.random.weighted(&self.leases.acts);
            self.act(act, &mut stay).await;
            let hear_ms = self.random.weighted(&[(0, 1), (30, 2), (200, 2), (1000, 1)]);
            let hear_ms = self.random.between(0, hear_ms);
            stay.hear(hear_ms).await;
            if stay.tenancy.unanswered().is_empty()
                && let Some(part) = stay.tenancy.not_stored.take()
            {
                self.list(&mut stay, part).await;
            }
        }
    }

    async fn list(&mut self, stay: &mut Stay, part: Part) {
        let list = Extended::Holders { namespace: on_wire(part.namespace), name: &part.name };
        let is_quiet = stay.tenancy.unanswered().is_empty();
        stay.tell(Place::Newest, &list, Outcome::List { is_quiet }, &mut self.random).await;
    }

    async fn act(&mut self, act: Act, stay: &mut Stay) {
        match act {
            Act::Acquire => self.acquire(stay, (1, 3), false).await,
            Act::AcquireAll => self.acquire(stay, (1, 1), true).await,
            Act::Pipeline => self.acquire(stay, (20, 80), false).await,
            Act::Release => {
                let held: Vec<_> = stay.tenancy.held.iter().copied().collect();
                // Now and then one that it does not hold.
                let grant = if self.random.percent(5) { Some(NO_GRANT) } else { self.pick(&held) };
                if let Some(grant) = grant {
                    stay.ask(vec![Errand::Release { grant }], &mut self.random).await;
                }
            }
            Act::Repeat => {
                let requests: Vec<_> = stay.tenancy.requests.keys().copied().collect();
                if let Some(id) = self.pick(&requests) {
                    stay.repeat(id, &mut self.random).await;
                }
            }
            Act::Cancel => self.cancel(stay).await,
            Act::KeepAlive => {
                stay.tell(Place::Newest, &Extended::KeepAlive, Outcome::KeepAlive, &mut self.random).await;
            }
            Act::Verify => {
                let grants = self.scene.state().claims.grants();
                if let Some(grant) = self.pick(&grants) {
                    let verify = Extended::VerifyGrant { grant: GrantId(grant) };
                    stay.tell(Place::Newest, &verify, Outcome::Verify { grant }, &mut self.random).await;
                }
            }
            Act::List => {
                let part = self.part();
                self.list(stay, part).await;
            }
            Act::Watch => {
                let part = self.part();
                let scope =
                    if self.random.percent(50) { Scope::Prefix(b"") } else { Scope::Name(&part.name) };
                let watch = Extended::Watch { namespace: on_wire(part.namespace), scope };
                let asked = Outcome::Watch { number: 0, is_live: false };
                stay.tell(Place::Newest, &watch, asked, &mut self.random).await;
            }
            Act::Unwatch => {
                let mut awaited = stay.newest.iter().flat_map(|line| &line.awaited);
                let watch = awaited.find(|(_, awaited)| matches!(awaited.asked, Outcome::Watch { .. }));
                if let Some(watch) = watch.map(|(opaque, _)| *opaque) {
                    let unwatch = Extended::Unwatch { watch: Opaque(watch.to_be_bytes()) };
                    stay.tell(Place::Newest, &unwatch, Outcome::Unwatch { watch }, &mut self.random).await;
                }
            }
            Act::Revoke => self.revoke(stay).await,
            Act::Hear => {}
            Act::Ignore => {
                let pause_ms = self.random.between(1, 1500);
                sleep(Duration::from_millis(pause_ms)).await;
            }
            Act::FallSilent => {
                let ttl_ms = u64::from(stay.tenancy.ttl_ms);
                let silence_ms = self.random.between(ttl_ms / 2, ttl_ms * 3 / 2);
                self.scene.event(self.number, format_args!("says nothing for {silence_ms} ms"));
                stay.hear(silence_ms).await;
            }
            Act::Cut => {
                if self.random.percent(50) {
                    let mut bytes = BytesMut::new();
                    let verify = Extended::VerifyGrant { grant: GrantId(1) };
                    verify.compose(Opaque(*b"part"), &mut bytes);
                    bytes.truncate(self.random.between(1, bytes.len() as u64 - 1) as usize);
                    stay.send(Place::Newest, &bytes, &mut self.random).await;
                }
                stay.cut(Place::Newest);
            }
            Act::HalfClose => stay.half_close().await,
            Act::Attach => {
                // Now and then before the connection that it has is attached; then either may be in the end.
                if stay.newest.as_ref().is_some_and(|line| line.is_attached) || self.random.percent(10) {
                    stay.attach(&mut self.random).await;
                }
            }
            Act::Outlive => {
                // Only where the answer to the newer attachment has come: then there can be no doubt.
                let is_attached = stay.newest.as_ref().is_some_and(|line| line.is_attached);
                if is_attached && !stay.tenancy.has_rival {
                    stay.tell(Place::Left, &Extended::KeepAlive, Outcome::Outlived, &mut self.random).await;
                }
            }
            Act::CutLeft => stay.cut(Place::Left),
            Act::CloseSession if stay.tenancy.is_leased() => {
                stay.tenancy.close();
                stay.tell(Place::Newest, &Extended::CloseSession, Outcome::Close, &mut self.random).await;
                stay.hear(1000).await;
                stay.is_over = true;
            }
            Act::CloseSession => {}
        }
    }

    fn pick(&mut self, things: &[u64]) -> Option<u64> {
        let last = (things.len() as u64).checked_sub(1)?;
        Some(things[self.random.between(0, last) as usize])
    }

    fn part(&mut self) -> Part {
        let place = self.random.between(0, self.scene.shared.len() as u64 - 1) as usize;
        let Shared { name, capacity } = &self.scene.shared[place];
        let (name, maximum) = (name.clone(), *capacity);
        let namespace = Namespace::ALL[self.random.between(0, 1) as usize];
        Part { namespace, name, resources: self.random.between_u32(1, maximum), maximum }
    }

    /// Asks for grants.
    async fn acquire(&mut self, stay: &mut Stay, (low, high): (u64, u64), is_all: bool) {
        let mut errands = Vec::new();
        for _ in 0..self.random.between(low, high) {
            let mut parts = vec![self.part()];
            for _ in 0..if is_all { self.random.between(0, 2) } else { 0 } {
                let part = self.part();
                if parts.iter().all(|other| (other.namespace, &other.name) != (part.namespace, &part.name)) {
                    parts.push(part);
                }
            }
            let waits = self.random.percent(65);
            let wait_ms = if waits { self.random.between(1, self.leases.wait_ms_max) as u32 } else { 0 };
            let queue_max = if self.random.percent(20) { Some(self.random.between_u32(0, 3)) } else { None };
            errands.push(Errand::Acquire { parts, is_all, wait_ms, queue_max });
            if low > 1 && self.random.percent(30) {
                errands.push(Errand::Release { grant: NO_GRANT });
            }
        }
        stay.ask(errands, &mut self.random).await;
    }

    async fn cancel(&mut self, stay: &mut Stay) {
        let unanswered = stay.tenancy.unanswered();
        let Some(id) = unanswered.first().copied() else { return };
        let Some(request) = stay.tenancy.requests.get_mut(&id) else { return };
        request.is_canceled = true;
        let (local, opaque) = request.newest;
        let is_here = stay.newest.as_ref().is_some_and(|line| line.local == local);
        let waiting = if is_here && self.random.percent(50) {
            WaitingRequest::Opaque(Opaque(opaque.to_be_bytes()))
        } else {
            WaitingRequest::Id(RequestId(id))
        };
        stay.tell(Place::Newest, &Extended::Cancel(waiting), Outcome::Cancel { id }, &mut self.random).await;
    }

    async fn revoke(&mut self, stay: &mut Stay) {
        let known = |claims: &mut crate::claims::Claims, _| (claims.grants(), claims.sessions());
        let Some((grants, sessions)) = self.scene.with_claims(stay.tenancy.life, known) else { return };
        let what = if self.random.percent(60) {
            self.pick(&grants).map(|grant| Revocation::Grant(GrantId(grant)))
        } else {
            self.pick(&sessions).map(Revocation::Session)
        };
        if let Some(what) = what {
            let grace_ms = self.random.weighted(&[(0, 1), (50, 1), (700, 1)]);
            self.scene.event(self.number, format_args!("revokes {what:?}"));
            stay.ask(vec![Errand::Revoke { what, grace_ms }], &mut self.random).await;
        }
    }

    /// Asks for one of a few places until there is one; leaves it soon.
    async fn ask(&mut self) {
        if self.scene.state().satisfied.contains(&self.number) {
            return;
        }
        let Some(mut stay) = self.begin(0).await else { return };
        let name = format!("asked {}", self.number % 5).into_bytes();
        let namespace = Namespace::ALL[self.number % 2];
        let parts = vec![Part { namespace, name, resources: 1, maximum: 2 }];
        let acquire = Errand::Acquire { parts, is_all: false, wait_ms: 60_000, queue_max: None };
        stay.ask(vec![acquire], &mut self.random).await;
        while !stay.is_over && stay.newest.is_some() {
            stay.hear(50).await;
            if let Some(grant) = stay.tenancy.held.first().copied() {
                stay.ask(vec![Errand::Release { grant }], &mut self.random).await;
                stay.hear(300).await;
                self.scene.state().satisfied.insert(self.number);
                return;
            }
            if self.random.percent(20) {
                stay.tell(Place::Newest, &Extended::KeepAlive, Outcome::KeepAlive, &mut self.random).await;
            }
        }
    }
}

//! Applications that use the product's own client as intended, and drop its futures at any point.

use std::sync::Arc;
use std::time::Duration;

use signalbox_client::{Claim, Client, ErrorKind, Flight, GrantId, Lost, Permit, Revocation, Status};
use signalbox_model::{Milliseconds, Namespace, Operation, SessionId};
use tokio::time::sleep;

use super::clock::SkewedClock;
use super::drops::{DropPoint, run_until_dropped};
use super::expectations::{ClientInfo, Expectations};
use super::wire::Simulated;
use crate::flights::DoneRelease;
use crate::network::SERVER;
use crate::random::Random;
use crate::scene::{Key, Phase, Scene, Shared, key};

/// How the clients of a seed behave.
#[derive(Clone, Debug)]
pub struct Workload {
    pub drops_percent: u64,
    pub revokes_percent: u64,
    pub hold_ms_max: u64,
    pub unreachable_ms: u64,
}

impl Workload {
    pub fn of(random: &mut Random) -> Self {
        Self {
            drops_percent: random.weighted(&[(0, 1), (20, 2), (60, 1)]),
            revokes_percent: random.weighted(&[(0, 2), (5, 1), (20, 1)]),
            hold_ms_max: random.weighted(&[(300, 1), (3000, 2), (15_000, 1)]),
            unreachable_ms: random.between(1000, 15_000),
        }
    }
}

/// What is requested of a name. The request for a declared semaphore states no capacity, and may be for a slot.
struct Wanted {
    key: Key,
    namespace: Namespace,
    resources: u32,
    capacity: u32,
    is_declared: bool,
    slot: Option<u16>,
}

/// A client and its place.
#[derive(Clone)]
pub struct Application {
    pub expectations: Arc<Expectations>,
    pub info: ClientInfo,
    pub workload: Workload,
}

impl Application {
    /// The client of an application that was just started.
    pub fn client(&self, random: &mut Random, fast_ppm: i64) -> Client {
        let Self { expectations, info, workload } = self;
        Client::builder(SERVER.parse().expect("a host's name is an address"))
            .label(format!("client {}", info.client))
            .ttl(Duration::from_millis(info.ttl_ms))
            .unreachable_after(Duration::from_millis(workload.unreachable_ms))
            .transport(Simulated { expectations: Arc::clone(expectations), info: *info })
            .clock(SkewedClock::new(Arc::clone(&expectations.scene), fast_ppm))
            .seed(random.next())
            .in_this_runtime()
            .build()
            .expect("building does not contact a server")
    }

    pub fn event(&self, what: std::fmt::Arguments<'_>) {
        self.expectations.scene.event(self.info.client, what);
    }

    pub fn fail(&self, what: std::fmt::Arguments<'_>) {
        self.expectations.scene.fail(format!("{:?}: {what}", self.info));
    }

    pub fn now_ms(&self) -> u64 {
        self.expectations.scene.state().now_ms
    }

    /// One task of the application: it acquires, holds and releases until the work phase ends.
    pub async fn run(self, client: Client, mut random: Random) {
        while self.expectations.scene.phase() == Phase::Work {
            sleep(Duration::from_millis(random.between(0, 1500))).await;
            if random.percent(self.workload.revokes_percent) {
                self.revoke(&client, &mut random).await;
            } else {
                self.use_resources(&client, &mut random).await;
            }
        }
    }

    /// Requests all resources of a name, which must be granted soon when there are no faults.
    pub async fn ask(self, client: Client, mut random: Random) {
        let shared = &self.expectations.scene.shared;
        let shared = &shared[random.between(0, shared.len() as u64 - 1) as usize];
        let acquiring = client.semaphore(&shared.name).capacity(shared.capacity).resources(shared.capacity);
        match acquiring.acquire().await {
            Ok(permit) => match permit.release().await {
                Ok(()) => _ = self.expectations.scene.state().satisfied.insert(self.info.client),
                Err(error) => self.fail(format_args!("cannot release what it requested: {error}")),
            },
            Err(error) => self.fail(format_args!("does not get what it requests: {error}")),
        }
    }

    fn choose(&self, random: &mut Random) -> Vec<Wanted> {
        let Scene { shared, disk, .. } = &*self.expectations.scene;
        let mut names: Vec<_> =
            shared.iter().flat_map(|shared| Namespace::ALL.map(|namespace| (shared, namespace))).collect();
        let count = random.weighted(&[(1, 3), (2, 1), (3, 1)]).min(names.len());
        let mut chosen = Vec::new();
        for _ in 0..count {
            let (Shared { name, capacity }, namespace) =
                names.swap_remove(random.between(0, names.len() as u64 - 1) as usize);
            // With a disk, all semaphores are declared, with numbered slots.
            let is_declared = namespace == Namespace::Semaphores && disk.is_some() && random.percent(50);
            let slot =
                (is_declared && random.percent(40)).then(|| random.between_u32(0, capacity - 1) as u16);
            let resources = if slot.is_some() { 1 } else { random.between_u32(1, *capacity) };
            chosen.push(Wanted {
                key: key(namespace, name),
                namespace,
                resources,
                capacity: *capacity,
                is_declared,
                slot,
            });
        }
        chosen
    }

    pub fn when_to_drop(&self, random: &mut Random) -> DropPoint {
        if !random.percent(self.workload.drops_percent) {
            return DropPoint::Never;
        }
        if random.percent(50) {
            DropPoint::AfterPolls(random.between_u32(0, 4))
        } else {
            DropPoint::After(Duration::from_millis(random.between(0, 4000)))
        }
    }

    async fn use_resources(&self, client: &Client, random: &mut Random) {
        let chosen = self.choose(random);
        let claims: Vec<_> = chosen.iter().map(Wanted::claim).collect();
        let waits = random.percent(75);
        let timeout_ms = random.percent(30).then(|| random.between(1, 8000));
        let queue_max = random.percent(20).then(|| random.between_u32(1, 3));
        let drop_point = self.when_to_drop(random);
        let can_be_shared = |wanted: &Wanted| wanted.capacity == 1 && !wanted.is_declared;
        let is_shared = matches!(&chosen[..], [wanted] if can_be_shared(wanted)) && random.percent(60);
        let requested_ms = self.now_ms();
        let names = chosen.iter().map(|Wanted { key, namespace, resources, capacity, slot, .. }| {
            format!("{resources}/{capacity} (slot {slot:?}) of {namespace:?} {}, ", key.1.escape_ascii())
        });
        self.event(format_args!(
            "requests {}shared {is_shared}, waits {waits}, {timeout_ms:?}, {queue_max:?}, {drop_point:?}",
            names.collect::<String>()
        ));
        let acquiring = async {
            // A single name has its own method.
            macro_rules! acquiring {
                ($acquiring:expr) => {{
                    let mut acquiring = $acquiring;
                    if let Some(timeout_ms) = timeout_ms {
                        acquiring = acquiring.timeout(Duration::from_millis(timeout_ms));
                    }
                    if let Some(queue_max) = queue_max {
                        acquiring = acquiring.queue_max(queue_max);
                    }
                    match (is_shared, waits) {
                        (true, true) => acquiring.shared().await,
                        (true, false) => acquiring.try_shared().await,
                        (false, true) => acquiring.acquire().await.map(Flight::Held),
                        (false, false) => acquiring.try_acquire().await.map(Flight::Held),
                    }
                }};
            }
            let [Wanted { key: (_, name), namespace, resources, capacity, is_declared, slot }] = &chosen[..]
            else {
                return acquiring!(client.acquire_all(claims));
            };
            let resources = *resources;
            match (namespace, is_declared) {
                (_, true) => {
                    let acquiring = client.semaphore(name).declared().resources(resources);
                    acquiring!(match slot {
                        Some(slot) => acquiring.slot(*slot),
                        None => acquiring,
                    })
                }
                (Namespace::Counters, false) => {
                    acquiring!(client.counter(name).maximum(*capacity).resources(resources))
                }
                (Namespace::Semaphores, false) => {
                    acquiring!(client.semaphore(name).capacity(*capacity).resources(resources))
                }
            }
        };
        match run_until_dropped(drop_point, acquiring).await {
            None => self.event(format_args!("drops it")),
            Some(Ok(Flight::Done)) => {
                self.event(format_args!("is told that it is done"));
                let name = &chosen[0].key;
                let may_be_done = self.expectations.scene.state().flights.may_be_done(name, requested_ms);
                if !is_shared || !waits || !may_be_done {
                    self.fail(format_args!(
                        "requested at {requested_ms} ms and was answered Done, but no release with done explains that"
                    ));
                }
            }
            Some(Ok(Flight::Held(permit))) => {
                if !chosen.iter().map(|wanted| wanted.capacity).eq(permit.capacities().iter().copied()) {
                    self.fail(format_args!("receives the capacities {:?}", permit.capacities()));
                }
                let has_slot = |(index, wanted): (usize, &Wanted)| {
                    wanted.slot.is_none_or(|slot| permit.slots_of(index) == [slot])
                };
                if !chosen.iter().enumerate().all(has_slot) {
                    self.fail(format_args!("does not receive the slot that it requested: {permit:?}"));
                }
                let flight = is_shared.then(|| chosen[0].key.clone());
                let parts = chosen.into_iter().map(|wanted| (wanted.key, u64::from(wanted.resources)));
                self.hold(permit, parts.collect(), flight, requested_ms, random).await;
            }
            Some(Err(error)) => {
                self.event(format_args!("is refused: {error}"));
                let is_right = match error.kind() {
                    ErrorKind::Status(Status::TimedOut) => waits && timeout_ms.is_some(),
                    ErrorKind::Status(Status::ResourceNotAvailable) => !waits || timeout_ms.is_some(),
                    ErrorKind::Status(Status::QueueFull) => queue_max.is_some(),
                    ErrorKind::Status(Status::Revoked) => {
                        self.expectations.is_session_revoked(self.info, requested_ms)
                    }
                    ErrorKind::Unreachable { .. } => {
                        !self.expectations.was_undisturbed(self.info, requested_ms.saturating_sub(3000))
                    }
                    _ => false,
                };
                if !is_right {
                    self.fail(format_args!("requested at {requested_ms} ms and was refused: {error:?}"));
                }
            }
        }
    }

    /// Holds a permit for a while. `flight` is its name if it is of a single flight.
    async fn hold(
        &self,
        permit: Permit,
        parts: Vec<(Key, u64)>,
        flight: Option<Key>,
        requested_ms: u64,
        random: &mut Random,
    ) {
        let id = permit.id();
        let left = permit.time_left();
        self.event(format_args!("has grant {} for {left:?}", id.0));
        if left > Some(Duration::from_millis(self.info.ttl_ms)) {
            self.fail(format_args!("has a lease of {left:?}"));
        }
        let cell = self.expectations.hold(self.info, parts, permit);
        let hold_ms = random.between(0, self.workload.hold_ms_max);
        // The permit is released when the work phase ends.
        for _ in 0..hold_ms / 100 {
            sleep(Duration::from_millis(100)).await;
            if self.expectations.scene.phase() != Phase::Work {
                break;
            }
        }
        sleep(Duration::from_millis(hold_ms % 100)).await;
        let is_revoked = self.expectations.is_revoked(id.0)
            || self.expectations.is_session_revoked(self.info, requested_ms);
        let permit = cell.lock().expect("nothing panics with a permit").take();
        drop(cell);
        let Some(permit) = permit else { return };
        let may_be_lost = is_revoked || self.expectations.may_be_lost(self.info, requested_ms);
        if !permit.is_held() && !may_be_lost {
            self.fail(format_args!("has lost grant {} without a cause", id.0));
        }
        // Or it was revoked in the meantime.
        let is_taken = || is_revoked || self.expectations.is_revoked(id.0);
        match random.between(0, 3) {
            0 => {
                self.event(format_args!("drops grant {}", id.0));
                drop(permit);
            }
            1 if !permit.is_held() => {
                // The permit reports its loss without a request.
                let lost = permit.lost().await;
                self.event(format_args!("has lost grant {}: {lost:?}", id.0));
                self.check_loss(id, lost, is_taken(), requested_ms);
            }
            _ => {
                let asked_ms = self.now_ms();
                let (drop_point, is_done) = (self.when_to_drop(random), random.percent(70));
                let released = match flight.filter(|_| is_done) {
                    Some(name) => {
                        let release =
                            DoneRelease::begin(&self.expectations.scene, id.0, name, self.info.ttl_ms);
                        let released = permit.release_done().await;
                        if released.is_ok() {
                            release.answered();
                        }
                        Some(released)
                    }
                    None => run_until_dropped(drop_point, permit.release()).await,
                };
                self.event(format_args!("releases grant {}: {released:?}", id.0));
                match released {
                    None | Some(Ok(())) => {}
                    Some(Err(error)) => match error.kind() {
                        ErrorKind::Lost(lost) => self.check_loss(id, *lost, is_taken(), requested_ms),
                        ErrorKind::Unanswered { .. }
                            if !self
                                .expectations
                                .was_undisturbed(self.info, asked_ms.saturating_sub(3000)) => {}
                        _ => self.fail(format_args!("cannot release grant {}: {error:?}", id.0)),
                    },
                }
            }
        }
    }

    fn check_loss(&self, id: GrantId, lost: Lost, was_revoked: bool, requested_ms: u64) {
        let is_right = match lost {
            Lost::Revoked => was_revoked || self.expectations.is_session_revoked(self.info, requested_ms),
            Lost::Expired | Lost::Unreachable => {
                self.expectations.may_be_lost(self.info, requested_ms)
                    || self.expectations.is_session_revoked(self.info, requested_ms)
            }
            _ => false,
        };
        if !is_right {
            self.fail(format_args!("has lost grant {}: {lost:?}", id.0));
        }
    }

    /// Revokes a grant or a session of any client.
    async fn revoke(&self, client: &Client, random: &mut Random) {
        let grants = self.expectations.grants();
        if grants.is_empty() {
            return;
        }
        let (grant, holder) = grants[random.between(0, grants.len() as u64 - 1) as usize];
        let is_session = random.percent(30);
        let grace_ms = random.weighted(&[(0, 1), (500, 1), (1500, 1), (4000, 1)]);
        let revoking = async {
            let direct = client.direct().await?;
            let session = direct.verify(GrantId(grant)).await?.session;
            let what = if is_session {
                Revocation::Session(SessionId::new(session))
            } else {
                Revocation::Grant(GrantId(grant))
            };
            self.expectations.revoke((grant, holder), is_session, grace_ms);
            let grace = Milliseconds(u32::try_from(grace_ms).unwrap());
            direct.change(&Operation::Revoke { what, grace }).await
        };
        let drop_point = DropPoint::After(Duration::from_secs(5));
        let revoked = run_until_dropped(drop_point, revoking).await;
        self.event(format_args!(
            "revokes {grant} of client {} (session: {is_session}) in {grace_ms} ms: {revoked:?}",
            holder.client
        ));
    }
}

impl Wanted {
    fn claim(&self) -> Claim {
        let name = &self.key.1;
        let claim = match (self.namespace, self.is_declared) {
            (_, true) => Claim::declared(name),
            (Namespace::Counters, false) => Claim::counter(name, self.capacity),
            (Namespace::Semaphores, false) => Claim::semaphore(name, self.capacity),
        };
        let claim = claim.resources(self.resources);
        match self.slot {
            Some(slot) => claim.slot(slot),
            None => claim,
        }
    }
}

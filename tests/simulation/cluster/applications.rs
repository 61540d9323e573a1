//! Programs that use the product's own client with the addresses of all nodes, and the administrator that declares what
//! they use.

use std::sync::Arc;
use std::time::Duration;

use signalbox_client::{
    Address, Client, Declaration, Error, ErrorKind, Flight, GrantId, IfExists, Permit, Revocation, Status,
};
use tokio::time::{sleep, timeout};

use super::beliefs::{Resource, is_believed};
use super::queues::Asked;
use super::revocations::TTL_MS_MAX;
use super::transport::Simulated;
use super::world::{NODES, World, node_name};
use crate::client::clock::SkewedClock;
use crate::client::drops::{DropPoint, run_until_dropped};
use crate::flights::DoneRelease;
use crate::random::Random;
use crate::scene::{Key, Phase, key};
use signalbox_model::{Milliseconds, Namespace, Operation};

/// How long after a disturbance a client may take to find the node that serves.
const FIND_MS_MAX: u64 = 20_000;

/// How long an administrator waits for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// How the clients of a seed behave.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub drops_percent: u64,
    pub waits_percent: u64,
    pub revokes_percent: u64,
    pub hold_ms_max: u64,
    pub pause_ms_max: u64,
    pub unreachable_ms: u64,
}

impl Workload {
    pub fn of(random: &mut Random) -> Self {
        Self {
            drops_percent: random.weighted(&[(0, 1), (20, 2)]),
            waits_percent: random.between(50, 100),
            revokes_percent: random.weighted(&[(0, 1), (10, 1), (40, 1)]),
            hold_ms_max: random.weighted(&[(300, 1), (3000, 2), (12_000, 1)]),
            pause_ms_max: random.weighted(&[(50, 1), (1500, 2)]),
            unreachable_ms: random.between(3000, 60_000),
        }
    }
}

/// A client.
#[derive(Clone)]
pub struct Application {
    pub world: Arc<World>,
    pub client: usize,
    pub workload: Workload,
}

impl Application {
    /// The client of a program that was just started. Its clock is up to 1 % faster or slower than true time.
    pub fn client(&self, random: &mut Random) -> Client {
        let fast_ppm = random.between(0, 20_000) as i64 - 10_000;
        let address = |node| node_name(node).parse::<Address>().expect("a host's name is an address");
        let builder = Client::builder(address(0)).address(address(1)).address(address(NODES - 1));
        builder
            .label(format!("client {}", self.client))
            .ttl(Duration::from_millis(random.between(10_000, TTL_MS_MAX)))
            .unreachable_after(Duration::from_millis(self.workload.unreachable_ms))
            .transport(Simulated(Arc::clone(&self.world)))
            .clock(SkewedClock::new(Arc::clone(&self.world.scene), fast_ppm))
            .seed(random.next())
            .in_this_runtime()
            .build()
            .expect("building does not contact a server")
    }

    fn event(&self, what: std::fmt::Arguments<'_>) {
        self.world.scene.event(format_args!("client {}", self.client), what);
    }

    fn fail(&self, what: std::fmt::Arguments<'_>) {
        self.world.scene.fail(format!("client {}: {what}", self.client));
    }

    fn now_ms(&self) -> u64 {
        self.world.scene.state().now_ms
    }

    fn is_working(&self) -> bool {
        self.world.scene.phase() == Phase::Work
    }

    /// Declares all resources, until that is acknowledged.
    pub async fn declare(self, client: Client) {
        let mut declarations = Vec::new();
        for Resource { name, capacity } in &self.world.beliefs.resources {
            declarations.push(Declaration { name, capacity: *capacity, numbered: true, label: b"" });
        }
        let declare = Operation::Declare { if_exists: IfExists::Keep, declarations };
        while !self.world.beliefs.is_declared() {
            let declaring = async { client.direct().await?.change(&declare).await };
            match timeout(ANSWER_MAX, declaring).await {
                Ok(Ok(_)) => {
                    self.event(format_args!("has declared all resources"));
                    self.world.beliefs.declared();
                }
                Ok(Err(error)) => self.event(format_args!("cannot declare: {error}")),
                Err(_) => self.event(format_args!("has no answer to a declaration")),
            }
            sleep(Duration::from_millis(300)).await;
        }
    }

    /// One task of the program: it acquires, holds and releases until the work phase ends.
    pub async fn run(self, client: Client, task: u64, mut random: Random) {
        let task = format!("client {} task {task}", self.client);
        while !self.world.beliefs.is_declared() {
            sleep(Duration::from_millis(100)).await;
        }
        while self.is_working() {
            sleep(Duration::from_millis(random.between(0, self.workload.pause_ms_max))).await;
            if random.percent(self.workload.revokes_percent) {
                self.revoke(&client, &mut random).await;
            } else {
                self.use_resource(&client, &task, &mut random).await;
            }
        }
    }

    /// Revokes a grant of any client.
    async fn revoke(&self, client: &Client, random: &mut Random) {
        let grants = self.world.beliefs.grants();
        if grants.is_empty() {
            return;
        }
        let grant = grants[random.between(0, grants.len() as u64 - 1) as usize];
        let grace_ms = random.weighted(&[(0, 1), (1500, 1), (4000, 2), (10_000, 2)]);
        self.event(format_args!("revokes grant {grant} in {grace_ms} ms"));
        self.world.revocations.request(grant, grace_ms);
        let grace = Milliseconds(u32::try_from(grace_ms).expect("it is small"));
        let revoke = Operation::Revoke { what: Revocation::Grant(GrantId(grant)), grace };
        let revoking = async { client.direct().await?.change(&revoke).await };
        match timeout(ANSWER_MAX, revoking).await {
            Ok(Ok(_)) => {
                self.event(format_args!("has revoked grant {grant}"));
                self.world.revocations.acknowledge(grant, &self.world.etcd);
            }
            Ok(Err(error)) => self.event(format_args!("cannot revoke: {error}")),
            Err(_) => self.event(format_args!("has no answer to a revocation")),
        }
    }

    async fn use_resource(&self, client: &Client, task: &str, random: &mut Random) {
        let resources = &self.world.beliefs.resources;
        let index = random.between(0, resources.len() as u64 - 1) as usize;
        let resource = &resources[index];
        let amount = if random.percent(80) { 1 } else { random.between_u32(1, resource.capacity) };
        let waits = random.percent(self.workload.waits_percent);
        let timeout_ms = random.percent(30).then(|| random.between(1, 15_000));
        let drop_point = match random.percent(self.workload.drops_percent) {
            true => DropPoint::After(Duration::from_millis(random.between(0, 6000))),
            false => DropPoint::Never,
        };
        let is_shared = resource.capacity == 1 && random.percent(60);
        let asked_ms = self.now_ms();
        self.event(format_args!(
            "asks for {amount} of {index}, shared {is_shared}, waits {waits}, {timeout_ms:?}, {drop_point:?}"
        ));
        let acquire = match is_shared {
            true => client.limit(&resource.name),
            false => client.semaphore(&resource.name).declared().resources(amount),
        };
        let mut acquire = acquire.label(task);
        if let Some(timeout_ms) = timeout_ms {
            acquire = acquire.timeout(Duration::from_millis(timeout_ms));
        }
        let acquiring = async {
            match (is_shared, waits) {
                (true, true) => acquire.shared().await,
                (true, false) => acquire.try_shared().await,
                (false, true) => acquire.acquire().await.map(Flight::Held),
                (false, false) => acquire.try_acquire().await.map(Flight::Held),
            }
        };
        let asked = Asked::new(&self.world, task);
        let acquired = run_until_dropped(drop_point, acquiring).await;
        let order = acquired
            .as_ref()
            .map_or(Ok(()), |acquired| asked.answered(matches!(acquired, Ok(Flight::Held(_)))));
        if let Err(what) = order {
            self.fail(format_args!("{what}"));
        }
        match acquired {
            None => self.event(format_args!("drops it")),
            Some(Ok(Flight::Done)) => {
                self.event(format_args!("is told that it is done"));
                let name = self.key(index);
                let may_be_done = self.world.scene.state().flights.may_be_done(&name, asked_ms);
                if !is_shared || !waits || !may_be_done {
                    self.fail(format_args!("asked at {asked_ms} ms and was answered Done without cause"));
                }
            }
            Some(Ok(Flight::Held(permit))) => {
                if permit.slots().len() != amount as usize {
                    self.fail(format_args!("asked for {amount} and has {:?}", permit.slots()));
                }
                self.hold(permit, index, is_shared, asked_ms, random).await;
            }
            Some(Err(error)) => {
                self.event(format_args!("is refused: {error}"));
                let is_right = match error.kind() {
                    ErrorKind::Status(Status::TimedOut) => waits && timeout_ms.is_some(),
                    ErrorKind::Status(Status::ResourceNotAvailable) => !waits || timeout_ms.is_some(),
                    ErrorKind::Status(Status::NotStored) => self.world.etcd.has_refused_since(asked_ms),
                    ErrorKind::Unreachable { .. } => self.may_be_unreachable(self.workload.unreachable_ms),
                    _ => false,
                };
                if !is_right {
                    self.fail(format_args!("asked at {asked_ms} ms and was refused: {error:?}"));
                }
            }
        }
    }

    /// Whether a disturbance explains that a client did not reach a serving node for this long.
    fn may_be_unreachable(&self, for_ms: u64) -> bool {
        self.now_ms() < self.world.disturbed_ms() + for_ms + FIND_MS_MAX
    }

    fn key(&self, resource: usize) -> Key {
        key(Namespace::Semaphores, &self.world.beliefs.resources[resource].name)
    }

    async fn hold(
        &self,
        permit: Permit,
        resource: usize,
        is_shared: bool,
        asked_ms: u64,
        random: &mut Random,
    ) {
        let grant = permit.id().0;
        self.event(format_args!("has grant {grant}, slots {:?}", permit.slots()));
        let cell = match self.world.beliefs.hold(self.client, resource, permit, asked_ms) {
            Ok(cell) => cell,
            Err(what) => return self.fail(format_args!("{what}")),
        };
        let hold_ms = random.between(0, self.workload.hold_ms_max);
        // The permit is released when the work phase ends.
        for _ in 0..hold_ms / 100 {
            sleep(Duration::from_millis(100)).await;
            if !self.is_working() {
                break;
            }
        }
        // Some programs do not stop before they must.
        while self.world.revocations.is_requested(grant) && self.is_working() && is_believed(&cell) {
            sleep(Duration::from_millis(100)).await;
        }
        let permit = cell.lock().expect("nothing panics with a permit").take();
        let Some(permit) = permit else { return };
        if random.percent(25) {
            self.event(format_args!("drops grant {grant}"));
            return;
        }
        let flight = (is_shared && random.percent(70)).then(|| self.key(resource));
        self.release(permit, flight).await;
    }

    /// Releases a permit, with `done` if it is of this flight.
    async fn release(&self, permit: Permit, flight: Option<Key>) {
        let grant = permit.id().0;
        let released = match flight {
            Some(name) => {
                let release = DoneRelease::begin(&self.world.scene, grant, name, TTL_MS_MAX);
                let released = permit.release_done().await;
                if released.is_ok() {
                    release.answered();
                }
                released
            }
            None => permit.release().await,
        };
        self.event(format_args!("releases grant {grant}: {released:?}"));
        match released {
            Ok(()) => {
                if let Err(what) = self.world.beliefs.released(grant, &self.world.etcd, self.now_ms()) {
                    self.fail(format_args!("{what}"));
                }
            }
            Err(error) => {
                let is_right = match error.kind() {
                    ErrorKind::Lost(_) => true,
                    ErrorKind::Unanswered { within } => self.may_be_unreachable(within.as_millis() as u64),
                    _ => false,
                };
                if !is_right {
                    self.fail(format_args!("cannot release grant {grant}: {error:?}"));
                }
            }
        }
    }

    /// Requests all of a resource, which must be granted soon when there are no faults.
    pub async fn ask(&self, client: &Client, random: &mut Random) {
        let resources = &self.world.beliefs.resources;
        let resource = &resources[random.between(0, resources.len() as u64 - 1) as usize];
        let acquiring = client.semaphore(&resource.name).declared().resources(resource.capacity);
        let asked: Result<(), Error> = async { acquiring.acquire().await?.release().await }.await;
        match asked {
            Ok(()) => _ = self.world.scene.state().satisfied.insert(self.client),
            Err(error) => self.fail(format_args!("does not get what it asks for: {error}")),
        }
    }
}

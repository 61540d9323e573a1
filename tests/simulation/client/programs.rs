//! Programs that use the product's own client as it is meant to be used, and drop its futures wherever they like.

use std::sync::Arc;
use std::time::Duration;

use signalbox::client::{Claim, Client, Error, GrantId, Lost, Permit, Revocation, Status};
use signalbox::core::Namespace;
use tokio::time::sleep;

use super::beliefs::{Beliefs, Who};
use super::clock::SkewedClock;
use super::drops::{Patience, for_as_long_as};
use super::wire::Simulated;
use crate::network::SERVER;
use crate::random::Random;
use crate::scene::{Key, Phase, Scene, key};

/// How clients of a seed are.
#[derive(Clone, Debug)]
pub struct Habits {
    pub drops_percent: u64,
    pub revokes_percent: u64,
    pub administers_percent: u64,
    pub clerks_percent: u64,
    pub hold_ms_max: u64,
    pub unreachable_ms: u64,
}

impl Habits {
    pub fn of(random: &mut Random) -> Self {
        Self {
            drops_percent: random.weighted(&[(0, 1), (20, 2), (60, 1)]),
            revokes_percent: random.weighted(&[(0, 2), (5, 1), (20, 1)]),
            administers_percent: random.weighted(&[(0, 1), (10, 2), (40, 1)]),
            clerks_percent: random.weighted(&[(0, 1), (50, 1)]),
            hold_ms_max: random.weighted(&[(300, 1), (3000, 2), (15_000, 1)]),
            unreachable_ms: random.between(1000, 15_000),
        }
    }
}

/// What is asked for of a name; no maximum: as it is declared.
struct Wanted {
    key: Key,
    namespace: Namespace,
    resources: u32,
    maximum: Option<u32>,
}

/// A client and where it is.
#[derive(Clone)]
pub struct Program {
    pub beliefs: Arc<Beliefs>,
    pub who: Who,
    pub habits: Habits,
}

impl Program {
    /// The client of a program that was started now.
    pub fn client(&self, random: &mut Random, fast_ppm: i64) -> Client {
        let Self { beliefs, who, habits } = self;
        Client::builder(SERVER.parse().expect("a host's name is an address"))
            .label(format!("client {}", who.client))
            .ttl(Duration::from_millis(who.ttl_ms))
            .unreachable_after(Duration::from_millis(habits.unreachable_ms))
            .transport(Simulated { beliefs: Arc::clone(beliefs), who: *who })
            .clock(SkewedClock::new(Arc::clone(&beliefs.scene), fast_ppm))
            .seed(random.next())
            .in_this_runtime()
            .build()
            .expect("nothing is asked of a server yet")
    }

    pub fn event(&self, what: std::fmt::Arguments<'_>) {
        self.beliefs.scene.event(self.who.client, what);
    }

    pub fn fail(&self, what: std::fmt::Arguments<'_>) {
        self.beliefs.scene.fail(format!("{:?}: {what}", self.who));
    }

    pub fn now_ms(&self) -> u64 {
        self.beliefs.scene.state().now_ms
    }

    /// One task of the program: it asks, holds and gives back until the work is over.
    pub async fn run(self, client: Client, mut random: Random) {
        while self.beliefs.scene.phase() == Phase::Work {
            sleep(Duration::from_millis(random.between(0, 1500))).await;
            if random.percent(self.habits.revokes_percent) {
                self.revoke(&client, &mut random).await;
            } else if random.percent(self.habits.administers_percent) {
                self.administer(&client, &mut random).await;
            } else {
                self.use_something(&client, &mut random).await;
            }
        }
    }

    /// Asks for all that there is of a name, which must be had soon when nothing is broken.
    pub async fn ask(self, client: Client, mut random: Random) {
        let shared = &self.beliefs.scene.shared;
        let shared = &shared[random.between(0, shared.len() as u64 - 1) as usize];
        let asking = client.semaphore(&shared.name).capacity(shared.capacity).resources(shared.capacity);
        match asking.acquire().await {
            Ok(permit) => match permit.release().await {
                Ok(()) => _ = self.beliefs.scene.state().satisfied.insert(self.who.client),
                Err(error) => self.fail(format_args!("cannot give back what it asked for: {error}")),
            },
            Err(error) => self.fail(format_args!("does not get what it asks for: {error}")),
        }
    }

    fn choose(&self, random: &mut Random) -> Vec<Wanted> {
        let Scene { shared, declared, .. } = &*self.beliefs.scene;
        let of = |namespace, name: &Vec<u8>, maximum| (key(namespace, name), namespace, maximum);
        let mut names: Vec<_> = shared
            .iter()
            .flat_map(|shared| {
                Namespace::ALL.map(|namespace| of(namespace, &shared.name, Some(shared.capacity)))
            })
            .chain(declared.iter().map(|name| of(Namespace::Semaphores, name, None)))
            .collect();
        let count = random.weighted(&[(1, 3), (2, 1), (3, 1)]).min(names.len());
        let mut chosen = Vec::new();
        for _ in 0..count {
            let (key, namespace, maximum) =
                names.swap_remove(random.between(0, names.len() as u64 - 1) as usize);
            let resources = random.between_u32(1, maximum.unwrap_or(2));
            chosen.push(Wanted { key, namespace, resources, maximum });
        }
        chosen
    }

    pub fn when_to_drop(&self, random: &mut Random) -> Patience {
        if !random.percent(self.habits.drops_percent) {
            return Patience::Whole;
        }
        if random.percent(50) {
            Patience::Polls(random.between_u32(0, 4))
        } else {
            Patience::Time(Duration::from_millis(random.between(0, 4000)))
        }
    }

    async fn use_something(&self, client: &Client, random: &mut Random) {
        let chosen = self.choose(random);
        let claims: Vec<_> = chosen.iter().map(Wanted::claim).collect();
        let waits = random.percent(75);
        let timeout_ms = random.percent(30).then(|| random.between(1, 8000));
        let queue_max = random.percent(20).then(|| random.between_u32(1, 3));
        let patience = self.when_to_drop(random);
        let asked_ms = self.now_ms();
        let names = chosen.iter().map(|Wanted { key, namespace, resources, maximum }| {
            format!("{resources}/{maximum:?} of {namespace:?} {}, ", key.1.escape_ascii())
        });
        self.event(format_args!(
            "asks for {}waits {waits}, {timeout_ms:?}, {queue_max:?}, {patience:?}",
            names.collect::<String>()
        ));
        let asking = async {
            // A single name by a call of its own.
            macro_rules! asking {
                ($asking:expr) => {{
                    let mut asking = $asking;
                    if let Some(timeout_ms) = timeout_ms {
                        asking = asking.timeout(Duration::from_millis(timeout_ms));
                    }
                    if let Some(queue_max) = queue_max {
                        asking = asking.queue_max(queue_max);
                    }
                    if waits { asking.acquire().await } else { asking.try_acquire().await }
                }};
            }
            let [Wanted { key: (_, name), namespace, resources, maximum }] = &chosen[..] else {
                return asking!(client.acquire_all(claims));
            };
            let resources = *resources;
            match (namespace, maximum) {
                (_, None) => asking!(client.semaphore(name).declared().resources(resources)),
                (Namespace::Counters, Some(maximum)) => {
                    asking!(client.counter(name).maximum(*maximum).resources(resources))
                }
                (Namespace::Semaphores, Some(maximum)) => {
                    asking!(client.semaphore(name).capacity(*maximum).resources(resources))
                }
            }
        };
        match for_as_long_as(patience, asking).await {
            None => self.event(format_args!("drops it")),
            Some(Ok(permit)) => {
                let is_told_right = |(wanted, told): (&Wanted, &u32)| match wanted.maximum {
                    Some(maximum) => maximum == *told,
                    None => {
                        let declared = &self.beliefs.declared;
                        declared.had_capacity(&wanted.key.1, asked_ms, |capacity| capacity == *told)
                    }
                };
                if !chosen.iter().zip(permit.capacities()).all(is_told_right) {
                    self.fail(format_args!("is told of capacities {:?}", permit.capacities()));
                }
                let parts = chosen.into_iter().map(|wanted| (wanted.key, u64::from(wanted.resources)));
                self.hold(permit, parts.collect(), asked_ms, random).await;
            }
            Some(Err(error)) => {
                self.event(format_args!("is refused: {error}"));
                let is_right = match &error {
                    Error::Status(Status::TimedOut) => waits && timeout_ms.is_some(),
                    Error::Status(Status::ResourceNotAvailable) => !waits || timeout_ms.is_some(),
                    Error::Status(Status::QueueFull) => queue_max.is_some(),
                    Error::Status(Status::Revoked) => self.beliefs.is_session_revoked(self.who, asked_ms),
                    Error::Unreachable { .. } => {
                        !self.beliefs.was_undisturbed(self.who, asked_ms.saturating_sub(3000))
                    }
                    _ => false,
                };
                let is_declared = |wanted: &&Wanted| wanted.maximum.is_none();
                let mut declared = chosen.iter().filter(is_declared);
                if !is_right && !declared.any(|wanted| self.is_administered(wanted, &error, asked_ms)) {
                    self.fail(format_args!("asked at {asked_ms} ms and is refused: {error:?}"));
                }
            }
        }
    }

    /// Whether what administrators did to a name explains a refusal.
    fn is_administered(&self, wanted: &Wanted, error: &Error, asked_ms: u64) -> bool {
        let (declared, name) = (&self.beliefs.declared, &wanted.key.1);
        match error {
            Error::Status(Status::NotFound) => declared.was_absent(name, asked_ms),
            Error::Status(Status::Removed) => declared.was_removed(name, asked_ms),
            Error::Status(Status::ResourceNotAvailable) => {
                declared.had_capacity(name, asked_ms, |capacity| capacity < wanted.resources)
            }
            // It had set it aside, and waited for another name.
            Error::Status(Status::Revoked) => declared.was_evicted(name, asked_ms),
            _ => false,
        }
    }

    async fn hold(&self, permit: Permit, parts: Vec<(Key, u64)>, asked_ms: u64, random: &mut Random) {
        let id = permit.id();
        let left = permit.time_left();
        self.event(format_args!("has grant {} for {left:?}", id.0));
        if left > Some(Duration::from_millis(self.who.ttl_ms)) {
            self.fail(format_args!("believes for {left:?}"));
        }
        let names: Vec<_> = parts.iter().map(|((_, name), _)| name.clone()).collect();
        let cell = self.beliefs.hold(self.who, parts, permit);
        let hold_ms = random.between(0, self.habits.hold_ms_max);
        // When the work is over, so is that with the permit.
        for _ in 0..hold_ms / 100 {
            sleep(Duration::from_millis(100)).await;
            if self.beliefs.scene.phase() != Phase::Work {
                break;
            }
        }
        sleep(Duration::from_millis(hold_ms % 100)).await;
        let is_revoked = self.beliefs.is_revoked(id.0) || self.beliefs.is_session_revoked(self.who, asked_ms);
        let permit = cell.lock().expect("nothing panics with a permit").take();
        drop(cell);
        let Some(permit) = permit else { return };
        let may_be_lost = is_revoked || self.beliefs.may_be_lost(self.who, asked_ms);
        if !permit.is_held() && !may_be_lost {
            self.fail(format_args!("has lost grant {} for nothing", id.0));
        }
        // Or was meanwhile.
        let is_taken = || {
            let declared = &self.beliefs.declared;
            is_revoked || self.beliefs.is_revoked(id.0) || declared.eviction(id.0, &names).is_some()
        };
        match random.between(0, 3) {
            0 => {
                self.event(format_args!("drops grant {}", id.0));
                drop(permit);
            }
            1 if !permit.is_held() => {
                // It says so without being asked again.
                let lost = permit.lost().await;
                self.event(format_args!("has lost grant {}: {lost:?}", id.0));
                self.judge_loss(id, lost, is_taken(), asked_ms);
            }
            _ => {
                let patience = self.when_to_drop(random);
                let released = for_as_long_as(patience, permit.release()).await;
                self.event(format_args!("gives grant {} back: {released:?}", id.0));
                match released {
                    None | Some(Ok(())) => {}
                    Some(Err(Error::Lost(lost))) => self.judge_loss(id, lost, is_taken(), asked_ms),
                    Some(Err(error)) => self.fail(format_args!("cannot give grant {} back: {error:?}", id.0)),
                }
            }
        }
    }

    fn judge_loss(&self, id: GrantId, lost: Lost, was_revoked: bool, asked_ms: u64) {
        let is_right = match lost {
            Lost::Revoked => was_revoked || self.beliefs.is_session_revoked(self.who, asked_ms),
            Lost::Expired | Lost::Unreachable => {
                self.beliefs.may_be_lost(self.who, asked_ms)
                    || self.beliefs.is_session_revoked(self.who, asked_ms)
            }
            _ => false,
        };
        if !is_right {
            self.fail(format_args!("has lost grant {}: {lost:?}", id.0));
        }
    }

    /// Takes something away from somebody.
    async fn revoke(&self, client: &Client, random: &mut Random) {
        let grants = self.beliefs.grants();
        if grants.is_empty() {
            return;
        }
        let (grant, holder) = grants[random.between(0, grants.len() as u64 - 1) as usize];
        let is_session = random.percent(30);
        let grace_ms = random.weighted(&[(0, 1), (500, 1), (1500, 1), (4000, 1)]);
        let revoking = async {
            let direct = client.direct().await?;
            let session = direct.verify(GrantId(grant)).await?.session;
            let what =
                if is_session { Revocation::Session(session) } else { Revocation::Grant(GrantId(grant)) };
            self.beliefs.revoke((grant, holder), is_session, grace_ms);
            direct.revoke(what, Duration::from_millis(grace_ms)).await
        };
        let patience = Patience::Time(Duration::from_secs(5));
        let revoked = for_as_long_as(patience, revoking).await;
        self.event(format_args!(
            "revokes {grant} of client {} (session: {is_session}) in {grace_ms} ms: {revoked:?}",
            holder.client
        ));
    }
}

impl Wanted {
    fn claim(&self) -> Claim {
        let name = &self.key.1;
        let claim = match (self.namespace, self.maximum) {
            (_, None) => Claim::declared(name),
            (Namespace::Counters, Some(maximum)) => Claim::counter(name, maximum),
            (Namespace::Semaphores, Some(maximum)) => Claim::semaphore(name, maximum),
        };
        claim.resources(self.resources)
    }
}

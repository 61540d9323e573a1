//! Programs that declare semaphores, change and remove them while others use them, wait until they are idle, and look
//! at them; and what they may be told.

use std::time::Duration;

use signalbox::client::{
    Client, Declaration, DeclaredState, Direct, Error, GrantId, GrantState, Idle, IfExists, Namespace,
    Removal, Status,
};
use tokio::time::sleep;

use super::changes::Wish;
use super::declared::State;
use super::drops::{Patience, for_as_long_as};
use super::orders::{CAPACITY_MAX, Order, some_if_exists, some_order};
use super::programs::Program;
use crate::random::Random;
use crate::scene::Phase;

/// What all names begin with that administrators declare.
const PREFIX: &[u8] = b"declared ";

/// How long a client may take to be heard, and to hear, where nothing is broken.
const TRAVEL_MS_MAX: u64 = 1000;

/// How long nothing is declared before all is tidied up: what was on its way has arrived by then.
const QUIET: Duration = Duration::from_secs(2);

/// How many administrators' acts follow each other over one connection.
const ACTS_MAX: u64 = 4;

#[derive(Clone, Copy)]
enum Act {
    DeclareAll,
    Change,
    Await,
    List,
    Verify,
}

impl Program {
    /// Connects, does this and that, and maybe walks off at any moment of it.
    pub async fn administer(&self, client: &Client, random: &mut Random) {
        let since_ms = self.now_ms();
        let patience = match self.when_to_drop(random) {
            Patience::Whole => Patience::Time(Duration::from_secs(20)),
            other => other,
        };
        let acting = async {
            let direct = client.direct().await?;
            for _ in 0..random.between(1, ACTS_MAX) {
                if self.beliefs.scene.phase() != Phase::Work {
                    break;
                }
                self.act(&direct, random).await?;
            }
            Ok::<_, Error>(())
        };
        match for_as_long_as(patience, acting).await {
            None => self.event(format_args!("administers no more")),
            Some(Ok(())) => {}
            Some(Err(error)) => {
                self.event(format_args!("cannot administer: {error}"));
                let is_cut = matches!(error, Error::ConnectionLost(_) | Error::Connect(_));
                if !is_cut || self.beliefs.was_undisturbed(self.who, since_ms.saturating_sub(3000)) {
                    self.fail(format_args!("administers since {since_ms} ms: {error:?}"));
                }
            }
        }
    }

    /// One act. An error is one of the connection.
    async fn act(&self, direct: &Direct, random: &mut Random) -> Result<(), Error> {
        let acts =
            [(Act::DeclareAll, 1), (Act::Change, 11), (Act::Await, 3), (Act::List, 1), (Act::Verify, 2)];
        match random.weighted(&acts) {
            Act::DeclareAll => self.declare_all(direct, random).await,
            Act::Change => self.change(direct, some_order(self, random)).await,
            Act::Await => self.await_idle(direct, &self.some_name(random), random).await,
            Act::List => self.list(direct).await,
            Act::Verify => self.verify(direct, random).await,
        }
    }

    /// Asks for a change, and looks at what it came to.
    async fn change(&self, direct: &Direct, order: Order) -> Result<(), Error> {
        let Order { name, wish, expected } = &order;
        let asked_ms = self.now_ms();
        self.event(format_args!("asks for {wish:?} of {}, expecting {expected:?}", name.escape_ascii()));
        let changes = &self.beliefs.declared.changes;
        let asked = changes.ask([(name.clone(), wish.clone())], expected.map(|expected| expected.0));
        let result = match wish {
            Wish::Declare { capacity, numbered, label, if_exists } => {
                let declaration = Declaration { name, capacity: *capacity, numbered: *numbered, label };
                direct.declare(&[declaration], *if_exists).await
            }
            Wish::Resize(how) => direct.resize(name, *how, *expected).await.map(|settled| vec![settled]),
            Wish::Remove(how) => direct.remove(name, *how, *expected).await.map(|()| Vec::new()),
        };
        self.event(format_args!("is told of {}: {result:?}", name.escape_ascii()));
        let noted = match &result {
            Ok(settled) => asked.done(settled),
            Err(Error::Status(_)) => asked.refused(),
            Err(_) => return result.map(drop),
        };
        if let Err(what) = noted {
            self.fail(format_args!("{what}: {}", name.escape_ascii()));
        }
        self.judge(&order, &result, asked_ms);
        Ok(())
    }

    /// Whether what an administrator is told of a change can be.
    pub fn judge(&self, order: &Order, result: &Result<Vec<DeclaredState>, Error>, asked_ms: u64) {
        let Order { name, wish, expected } = order;
        let declared = &self.beliefs.declared;
        let is_right = match (wish, result) {
            (Wish::Remove(Removal::IfIdle), Ok(_)) => declared.was_in_use(name, 0, asked_ms),
            (Wish::Declare { .. } | Wish::Resize(_), Ok(settled)) => {
                settled.iter().all(|settled| declared.was_in_use(name, settled.in_use, asked_ms))
            }
            (Wish::Remove(_), Ok(_)) => true,
            (_, Err(Error::Status(status))) => match (status, wish) {
                (Status::AlreadyExists, Wish::Declare { if_exists: IfExists::Fail, .. }) => {
                    declared.was_declared(name, asked_ms)
                }
                (Status::InUse, Wish::Declare { .. } | Wish::Remove(Removal::IfIdle)) => true,
                (Status::NotFound, Wish::Resize(_) | Wish::Remove(_)) => declared.was_absent(name, asked_ms),
                (Status::Removed, Wish::Resize(_)) => declared.was_removed(name, asked_ms),
                (Status::GenerationDiffers, Wish::Resize(_) | Wish::Remove(_)) => {
                    let is_it = |state: &State| {
                        let generation = expected.map(|expected| expected.0);
                        matches!(state, State::Declared(record) if Some(record.generation) == generation)
                    };
                    expected.is_some() && !declared.states(name, asked_ms).iter().all(is_it)
                }
                _ => false,
            },
            (_, Err(_)) => true,
        };
        if !is_right {
            self.fail(format_args!("asked at {asked_ms} ms for {wish:?}, and is told {result:?}"));
        }
    }

    /// Declares all names in one request.
    async fn declare_all(&self, direct: &Direct, random: &mut Random) -> Result<(), Error> {
        let names = &self.beliefs.scene.declared;
        let if_exists = some_if_exists(random);
        let capacities: Vec<_> = names.iter().map(|_| random.between_u32(1, CAPACITY_MAX)).collect();
        let wish = |(name, capacity): (&Vec<u8>, &u32)| {
            let wish = Wish::Declare { capacity: *capacity, numbered: true, label: Vec::new(), if_exists };
            (name.clone(), wish)
        };
        self.event(format_args!("declares all with {capacities:?}, {if_exists:?}"));
        let asked = self.beliefs.declared.changes.ask(names.iter().zip(&capacities).map(wish), None);
        let all: Vec<_> = names
            .iter()
            .zip(&capacities)
            .map(|(name, capacity)| Declaration { name, capacity: *capacity, numbered: true, label: b"" })
            .collect();
        let result = direct.declare(&all, if_exists).await;
        self.event(format_args!("has declared all: {result:?}"));
        let noted = match &result {
            Ok(settled) => asked.done(settled),
            Err(Error::Status(Status::AlreadyExists | Status::InUse)) => asked.refused(),
            Err(_) => return result.map(drop),
        };
        noted.unwrap_or_else(|what| self.fail(format_args!("declares all: {what}")));
        Ok(())
    }

    async fn await_idle(&self, direct: &Direct, name: &[u8], random: &mut Random) -> Result<(), Error> {
        let until = match random.between(0, 3) {
            0 => Idle::Slot(random.between(0, 3) as u16),
            1 => Idle::Level(random.between_u32(1, 2)),
            _ => Idle::Level(0),
        };
        let timeout = random.percent(70).then(|| Duration::from_millis(random.between(0, 8000)));
        let asked_ms = self.now_ms();
        let result = direct.await_idle(Namespace::Semaphores, name, until, timeout).await;
        self.event(format_args!("awaited {until:?} of {} for {timeout:?}: {result:?}", name.escape_ascii()));
        let declared = &self.beliefs.declared;
        let is_right = match (&result, until) {
            (Ok(in_use), Idle::Level(level)) => {
                *in_use <= level && declared.was_in_use(name, *in_use, asked_ms)
            }
            (Ok(_), Idle::Slot(slot)) => declared.was_free(name, slot, asked_ms),
            (Err(Error::Status(Status::NotFound)), _) => declared.was_absent(name, asked_ms),
            (Err(Error::Status(Status::TimedOut | Status::ResourceNotAvailable)), _) => {
                let is_undisturbed = self.beliefs.was_undisturbed(self.who, asked_ms);
                let waiting = (asked_ms + TRAVEL_MS_MAX, self.now_ms().saturating_sub(TRAVEL_MS_MAX));
                let is_in_time = match until {
                    Idle::Level(level) if is_undisturbed && waiting.0 < waiting.1 => {
                        declared.was_above(name, level, waiting)
                    }
                    _ => true,
                };
                timeout.is_some() && is_in_time
            }
            (Err(Error::Status(_)), _) => false,
            (Err(_), _) => return result.map(drop),
        };
        if !is_right {
            self.fail(format_args!("awaited {until:?} since {asked_ms} ms, and is told {result:?}"));
        }
        Ok(())
    }

    /// Lists all names, and compares each with what it was meanwhile.
    async fn list(&self, direct: &Direct) -> Result<(), Error> {
        let asked_ms = self.now_ms();
        let mut listed = Vec::new();
        let mut listing = direct.list(PREFIX).await?;
        while let Some(entry) = listing.next().await {
            listed.push(entry?);
        }
        let declared = &self.beliefs.declared;
        for name in &self.beliefs.scene.declared {
            let entry = listed.iter().find(|entry| entry.name == *name);
            // A removal can begin and end within a step.
            let is_going = entry.is_some_and(|entry| entry.removing) && declared.was_removed(name, asked_ms);
            let is_it = |state: &State| match (entry, state) {
                _ if is_going => true,
                (None, State::Absent) => true,
                (Some(entry), State::Declared(record)) => {
                    let told = (entry.generation.0, entry.capacity, entry.numbered, entry.removing);
                    told == (record.generation, record.capacity, record.numbered, record.removing)
                        && entry.label[..] == record.label[..]
                        && declared.was_in_use(name, entry.in_use, asked_ms)
                }
                _ => false,
            };
            if !declared.states(name, asked_ms).iter().any(is_it) && !declared.is_unclear(name, asked_ms) {
                self.fail(format_args!("lists since {asked_ms} ms {}: {entry:?}", name.escape_ascii()));
            }
        }
        self.event(format_args!("lists {} names", listed.len()));
        Ok(())
    }

    /// Asks whether a grant is to be built upon.
    async fn verify(&self, direct: &Direct, random: &mut Random) -> Result<(), Error> {
        let grants = self.beliefs.grants();
        if grants.is_empty() {
            return Ok(());
        }
        let (grant, _) = grants[random.between(0, grants.len() as u64 - 1) as usize];
        let declared = &self.beliefs.declared;
        let names = &self.beliefs.scene.declared;
        let asked_ms = self.now_ms();
        let before = declared.standing(grant);
        let result = direct.verify(GrantId(grant)).await;
        let after = declared.standing(grant);
        self.event(format_args!("verifies {grant}: {result:?}"));
        let is_same = before == after && names.iter().all(|name| declared.states(name, asked_ms).len() == 1);
        let is_right = match (&result, after) {
            (Ok(verified), Some(true)) if is_same => verified.state == GrantState::Retiring,
            (Ok(verified), Some(false)) if is_same => {
                verified.state == GrantState::Held || self.beliefs.is_doubtful(grant)
            }
            (Ok(_), _) => true,
            (Err(Error::Status(Status::NotAcquired)), _) => after.is_none() || before.is_none(),
            (Err(Error::Status(_)), _) => false,
            (Err(_), _) => return result.map(drop),
        };
        if !is_right {
            self.fail(format_args!("verifies {grant} since {asked_ms} ms, and is told {result:?}"));
        }
        Ok(())
    }

    /// When the work is over, removes what is declared, so that nobody waits for what nobody gives him.
    pub async fn tidy_up(self, client: Client) {
        while self.beliefs.scene.phase() == Phase::Work {
            sleep(Duration::from_millis(100)).await;
        }
        let mut quiet = Duration::ZERO;
        while quiet < QUIET {
            let is_tidy = self.remove_all(&client).await.unwrap_or_else(|error| {
                self.event(format_args!("cannot tidy up: {error}"));
                false
            });
            quiet = if is_tidy { quiet + QUIET / 4 } else { Duration::ZERO };
            sleep(QUIET / 4).await;
        }
    }

    /// Removes what is declared and not being removed. Tells whether nothing was declared.
    async fn remove_all(&self, client: &Client) -> Result<bool, Error> {
        let direct = client.direct().await?;
        let mut listing = direct.list(PREFIX).await?;
        let mut names = Vec::new();
        while let Some(entry) = listing.next().await {
            names.push(entry?);
        }
        let is_tidy = names.is_empty();
        for entry in names.into_iter().filter(|entry| !entry.removing) {
            let wish = Wish::Remove(Removal::WithLastHolder);
            let order = Order { name: entry.name.to_vec(), wish, expected: None };
            self.change(&direct, order).await?;
        }
        Ok(is_tidy)
    }
}

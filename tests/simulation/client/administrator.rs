//! Applications that declare, resize, pause and remove semaphores while others use them, take slots out of service, wait
//! until they are idle, and list them; and the checks of what the server answers.

use std::time::Duration;

use signalbox::client::{
    Client, Declaration, DeclaredState, Direct, Error, ErrorKind, GrantId, GrantState, Idle, IfExists,
    Namespace, Removal, SlotChange, Status,
};
use tokio::time::{sleep, timeout};

use super::applications::Application;
use super::change_requests::{CAPACITY_MAX, ChangeRequest, random_change_request, random_if_exists};
use super::changes::ChangeKind;
use super::declared::State;
use super::drops::run_until_dropped;
use crate::random::Random;
use crate::scene::Phase;

/// The prefix of all names that administrators declare.
const PREFIX: &[u8] = b"declared ";

/// How long a request and its answer may take without faults.
const TRAVEL_MS_MAX: u64 = 1000;

/// How long nothing is declared before the cleanup is complete: requests in flight have arrived by then.
const QUIET: Duration = Duration::from_secs(2);

/// The greatest number of actions over one connection.
const ACTS_MAX: u64 = 4;

/// How long the actions over one connection may take.
const ACTS_TIME_MAX: Duration = Duration::from_secs(20);

#[derive(Clone, Copy)]
enum Action {
    DeclareAll,
    Change,
    Await,
    List,
    Verify,
}

impl Application {
    /// Connects and performs a few actions, and may drop the future at any moment.
    pub async fn administer(&self, client: &Client, random: &mut Random) {
        let since_ms = self.now_ms();
        let drop_point = self.when_to_drop(random);
        let acting = async {
            let direct = client.direct().await?;
            for _ in 0..random.between(1, ACTS_MAX) {
                if self.expectations.scene.phase() != Phase::Work {
                    break;
                }
                self.act(&direct, random).await?;
            }
            Ok::<_, Error>(())
        };
        // The simulated connection does not notice that its peer has vanished.
        let acted = timeout(ACTS_TIME_MAX, run_until_dropped(drop_point, acting)).await.ok().flatten();
        match acted {
            None => self.event(format_args!("drops its administration")),
            Some(Ok(())) => {}
            Some(Err(error)) => {
                self.event(format_args!("cannot administer: {error}"));
                let is_cut = matches!(error.kind(), ErrorKind::ConnectionLost(_) | ErrorKind::Connect(_));
                if !is_cut || self.expectations.was_undisturbed(self.info, since_ms.saturating_sub(3000)) {
                    self.fail(format_args!("administers since {since_ms} ms: {error:?}"));
                }
            }
        }
    }

    /// One action. Errors are those of the connection.
    async fn act(&self, direct: &Direct, random: &mut Random) -> Result<(), Error> {
        let actions = [
            (Action::DeclareAll, 1),
            (Action::Change, 14),
            (Action::Await, 3),
            (Action::List, 1),
            (Action::Verify, 2),
        ];
        match random.weighted(&actions) {
            Action::DeclareAll => self.declare_all(direct, random).await,
            Action::Change => self.change(direct, random_change_request(self, random)).await,
            Action::Await => self.await_idle(direct, &self.random_name(random), random).await,
            Action::List => self.list(direct).await,
            Action::Verify => self.verify(direct, random).await,
        }
    }

    /// Requests a change and checks the answer.
    async fn change(&self, direct: &Direct, request: ChangeRequest) -> Result<(), Error> {
        let ChangeRequest { name, kind, expected } = &request;
        let requested_ms = self.now_ms();
        self.event(format_args!("requests {kind:?} of {}, expecting {expected:?}", name.escape_ascii()));
        let changes = &self.expectations.declared.changes;
        let pending = changes.ask([(name.clone(), kind.clone())], expected.map(|expected| expected.0));
        let result = match kind {
            ChangeKind::Declare { capacity, numbered, label, if_exists } => {
                let declaration = Declaration { name, capacity: *capacity, numbered: *numbered, label };
                direct.declare(&[declaration], *if_exists).await
            }
            ChangeKind::Resize(how) => direct.resize(name, *how, *expected).await.map(|states| vec![states]),
            ChangeKind::Remove(how) => direct.remove(name, *how, *expected).await.map(|()| Vec::new()),
            ChangeKind::Pause(how) => direct.pause(name, *how, *expected).await.map(|states| vec![states]),
            ChangeKind::SetSlot(how) => {
                direct.set_slot(name, *how, *expected).await.map(|states| vec![states])
            }
        };
        self.event(format_args!("is answered about {}: {result:?}", name.escape_ascii()));
        let noted = match &result {
            Ok(states) => pending.done(states),
            Err(error) if error.status().is_some() => pending.refused(),
            Err(_) => return result.map(drop),
        };
        if let Err(what) = noted {
            self.fail(format_args!("{what}: {}", name.escape_ascii()));
        }
        self.check_answer(&request, &result, requested_ms);
        Ok(())
    }

    /// Checks the answer to a change.
    pub fn check_answer(
        &self,
        request: &ChangeRequest,
        result: &Result<Vec<DeclaredState>, Error>,
        requested_ms: u64,
    ) {
        let ChangeRequest { name, kind, expected } = request;
        let declared = &self.expectations.declared;
        let is_right = match (kind, result.as_ref().map_err(Error::kind)) {
            (ChangeKind::Remove(Removal::IfIdle), Ok(_)) => declared.was_in_use(name, 0, requested_ms),
            (
                ChangeKind::Declare { .. }
                | ChangeKind::Resize(_)
                | ChangeKind::Pause(_)
                | ChangeKind::SetSlot(_),
                Ok(states),
            ) => states.iter().all(|states| declared.was_in_use(name, states.in_use, requested_ms)),
            (ChangeKind::Remove(_), Ok(_)) => true,
            (_, Err(ErrorKind::Status(status))) => match (status, kind) {
                (Status::AlreadyExists, ChangeKind::Declare { if_exists: IfExists::Fail, .. }) => {
                    declared.was_declared(name, requested_ms)
                }
                (Status::InUse, ChangeKind::Declare { .. } | ChangeKind::Remove(Removal::IfIdle)) => true,
                (Status::NoSuchSlot, ChangeKind::SetSlot(SlotChange::Out(slot) | SlotChange::In(slot))) => {
                    declared.lacked_slot(name, *slot, requested_ms)
                }
                (_, ChangeKind::Declare { .. }) => false,
                (Status::NotFound, _) => declared.was_absent(name, requested_ms),
                (Status::Removed, ChangeKind::Resize(_) | ChangeKind::Pause(_) | ChangeKind::SetSlot(_)) => {
                    declared.was_removed(name, requested_ms)
                }
                (Status::GenerationDiffers, _) => {
                    let is_it = |state: &State| {
                        let generation = expected.map(|expected| expected.0);
                        matches!(state, State::Declared(record) if Some(record.generation) == generation)
                    };
                    expected.is_some() && !declared.states(name, requested_ms).iter().all(is_it)
                }
                _ => false,
            },
            (_, Err(_)) => true,
        };
        if !is_right {
            self.fail(format_args!("requested {kind:?} at {requested_ms} ms, and was answered {result:?}"));
        }
    }

    /// Declares all names in one request.
    async fn declare_all(&self, direct: &Direct, random: &mut Random) -> Result<(), Error> {
        let names = &self.expectations.scene.declared;
        let if_exists = random_if_exists(random);
        let capacities: Vec<_> = names.iter().map(|_| random.between_u32(1, CAPACITY_MAX)).collect();
        let kind = |(name, capacity): (&Vec<u8>, &u32)| {
            let kind =
                ChangeKind::Declare { capacity: *capacity, numbered: true, label: Vec::new(), if_exists };
            (name.clone(), kind)
        };
        self.event(format_args!("declares all with {capacities:?}, {if_exists:?}"));
        let pending = self.expectations.declared.changes.ask(names.iter().zip(&capacities).map(kind), None);
        let all: Vec<_> = names
            .iter()
            .zip(&capacities)
            .map(|(name, capacity)| Declaration { name, capacity: *capacity, numbered: true, label: b"" })
            .collect();
        let result = direct.declare(&all, if_exists).await;
        self.event(format_args!("has declared all: {result:?}"));
        let noted = match &result {
            Ok(states) => pending.done(states),
            Err(error) if matches!(error.status(), Some(Status::AlreadyExists | Status::InUse)) => {
                pending.refused()
            }
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
        let requested_ms = self.now_ms();
        let result = direct.await_idle(Namespace::Semaphores, name, until, timeout).await;
        self.event(format_args!("awaited {until:?} of {} for {timeout:?}: {result:?}", name.escape_ascii()));
        let declared = &self.expectations.declared;
        let is_right = match (result.as_ref().map_err(Error::kind), until) {
            (Ok(in_use), Idle::Level(level)) => {
                *in_use <= level && declared.was_in_use(name, *in_use, requested_ms)
            }
            (Ok(_), Idle::Slot(slot)) => declared.was_free(name, slot, requested_ms),
            (Err(ErrorKind::Status(Status::NotFound)), _) => declared.was_absent(name, requested_ms),
            (Err(ErrorKind::Status(Status::TimedOut | Status::ResourceNotAvailable)), _) => {
                let is_undisturbed = self.expectations.was_undisturbed(self.info, requested_ms);
                let waiting = (requested_ms + TRAVEL_MS_MAX, self.now_ms().saturating_sub(TRAVEL_MS_MAX));
                let is_in_time = match until {
                    Idle::Level(level) if is_undisturbed && waiting.0 < waiting.1 => {
                        declared.was_above(name, level, waiting)
                    }
                    _ => true,
                };
                timeout.is_some() && is_in_time
            }
            (Err(ErrorKind::Status(_)), _) => false,
            (Err(_), _) => return result.map(drop),
        };
        if !is_right {
            self.fail(format_args!("awaited {until:?} since {requested_ms} ms, and is answered {result:?}"));
        }
        Ok(())
    }

    /// Lists all names and compares each with its states during the request.
    async fn list(&self, direct: &Direct) -> Result<(), Error> {
        let requested_ms = self.now_ms();
        let mut listed = Vec::new();
        let mut listing = direct.list(PREFIX).await?;
        while let Some(entry) = listing.next().await {
            listed.push(entry?);
        }
        let declared = &self.expectations.declared;
        for name in &self.expectations.scene.declared {
            let entry = listed.iter().find(|entry| entry.name == *name);
            // A removal can begin and end within a step.
            let is_going =
                entry.is_some_and(|entry| entry.removing) && declared.was_removed(name, requested_ms);
            let is_it = |state: &State| match (entry, state) {
                _ if is_going => true,
                (None, State::Absent) => true,
                (Some(entry), State::Declared(record)) => {
                    let entry_state = (entry.generation.0, entry.capacity, entry.numbered, entry.removing);
                    entry_state == (record.generation, record.capacity, record.numbered, record.removing)
                        && (entry.paused, &entry.slots_out[..])
                            == (record.service.paused, &record.service.slots_out)
                        && entry.label[..] == record.label[..]
                        && declared.was_in_use(name, entry.in_use, requested_ms)
                }
                _ => false,
            };
            if !declared.states(name, requested_ms).iter().any(is_it)
                && !declared.is_unclear(name, requested_ms)
            {
                self.fail(format_args!("lists since {requested_ms} ms {}: {entry:?}", name.escape_ascii()));
            }
        }
        self.event(format_args!("lists {} names", listed.len()));
        Ok(())
    }

    /// Verifies a grant and checks the answer.
    async fn verify(&self, direct: &Direct, random: &mut Random) -> Result<(), Error> {
        let grants = self.expectations.grants();
        if grants.is_empty() {
            return Ok(());
        }
        let (grant, _) = grants[random.between(0, grants.len() as u64 - 1) as usize];
        let declared = &self.expectations.declared;
        let names = &self.expectations.scene.declared;
        let requested_ms = self.now_ms();
        let before = declared.is_retiring(grant);
        let result = direct.verify(GrantId(grant)).await;
        let after = declared.is_retiring(grant);
        self.event(format_args!("verifies {grant}: {result:?}"));
        let is_same =
            before == after && names.iter().all(|name| declared.states(name, requested_ms).len() == 1);
        let is_right = match (result.as_ref().map_err(Error::kind), after) {
            (Ok(verified), Some(true)) if is_same => verified.state == GrantState::Retiring,
            (Ok(verified), Some(false)) if is_same => {
                verified.state == GrantState::Held || self.expectations.is_doubtful(grant)
            }
            (Ok(_), _) => true,
            (Err(ErrorKind::Status(Status::NotAcquired)), _) => after.is_none() || before.is_none(),
            (Err(ErrorKind::Status(_)), _) => false,
            (Err(_), _) => return result.map(drop),
        };
        if !is_right {
            self.fail(format_args!("verifies {grant} since {requested_ms} ms, and is answered {result:?}"));
        }
        Ok(())
    }

    /// After the work phase, removes what is declared, so that no client waits for resources that are never released.
    pub async fn clean_up(self, client: Client) {
        while self.expectations.scene.phase() == Phase::Work {
            sleep(Duration::from_millis(100)).await;
        }
        let mut quiet = Duration::ZERO;
        while quiet < QUIET {
            let is_clean = self.remove_all(&client).await.unwrap_or_else(|error| {
                self.event(format_args!("cannot clean up: {error}"));
                false
            });
            quiet = if is_clean { quiet + QUIET / 4 } else { Duration::ZERO };
            sleep(QUIET / 4).await;
        }
    }

    /// Removes the semaphores that are declared and not being removed. Returns whether none was declared.
    async fn remove_all(&self, client: &Client) -> Result<bool, Error> {
        let direct = client.direct().await?;
        let mut listing = direct.list(PREFIX).await?;
        let mut names = Vec::new();
        while let Some(entry) = listing.next().await {
            names.push(entry?);
        }
        let is_clean = names.is_empty();
        for entry in names.into_iter().filter(|entry| !entry.removing) {
            let kind = ChangeKind::Remove(Removal::WithLastHolder);
            let request = ChangeRequest { name: entry.name.to_vec(), kind, expected: None };
            self.change(&direct, request).await?;
        }
        Ok(is_clean)
    }
}

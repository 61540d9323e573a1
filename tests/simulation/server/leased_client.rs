//! Clients of the extended operations: what they do with their sessions, and when.

use std::sync::Arc;
use std::time::Duration;

use signalbox_model::{GrantId, Namespace, RequestId, Revocation, Scope, SessionId};
use signalbox_protocol::{Extended, Opaque, WaitingRequest};
use tokio::time::sleep;

use super::answers::Via;
use super::session::{ClientSession, Connector};
use super::session_connection::RequestKind;
use super::session_view::{NO_GRANT, Operation, Part};
use crate::random::Random;
use crate::scene::{Phase, Scene, Shared};

/// What a client does next. Each seed has its own weights.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
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
    /// Reads what arrives.
    Read,
    /// Reads nothing.
    Ignore,
    /// Sends nothing for about as long as its lease lasts.
    FallSilent,
    /// Closes the connection, possibly within a frame.
    Cut,
    /// Half-closes the connection.
    HalfClose,
    /// Attaches another connection to the session while this one is open.
    Attach,
    /// Checks on the previous connection that it is no longer attached.
    CheckPrevious,
    /// Closes the previous connection.
    CutPrevious,
    CloseSession,
}

const ACTIONS: [(Action, u64); 21] = [
    (Action::Acquire, 8),
    (Action::AcquireAll, 3),
    (Action::Pipeline, 1),
    (Action::Release, 6),
    (Action::Repeat, 2),
    (Action::Cancel, 2),
    (Action::KeepAlive, 2),
    (Action::Verify, 2),
    (Action::List, 2),
    (Action::Watch, 1),
    (Action::Unwatch, 1),
    (Action::Revoke, 1),
    (Action::Read, 6),
    (Action::Ignore, 1),
    (Action::FallSilent, 1),
    (Action::Cut, 2),
    (Action::HalfClose, 1),
    (Action::Attach, 2),
    (Action::CheckPrevious, 2),
    (Action::CutPrevious, 1),
    (Action::CloseSession, 1),
];

/// How the leased clients of a seed behave.
#[derive(Clone)]
pub struct LeasedWorkload {
    actions: Vec<(Action, u64)>,
    ttl_ms_max: u64,
    wait_ms_max: u64,
    /// The share of clients that use a connection session.
    connection_session_percent: u64,
    bytewise_percent: u64,
}

impl LeasedWorkload {
    pub fn of(random: &mut Random) -> Self {
        let actions = ACTIONS.map(|(action, weight)| (action, weight * random.between(0, 3)));
        let mut actions = actions.to_vec();
        actions.extend([(Action::Acquire, 4), (Action::Read, 4), (Action::Release, 2)]);
        Self {
            actions,
            ttl_ms_max: random.between(1000, 8000),
            wait_ms_max: random.weighted(&[(300, 1), (3000, 1), (20_000, 1)]),
            connection_session_percent: random.weighted(&[(0, 2), (30, 2), (100, 1)]),
            bytewise_percent: random.between(0, 30),
        }
    }
}

pub struct LeasedClient {
    scene: Arc<Scene>,
    number: usize,
    machine: usize,
    random: Random,
    workload: LeasedWorkload,
}

impl LeasedClient {
    pub fn new(
        scene: Arc<Scene>,
        number: usize,
        machine: usize,
        random: Random,
        workload: LeasedWorkload,
    ) -> Self {
        Self { scene, number, machine, random, workload }
    }

    /// Runs until its machine stops.
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
                    // Always in this order: a random order would differ between two runs of a seed.
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

    async fn begin(&mut self, connection_session_percent: u64) -> Option<ClientSession> {
        let ttl_ms = self.random.between(1000, self.workload.ttl_ms_max) as u32;
        let ttl_ms = if self.random.percent(connection_session_percent) { None } else { Some(ttl_ms) };
        let connector = Connector {
            scene: Arc::clone(&self.scene),
            number: self.number,
            machine: self.machine,
            bytewise_percent: self.workload.bytewise_percent,
        };
        ClientSession::begin(connector, ttl_ms, &mut self.random).await
    }

    /// One session, from its start to its end.
    async fn work(&mut self) {
        let Some(mut session) = self.begin(self.workload.connection_session_percent).await else { return };
        while !session.is_over {
            if session.newest.is_none() {
                // Sometimes after the lease has ended.
                let pause_ms =
                    self.random.weighted(&[(0, 3), (500, 3), (2 * u64::from(session.view.ttl_ms), 1)]);
                let pause_ms = self.random.between(0, pause_ms) + 10;
                sleep(Duration::from_millis(pause_ms)).await;
                session.attach(&mut self.random).await;
                continue;
            }
            let action = self.random.weighted(&self.workload.actions);
            self.action(action, &mut session).await;
            let read_ms = self.random.weighted(&[(0, 1), (30, 2), (200, 2), (1000, 1)]);
            let read_ms = self.random.between(0, read_ms);
            session.read_for(read_ms).await;
            if session.view.unanswered().is_empty()
                && let Some(part) = session.view.not_stored.take()
            {
                self.list(&mut session, part).await;
            }
        }
    }

    async fn list(&mut self, session: &mut ClientSession, part: Part) {
        let list = Extended::Holders { namespace: part.namespace, name: &part.name };
        let is_quiet = session.view.unanswered().is_empty();
        session.send_request(Via::Newest, &list, RequestKind::List { is_quiet }, &mut self.random).await;
    }

    async fn action(&mut self, action: Action, session: &mut ClientSession) {
        match action {
            Action::Acquire => self.acquire(session, (1, 3), false).await,
            Action::AcquireAll => self.acquire(session, (1, 1), true).await,
            Action::Pipeline => self.acquire(session, (20, 80), false).await,
            Action::Release => {
                let held: Vec<_> = session.view.held.iter().copied().collect();
                // Sometimes a grant that it does not hold.
                let grant = if self.random.percent(5) { Some(NO_GRANT) } else { self.pick(&held) };
                if let Some(grant) = grant {
                    let is_done = session.view.shared_key(grant).is_some() && self.random.percent(70);
                    session.ask(vec![Operation::Release { grant, is_done }], &mut self.random).await;
                }
            }
            Action::Repeat => {
                let requests: Vec<_> = session.view.requests.keys().copied().collect();
                if let Some(id) = self.pick(&requests) {
                    session.repeat(id, &mut self.random).await;
                }
            }
            Action::Cancel => self.cancel(session).await,
            Action::KeepAlive => {
                session
                    .send_request(Via::Newest, &Extended::KeepAlive, RequestKind::KeepAlive, &mut self.random)
                    .await;
            }
            Action::Verify => {
                let grants = self.scene.state().grant_expectations.grants();
                if let Some(grant) = self.pick(&grants) {
                    let verify = Extended::VerifyGrant { grant: GrantId(grant) };
                    session
                        .send_request(Via::Newest, &verify, RequestKind::Verify { grant }, &mut self.random)
                        .await;
                }
            }
            Action::List => {
                let part = self.part();
                self.list(session, part).await;
            }
            Action::Watch => {
                let part = self.part();
                let scope = if self.random.percent(50) {
                    Scope::Prefix(&b""[..])
                } else {
                    Scope::Name(&part.name[..])
                };
                let watch = Extended::Watch { namespace: part.namespace, scope };
                let kind = RequestKind::Watch { number: 0, is_live: false };
                session.send_request(Via::Newest, &watch, kind, &mut self.random).await;
            }
            Action::Unwatch => {
                let mut pending = session.newest.iter().flat_map(|connection| &connection.pending);
                let watch = pending.find(|(_, pending)| matches!(pending.kind, RequestKind::Watch { .. }));
                if let Some(watch) = watch.map(|(opaque, _)| *opaque) {
                    let unwatch = Extended::Unwatch { watch: Opaque(watch.to_be_bytes()) };
                    session
                        .send_request(Via::Newest, &unwatch, RequestKind::Unwatch { watch }, &mut self.random)
                        .await;
                }
            }
            Action::Revoke => self.revoke(session).await,
            Action::Read => {}
            Action::Ignore => {
                let pause_ms = self.random.between(1, 1500);
                sleep(Duration::from_millis(pause_ms)).await;
            }
            Action::FallSilent => {
                let ttl_ms = u64::from(session.view.ttl_ms);
                let silence_ms = self.random.between(ttl_ms / 2, ttl_ms * 3 / 2);
                self.scene.event(self.number, format_args!("says nothing for {silence_ms} ms"));
                session.read_for(silence_ms).await;
            }
            Action::Cut => {
                if self.random.percent(50) {
                    let mut bytes = Vec::new();
                    let verify = Extended::VerifyGrant { grant: GrantId(1) };
                    verify.compose(Opaque(*b"part"), &mut bytes);
                    bytes.truncate(self.random.between(1, bytes.len() as u64 - 1) as usize);
                    session.send(Via::Newest, &bytes, &mut self.random).await;
                }
                session.cut(Via::Newest);
            }
            Action::HalfClose => session.half_close().await,
            Action::Attach => {
                // Sometimes before the present connection is attached; then either of the two may be attached in the
                // end.
                if session.newest.as_ref().is_some_and(|connection| connection.is_attached)
                    || self.random.percent(10)
                {
                    session.attach(&mut self.random).await;
                }
            }
            Action::CheckPrevious => {
                // Only after the answer to the newer attachment: then the state is unambiguous.
                let is_attached = session.newest.as_ref().is_some_and(|connection| connection.is_attached);
                if is_attached && !session.view.has_late_attachment {
                    session
                        .send_request(
                            Via::Previous,
                            &Extended::KeepAlive,
                            RequestKind::StaleKeepAlive,
                            &mut self.random,
                        )
                        .await;
                }
            }
            Action::CutPrevious => session.cut(Via::Previous),
            Action::CloseSession if session.view.is_leased() => {
                session.view.close();
                session
                    .send_request(Via::Newest, &Extended::CloseSession, RequestKind::Close, &mut self.random)
                    .await;
                session.read_for(1000).await;
                session.is_over = true;
            }
            Action::CloseSession => {}
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

    /// Requests grants.
    async fn acquire(&mut self, session: &mut ClientSession, (low, high): (u64, u64), is_all: bool) {
        let mut operations = Vec::new();
        for _ in 0..self.random.between(low, high) {
            let mut parts = vec![self.part()];
            for _ in 0..if is_all { self.random.between(0, 2) } else { 0 } {
                let part = self.part();
                if parts.iter().all(|other| (other.namespace, &other.name) != (part.namespace, &part.name)) {
                    parts.push(part);
                }
            }
            let waits = self.random.percent(65);
            let wait_ms = if waits { self.random.between(1, self.workload.wait_ms_max) as u32 } else { 0 };
            let queue_max = if self.random.percent(20) { Some(self.random.between_u32(0, 3)) } else { None };
            let is_shared = !is_all && parts[0].namespace == Namespace::Counters && self.random.percent(30);
            if is_shared {
                (parts[0].resources, parts[0].maximum) = (1, 1);
            }
            operations.push(Operation::Acquire { parts, is_all, is_shared, wait_ms, queue_max });
            if low > 1 && self.random.percent(30) {
                operations.push(Operation::Release { grant: NO_GRANT, is_done: false });
            }
        }
        session.ask(operations, &mut self.random).await;
    }

    async fn cancel(&mut self, session: &mut ClientSession) {
        let unanswered = session.view.unanswered();
        let Some(id) = unanswered.first().copied() else { return };
        let Some(request) = session.view.requests.get_mut(&id) else { return };
        request.is_canceled = true;
        let (local, opaque) = request.newest;
        let is_here = session.newest.as_ref().is_some_and(|connection| connection.local == local);
        let waiting = if is_here && self.random.percent(50) {
            WaitingRequest::Opaque(Opaque(opaque.to_be_bytes()))
        } else {
            WaitingRequest::Id(RequestId(id))
        };
        session
            .send_request(
                Via::Newest,
                &Extended::Cancel(waiting),
                RequestKind::Cancel { id },
                &mut self.random,
            )
            .await;
    }

    async fn revoke(&mut self, session: &mut ClientSession) {
        let known = |expectations: &mut crate::grant_expectations::GrantExpectations, _| {
            (expectations.grants(), expectations.sessions())
        };
        let Some((grants, sessions)) = self.scene.with_expectations(session.view.life, known) else { return };
        let what = if self.random.percent(60) {
            self.pick(&grants).map(|grant| Revocation::Grant(GrantId(grant)))
        } else {
            self.pick(&sessions).map(|number| Revocation::Session(SessionId::new(number)))
        };
        if let Some(what) = what {
            let grace_ms = self.random.weighted(&[(0, 1), (50, 1), (700, 1)]);
            self.scene.event(self.number, format_args!("revokes {what:?}"));
            session.ask(vec![Operation::Revoke { what, grace_ms }], &mut self.random).await;
        }
    }

    /// Requests one of a few names until it is granted, and soon releases it.
    async fn ask(&mut self) {
        if self.scene.state().satisfied.contains(&self.number) {
            return;
        }
        let Some(mut session) = self.begin(0).await else { return };
        let name = format!("asked {}", self.number % 5).into_bytes();
        let namespace = Namespace::ALL[self.number % 2];
        let parts = vec![Part { namespace, name, resources: 1, maximum: 2 }];
        let acquire =
            Operation::Acquire { parts, is_all: false, is_shared: false, wait_ms: 60_000, queue_max: None };
        session.ask(vec![acquire], &mut self.random).await;
        while !session.is_over && session.newest.is_some() {
            session.read_for(50).await;
            if let Some(grant) = session.view.held.first().copied() {
                let release = Operation::Release { grant, is_done: false };
                session.ask(vec![release], &mut self.random).await;
                session.read_for(300).await;
                self.scene.state().satisfied.insert(self.number);
                return;
            }
            if self.random.percent(20) {
                session
                    .send_request(Via::Newest, &Extended::KeepAlive, RequestKind::KeepAlive, &mut self.random)
                    .await;
            }
        }
    }
}

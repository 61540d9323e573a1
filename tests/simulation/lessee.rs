//! Clients of the extended operations: they hold and wait with leased sessions, which they take from connection to
//! connection, and judge every answer by what they were answered before.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use signalbox::core::Namespace;
use signalbox::protocol::{
    EventKind, Extended, GrantId, Milliseconds, Notice, RequestId, ResponseFrame, Revocation, Scope, Status,
    TtlLeft, WaitingRequest,
};
use tokio::time::{Instant, sleep, timeout_at};

use crate::claims::Claim;
use crate::connection::{End, Pace, note_end};
use crate::line::{Asked, Awaited, Line};
use crate::random::Random;
use crate::scene::{Phase, Scene, Shared};
use crate::support::caller::on_wire;
use crate::tenancy::{Errand, Part, Tenancy};

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
    /// Says nothing for longer than its lease.
    FallSilent,
    /// Closes the connection, within a frame perhaps.
    Cut,
    HalfClose,
    /// Attaches to its session with another connection while this one lives.
    Attach,
    CloseSession,
}

const ACTS: [(Act, u64); 19] = [
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
    /// The last is the newest.
    lines: Vec<Line>,
    tenancy: Option<Tenancy>,
    /// Counts attachments.
    epoch: u64,
}

const OK: u8 = 0;

impl Lessee {
    pub fn new(scene: Arc<Scene>, number: usize, machine: usize, random: Random, leases: Leases) -> Self {
        Self { scene, number, machine, random, leases, lines: Vec::new(), tenancy: None, epoch: 0 }
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
                    tokio::select! {
                        biased;
                        () = self.work() => {}
                        () = rest => {}
                    }
                    self.forget();
                }
                Phase::Ask => {
                    self.ask().await;
                    self.forget();
                }
                Phase::Rest => {}
            }
            let pause_ms = self.random.between(10, 200);
            sleep(Duration::from_millis(pause_ms)).await;
        }
    }

    fn forget(&mut self) {
        self.lines.clear();
        self.tenancy = None;
    }

    async fn work(&mut self) {
        loop {
            if self.lines.is_empty() && !self.connect().await {
                let pause_ms = self.random.between(10, 300);
                sleep(Duration::from_millis(pause_ms)).await;
                continue;
            }
            self.settle().await;
            if self.lines.is_empty() || self.tenancy.is_none() {
                continue;
            }
            let act = self.random.weighted(&self.leases.acts);
            self.act(act).await;
        }
    }

    /// Opens a further connection and introduces itself.
    async fn connect(&mut self) -> bool {
        let namespace = Namespace::ALL[self.random.between(0, 1) as usize];
        let Some(mut line) = Line::open(&self.scene, self.number, self.machine, namespace).await else {
            return false;
        };
        if self.scene.phase() == Phase::Rest {
            return false;
        }
        line.says_hello = self.random.percent(80);
        if line.says_hello {
            let mut bytes = BytesMut::new();
            let hello = Extended::Hello { version: 1, label: b"lessee", credentials: &[] };
            line.compose(&hello, (Asked::Hello, 0, self.epoch), &mut bytes);
            self.lines.push(line);
            self.send(self.lines.len() - 1, bytes).await;
        } else {
            self.lines.push(line);
        }
        true
    }

    /// Sees to it that it has a session, attached to one of its connections.
    async fn settle(&mut self) {
        let has_left = self.tenancy.as_ref().is_some_and(|tenancy| {
            !tenancy.is_of_this_server()
                || tenancy.key.is_none() && !self.lines.iter().any(|line| line.local == tenancy.line)
        });
        if has_left {
            self.tenancy = None;
        }
        let at = self.lines.len() - 1;
        match &self.tenancy {
            None => {
                let line = &self.lines[at];
                let may_use_own = line.says_hello && !line.was_leased;
                let uses_own = may_use_own && self.random.percent(self.leases.own_percent);
                if !uses_own {
                    let ttl_ms = self.random.between(1000, self.leases.ttl_ms_max) as u32;
                    let open = Extended::OpenSession { ttl: Some(Milliseconds(ttl_ms)), label: b"leased" };
                    self.epoch += 1;
                    self.tell(at, &open, Asked::Open).await;
                } else if let Some(own) = line.own {
                    self.tenancy = Some(Tenancy::new(&self.scene, line, own, None));
                    return;
                }
                while !self.lines.is_empty() && self.tenancy.is_none() && self.awaits_session() {
                    self.hear(50).await;
                }
            }
            Some(tenancy) => {
                let is_here = self.lines.iter().any(|line| line.local == tenancy.line);
                let is_asked = self.lines.iter().any(|line| {
                    line.awaited
                        .values()
                        .any(|awaited| matches!(awaited.asked, Asked::Attach) && awaited.epoch == self.epoch)
                });
                if tenancy.key.is_some() && !(is_here && (tenancy.is_attached || is_asked)) {
                    self.attach(at).await;
                }
            }
        }
    }

    fn awaits_session(&self) -> bool {
        self.lines.iter().any(|line| {
            let is_hello = line.says_hello && line.own.is_none();
            is_hello || line.awaited.values().any(|awaited| matches!(awaited.asked, Asked::Open))
        })
    }

    /// Takes its session to a connection, with all that is not answered.
    async fn attach(&mut self, at: usize) {
        let (Some(tenancy), Some(line)) = (&mut self.tenancy, self.lines.get_mut(at)) else { return };
        let Some(key) = tenancy.key else { return };
        self.epoch += 1;
        let mut bytes = BytesMut::new();
        let attach = Extended::AttachSession { session: tenancy.session, key };
        line.compose(&attach, (Asked::Attach, tenancy.session, self.epoch), &mut bytes);
        tenancy.line = line.local;
        tenancy.is_attached = false;
        for id in tenancy.unanswered() {
            tenancy.repeat(line, id, self.epoch, &mut bytes);
        }
        self.scene.event(self.number, format_args!("attaches {} to {}", line.local, tenancy.session));
        self.send(at, bytes).await;
    }

    /// Which connection acts for the session.
    fn acting(&self) -> Option<usize> {
        let tenancy = self.tenancy.as_ref()?;
        self.lines.iter().position(|line| line.local == tenancy.line)
    }

    async fn act(&mut self, act: Act) {
        let Some(at) = self.acting() else { return };
        match act {
            Act::Acquire => self.errands(at, 1, 3, false).await,
            Act::AcquireAll => self.errands(at, 1, 1, true).await,
            Act::Pipeline => self.errands(at, 20, 80, false).await,
            Act::Release => {
                let held = self.tenancy.iter().flat_map(|tenancy| tenancy.held.iter().copied());
                let held: Vec<_> = held.collect();
                // Now and then one that it does not hold.
                let grant = if self.random.percent(5) { Some(1 << 60) } else { self.pick(&held) };
                if let Some(grant) = grant {
                    self.errand(at, vec![Errand::Release { grant }]).await;
                }
            }
            Act::Repeat => {
                let requests = self.tenancy.iter().flat_map(|tenancy| tenancy.requests.keys().copied());
                let requests: Vec<_> = requests.collect();
                if let Some(id) = self.pick(&requests)
                    && let Some(tenancy) = &mut self.tenancy
                {
                    let mut bytes = BytesMut::new();
                    tenancy.repeat(&mut self.lines[at], id, self.epoch, &mut bytes);
                    self.send(at, bytes).await;
                }
            }
            Act::Cancel => self.cancel(at).await,
            Act::KeepAlive => self.tell(at, &Extended::KeepAlive, Asked::KeepAlive).await,
            Act::Verify => {
                let grants = self.scene.state().claims.grants();
                if let Some(grant) = self.pick(&grants) {
                    let verify = Extended::VerifyGrant { grant: GrantId(grant) };
                    self.tell(at, &verify, Asked::Verify { grant }).await;
                }
            }
            Act::List => {
                let part = self.part();
                let request = Extended::Holders { namespace: on_wire(part.namespace), name: &part.name };
                let is_quiet = self.tenancy.as_ref().is_some_and(|tenancy| tenancy.unanswered().is_empty());
                self.tell(at, &request, Asked::List { is_quiet }).await;
            }
            Act::Watch => {
                let part = self.part();
                let scope =
                    if self.random.percent(50) { Scope::Prefix(b"") } else { Scope::Name(&part.name) };
                let watch = Extended::Watch { namespace: on_wire(part.namespace), scope };
                self.tell(at, &watch, Asked::Watch { number: 0, is_live: false }).await;
            }
            Act::Unwatch => {
                let of = |(opaque, awaited): (&u32, &Awaited)| {
                    matches!(awaited.asked, Asked::Watch { .. }).then_some(*opaque)
                };
                let watch = self.lines[at].awaited.iter().find_map(of);
                if let Some(watch) = watch {
                    let unwatch =
                        Extended::Unwatch { watch: signalbox::protocol::Opaque(watch.to_be_bytes()) };
                    self.tell(at, &unwatch, Asked::Unwatch { watch }).await;
                }
            }
            Act::Revoke => self.revoke(at).await,
            Act::Hear => {}
            Act::Ignore => {
                let pause_ms = self.random.between(1, 1500);
                sleep(Duration::from_millis(pause_ms)).await;
            }
            Act::FallSilent => {
                let ttl_ms = self.tenancy.as_ref().map_or(0, |tenancy| u64::from(tenancy.ttl_ms));
                let silence_ms = self.random.between(ttl_ms / 2, ttl_ms * 3 / 2);
                self.scene.event(self.number, format_args!("says nothing for {silence_ms} ms"));
                self.hear(silence_ms).await;
            }
            Act::Cut => {
                if self.random.percent(50) {
                    let mut bytes = BytesMut::new();
                    let request = Extended::VerifyGrant { grant: GrantId(1) };
                    let asked = (Asked::KeepAlive, 0, self.epoch);
                    self.lines[at].compose(&request, asked, &mut bytes);
                    bytes.truncate(self.random.between(1, bytes.len() as u64 - 1) as usize);
                    self.send(at, bytes).await;
                }
                self.drop_line(at);
                return;
            }
            Act::HalfClose => {
                let end = self.lines[at].half_close().await;
                self.keep(at, end);
                let until_ms = self.scene.state().now_ms + 2000;
                // The simulated network may hold the end back, as behind a full buffer.
                while self.acting() == Some(at) && self.scene.state().now_ms < until_ms {
                    self.hear(100).await;
                }
                if self.acting() == Some(at) {
                    self.drop_line(at);
                }
                return;
            }
            Act::Attach => {
                if self.lines.len() < 2 && !self.connect().await {
                    return;
                }
                let to = self.random.between(0, self.lines.len() as u64) as usize;
                self.attach(to.min(self.lines.len().saturating_sub(1))).await;
                if self.lines.len() > 1 && self.random.percent(30) {
                    let other = (0..self.lines.len()).find(|other| Some(*other) != self.acting());
                    self.drop_line(other.expect("there are two"));
                }
            }
            Act::CloseSession => {
                if let Some(tenancy) = &self.tenancy
                    && tenancy.key.is_some()
                {
                    self.scene.state().claims.let_session_go(tenancy.session);
                    self.tell(at, &Extended::CloseSession, Asked::Close).await;
                    self.tenancy = None;
                    self.epoch += 1;
                }
                return;
            }
        }
        let hear_ms = self.random.weighted(&[(0, 1), (30, 2), (200, 2), (1000, 1)]);
        let hear_ms = self.random.between(0, hear_ms);
        self.hear(hear_ms).await;
    }

    fn drop_line(&mut self, at: usize) {
        if at < self.lines.len() {
            let line = self.lines.remove(at);
            self.scene.event(self.number, format_args!("cuts {}", line.local));
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
    async fn errands(&mut self, at: usize, low: u64, high: u64, is_all: bool) {
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
                errands.push(Errand::Release { grant: 1 << 60 });
            }
        }
        self.errand(at, errands).await;
    }

    async fn errand(&mut self, at: usize, errands: Vec<Errand>) {
        let Some(tenancy) = &mut self.tenancy else { return };
        let mut bytes = BytesMut::new();
        for errand in errands {
            let forgets = self.random.percent(50);
            tenancy.ask(&mut self.lines[at], errand, self.epoch, forgets, &mut bytes);
        }
        self.send(at, bytes).await;
    }

    async fn cancel(&mut self, at: usize) {
        let Some(tenancy) = &mut self.tenancy else { return };
        let unanswered = tenancy.unanswered();
        let Some(id) = unanswered.first().copied() else { return };
        let Some(request) = tenancy.requests.get_mut(&id) else { return };
        request.is_canceled = true;
        let (line, opaque) = request.expected;
        let waiting = if line == self.lines[at].local && self.random.percent(50) {
            WaitingRequest::Opaque(signalbox::protocol::Opaque(opaque.to_be_bytes()))
        } else {
            WaitingRequest::Id(RequestId(id))
        };
        self.tell(at, &Extended::Cancel(waiting), Asked::Cancel).await;
    }

    async fn revoke(&mut self, at: usize) {
        let (grants, sessions) = {
            let state = self.scene.state();
            (state.claims.grants(), state.claims.sessions())
        };
        let what = if self.random.percent(60) {
            self.pick(&grants).map(|grant| Revocation::Grant(GrantId(grant)))
        } else {
            self.pick(&sessions).map(Revocation::Session)
        };
        if let Some(what) = what {
            let grace_ms = self.random.weighted(&[(0, 1), (50, 1), (700, 1)]);
            self.scene.event(self.number, format_args!("revokes {what:?}"));
            self.errand(at, vec![Errand::Revoke { what, grace_ms }]).await;
        }
    }

    /// Sends one request.
    async fn tell(&mut self, at: usize, request: &Extended<'_>, asked: Asked) {
        let session = self.tenancy.as_ref().map_or(0, |tenancy| tenancy.session);
        let mut bytes = BytesMut::new();
        self.lines[at].compose(request, (asked, session, self.epoch), &mut bytes);
        self.send(at, bytes).await;
    }

    async fn send(&mut self, at: usize, bytes: BytesMut) {
        let pace = if bytes.len() < 200 && self.random.percent(self.leases.bytewise_percent) {
            Pace::Pieces(1)
        } else if self.random.percent(20) {
            Pace::Pieces(self.random.between(20, 200) as usize)
        } else {
            Pace::Whole
        };
        let local = self.lines[at].local;
        self.scene.event(self.number, format_args!("sends {} bytes on {local}", bytes.len()));
        let sent = self.lines[at].send(&bytes, pace).await;
        self.keep(at, sent);
    }

    /// Gives a connection up that has ended.
    fn keep(&mut self, at: usize, end: Result<(), End>) {
        let Err(end) = end else { return };
        let line = self.lines.remove(at);
        let is_revoked = line.own.is_some_and(|own| self.scene.state().claims.is_taken(own));
        match end {
            End::Lost(_) if is_revoked => {
                self.scene.event(self.number, format_args!("is closed, having been revoked"));
            }
            end => note_end(&self.scene, self.number, self.machine, line.opened_ms, end),
        }
    }

    /// Reads for a while.
    async fn hear(&mut self, for_ms: u64) {
        let deadline = Instant::now() + Duration::from_millis(for_ms);
        loop {
            for at in (0..self.lines.len()).rev() {
                let judged = self.judge_all(at);
                self.keep(at, judged);
            }
            let read = match &mut self.lines[..] {
                [] => timeout_at(deadline, pending()).await,
                [line] => timeout_at(deadline, async { (0, line.read().await) }).await,
                [line, other, ..] => {
                    let both = async {
                        tokio::select! {
                            biased;
                            read = line.read() => (0, read),
                            read = other.read() => (1, read),
                        }
                    };
                    timeout_at(deadline, both).await
                }
            };
            match read {
                Ok((at, read)) => self.keep(at, read),
                Err(_) => return,
            }
        }
    }

    fn judge_all(&mut self, at: usize) -> Result<(), End> {
        while let Some((opaque, awaited, frame)) = self.lines[at].next()? {
            self.judge(at, opaque, awaited, &frame)?;
        }
        self.lines[at].check_overdue()
    }

    fn judge(&mut self, at: usize, opaque: u32, awaited: Awaited, frame: &ResponseFrame) -> Result<(), End> {
        let status = Status::from_code(frame.status);
        let wrong = |what: &str| {
            let text = frame.body.escape_ascii();
            Err(End::Wrong(format!("{what}: {awaited:?} is answered {status:?}, \"{text}\"")))
        };
        self.scene.event(self.number, format_args!("{opaque}, {:?}: {:#04x}", awaited.asked, frame.status));
        let now_ms = self.scene.state().now_ms;
        let is_ok = frame.status == OK;
        let is_current = awaited.epoch == self.epoch;
        let refused_session = status == Some(Status::NoSuchSession);
        let tenancy = self.tenancy.as_mut().filter(|tenancy| tenancy.session == awaited.session);
        let line = &mut self.lines[at];
        match awaited.asked {
            Asked::Hello if line.own.is_none() => {
                let Ok(hello) = frame.hello() else { return wrong("no Hello") };
                line.own = Some(hello.session);
                let mut state = self.scene.state();
                if state.server_stops == line.stops {
                    state.claims.introduce(hello.session, line.local);
                }
            }
            Asked::Hello => match frame.notice() {
                Ok(Some(Notice::ShuttingDown { .. })) | Err(_) => return wrong("no notice to be had"),
                Ok(_) => {}
            },
            Asked::Open => {
                let Ok(opened) = frame.opened() else { return wrong("no session") };
                let lease = (opened.key, opened.ttl.0);
                if is_ok && line.stops == self.scene.state().server_stops {
                    let until_ms = awaited.sent_ms + u64::from(opened.ttl.0);
                    self.scene.state().claims.renew(opened.session, until_ms);
                    self.tenancy = Some(Tenancy::new(&self.scene, line, opened.session, Some(lease)));
                }
            }
            Asked::Attach => {
                let Some(tenancy) = tenancy else { return Ok(()) };
                if !is_ok {
                    let ends_ms = self.scene.state().claims.lease_ends_ms(awaited.session);
                    if !refused_session || (ends_ms > now_ms && tenancy.is_of_this_server()) {
                        return wrong("a session that its client has still");
                    }
                    self.tenancy = None;
                    return Ok(());
                }
                if frame.ttl() != Ok(Milliseconds(tenancy.ttl_ms)) {
                    return wrong("another time to live");
                }
                tenancy.is_attached |= is_current;
                renew(&self.scene, tenancy, awaited.sent_ms, tenancy.ttl_ms);
            }
            Asked::KeepAlive if is_ok => {
                let (Some(tenancy), Ok(ttl)) = (tenancy, frame.ttl()) else { return Ok(()) };
                if tenancy.key.is_none() || ttl.0 > tenancy.ttl_ms {
                    return wrong("too long a lease");
                }
                renew(&self.scene, tenancy, awaited.sent_ms, ttl.0);
            }
            Asked::KeepAlive | Asked::Close | Asked::Cancel if refused_session => {
                if let Some(tenancy) = tenancy {
                    tenancy.is_attached &= !is_current;
                }
            }
            Asked::Close if is_ok => {}
            Asked::Cancel if is_ok || status == Some(Status::NotFound) => {}
            Asked::KeepAlive | Asked::Close | Asked::Cancel => return wrong("not to be expected"),
            Asked::Verify { grant } => {
                let is_believed = self.scene.state().claims.is_believed(grant, now_ms);
                if !is_ok && (status != Some(Status::NotAcquired) || is_believed) {
                    return wrong("a grant that is held");
                }
            }
            Asked::List { is_quiet } => {
                if !is_ok {
                    return if status == Some(Status::NotFound) { Ok(()) } else { wrong("no list") };
                }
                let Ok(entry) = frame.list_entry() else { return wrong("no entry") };
                let (Some(entry), Some(tenancy)) = (entry, tenancy) else { return Ok(()) };
                let is_mine = entry.session == tenancy.session && is_quiet && is_current;
                if let Some(GrantId(grant)) = entry.grant.filter(|_| is_mine)
                    && !tenancy.held.contains(&grant)
                    && !tenancy.released.contains(&grant)
                {
                    return wrong("a grant that nobody was told of");
                }
            }
            Asked::Watch { number, is_live } => {
                if !is_ok {
                    let is_right = !line.says_hello && status == Some(Status::NotPermitted);
                    return if is_right { Ok(()) } else { wrong("no watch") };
                }
                let Ok(event) = frame.event() else { return wrong("no event") };
                let is_early = matches!(event.kind, EventKind::Live);
                if event.number != number + 1 || (is_early && is_live) {
                    return wrong("an event out of turn");
                }
                let is_live = is_live || is_early;
                if let Some(awaited) = line.awaited.get_mut(&opaque) {
                    awaited.asked = Asked::Watch { number: event.number, is_live };
                }
            }
            Asked::Unwatch { watch } => {
                line.awaited.remove(&watch);
                if !is_ok && status != Some(Status::NotFound) {
                    return wrong("a watch that cannot be ended");
                }
            }
            Asked::Request { id, wait_ms } => {
                let Some(tenancy) = tenancy else { return Ok(()) };
                let is_expected =
                    tenancy.requests.get(&id).is_some_and(|request| request.expected == (line.local, opaque));
                return match judge_request(
                    &self.scene,
                    line,
                    tenancy,
                    (id, wait_ms, is_expected),
                    awaited,
                    frame,
                ) {
                    Ok(Heard::Session) if is_current && tenancy.is_attached => {
                        renew(&self.scene, tenancy, awaited.sent_ms, tenancy.ttl_ms);
                        Ok(())
                    }
                    Ok(Heard::NoSession) => {
                        tenancy.is_attached &= !is_current;
                        Ok(())
                    }
                    Ok(_) => Ok(()),
                    Err(what) => wrong(&what),
                };
            }
        }
        Ok(())
    }

    /// Asks for one of a few places until there is one; leaves it soon.
    async fn ask(&mut self) {
        if self.scene.state().satisfied.contains(&self.number) || !self.connect().await {
            return;
        }
        self.leases.own_percent = 0;
        while self.tenancy.is_none() {
            if self.lines.is_empty() {
                return;
            }
            self.settle().await;
        }
        let name = format!("asked {}", self.number % 5).into_bytes();
        let namespace = Namespace::ALL[self.number % 2];
        let parts = vec![Part { namespace, name, resources: 1, maximum: 2 }];
        self.errand(0, vec![Errand::Acquire { parts, is_all: false, wait_ms: 60_000, queue_max: None }])
            .await;
        loop {
            self.hear(50).await;
            let Some(tenancy) = self.tenancy.as_ref().filter(|_| !self.lines.is_empty()) else { return };
            if let Some(grant) = tenancy.held.first().copied() {
                self.errand(0, vec![Errand::Release { grant }]).await;
                break;
            }
            if self.random.percent(20) {
                self.tell(0, &Extended::KeepAlive, Asked::KeepAlive).await;
            }
        }
        self.hear(300).await;
        self.scene.state().satisfied.insert(self.number);
    }
}

/// What an answer says of the session.
enum Heard {
    Session,
    NoSession,
    Nothing,
}

fn renew(scene: &Scene, tenancy: &Tenancy, sent_ms: u64, ttl_ms: u32) {
    let mut state = scene.state();
    if tenancy.key.is_some() && state.server_stops == tenancy.stops {
        state.claims.renew(tenancy.session, sent_ms + u64::from(ttl_ms));
    }
}

/// Judges the answer to a request that has an id.
fn judge_request(
    scene: &Scene,
    line: &Line,
    tenancy: &mut Tenancy,
    (id, wait_ms, is_expected): (u64, Option<u32>, bool),
    awaited: Awaited,
    frame: &ResponseFrame,
) -> Result<Heard, String> {
    let now_ms = scene.state().now_ms;
    let is_over = !tenancy.is_of_this_server() || scene.state().claims.is_taken(tenancy.session);
    let Some(request) = tenancy.requests.get_mut(&id) else { return Ok(Heard::Nothing) };
    let Some(status) = Status::from_code(frame.status) else { return Err("an unknown status".to_owned()) };
    let is_ok = frame.status == OK;
    let is_revocation = matches!(request.errand, Errand::Revoke { .. });
    match status {
        Status::NoSuchSession if is_revocation => {
            // Its own session or the one to be revoked: there is no telling, so it is not asked again.
            tenancy.requests.remove(&id);
            return Ok(Heard::NoSession);
        }
        Status::NoSuchSession if tenancy.key.is_none() && !is_over => {
            return Err("its own session".to_owned());
        }
        Status::NoSuchSession => return Ok(Heard::NoSession),
        Status::Revoked if is_over => return Ok(Heard::NoSession),
        // Another repetition of it is waited for, or was answered.
        Status::Canceled | Status::InvalidArguments if !is_expected => return Ok(Heard::Nothing),
        _ => {}
    }
    let mut grant = 0;
    match &request.errand {
        Errand::Acquire { parts, is_all, .. } if is_ok => {
            let (number, ttl_left, capacities) = if *is_all {
                let granted = frame.all_granted().map_err(|_| "no grant")?;
                (granted.grant, granted.ttl_left, granted.capacities)
            } else {
                let granted = frame.granted().map_err(|_| "no grant")?;
                if granted.resources != parts[0].resources {
                    return Err("not what was asked for".to_owned());
                }
                (granted.grant, granted.ttl_left, vec![granted.capacity])
            };
            if capacities != parts.iter().map(|part| part.maximum).collect::<Vec<_>>() {
                return Err("another capacity".to_owned());
            }
            grant = number.0;
            match ttl_left {
                TtlLeft::For(left) if tenancy.key.is_some() => {
                    let mut state = scene.state();
                    if state.server_stops == tenancy.stops {
                        state.claims.renew(tenancy.session, awaited.sent_ms + u64::from(left.0));
                    }
                }
                TtlLeft::Connection if tenancy.key.is_none() => {}
                _ if is_over => {}
                _ => return Err("a lease of the wrong kind".to_owned()),
            }
            let is_known = tenancy.held.contains(&grant) || tenancy.released.contains(&grant);
            if request.answer.is_none() {
                if is_known {
                    return Err("the grant of another request".to_owned());
                }
                tenancy.held.insert(grant);
                let connection = tenancy.key.is_none().then_some(line.local);
                let parts = Tenancy::parts_of(parts);
                let claim = Claim { session: tenancy.session, connection, parts };
                scene.claim(line.local, tenancy.stops, grant, claim);
            }
        }
        Errand::Acquire { queue_max, .. } => {
            let waited_ms = u64::from(wait_ms.unwrap_or(0));
            let is_right = match status {
                Status::ResourceNotAvailable => wait_ms.is_none(),
                Status::TimedOut => wait_ms.is_some() && now_ms >= request.first_sent_ms + waited_ms,
                Status::QueueFull => queue_max.is_some(),
                Status::Canceled => request.is_canceled,
                _ => false,
            };
            if !is_right {
                return Err("not to be expected".to_owned());
            }
        }
        Errand::Release { grant } => {
            let mut state = scene.state();
            let is_lost = state.claims.is_taken(*grant)
                || tenancy.key.is_some() && state.claims.lease_ends_ms(tenancy.session) <= now_ms
                || *grant == 1 << 60;
            state.claims.let_go(*grant);
            if !is_ok && (status != Status::NotAcquired || !is_lost && !is_over) {
                return Err("a grant that it held".to_owned());
            }
        }
        Errand::Revoke { .. } => {
            if !is_ok && status != Status::NotAcquired {
                return Err("not to be expected".to_owned());
            }
        }
    }
    let answer = (frame.status, grant);
    if *request.answer.get_or_insert(answer) != answer {
        return Err(format!("it was answered {:x?} before", request.answer));
    }
    Ok(Heard::Session)
}

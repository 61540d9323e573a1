//! The list of all sessions, and the revocation of the leased sessions of clients, compared with what is obviously right:
//! random clients open sessions, acquire, attach from elsewhere and leave.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use proptest::prelude::*;
use signalbox_core::{
    Answer, Call, Claim, ClientSelector, Connected, ConnectionId, Core, ListedId, Mailbox, Message, Moment,
    MonotonicMs, NameHasher, Namespace, Outcome, Queueing, RequestId, RequestIds, Session, SessionClient,
    SessionId, SessionKey, Token, UnixSeconds, Want,
};

const TTL_MS: u32 = 1_000_000;

#[derive(Clone, Debug)]
enum Step {
    /// A connection opens a session, and is attached to it.
    Open { by: usize },
    /// A connection attaches to a session.
    Attach { by: usize, session: usize },
    /// A connection's session acquires something of which there are few, and may have to wait.
    Acquire { by: usize },
    /// A connection ends, and another one of the same client takes its place.
    Leave { by: usize },
    /// The sessions of the clients with some addresses are revoked.
    Revoke { by: usize, first: u8, last: u8, grace_ms: u32 },
    /// The sessions of the clients with an identity are revoked.
    RevokeIdentity { by: usize, of: usize, grace_ms: u32 },
    /// Time passes.
    Time { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let by = 0..CLIENTS;
    prop_oneof![
        3 => by.clone().prop_map(|by| Step::Open { by }),
        2 => (by.clone(), any::<usize>()).prop_map(|(by, session)| Step::Attach { by, session }),
        3 => by.clone().prop_map(|by| Step::Acquire { by }),
        1 => by.clone().prop_map(|by| Step::Leave { by }),
        1 => (by.clone(), 0..4_u8, 0..4_u8, prop_oneof![Just(0), 1..50_u32]).prop_map(|(by, one, other, grace_ms)| {
            Step::Revoke { by, first: one.min(other), last: one.max(other), grace_ms }
        }),
        1 => (by.clone(), by, 0..50_u32)
            .prop_map(|(by, of, grace_ms)| Step::RevokeIdentity { by, of, grace_ms }),
        1 => (1..40_u64).prop_map(|ms| Step::Time { ms }),
    ]
}

/// Clients, with one connection each. The address of each ends with its number.
const CLIENTS: usize = 4;

/// What is known of a leased session.
#[derive(Clone, Debug)]
struct Leased {
    key: SessionKey,
    opened_ms: u64,
    /// The client that has it or had it last, and whether it has it now.
    client: usize,
    is_attached: bool,
    grants: u32,
    waiting: u32,
    ends_ms: Option<u64>,
}

struct Run {
    core: Core,
    connections: Vec<(Session, Arc<Mailbox>)>,
    /// The leased sessions that have not ended.
    leased: BTreeMap<SessionId, Leased>,
    last_key: u8,
    requests: u64,
    now_ms: u64,
}

fn address_of(client: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, client as u8)), 4660)
}

/// Two clients have one identity, and the others none.
fn identity_of(client: usize) -> Option<&'static str> {
    (client % 2 == 1).then_some("token:odd")
}

fn known(client: usize) -> SessionClient {
    SessionClient { address: address_of(client), identity: identity_of(client).map(Into::into) }
}

fn range(first: u8, last: u8) -> ClientSelector {
    let mapped = |number| Ipv4Addr::new(10, 0, 0, number).to_ipv6_mapped();
    ClientSelector::Addresses(mapped(first)..=mapped(last))
}

impl Run {
    fn new() -> Self {
        let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
        let connections = (0..CLIENTS).map(|client| joined(&core, client)).collect();
        Self { core, connections, leased: BTreeMap::new(), last_key: 0, requests: 0, now_ms: 0 }
    }

    fn now(&self) -> Moment {
        Moment { monotonic: MonotonicMs(self.now_ms), unix: UnixSeconds(self.now_ms / 1000) }
    }

    fn id(&self, by: usize) -> ConnectionId {
        self.connections[by].0.id()
    }

    fn token(&mut self) -> Token {
        self.requests += 1;
        Token(self.requests)
    }

    /// The session that the connection of a client is attached to.
    fn attached(&self, by: usize) -> Option<SessionId> {
        let is_its = |leased: &&Leased| leased.client == by && leased.is_attached;
        self.leased.iter().find(|(_, leased)| is_its(leased)).map(|(session, _)| *session)
    }

    fn detach(&mut self, by: usize) {
        if let Some(session) = self.attached(by) {
            self.leased.get_mut(&session).unwrap().is_attached = false;
        }
    }

    fn take(&mut self, step: Step) {
        let (core, now) = (&self.core, self.now());
        match step {
            Step::Open { by } => {
                self.last_key = self.last_key.wrapping_add(1);
                let (key, token) = (SessionKey([self.last_key; 16]), self.token());
                let opened = self.core.open_leased(self.id(by), key, TTL_MS, b"leased", token, now);
                let Outcome::Answered(Answer::Opened(opened)) = opened else { panic!("{opened:?}") };
                self.detach(by);
                let leased = Leased {
                    key,
                    opened_ms: self.now_ms,
                    client: by,
                    is_attached: true,
                    grants: 0,
                    waiting: 0,
                    ends_ms: None,
                };
                self.leased.insert(opened.session, leased);
            }
            Step::Attach { by, session } => {
                let Some(session) = self.leased.keys().nth(session % self.leased.len().max(1)).copied()
                else {
                    return;
                };
                let key = self.leased[&session].key;
                core.attach(session, self.id(by), &key, now).unwrap();
                if self.attached(by) != Some(session) {
                    self.detach(by);
                }
                let leased = self.leased.get_mut(&session).unwrap();
                (leased.client, leased.is_attached) = (by, true);
            }
            Step::Acquire { by } => {
                let Some(session) = self.attached(by) else { return };
                // Each session has a counter of its own, so only its own grants decide whether it waits.
                let name = session.number().to_be_bytes();
                let claim = Claim::new(1, 2).unwrap();
                let want = Want { namespace: Namespace::Counters, name: &name, claim, slot: None };
                let Token(number) = self.token();
                let ids = RequestIds { own: RequestId(number), lowest_unanswered: RequestId(number) };
                let call = Call { connection: self.id(by), ids, token: Token(number) };
                let queueing = Queueing { wait_ms: TTL_MS, queue_max: u32::MAX };
                let outcome = self.core.acquire_grant(call, &[want], queueing, now);
                let leased = self.leased.get_mut(&session).unwrap();
                match outcome {
                    Outcome::Answered(_) => leased.grants += 1,
                    Outcome::Waiting => leased.waiting += 1,
                    Outcome::Refused(refusal) => panic!("{refusal:?}"),
                }
            }
            Step::Leave { by } => {
                let connection = self.id(by);
                let (session, _) = std::mem::replace(&mut self.connections[by], joined(&self.core, by));
                let mut ending = self.core.end_session(session);
                while ending.step(1, now.unix) {}
                while self.core.leave(connection, now) {}
                self.detach(by);
            }
            Step::Revoke { by, first, last, grace_ms } => {
                let clients = usize::from(first)..=usize::from(last);
                self.revoke(by, range(first, last), |client| clients.contains(&client), grace_ms);
            }
            Step::RevokeIdentity { by, of, grace_ms } => {
                // One that no client has, if the client has none.
                let identity = identity_of(of).unwrap_or("certificate:odd");
                let has_it = |client| identity_of(client) == Some(identity);
                self.revoke(by, ClientSelector::Identity(identity.into()), has_it, grace_ms);
            }
            Step::Time { ms } => {
                self.now_ms += ms;
                self.settle();
                self.end_revoked();
            }
        }
    }

    /// Revokes the sessions of some clients, those for which `is_meant` is true.
    fn revoke(
        &mut self,
        by: usize,
        clients: ClientSelector,
        is_meant: impl Fn(usize) -> bool,
        grace_ms: u32,
    ) {
        let (token, now) = (self.token(), self.now());
        while self.connections[by].1.take().is_some() {}
        let asked = self.core.revoke_clients((self.id(by), token), clients, grace_ms, now);
        assert_eq!(asked, Outcome::Waiting);
        self.settle();
        let ends_ms = self.now_ms + u64::from(grace_ms);
        let mut sessions = 0;
        for leased in self.leased.values_mut().filter(|leased| is_meant(leased.client)) {
            leased.ends_ms = Some(leased.ends_ms.map_or(ends_ms, |before| before.min(ends_ms)));
            sessions += 1;
        }
        let expected = Message::Answer { token, outcome: Ok(Answer::Revoked { sessions }) };
        let mut messages = std::iter::from_fn(|| self.connections[by].1.take());
        assert!(messages.any(|message| message == expected), "{sessions} sessions");
        self.end_revoked();
    }

    /// Does what is due.
    fn settle(&self) {
        while self.core.expire(self.now()) | self.core.evict(self.now(), |_| None) {}
    }

    fn end_revoked(&mut self) {
        let now_ms = self.now_ms;
        self.leased.retain(|_, leased| leased.ends_ms.is_none_or(|ends_ms| ends_ms > now_ms));
    }

    /// The list has every leased session and every connection, once, as it is.
    fn check(&self) {
        let now = self.now();
        let mut connected: Vec<_> = self
            .connections
            .iter()
            .enumerate()
            .map(|(client, (session, _))| Connected {
                connection: session.id(),
                client: known(client),
                opened: MonotonicMs(0),
            })
            .collect();
        connected.sort_by_key(|one| one.connection);
        // One connection a step.
        let after = |last: Option<SessionId>| {
            let mut rest =
                connected.iter().filter(|one| last.is_none_or(|last| one.connection.session() > last));
            rest.next().cloned().into_iter().collect()
        };
        let mut listing = self.core.sessions();
        let mut listed = Vec::new();
        loop {
            let some = self.core.list_sessions(&mut listing, after, now);
            if some.is_empty() {
                break;
            }
            listed.extend(some);
        }
        let mut listed = listed.into_iter();
        for (session, leased) in &self.leased {
            let found = listed.next().unwrap();
            assert_eq!(found.id, ListedId::Leased(*session));
            assert_eq!((found.client, found.is_attached), (Some(known(leased.client)), leased.is_attached));
            assert_eq!((found.grants, found.waiting), (leased.grants, leased.waiting));
            assert_eq!(found.age_ms, Some(self.now_ms - leased.opened_ms));
            let left_ms = u64::from(found.ttl_left_ms.unwrap());
            match leased.ends_ms {
                Some(ends_ms) => assert_eq!(left_ms, ends_ms - self.now_ms),
                None => assert!(left_ms <= TTL_MS.into() && left_ms > 0),
            }
        }
        for one in connected {
            let found = listed.next().unwrap();
            assert_eq!(
                (found.id, found.client),
                (ListedId::Connection(one.connection), Some(one.client.clone()))
            );
            assert_eq!((found.grants, found.ttl_left_ms), (0, None));
        }
        assert_eq!(listed.next(), None);
        self.core.check_ledger().unwrap();
    }
}

fn joined(core: &Core, client: usize) -> (Session, Arc<Mailbox>) {
    let (session, mailbox) = (core.open_session(), Arc::new(Mailbox::of(address_of(client), None)));
    if let Some(identity) = identity_of(client) {
        mailbox.identify(identity);
    }
    core.join(session.id(), None, &mailbox);
    (session, mailbox)
}

proptest! {
    #![proptest_config(crate::cases(300))]

    #[test]
    fn the_sessions_of_clients_are_listed_and_revoked(steps in prop::collection::vec(step(), 1..60)) {
        let mut run = Run::new();
        for step in steps {
            run.take(step);
            run.check();
        }
    }
}

/// A step looks at a bounded number of sessions, and what is opened after the request stays.
#[test]
fn sessions_are_revoked_in_steps_and_later_ones_stay() {
    let mut run = Run::new();
    for _ in 0..100 {
        run.take(Step::Open { by: 1 });
    }
    let now = run.now();
    let token = run.token();
    while run.connections[0].1.take().is_some() {}
    let asked = run.core.revoke_clients((run.id(0), token), range(1, 1), 0, now);
    assert_eq!(asked, Outcome::Waiting);
    assert!(run.core.evict(now, |_| None));
    let revoked = run.core.ledger_stats().revoked;
    assert!((1..100).contains(&revoked), "{revoked} of 100 sessions in one step");
    run.take(Step::Open { by: 1 });
    run.settle();
    let expected = Message::Answer { token, outcome: Ok(Answer::Revoked { sessions: 100 }) };
    assert_eq!(run.connections[0].1.take(), Some(expected));
    assert_eq!(run.core.ledger_stats().sessions, 1, "the session that was opened later stays");
}

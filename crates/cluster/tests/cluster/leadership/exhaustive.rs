//! All histories of two nodes, up to a number of actions.
//!
//! At each instant, a node that wants to send a request may do so. The request is applied and answered at once, or it is
//! applied and its answer stays in flight until time has passed, or the request itself does. Later, a request in flight is
//! applied, an answer in flight arrives, or the node gives up; a request that was given up may still be applied at any time,
//! or never. A node that is frozen takes no action. This covers all histories: the effect of a request or an answer does not
//! depend on when it was sent within an instant. States that were reached before are not explored again.
//!
//! There are three starts: a leader with a standby (104,000 states after 8 actions), two standbys whose leader has crashed
//! (90,000 after 7), and a takeover whose answer was lost (up to 77,000 after 7). One clock is 4 % fast and the other 4 %
//! slow.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use signalbox_cluster::coordinator::{CallError, Compare, Operation, Transaction, TransactionAnswer};
use signalbox_cluster::keys::Leadership;
use signalbox_cluster::leadership::{Machine, Step};

use super::store::Store;
use super::world::{MS, Micros, Rate};
use super::{keys, machine};

/// Time passes in these spans. Twice the long one plus the short one is more than the lease duration by the fast clock, and
/// twice the long one is less than the renew deadline by the slow clock.
const SPANS: [Micros; 2] = [650 * MS, 1350 * MS];

#[derive(Clone)]
struct State {
    now: Micros,
    store: Store,
    nodes: [Node; 2],
    /// Requests that were given up and may still be applied.
    late: Vec<(usize, Transaction)>,
}

#[derive(Clone)]
struct Node {
    clock: Rate,
    machine: Machine,
    in_flight: Option<InFlight>,
}

#[derive(Clone, Debug)]
struct InFlight {
    transaction: Transaction,
    answer: Option<TransactionAnswer>,
    /// When it was sent or, if it was applied later, applied.
    since: Micros,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Pass(Micros),
    /// A request is sent, applied and answered.
    Exchange(usize),
    /// A request is sent and applied.
    SendAndApply(usize),
    Send(usize),
    /// The request in flight is applied, unless it was, and answered.
    Answer(usize),
    /// The request in flight is applied.
    Apply(usize),
    /// The node gives up its request in flight.
    GiveUp(usize),
    /// A request that a node gave up is applied.
    ApplyLate(usize),
}

impl State {
    /// Two nodes that have not joined.
    fn new(permille: [i64; 2]) -> Self {
        let node = |index: usize, name| Node {
            clock: Rate { permille: permille[index], offset_ms: 1000 },
            machine: machine(name, u32::try_from(index + 1).unwrap()),
            in_flight: None,
        };
        Self { now: 0, store: Store::default(), nodes: [node(0, "a"), node(1, "b")], late: Vec::new() }
    }

    /// A node does all it wants to do at this time.
    fn settle(&mut self, node: usize) {
        while self.wants_to_send(node).is_some() {
            self.act(Action::Exchange(node));
        }
    }

    fn wants_to_send(&mut self, index: usize) -> Option<Transaction> {
        let node = &mut self.nodes[index];
        if node.in_flight.is_some() {
            return None;
        }
        let now = node.clock.local(self.now);
        match node.machine.next(now) {
            Step::Send(transaction) => Some(transaction),
            Step::WaitUntil(_) | Step::End => None,
        }
    }

    fn actions(&mut self) -> Vec<Action> {
        let mut actions = SPANS.map(Action::Pass).to_vec();
        for index in 0..2 {
            let in_flight = self.nodes[index].in_flight.as_ref().map(|it| (it.since, it.answer.is_some()));
            match in_flight {
                // Within an instant, nothing more happens to it.
                Some((since, _)) if since == self.now => {}
                Some((_, true)) => actions.extend([Action::Answer(index), Action::GiveUp(index)]),
                Some((_, false)) => {
                    actions.extend([Action::Answer(index), Action::Apply(index), Action::GiveUp(index)]);
                }
                None if self.wants_to_send(index).is_some() => {
                    actions.extend([
                        Action::Exchange(index),
                        Action::SendAndApply(index),
                        Action::Send(index),
                    ]);
                }
                None => {}
            }
        }
        actions.extend((0..self.late.len()).map(Action::ApplyLate));
        actions
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Pass(span) => self.now += span,
            Action::Exchange(index) => {
                self.act(Action::Send(index));
                self.act(Action::Answer(index));
            }
            Action::SendAndApply(index) => {
                self.act(Action::Send(index));
                self.act(Action::Apply(index));
            }
            Action::Send(index) => {
                let transaction = self.wants_to_send(index).expect("it is one of the actions");
                let node = &mut self.nodes[index];
                node.machine.sent(node.clock.local(self.now));
                node.in_flight = Some(InFlight { transaction, answer: None, since: self.now });
            }
            Action::Apply(index) => {
                let mut in_flight = self.nodes[index].in_flight.take().expect("it is one of the actions");
                in_flight.answer = Some(self.apply(&in_flight.transaction));
                in_flight.since = self.now;
                self.nodes[index].in_flight = Some(in_flight);
            }
            Action::Answer(index) => {
                let in_flight = self.nodes[index].in_flight.take().expect("it is one of the actions");
                let answer = in_flight.answer.unwrap_or_else(|| self.apply(&in_flight.transaction));
                let node = &mut self.nodes[index];
                node.machine.answered(Ok(answer), node.clock.local(self.now));
            }
            Action::GiveUp(index) => {
                let node = &mut self.nodes[index];
                let in_flight = node.in_flight.take().expect("it is one of the actions");
                let error = CallError::Unanswered("timed out".to_owned());
                node.machine.answered(Err(error), node.clock.local(self.now));
                if in_flight.answer.is_none() {
                    self.late.retain(|(other, _)| *other != index);
                    self.late.push((index, in_flight.transaction));
                }
            }
            Action::ApplyLate(late) => {
                let (_, transaction) = self.late.remove(late);
                self.apply(&transaction);
            }
        }
    }

    fn apply(&mut self, transaction: &Transaction) -> TransactionAnswer {
        let epoch = |store: &Store| {
            store.value::<Leadership>(&keys().leadership()).map_or(0, |leadership| leadership.epoch)
        };
        let before = epoch(&self.store);
        let answer = self.store.transact(transaction);
        assert!(epoch(&self.store) == before || epoch(&self.store) == before + 1, "C2");
        answer
    }

    fn believes(&self, index: usize) -> bool {
        let node = &self.nodes[index];
        node.machine.deadline().is_some_and(|deadline| node.clock.local(self.now) < deadline)
    }

    /// Equal for states that continue in the same way.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.now, &self.store).hash(&mut hasher);
        for node in &self.nodes {
            format!("{:?}", node.machine).hash(&mut hasher);
            if let Some(in_flight) = &node.in_flight {
                in_flight.since.hash(&mut hasher);
                hash_transaction(&in_flight.transaction, &mut hasher);
                let answer = in_flight.answer.as_ref().map(|answer| (answer.revision, answer.held));
                answer.hash(&mut hasher);
                for entry in in_flight.answer.iter().flat_map(|answer| &answer.read) {
                    entry.as_ref().map(|entry| (&entry.key, entry.modified)).hash(&mut hasher);
                }
            }
        }
        for (node, transaction) in &self.late {
            node.hash(&mut hasher);
            hash_transaction(transaction, &mut hasher);
        }
        hasher.finish()
    }
}

fn hash_transaction(transaction: &Transaction, hasher: &mut DefaultHasher) {
    for compare in &transaction.compare {
        match compare {
            Compare::Modified { key, at } => (key, at).hash(hasher),
            Compare::Value { key, is } => (key, is).hash(hasher),
            Compare::NotAfter { from, to, at } => (from, to, at).hash(hasher),
        }
    }
    // The other branch only reads.
    for operation in &transaction.then {
        match operation {
            Operation::Put { key, value } => (key, value).hash(hasher),
            Operation::Delete { key } | Operation::Read { key } => key.hash(hasher),
        }
    }
}

/// Explores all histories of `depth` actions from this start. Returns the number of states.
fn explore(start: State, depth: usize) -> usize {
    let mut known = HashSet::from([start.fingerprint()]);
    let mut level = vec![(start, Vec::new())];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (state, path) in level {
            let mut state: State = state;
            for action in state.actions() {
                let mut after = state.clone();
                after.act(action);
                let believers = usize::from(after.believes(0)) + usize::from(after.believes(1));
                assert!(believers < 2, "both answer clients after {path:?}, {action:?}");
                if known.insert(after.fingerprint()) {
                    let mut path: Vec<Action> = path.clone();
                    path.push(action);
                    next.push((after, path));
                }
            }
        }
        level = next;
    }
    known.len()
}

#[test]
fn a_leader_and_a_standby() {
    for permille in [[-40, 40], [40, -40]] {
        let mut start = State::new(permille);
        start.settle(0);
        start.settle(1);
        assert!(start.believes(0));
        let states = explore(start, 8);
        assert!(states > 100_000, "{states}");
    }
}

#[test]
fn two_standbys_of_a_leader_that_crashed() {
    let mut crashed = State::new([0, 0]);
    crashed.nodes[0].machine = machine("c", 3);
    crashed.settle(0);
    let mut start = State { store: crashed.store, ..State::new([-40, 40]) };
    start.settle(0);
    start.settle(1);
    // The lease duration is almost over.
    start.act(Action::Pass(3300 * MS));
    let states = explore(start, 7);
    assert!(states > 85_000, "{states}");
}

#[test]
fn a_takeover_whose_answer_was_lost() {
    for permille in [[-40, 40], [40, -40]] {
        let mut crashed = State::new([0, 0]);
        crashed.nodes[0].machine = machine("c", 3);
        crashed.settle(0);
        let mut start = State { store: crashed.store, ..State::new(permille) };
        start.settle(0);
        start.settle(1);
        start.act(Action::Pass(3600 * MS));
        start.act(Action::SendAndApply(0));
        start.settle(1);
        start.act(Action::Pass(500 * MS));
        start.act(Action::GiveUp(0));
        let states = explore(start, 7);
        assert!(states > 45_000, "{states}");
    }
}

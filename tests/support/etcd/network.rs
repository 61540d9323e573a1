//! A network to a store in memory: the test decides what becomes of each call. There is no time in it, and calls return
//! at once; how long an unanswered call took is for the test to say.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use signalbox::cluster::coordinator::{
    CallError, Coordinator, Range, RangeAnswer, Transaction, TransactionAnswer,
};

use super::fake::{FakeStore, needs_space};

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It is performed and answered.
    Answered,
    /// It gets lost.
    NotDelivered,
    /// It is performed, and the answer gets lost.
    AnswerLost,
    /// It is not answered; the test performs it later, or never ([`FakeEtcd::perform_late`]).
    Late,
}

/// A transaction that was performed.
#[derive(Clone, Debug)]
pub struct Performed {
    pub client: usize,
    pub transaction: Transaction,
    pub answer: TransactionAnswer,
}

/// A store in memory with the network to it. Clones are of the same.
#[derive(Clone, Default)]
pub struct FakeEtcd {
    shared: Arc<Mutex<Network>>,
}

#[derive(Default)]
struct Network {
    store: FakeStore,
    has_no_leader: bool,
    is_frozen: bool,
    clients: Vec<Client>,
    /// What the test performs later.
    late: Vec<Sent>,
    /// What arrived while etcd was frozen.
    arrived: Vec<Sent>,
    performed: Vec<Performed>,
}

#[derive(Default)]
struct Client {
    is_cut_off: bool,
    /// What becomes of its next calls; after these, all are answered.
    next: VecDeque<Delivery>,
    /// As the client of etcd: it tells the first refusal for lack of space from the later ones, which are sure.
    knows_full: bool,
}

struct Sent {
    client: usize,
    transaction: Transaction,
}

/// The connection of one client. Clones are the same one.
#[derive(Clone)]
pub struct Handle {
    etcd: FakeEtcd,
    client: usize,
}

impl FakeEtcd {
    /// Another client.
    pub fn client(&self) -> Handle {
        let mut network = self.lock();
        network.clients.push(Client::default());
        Handle { etcd: self.clone(), client: network.clients.len() - 1 }
    }

    /// Reads or changes the store itself.
    pub fn with_store<T>(&self, look: impl FnOnce(&mut FakeStore) -> T) -> T {
        look(&mut self.lock().store)
    }

    /// What becomes of the next call of a client that is not decided yet.
    pub fn decide(&self, client: usize, delivery: Delivery) {
        self.lock().clients[client].next.push_back(delivery);
    }

    /// Cuts a client off, or connects it again; calls of a client that is cut off get lost.
    pub fn cut_off(&self, client: usize, is_cut_off: bool) {
        self.lock().clients[client].is_cut_off = is_cut_off;
    }

    /// Takes etcd's leader away, or gives it one; without, etcd performs nothing.
    pub fn set_leader(&self, has_leader: bool) {
        self.lock().has_no_leader = !has_leader;
    }

    /// From now on, etcd receives transactions, and neither performs nor answers them.
    pub fn freeze(&self) {
        self.lock().is_frozen = true;
    }

    /// Performs what arrived in the meantime, in its order; the answers are lost.
    pub fn thaw(&self) {
        let mut network = self.lock();
        network.is_frozen = false;
        for sent in std::mem::take(&mut network.arrived) {
            // What is refused changes nothing.
            let _ = network.perform(sent);
        }
    }

    /// Exceeds the quota, or ends that: only what writes no value is performed.
    pub fn set_full(&self, is_full: bool) {
        self.lock().store.is_full = is_full;
    }

    /// How many late transactions there are.
    pub fn late(&self) -> usize {
        self.lock().late.len()
    }

    /// Performs a late transaction; they are numbered in the order in which they were sent.
    pub fn perform_late(&self, number: usize) -> Result<TransactionAnswer, CallError> {
        let mut network = self.lock();
        let sent = network.late.remove(number);
        network.perform(sent)
    }

    /// Loses a late transaction.
    pub fn lose_late(&self, number: usize) {
        self.lock().late.remove(number);
    }

    pub fn back_up(&self) -> FakeStore {
        self.lock().store.clone()
    }

    /// Goes back to a backup, as an operator may do; what was sent and not performed is lost.
    pub fn restore(&self, backup: FakeStore) {
        let mut network = self.lock();
        network.store = backup;
        network.late.clear();
        network.arrived.clear();
    }

    /// What was performed so far, since the last call of this method.
    pub fn take_performed(&self) -> Vec<Performed> {
        std::mem::take(&mut self.lock().performed)
    }

    fn lock(&self) -> MutexGuard<'_, Network> {
        self.shared.lock().unwrap()
    }
}

impl Network {
    /// What becomes of a client's call that is made now.
    fn delivery(&mut self, client: usize) -> Delivery {
        let client = &mut self.clients[client];
        let decided = client.next.pop_front().unwrap_or(Delivery::Answered);
        if client.is_cut_off || self.has_no_leader { Delivery::NotDelivered } else { decided }
    }

    fn perform(&mut self, sent: Sent) -> Result<TransactionAnswer, CallError> {
        let answer = self.store.apply(&sent.transaction)?;
        let Sent { client, transaction } = sent;
        self.performed.push(Performed { client, transaction, answer: answer.clone() });
        Ok(answer)
    }

    fn transact(&mut self, client: usize, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        let delivery = self.delivery(client);
        let sent = Sent { client, transaction: transaction.clone() };
        match delivery {
            Delivery::NotDelivered => return unanswered("not delivered"),
            Delivery::Late => {
                self.late.push(sent);
                return unanswered("late");
            }
            Delivery::Answered | Delivery::AnswerLost if self.is_frozen => {
                self.arrived.push(sent);
                return unanswered("frozen");
            }
            Delivery::Answered | Delivery::AnswerLost => {}
        }
        if self.store.is_full && needs_space(transaction) && !self.clients[client].knows_full {
            self.clients[client].knows_full = delivery == Delivery::Answered;
            return unanswered("database space exceeded");
        }
        let answer = self.perform(sent);
        if delivery == Delivery::AnswerLost {
            return unanswered("the answer is lost");
        }
        if answer.is_ok() && needs_space(transaction) {
            self.clients[client].knows_full = false;
        }
        answer
    }
}

impl Handle {
    /// The number of the client, which the methods of [`FakeEtcd`] take.
    pub fn number(&self) -> usize {
        self.client
    }
}

impl Coordinator for Handle {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        let mut network = self.etcd.lock();
        match network.delivery(self.client) {
            Delivery::Answered if !network.is_frozen => network.store.range(range),
            _ => unanswered("a read"),
        }
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        self.etcd.lock().transact(self.client, transaction)
    }
}

fn unanswered<T>(why: &str) -> Result<T, CallError> {
    Err(CallError::Unanswered(format!("etcd in memory: {why}")))
}

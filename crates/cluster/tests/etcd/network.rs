//! A network to a store in memory: the test decides the outcome of each call. It has no clock: calls return at once, and
//! the test decides how long an unanswered call took.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use signalbox_cluster::coordinator::{
    CallError, Coordinator, Range, RangeAnswer, Transaction, TransactionAnswer,
};

use super::fake::FakeStore;

/// The outcome of a call.
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

/// A store in memory with the network to it. Clones share them.
#[derive(Clone, Default)]
pub struct FakeEtcd {
    shared: Arc<Mutex<Network>>,
}

#[derive(Default)]
struct Network {
    store: FakeStore,
    has_no_leader: bool,
    /// For each client, the outcomes of its next calls; later calls are answered.
    clients: Vec<VecDeque<Delivery>>,
    /// Transactions that the test performs later.
    late: Vec<Transaction>,
    performed: Vec<Transaction>,
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
        network.clients.push(VecDeque::new());
        Handle { etcd: self.clone(), client: network.clients.len() - 1 }
    }

    /// Reads or changes the store itself.
    pub fn with_store<T>(&self, look: impl FnOnce(&mut FakeStore) -> T) -> T {
        look(&mut self.lock().store)
    }

    /// Decides the outcome of a client's first call whose outcome is not decided yet.
    pub fn decide(&self, client: usize, delivery: Delivery) {
        self.lock().clients[client].push_back(delivery);
    }

    /// Sets whether etcd has a leader; without one, it performs nothing.
    pub fn set_leader(&self, has_leader: bool) {
        self.lock().has_no_leader = !has_leader;
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

    /// Takes the transactions that were performed since the last call of this method.
    pub fn take_performed(&self) -> Vec<Transaction> {
        std::mem::take(&mut self.lock().performed)
    }

    fn lock(&self) -> MutexGuard<'_, Network> {
        self.shared.lock().unwrap()
    }
}

impl Network {
    /// The outcome of the call that a client makes now.
    fn delivery(&mut self, client: usize) -> Delivery {
        let decided = self.clients[client].pop_front().unwrap_or(Delivery::Answered);
        if self.has_no_leader { Delivery::NotDelivered } else { decided }
    }

    fn perform(&mut self, sent: Transaction) -> Result<TransactionAnswer, CallError> {
        let answer = self.store.apply(&sent)?;
        self.performed.push(sent);
        Ok(answer)
    }

    fn transact(&mut self, client: usize, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        let delivery = self.delivery(client);
        let sent = transaction.clone();
        match delivery {
            Delivery::NotDelivered => unanswered("not delivered"),
            Delivery::Late => {
                self.late.push(sent);
                unanswered("late")
            }
            Delivery::Answered => self.perform(sent),
            Delivery::AnswerLost => {
                // A refused transaction changes nothing.
                let _ = self.perform(sent);
                unanswered("the answer is lost")
            }
        }
    }
}

impl Coordinator for Handle {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        let mut network = self.etcd.lock();
        match network.delivery(self.client) {
            Delivery::Answered => network.store.range(range),
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

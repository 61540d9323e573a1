//! Unfinished input: the starts of long requests, also over HTTP, and TLS handshakes that clients have not completed.
//!
//! The memory of such input counts against the memory share of its client. The server cannot refuse it, because there is
//! no complete request to answer. If the server has too little memory, or the client has used up its share of it, the
//! connections whose input began first are closed.
//!
//! Invariant: an eighth of the memory, and of a share, remains for such input, so that a client can still send releases of
//! long names.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::client_address::ClientAddress;
use super::lock;
use super::memory::MemoryBudget;
use super::shares::{ClientUsage, Shares};
use signalbox_core::{ClientKey, ClientShare, MemoryLimit};
use signalbox_model::ReachedLimit;

/// 1/`PART` of the memory, and of a share of it, remains for unfinished input.
const PART: usize = 8;

/// The most connections that are closed each time some input grows: few enough to take little time.
const CLOSED_AT_ONCE: usize = 32;

/// A request of at most this many bytes does not count. Headers of proxies are shorter.
pub(super) const SHORT_INPUT_BYTES: usize = 4 * 1024;

/// The unfinished input of a server.
#[derive(Debug)]
pub(super) struct Unfinished {
    inputs: Mutex<Inputs>,
    memory: Arc<MemoryBudget>,
    shares: Arc<Shares>,
}

#[derive(Debug, Default)]
struct Inputs {
    /// The number of inputs that have begun.
    begun: u64,
    bytes: usize,
    clients: HashMap<ClientKey, ClientInputs>,
}

#[derive(Debug)]
struct ClientInputs {
    usage: Arc<ClientUsage>,
    bytes: usize,
    /// By their numbers, so in the order in which they began.
    inputs: BTreeMap<u64, Input>,
}

#[derive(Debug)]
struct Input {
    bytes: usize,
    /// The connection is closed when this is dropped.
    _open: oneshot::Sender<Infallible>,
}

/// A future that is ready, with an error, when the connection must be closed to make room for others.
pub(super) type Closed = oneshot::Receiver<Infallible>;

/// The unfinished input of a connection. It counts until this is dropped.
#[derive(Debug)]
pub(super) struct UnfinishedInput {
    unfinished: Arc<Unfinished>,
    client: ClientAddress,
    number: u64,
    bytes: usize,
}

impl UnfinishedInput {
    /// Sets the bytes that the input takes. If that is too much, connections are closed, perhaps this one.
    pub(super) fn set(&mut self, bytes: usize) {
        if bytes == self.bytes {
            return;
        }
        let grows = bytes > self.bytes;
        self.bytes = bytes;
        let (key, Unfinished { memory, shares, .. }) = (self.client.key(), &*self.unfinished);
        let closed = self.unfinished.with(|inputs| {
            inputs.resize(key, self.number, bytes);
            if grows { inputs.make_room(memory.limit(), shares.share(), key) } else { Vec::new() }
        });
        for limit in closed {
            if limit.is_share {
                shares.note_refusal(self.client, "memory_max", limit.max);
            } else {
                memory.note_refusal();
            }
        }
    }
}

impl Drop for UnfinishedInput {
    fn drop(&mut self) {
        self.unfinished.with(|inputs| inputs.remove(self.client.key(), self.number));
    }
}

impl Unfinished {
    /// Returns an empty set of inputs. They are limited by this memory, of which clients have these shares.
    pub(super) fn new(memory: &Arc<MemoryBudget>, shares: &Arc<Shares>) -> Arc<Self> {
        Arc::new(Self { inputs: Mutex::default(), memory: Arc::clone(memory), shares: Arc::clone(shares) })
    }

    /// Adds an input of this client. Also returns a future that is ready when its connection must be closed.
    pub(super) fn begin(
        self: &Arc<Self>,
        client: ClientAddress,
        usage: &Arc<ClientUsage>,
    ) -> (UnfinishedInput, Closed) {
        let (open, closed) = oneshot::channel();
        let number = self.with(|inputs| {
            inputs.begun += 1;
            let new = || ClientInputs { usage: Arc::clone(usage), bytes: 0, inputs: BTreeMap::new() };
            let of_client = inputs.clients.entry(client.key()).or_insert_with(new);
            of_client.inputs.insert(inputs.begun, Input { bytes: 0, _open: open });
            inputs.begun
        });
        (UnfinishedInput { unfinished: Arc::clone(self), client, number, bytes: 0 }, closed)
    }

    fn with<R>(&self, visit: impl FnOnce(&mut Inputs) -> R) -> R {
        visit(&mut lock(&self.inputs))
    }
}

impl Inputs {
    /// Sets the bytes of an input. Does nothing if it was removed to make room: its connection is about to be closed.
    fn resize(&mut self, client: ClientKey, number: u64, bytes: usize) {
        let Some(of_client) = self.clients.get_mut(&client) else { return };
        let Some(input) = of_client.inputs.get_mut(&number) else { return };
        of_client.usage.replace_bytes(input.bytes, bytes);
        of_client.bytes = of_client.bytes - input.bytes + bytes;
        self.bytes = self.bytes - input.bytes + bytes;
        input.bytes = bytes;
    }

    fn remove(&mut self, client: ClientKey, number: u64) {
        self.resize(client, number, 0);
        let Some(of_client) = self.clients.get_mut(&client) else { return };
        of_client.inputs.remove(&number);
        if of_client.inputs.is_empty() {
            self.clients.remove(&client);
        }
    }

    /// Closes the connections whose input began first: those of this client if it has used up its share of the memory, and those
    /// of the client with the most unfinished input if the server has too little memory. Returns one entry for each
    /// closed connection: the limit that was reached.
    fn make_room(&mut self, memory: MemoryLimit, share: ClientShare, client: ClientKey) -> Vec<ReachedLimit> {
        let mut closed = Vec::new();
        while closed.len() < CLOSED_AT_ONCE
            && let Some(own) = self.clients.get(&client)
            && let Some(limit) = memory.lack(share, own.usage.bytes())
        {
            let (bytes, of) =
                if limit.is_share { (own.bytes, Some(client)) } else { (self.bytes, self.largest_client()) };
            if bytes <= limit.max as usize / PART {
                break;
            }
            let Some((of, first)) = of.and_then(|of| self.first_of(of)) else { break };
            self.remove(of, first);
            closed.push(limit);
        }
        closed
    }

    fn largest_client(&self) -> Option<ClientKey> {
        self.clients.iter().max_by_key(|(_, of_client)| of_client.bytes).map(|(client, _)| *client)
    }

    fn first_of(&self, client: ClientKey) -> Option<(ClientKey, u64)> {
        let (first, _) = self.clients.get(&client)?.inputs.first_key_value()?;
        Some((client, *first))
    }
}

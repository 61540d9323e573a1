//! Programs without leases, which hold as long as their connections are open, as clients of yrmcds do. Each is connected to
//! any node, which relays it to the leader.
//!
//! After each step, no two of them hold a counter whose maximum is 1, as far as their own nodes know: the node of each has
//! the connection open, and is not frozen. The state of the leader does not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use signalbox_model::Namespace;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use turmoil::net::TcpStream;

use super::world::{NODES, World, node_name};
use crate::frames::{Frame, Frames};
use crate::network::port_of;
use crate::random::Random;
use crate::scene::Phase;
use crate::support::{ACQUIRE, NOT_AVAILABLE, OK, RELEASE, frame, named};

/// How long a program waits for a connection, and for an answer.
const CONNECT_MAX: Duration = Duration::from_secs(1);
const ANSWER_MAX: Duration = Duration::from_secs(7);

/// How long all programs compete for one name. A lost end of a connection leaves it in use forever, since simulated peers
/// that vanish are not noticed.
const NAME_MS: u64 = 20_000;

/// Which programs hold which name, by the addresses of their sockets.
#[derive(Default)]
pub struct PlainBeliefs(Mutex<State>);

#[derive(Default)]
struct State {
    held: BTreeMap<SocketAddr, u64>,
    grants: u64,
}

impl PlainBeliefs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it changes beliefs")
    }

    /// The number of grants.
    pub fn grants(&self) -> u64 {
        self.state().grants
    }

    /// `has` says whether a node that runs has the connection of a program.
    pub fn check(&self, has: impl Fn(SocketAddr) -> bool) -> Result<(), String> {
        let state = self.state();
        let mut names = BTreeSet::new();
        for (client, name) in state.held.iter().filter(|(client, _)| has(**client)) {
            if !names.insert(name) {
                return Err(format!("{client} and another program without a lease hold name {name}"));
            }
        }
        Ok(())
    }
}

/// A belief, until it is dropped.
struct Held<'a> {
    world: &'a World,
    client: SocketAddr,
}

impl<'a> Held<'a> {
    fn note(world: &'a World, client: SocketAddr, name: u64) -> Self {
        let mut state = world.plain.state();
        state.held.insert(client, name);
        state.grants += 1;
        Self { world, client }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.world.plain.state().held.remove(&self.client);
    }
}

/// A program.
pub struct Program {
    pub world: Arc<World>,
    pub number: usize,
    pub random: Random,
}

impl Program {
    /// Acquires, holds and releases until the work phase ends.
    pub async fn run(mut self) {
        while self.world.scene.phase() == Phase::Work {
            let node = self.random.between(0, NODES as u64 - 1) as usize;
            let connect = TcpStream::connect((node_name(node), port_of(Namespace::Counters)));
            if let Ok(Ok(stream)) = timeout(CONNECT_MAX, connect).await {
                let used = self.work(stream, node).await;
                self.event(format_args!("leaves node {node}: {used:?}"));
            }
            sleep(Duration::from_millis(self.random.between(1, 500))).await;
        }
    }

    fn event(&self, what: std::fmt::Arguments<'_>) {
        self.world.scene.event(format_args!("program {}", self.number), what);
    }

    async fn work(&mut self, mut stream: TcpStream, node: usize) -> io::Result<()> {
        let client = stream.local_addr()?;
        let world = Arc::clone(&self.world);
        while world.scene.phase() == Phase::Work {
            let name = world.scene.state().now_ms / NAME_MS;
            let bytes = format!("plain {name}").into_bytes();
            let answer = ask(&mut stream, ACQUIRE, &named(&[1, 1], &bytes)).await?;
            match answer.status {
                OK => {}
                NOT_AVAILABLE => {
                    sleep(Duration::from_millis(self.random.between(1, 200))).await;
                    continue;
                }
                status => {
                    world.scene.fail(format!("program {}: status {status}", self.number));
                    return Ok(());
                }
            }
            let held = Held::note(&world, client, name);
            self.event(format_args!("holds {name} at node {node}"));
            let span = Duration::from_millis(self.random.between(0, 8000));
            // Nothing arrives without a request, except the end of the stream.
            if let Ok(ended) = timeout(span, stream.read_u8()).await {
                return ended.map(drop);
            }
            drop(held);
            if self.random.percent(30) {
                return Ok(());
            }
            ask(&mut stream, RELEASE, &named(&[1], &bytes)).await?;
        }
        Ok(())
    }
}

async fn ask(stream: &mut TcpStream, opcode: u8, body: &[u8]) -> io::Result<Frame> {
    let asked = async {
        stream.write_all(&frame(opcode, *b"asks", body)).await?;
        let mut frames = Frames::default();
        loop {
            let byte = stream.read_u8().await?;
            if let Some(answer) = frames.take(&[byte]).pop() {
                return Ok(answer);
            }
        }
    };
    timeout(ANSWER_MAX, asked).await?
}

//! Single flight compared with the ANY mode of a real poolcounterd, Debian's package poolcounter: the same requests get
//! the same answers.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::caller::{Caller, one_of};
use crate::support::{OK, TestServer, eventually, skipped};
use signalbox_model::{GrantId, Milliseconds, Status};
use signalbox_protocol::{Extended, Opaque, Queueing, Wait};

const PROGRAM: &str = "/usr/bin/poolcounterd";
const NAME: &str = "page";
const CLIENTS: usize = 4;
const LONG_S: u32 = 60;

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Works,
    Done,
    QueueFull,
    TimedOut,
}

/// A server and its clients.
trait Peer {
    /// Requests to be the only worker: waits behind at most `waiting_max` others, for at most `wait_s` seconds.
    fn ask(&mut self, client: usize, waiting_max: u32, wait_s: u32);
    /// Returns when the request of a client that waits has been executed.
    fn settle(&mut self, client: usize);
    /// The answer to the request of a client.
    fn outcome(&mut self, client: usize) -> Outcome;
    /// The work of a client is done.
    fn finish(&mut self, client: usize);
    /// A client ends while it works.
    fn die(&mut self, client: usize);
}

/// The outcomes that clients of a server see, in order.
fn history(peer: &mut impl Peer) -> Vec<Outcome> {
    peer.ask(0, 2, LONG_S);
    let mut outcomes = vec![peer.outcome(0)];
    for client in [1, 2] {
        peer.ask(client, 2, LONG_S);
        peer.settle(client);
    }
    peer.ask(3, 2, LONG_S);
    outcomes.push(peer.outcome(3));
    peer.finish(0);
    outcomes.extend([1, 2].map(|client| peer.outcome(client)));
    // A later request begins a new flight.
    peer.ask(3, 2, LONG_S);
    outcomes.push(peer.outcome(3));
    peer.ask(0, 2, 1);
    outcomes.push(peer.outcome(0));
    for client in [1, 2] {
        peer.ask(client, 2, LONG_S);
        peer.settle(client);
    }
    peer.die(3);
    outcomes.push(peer.outcome(1));
    peer.finish(1);
    outcomes.push(peer.outcome(2));
    outcomes
}

#[test]
fn one_works_and_the_others_are_told_as_by_poolcounter() {
    use Outcome::*;
    let expected = [Works, QueueFull, Done, Done, Works, TimedOut, Works, Done];
    assert_eq!(history(&mut Signalbox::start()), expected);
    if let Some(mut poolcounter) = Poolcounter::start() {
        assert_eq!(history(&mut poolcounter), expected);
    }
}

struct Signalbox {
    /// Each with its request and its grant.
    clients: Vec<Option<(Caller, Opaque, GrantId)>>,
    _server: TestServer,
}

impl Signalbox {
    fn start() -> Self {
        let server = TestServer::start();
        let client = |_| Some((Caller::new(server.counter()), Opaque([0; 4]), GrantId(0)));
        Self { clients: (0..CLIENTS).map(client).collect(), _server: server }
    }

    fn client(&mut self, client: usize) -> &mut (Caller, Opaque, GrantId) {
        self.clients[client].as_mut().expect("it has not ended")
    }
}

impl Peer for Signalbox {
    fn ask(&mut self, client: usize, waiting_max: u32, wait_s: u32) {
        let (caller, asked, _) = self.client(client);
        let wait = Wait::UpTo(Milliseconds(1000 * wait_s));
        let (ids, queueing) = (caller.ids(), Queueing { wait, queue_max: Some(waiting_max) });
        let claim = one_of(1, NAME.as_bytes());
        let request = Extended::AcquireGrant { ids, claim, queueing, place: None, is_shared: true };
        *asked = caller.send(&request);
    }

    fn settle(&mut self, client: usize) {
        self.client(client).0.sync();
    }

    fn outcome(&mut self, client: usize) -> Outcome {
        let (caller, asked, grant) = self.client(client);
        let answer = caller.answer(*asked);
        match Status::from_code(answer.status) {
            Some(Status::NoError) => {
                *grant = answer.granted().unwrap().grant;
                Outcome::Works
            }
            Some(Status::Done) => Outcome::Done,
            Some(Status::QueueFull) => Outcome::QueueFull,
            Some(Status::TimedOut) => Outcome::TimedOut,
            _ => panic!("{answer:?}"),
        }
    }

    fn finish(&mut self, client: usize) {
        let (caller, _, grant) = self.client(client);
        let (ids, grant) = (caller.ids(), *grant);
        assert_eq!(caller.ask(&Extended::ReleaseGrant { ids, grant, is_done: true }).status, OK);
    }

    fn die(&mut self, client: usize) {
        self.clients[client] = None;
    }
}

struct Poolcounter {
    process: Child,
    /// The last one requests nothing.
    clients: Vec<Option<BufReader<TcpStream>>>,
}

impl Poolcounter {
    /// Starts the program; `None`, with a line on standard error, if it is not installed. If `SIGNALBOX_REQUIRE_PEERS` is set,
    /// as in CI, that is a failure.
    fn start() -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            let missing = format!("{PROGRAM} is not installed (apt-get install poolcounter)");
            assert!(std::env::var_os("SIGNALBOX_REQUIRE_PEERS").is_none(), "{missing}");
            skipped(&missing);
            return None;
        }
        // It has one port, so each process of this test has a loopback address of its own.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let address = SocketAddr::from(([127, 64 | high, middle, low], 7531));
        let mut program = Command::new(PROGRAM);
        program.args(["-l", &address.ip().to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut peer = Self { process: program.spawn().unwrap(), clients: Vec::new() };
        eventually("poolcounterd listens", || {
            peer.clients.extend(TcpStream::connect(address).ok().map(|stream| Some(BufReader::new(stream))));
            peer.clients.len() > CLIENTS
        });
        Some(peer)
    }

    fn client(&mut self, client: usize) -> &mut BufReader<TcpStream> {
        self.clients[client].as_mut().expect("it has not ended")
    }

    fn send(&mut self, client: usize, line: String) {
        self.client(client).get_mut().write_all(line.as_bytes()).unwrap();
    }

    fn line(&mut self, client: usize) -> String {
        let mut line = String::new();
        self.client(client).read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Peer for Poolcounter {
    fn ask(&mut self, client: usize, waiting_max: u32, wait_s: u32) {
        // Its limit includes the worker.
        self.send(client, format!("ACQ4ANY {NAME} 1 {} {wait_s}\n", waiting_max + 1));
    }

    fn settle(&mut self, _: usize) {
        // It has one thread, which takes requests in the order in which they arrive.
        self.send(CLIENTS, format!("RELEASE {NAME}\n"));
        assert_eq!(self.line(CLIENTS), "NOT_LOCKED");
    }

    fn outcome(&mut self, client: usize) -> Outcome {
        match self.line(client).as_str() {
            "LOCKED" => Outcome::Works,
            "DONE" => Outcome::Done,
            "QUEUE_FULL" => Outcome::QueueFull,
            "TIMEOUT" => Outcome::TimedOut,
            other => panic!("{other}"),
        }
    }

    fn finish(&mut self, client: usize) {
        self.send(client, format!("RELEASE {NAME}\n"));
        assert_eq!(self.line(client), "RELEASED");
    }

    fn die(&mut self, client: usize) {
        self.clients[client] = None;
    }
}

impl Drop for Poolcounter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

//! Workers that know nothing but `docs/http.md`: they acquire, renew and release slots by requests of HTTP, at any node.
//!
//! They behave badly where that page permits it: they send requests twice, in pieces, and leave before the answer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::{Value, json};
use signalbox_client::GrantId;

use super::SLOTS_NAME;
use super::clients::{CONNECT, OPERATION, Progress, Run, SHORT, span};
use super::verdict::Belief;

/// How long a request may stay without an answer.
const POLL: Duration = Duration::from_millis(1_000);

/// How much longer the client waits.
const ANSWER: Duration = Duration::from_secs(2);

/// Acquires a slot, holds it for a while, and releases it, again and again.
pub struct HttpWorker<'a> {
    run: Run<'a>,
    number: usize,
    random: Rng,
    /// Connections whose answers it does not read.
    left: Vec<TcpStream>,
    beliefs: Vec<Belief>,
}

/// A lease that the client holds.
struct Held {
    key: String,
    id: GrantId,
    slot: u16,
    asked: Instant,
    granted: Instant,
    /// When it must stop.
    until: Instant,
}

impl<'a> HttpWorker<'a> {
    pub fn new(run: Run<'a>, number: usize, seed: u64) -> Self {
        Self { run, number, random: Rng::with_seed(seed), left: Vec::new(), beliefs: Vec::new() }
    }

    /// Works until the run is over, and returns what it believed.
    pub fn work(mut self, progress: &Progress) -> Vec<Belief> {
        while self.run.is_running() {
            let key = format!("{:032x}", self.random.u128(..));
            let Some(held) = self.acquire(key.clone()) else {
                self.release(&key, Instant::now() + SHORT);
                continue;
            };
            progress.note(self.number, held.asked);
            self.hold(held);
            self.left.clear();
        }
        self.beliefs
    }

    /// Repeats a request until it is granted; `None` if it is refused or takes too long.
    fn acquire(&mut self, key: String) -> Option<Held> {
        let mut body = json!({
            "key": key, "claims": [{"name": SLOTS_NAME}], "ttl_ms": SHORT.as_millis() as u64,
            "wait_ms": OPERATION.as_millis() as u64, "poll_ms": POLL.as_millis() as u64,
        });
        let asked = Instant::now();
        while asked.elapsed() < OPERATION && self.run.is_running() {
            let sent = Instant::now();
            match self.post("lease/acquire", &body) {
                Some((200, answer)) => {
                    let slot = answer["slots"][0][0].as_u64().unwrap().try_into().unwrap();
                    let id = GrantId(answer["grant"].as_str().unwrap().parse().unwrap());
                    let until = sent + valid(&answer);
                    return Some(Held { key, id, slot, asked, granted: Instant::now(), until });
                }
                Some((202, answer)) => {
                    if let Some(place) = answer.get("place") {
                        body["place"] = place.clone();
                    }
                }
                None | Some((408 | 500.., _)) => self.pause(),
                // The session of a request that waits ends with a leader that has not stored it.
                Some((409, answer))
                    if answer["error"]["code"] == "timed_out" || answer["error"]["code"] == "revoked" =>
                {
                    return None;
                }
                Some(refused) => {
                    self.report("an acquire", &refused);
                    return None;
                }
            }
        }
        None
    }

    /// Holds a lease for a random time, or until it must stop.
    fn hold(&mut self, mut held: Held) {
        let enough = held.granted + span(&mut self.random);
        let renewal = json!({"keys": [held.key], "poll_ms": POLL.as_millis() as u64});
        let (grant, mut is_lost) = (held.id.0.to_string(), false);
        while !is_lost && Instant::now() < enough && self.run.is_running() {
            // Sometimes it is busy with its work.
            if self.random.u8(..4) == 0 {
                sleep(Duration::from_millis(self.random.u64(..300)));
            }
            let sent = Instant::now();
            let answer = self.post("lease/renew", &renewal);
            is_lost = Instant::now() >= held.until;
            match answer {
                // It has stopped already.
                _ if is_lost => {}
                Some((200, answer)) => {
                    let lease = &answer["leases"][0];
                    match lease["state"] == "held" && lease["grant"] == grant {
                        true => held.until = held.until.max(sent + valid(lease)),
                        false => is_lost = true,
                    }
                }
                None | Some((408 | 500.., _)) => self.pause(),
                Some(refused) => self.report("a renewal", &refused),
            }
        }
        let Held { key, id, slot, asked, granted, until } = held;
        let believed_until = Instant::now().min(until);
        self.beliefs.push(Belief {
            worker: self.number,
            id,
            slot,
            asked,
            granted,
            until: believed_until,
            is_lost,
        });
        // Some are killed before.
        if self.random.u8(..20) > 0 {
            self.release(&key, until);
        }
    }

    /// Repeats a release until it is answered, or is no longer needed.
    fn release(&mut self, key: &str, until: Instant) {
        while Instant::now() < until && self.run.is_running() {
            match self.post("lease/release", &json!({ "key": key })) {
                Some((200, _)) => return,
                None | Some((408 | 500.., _)) => self.pause(),
                Some(refused) => return self.report("a release", &refused),
            }
        }
    }

    /// Remembers an answer that no fault explains.
    fn report(&self, what: &str, answer: &(u16, Value)) {
        self.run.unexpected.lock().unwrap().push(format!("{what} over HTTP: {answer:?}"));
    }

    fn pause(&mut self) {
        sleep(Duration::from_millis(self.random.u64(5..50)));
    }

    /// Sends a request to any node; `None` if there is no answer.
    fn post(&mut self, path: &str, body: &Value) -> Option<(u16, Value)> {
        let mut node = || self.run.http[self.random.usize(..self.run.http.len())];
        let (node, another) = (node(), node());
        let request = format!(
            "POST /api/v1/{path} HTTP/1.1\r\nHost: {node}\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.to_string().len()
        );
        let manner = self.random.u8(..20);
        if manner == 0
            && let Ok(stream) =
                begin(another, &request.replace(&node.to_string(), &another.to_string()), false)
        {
            // It arrives once more, perhaps later.
            self.left.push(stream);
        }
        let stream = begin(node, &request, manner == 1).ok()?;
        // It does not read the answer.
        if manner == 2 {
            return None;
        }
        read_answer(stream).ok()
    }
}

fn valid(answer: &Value) -> Duration {
    Duration::from_millis(answer["valid_ms"].as_u64().unwrap())
}

/// Connects, and sends a request, perhaps in two pieces.
fn begin(node: SocketAddr, request: &str, in_pieces: bool) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&node, CONNECT)?;
    stream.set_write_timeout(Some(ANSWER))?;
    let (first, second) = request.split_at(if in_pieces { request.len() - 7 } else { 0 });
    stream.write_all(first.as_bytes())?;
    if in_pieces {
        sleep(Duration::from_millis(100));
    }
    stream.write_all(second.as_bytes())?;
    Ok(stream)
}

fn read_answer(mut stream: TcpStream) -> io::Result<(u16, Value)> {
    stream.set_read_timeout(Some(POLL + ANSWER))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let parsed = || {
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.get(9..12)?.parse().ok()?, serde_json::from_str(body).ok()?))
    };
    parsed().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

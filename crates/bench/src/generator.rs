//! The load of one thread: a loop over many connections.
//!
//! Without a rate (closed loop), each connection sends its next request when one is answered, so a slow server receives
//! fewer requests. With a rate (open loop), requests are due at fixed times, and their latency counts from then even if
//! they could not be sent yet. So the latencies include the wait of all requests that a stalled server delays. To be on
//! time, the loop does not sleep when the next request is due within 2 ms, so at high rates it uses a whole core.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use mio::{Events, Interest, Poll, Token};

use super::channel::{Channel, Sent, Socket};
use super::dialect::{Dialect, Request};
use super::error::LoadError;
use super::names::Names;
use super::record::{Operation, Record};
use signalbox_client::{Address, COUNTER_PORT, ConnectError, Disconnect, Maximum, Resources, Tls};

/// The size of a read in bytes: more than the responses to the requests that are usually in flight.
const READ_BYTES: usize = 64 * 1024;

/// The maximum number of events of one poll.
const EVENTS: usize = 1024;

/// The precision of a poll. In this time before a request is due, the loop does not sleep.
const POLL_PRECISION: Duration = Duration::from_millis(2);

/// The requests and connections of a generator.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Connections of this generator.
    pub connections: usize,
    /// The maximum number of requests in flight on each connection.
    pub in_flight: usize,
    /// The names of the requests; shared, because there may be many.
    pub names: Arc<Names>,
    /// The mix of operations.
    pub mix: Mix,
    /// How many resources an acquire takes.
    pub resources: Resources,
    /// The maximum or capacity of each acquire.
    pub maximum: Maximum,
    /// The seed of the random choices.
    pub seed: u64,
    /// How long to wait for connections and for answers.
    pub timeout: Duration,
    /// TLS, and the address that certificates have to name; `None`: connections are plain.
    pub tls: Option<(Tls, Address)>,
}

/// The weights of the operations; not all 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// An acquire, and its release after it has succeeded.
    pub pair: u32,
    /// A get.
    pub get: u32,
    /// A noop.
    pub noop: u32,
}

/// When a run ends. It then releases what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// After this time.
    After(Duration),
    /// After this many requests.
    Requests(u64),
}

/// When the next request is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// When an answer arrives.
    Closed,
    /// At fixed times, over all connections of the generator.
    Open {
        /// Requests a second; more than 0.
        requests_per_s: f64,
    },
}

/// The progress of a run, for other threads.
#[derive(Debug, Default)]
pub struct Progress {
    /// The number of answers.
    pub answers: AtomicU64,
    /// The number of answers that do not report success.
    pub failures: AtomicU64,
}

/// Tries the addresses of a server one after the other, each for at most `timeout`, and returns the first that accepts a
/// connection.
pub fn resolve(address: &Address, timeout: Duration) -> Result<SocketAddr, ConnectError> {
    let unresolved =
        |error| ConnectError::Resolve { host: address.host().to_owned(), source: Arc::new(error) };
    let host = (address.host(), address.port().unwrap_or(COUNTER_PORT));
    let candidates: Vec<_> = match address.resolved() {
        Some(resolved) => vec![resolved],
        None => host.to_socket_addrs().map_err(unresolved)?.collect(),
    };
    let mut failure = unresolved(io::ErrorKind::NotFound.into());
    for candidate in candidates {
        match std::net::TcpStream::connect_timeout(&candidate, timeout) {
            Ok(_) => return Ok(candidate),
            Err(error) => failure = ConnectError::Refused { address: candidate, source: Arc::new(error) },
        }
    }
    Err(failure)
}

/// Connections and the loop over them. They stay open between runs.
#[derive(Debug)]
pub struct Generator<D> {
    dialect: D,
    plan: Plan,
    poll: Poll,
    events: Events,
    channels: Vec<Channel>,
    random: Rng,
    scratch: Vec<u8>,
}

impl<D: Dialect> Generator<D> {
    /// Opens all connections. Each sends the first request of the dialect, if there is one, and waits for its answer.
    pub fn connect(address: SocketAddr, dialect: D, plan: Plan) -> Result<Self, LoadError> {
        let poll = Poll::new().map_err(|error| LoadError::Poll(Arc::new(error)))?;
        let mut channels = Vec::with_capacity(plan.connections);
        for made in 0..plan.connections {
            let open = || {
                let stream = std::net::TcpStream::connect_timeout(&address, plan.timeout)?;
                stream.set_nodelay(true)?;
                let mut channel =
                    Channel::over(Socket::open(stream, plan.tls.as_ref(), &dialect, plan.timeout)?);
                poll.registry().register(
                    channel.stream(),
                    Token(made),
                    Interest::READABLE | Interest::WRITABLE,
                )?;
                Ok::<_, LoadError>(channel)
            };
            channels.push(open().map_err(|error| match error {
                LoadError::Lost(Disconnect::Io(source)) => {
                    LoadError::TooManyConnections { made, address, source }
                }
                error => error,
            })?);
        }
        let random = Rng::with_seed(plan.seed);
        let events = Events::with_capacity(EVENTS);
        Ok(Self { dialect, plan, poll, events, channels, random, scratch: vec![0; READ_BYTES] })
    }

    /// Puts load on the server until the limit, releases what is held, and returns what was recorded.
    pub fn run(&mut self, limit: Limit, pace: Pace, progress: &Progress) -> Result<Record, LoadError> {
        let Self { dialect, plan, poll, events, channels, random, scratch } = self;
        let mut run = Run::new(dialect, plan, random, limit, pace, progress);
        if pace == Pace::Closed {
            for channel in &mut *channels {
                run.send(channel, 0)?;
            }
        }
        loop {
            let timeout = Some(run.poll_timeout());
            match poll.poll(events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(LoadError::Poll(Arc::new(error))),
            }
            for event in events.iter() {
                run.serve(&mut channels[event.token().0], scratch, event.is_readable())?;
            }
            let now_ns = run.now_ns();
            run.send_due(channels, now_ns)?;
            if !run.is_over && run.is_at_limit(now_ns) {
                run.is_over = true;
                for channel in &mut *channels {
                    run.send(channel, now_ns)?;
                }
            }
            if run.is_over && run.in_flight_total == 0 {
                run.record.finish();
                return Ok(run.record);
            }
            run.check_silence(channels, now_ns)?;
        }
    }
}

/// A run in progress.
struct Run<'a, D> {
    dialect: &'a D,
    plan: &'a Plan,
    random: &'a mut Rng,
    progress: &'a Progress,
    started: Instant,
    ends_ns: u64,
    /// Requests that may still be sent or, at a fixed rate, become due.
    requests_left: u64,
    /// At a fixed rate, the time from one request to the next.
    interval_ns: Option<f64>,
    /// Requests that have become due.
    due: u64,
    /// Requests that are due and not sent.
    waiting: usize,
    /// Requests that are not answered.
    in_flight_total: usize,
    /// When the silence of the server began: at its last answer, or when the latency of a request began while no other was
    /// in flight, if that was later.
    silent_since_ns: u64,
    is_over: bool,
    record: Record,
}

impl<'a, D: Dialect> Run<'a, D> {
    fn new(
        dialect: &'a D,
        plan: &'a Plan,
        random: &'a mut Rng,
        limit: Limit,
        pace: Pace,
        progress: &'a Progress,
    ) -> Self {
        let (ends_ns, requests_left) = match limit {
            Limit::After(time) => (nanoseconds(time), u64::MAX),
            Limit::Requests(requests) => (u64::MAX, requests),
        };
        let interval_ns = match pace {
            Pace::Closed => None,
            Pace::Open { requests_per_s } => Some(1e9 / requests_per_s),
        };
        Self {
            dialect,
            plan,
            random,
            progress,
            started: Instant::now(),
            ends_ns,
            requests_left,
            interval_ns,
            due: 0,
            waiting: 0,
            in_flight_total: 0,
            silent_since_ns: 0,
            is_over: false,
            record: Record::default(),
        }
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.started.elapsed())
    }

    fn is_at_limit(&self, now_ns: u64) -> bool {
        now_ns >= self.ends_ns || (self.requests_left == 0 && self.waiting == 0)
    }

    /// Returns when the next request becomes due, in nanoseconds since the start; `None` without a rate, or if no request
    /// follows.
    fn next_due_ns(&self) -> Option<u64> {
        let interval_ns = self.interval_ns.filter(|_| !self.is_over && self.requests_left > 0)?;
        Some((self.due as f64 * interval_ns) as u64)
    }

    /// Returns how long a poll may wait for events of sockets.
    fn poll_timeout(&self) -> Duration {
        let now_ns = self.now_ns();
        let until = |at_ns: u64| Duration::from_nanos(at_ns.saturating_sub(now_ns));
        let end = if self.is_over { self.plan.timeout } else { until(self.ends_ns).min(self.plan.timeout) };
        match self.next_due_ns() {
            Some(due_ns) => until(due_ns).saturating_sub(POLL_PRECISION).min(end),
            None => end,
        }
    }

    /// Processes the responses that were received, and sends the next requests.
    fn serve(
        &mut self,
        channel: &mut Channel,
        scratch: &mut [u8],
        is_readable: bool,
    ) -> Result<(), LoadError> {
        if is_readable {
            channel.receive(scratch)?;
        }
        let now_ns = self.now_ns();
        self.take_answers(channel, now_ns)?;
        self.send(channel, now_ns)
    }

    fn take_answers(&mut self, channel: &mut Channel, now_ns: u64) -> Result<(), LoadError> {
        let (mut answers, mut failures) = (0, 0);
        while let Some((sent, answer)) = channel.next_answer(self.dialect)? {
            self.in_flight_total -= 1;
            self.silent_since_ns = now_ns;
            if sent.operation == Operation::Acquire && answer.is_success() {
                channel.held.push(sent.name);
            }
            if sent.is_at_end {
                self.record.released_at_end += 1;
                continue;
            }
            answers += 1;
            failures += u64::from(!answer.is_success());
            self.record.record(sent.operation, answer.status, now_ns.saturating_sub(sent.since_ns));
        }
        if answers > 0 {
            self.record.elapsed = Duration::from_nanos(now_ns);
            self.progress.answers.fetch_add(answers, Ordering::Relaxed);
            self.progress.failures.fetch_add(failures, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Composes all requests that the plan allows now, and writes them. After the end of the run, these are the releases of
    /// what the connection holds.
    fn send(&mut self, channel: &mut Channel, now_ns: u64) -> Result<(), LoadError> {
        while channel.in_flight() < self.plan.in_flight {
            if self.is_over {
                self.record.unsent += std::mem::take(&mut channel.due_ns).len() as u64;
                let Some(name) = channel.held.pop() else { break };
                let sent = Sent { operation: Operation::Release, name, since_ns: now_ns, is_at_end: true };
                self.compose(channel, sent);
                continue;
            }
            let Some(since_ns) = self.next_since_ns(channel, now_ns) else { break };
            let (operation, name) = self.next_request(channel);
            self.compose(channel, Sent { operation, name, since_ns, is_at_end: false });
        }
        channel.flush()
    }

    /// Takes one of the requests that are due (at a fixed rate) or left (otherwise). Returns when its latency begins, in
    /// nanoseconds since the start; `None` if there is no such request.
    fn next_since_ns(&mut self, channel: &mut Channel, now_ns: u64) -> Option<u64> {
        if self.interval_ns.is_some() {
            let due_ns = channel.due_ns.pop_front()?;
            self.waiting -= 1;
            return Some(due_ns);
        }
        self.requests_left = self.requests_left.checked_sub(1)?;
        Some(now_ns)
    }

    /// Chooses the next request. Releases come first, so a connection holds at most as many names as it may have requests
    /// in flight.
    fn next_request(&mut self, channel: &mut Channel) -> (Operation, u32) {
        if let Some(name) = channel.held.pop() {
            return (Operation::Release, name);
        }
        let Mix { pair, get, noop } = self.plan.mix;
        let drawn = self.random.u32(..pair.saturating_add(get).saturating_add(noop));
        let operation = if drawn < pair {
            Operation::Acquire
        } else if drawn - pair < get {
            Operation::Get
        } else {
            return (Operation::Noop, 0);
        };
        (operation, self.plan.names.draw(self.random))
    }

    fn compose(&mut self, channel: &mut Channel, sent: Sent) {
        let name = self.plan.names.name(sent.name);
        let (Resources(resources), Maximum(maximum)) = (self.plan.resources, self.plan.maximum);
        let request = match sent.operation {
            Operation::Noop => Request::Noop,
            Operation::Get => Request::Get { name },
            Operation::Acquire => Request::Acquire { name, resources, maximum },
            Operation::Release => Request::Release { name, resources },
        };
        channel.compose(self.dialect, request, sent);
        if self.in_flight_total == 0 {
            self.silent_since_ns = self.silent_since_ns.max(sent.since_ns);
        }
        self.in_flight_total += 1;
    }

    /// At a fixed rate: distributes the requests that are due over the connections in turn, and sends them.
    fn send_due(&mut self, channels: &mut [Channel], now_ns: u64) -> Result<(), LoadError> {
        while let Some(due_ns) = self.next_due_ns().filter(|due_ns| *due_ns <= now_ns.min(self.ends_ns)) {
            let turn = (self.due % channels.len() as u64) as usize;
            self.due += 1;
            self.requests_left -= 1;
            self.waiting += 1;
            self.record.own_delay_ns.saturating_record(now_ns - due_ns);
            channels[turn].due_ns.push_back(due_ns);
            self.send(&mut channels[turn], now_ns)?;
        }
        Ok(())
    }

    /// Fails if requests are in flight and the server has been silent for the timeout.
    fn check_silence(&self, channels: &[Channel], now_ns: u64) -> Result<(), LoadError> {
        let silence = Duration::from_nanos(now_ns.saturating_sub(self.silent_since_ns));
        if self.in_flight_total == 0 || silence < self.plan.timeout {
            return Ok(());
        }
        let connections = channels.iter().filter(|channel| channel.in_flight() > 0).count();
        Err(LoadError::Silent { connections, waited: self.plan.timeout })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

//! Reads from a server what `top` shows. Each answer may be from a slightly later moment than the previous one.

use std::future::pending;
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::super::exit::Failure;
use super::super::listing::State;
use super::super::output::escaped;
use super::super::server::Server;
use signalbox_client::{
    DeclaredEntry, Direct, DumpEntry, Error, Namespace, PlainClient, SessionEntry, Status,
};

/// The maximum number of names that are listed anew in every reading. A longer list is used again, for [`DUMP_PART`] times
/// as long as it took to read.
const NAMES_OFTEN_MAX: usize = 10_000;

/// The number N for which listing very many names takes at most 1/N of the time.
const DUMP_PART: u32 = 20;

/// The maximum number of names that are inspected for queues in one reading.
const INSPECTED_MAX: usize = 2_000;

/// Reads from one server, while keys are handled.
pub(super) struct Reader<'a> {
    server: &'a Server,
    began: Instant,
    /// The connections of the last reading; `None` before the first one, during one, and after a failure.
    ports: Option<Vec<Port>>,
    reading: Option<Reading<'a>>,
}

/// A reading in progress.
type Reading<'a> = Pin<Box<dyn Future<Output = Result<(Vec<Port>, Snapshot), Failure>> + 'a>>;

/// The connections to a port.
struct Port {
    namespace: Namespace,
    direct: Direct,
    plain: PlainClient,
    /// The last list of names, when it was made, and how long that took.
    names: Option<(Vec<DumpEntry<Bytes>>, Instant, Duration)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(server: &'a Server) -> Self {
        Self { server, began: Instant::now(), ports: None, reading: None }
    }

    pub(super) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Begins to read everything, with the details of the name `details`, if one is given. A reading in progress is dropped.
    pub(super) fn begin(&mut self, details: Option<NameKey>) {
        let (server, began, ports) = (self.server, self.began, self.ports.take());
        self.reading = Some(Box::pin(async move {
            let mut ports = match ports {
                Some(ports) => ports,
                None => connect(server).await?,
            };
            let snapshot = server.answer(read(&mut ports, details.as_ref(), began)).await?;
            Ok((ports, snapshot))
        }));
    }

    /// Waits for the end of the reading in progress, or forever if there is none. After a failure, the next reading
    /// connects again. Cancel safe.
    pub(super) async fn end(&mut self) -> Result<Snapshot, Failure> {
        let Some(reading) = &mut self.reading else { return pending().await };
        let read = reading.await;
        self.reading = None;
        let (ports, snapshot) = read?;
        self.ports = Some(ports);
        Ok(snapshot)
    }
}

/// Connects to the port that was requested, or to both if none was and both are served.
async fn connect(server: &Server) -> Result<Vec<Port>, Failure> {
    let mut ports = vec![Port::connect(server).await?];
    if !server.has_port() && server.kind().is_none() {
        // A server may serve only counters.
        ports.extend(Port::connect(&server.with_kind(Namespace::Semaphores)).await.ok());
    }
    Ok(ports)
}

impl Port {
    async fn connect(server: &Server) -> Result<Self, Failure> {
        let plain = server.connect().await?;
        let direct = server.direct().await?;
        Ok(Self { namespace: server.namespace(), direct, plain, names: None })
    }

    /// Returns all names; if there are very many, perhaps from an earlier list.
    async fn names(&mut self) -> Result<&[DumpEntry<Bytes>], Error> {
        let is_recent = self.names.as_ref().is_some_and(|(names, made, took)| {
            names.len() > NAMES_OFTEN_MAX && made.elapsed() < *took * DUMP_PART
        });
        if !is_recent {
            let began = Instant::now();
            let mut names = self.plain.dump().await?.all().await?;
            // Names with waiters are usually among those of which most is in use, so these are inspected first.
            names.sort_unstable_by(|one, other| {
                (other.consumption, &one.name).cmp(&(one.consumption, &other.name))
            });
            self.names = Some((names, Instant::now(), began.elapsed()));
        }
        Ok(self.names.as_ref().map_or(&[], |(names, ..)| names))
    }

    /// Returns the names. Inspects them in order, until `waiting` requests are found in their queues, but at most
    /// [`INSPECTED_MAX`] names.
    async fn rows(&mut self, waiting: u64) -> Result<Vec<NameRow>, Error> {
        let namespace = self.namespace;
        let mut rows: Vec<_> = self.names().await?.iter().map(|entry| name_row(namespace, entry)).collect();
        let mut found = 0;
        for row in rows.iter_mut().take(INSPECTED_MAX) {
            if found >= waiting {
                break;
            }
            match self.direct.inspect(namespace, &row.key.name).await {
                Ok(inspected) => {
                    (row.in_use, row.peak) = (inspected.in_use, inspected.peak);
                    row.waiting = Some(inspected.waiting);
                    row.capacity = (namespace == Namespace::Semaphores).then_some(inspected.capacity);
                    found += u64::from(inspected.waiting);
                }
                // The name no longer exists.
                Err(error) if error.status() == Some(Status::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(rows)
    }
}

fn name_row(namespace: Namespace, entry: &DumpEntry<Bytes>) -> NameRow {
    NameRow {
        key: NameKey { namespace, name: entry.name.clone() },
        in_use: entry.consumption,
        peak: entry.peak,
        capacity: None,
        waiting: None,
    }
}

async fn read(ports: &mut [Port], details: Option<&NameKey>, began: Instant) -> Result<Snapshot, Error> {
    let mut snapshot = Snapshot { at_s: began.elapsed().as_secs_f64(), ..Snapshot::default() };
    for (index, port) in ports.iter_mut().enumerate() {
        let statistics = port.plain.stats().await?;
        let number = |name: &str| {
            let item = statistics.iter().find(|item| item.name == name);
            item.and_then(|item| item.value.parse::<u64>().ok()).unwrap_or(0)
        };
        snapshot.acquires += number("command:acquire");
        snapshot.releases += number("command:release");
        let waiting = number("waiters");
        if index == 0 {
            let item = |name: &str, value: &str| (escaped(name.as_bytes()), escaped(value.as_bytes()));
            snapshot.statistics = statistics.iter().map(|of| item(&of.name, &of.value)).collect();
        }
        snapshot.names.extend(port.rows(waiting).await?);
    }
    let direct = &ports[0].direct;
    snapshot.sessions = direct.sessions().await?.all().await?;
    snapshot.declared = direct.list(b"").await?.all().await?;
    if let Some(key) = details {
        let state = State::read(direct, Some(key.namespace), &key.name, true).await?;
        snapshot.details = Some(Details { key: key.clone(), state });
    }
    Ok(snapshot)
}

/// The result of one reading.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// Seconds since the program began; rates are computed from it.
    pub(super) at_s: f64,
    /// The items of Stats of the first port, escaped.
    pub(super) statistics: Vec<(String, String)>,
    /// The number of Acquires since the start of the server, of all ports.
    pub(super) acquires: u64,
    /// The number of Releases since the start of the server, of all ports.
    pub(super) releases: u64,
    pub(super) names: Vec<NameRow>,
    pub(super) declared: Vec<DeclaredEntry<Bytes>>,
    pub(super) sessions: Vec<SessionEntry<Bytes>>,
    /// The name whose details are shown.
    pub(super) details: Option<Details>,
}

impl Snapshot {
    /// Returns the value of a numeric item of Stats; 0 if there is none.
    pub(super) fn statistic(&self, name: &str) -> u64 {
        let item = self.statistics.iter().find(|(item, _)| item == name);
        item.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
    }

    /// Returns the value of an item of Stats as text; `-` if there is none.
    pub(super) fn text(&self, name: &str) -> &str {
        self.statistics.iter().find(|(item, _)| item == name).map_or("-", |(_, value)| value)
    }
}

/// A name, in one of the namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameKey {
    pub(super) namespace: Namespace,
    pub(super) name: Bytes,
}

/// A name, and how much of it is in use.
#[derive(Clone, Debug)]
pub(super) struct NameRow {
    pub(super) key: NameKey,
    pub(super) in_use: u32,
    pub(super) peak: u32,
    /// `None` for a counter, or if it was not requested.
    pub(super) capacity: Option<u32>,
    /// `None` if it was not requested.
    pub(super) waiting: Option<u32>,
}

/// One name with its holders and its queue.
#[derive(Debug)]
pub(super) struct Details {
    pub(super) key: NameKey,
    /// `None` if the name no longer exists.
    pub(super) state: Option<State>,
}

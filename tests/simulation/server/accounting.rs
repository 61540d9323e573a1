//! The holdings of a client's plain connection, and the answers that are possible with them.
//!
//! Written from the protocol documents. A client knows what its connection holds, but not what other clients do. So if
//! both `No error` and `Resource not available` are possible, either is accepted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use signalbox_model::Namespace;

use crate::support::{
    ACQUIRE, DUMP, GET, INVALID, NOOP, NOT_ACQUIRED, NOT_AVAILABLE, NOT_FOUND, OK, RELEASE, STATS,
    UNKNOWN_COMMAND, frame, named,
};

/// A request, until it is answered.
#[derive(Clone)]
pub enum Request {
    Noop,
    Get {
        name: Vec<u8>,
    },
    Acquire {
        name: Vec<u8>,
        resources: u32,
        maximum: u32,
    },
    Release {
        name: Vec<u8>,
        resources: u32,
    },
    Stats,
    Dump,
    /// An opcode that does not exist.
    Unknown,
    /// An Acquire whose body ends within the name.
    Short,
}

impl Request {
    pub fn opcode(&self) -> u8 {
        match self {
            Self::Noop => NOOP,
            Self::Get { .. } => GET,
            Self::Acquire { .. } | Self::Short => ACQUIRE,
            Self::Release { .. } => RELEASE,
            Self::Stats => STATS,
            Self::Dump => DUMP,
            Self::Unknown => 0x77,
        }
    }

    /// The name that the request is about.
    pub fn name(&self) -> Option<&[u8]> {
        match self {
            Self::Get { name } | Self::Acquire { name, .. } | Self::Release { name, .. } => Some(name),
            Self::Noop | Self::Stats | Self::Dump | Self::Unknown | Self::Short => None,
        }
    }

    pub fn bytes(&self, opaque: [u8; 4]) -> Vec<u8> {
        let body = match self {
            Self::Noop | Self::Stats | Self::Dump | Self::Unknown => Vec::new(),
            Self::Get { name } => named(&[], name),
            Self::Acquire { name, resources, maximum } => named(&[*resources, *maximum], name),
            Self::Release { name, resources } => named(&[*resources], name),
            Self::Short => named(&[1, 1], b"name")[..12].to_vec(),
        };
        frame(self.opcode(), opaque, &body)
    }
}

/// A response, without the fields that were checked before.
pub struct Answer {
    pub status: u8,
    pub body: Vec<u8>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name().unwrap_or_default().escape_ascii();
        match self {
            Self::Noop => write!(f, "Noop"),
            Self::Get { .. } => write!(f, "Get {name}"),
            Self::Acquire { resources, maximum, .. } => {
                write!(f, "Acquire {resources} of {maximum} of {name}")
            }
            Self::Release { resources, .. } => write!(f, "Release {resources} of {name}"),
            Self::Stats => write!(f, "Stats"),
            Self::Dump => write!(f, "Dump"),
            Self::Unknown => write!(f, "an unknown opcode"),
            Self::Short => write!(f, "a body too short"),
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {:#04x}, \"{}\"", self.status, self.body.escape_ascii())
    }
}

impl Answer {
    fn number(&self, at: usize) -> Option<u32> {
        let bytes = self.body.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().expect("four bytes were taken")))
    }
}

/// The holdings of one connection.
pub struct Accounting {
    namespace: Namespace,
    held: BTreeMap<Vec<u8>, u64>,
    /// Releases that were sent and are not answered.
    releasing: BTreeMap<Vec<u8>, u64>,
    /// Names that the current Dump has listed.
    dumped: BTreeSet<Vec<u8>>,
}

impl Accounting {
    pub fn new(namespace: Namespace) -> Self {
        Self { namespace, held: BTreeMap::new(), releasing: BTreeMap::new(), dumped: BTreeSet::new() }
    }

    fn held(&self, name: &[u8]) -> u64 {
        self.held.get(name).copied().unwrap_or(0)
    }

    fn holdings(&self) -> impl Iterator<Item = (&Vec<u8>, u64)> {
        self.held.iter().map(|(name, resources)| (name, *resources))
    }

    /// What the client may count on: what was acknowledged, minus the releases that were sent.
    pub fn expected(&self, name: &[u8]) -> u64 {
        self.held(name).saturating_sub(self.releasing.get(name).copied().unwrap_or(0))
    }

    pub fn sent(&mut self, request: &Request) {
        if let Request::Release { name, resources } = request {
            *self.releasing.entry(name.clone()).or_insert(0) += u64::from(*resources);
        }
    }

    /// Applies an answer. Returns whether the request has more answers to come, or an error if the answer is
    /// impossible.
    pub fn apply(&mut self, request: &Request, answer: &Answer) -> Result<bool, String> {
        let is_right = match request {
            Request::Noop => answer.status == OK && answer.body.is_empty(),
            Request::Unknown => answer.status == UNKNOWN_COMMAND,
            Request::Short => answer.status == INVALID,
            Request::Stats => answer.status == OK && has_no_panics(&answer.body),
            Request::Get { name } => self.check_get(name, answer),
            Request::Acquire { name, resources, maximum } => {
                self.apply_acquire(name, *resources, *maximum, answer)
            }
            Request::Release { name, resources } => self.apply_release(name, *resources, answer),
            Request::Dump => return self.apply_dump(answer),
        };
        if is_right { Ok(false) } else { Err(self.mismatch(request, answer)) }
    }

    fn mismatch(&self, request: &Request, answer: &Answer) -> String {
        let held = self.holdings().map(|(name, held)| format!(" {held} of {},", name.escape_ascii()));
        let held: String = held.collect();
        format!("{request:?} was answered by {answer:?}; the connection holds{held}")
    }

    fn check_get(&self, name: &[u8], answer: &Answer) -> bool {
        let held = self.held(name);
        match answer.status {
            NOT_FOUND => held == 0,
            OK => answer.number(0).is_some_and(|value| match self.namespace {
                Namespace::Counters => u64::from(value) >= held,
                Namespace::Semaphores => u64::from(value) + held <= u64::from(u32::MAX),
            }),
            _ => false,
        }
    }

    fn apply_acquire(&mut self, name: &[u8], resources: u32, maximum: u32, answer: &Answer) -> bool {
        if resources == 0 || resources > maximum {
            return answer.status == INVALID;
        }
        let sum = self.held(name) + u64::from(resources);
        match answer.status {
            NOT_AVAILABLE => true,
            OK => {
                self.held.insert(name.to_vec(), sum);
                let limit = if self.namespace == Namespace::Counters { maximum } else { u32::MAX };
                answer.number(0) == Some(resources) && sum <= u64::from(limit)
            }
            _ => false,
        }
    }

    fn apply_release(&mut self, name: &[u8], resources: u32, answer: &Answer) -> bool {
        let released = u64::from(resources);
        if let Some(releasing) = self.releasing.get_mut(name) {
            *releasing -= released;
        }
        let held = self.held(name);
        match answer.status {
            NOT_FOUND => held == 0,
            NOT_ACQUIRED => released > held,
            OK => {
                if released > held {
                    return false;
                }
                self.held.insert(name.to_vec(), held - released);
                true
            }
            _ => false,
        }
    }

    fn apply_dump(&mut self, answer: &Answer) -> Result<bool, String> {
        if answer.status != OK {
            return Err(self.mismatch(&Request::Dump, answer));
        }
        if answer.body.is_empty() {
            let dumped = std::mem::take(&mut self.dumped);
            let missing = self.holdings().find(|(name, held)| *held > 0 && !dumped.contains(*name));
            return missing.map_or(Ok(false), |(name, held)| {
                Err(format!(
                    "a Dump leaves out {}, although the connection holds {held}",
                    name.escape_ascii()
                ))
            });
        }
        let (Some(consumption), Some(peak)) = (answer.number(0), answer.number(4)) else {
            return Err(self.mismatch(&Request::Dump, answer));
        };
        let name = answer.body.get(10..).unwrap_or_default().to_vec();
        if name.is_empty() || peak < consumption || u64::from(consumption) < self.held(&name) {
            return Err(self.mismatch(&Request::Dump, answer));
        }
        if !self.dumped.insert(name.clone()) {
            return Err(format!("a Dump shows {} twice", name.escape_ascii()));
        }
        Ok(true)
    }
}

/// Whether the statistics report that no task of the server panicked.
fn has_no_panics(statistics: &[u8]) -> bool {
    let expected = b"\0\x06\0\x01panics0";
    statistics.windows(expected.len()).any(|part| part == expected)
}

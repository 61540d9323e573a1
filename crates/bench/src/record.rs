//! The results of a run: latencies and statuses by operation.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

/// One hour. A longer latency counts as one hour: with a bound, histograms do not grow.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;

/// The operations that a load consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Does nothing.
    Noop,
    /// Reads the value of a name.
    Get,
    /// Acquires resources of a name.
    Acquire,
    /// Releases resources of a name.
    Release,
}

impl Operation {
    /// All operations, in the order of their definition.
    pub const ALL: [Self; 4] = [Self::Noop, Self::Get, Self::Acquire, Self::Release];

    /// The name in reports.
    pub fn label(self) -> &'static str {
        match self {
            Self::Noop => "noop",
            Self::Get => "get",
            Self::Acquire => "acquire",
            Self::Release => "release",
        }
    }
}

/// The answers to one operation.
#[derive(Clone, Debug)]
pub struct OperationRecord {
    /// Nanoseconds from when a request was sent (at a fixed rate: was due) to its response.
    pub latency_ns: Histogram<u64>,
    /// The number of answers with each status, by its code.
    pub statuses: BTreeMap<u8, u64>,
    /// The number of successes that `statuses` does not have yet. They are added to it when the run ends, because a search
    /// of the map for each answer would be slow.
    succeeded: u64,
}

impl Default for OperationRecord {
    fn default() -> Self {
        Self { latency_ns: histogram(), statuses: BTreeMap::new(), succeeded: 0 }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)
        .expect("histograms support these bounds and three digits")
}

/// The responses of a run. Those to releases after its end are counted, but their latency is not recorded.
#[derive(Clone, Debug)]
pub struct Record {
    operations: [OperationRecord; 4],
    /// At a fixed rate, nanoseconds from when a request was due until the generator processed it, whether or not it
    /// could be sent then. This delay of the generator itself is part of the latency of requests that were sent.
    pub own_delay_ns: Histogram<u64>,
    /// Releases after the end of the run.
    pub released_at_end: u64,
    /// Requests that were due before the end and were not sent, because too many others were in flight.
    pub unsent: u64,
    /// The time from the start to the last answer, without releases after the end of the run.
    pub elapsed: Duration,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            operations: Default::default(),
            own_delay_ns: histogram(),
            released_at_end: 0,
            unsent: 0,
            elapsed: Duration::ZERO,
        }
    }
}

impl Record {
    /// Records a response.
    #[inline]
    pub(super) fn record(&mut self, operation: Operation, status: u8, latency_ns: u64) {
        let record = &mut self.operations[operation as usize];
        record.latency_ns.saturating_record(latency_ns);
        if status == 0 {
            record.succeeded += 1;
        } else {
            *record.statuses.entry(status).or_default() += 1;
        }
    }

    /// Adds the successes to the statuses, at the end of a run.
    pub(super) fn finish(&mut self) {
        for record in &mut self.operations {
            let succeeded = std::mem::take(&mut record.succeeded);
            if succeeded > 0 {
                *record.statuses.entry(0).or_default() += succeeded;
            }
        }
    }

    /// The answers to an operation.
    pub fn operation(&self, operation: Operation) -> &OperationRecord {
        &self.operations[operation as usize]
    }

    /// All latencies together.
    pub fn latency_ns(&self) -> Histogram<u64> {
        let mut all = histogram();
        for record in &self.operations {
            all.add(&record.latency_ns).expect("all histograms have the same bounds");
        }
        all
    }

    /// Answers, without those to releases after the end of the run.
    pub fn answers(&self) -> u64 {
        self.operations.iter().map(|record| record.latency_ns.len()).sum()
    }

    /// Answers, with those to releases after the end of the run.
    pub fn answers_with_release_at_end(&self) -> u64 {
        self.answers() + self.released_at_end
    }

    /// Answers that do not report success.
    pub fn failures(&self) -> u64 {
        let failures = |record: &OperationRecord| -> u64 {
            record.statuses.iter().filter(|(status, _)| **status != 0).map(|(_, times)| times).sum()
        };
        self.operations.iter().map(failures).sum()
    }

    /// Answers a second.
    pub fn answers_per_s(&self) -> f64 {
        self.answers() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Adds what another generator recorded at the same time.
    pub fn add(&mut self, other: &Self) {
        for (mine, others) in self.operations.iter_mut().zip(&other.operations) {
            mine.latency_ns.add(&others.latency_ns).expect("all histograms have the same bounds");
            for (status, times) in &others.statuses {
                *mine.statuses.entry(*status).or_default() += times;
            }
        }
        self.own_delay_ns.add(&other.own_delay_ns).expect("all histograms have the same bounds");
        self.released_at_end += other.released_at_end;
        self.unsent += other.unsent;
        self.elapsed = self.elapsed.max(other.elapsed);
    }
}

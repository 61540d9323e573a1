//! Pairs the beginning and the end of each grant into one row. Memory grows with the number of grants that have not
//! ended, not with that of the lines.

use std::collections::{BTreeMap, BTreeSet};

use signalbox_model::UnixMilliseconds;
use signalbox_model::history::{HistoryLine, HistoryWord};

/// The row of a grant.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) granted: UnixMilliseconds,
    /// `None` if the grant has not ended, or if it is not known when.
    pub(super) ended: Option<UnixMilliseconds>,
    /// The latest time at which the grant may have been held.
    pub(super) last: UnixMilliseconds,
    pub(super) waited_ms: Option<u64>,
    pub(super) held_ms: Option<u64>,
    /// How the grant ended, in one word.
    pub(super) end: &'static str,
    /// The line of its beginning, or of its end if the other is missing.
    pub(super) line: HistoryLine<'static>,
}

/// The grants whose ends have not been read yet.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    /// The lines of their beginnings, by id, that is, in the order of their requests.
    open: BTreeMap<u64, HistoryLine<'static>>,
    /// The grants whose ends were read without their beginnings. A beginning may still follow, if the clocks of two nodes
    /// differ.
    ended: BTreeSet<u64>,
}

impl Pairs {
    /// Adds the next line, in the order of time. Returns the grants that it ends.
    pub(super) fn add(&mut self, line: HistoryLine<'static>) -> Vec<Row> {
        let time = line.time;
        match (line.event, line.grant) {
            (HistoryWord::Granted, Some(grant)) => {
                if !self.ended.remove(&grant.0) {
                    self.open.insert(grant.0, line);
                }
                Vec::new()
            }
            (HistoryWord::Ended(end), Some(grant)) => {
                let first = self.open.remove(&grant.0);
                let held_ms = line.held_ms;
                if first.is_none() {
                    self.ended.insert(grant.0);
                }
                let line = first.unwrap_or_else(|| {
                    let granted = UnixMilliseconds(time.0.saturating_sub(held_ms.unwrap_or_default()));
                    HistoryLine { time: granted, waited_ms: None, ..line }
                });
                vec![Row { held_ms, ..row(line, end.word(), Some(time), Some(time)) }]
            }
            (HistoryWord::Started, _) => {
                let keeps_durable = line.durable == Some(true);
                // It is not known when the previous process ended.
                self.stop(keeps_durable, None, time)
            }
            (HistoryWord::Stopped, _) => self.stop(true, Some(time), time),
            _ => Vec::new(),
        }
    }

    /// Returns the grants that have not ended.
    pub(super) fn held(self, now: UnixMilliseconds) -> Vec<Row> {
        self.open.into_values().map(|line| row(line, "held", Some(now), None)).collect()
    }

    /// Ends the grants that a process of the server does not leave to the next one, and returns them. `ended` is when the
    /// process ended, if that is known; `last` is the latest time at which it may have ended.
    fn stop(
        &mut self,
        keeps_durable: bool,
        ended: Option<UnixMilliseconds>,
        last: UnixMilliseconds,
    ) -> Vec<Row> {
        let is_lost = |_: &u64, line: &mut HistoryLine<'_>| !(keeps_durable && line.durable == Some(true));
        let lost = self.open.extract_if(.., is_lost);
        lost.map(|(_, line)| Row { last, ..row(line, "stopped", ended, ended) }).collect()
    }
}

/// Returns the row of a grant that was held until `until` (`None`: it is not known until when).
fn row(
    line: HistoryLine<'static>,
    end: &'static str,
    until: Option<UnixMilliseconds>,
    ended: Option<UnixMilliseconds>,
) -> Row {
    let (granted, waited_ms) = (line.time, line.waited_ms);
    let held_ms = until.map(|until| granted.until(until));
    Row { granted, ended, last: until.unwrap_or(granted), waited_ms, held_ms, end, line }
}

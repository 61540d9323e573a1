//! The audit log: one line of JSON for each administrative change, and for each that was refused.
//!
//! A line that the file does not take goes to standard error, as those of the log do.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde::Serialize;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::super::client_address::Client;
use super::super::log::Output;
use super::Identity;

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Ended<'a> {
    /// It is made.
    Done,
    /// It was accepted, and no client waited until it was stored.
    Accepted,
    /// It was refused, with this code.
    Refused(&'a str),
}

/// The audit log; without a file, nothing is written.
#[derive(Debug, Default)]
pub(in crate::server) struct Audit(OnceLock<Output>);

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    client: Option<String>,
    identity: Option<String>,
    operation: &'a str,
    target: &'a str,
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl Audit {
    /// Opens the file. It can be opened once.
    pub(in crate::server) fn open(&self, path: PathBuf) -> io::Result<()> {
        let output = Output::file(path)?;
        // A second call would come from a second start of one server, and there is none.
        let _ = self.0.set(output);
        Ok(())
    }

    /// Opens the file again, and creates it if it was moved away.
    pub(in crate::server) fn reopen(&self) -> io::Result<()> {
        self.0.get().map_or(Ok(()), Output::reopen)
    }

    /// Writes a change. `client`: who requested it; `None`: the configuration or a signal.
    pub(in crate::server) fn record(
        &self,
        client: Option<&Client>,
        identity: Option<&Identity>,
        operation: &str,
        target: &str,
        ended: Ended<'_>,
    ) {
        let Some(output) = self.0.get() else { return };
        let (outcome, reason) = match ended {
            Ended::Done => ("done", None),
            Ended::Accepted => ("accepted", None),
            Ended::Refused(reason) => ("refused", Some(reason)),
        };
        let line = Line {
            time: time().unwrap_or_default(),
            client: client.map(ToString::to_string),
            identity: identity.map(ToString::to_string),
            operation,
            target,
            outcome,
            reason,
        };
        let mut text = serde_json::to_string(&line).expect("texts are always JSON");
        text.push('\n');
        output.write(&text);
    }
}

/// The time as in the log.
fn time() -> Result<String, fmt::Error> {
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    Ok(time)
}

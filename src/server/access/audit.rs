//! The audit log: one line of JSON for each administrative change, and for each that was refused.
//!
//! A line that cannot be written to the file goes to standard error, like those of the log.
//!
//! Invariant: clients without rights make the log grow by a bounded amount per minute. Each field is short. The first
//! request that a client is denied for a reason has a line; the number of those that follow is in one line per minute.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use serde::Serialize;
use tokio::time::sleep;

use super::super::client_address::Client;
use super::super::lock;
use super::super::log::{Output, now};
use super::Identity;
use signalbox_core::ClientKey;

/// The longest text of a field, in bytes. A longer one is cut, and ends with [`CUT`].
const FIELD_MAX: usize = 256;

const CUT: &str = "…";

/// The time between two lines with the numbers of further refusals.
const COUNT_PERIOD: Duration = Duration::from_secs(60);

/// The most pairs of a client and a reason whose refusals are counted separately. All others are counted by reason
/// only.
const COUNTED_MAX: usize = 256;

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Ended {
    /// It was made.
    Done,
    /// It was accepted, but no client waited until it was stored.
    Accepted,
    /// It was refused, with this code.
    Refused(&'static str),
    /// It was refused with this code because the client has not proven its right. Only the first of several such
    /// refusals has a line of its own.
    Denied(&'static str),
}

/// The audit log; without a file, nothing is written.
#[derive(Debug, Default)]
pub(in crate::server) struct Audit {
    output: OnceLock<Output>,
    /// The refusals without a line of their own since the last count, by client and reason.
    refusals: Mutex<HashMap<(Option<ClientKey>, &'static str), FurtherRefusals>>,
}

/// Refusals without a line of their own.
#[derive(Debug)]
struct FurtherRefusals {
    /// The client as in the first line; `None`: several clients.
    client: Option<String>,
    count: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    client: Option<Cow<'a, str>>,
    identity: Option<Cow<'a, str>>,
    operation: Cow<'a, str>,
    target: Cow<'a, str>,
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// The number of refusals that the line reports; `None`: it reports one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
}

impl Audit {
    /// Opens the file. It can be opened once.
    pub(in crate::server) fn open(&self, path: PathBuf) -> io::Result<()> {
        let output = Output::file(path)?;
        // A server starts once, so there is no second call.
        let _ = self.output.set(output);
        Ok(())
    }

    /// Opens the file again, and creates it if it was moved away.
    pub(in crate::server) fn reopen(&self) -> io::Result<()> {
        self.output.get().map_or(Ok(()), Output::reopen)
    }

    /// Writes a line about a change, or counts a denial that follows another one. `client`: who requested the change;
    /// `None`: the configuration or a signal.
    pub(in crate::server) fn record(
        &self,
        client: Option<&Client>,
        identity: Option<&Identity>,
        operation: &str,
        target: &str,
        ended: Ended,
    ) {
        let (outcome, reason) = match ended {
            Ended::Done => ("done", None),
            Ended::Accepted => ("accepted", None),
            Ended::Refused(reason) | Ended::Denied(reason) => ("refused", Some(reason)),
        };
        if self.output.get().is_none() {
            return;
        }
        if let (Some(client), Ended::Denied(reason)) = (client, ended)
            && !self.note_denial(client, reason)
        {
            return;
        }
        self.write(&Line {
            time: now(),
            client: client.map(|client| shortened(client.to_string())),
            identity: identity.map(|identity| shortened(identity.to_string())),
            operation: shortened(operation),
            target: shortened(target),
            outcome,
            reason,
            count: None,
        });
    }

    /// Notes that a client is denied something. Returns whether to write a line: only for its first denial for this reason
    /// after a minute without one. The others are counted.
    fn note_denial(&self, client: &Client, reason: &'static str) -> bool {
        let mut refusals = lock(&self.refusals);
        let own = (Some(client.address.key()), reason);
        let is_counted_separately = refusals.contains_key(&own) || refusals.len() < COUNTED_MAX;
        let (key, client) =
            if is_counted_separately { (own, Some(client.to_string())) } else { ((None, reason), None) };
        match refusals.entry(key) {
            Entry::Occupied(mut further) => {
                further.get_mut().count += 1;
                false
            }
            Entry::Vacant(vacant) => {
                vacant.insert(FurtherRefusals { client, count: 0 });
                true
            }
        }
    }

    /// Writes once a minute how many further requests were refused.
    pub(in crate::server) async fn count_refusals(&self) {
        loop {
            sleep(COUNT_PERIOD).await;
            self.write_counts();
        }
    }

    /// Writes how many further requests were refused since the last time, and forgets clients without refusals.
    pub(in crate::server) fn write_counts(&self) {
        let mut refusals = lock(&self.refusals);
        refusals.retain(|(_, reason), FurtherRefusals { client, count }| {
            let count = std::mem::take(count);
            if count > 0 {
                self.write(&Line {
                    time: now(),
                    client: client.as_deref().map(shortened),
                    identity: None,
                    operation: Cow::Borrowed("further requests"),
                    target: Cow::Borrowed("server"),
                    outcome: "refused",
                    reason: Some(reason),
                    count: Some(count),
                });
            }
            count > 0
        });
    }

    fn write(&self, line: &Line<'_>) {
        let Some(output) = self.output.get() else { return };
        let mut text = serde_json::to_string(line).expect("texts are always JSON");
        text.push('\n');
        output.write(&text);
    }
}

/// Returns the text of a field, cut if it is too long.
fn shortened<'a>(text: impl Into<Cow<'a, str>>) -> Cow<'a, str> {
    let text = text.into();
    if text.len() <= FIELD_MAX {
        return text;
    }
    let end = text.floor_char_boundary(FIELD_MAX - CUT.len());
    Cow::Owned(format!("{}{CUT}", &text[..end]))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use std::sync::Arc;

    use super::super::super::client_address::ClientAddress;
    use super::*;

    fn client(address: &str) -> Client {
        Client { address: ClientAddress::of_peer(address.parse().unwrap()), certificate: Arc::default() }
    }

    /// An audit log, and a function that reads its lines.
    fn opened() -> (Audit, impl Fn() -> Vec<Value>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let audit = Audit::default();
        audit.open(file.path().to_owned()).unwrap();
        let lines = move || {
            let text = std::fs::read_to_string(file.path()).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        (audit, lines)
    }

    #[test]
    fn each_field_is_short() {
        let (audit, lines) = opened();
        let long = "é".repeat(64 * 1024);
        let identity = Identity::Token(long.as_str().into());
        audit.record(Some(&client("192.0.2.1:1")), Some(&identity), &long, &long, Ended::Done);
        for field in ["identity", "operation", "target"] {
            let lines = lines();
            let text = lines[0][field].as_str().unwrap();
            assert!(text.len() <= FIELD_MAX && text.ends_with("é…"), "{field}: {text}");
        }
        assert_eq!(shortened("é".repeat(FIELD_MAX / 2)), "é".repeat(FIELD_MAX / 2), "it fits");
    }

    #[test]
    fn each_line_has_its_time_in_utc() {
        let (audit, lines) = opened();
        audit.record(None, None, "reload", "server", Ended::Done);
        let lines = lines();
        let shape: String = lines[0]["time"].as_str().unwrap().chars().take(19).collect();
        let shape = shape.replace(|c: char| c.is_ascii_digit(), "0");
        assert_eq!(shape, "0000-00-00T00:00:00", "{}", lines[0]);
        assert!(lines[0]["time"].as_str().unwrap().ends_with('Z'), "{}", lines[0]);
    }

    #[test]
    fn the_first_refusal_of_a_client_for_a_reason_has_a_line_and_the_others_are_counted() {
        let (audit, lines) = opened();
        let refuse = |address: &str, reason| {
            audit.record(Some(&client(address)), None, "revoke", "server", Ended::Denied(reason));
        };
        let counts =
            |from: usize| lines()[from..].iter().map(|line| line["count"].clone()).collect::<Vec<_>>();
        (1..1000).for_each(|port| refuse(&format!("192.0.2.1:{port}"), "not_permitted"));
        refuse("192.0.2.1:1", "unauthorized");
        refuse("192.0.2.2:1", "not_permitted");
        assert_eq!(counts(0), [Value::Null, Value::Null, Value::Null]);
        audit.write_counts();
        let line = &lines()[3];
        assert_eq!((&line["count"], &line["client"]), (&998.into(), &"192.0.2.1:1".into()), "{line}");
        assert_eq!((&line["reason"], &line["outcome"]), (&"not_permitted".into(), &"refused".into()));
        refuse("192.0.2.1:1", "not_permitted");
        refuse("192.0.2.2:1", "not_permitted");
        assert_eq!(counts(4), [Value::Null], "one was quiet, and begins again");
        assert_eq!(lines()[4]["client"], "192.0.2.2:1");
        audit.write_counts();
        assert_eq!(counts(5), [1]);
        // Changes of permissions are always logged.
        for ended in [Ended::Done, Ended::Refused("in_use")] {
            (0..2).for_each(|_| audit.record(Some(&client("192.0.2.1:1")), None, "revoke", "server", ended));
        }
        assert_eq!(lines().len(), 10);
    }

    #[test]
    fn refusals_of_very_many_clients_are_counted_together() {
        let (audit, lines) = opened();
        for number in 0..100_000_u32 {
            let address = std::net::Ipv4Addr::from_bits(number);
            audit.record(
                Some(&client(&format!("{address}:1"))),
                None,
                "",
                "",
                Ended::Denied("not_permitted"),
            );
        }
        assert_eq!(lines().len(), COUNTED_MAX + 1);
        audit.write_counts();
        let lines = lines();
        assert_eq!(lines.len(), COUNTED_MAX + 2);
        let last = lines.last().unwrap();
        assert_eq!((&last["client"], &last["count"]), (&Value::Null, &(100_000 - COUNTED_MAX - 1).into()));
    }
}

//! A line of the history of grants, which the server writes and `signalbox history` reads (`docs/operations.md`, "Grant
//! history").

use std::borrow::Cow;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{GrantEnd, GrantId, Namespace, UnixMilliseconds, from_hex};

/// A line of the history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HistoryLine<'a> {
    /// The time of the event.
    pub time: UnixMilliseconds,
    /// The event.
    pub event: HistoryWord,
    /// The id of the grant, which is its fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<GrantId>,
    /// The number of its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Cow<'a, str>>,
    /// The resources that the grant holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<HistoryLimit<'a>>,
    /// The address of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Cow<'a, str>>,
    /// The identity that the client has proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Cow<'a, str>>,
    /// The label of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Cow<'a, str>>,
    /// The label, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_hex: Option<Cow<'a, str>>,
    /// Whether the grant survives a restart; for [`HistoryWord::Started`], whether any grant can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<bool>,
    /// How long the request waited, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// How long the grant was held, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<u64>,
    /// For [`HistoryWord::Lost`], the number of lost lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<u64>,
}

/// The resources of one name that a grant holds. A name that is not UTF-8 has the key `name_hex`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HistoryLimit<'a> {
    /// The kind of the name.
    #[serde(serialize_with = "write_kind", deserialize_with = "read_kind")]
    pub kind: Namespace,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name_hex: Option<Cow<'a, str>>,
    /// The number of resources.
    pub resources: u32,
    /// The slots, if the resources are numbered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<u16>,
}

/// The event of a line of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HistoryWord {
    /// The server began to serve clients: grants before that are over, unless they are durable.
    Started,
    /// The server has stopped.
    Stopped,
    /// Lines that would have been here are lost.
    Lost,
    /// A grant was made.
    Granted,
    /// A grant ended.
    #[serde(untagged)]
    Ended(GrantEnd),
}

impl HistoryLine<'_> {
    /// A line with a time and an event, and nothing else.
    pub fn of(time: UnixMilliseconds, event: HistoryWord) -> Self {
        Self {
            time,
            event,
            grant: None,
            session: None,
            limits: Vec::new(),
            address: None,
            identity: None,
            label: None,
            label_hex: None,
            durable: None,
            waited_ms: None,
            held_ms: None,
            lines: None,
        }
    }

    /// The label of the session.
    pub fn label_bytes(&self) -> Vec<u8> {
        bytes_of(self.label.as_deref(), self.label_hex.as_deref())
    }
}

impl HistoryLimit<'_> {
    /// The name.
    pub fn name_bytes(&self) -> Vec<u8> {
        bytes_of(self.name.as_deref(), self.name_hex.as_deref())
    }
}

/// The bytes of a text, or of hexadecimal digits; empty if these are missing or malformed.
fn bytes_of(text: Option<&str>, hex: Option<&str>) -> Vec<u8> {
    match (text, hex) {
        (Some(text), _) => text.as_bytes().to_vec(),
        (None, hex) => hex.and_then(from_hex).unwrap_or_default(),
    }
}

fn write_kind<S: Serializer>(kind: &Namespace, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.noun())
}

fn read_kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Namespace, D::Error> {
    let noun = Cow::<str>::deserialize(deserializer)?;
    let kind = Namespace::ALL.into_iter().find(|kind| kind.noun() == noun);
    kind.ok_or_else(|| D::Error::custom("an unknown kind"))
}

impl Serialize for UnixMilliseconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UnixMilliseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

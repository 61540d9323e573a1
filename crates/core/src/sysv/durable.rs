//! The facts about semaphore sets that outlive the process, as records (`crate::durable`).
//!
//! A durable set has a record, and so does each process that has used one. The adjustments of a set that belong to one
//! process are a record of their own, so that a call writes no more than the set, its own adjustments and its result.

use signalbox_model::sysv::{Order, Ownership, ProcessId, SetAnswer, SetId};
use signalbox_model::{RequestId, SessionKey, UnixSeconds};

/// The key of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SysvKey {
    /// A durable set.
    Set(SetId),
    /// A process that has used a durable set.
    Process(ProcessId),
    /// The adjustments of a durable set that belong to a process.
    Adjustments(ProcessId, SetId),
    /// The result of a call that changed a durable set, by the process and the number of the request.
    Result(ProcessId, RequestId),
}

/// One fact that outlives the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SysvRecord {
    /// A durable set.
    Set(SetRecord),
    /// A process that has used a durable set.
    Process(ProcessRecord),
    /// The adjustments of a durable set that belong to a process.
    Adjustments(AdjustmentsRecord),
    /// The result of a call that changed a durable set, so that a repeated request changes nothing.
    Result(ResultRecord),
}

/// A durable set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct SetRecord {
    /// Its id.
    pub set: SetId,
    /// Its key; 0 if it was made without one.
    pub key: i32,
    /// The order in which waiting calls are performed.
    pub order: Order,
    /// The owner and the mode.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub ownership: Ownership,
    /// The creator's user id.
    pub creator_uid: u32,
    /// The creator's group id.
    pub creator_gid: u32,
    /// When operations were performed last; `None`: never.
    pub operated_at: Option<UnixSeconds>,
    /// When the set was created, or values or the owner were set last.
    pub changed_at: UnixSeconds,
    /// Each semaphore.
    pub semaphores: Box<[SemaphoreRecord]>,
}

/// A semaphore of a durable set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct SemaphoreRecord {
    /// Its value.
    pub value: u16,
    /// The process that operated on it last, by its number on its machine.
    pub pid: u32,
    /// The number of the last clearance (SETVAL or SETALL) of this semaphore. In records of adjustments with a lower number
    /// of clearances, the adjustment of this semaphore counts as 0.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_zero"))]
    pub cleared: u64,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct ProcessRecord {
    /// Its number.
    pub process: ProcessId,
    /// Its secret.
    #[cfg_attr(feature = "serde", serde(rename = "key_hex"))]
    pub key: SessionKey,
    /// How long it lives on after its last connection was lost, in milliseconds.
    pub ttl_ms: u32,
    /// Its number on its machine.
    pub pid: u32,
    /// Its user id.
    pub uid: u32,
    /// Its supplementary group ids.
    pub groups: Box<[u32]>,
    /// Its label in listings.
    #[cfg_attr(feature = "serde", serde(flatten, with = "signalbox_model::json::label"))]
    pub label: Box<[u8]>,
    /// Whether its end has begun, so that some of its adjustments were applied.
    #[cfg_attr(feature = "serde", serde(rename = "ending"))]
    pub is_ending: bool,
}

/// The adjustments of a set that belong to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct AdjustmentsRecord {
    /// The process.
    pub process: ProcessId,
    /// The set.
    pub set: SetId,
    /// The number of the set among those that the process has adjustments of. When the process ends, the highest number
    /// comes first.
    #[cfg_attr(feature = "serde", serde(with = "signalbox_model::json::decimal"))]
    pub turn: u64,
    /// The number of clearances (SETVAL and SETALL) of the set up to this record.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_zero"))]
    pub clearances: u64,
    /// The amounts that the end of the process adds to the semaphores of the set.
    pub adjustments: Box<[i16]>,
}

/// The result of a call that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct ResultRecord {
    /// The process that called.
    pub process: ProcessId,
    /// The number of the request.
    pub request: RequestId,
    /// The result.
    #[cfg_attr(feature = "serde", serde(flatten, with = "stored_answer"))]
    pub answer: StoredAnswer,
}

/// The result of a call that changes a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredAnswer {
    /// The call is done.
    Done,
    /// `semget`: the set, and the number of its semaphores.
    Set(SetId, u32),
}

#[cfg(feature = "serde")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The set that `semget` returned, and the number of its semaphores; neither for other calls.
#[cfg(feature = "serde")]
mod stored_answer {
    use super::{SetId, StoredAnswer};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Set {
        #[serde(skip_serializing_if = "Option::is_none")]
        set: Option<SetId>,
        #[serde(skip_serializing_if = "Option::is_none")]
        semaphores: Option<u32>,
    }

    pub(super) fn serialize<S: Serializer>(answer: &StoredAnswer, serializer: S) -> Result<S::Ok, S::Error> {
        let (set, semaphores) = match *answer {
            StoredAnswer::Done => (None, None),
            StoredAnswer::Set(set, count) => (Some(set), Some(count)),
        };
        Set { set, semaphores }.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StoredAnswer, D::Error> {
        let Set { set, semaphores } = Set::deserialize(deserializer)?;
        match (set, semaphores) {
            (None, None) => Ok(StoredAnswer::Done),
            (Some(set), Some(count)) => Ok(StoredAnswer::Set(set, count)),
            _ => Err(D::Error::custom("the line must have both set and semaphores, or neither")),
        }
    }
}

impl SysvRecord {
    /// The key of the record.
    pub fn key(&self) -> SysvKey {
        match self {
            Self::Set(set) => SysvKey::Set(set.set),
            Self::Process(process) => SysvKey::Process(process.process),
            Self::Adjustments(adjustments) => SysvKey::Adjustments(adjustments.process, adjustments.set),
            Self::Result(result) => SysvKey::Result(result.process, result.request),
        }
    }

    /// The approximate size of the variable part of the record, in bytes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Set(set) => size_of_val::<[_]>(&set.semaphores),
            Self::Process(process) => process.label.len() + process.groups.len() * size_of::<u32>(),
            Self::Adjustments(of) => of.adjustments.len() * size_of::<i16>(),
            Self::Result(_) => 0,
        }
    }
}

impl StoredAnswer {
    /// The record of a result; `None`: the call has changed nothing.
    pub(super) fn of(answer: &SetAnswer) -> Option<Self> {
        match answer {
            SetAnswer::Done => Some(Self::Done),
            SetAnswer::Set(set, count) => Some(Self::Set(*set, *count)),
            SetAnswer::Number(_) | SetAnswer::Values(_) | SetAnswer::Stat(_) => None,
        }
    }
}

impl From<StoredAnswer> for SetAnswer {
    fn from(stored: StoredAnswer) -> Self {
        match stored {
            StoredAnswer::Done => Self::Done,
            StoredAnswer::Set(set, count) => Self::Set(set, count),
        }
    }
}

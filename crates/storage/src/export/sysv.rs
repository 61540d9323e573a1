//! The lines of an export for facts about System V semaphore sets.

use serde::{Deserialize, Serialize};

use super::{Line, U64Text, secret, to_bytes, to_hex, to_text};
use signalbox_core::{
    AdjustmentsRecord, ProcessRecord, ResultRecord, SemaphoreRecord, SetRecord, StoredAnswer, SysvRecord,
};
use signalbox_model::RequestId;
use signalbox_model::UnixSeconds;
use signalbox_model::sysv::{Order, Ownership, ProcessId, SetId};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SetLine {
    set: i32,
    key: i32,
    order: OrderLine,
    uid: u32,
    gid: u32,
    mode: u32,
    creator_uid: u32,
    creator_gid: u32,
    operated_at: Option<u64>,
    changed_at: u64,
    semaphores: Vec<SemaphoreLine>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OrderLine {
    Kernel,
    Fifo,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SemaphoreLine {
    value: u16,
    pid: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    cleared: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProcessLine {
    process: U64Text,
    key_hex: String,
    ttl_ms: u32,
    pid: u32,
    uid: u32,
    groups: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_hex: Option<String>,
    ending: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdjustmentsLine {
    process: U64Text,
    set: i32,
    turn: U64Text,
    #[serde(default, skip_serializing_if = "is_zero")]
    clearances: u64,
    adjustments: Vec<i16>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResultLine {
    process: U64Text,
    request: U64Text,
    /// The set that `semget` returned, and how many semaphores it has; absent for other calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    set: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    semaphores: Option<u32>,
}

impl From<&SysvRecord> for Line {
    fn from(record: &SysvRecord) -> Self {
        match record {
            SysvRecord::Set(record) => Self::SysvSet(record.into()),
            SysvRecord::Process(record) => Self::SysvProcess(record.into()),
            SysvRecord::Adjustments(record) => Self::SysvAdjustments(record.into()),
            SysvRecord::Result(record) => Self::SysvResult(record.into()),
        }
    }
}

impl From<&SetRecord> for SetLine {
    fn from(record: &SetRecord) -> Self {
        let Ownership { uid, gid, mode } = record.ownership;
        let semaphore = |record: &SemaphoreRecord| {
            let SemaphoreRecord { value, pid, cleared } = *record;
            SemaphoreLine { value, pid, cleared }
        };
        Self {
            set: record.set.0,
            key: record.key,
            order: match record.order {
                Order::Kernel => OrderLine::Kernel,
                Order::Fifo => OrderLine::Fifo,
            },
            uid,
            gid,
            mode,
            creator_uid: record.creator_uid,
            creator_gid: record.creator_gid,
            operated_at: record.operated_at.map(|at| at.0),
            changed_at: record.changed_at.0,
            semaphores: record.semaphores.iter().map(semaphore).collect(),
        }
    }
}

impl TryFrom<SetLine> for SysvRecord {
    type Error = String;

    fn try_from(line: SetLine) -> Result<Self, String> {
        let semaphore = |line: SemaphoreLine| {
            let SemaphoreLine { value, pid, cleared } = line;
            SemaphoreRecord { value, pid, cleared }
        };
        Ok(Self::Set(SetRecord {
            set: set_id(line.set)?,
            key: line.key,
            order: match line.order {
                OrderLine::Kernel => Order::Kernel,
                OrderLine::Fifo => Order::Fifo,
            },
            ownership: Ownership { uid: line.uid, gid: line.gid, mode: line.mode },
            creator_uid: line.creator_uid,
            creator_gid: line.creator_gid,
            operated_at: line.operated_at.map(UnixSeconds),
            changed_at: UnixSeconds(line.changed_at),
            semaphores: line.semaphores.into_iter().map(semaphore).collect(),
        }))
    }
}

impl From<&ProcessRecord> for ProcessLine {
    fn from(record: &ProcessRecord) -> Self {
        let (label, label_hex) = to_text(&record.label);
        Self {
            process: U64Text(record.process.0),
            key_hex: to_hex(&record.key.0),
            ttl_ms: record.ttl_ms,
            pid: record.pid,
            uid: record.uid,
            groups: record.groups.to_vec(),
            label,
            label_hex,
            ending: record.is_ending,
        }
    }
}

impl TryFrom<ProcessLine> for SysvRecord {
    type Error = String;

    fn try_from(line: ProcessLine) -> Result<Self, String> {
        Ok(Self::Process(ProcessRecord {
            process: ProcessId(line.process.0),
            key: secret(&line.key_hex)?,
            ttl_ms: line.ttl_ms,
            pid: line.pid,
            uid: line.uid,
            groups: line.groups.into(),
            label: to_bytes("label", line.label, line.label_hex)?,
            is_ending: line.ending,
        }))
    }
}

impl From<&AdjustmentsRecord> for AdjustmentsLine {
    fn from(record: &AdjustmentsRecord) -> Self {
        Self {
            process: U64Text(record.process.0),
            set: record.set.0,
            turn: U64Text(record.turn),
            clearances: record.clearances,
            adjustments: record.adjustments.to_vec(),
        }
    }
}

impl TryFrom<AdjustmentsLine> for SysvRecord {
    type Error = String;

    fn try_from(line: AdjustmentsLine) -> Result<Self, String> {
        Ok(Self::Adjustments(AdjustmentsRecord {
            process: ProcessId(line.process.0),
            set: set_id(line.set)?,
            turn: line.turn.0,
            clearances: line.clearances,
            adjustments: line.adjustments.into(),
        }))
    }
}

impl From<&ResultRecord> for ResultLine {
    fn from(record: &ResultRecord) -> Self {
        let (set, semaphores) = match record.answer {
            StoredAnswer::Done => (None, None),
            StoredAnswer::Set(set, count) => (Some(set.0), Some(count)),
        };
        let (process, request) = (U64Text(record.process.0), U64Text(record.request.0));
        Self { process, request, set, semaphores }
    }
}

impl TryFrom<ResultLine> for SysvRecord {
    type Error = String;

    fn try_from(line: ResultLine) -> Result<Self, String> {
        let answer = match (line.set, line.semaphores) {
            (None, None) => StoredAnswer::Done,
            (Some(set), Some(count)) => StoredAnswer::Set(set_id(set)?, count),
            _ => return Err("the line must have both set and semaphores, or neither".to_owned()),
        };
        let process = ProcessId(line.process.0);
        Ok(Self::Result(ResultRecord { process, request: RequestId(line.request.0), answer }))
    }
}

fn set_id(number: i32) -> Result<SetId, String> {
    let set = Some(SetId(number)).filter(|set| *set >= SetId::FIRST);
    set.ok_or_else(|| format!("{number} is not the id of a semaphore set of the server"))
}

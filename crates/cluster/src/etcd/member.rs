//! What a member of etcd says about itself.

use super::generated::StatusResponse;
use crate::coordinator::CallError;

/// A member and its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its URL, as in the settings.
    pub endpoint: String,
    /// Its status, or why there is none.
    pub status: Result<MemberStatus, CallError>,
}

/// What a member says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// etcd's version, such as `3.5.26`.
    pub version: String,
    /// The bytes of its file; the quota limits them.
    pub database_bytes: u64,
    /// The most bytes that its file may have; `None`: it does not say (before etcd 3.6).
    pub quota_bytes: Option<u64>,
    /// Whether it only receives the data, and neither votes nor accepts calls.
    pub is_learner: bool,
    /// Whether it is the leader of etcd.
    pub is_leader: bool,
    /// Whether it knows a leader of etcd.
    pub has_leader: bool,
    /// Alarms and other errors, in etcd's words.
    pub errors: Vec<String>,
}

impl MemberStatus {
    pub(super) fn new(answer: StatusResponse) -> Result<Self, &'static str> {
        let header = answer.header.ok_or("no header")?;
        let bytes = |number: i64| u64::try_from(number).map_err(|_| "a negative size");
        Ok(Self {
            version: answer.version,
            database_bytes: bytes(answer.db_size)?,
            quota_bytes: Some(bytes(answer.db_size_quota)?).filter(|quota| *quota > 0),
            is_learner: answer.is_learner,
            is_leader: answer.leader == header.member_id && answer.leader != 0,
            has_leader: answer.leader != 0,
            errors: answer.errors,
        })
    }
}

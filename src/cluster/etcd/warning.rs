//! What is wrong with an etcd, in sentences for its operator.

use std::fmt;
use std::time::Duration;

use super::member::{Member, MemberStatus};
use crate::cluster::coordinator::Revision;
use crate::cluster::keys::Keys;
use crate::cluster::timing::Timing;

/// The quota of an etcd that does not say it: its default.
const DEFAULT_QUOTA_BYTES: u64 = 2 << 30;
/// Above this percentage of the quota, the database is almost full.
const ALMOST_FULL_PERCENT: u64 = 70;

/// Up to so many revisions need no compaction.
const REVISIONS_MAX: Revision = 100_000;

/// What is expected of etcd.
#[derive(Clone, Debug)]
pub struct Expected {
    /// A key that the user of the client may read; it need not exist.
    pub key: Vec<u8>,
    /// A linearizable read takes longer only where the machines or the network between them are too slow.
    pub round_trip_max: Duration,
    /// With more revisions than these, the first must have been compacted.
    pub revisions_max: Revision,
}

impl Expected {
    /// What a cluster with this renew deadline expects of the etcd that has its keys.
    pub fn of(keys: &Keys, renew_deadline: Duration) -> Self {
        let round_trip_max = Timing::new(renew_deadline).map_or(renew_deadline, Timing::round_trip_max);
        Self { key: keys.format(), round_trip_max, revisions_max: REVISIONS_MAX }
    }
}

/// What the operator should know and change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A member does not answer, or refuses this node.
    Unreachable {
        /// Its URL.
        endpoint: String,
        /// Why.
        why: String,
        /// How many members answer.
        reachable: usize,
        /// How many there are.
        members: usize,
    },
    /// etcd has no space, and refuses all writes until an operator acts.
    NoSpace {
        /// The member that says so.
        endpoint: String,
    },
    /// A member's data differs from that of others.
    Corrupt {
        /// The member that says so.
        endpoint: String,
    },
    /// A member knows no leader of etcd.
    NoLeader {
        /// Its URL.
        endpoint: String,
    },
    /// The database is above 70 % of its quota.
    AlmostFull {
        /// The member's URL.
        endpoint: String,
        /// The bytes of the database's file.
        database_bytes: u64,
        /// The quota, in bytes.
        quota_bytes: u64,
        /// Whether the member says its quota; else it is the default.
        is_quota_known: bool,
    },
    /// etcd keeps all revisions.
    NotCompacted {
        /// The present revision.
        revision: Revision,
    },
    /// A linearizable read takes long.
    Slow {
        /// How long the fastest of three took.
        round_trip: Duration,
        /// How long it may take.
        expected: Duration,
    },
    /// A version that loses or mixes up data.
    InconsistentVersion {
        /// The member's URL.
        endpoint: String,
        /// Its version.
        version: String,
    },
    /// A version that signalbox does not know.
    OldVersion {
        /// The member's URL.
        endpoint: String,
        /// Its version.
        version: String,
    },
    /// A learner, which accepts no calls.
    Learner {
        /// Its URL.
        endpoint: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { endpoint, why, reachable, members } => write!(
                f,
                "member {endpoint} does not answer as it should ({why}); {reachable} of {members} members of etcd do, and it \
                 needs a majority; check that it runs, its URL, and the certificate or the user of this node"
            ),
            Self::NoSpace { endpoint } => write!(
                f,
                "etcd refuses all writes, because it has no space (alarm NOSPACE, reported by {endpoint}); {}",
                super::failure::NO_SPACE
            ),
            Self::Corrupt { endpoint } => write!(
                f,
                "the data of etcd's members differ (alarm CORRUPT, reported by {endpoint}); replace the member that differs"
            ),
            Self::NoLeader { endpoint } => write!(
                f,
                "member {endpoint} of etcd knows no leader; a majority of etcd's members must run and reach each other"
            ),
            Self::AlmostFull { endpoint, database_bytes, quota_bytes, is_quota_known } => write!(
                f,
                "the database of member {endpoint} has {} MiB of {} MiB{}; compact and defragment etcd, or raise \
                 --quota-backend-bytes: when it is full, nothing can be stored",
                database_bytes >> 20,
                quota_bytes >> 20,
                if *is_quota_known { "" } else { " (etcd's default; this version does not say its quota)" }
            ),
            Self::NotCompacted { revision } => write!(
                f,
                "etcd keeps all of its {revision} revisions, and its database grows until it is full; start etcd with \
                 --auto-compaction-mode=periodic --auto-compaction-retention=5m"
            ),
            Self::Slow { round_trip, expected } => write!(
                f,
                "a read from etcd takes {:.1} ms, expected are {:.1} ms at most; use faster disks, a nearer etcd or a \
                 longer cluster.renew_deadline",
                round_trip.as_secs_f64() * 1e3,
                expected.as_secs_f64() * 1e3
            ),
            Self::InconsistentVersion { endpoint, version } => write!(
                f,
                "member {endpoint} runs etcd {version}, whose data may become inconsistent in a crash; update it to the \
                 newest 3.5"
            ),
            Self::OldVersion { endpoint, version } => {
                write!(f, "member {endpoint} runs etcd {version}; update it to the newest 3.5 or 3.6")
            }
            Self::Learner { endpoint } => write!(
                f,
                "member {endpoint} of etcd is a learner, which accepts no calls; remove it from cluster.etcd, or promote it"
            ),
        }
    }
}

/// The warnings about these members. `kept` is the present revision, if the first one can still be read.
pub(super) fn warnings_about(
    members: &[Member],
    round_trip: Option<Duration>,
    kept: Option<Revision>,
    expected: &Expected,
) -> Vec<Warning> {
    let reachable = members.iter().filter(|member| member.status.is_ok()).count();
    let mut warnings = Vec::new();
    for Member { endpoint, status } in members {
        match status {
            Ok(status) => about_member(endpoint, status, &mut warnings),
            Err(error) => warnings.push(Warning::Unreachable {
                endpoint: endpoint.clone(),
                why: error.to_string(),
                reachable,
                members: members.len(),
            }),
        }
    }
    if let Some(revision) = kept.filter(|revision| *revision > expected.revisions_max) {
        warnings.push(Warning::NotCompacted { revision });
    }
    if let Some(round_trip) = round_trip.filter(|time| *time > expected.round_trip_max) {
        warnings.push(Warning::Slow { round_trip, expected: expected.round_trip_max });
    }
    warnings
}

fn about_member(endpoint: &str, status: &MemberStatus, warnings: &mut Vec<Warning>) {
    let has = |alarm: &str| status.errors.iter().any(|error| error.contains(alarm));
    let endpoint = || endpoint.to_owned();
    // Alarms are of the cluster, so one member's word is enough.
    if has("NOSPACE") && !warnings.iter().any(|warning| matches!(warning, Warning::NoSpace { .. })) {
        warnings.push(Warning::NoSpace { endpoint: endpoint() });
    }
    if has("CORRUPT") && !warnings.iter().any(|warning| matches!(warning, Warning::Corrupt { .. })) {
        warnings.push(Warning::Corrupt { endpoint: endpoint() });
    }
    if !status.has_leader {
        warnings.push(Warning::NoLeader { endpoint: endpoint() });
    }
    let quota_bytes = status.quota_bytes.unwrap_or(DEFAULT_QUOTA_BYTES);
    if status.database_bytes > quota_bytes / 100 * ALMOST_FULL_PERCENT {
        warnings.push(Warning::AlmostFull {
            endpoint: endpoint(),
            database_bytes: status.database_bytes,
            quota_bytes,
            is_quota_known: status.quota_bytes.is_some(),
        });
    }
    match numbers(&status.version) {
        Some((3, 5, 0..=2)) => {
            warnings
                .push(Warning::InconsistentVersion { endpoint: endpoint(), version: status.version.clone() });
        }
        Some((major, minor, _)) if (major, minor) >= (3, 4) => {}
        _ => warnings.push(Warning::OldVersion { endpoint: endpoint(), version: status.version.clone() }),
    }
    if status.is_learner {
        warnings.push(Warning::Learner { endpoint: endpoint() });
    }
}

/// The numbers of a version such as `3.5.26` or `3.6.0-rc.1`.
fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = version.split(['.', '-', '+']).map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some((next()?, next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> MemberStatus {
        MemberStatus {
            version: "3.5.26".to_owned(),
            database_bytes: 100 << 20,
            used_bytes: 50 << 20,
            quota_bytes: None,
            is_learner: false,
            is_leader: true,
            has_leader: true,
            raft_term: 2,
            errors: Vec::new(),
        }
    }

    /// The warnings about members of these statuses.
    fn about(statuses: impl IntoIterator<Item = MemberStatus>) -> Vec<Warning> {
        let member = |status| Member { endpoint: "http://a:2379".to_owned(), status: Ok(status) };
        let members: Vec<_> = statuses.into_iter().map(member).collect();
        let round_trip_max = Duration::from_millis(150);
        let expected = Expected { key: Vec::new(), round_trip_max, revisions_max: REVISIONS_MAX };
        warnings_about(&members, Some(Duration::from_millis(150)), Some(100_000), &expected)
    }

    #[test]
    fn a_healthy_etcd_gets_no_warning() {
        assert_eq!(about([status(), status(), status()]), []);
    }

    #[test]
    fn a_database_above_70_percent_of_its_quota_is_almost_full() {
        let with =
            |database_bytes, quota_bytes| about([MemberStatus { database_bytes, quota_bytes, ..status() }]);
        assert_eq!(with(1_433 << 20, None), []);
        let warnings = with(1_434 << 20, None);
        assert!(matches!(warnings[..], [Warning::AlmostFull { is_quota_known: false, .. }]), "{warnings:?}");
        assert!(
            warnings[0].to_string().contains("has 1434 MiB of 2048 MiB (etcd's default"),
            "{}",
            warnings[0]
        );
        assert_eq!(with(1_434 << 20, Some(8 << 30)), []);
        let warnings = with(6 << 30, Some(8 << 30));
        assert!(matches!(warnings[..], [Warning::AlmostFull { is_quota_known: true, .. }]), "{warnings:?}");
    }

    #[test]
    fn versions_with_known_faults_and_old_ones_are_warned_about() {
        for (version, is_good, is_inconsistent) in [
            ("3.4.23", true, false),
            ("3.5.3", true, false),
            ("3.6.0-rc.1", true, false),
            ("4.0.0", true, false),
            ("3.5.0", false, true),
            ("3.5.2", false, true),
            ("3.3.27", false, false),
            ("2.3.8", false, false),
            ("unknown", false, false),
        ] {
            let warnings = about([MemberStatus { version: version.to_owned(), ..status() }]);
            let inconsistent = matches!(warnings[..], [Warning::InconsistentVersion { .. }]);
            let old = matches!(warnings[..], [Warning::OldVersion { .. }]);
            let expected = (is_good, is_inconsistent, !is_good && !is_inconsistent);
            assert_eq!((warnings.is_empty(), inconsistent, old), expected, "{version}");
        }
    }

    #[test]
    fn an_alarm_of_several_members_is_one_warning() {
        let with = |error: &str| MemberStatus { errors: vec![error.to_owned()], ..status() };
        let full = about([with("memberID:1 alarm:NOSPACE "), with("memberID:1 alarm:NOSPACE ")]);
        assert_eq!(full, [Warning::NoSpace { endpoint: "http://a:2379".to_owned() }]);
        let corrupt = about([with("memberID:1 alarm:CORRUPT "), with("memberID:1 alarm:CORRUPT ")]);
        assert_eq!(corrupt, [Warning::Corrupt { endpoint: "http://a:2379".to_owned() }]);
    }
}

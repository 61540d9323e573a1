//! The status of etcd's members, and warnings about an etcd that is badly set up or does not work.

use std::time::Duration;

use super::messages::StatusResponse;
use crate::coordinator::{CallError, Revision};
use crate::keys::Keys;
use crate::timing::Timing;

/// The default quota, for an etcd that does not report its own.
const DEFAULT_QUOTA_BYTES: u64 = 2 << 30;
/// The percentage of the quota above which the database is almost full.
const ALMOST_FULL_PERCENT: u64 = 70;

/// The size above which a database should be defragmented if less than half of it is in use: at this size, that still
/// takes only seconds.
const LARGE_BYTES: u64 = 1 << 30;

/// The advice for a defragmentation, during which the member must not be etcd's leader.
const DEFRAGMENT: &str = "defragment etcd, one member after the other, its followers first, and its leader after \"etcdctl \
                          move-leader\", since a member answers nothing meanwhile";

/// The number of revisions up to which no compaction is needed.
const REVISIONS_MAX: Revision = 100_000;

/// A member and its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its URL, as in the settings.
    pub endpoint: String,
    /// Its status, or why there is none.
    pub status: Result<MemberStatus, CallError>,
}

/// The status of a member, as it reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// etcd's version, such as `3.5.26`.
    pub version: String,
    /// The size of its database file, which the quota limits.
    pub database_bytes: u64,
    /// The bytes of the file that are in use; a defragmentation frees the rest. `None`: it does not report them.
    pub in_use_bytes: Option<u64>,
    /// The largest size of the file; `None`: it does not report it (before etcd 3.6).
    pub quota_bytes: Option<u64>,
    /// Whether it is a learner, which receives the data, but neither votes nor accepts calls.
    pub is_learner: bool,
    /// Whether it leads etcd.
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
            in_use_bytes: Some(bytes(answer.db_size_in_use)?).filter(|in_use| *in_use > 0),
            quota_bytes: Some(bytes(answer.db_size_quota)?).filter(|quota| *quota > 0),
            is_learner: answer.is_learner,
            is_leader: answer.leader == header.member_id && answer.leader != 0,
            has_leader: answer.leader != 0,
            errors: answer.errors,
        })
    }
}

/// The state of etcd that a cluster expects.
#[derive(Clone, Debug)]
pub struct Expected {
    /// A key that the user of the client may read; it need not exist.
    pub key: Vec<u8>,
    /// The time above which a linearizable read shows that the machines or the network are too slow.
    pub round_trip_max: Duration,
    /// The number of revisions above which the first one must have been compacted.
    pub revisions_max: Revision,
}

impl Expected {
    /// The expectations of a cluster with these keys and this renew deadline.
    pub fn of(keys: &Keys, renew_deadline: Duration) -> Self {
        let round_trip_max = Timing::new(renew_deadline).map_or(renew_deadline, Timing::round_trip_max);
        Self { key: keys.format(), round_trip_max, revisions_max: REVISIONS_MAX }
    }
}

/// The warnings about these members; each says what to change. `kept` is the number of revisions, if etcd keeps all of
/// them; `None`: it has compacted the first ones, or does not answer.
pub(super) fn warnings_about(
    members: &[Member],
    round_trip: Option<Duration>,
    kept: Option<Revision>,
    expected: &Expected,
) -> Vec<String> {
    let reachable = members.iter().filter(|member| member.status.is_ok()).count();
    let mut warnings = Vec::new();
    for Member { endpoint, status } in members {
        match status {
            Ok(status) => warn_about_member(endpoint, status, &mut warnings),
            Err(error) => warnings.push(format!(
                "member {endpoint} does not answer as it should ({error}); {reachable} of {} members of etcd do, and etcd needs a \
                 majority; check that it runs, its URL, and the certificate or the user of this node",
                members.len()
            )),
        }
    }
    // Alarms concern all of etcd, so one report is enough.
    let reports = |alarm: &str| {
        members.iter().find_map(|Member { endpoint, status }| {
            let errors = &status.as_ref().ok()?.errors;
            errors.iter().any(|error| error.contains(alarm)).then_some(endpoint)
        })
    };
    if let Some(endpoint) = reports("NOSPACE") {
        warnings.push(format!(
            "etcd refuses all writes, because it has no space (alarm NOSPACE, reported by {endpoint}); {}",
            super::failure::NO_SPACE
        ));
    }
    if let Some(endpoint) = reports("CORRUPT") {
        warnings.push(format!(
            "the data of etcd's members differ (alarm CORRUPT, reported by {endpoint}); replace the member that differs"
        ));
    }
    if let Some(revision) = kept.filter(|revision| *revision > expected.revisions_max) {
        warnings.push(format!(
            "etcd keeps all of its {revision} revisions, and its database grows until it is full; start etcd with \
             --auto-compaction-mode=periodic --auto-compaction-retention=5m"
        ));
    }
    if let Some(round_trip) = round_trip.filter(|time| *time > expected.round_trip_max) {
        warnings.push(format!(
            "a read from etcd takes {:.1} ms, and should take {:.1} ms at most; use faster disks, a nearer etcd or a longer \
             cluster.renew_deadline",
            round_trip.as_secs_f64() * 1e3,
            expected.round_trip_max.as_secs_f64() * 1e3
        ));
    }
    warnings
}

fn warn_about_member(endpoint: &str, status: &MemberStatus, warnings: &mut Vec<String>) {
    if !status.has_leader {
        warnings.push(format!(
            "member {endpoint} of etcd knows no leader; a majority of etcd's members must run and reach each other"
        ));
    }
    let quota_bytes = status.quota_bytes.unwrap_or(DEFAULT_QUOTA_BYTES);
    if status.database_bytes > quota_bytes / 100 * ALMOST_FULL_PERCENT {
        warnings.push(format!(
            "the database of member {endpoint} has {} MiB of {} MiB{}; compact and {DEFRAGMENT}, or raise \
             --quota-backend-bytes: when it is full, nothing can be stored",
            status.database_bytes >> 20,
            quota_bytes >> 20,
            if status.quota_bytes.is_some() {
                ""
            } else {
                " (etcd's default; this version does not report its quota)"
            }
        ));
    } else if let Some(in_use) = status.in_use_bytes
        && status.database_bytes > LARGE_BYTES
        && in_use < status.database_bytes / 2
    {
        warnings.push(format!(
            "the database of member {endpoint} has {} MiB, of which {} MiB are in use; {DEFRAGMENT}",
            status.database_bytes >> 20,
            in_use >> 20
        ));
    }
    let version = &status.version;
    match numbers(version) {
        Some((3, 5, 0..=2)) => warnings.push(format!(
            "member {endpoint} runs etcd {version}, whose data may become inconsistent in a crash; update it to the newest 3.5"
        )),
        Some((major, minor, _)) if (major, minor) >= (3, 4) => {}
        _ => warnings.push(format!("member {endpoint} runs etcd {version}; update it to the newest 3.5 or 3.6")),
    }
    if status.is_learner {
        warnings.push(format!(
            "member {endpoint} of etcd is a learner, which accepts no calls; remove it from cluster.etcd, or promote it"
        ));
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
    use super::super::messages::ResponseHeader;
    use super::*;

    fn status() -> MemberStatus {
        MemberStatus {
            version: "3.5.26".to_owned(),
            database_bytes: 100 << 20,
            in_use_bytes: Some(50 << 20),
            quota_bytes: None,
            is_learner: false,
            is_leader: true,
            has_leader: true,
            errors: Vec::new(),
        }
    }

    /// The warnings about members of these statuses.
    fn about(statuses: impl IntoIterator<Item = MemberStatus>) -> Vec<String> {
        let member = |status| Member { endpoint: "http://a:2379".to_owned(), status: Ok(status) };
        let members: Vec<_> = statuses.into_iter().map(member).collect();
        let round_trip_max = Duration::from_millis(150);
        let expected = Expected { key: Vec::new(), round_trip_max, revisions_max: REVISIONS_MAX };
        warnings_about(&members, Some(Duration::from_millis(150)), Some(100_000), &expected)
    }

    #[test]
    fn a_healthy_etcd_gets_no_warning() {
        assert_eq!(about([status(), status(), status()]), [""; 0]);
    }

    #[test]
    fn a_database_above_70_percent_of_its_quota_is_almost_full() {
        for (database_bytes, quota_bytes, warning) in [
            (1_024 << 20, None, None),
            (1_434 << 20, None, Some("has 1434 MiB of 2048 MiB (etcd's default")),
            (1_024 << 20, Some(8 << 30), None),
            (6 << 30, Some(8 << 30), Some("has 6144 MiB of 8192 MiB; compact")),
        ] {
            let warnings = about([MemberStatus { database_bytes, quota_bytes, ..status() }]);
            assert_eq!(warnings.len(), usize::from(warning.is_some()), "{warnings:?}");
            assert!(warnings.iter().zip(warning).all(|(found, part)| found.contains(part)), "{warnings:?}");
        }
    }

    #[test]
    fn a_large_database_that_is_half_empty_is_worth_a_defragmentation() {
        let quota_bytes = Some(8 << 30);
        for (database_bytes, in_use_bytes, is_warned_about) in [
            (2 << 30, Some(1 << 30), false),
            (2 << 30, Some((1 << 30) - 1), true),
            (1 << 30, Some(1), false),
            (2 << 30, None, false),
        ] {
            let warnings = about([MemberStatus { database_bytes, in_use_bytes, quota_bytes, ..status() }]);
            assert_eq!(warnings.len(), usize::from(is_warned_about), "{warnings:?}");
            assert!(
                warnings
                    .iter()
                    .all(|found| found.contains("has 2048 MiB, of which 1023 MiB are in use; defrag"))
            );
        }
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
            let inconsistent = warnings.iter().any(|warning| warning.contains("inconsistent"));
            let old = warnings.iter().any(|warning| warning.contains("3.5 or 3.6"));
            let expected = (is_good, is_inconsistent, !is_good && !is_inconsistent);
            assert_eq!((warnings.is_empty(), inconsistent, old), expected, "{version}");
        }
    }

    #[test]
    fn a_member_that_is_of_no_use_is_warned_about() {
        for (status, part) in [
            (MemberStatus { has_leader: false, ..status() }, "knows no leader"),
            (MemberStatus { is_learner: true, ..status() }, "is a learner"),
        ] {
            let warnings = about([status]);
            assert!(warnings.len() == 1 && warnings[0].contains(part), "{warnings:?}");
        }
        let error = CallError::Unanswered("no answer".to_owned());
        let silent = Member { endpoint: "http://b:2379".to_owned(), status: Err(error) };
        let well = Member { endpoint: "http://a:2379".to_owned(), status: Ok(status()) };
        let expected = Expected { key: Vec::new(), round_trip_max: Duration::ZERO, revisions_max: 0 };
        let warnings = warnings_about(&[well, silent], None, None, &expected);
        assert!(warnings.len() == 1 && warnings[0].contains("http://b:2379"), "{warnings:?}");
    }

    #[test]
    fn a_slow_etcd_and_one_that_keeps_all_revisions_are_warned_about() {
        let expected = Expected::of(&Keys::new("test"), Duration::from_secs(3));
        let [limit, longer] = [150, 151].map(Duration::from_millis);
        for (round_trip, kept, warnings) in [
            (Some(limit), Some(REVISIONS_MAX), 0),
            (Some(longer), None, 1),
            (None, Some(REVISIONS_MAX + 1), 1),
            (Some(longer), Some(REVISIONS_MAX + 1), 2),
            (None, None, 0),
        ] {
            let found = warnings_about(&[], round_trip, kept, &expected);
            assert_eq!(found.len(), warnings, "{found:?}");
        }
    }

    #[test]
    fn a_member_leads_if_it_is_the_one_that_it_names() {
        let answer = |member_id, leader| StatusResponse {
            header: Some(ResponseHeader { member_id, ..ResponseHeader::default() }),
            leader,
            ..StatusResponse::default()
        };
        for (member_id, leader, is_leader, has_leader) in
            [(1, 1, true, true), (1, 2, false, true), (0, 0, false, false)]
        {
            let status = MemberStatus::new(answer(member_id, leader)).unwrap();
            assert_eq!((status.is_leader, status.has_leader), (is_leader, has_leader));
        }
    }

    #[test]
    fn an_alarm_of_several_members_is_one_warning() {
        let with = |error: &str| MemberStatus { errors: vec![error.to_owned()], ..status() };
        for alarm in ["NOSPACE", "CORRUPT"] {
            let error = format!("memberID:1 alarm:{alarm} ");
            let warnings = about([with(&error), with(&error)]);
            assert!(warnings.len() == 1 && warnings[0].contains(alarm), "{warnings:?}");
        }
    }
}

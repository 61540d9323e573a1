//! When a revocation takes effect, as far as the client knows.
//!
//! A notice says how much of the grace period is left, but not when it was sent, and it may have been delayed. So its
//! arrival proves nothing, and the client assumes that it was sent as early as possible. It asks VerifyGrant at once: the
//! answer proves how long the permit is held, counted from when the question was sent.
//!
//! Invariants: an end is never after the moment at which the server takes the resources away. Only a proof makes an end
//! later; a notice never does.

use super::clock::Moment;

/// How many notices of revocations a session has received. A question is sent after this many, so its answer includes
/// the revocations of these notices, and maybe not those of later ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NoticeCount(u64);

impl NoticeCount {
    /// The count after one more notice.
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The end of the grace period of a grant or a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GraceEnd {
    /// Computed from a notice, as if it had been sent together with the last answer.
    Assumed {
        at: Moment,
        /// Which notice it was: answers to questions from before it are not about this revocation.
        notice: NoticeCount,
    },
    /// Answered by the server since the last notice.
    Proven { at: Moment },
}

impl GraceEnd {
    /// The end after a notice. A second revocation may bring the end forward, and never delays it.
    pub(super) fn after_notice(before: Option<Self>, at: Moment, notice: NoticeCount) -> Self {
        Self::Assumed { at: before.map_or(at, |before| before.at().min(at)), notice }
    }

    /// When the grace period ends.
    pub(super) fn at(self) -> Moment {
        match self {
            Self::Assumed { at, .. } | Self::Proven { at } => at,
        }
    }

    /// Whether the answer to a question that was sent after this many notices is about this revocation.
    pub(super) fn is_answered_after(self, asked_after: NoticeCount) -> bool {
        match self {
            Self::Assumed { notice, .. } => asked_after >= notice,
            // Questions are answered in order, so this answer is newer than the one that proved it.
            Self::Proven { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn seconds(number: u64) -> Moment {
        Moment(Duration::from_secs(number))
    }

    #[test]
    fn a_notice_never_delays_the_end_and_outdates_questions_from_before_it() {
        let (none, first) = (NoticeCount::default(), NoticeCount::default().next());
        let proven = GraceEnd::Proven { at: seconds(10) };
        assert!(proven.is_answered_after(none));
        let later = GraceEnd::after_notice(Some(proven), seconds(20), first);
        assert_eq!(later, GraceEnd::Assumed { at: seconds(10), notice: first });
        let earlier = GraceEnd::after_notice(Some(later), seconds(5), first.next());
        assert_eq!(earlier.at(), seconds(5));
        assert!(!earlier.is_answered_after(first) && earlier.is_answered_after(first.next()));
    }
}

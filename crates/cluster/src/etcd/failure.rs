//! Decides whether etcd may have performed a call that failed, and what the operator should do.
//!
//! An error counts as a refusal only if etcd certainly returns it before it performs anything. Every other error counts as
//! unanswered, and the call is repeated.

use std::error::Error;
use std::time::Duration;

use tonic::{Code, Status};

use crate::coordinator::CallError;

/// Why a call to one member failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The member did not answer within the time limit.
    TimedOut(Duration),
    /// The member answered with an error, or the connection failed.
    Status(Box<Status>),
    /// The system has no file descriptor or thread for a connection.
    System(std::io::Error),
    /// The answer cannot be decoded.
    Malformed(&'static str),
}

/// The meaning of an error of etcd for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The call may have been performed, or may still be. The caller repeats it.
    Unanswered,
    /// The call was not performed and will not be. The text says what the operator should do.
    Refused(&'static str),
    /// The call was not performed, because the token is no longer valid, or was missing.
    TokenNeeded,
    /// etcd has no users, so calls need no token.
    NoTokenNeeded,
    /// etcd is out of space. The call may have been performed: the transaction that exceeds the quota is performed, and
    /// answered with this error.
    NoSpace,
}

const TOO_LARGE: &str = "send less at once, or raise --max-request-bytes of etcd";
const TOO_MANY: &str = "send less at once, or raise --max-txn-ops of etcd";
const COMPACTED: &str =
    "read at a later revision; if this repeats, raise --auto-compaction-retention of etcd";
const FUTURE: &str = "etcd has lost revisions: was it restored from a backup?";
const PERMISSION: &str = "grant the user readwrite on the cluster's prefix (etcdctl role grant-permission)";
const PASSWORD: &str = "correct the user and the password";
pub(super) const NO_SPACE: &str =
    "compact and defragment etcd, disarm its alarm (etcdctl alarm disarm), raise --quota-backend-bytes";

/// The meanings of etcd's errors, by parts of their texts. etcd's own clients use the texts too, because one code has
/// several meanings.
const MEANINGS: [(&str, Meaning); 15] = [
    ("request is too large", Meaning::Refused(TOO_LARGE)),
    ("larger than max", Meaning::Refused(TOO_LARGE)),
    ("too many operations", Meaning::Refused(TOO_MANY)),
    ("duplicate key", Meaning::Refused("this is a bug of signalbox; report it")),
    ("key is not provided", Meaning::Refused("this is a bug of signalbox; report it")),
    ("revision has been compacted", Meaning::Refused(COMPACTED)),
    ("future revision", Meaning::Refused(FUTURE)),
    ("permission denied", Meaning::Refused(PERMISSION)),
    ("invalid user ID or password", Meaning::Refused(PASSWORD)),
    ("user name is empty", Meaning::TokenNeeded),
    ("invalid auth token", Meaning::TokenNeeded),
    ("revision of auth store is old", Meaning::TokenNeeded),
    ("revision in header is old", Meaning::TokenNeeded),
    ("authentication is not enabled", Meaning::NoTokenNeeded),
    ("database space exceeded", Meaning::NoSpace),
];

impl Failure {
    pub(super) fn meaning(&self) -> Meaning {
        let Self::Status(status) = self else { return Meaning::Unanswered };
        // The answer that the call was performed may have been lost with the connection.
        let is_lost = matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled);
        let found = MEANINGS.iter().find(|(text, _)| status.message().contains(text));
        match found {
            Some((_, meaning)) if !is_lost => *meaning,
            _ => Meaning::Unanswered,
        }
    }

    /// The text of the failure, without the endpoint.
    pub(super) fn text(&self) -> String {
        match self {
            Self::TimedOut(limit) => format!("no answer within {} ms", limit.as_millis()),
            Self::Status(status) => match status.source() {
                Some(source) => with_causes(source),
                None => status.message().trim_start_matches("etcdserver: ").to_owned(),
            },
            Self::System(error) => format!("no connection: {error}"),
            Self::Malformed(what) => format!("a malformed answer: {what}; is this etcd?"),
        }
    }

    /// The error of a call to this endpoint that may have been performed.
    pub(super) fn unanswered(&self, endpoint: &str) -> CallError {
        CallError::Unanswered(format!("etcd {endpoint}: {}", self.text()))
    }

    /// The error of a call to this endpoint that was not performed.
    pub(super) fn refused(&self, endpoint: &str, advice: &str) -> CallError {
        CallError::Refused(format!("etcd {endpoint}: {}; {advice}", self.text()))
    }
}

/// The text of an error and of its causes.
pub(super) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_etcd_certainly_did_not_perform_are_refused() {
        let meaning = |code, text: &str| Failure::Status(Box::new(Status::new(code, text))).meaning();
        let unanswered = [
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Unavailable, "etcdserver: rpc not supported for learner"),
            (Code::ResourceExhausted, "etcdserver: too many requests"),
            (Code::DeadlineExceeded, "context deadline exceeded"),
            (Code::Cancelled, "context canceled"),
            (Code::Unknown, "something new"),
            (Code::Internal, "h2 protocol error"),
            (Code::DataLoss, "etcdserver: corrupt cluster"),
            (Code::Unavailable, "a proxy says: permission denied"),
        ];
        for (code, text) in unanswered {
            assert_eq!(meaning(code, text), Meaning::Unanswered, "{text}");
        }
        let refused = [
            (Code::InvalidArgument, "etcdserver: request is too large"),
            (Code::ResourceExhausted, "grpc: received message larger than max (3000000 vs. 2097152)"),
            (Code::InvalidArgument, "etcdserver: too many operations in txn request"),
            (Code::InvalidArgument, "etcdserver: duplicate key given in txn request"),
            (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password"),
            (Code::PermissionDenied, "etcdserver: permission denied"),
            (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
            (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"),
        ];
        for (code, text) in refused {
            assert!(matches!(meaning(code, text), Meaning::Refused(_)), "{text}");
        }
        let token = meaning(Code::Unauthenticated, "etcdserver: invalid auth token");
        assert_eq!(token, Meaning::TokenNeeded);
        let space = meaning(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert_eq!(space, Meaning::NoSpace);
    }

    #[test]
    fn a_message_names_the_endpoint_and_what_to_do() {
        let failure = Failure::TimedOut(Duration::from_millis(500));
        let expected = "etcd http://a:1: no answer within 500 ms";
        assert_eq!(failure.unanswered("http://a:1").to_string(), expected);
        let failure =
            Failure::Status(Box::new(Status::new(Code::InvalidArgument, "etcdserver: request is too large")));
        let expected =
            "etcd http://a:1: request is too large; send less at once, or raise --max-request-bytes of etcd";
        assert_eq!(failure.refused("http://a:1", TOO_LARGE).to_string(), expected);
    }
}

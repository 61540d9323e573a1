//! The client of etcd.
//!
//! A call is one attempt at one member. After a call without an answer, the connection is dropped and the next call goes
//! to the next member: a request that is in flight when etcd loses its leader may hang, and what waits behind it on the
//! connection too. The caller repeats the call unchanged.
//!
//! Reads are linearizable also at a revision, so that a revision that etcd does not have was lost, and is not merely
//! unknown to the member that was asked.

use std::time::{Duration, Instant};

use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Endpoint;

use super::failure::{Failure, Meaning, NO_SPACE};
use super::generated::{
    AUTH_AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, KV_RANGE, KV_TXN, MAINTENANCE_STATUS,
    StatusRequest, StatusResponse,
};
use super::link::{Limit, Link};
use super::member::{Member, MemberStatus};
use super::settings::{Settings, SettingsError, User};
use super::translation;
use super::warning::{Expected, warnings_about};
use crate::coordinator::{
    CallError, Coordinator, Operation, Range, RangeAnswer, Transaction, TransactionAnswer,
};

/// A client of etcd. Its calls block, for `request_timeout` at most; do not call it within an async runtime.
pub struct EtcdClient {
    members: Vec<Connection>,
    /// The member that the next call uses.
    current: usize,
    user: Option<User>,
    token: Token,
    request_timeout: Duration,
    /// Whether the last transaction that needed space was refused for lack of it. Then etcd has its alarm, and performs
    /// no such transaction.
    is_full: bool,
}

/// A member, and the connection to it if there is one.
struct Connection {
    url: String,
    endpoint: Endpoint,
    link: Option<Link>,
}

/// What etcd wants to see of the user.
enum Token {
    /// Nothing: the client has no user, or etcd none.
    NotNeeded,
    /// It has to be requested first.
    Missing,
    /// What the last authentication gave. It is valid at all members.
    Valid(AsciiMetadataValue),
}

impl std::fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let urls: Vec<_> = self.members.iter().map(|member| &member.url).collect();
        f.debug_struct("EtcdClient").field("members", &urls).field("user", &self.user).finish_non_exhaustive()
    }
}

impl Clone for EtcdClient {
    /// A client with connections of its own.
    fn clone(&self) -> Self {
        let member = |member: &Connection| Connection {
            url: member.url.clone(),
            endpoint: member.endpoint.clone(),
            link: None,
        };
        Self {
            members: self.members.iter().map(member).collect(),
            current: self.current,
            token: if self.user.is_some() { Token::Missing } else { Token::NotNeeded },
            user: self.user.clone(),
            request_timeout: self.request_timeout,
            is_full: self.is_full,
        }
    }
}

impl EtcdClient {
    /// A client with these settings. It reads the files that they name, and connects when it is used.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] says which setting cannot be used.
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let endpoints = settings.prepare()?;
        let members = settings.endpoints.iter().zip(endpoints);
        let members = members.map(|(url, endpoint)| Connection { url: url.clone(), endpoint, link: None });
        Ok(Self {
            members: members.collect(),
            current: 0,
            token: if settings.user.is_some() { Token::Missing } else { Token::NotNeeded },
            user: settings.user.clone(),
            request_timeout: settings.request_timeout,
            is_full: false,
        })
    }

    /// What each member says about itself, in the order of the endpoints. A member that does not answer takes
    /// `request_timeout`.
    pub fn status(&mut self) -> Vec<Member> {
        (0..self.members.len()).map(|index| self.status_of(index)).collect()
    }

    fn status_of(&mut self, index: usize) -> Member {
        let answer = self.call::<_, StatusResponse>(index, MAINTENANCE_STATUS, StatusRequest {});
        let status = answer.and_then(|answer| MemberStatus::new(answer).map_err(Failure::Malformed));
        let status = status.map_err(|failure| match self.call_error(index, &failure) {
            // The endpoint stands beside it.
            CallError::Unanswered(_) => CallError::Unanswered(failure.text()),
            refused => refused,
        });
        Member { endpoint: self.members[index].url.clone(), status }
    }

    /// The status of each member, and what the operator should know about this etcd and change; empty if all is well.
    pub fn inspect(&mut self, expected: &Expected) -> (Vec<Member>, Vec<String>) {
        let members = self.status();
        let mut read = |at| {
            let range = Range { from: expected.key.clone(), to: None, at, count_only: true };
            let began = Instant::now();
            self.range(&range).ok().map(|answer| (answer.revision, began.elapsed()))
        };
        // The first may have to connect.
        let round_trip = (0..3).filter_map(|_| read(None)).map(|(_, elapsed)| elapsed).min();
        let kept = read(Some(1)).map(|(revision, _)| revision);
        let warnings = warnings_about(&members, round_trip, kept, expected);
        (members, warnings)
    }

    /// Makes a call to the current member, and understands its answer. If there is none, the next call uses the next member.
    fn ask<Q, A, T>(
        &mut self,
        path: &'static str,
        message: Q,
        understand: impl FnOnce(A) -> Result<T, &'static str>,
    ) -> Result<T, CallError>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        let member = self.current;
        let answer = self.call(member, path, message);
        let answer = answer.and_then(|answer| understand(answer).map_err(Failure::Malformed));
        answer.map_err(|failure| {
            let error = self.call_error(member, &failure);
            if matches!(error, CallError::Unanswered(_)) {
                self.current = (member + 1) % self.members.len();
            }
            error
        })
    }

    /// The error that a failed call to a member is for the caller; a connection that may be stuck is dropped.
    fn call_error(&mut self, member: usize, failure: &Failure) -> CallError {
        let Connection { url, link, .. } = &mut self.members[member];
        match failure.meaning() {
            Meaning::Refused(advice) => failure.refused(url, advice),
            Meaning::TokenNeeded if self.user.is_none() => {
                failure.refused(url, "name a user of etcd and its password, or a certificate of the client")
            }
            Meaning::NoSpace if self.is_full => failure.refused(url, NO_SPACE),
            Meaning::NoSpace => {
                self.is_full = true;
                failure.unanswered(url)
            }
            Meaning::TokenNeeded | Meaning::NoTokenNeeded | Meaning::Unanswered => {
                *link = None;
                failure.unanswered(url)
            }
        }
    }

    /// Makes a call to a member, after an authentication if that is needed, and again if its token is not valid any more.
    fn call<Q, A>(&mut self, member: usize, path: &'static str, message: Q) -> Result<A, Failure>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        let limit = Limit::from_now(self.request_timeout);
        let again = self.user.is_some().then(|| message.clone());
        let first = self.call_once(member, path, message, limit);
        match (first, again) {
            (Err(failure), Some(again)) if failure.meaning() == Meaning::TokenNeeded => {
                self.token = Token::Missing;
                self.call_once(member, path, again, limit)
            }
            (first, _) => first,
        }
    }

    fn call_once<Q, A>(
        &mut self,
        member: usize,
        path: &'static str,
        message: Q,
        limit: Limit,
    ) -> Result<A, Failure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let Connection { endpoint, link, .. } = &mut self.members[member];
        let link = match link {
            Some(link) => link,
            None => link.insert(Link::new(endpoint)?),
        };
        if let (Token::Missing, Some(user)) = (&self.token, &self.user) {
            self.token = authenticate(link, user, limit)?;
        }
        let token = match &self.token {
            Token::Valid(token) => Some(token),
            Token::NotNeeded | Token::Missing => None,
        };
        link.call(path, message, token, limit)
    }
}

fn authenticate(link: &mut Link, user: &User, limit: Limit) -> Result<Token, Failure> {
    let request = AuthenticateRequest { name: user.name.clone(), password: user.password.clone() };
    match link.call::<_, AuthenticateResponse>(AUTH_AUTHENTICATE, request, None, limit) {
        Ok(answer) => {
            let mut token = AsciiMetadataValue::try_from(answer.token.as_str())
                .map_err(|_| Failure::Malformed("a token that is not text"))?;
            token.set_sensitive(true);
            Ok(Token::Valid(token))
        }
        // As soon as users are enabled, calls without a token fail, and the client authenticates.
        Err(failure) if failure.meaning() == Meaning::NoTokenNeeded => Ok(Token::NotNeeded),
        Err(failure) => Err(failure),
    }
}

impl Coordinator for EtcdClient {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        self.ask(KV_RANGE, translation::range_request(range), translation::range_answer)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        if translation::writes_a_key_twice(transaction) {
            let what = "a transaction writes a key twice; this is a bug of signalbox; report it";
            return Err(CallError::Refused(what.to_owned()));
        }
        let answer = self.ask(KV_TXN, translation::transaction_request(transaction), |answer| {
            translation::transaction_answer(transaction, answer)
        })?;
        let performed = if answer.held { &transaction.then } else { &transaction.otherwise };
        if performed.iter().any(|operation| matches!(operation, Operation::Put { .. })) {
            self.is_full = false;
        }
        Ok(answer)
    }
}

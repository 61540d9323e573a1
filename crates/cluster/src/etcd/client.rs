//! The client of etcd.
//!
//! A call is one attempt at one member. After a call without an answer, the connection is dropped and the next call uses the
//! next member: a request that is in flight when etcd loses its leader may hang, and so may later requests on the same
//! connection. The caller repeats the call unchanged.
//!
//! Reads at a revision are linearizable too, so a revision that etcd does not have is lost, and not merely unknown to one
//! member.

use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::failure::{Failure, Meaning, NO_SPACE};
use super::messages::{
    AUTH_AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, KV_RANGE, KV_TXN, MAINTENANCE_STATUS,
    StatusResponse,
};
use super::settings::{Settings, SettingsError, User};
use super::status::{Expected, Member, MemberStatus, warnings_about};
use super::translation;
use crate::coordinator::{
    CallError, Coordinator, Operation, Range, RangeAnswer, Transaction, TransactionAnswer,
};

/// A client of etcd. Its calls block, for `request_timeout` at most; do not call it within an async runtime.
pub struct EtcdClient {
    members: Vec<MemberConnection>,
    /// The member that the next call uses.
    current: usize,
    user: Option<User>,
    token: Token,
    request_timeout: Duration,
    /// Whether the last transaction that needed space was refused for lack of it. etcd has then raised an alarm, and
    /// performs no such transaction.
    is_full: bool,
}

/// A member, and the connection to it.
struct MemberConnection {
    url: String,
    endpoint: Endpoint,
    connection: Option<Connection>,
}

/// The token of the user.
enum Token {
    /// No token: the client has no user, or etcd has no users.
    NotNeeded,
    /// The token must be requested first.
    Missing,
    /// The token of the last authentication. It is valid at all members.
    Valid(AsciiMetadataValue),
}

impl std::fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let urls: Vec<_> = self.members.iter().map(|member| &member.url).collect();
        f.debug_struct("EtcdClient").field("members", &urls).field("user", &self.user).finish_non_exhaustive()
    }
}

impl Clone for EtcdClient {
    /// Creates a client with connections of its own.
    fn clone(&self) -> Self {
        let member = |member: &MemberConnection| MemberConnection {
            url: member.url.clone(),
            endpoint: member.endpoint.clone(),
            connection: None,
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
    /// Creates a client with these settings. Reads the files that they name; the first call connects.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: one of the settings cannot be used.
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let endpoints = settings.prepare()?;
        let members = settings.endpoints.iter().zip(endpoints);
        let members =
            members.map(|(url, endpoint)| MemberConnection { url: url.clone(), endpoint, connection: None });
        Ok(Self {
            members: members.collect(),
            current: 0,
            token: if settings.user.is_some() { Token::Missing } else { Token::NotNeeded },
            user: settings.user.clone(),
            request_timeout: settings.request_timeout,
            is_full: false,
        })
    }

    /// Reads the status of each member, in the order of the endpoints. A member that does not answer takes
    /// `request_timeout`.
    pub fn status(&mut self) -> Vec<Member> {
        (0..self.members.len()).map(|index| self.status_of(index)).collect()
    }

    fn status_of(&mut self, index: usize) -> Member {
        let answer = self.call::<_, StatusResponse>(index, MAINTENANCE_STATUS, ());
        let status = answer.and_then(|answer| MemberStatus::new(answer).map_err(Failure::Malformed));
        let status = status.map_err(|failure| match self.call_error(index, &failure) {
            // Without the endpoint, which `Member` has.
            CallError::Unanswered(_) => CallError::Unanswered(failure.text()),
            refused => refused,
        });
        Member { endpoint: self.members[index].url.clone(), status }
    }

    /// Reads the status of each member. Also returns warnings for the operator; there are none if etcd is set up well.
    pub fn inspect(&mut self, expected: &Expected) -> (Vec<Member>, Vec<String>) {
        let members = self.status();
        let mut read = |at| {
            let range = Range { from: expected.key.clone(), to: None, at, count_only: true };
            let began = Instant::now();
            self.range(&range).ok().map(|answer| (answer.revision, began.elapsed()))
        };
        // The first read may have to connect.
        let round_trip = (0..3).filter_map(|_| read(None)).map(|(_, elapsed)| elapsed).min();
        // This succeeds only if etcd still has its first revision.
        let kept = read(Some(1)).map(|(revision, _)| revision);
        let warnings = warnings_about(&members, round_trip, kept, expected);
        (members, warnings)
    }

    /// Makes a call to the current member, and decodes its answer. Without an answer, the next call uses the next member.
    fn call_current<Q, A, T>(
        &mut self,
        path: &'static str,
        message: Q,
        decode: impl FnOnce(A) -> Result<T, &'static str>,
    ) -> Result<T, CallError>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        let member = self.current;
        let answer = self.call(member, path, message);
        let answer = answer.and_then(|answer| decode(answer).map_err(Failure::Malformed));
        answer.map_err(|failure| {
            let error = self.call_error(member, &failure);
            if matches!(error, CallError::Unanswered(_)) {
                self.current = (member + 1) % self.members.len();
            }
            error
        })
    }

    /// Translates the failure of a call to a member into an error for the caller. Drops the connection if it may be stuck.
    fn call_error(&mut self, member: usize, failure: &Failure) -> CallError {
        let MemberConnection { url, connection, .. } = &mut self.members[member];
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
                *connection = None;
                failure.unanswered(url)
            }
        }
    }

    /// Makes a call to a member, and authenticates first if necessary. If the token is no longer valid, authenticates
    /// and makes the call again.
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
        let MemberConnection { endpoint, connection, .. } = &mut self.members[member];
        let connection = match connection {
            Some(connection) => connection,
            None => connection.insert(Connection::new(endpoint)?),
        };
        if let (Token::Missing, Some(user)) = (&self.token, &self.user) {
            self.token = authenticate(connection, user, limit)?;
        }
        let token = match &self.token {
            Token::Valid(token) => Some(token),
            Token::NotNeeded | Token::Missing => None,
        };
        connection.call(path, message, token, limit)
    }
}

fn authenticate(connection: &mut Connection, user: &User, limit: Limit) -> Result<Token, Failure> {
    let request = AuthenticateRequest { name: user.name.clone(), password: user.password.clone() };
    match connection.call::<_, AuthenticateResponse>(AUTH_AUTHENTICATE, request, None, limit) {
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

/// A connection to one member; it is established by the first call.
///
/// It has a runtime of its own, so that dropping it also ends its tasks: one that writes to a member that reads
/// nothing, or the request of a call that was given up. The runtime runs only during calls, so etcd gets no keepalive
/// pings; a connection that fails during a call is replaced at the next one.
struct Connection {
    /// `None` only while the connection is dropped.
    runtime: Option<Runtime>,
    grpc: Grpc<Channel>,
}

/// The deadline of a call, and the time that it was given.
#[derive(Clone, Copy, Debug)]
struct Limit {
    until: Instant,
    time: Duration,
}

impl Limit {
    fn from_now(time: Duration) -> Self {
        Self { until: Instant::now() + time, time }
    }
}

impl Connection {
    fn new(endpoint: &Endpoint) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::System)?;
        let channel = {
            let _within = runtime.enter();
            endpoint.connect_lazy()
        };
        // A range may have any number of keys, and a transaction any size that etcd accepts.
        let grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
        Ok(Self { runtime: Some(runtime), grpc })
    }

    /// Makes a call, once.
    fn call<Q, A>(
        &mut self,
        path: &'static str,
        message: Q,
        token: Option<&AsciiMetadataValue>,
        limit: Limit,
    ) -> Result<A, Failure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let path = Uri::from_static(path).into_parts().path_and_query.expect("the paths of calls are valid");
        let mut request = Request::new(message);
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        let grpc = &mut self.grpc;
        let answer = async {
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            grpc.unary(request, path, ProstCodec::<Q, A>::default()).await
        };
        let runtime = self.runtime.as_ref().expect("a connection has a runtime until it is dropped");
        let until = tokio::time::Instant::from_std(limit.until);
        match runtime.block_on(async { tokio::time::timeout_at(until, answer).await }) {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(Failure::Status(Box::new(status))),
            Err(_) => Err(Failure::TimedOut(limit.time)),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Do not wait for a thread that resolves a host name.
            runtime.shutdown_background();
        }
    }
}

impl Coordinator for EtcdClient {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        self.call_current(KV_RANGE, translation::range_request(range), translation::range_answer)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        if translation::writes_a_key_twice(transaction) {
            let what = "a transaction writes a key twice; this is a bug of signalbox; report it";
            return Err(CallError::Refused(what.to_owned()));
        }
        let answer = self.call_current(KV_TXN, translation::transaction_request(transaction), |answer| {
            translation::transaction_answer(transaction, answer)
        })?;
        let performed = if answer.held { &transaction.then } else { &transaction.otherwise };
        if performed.iter().any(|operation| matches!(operation, Operation::Put { .. })) {
            self.is_full = false;
        }
        Ok(answer)
    }
}

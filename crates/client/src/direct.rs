//! Extended operations of `docs/protocol.md` over a separate connection: listings, watches, administration, and
//! sessions that another process handed over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::connection::Connection;
use super::error::{about, requesting};
use super::{Disconnect, Error, Series, Token, checked};
use signalbox_model::{
    Changed, DeclaredEntry, Event, GrantId, HeldEntry, Idle, Inspected, ListEntry, Milliseconds, Namespace,
    OfKind, Operation, RequestId, RequestIds, Scope, SessionEntry, SessionId, SessionKey, Status, Target,
    VerifiedGrant,
};
use signalbox_protocol::{
    DumpEntry, EXTENDED_VERSION, Extended, Features, HelloAnswer, Request, ResponseFrame, Wait,
    check_declarations,
};

/// A connection for extended operations. Clones share it; it is closed when the last clone and the last series of it
/// are dropped. [`Client::direct`](super::Client::direct) opens one.
///
/// Each method sends one request. The kind of its error is [`ErrorKind::ConnectionLost`] if the connection ends,
/// [`ErrorKind::Body`] if the answer is malformed, and usually [`ErrorKind::Status`] if the server refuses the request:
/// [`Error::is_refusal`] covers all refusals.
///
/// [`ErrorKind::Status`]: super::ErrorKind::Status
/// [`ErrorKind::ConnectionLost`]: super::ErrorKind::ConnectionLost
/// [`ErrorKind::Body`]: super::ErrorKind::Body
///
#[doc = example!(
    "client: Client",
    "let direct = client.direct().await?;",
    r#"println!("the connection's session is {}", direct.server().session);"#,
)]
#[derive(Clone, Debug)]
pub struct Direct {
    connection: Arc<Connection>,
    server: HelloAnswer,
    /// The number of the next request that makes a change.
    requests: Arc<AtomicU64>,
}

/// The id of the last request of a session that was handed over. It is higher than every id that the other process has
/// used.
const LAST_REQUEST: RequestId = RequestId(1 << 63);

impl Direct {
    /// Sends Hello with the token, if there is one.
    pub(super) async fn open(
        connection: Connection,
        label: &[u8],
        token: Option<&Token>,
    ) -> Result<Self, Error> {
        let (connection, token) = (Arc::new(connection), Token::latest(token).await);
        let hello = Extended::Hello {
            version: EXTENDED_VERSION,
            label,
            credentials: connection.credentials(token.as_ref())?,
            features: Features::default(),
        };
        let server = connection.ask_for_success(hello).await?.hello()?;
        Ok(Self { connection, server, requests: Arc::new(AtomicU64::new(1)) })
    }

    /// Returns the server's answer to Hello: its version, its features and its limits (`docs/protocol.md`, "Hello").
    ///
    #[doc = example!("direct: Direct", r#"println!("requests may wait for {} ms", direct.server().wait_max.0);"#)]
    pub fn server(&self) -> HelloAnswer {
        self.server
    }

    /// Attaches a session to this connection, and detaches it from any other (`docs/protocol.md`, "AttachSession").
    /// This renews the lease. Returns the session's time to live.
    ///
    #[doc = example!(
        "direct: Direct, handed: HandedOver",
        "let left = direct.attach_session(handed.session, handed.key).await?;",
    )]
    pub async fn attach_session(&self, session: u64, key: SessionKey) -> Result<Duration, Error> {
        let frame =
            self.connection.ask_for_success(Extended::AttachSession { session, key, repetitions: 0 }).await?;
        Ok(frame.ttl()?.into())
    }

    /// Closes the session that is attached to this connection, which releases all that it holds (`docs/protocol.md`,
    /// "CloseSession").
    ///
    #[doc = example!("direct: Direct", "direct.close_session().await?;")]
    pub async fn close_session(&self) -> Result<(), Error> {
        self.connection.ask_for_success(Extended::CloseSession).await.map(drop)
    }

    /// Releases a grant of the session that is attached to this connection, after the work of its single flight is done
    /// (`docs/protocol.md`, "ReleaseGrant"). No other change can be requested in the session afterwards: close it.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct, handed: signalbox_client::HandedOver)
    /// # -> Result<(), signalbox_client::Error> {
    /// direct.attach_session(handed.session, handed.key).await?;
    /// direct.release_done(handed.grant).await?;
    /// direct.close_session().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release_done(&self, grant: GrantId) -> Result<(), Error> {
        let ids = RequestIds { own: LAST_REQUEST, lowest_unanswered: LAST_REQUEST };
        let release = Extended::ReleaseGrant { ids, grant, is_done: true };
        self.connection.ask_for_success(release).await.map(drop)
    }

    /// Returns the session that holds a grant, and the least time for which the grant is still held
    /// (`docs/protocol.md`, "VerifyGrant"). Fails with [`Status::NotAcquired`](super::Status::NotAcquired) if the grant
    /// is not held.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// # let id = signalbox_client::GrantId(1);
    /// let held = direct.verify(id).await.is_ok();
    /// # Ok(())
    /// # }
    /// ```
    pub async fn verify(&self, grant: GrantId) -> Result<VerifiedGrant, Error> {
        Ok(self.connection.ask_for_success(Extended::VerifyGrant { grant }).await?.verified()?)
    }

    /// Returns whether this client may administer a name (`docs/protocol.md`, "MayAdminister").
    ///
    #[doc = example!(
        "direct: Direct",
        r#"let may_declare = direct.may_administer(Namespace::Semaphores, b"gpu").await?;"#,
    )]
    pub async fn may_administer(&self, namespace: Namespace, name: &[u8]) -> Result<bool, Error> {
        let name = checked(name)?;
        match self.connection.ask_for_success(Extended::MayAdminister { namespace, name }).await {
            Ok(_) => Ok(true),
            Err(error) if error.status() == Some(Status::NotPermitted) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists all sessions: leased ones, those of connections, and processes of System V semaphores (`docs/protocol.md`,
    /// "Sessions").
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// let mut sessions = direct.sessions().await?;
    /// while let Some(session) = sessions.next().await {
    ///     let session = session?;
    ///     println!("{}: {} grants, from {:?}", session.session, session.grants, session.address);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn sessions(&self) -> Result<Series<SessionEntry<Bytes>>, Error> {
        Series::ask(&self.connection, Extended::Sessions, ResponseFrame::session_entry, None).await
    }

    /// Lists what the given sessions hold and wait for (`docs/protocol.md`, "Held"). There must be 1 to
    /// [`HELD_SESSIONS_MAX`](super::HELD_SESSIONS_MAX) sessions; those that do not exist are left out. Fails with
    /// [`Status::NoSuchSession`](super::Status::NoSuchSession) if none of them exists, and with
    /// [`Status::InvalidArguments`](super::Status::InvalidArguments) if `sessions` is empty or too long.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// let session = signalbox_client::SessionId::from_number(4294967301).expect("it is not 0");
    /// let mut held = direct.held(&[session]).await?;
    /// while let Some(held) = held.next().await {
    ///     println!("{}", String::from_utf8_lossy(&held?.name));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn held(&self, sessions: &[SessionId]) -> Result<Series<HeldEntry<Bytes, Vec<u16>>>, Error> {
        let request = Extended::Held { sessions: sessions.to_vec() };
        Series::ask(&self.connection, request, ResponseFrame::held_entry, None).await
    }

    /// Exports all stored records as they are at one moment, in the format of `signalbox data export`
    /// (`docs/protocol.md`, "Export"). **The text is secret:** it contains the keys of all leased sessions. It is complete only
    /// if the series ends without an error.
    ///
    /// Fails with [`Status::NotFound`](super::Status::NotFound) if the server stores nothing, and with
    /// [`Status::NotPermitted`](super::Status::NotPermitted) if the server does not permit exports from this address.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct, mut file: std::fs::File)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::Write;
    ///
    /// let mut export = direct.export().await?;
    /// while let Some(part) = export.next().await {
    ///     file.write_all(&part?)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn export(&self) -> Result<Series<Bytes>, Error> {
        Series::ask(&self.connection, Extended::Export, ResponseFrame::export_part, None).await
    }

    /// Makes a change that an administrator may make: declares, resizes, pauses or removes semaphores, deletes counters,
    /// cancels waiting requests, or revokes what clients hold. [`Operation`] lists all changes.
    ///
    /// # Errors
    /// [`ErrorKind::Declarations`](super::ErrorKind::Declarations) or [`ErrorKind::NameLength`](super::ErrorKind::NameLength) if
    /// the operation breaks a rule of the protocol, so that no request was sent; else [`ErrorKind::Status`](super::ErrorKind::Status)
    /// with `NotPermitted`, `NotFound`, or another refusal (`docs/protocol.md`, the section of the operation).
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::{Changed, Declaration, GrantId, IfExists, Milliseconds, Operation, Resizing, Revocation};
    ///
    /// let gpus = Declaration { name: b"gpu", capacity: 8, numbered: true, label: b"the machines in room 3" };
    /// direct.change(&Operation::Declare { if_exists: IfExists::Set, declarations: vec![gpus] }).await?;
    ///
    /// let grow = Operation::Resize { name: b"gpu", how: Resizing::GrowBy(2), expected: None };
    /// if let Changed::Declared(states) = direct.change(&grow).await? {
    ///     println!("{} of {} in use", states[0].in_use, states[0].capacity);
    /// }
    ///
    /// let (what, grace) = (Revocation::Grant(GrantId(4711)), Milliseconds(10_000));
    /// direct.change(&Operation::Revoke { what, grace }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn change(&self, operation: &Operation<'_>) -> Result<Changed, Error> {
        requesting(|| operation.to_string(), async {
            match operation {
                Operation::Declare { declarations, .. } => check_declarations(declarations)?,
                operation => {
                    if let Target::Name(_, name) = operation.target() {
                        checked(name)?;
                    }
                }
            }
            let request = Extended::Change { ids: self.next_ids(), operation: operation.clone() };
            Ok(self.connection.ask_for_success(request).await?.changed(operation)?)
        })
        .await
    }

    /// Waits until the number of resources of a name that are in use is at most the [`Idle::Level`], or until the
    /// [`Idle::Slot`] is free (`docs/protocol.md`, "AwaitIdle"). Returns the number of resources that are in use at that
    /// time.
    ///
    /// Without a timeout, the request waits as long as the server allows. Dropping the future does not cancel the
    /// request: the server keeps it until the timeout.
    ///
    /// # Errors
    /// [`ErrorKind::Status`](super::ErrorKind::Status) with `TimedOut`, `Removed`, or another refusal.
    ///
    #[doc = example!(
        "direct: Direct",
        r#"direct.await_idle(Namespace::Semaphores, b"gpu", Idle::Level(0), None).await?;"#,
    )]
    pub async fn await_idle(
        &self,
        namespace: Namespace,
        name: &[u8],
        until: Idle,
        timeout: Option<Duration>,
    ) -> Result<u32, Error> {
        let span = timeout.map_or(Milliseconds(u32::MAX), Milliseconds::saturating_from);
        let requested = || {
            let name = Target::Name(namespace, name);
            let until = match until {
                Idle::Level(level) => format!("wait for {name} until at most {level} are in use"),
                Idle::Slot(slot) => format!("wait for slot {slot} of {name} until it is free"),
            };
            let within = timeout.map(|limit| format!(" within {} s", limit.as_secs_f64()));
            until + &within.unwrap_or_default()
        };
        requesting(requested, async {
            let request =
                Extended::AwaitIdle { wait: Wait::UpTo(span), until, namespace, name: checked(name)? };
            Ok(self.connection.ask_for_success(request).await?.in_use()?)
        })
        .await
    }

    /// Lists the declared semaphores whose names start with these bytes, in the order of their names; all of them if
    /// `prefix` is empty (`docs/protocol.md`, "List").
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// let mut declared = direct.list(b"").await?;
    /// while let Some(semaphore) = declared.next().await {
    ///     let semaphore = semaphore?;
    ///     println!("{:?}: {} of {}", semaphore.name, semaphore.in_use, semaphore.capacity);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(&self, prefix: &[u8]) -> Result<Series<DeclaredEntry<Bytes>>, Error> {
        if !prefix.is_empty() {
            checked(prefix)?;
        }
        Series::ask(&self.connection, Extended::List { prefix }, ResponseFrame::declared_entry, None).await
    }

    /// Lists the holders of a name (`docs/protocol.md`, "Holders").
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::Namespace;
    ///
    /// let mut holders = direct.holders(Namespace::Counters, b"backup").await?;
    /// while let Some(holder) = holders.next().await {
    ///     println!("{}", holder?.session);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn holders(
        &self,
        namespace: Namespace,
        name: &[u8],
    ) -> Result<Series<ListEntry<Bytes, Vec<u16>>>, Error> {
        self.listing("list the holders of", Extended::Holders { namespace, name }, namespace, name).await
    }

    /// Lists the waiters of a name, in the order of the queue (`docs/protocol.md`, "Waiters").
    ///
    #[doc = example!("direct: Direct", r#"let mut waiters = direct.waiters(Namespace::Counters, b"backup").await?;"#)]
    pub async fn waiters(
        &self,
        namespace: Namespace,
        name: &[u8],
    ) -> Result<Series<ListEntry<Bytes, Vec<u16>>>, Error> {
        self.listing("list the waiters of", Extended::Waiters { namespace, name }, namespace, name).await
    }

    /// Returns the ids for the next request that makes a change.
    pub(super) fn next_ids(&self) -> RequestIds {
        // No request is repeated over this connection, so the server need not keep earlier answers. Concurrent requests
        // may arrive in another order: `lowest_unanswered` is so low that the server accepts a late one.
        let own = self.requests.fetch_add(1, Ordering::Relaxed);
        let lowest = own.saturating_sub(512).max(1);
        RequestIds { own: RequestId(own), lowest_unanswered: RequestId(lowest) }
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    async fn listing(
        &self,
        operation: &'static str,
        request: Extended<'_>,
        namespace: Namespace,
        name: &[u8],
    ) -> Result<Series<ListEntry<Bytes, Vec<u16>>>, Error> {
        let requested = about(operation, namespace, name);
        if let Err(error) = checked(name) {
            return Err(error.with_request(requested));
        }
        Series::ask(&self.connection, request, ResponseFrame::list_entry, Some(requested)).await
    }

    /// Returns the usage of a name, its capacity, how much of it is available, and the length of its queue
    /// (`docs/protocol.md`, "Inspect"). Fails with [`Status::NotFound`](super::Status::NotFound) if the name does not
    /// exist.
    ///
    #[doc = example!(
        "direct: Direct",
        r#"let gpu = direct.inspect(None, b"gpu").await?;"#,
        r#"println!("{} of {} in use, {} waiting", gpu.in_use, gpu.capacity, gpu.waiting);"#,
    )]
    pub async fn inspect(
        &self,
        namespace: impl Into<Option<Namespace>>,
        name: &[u8],
    ) -> Result<Inspected, Error> {
        let namespace = namespace.into();
        requesting(|| format!("inspect {}", OfKind(namespace, name)), async {
            let request = Extended::Inspect { namespace, name: checked(name)? };
            Ok(self.connection.ask_for_success(request).await?.inspected()?)
        })
        .await
    }

    /// Reports the current state of names, and then their events. Each is numbered, from 1 (`docs/protocol.md`, "Watch").
    /// Dropping the series does not end the watch at the server; closing the connection does.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::{Namespace, Scope};
    ///
    /// let mut watch = direct.watch(Namespace::Counters, Scope::Prefix(b"tenant/")).await?;
    /// while let Some(event) = watch.next().await {
    ///     let (number, event) = event?;
    ///     println!("{number}: {event:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn watch(
        &self,
        namespace: Namespace,
        scope: Scope<&[u8]>,
    ) -> Result<Series<(u64, Event<Bytes>)>, Error> {
        let requested = match scope {
            Scope::Name(name) => Some(about("watch", namespace, name)),
            Scope::Prefix(_) => None,
        };
        // An empty prefix means all names.
        if let Scope::Name(text) | Scope::Prefix(text @ [_, ..]) = scope
            && let Err(error) = checked(text)
        {
            return Err(requested.map_or(error.clone(), |requested| error.with_request(requested)));
        }
        let request = Extended::Watch { namespace, scope };
        Series::ask(&self.connection, request, |frame| frame.event().map(Some), requested).await
    }

    /// Lists the names of the port's namespace (`counter.md`, "Dump").
    ///
    #[doc = example!("direct: Direct", "let mut names = direct.dump().await?;")]
    pub async fn dump(&self) -> Result<Series<DumpEntry<Bytes>>, Error> {
        Series::ask(&self.connection, Request::Dump, ResponseFrame::dump_entry, None).await
    }

    /// Waits until the connection has ended, and returns why.
    ///
    #[doc = example!("direct: Direct", r#"println!("{}", direct.closed().await);"#)]
    pub async fn closed(&self) -> Disconnect {
        self.connection.ended().await
    }
}

//! Extended operations as they stand in `docs/protocol.md`, each one request and its answer: listings, watches,
//! administration, and sessions that one process hands to another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::connection::Connection;
use super::{Dump, Error, Listing, Loss, Watch, checked};
use crate::protocol::{
    EXTENDED_VERSION, Extended, GrantId, HelloAnswer, Milliseconds, Namespace, Request, RequestId,
    RequestIds, ResponseFrame, Revocation, Scope, SessionKey, VerifiedGrant,
};

/// A connection that said Hello. Clones share it; it is closed when the last one and the last series of it is dropped.
/// [`Client::direct`](super::Client::direct) makes one.
///
/// ```no_run
/// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
/// let direct = client.direct().await?;
/// println!("the server knows this connection as session {}", direct.server().session);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Direct {
    connection: Arc<Connection>,
    server: HelloAnswer,
    /// The number of the next request that changes something.
    requests: Arc<AtomicU64>,
}

impl Direct {
    pub(super) async fn enter(connection: Connection, label: &[u8]) -> Result<Self, Error> {
        let connection = Arc::new(connection);
        let hello = Extended::Hello { version: EXTENDED_VERSION, label, credentials: &[] };
        let server = connection.ask_for_success(hello).await?.hello()?;
        Ok(Self { connection, server, requests: Arc::new(AtomicU64::new(1)) })
    }

    /// What the server said of itself ("Hello").
    ///
    /// ```no_run
    /// # fn example(direct: signalbox::client::Direct) {
    /// println!("requests may wait for {} ms", direct.server().wait_max.0);
    /// # }
    /// ```
    pub fn server(&self) -> HelloAnswer {
        self.server
    }

    /// Continues a session here, which takes it from the connection that it was attached to ("AttachSession"). Gives
    /// the time to live that is left, all of it.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct, handed: signalbox::client::HandedOver)
    /// # -> Result<(), signalbox::client::Error> {
    /// let left = direct.attach_session(handed.session, handed.key).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn attach_session(&self, session: u64, key: SessionKey) -> Result<Duration, Error> {
        let frame = self.connection.ask_for_success(Extended::AttachSession { session, key }).await?;
        Ok(frame.ttl()?.into())
    }

    /// Ends the session that was attached here, and gives back all that it holds ("CloseSession").
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
    /// direct.close_session().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close_session(&self) -> Result<(), Error> {
        self.connection.ask_for_success(Extended::CloseSession).await.map(drop)
    }

    /// Whether anybody holds the grant, who, and for how long at least ("VerifyGrant").
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
    /// # let id = signalbox::client::GrantId(1);
    /// let held = direct.verify(id).await.is_ok();
    /// # Ok(())
    /// # }
    /// ```
    pub async fn verify(&self, grant: GrantId) -> Result<VerifiedGrant, Error> {
        Ok(self.connection.ask_for_success(Extended::VerifyGrant { grant }).await?.verified()?)
    }

    /// Takes a grant or a session away from its holder, who is told and keeps it for the grace ("Revoke"). Whether this
    /// client may do it is decided by its address.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
    /// use signalbox::client::{GrantId, Revocation};
    /// use std::time::Duration;
    ///
    /// direct.revoke(Revocation::Grant(GrantId(4711)), Duration::from_secs(10)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn revoke(&self, what: Revocation, grace: Duration) -> Result<(), Error> {
        let (ids, grace) = (self.next_ids(), Milliseconds::saturating_from(grace));
        self.connection.ask_for_success(Extended::Revoke { ids, what, grace }).await.map(drop)
    }

    /// The numbers of the next request that changes something.
    pub(super) fn next_ids(&self) -> RequestIds {
        // Nothing is repeated over this connection, so nothing before it has to be remembered. Two at once could
        // arrive in the other order, which the gap that `lowest_unanswered` leaves allows for.
        let own = self.requests.fetch_add(1, Ordering::Relaxed);
        let lowest = own.saturating_sub(512).max(1);
        RequestIds { own: RequestId(own), lowest_unanswered: RequestId(lowest) }
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Who holds a name ("Holders").
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
    /// use signalbox::client::Namespace;
    ///
    /// let mut holders = direct.holders(Namespace::Counters, b"backup").await?;
    /// while let Some(holder) = holders.next().await {
    ///     println!("{}", holder?.session);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn holders(&self, namespace: Namespace, name: &[u8]) -> Result<Listing, Error> {
        let request = Extended::Holders { namespace, name: checked(name)? };
        Listing::ask(&self.connection, request, ResponseFrame::list_entry).await
    }

    /// Who waits for a name, the first in the queue first ("Waiters").
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
    /// use signalbox::client::Namespace;
    ///
    /// let mut waiters = direct.waiters(Namespace::Counters, b"backup").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn waiters(&self, namespace: Namespace, name: &[u8]) -> Result<Listing, Error> {
        let request = Extended::Waiters { namespace, name: checked(name)? };
        Listing::ask(&self.connection, request, ResponseFrame::list_entry).await
    }

    /// Reports names as they are, and then what happens to them, for as long as it is read ("Watch").
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
    /// use signalbox::client::{Namespace, Scope};
    ///
    /// let mut watch = direct.watch(Namespace::Counters, Scope::Prefix(b"tenant/")).await?;
    /// while let Some(event) = watch.next().await {
    ///     println!("{:?}", event?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn watch(&self, namespace: Namespace, scope: Scope<'_>) -> Result<Watch, Error> {
        // Only the prefix of all names is empty.
        if let Scope::Name(text) | Scope::Prefix(text @ [_, ..]) = scope {
            checked(text)?;
        }
        Watch::ask(&self.connection, Extended::Watch { namespace, scope }, |frame| frame.event().map(Some))
            .await
    }

    /// Lists the names of the port ("Dump").
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
    /// let mut names = direct.dump().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn dump(&self) -> Result<Dump, Error> {
        Dump::ask(&self.connection, Request::Dump, ResponseFrame::dump_entry).await
    }

    /// Resolves when the connection is gone.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct) {
    /// println!("{}", direct.closed().await);
    /// # }
    /// ```
    pub async fn closed(&self) -> Loss {
        self.connection.ended().await
    }
}

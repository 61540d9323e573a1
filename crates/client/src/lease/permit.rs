//! A permit of the leased client, which is released when it is dropped.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::warn;

use super::claim::{AcquireSpec, Claim};
use super::client::SessionHandle;
use super::requests::{Command, HeldGrant};
use crate::{Error, Lost};
use signalbox_model::{GrantId, SessionKey};
use signalbox_protocol::OpenedSession;

/// Names of operations on a permit, for errors.
const HOLD: &str = "hold";
const HAND_OVER: &str = "hand over";
const RELEASE: &str = "release";

/// Resources that are held: a grant of the server, whose lease the client renews.
///
/// Dropping a permit releases it without waiting; [`Permit::release`] reports the result. Work that must not continue
/// without the permit checks [`Permit::is_held`] before each step, or runs in [`Permit::guard`].
///
/// In the client, a permit ends before the server grants the resources to others: leases are counted from when a
/// request was sent, less 4 % for clocks that run at different rates, on a clock that also runs while the machine is
/// suspended. But no client can stop a write that is already under way. The store that receives the write can, if it is
/// sent the fencing token [`Permit::id`]: see "Fencing tokens" in `docs/semantics.md`.
///
/// ```no_run
/// # async fn example(client: signalbox_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let permit = client.semaphore("deploys").capacity(3).acquire().await?;
/// # async fn deploy() {}
/// match permit.guard(deploy()).await {
///     Ok(()) => permit.release().await?,
///     Err(lost) => eprintln!("stopped half-way: {lost}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a permit releases it; keep it for as long as the work lasts"]
pub struct Permit {
    session: Arc<SessionHandle>,
    grant: HeldGrant,
    spec: Arc<AcquireSpec>,
    /// Whether the driver was asked to release the grant, or to leave it to another process.
    is_given_up: bool,
}

impl Permit {
    pub(super) fn new(session: Arc<SessionHandle>, grant: HeldGrant, spec: Arc<AcquireSpec>) -> Self {
        let permit = Self { session, grant, spec, is_given_up: false };
        for (claim, capacity) in permit.differing_capacities() {
            let name = claim.name().escape_ascii();
            warn!(%name, capacity, "the semaphore exists with another capacity than the one requested");
        }
        permit
    }

    /// Returns the grant's id, which is the permit's fencing token: it increases with each grant of a name. A store
    /// that refuses a lower id than it has seen is safe from writes of earlier holders (`docs/semantics.md`, "Fencing
    /// tokens").
    ///
    #[doc = example!(
        "permit: &Permit",
        r#"let sql = format!("UPDATE report SET fence = {0} WHERE fence <= {0}", permit.id().0);"#,
    )]
    pub fn id(&self) -> GrantId {
        self.grant.granted.grant
    }

    /// Returns the claims that were requested and granted.
    ///
    /// ```no_run
    /// # fn example(permit: &signalbox_client::Permit) {
    /// for claim in permit.claims() {
    ///     println!("{}", String::from_utf8_lossy(claim.name()));
    /// }
    /// # }
    /// ```
    pub fn claims(&self) -> &[Claim] {
        &self.spec.claims
    }

    /// Returns a number for each claim, in the order of [`Self::claims`]: the actual capacity of a semaphore, which may
    /// differ from the requested one, or the requested maximum of a counter.
    ///
    #[doc = example!("permit: &Permit", r#"println!("one of {}", permit.capacities()[0]);"#)]
    pub fn capacities(&self) -> &[u32] {
        &self.grant.granted.capacities
    }

    /// Returns the claims whose semaphore existed with a capacity that differs from the requested one, and the actual
    /// capacity. Such a difference means that programs request different capacities for one semaphore. The client also
    /// logs a warning.
    ///
    /// ```no_run
    /// # fn example(permit: &signalbox_client::Permit) {
    /// for (claim, capacity) in permit.differing_capacities() {
    ///     eprintln!("{} has a capacity of {capacity}", claim.name().escape_ascii());
    /// }
    /// # }
    /// ```
    pub fn differing_capacities(&self) -> impl Iterator<Item = (&Claim, u32)> {
        let capacities = self.claims().iter().zip(self.capacities().iter().copied());
        capacities.filter(|(claim, capacity)| claim.differs_from(*capacity))
    }

    /// Returns the slots of the first claim in ascending order, numbered from 0; no other permit has them. Empty unless
    /// the semaphore was declared with numbered slots. See [`Self::slots_of`] for several claims.
    ///
    #[doc = example!(
        "client: Client",
        r#"let permit = client.semaphore("gpu").declared().acquire().await?;"#,
        r#"println!("on GPU {}", permit.slots()[0]);"#,
    )]
    pub fn slots(&self) -> &[u16] {
        self.slots_of(0)
    }

    /// Returns the slots of the claim with this index in [`Self::claims`]; empty if there is no such claim.
    ///
    /// ```no_run
    /// # fn example(permit: &signalbox_client::Permit) {
    /// for (index, claim) in permit.claims().iter().enumerate() {
    ///     println!("{:?}: {:?}", claim.name(), permit.slots_of(index));
    /// }
    /// # }
    /// ```
    pub fn slots_of(&self, claim: usize) -> &[u16] {
        self.grant.granted.slots.get(claim).map_or(&[], |slots| slots)
    }

    /// Returns whether the permit is held now.
    ///
    /// ```no_run
    /// # fn example(permit: &signalbox_client::Permit) {
    /// # let parts = [1, 2, 3];
    /// for part in parts {
    ///     if !permit.is_held() {
    ///         break;
    ///     }
    ///     // The next part of the work goes here.
    /// }
    /// # }
    /// ```
    pub fn is_held(&self) -> bool {
        self.time_left().is_some()
    }

    /// Returns the least time for which the permit is still held, even without a renewal; `None` if it is lost.
    ///
    #[doc = example!("permit: &Permit", "let enough = permit.time_left() > Some(Duration::from_secs(2));")]
    pub fn time_left(&self) -> Option<Duration> {
        self.grant.validity.remaining()
    }

    /// Waits until the permit is lost, and returns why. The client's own thread detects the loss, so a busy runtime
    /// does not delay the detection, but only the task that awaits it.
    ///
    /// ```no_run
    /// # async fn example(permit: signalbox_client::Permit) {
    /// # async fn work() {}
    /// tokio::select! {
    ///     lost = permit.lost() => eprintln!("{lost}"),
    ///     () = work() => {}
    /// }
    /// # }
    /// ```
    pub async fn lost(&self) -> Lost {
        self.grant.validity.lost().await
    }

    /// Waits until an administrator revokes the permit. The permit stays held until the grace period ends:
    /// [`Self::time_left`] returns no more than the rest of that period, and [`Self::lost`] returns at its end.
    ///
    #[doc = example!(
        "permit: Permit",
        "permit.revocation().await;",
        r#"println!("to be released within {:?}", permit.time_left());"#,
    )]
    pub async fn revocation(&self) {
        self.grant.validity.revocation().await;
    }

    /// Runs a future for as long as the permit is held. If the permit is lost first, the future is dropped.
    ///
    /// # Errors
    /// Only [`ErrorKind::Lost`](crate::ErrorKind::Lost), with the reason.
    ///
    /// ```no_run
    /// # async fn example(permit: signalbox_client::Permit) -> Result<(), signalbox_client::Error> {
    /// # async fn work() -> u32 { 7 }
    /// let result = permit.guard(work()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let mut work = pin!(work);
        let work = poll_fn(|context| match self.grant.validity.remaining() {
            Some(_) => work.as_mut().poll(context),
            // After a suspension, this may run before the driver has marked the permit as lost.
            None => Poll::Pending,
        });
        tokio::select! {
            // Check for a loss first: the work must not continue without the permit.
            biased;
            lost = self.lost() => Err(self.failed(HOLD, lost)),
            done = work => Ok(done),
        }
    }

    /// Hands the permit over to another process. The server keeps the session with everything that it holds until its
    /// time to live is over. Other permits of the same session are lost here, and stay held by the session. Acquires
    /// that wait in the session are not handed over: they queue again in another session of this client.
    ///
    /// # Errors
    /// Fails if the permit is lost or no server is connected. The permit is then released; dropping the future releases
    /// it too.
    ///
    #[doc = example!(
        "permit: Permit",
        "let handed = permit.hand_over().await?;",
        r#"println!("session {} holds grant {}", handed.session, handed.grant.0);"#,
    )]
    pub async fn hand_over(mut self) -> Result<HandedOver, Error> {
        let (reply, session) = oneshot::channel();
        self.session.send(Command::Isolate(reply));
        match session.await {
            Ok(session) => {
                let OpenedSession { session, key, ttl } =
                    session.map_err(|error| self.failed(HAND_OVER, error))?;
                if !self.is_held() {
                    return Err(self.failed(HAND_OVER, self.lost().await));
                }
                // Nothing is awaited from here on, so the session is not kept without a caller that knows its key.
                self.is_given_up = true;
                self.session.send(Command::StopRenewing);
                Ok(HandedOver { session, key, grant: self.id(), ttl: ttl.into() })
            }
            Err(_) => Err(self.failed(HAND_OVER, self.lost().await)),
        }
    }

    /// Releases the permit and waits for the server's answer, for 5 s at most. Dropping the future does not stop the
    /// release.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the permit was already lost: another holder may have had the
    /// resources. [`ErrorKind::Unanswered`](crate::ErrorKind::Unanswered) after 5 s: the client repeats the release in
    /// the background, until it is answered or the lease ends.
    ///
    #[doc = example!("permit: Permit", "permit.release().await?;")]
    pub async fn release(self) -> Result<(), Error> {
        self.request_release(false).await
    }

    /// Releases the permit like [`Self::release`], after the work of a single flight is done. The waiting
    /// [shared](super::Acquire::shared) requests end with [`Flight::Done`](super::Flight::Done), so store the result
    /// first.
    ///
    /// # Errors
    /// The errors of [`Self::release`], and [`Status::InvalidArguments`](crate::Status::InvalidArguments) if the permit
    /// was not acquired by a shared request: it then stays held until its session ends.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
    /// # async fn render_into_cache() {}
    /// use signalbox_client::Flight;
    ///
    /// if let Flight::Held(permit) = client.limit("page/7").shared().await? {
    ///     permit.guard(render_into_cache()).await?;
    ///     permit.release_done().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release_done(self) -> Result<(), Error> {
        self.request_release(true).await
    }

    async fn request_release(mut self, is_done: bool) -> Result<(), Error> {
        self.is_given_up = true;
        let (reply, answer) = oneshot::channel();
        self.session.send(Command::Release { grant: self.id(), is_done, reply: Some(reply) });
        match answer.await {
            Ok(result) => result.map_err(|error| self.failed(RELEASE, error)),
            Err(_) => Err(self.failed(RELEASE, self.lost().await)),
        }
    }

    /// Adds this operation on the permit to an error.
    fn failed(&self, operation: &str, error: impl Into<Error>) -> Error {
        error.into().with_request(self.spec.requested(operation))
    }
}

/// A session that this process has handed over. Another process can attach it, which renews it, and close it
/// ([`Direct`](crate::Direct)).
///
#[doc = example!(
    "permit: Permit",
    "let handed = permit.hand_over().await?;",
    r#"println!("attach session {} within {:?}", handed.session, handed.ttl);"#,
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// The session's number.
    pub session: u64,
    /// The session's key. Keep it secret.
    pub key: SessionKey,
    /// The permit's grant.
    pub grant: GrantId,
    /// How long the session lives after its last renewal.
    pub ttl: Duration,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.is_given_up {
            self.session.send(Command::Release { grant: self.id(), is_done: false, reply: None });
        }
    }
}

//! What a leased session holds, given back when it goes out of scope.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::claim::Terms;
use super::lane::{Command, Lane};
use super::standing::Standing;
use crate::client::{Error, Lost};
use crate::protocol::{GrantId, OpenedSession, SessionKey};

/// Resources that are held: a grant of the server, for as long as its lease is renewed, which happens by itself.
///
/// Dropping it gives it back without blocking; [`Permit::release`] says how that went. A program that must not work
/// without it looks at [`Permit::is_held`] before each step, or runs its work by [`Permit::guard`].
///
/// What is believed here ends before the server frees the resources: leases are counted from when a request was sent,
/// less 4 % for clocks that run differently, on a clock that counts suspension. But no client can stop what the
/// program has under way; the store that it writes to can, if it is sent [`Permit::id`]: see "Fencing tokens"
/// in `docs/semantics.md`.
///
/// ```no_run
/// # async fn example(client: signalbox::client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let permit = client.semaphore("deploys").capacity(3).acquire().await?;
/// # async fn deploy() {}
/// match permit.guard(deploy()).await {
///     Ok(()) => permit.release().await?,
///     Err(lost) => eprintln!("given up half-way: {lost}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a permit that is dropped is given back; keep it for as long as the work lasts"]
pub struct Permit {
    lane: Arc<Lane>,
    taken: Taken,
    terms: Arc<Terms>,
    standing: Arc<Standing>,
    /// Somebody else has told the driver, or will.
    released: bool,
}

/// What the server says of a grant.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) grant: GrantId,
    /// Of each claim, in their order.
    pub(super) capacities: Vec<u32>,
    pub(super) slots: Vec<Vec<u16>>,
}

impl Permit {
    pub(super) fn new(lane: Arc<Lane>, taken: Taken, terms: Arc<Terms>, standing: Arc<Standing>) -> Self {
        Self { lane, taken, terms, standing, released: false }
    }

    /// The grant's number. It grows from grant to grant of a name, so a store can refuse who comes with a lower one
    /// than it has seen.
    ///
    /// ```no_run
    /// # fn example(permit: &signalbox::client::Permit) {
    /// let sql = format!("UPDATE report SET fence = {0} WHERE fence <= {0}", permit.id().0);
    /// # }
    /// ```
    pub fn id(&self) -> GrantId {
        self.taken.grant
    }

    /// What was asked for and granted.
    ///
    /// ```no_run
    /// # fn example(permit: &signalbox::client::Permit) {
    /// for claim in permit.claims() {
    ///     println!("{}", String::from_utf8_lossy(claim.name()));
    /// }
    /// # }
    /// ```
    pub fn claims(&self) -> &[super::Claim] {
        &self.terms.claims
    }

    /// The capacity of each claim's semaphore as it is, whoever made it; of a counter, the maximum of the request.
    ///
    /// ```no_run
    /// # fn example(permit: &signalbox::client::Permit) {
    /// println!("one of {}", permit.capacities()[0]);
    /// # }
    /// ```
    pub fn capacities(&self) -> &[u32] {
        &self.taken.capacities
    }

    /// The numbers of the slots that it has of the first claim, from the lowest: no other permit has them. Empty where
    /// the semaphore was not declared with numbered slots. Of several claims, [`Self::slots_of`] tells.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
    /// let permit = client.semaphore("gpu").declared().acquire().await?;
    /// println!("on GPU {}", permit.slots()[0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn slots(&self) -> &[u16] {
        self.slots_of(0)
    }

    /// As [`Self::slots`], of one of the claims, by its place in [`Self::claims`].
    ///
    /// ```no_run
    /// # fn example(permit: &signalbox::client::Permit) {
    /// for (index, claim) in permit.claims().iter().enumerate() {
    ///     println!("{:?}: {:?}", claim.name(), permit.slots_of(index));
    /// }
    /// # }
    /// ```
    pub fn slots_of(&self, claim: usize) -> &[u16] {
        self.taken.slots.get(claim).map_or(&[], |slots| slots)
    }

    /// Whether it is held now.
    ///
    /// ```no_run
    /// # fn example(permit: &signalbox::client::Permit) {
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

    /// How long it is held at least, if nothing renews it from now on; `None` where it is lost.
    ///
    /// ```no_run
    /// # fn example(permit: &signalbox::client::Permit) {
    /// # use std::time::Duration;
    /// let enough = permit.time_left() > Some(Duration::from_secs(2));
    /// # }
    /// ```
    pub fn time_left(&self) -> Option<Duration> {
        self.standing.left()
    }

    /// Until when it is held at least; `None` where it is lost. It is of this moment: renewal moves it on, and an
    /// [`Instant`] stands still while the machine is suspended, where a lease does not.
    ///
    /// ```no_run
    /// # fn example(permit: &signalbox::client::Permit) {
    /// let until = permit.held_until().expect("just acquired");
    /// # }
    /// ```
    pub fn held_until(&self) -> Option<Instant> {
        self.time_left().map(|left| Instant::now() + left)
    }

    /// Resolves when it is lost, and says why. That is found out by a thread of the client's own, so it is not late
    /// where the program's runtime is busy, but who awaits it there hears of it when the runtime gets to it.
    ///
    /// ```no_run
    /// # async fn example(permit: signalbox::client::Permit) {
    /// # async fn work() {}
    /// tokio::select! {
    ///     lost = permit.lost() => eprintln!("{lost}"),
    ///     () = work() => {}
    /// }
    /// # }
    /// ```
    pub async fn lost(&self) -> Lost {
        self.standing.lost().await
    }

    /// Resolves when an administrator has asked for it back. It is still held for the grace that was given, which
    /// [`Self::time_left`] tells from then on; [`Self::lost`] resolves when that is over.
    ///
    /// ```no_run
    /// # async fn example(permit: signalbox::client::Permit) {
    /// permit.revocation().await;
    /// println!("to be given up within {:?}", permit.time_left());
    /// # }
    /// ```
    pub async fn revocation(&self) {
        self.standing.revocation().await;
    }

    /// Runs work for as long as the permit is held. Work that is not done when it is lost is dropped where it stands.
    ///
    /// ```no_run
    /// # async fn example(permit: signalbox::client::Permit) -> Result<(), signalbox::client::Lost> {
    /// # async fn work() -> u32 { 7 }
    /// let result = permit.guard(work()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        let mut work = pin!(work);
        let work = poll_fn(|context| match self.standing.left() {
            Some(_) => work.as_mut().poll(context),
            // A process that was stopped may come here before the driver has noticed, which it will.
            None => Poll::Pending,
        });
        tokio::select! {
            // A loss counts first: the work must not take another step without the permit.
            biased;
            lost = self.lost() => Err(lost),
            done = work => Ok(done),
        }
    }

    /// Leaves what is held to another process. The session goes on at the server until its time to live is over, with
    /// all that it holds: other permits of the same session are lost here.
    ///
    /// Where this fails or its future is dropped, the permit is given back.
    ///
    /// ```no_run
    /// # async fn example(permit: signalbox::client::Permit) -> Result<(), signalbox::client::Error> {
    /// let handed = permit.hand_over().await?;
    /// println!("session {} holds grant {}", handed.session, handed.grant.0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn hand_over(mut self) -> Result<HandedOver, Error> {
        let (reply, session) = oneshot::channel();
        self.lane.tell(Command::HandOver(reply));
        match session.await {
            Ok(session) => {
                let OpenedSession { session, key, ttl } = session?;
                if !self.is_held() {
                    return Err(self.standing.lost().await.into());
                }
                // Nothing is awaited from here on, so the session is either let go and told of or neither.
                self.released = true;
                self.lane.tell(Command::LetGo);
                Ok(HandedOver { session, key, grant: self.id(), ttl: ttl.into() })
            }
            Err(_) => Err(self.standing.lost().await.into()),
        }
    }

    /// Gives it back and waits for the server's answer, at most for as long as the lease lasts. An error says that it
    /// was lost before: somebody else may have held the resources meanwhile.
    ///
    /// Where this future is dropped, it is given back all the same.
    ///
    /// ```no_run
    /// # async fn example(permit: signalbox::client::Permit) -> Result<(), signalbox::client::Error> {
    /// permit.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(mut self) -> Result<(), Error> {
        self.released = true;
        let (reply, answer) = oneshot::channel();
        self.lane.tell(Command::Release { grant: self.id(), reply: Some(reply) });
        match answer.await {
            Ok(result) => result,
            Err(_) => Err(self.standing.lost().await.into()),
        }
    }
}

/// A session that this process does not keep any more: whoever has this can attach it, renew it by that, and close it
/// ([`Direct`](crate::client::Direct)).
///
/// ```no_run
/// # async fn example(permit: signalbox::client::Permit) -> Result<(), signalbox::client::Error> {
/// let handed = permit.hand_over().await?;
/// println!("attach session {} within {:?}", handed.session, handed.ttl);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// The session's number.
    pub session: u64,
    /// The session's key, which is to be kept secret.
    pub key: SessionKey,
    /// The grant that the permit was.
    pub grant: GrantId,
    /// How long the session lives without a sign of life, from when it was last renewed.
    pub ttl: Duration,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.released {
            self.lane.tell(Command::Release { grant: self.id(), reply: None });
        }
    }
}

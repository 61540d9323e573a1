//! The contents of an acquire: names, amounts, and how long to wait.

use std::time::Duration;

use super::clock::Moment;
use crate::{Error, ErrorKind};
use signalbox_model::{AS_DECLARED, Milliseconds, Namespace, OfKind, about_all};
use signalbox_protocol::{Claims, ClaimsError, Queueing, Wait};

/// Resources of one name, to be acquired. If the name does not exist, the server creates the counter, or the semaphore
/// with the capacity that the claim gives.
///
/// ```
/// use signalbox_client::Claim;
///
/// let claims = [Claim::limit("gpu").resources(2), Claim::limit("tenant/7").maximum(8)];
/// assert_eq!(claims[0].name(), b"gpu");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// `None`: the server decides between the declared semaphore and the counter of this name.
    namespace: Option<Namespace>,
    name: Vec<u8>,
    resources: u32,
    /// The maximum of a counter, or the capacity of a semaphore that the request creates; `None`: the semaphore has to
    /// exist.
    limit: Option<u32>,
    slot: Option<u16>,
}

impl Claim {
    /// Claims one resource of a limit: the declared semaphore of this name, whose capacity an administrator has set,
    /// or, without one, the counter, which requires [`Self::maximum`]. The server decides between the two when
    /// it is the request's turn.
    ///
    #[doc = example!("", r#"let one = Claim::limit("deploys");"#)]
    pub fn limit(name: impl AsRef<[u8]>) -> Self {
        Self { namespace: None, name: name.as_ref().to_vec(), resources: 1, limit: None, slot: None }
    }

    /// Sets the maximum, for this request, of a limit that is not declared. If a declared semaphore has a larger
    /// capacity, the request fails with [`ErrorKind::MaximumTooSmall`], so that no client exceeds the number that it
    /// gave.
    ///
    #[doc = example!("", r#"let one_of_eight = Claim::limit("tenant/7").maximum(8);"#)]
    #[must_use]
    pub fn maximum(mut self, maximum: u32) -> Self {
        self.limit = Some(maximum);
        self
    }

    /// Claims one resource of a semaphore. `capacity` is the capacity of the semaphore if this request creates it; a
    /// semaphore that exists keeps its own. A capacity of 0 fails with [`ErrorKind::NoCapacity`].
    ///
    #[doc = example!("", r#"let two_of_three = Claim::semaphore("deploys", 3).resources(2);"#)]
    pub fn semaphore(name: impl AsRef<[u8]>, capacity: u32) -> Self {
        Self { namespace: Some(Namespace::Semaphores), ..Self::limit(name).maximum(capacity) }
    }

    /// Claims one resource of a semaphore that exists, usually a declared one. It is not created.
    ///
    #[doc = example!("", r#"let one = Claim::declared("deploys");"#)]
    pub fn declared(name: impl AsRef<[u8]>) -> Self {
        Self { limit: None, ..Self::semaphore(name, AS_DECLARED) }
    }

    /// Claims one resource of a counter. The request does not raise the consumption above `maximum`.
    ///
    #[doc = example!("", r#"let one_of_eight = Claim::counter("tenant/7", 8);"#)]
    pub fn counter(name: impl AsRef<[u8]>, maximum: u32) -> Self {
        Self { namespace: Some(Namespace::Counters), ..Self::limit(name).maximum(maximum) }
    }

    /// Requests this many resources instead of one; at least 1, at most the capacity or maximum.
    ///
    #[doc = example!("", r#"let five = Claim::counter("licences", 100).resources(5);"#)]
    #[must_use]
    pub fn resources(mut self, resources: u32) -> Self {
        self.resources = resources;
        self
    }

    /// Requests this slot of a declared semaphore with numbered slots, instead of any. The request waits in the queue
    /// like others: while it is the first and its slot is held or out of service, those after it wait too. The request
    /// must be for one resource, and does not create a semaphore.
    ///
    #[doc = example!("", r#"let third = Claim::declared("gpu").slot(3);"#)]
    #[must_use]
    pub fn slot(mut self, slot: u16) -> Self {
        self.slot = Some(slot);
        self
    }

    /// Returns the claim of a shared request: a limit without a maximum gets the maximum 1.
    pub(super) fn shared(mut self) -> Self {
        if self.namespace.is_none() {
            self.limit.get_or_insert(1);
        }
        self
    }

    /// Returns the bytes of the name.
    ///
    /// ```
    /// # use signalbox_client::Claim;
    /// assert_eq!(Claim::counter("licences", 100).name(), b"licences");
    /// ```
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns whether the claim gives a semaphore a capacity that differs from this one.
    pub(super) fn differs_from(&self, capacity: u32) -> bool {
        self.namespace == Some(Namespace::Semaphores) && self.limit.is_some_and(|own| own != capacity)
    }

    /// Refuses a capacity of 0, and a limit's maximum of 0: on the wire, 0 means the capacity of a semaphore that
    /// exists.
    fn check(&self) -> Result<(), Error> {
        if self.namespace != Some(Namespace::Counters) && self.limit == Some(AS_DECLARED) {
            return Err(
                Error::from(ErrorKind::NoCapacity).with_request(format!("acquire {}", self.requested()))
            );
        }
        Ok(())
    }

    /// Describes the claim, for an error.
    fn requested(&self) -> String {
        let Self { namespace, ref name, resources, limit, slot } = *self;
        let name = OfKind(namespace, name);
        let what = if namespace == Some(Namespace::Semaphores) { "capacity" } else { "maximum" };
        match (slot, limit) {
            (Some(slot), _) => format!("slot {slot} of {name}"),
            (None, None) => format!("{resources} of {name}"),
            (None, Some(limit)) => format!("{resources} of {name} ({what} {limit})"),
        }
    }

    fn to_wire(&self) -> signalbox_model::Claim<'_> {
        let Self { namespace, ref name, resources, limit, slot } = *self;
        signalbox_model::Claim { namespace, name, resources, maximum: limit.unwrap_or(AS_DECLARED), slot }
    }
}

/// The contents of an acquire. They stay the same when the acquire is repeated in another session.
#[derive(Clone, Debug)]
pub(super) struct AcquireSpec {
    /// At least one, in the order of the caller.
    pub(super) claims: Vec<Claim>,
    pub(super) wait: WaitLimit,
    pub(super) queue_max: Option<u32>,
    /// Whether it belongs to a single flight.
    pub(super) is_shared: bool,
}

/// How long an acquire waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaitLimit {
    /// Not at all: it is granted at once or refused.
    None,
    /// Until this moment.
    Until(Moment),
    /// As long as the server allows.
    ServerMax,
}

impl AcquireSpec {
    /// Checks the rules of the protocol, so that a request that can never succeed is not sent.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.claims.iter().try_for_each(Claim::check)?;
        let wire_claims = self.wire_claims();
        let can_be_shared = matches!(&wire_claims[..], [claim] if claim.can_be_shared());
        let claims = match self.is_shared && !can_be_shared {
            true => Err(ClaimsError::Shared),
            false => Claims::new(&wire_claims).map(drop),
        };
        claims.map_err(|error| Error::from(error).with_request(self.requested("acquire")))
    }

    /// Describes the request, for an error.
    pub(super) fn requested(&self, operation: &str) -> String {
        about_all(operation, self.claims.iter().map(Claim::requested))
    }

    pub(super) fn wire_claims(&self) -> Vec<signalbox_model::Claim<'_>> {
        self.claims.iter().map(Claim::to_wire).collect()
    }

    /// Returns the options for waiting, for a request that is sent now.
    pub(super) fn queueing(&self, now: Moment) -> Queueing {
        let wait = match self.wait {
            WaitLimit::None => Wait::NotAtAll,
            WaitLimit::Until(deadline) => up_to(deadline.since(now)),
            WaitLimit::ServerMax => up_to(Duration::MAX),
        };
        Queueing { wait, queue_max: self.queue_max }
    }
}

/// Returns a wait of at least a millisecond, so that an acquire whose deadline has passed fails with `TimedOut`, and
/// not like one that does not wait.
fn up_to(span: Duration) -> Wait {
    Wait::UpTo(Milliseconds::saturating_from(span).max(Milliseconds(1)))
}

//! What is asked for: names, how many of each, and how long to wait.

use std::time::Duration;

use super::clock::Moment;
use crate::protocol::{
    self as wire, AS_DECLARED, Claims, ClaimsError, Milliseconds, Namespace, Queueing, Wait,
};

/// Resources of one name that are to be had.
///
/// ```
/// use signalbox::client::Claim;
///
/// let claim = Claim::semaphore("gpu", 4).resources(2);
/// assert_eq!(claim.name(), b"gpu");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    namespace: Namespace,
    name: Vec<u8>,
    resources: u32,
    maximum: u32,
}

impl Claim {
    /// One of a semaphore. `capacity` is what it has if this request makes it; one that exists keeps its own.
    ///
    /// ```
    /// use signalbox::client::Claim;
    ///
    /// let two_of_three = Claim::semaphore("deploys", 3).resources(2);
    /// ```
    pub fn semaphore(name: impl AsRef<[u8]>, capacity: u32) -> Self {
        Self {
            namespace: Namespace::Semaphores,
            name: name.as_ref().to_vec(),
            resources: 1,
            maximum: capacity,
        }
    }

    /// One of a semaphore as it is declared, or as who made it wanted it; it is not made.
    ///
    /// ```
    /// use signalbox::client::Claim;
    ///
    /// let one = Claim::declared("deploys");
    /// ```
    pub fn declared(name: impl AsRef<[u8]>) -> Self {
        Self::semaphore(name, AS_DECLARED)
    }

    /// One of a counter that may come to at most `maximum` by it.
    ///
    /// ```
    /// use signalbox::client::Claim;
    ///
    /// let one_of_eight = Claim::counter("tenant/7", 8);
    /// ```
    pub fn counter(name: impl AsRef<[u8]>, maximum: u32) -> Self {
        Self { namespace: Namespace::Counters, name: name.as_ref().to_vec(), resources: 1, maximum }
    }

    /// As many instead of one; at least 1, at most the capacity or maximum.
    ///
    /// ```
    /// # use signalbox::client::Claim;
    /// let five = Claim::counter("licences", 100).resources(5);
    /// ```
    #[must_use]
    pub fn resources(mut self, resources: u32) -> Self {
        self.resources = resources;
        self
    }

    /// The name's bytes.
    ///
    /// ```
    /// # use signalbox::client::Claim;
    /// assert_eq!(Claim::counter("licences", 100).name(), b"licences");
    /// ```
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    fn wanted(&self) -> wire::Claim<'_> {
        let Self { namespace, ref name, resources, maximum } = *self;
        wire::Claim { namespace, name, resources, maximum }
    }
}

/// Everything that an acquire asks for.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// At least one, in the order of the caller.
    pub(super) claims: Vec<Claim>,
    pub(super) patience: Patience,
    pub(super) queue_max: Option<u32>,
}

/// How long an acquire waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience {
    /// It is granted at once or refused.
    None,
    /// Until that moment.
    Until(Moment),
    /// As long as the server lets it.
    Endless,
}

impl Terms {
    /// Checks the rules of the wire, so that nothing is sent that could never succeed.
    pub(super) fn check(&self) -> Result<(), ClaimsError> {
        Claims::new(&self.wanted()).map(drop)
    }

    pub(super) fn wanted(&self) -> Vec<wire::Claim<'_>> {
        self.claims.iter().map(Claim::wanted).collect()
    }

    /// How to wait, for a request that is sent now.
    pub(super) fn queueing(&self, now: Moment) -> Queueing {
        let wait = match self.patience {
            Patience::None => Wait::NotAtAll,
            Patience::Until(deadline) => up_to(deadline.since(now)),
            Patience::Endless => up_to(Duration::MAX),
        };
        Queueing { wait, queue_max: self.queue_max }
    }
}

/// At least a millisecond, so that who wants to wait is told that his time is over, and not that he did not want to.
fn up_to(span: Duration) -> Wait {
    Wait::UpTo(Milliseconds::saturating_from(span).max(Milliseconds(1)))
}

//! The claim of an Acquire.

use std::num::NonZeroU32;

/// The resources that an Acquire requests, and the maximum under which it requests them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub(crate) resources: u32,
    /// At least `resources`, or 0 for an existing semaphore, whose own capacity is the maximum.
    pub(crate) maximum: u32,
}

impl Claim {
    /// A claim on `resources` under `maximum` (for a semaphore: its `initial`). `None` if the protocol documents
    /// require `Invalid arguments`: no resources are claimed, or more than the maximum.
    pub fn new(resources: u32, maximum: u32) -> Option<Self> {
        (resources > 0 && resources <= maximum).then_some(Self { resources, maximum })
    }

    /// A claim on `resources` of an existing semaphore; it does not create one.
    pub fn of_existing(resources: NonZeroU32) -> Self {
        Self { resources: resources.get(), maximum: 0 }
    }

    pub(crate) fn is_of_existing(self) -> bool {
        self.maximum == 0
    }

    /// The number of resources claimed.
    pub fn resources(self) -> u32 {
        self.resources
    }
}

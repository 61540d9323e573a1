//! A node's clock of leaderships: it starts at any value, and is up to 4 % faster or slower than true time.

use std::sync::Arc;
use std::time::Duration;

use signalbox_client::{Clock, Moment};
use signalbox_cluster::timing::BootTime;

use crate::client::clock::SkewedClock;
use crate::scene::Scene;

/// How much a clock may differ from true time, in millionths. Two of them differ by up to 8 %.
pub const DRIFT_PPM_MAX: u64 = 40_000;

#[derive(Clone, Debug)]
pub struct NodeClock {
    rate: SkewedClock,
    offset: Duration,
}

impl NodeClock {
    pub fn new(scene: Arc<Scene>, fast_ppm: i64, offset: Duration) -> Self {
        Self { rate: SkewedClock::new(scene, fast_ppm), offset }
    }

    pub fn now(&self) -> BootTime {
        BootTime(self.offset + self.rate.now().0)
    }

    /// Waits until this clock has advanced by this span.
    pub async fn sleep(&self, span: Duration) {
        self.rate.sleep_until(Moment(self.rate.now().0 + span)).await;
    }
}

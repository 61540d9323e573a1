//! Clocks that run slightly faster or slower than the server's, and can jump like the clock of a suspended machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use signalbox_client::{Clock, Moment, Sleep};
use tokio::sync::Notify;

use crate::scene::Scene;

/// Added to every clock, so that none is near zero.
const START: Duration = Duration::from_secs(1000);

#[derive(Clone)]
pub struct SkewedClock(Arc<Inner>);

struct Inner {
    scene: Arc<Scene>,
    /// Millionths by which the clock is fast; negative if it is slow.
    fast_ppm: i64,
    jumped_ms: AtomicU64,
    jumped: Notify,
}

impl std::fmt::Debug for SkewedClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SkewedClock({} ppm)", self.0.fast_ppm)
    }
}

impl SkewedClock {
    pub fn new(scene: Arc<Scene>, fast_ppm: i64) -> Self {
        Self(Arc::new(Inner { scene, fast_ppm, jumped_ms: AtomicU64::new(0), jumped: Notify::new() }))
    }

    /// The machine was suspended for this time.
    pub fn jump(&self, span: Duration) {
        self.0.jumped_ms.fetch_add(span.as_millis() as u64, Ordering::Relaxed);
        self.0.jumped.notify_waiters();
    }

    /// The simulated time, on a machine or, between two steps, outside of all machines.
    fn simulated(&self) -> Duration {
        turmoil::sim_elapsed().unwrap_or_else(|| Duration::from_millis(self.0.scene.state().now_ms))
    }

    fn scaled(&self, span: Duration, from_ppm: i64, to_ppm: i64) -> Duration {
        let nanos = span.as_nanos() * (1_000_000 + i128::from(to_ppm)) as u128;
        Duration::from_nanos((nanos / (1_000_000 + i128::from(from_ppm)) as u128) as u64)
    }
}

impl Clock for SkewedClock {
    fn now(&self) -> Moment {
        let jumped = Duration::from_millis(self.0.jumped_ms.load(Ordering::Relaxed));
        Moment(START + jumped + self.scaled(self.simulated(), 0, self.0.fast_ppm))
    }

    fn sleep_until(&self, moment: Moment) -> Sleep {
        let clock = self.clone();
        Box::pin(async move {
            loop {
                // Subscribes before it reads the clock, so that it misses no jump.
                let mut jumped = std::pin::pin!(clock.0.jumped.notified());
                jumped.as_mut().enable();
                let left = moment.0.saturating_sub(clock.now().0);
                if left.is_zero() {
                    return;
                }
                // The simulated runtime's timers count milliseconds, and cannot wait for longer than a day.
                let left = clock.scaled(left.min(Duration::from_secs(86_400)), clock.0.fast_ppm, 0);
                tokio::select! {
                    biased;
                    () = &mut jumped => {}
                    () = tokio::time::sleep(left + Duration::from_millis(1)) => {}
                }
            }
        })
    }
}

//! The task that removes names nothing refers to, as both documents ask ("Semaphores will be deleted by the GC
//! thread if all resources managed by them are released").

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use super::{Server, port_name, steps};
use crate::core::Namespace;

/// Longest time between two looks at the clock, which may be set.
const CLOCK_CHECK: Duration = Duration::from_secs(1);

/// Sweeps the counters after every boundary of the statistics interval, counted from the call, until it is dropped.
pub fn sweep_counters(server: Arc<Server>) -> impl Future<Output = ()> + Send {
    let mut boundary = server.core.next_boundary(server.clock.now());
    async move {
        loop {
            tokio::time::sleep(CLOCK_CHECK).await;
            let now = server.clock.now();
            let next = server.core.next_boundary(now);
            // A clock set back moves the boundary with it; what is over is swept at the next one.
            if now >= boundary {
                sweep(&server, Namespace::Counters).await;
            }
            boundary = next;
        }
    }
}

/// Sweeps the semaphores every `interval`, until it is dropped.
pub async fn sweep_semaphores(server: Arc<Server>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        sweep(&server, Namespace::Semaphores).await;
    }
}

async fn sweep(server: &Server, namespace: Namespace) {
    let started = Instant::now();
    let mut sweep = server.core.sweep(namespace);
    let (mut worked, mut rests) = (Duration::ZERO, 0);
    loop {
        // tokio's clock stands still in simulations, where a sweep does not rest then.
        let step_started = Instant::now();
        if !sweep.step(steps::SWEEP_NAMES, server.clock.now()) {
            break;
        }
        worked += step_started.elapsed();
        if worked >= steps::SWEEP_WORK && rests < steps::SWEEP_RESTS_MAX {
            (worked, rests) = (Duration::ZERO, rests + 1);
            tokio::time::sleep(steps::SWEEP_REST).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
    let elapsed = started.elapsed();
    server.port(namespace).metrics.note_gc(elapsed);
    debug!(port = port_name(namespace), collected = sweep.collected(), ?elapsed, "swept");
}

//! The time for which a client may rely on its lease. The margin for clocks is applied only here.
//!
//! The server counts from the receipt of the request, and the client from before it sends the request, which is earlier.
//! So the time that the request spends in the network, or waits, makes no difference.

/// The percentage by which a client's clock may run slower than the server's (`docs/semantics.md`, "Sessions and leases").
const MARGIN_PERCENT: u64 = 4;

/// Returns how long a client may rely on a lease, in milliseconds, which the client counts from before it sends the
/// request: `left_ms`, which the server counts from its receipt, or `ttl_ms` if that is shorter, less the margin.
pub(super) fn valid_ms(left_ms: u32, ttl_ms: u32) -> u32 {
    less_margin(left_ms.min(ttl_ms))
}

/// Returns how long the grace period of a revoked lease lasts, counted in the same way.
pub(super) fn grace_ms(grace_ms: u32) -> u32 {
    less_margin(grace_ms)
}

fn less_margin(span_ms: u32) -> u32 {
    (u64::from(span_ms) * (100 - MARGIN_PERCENT) / 100) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_margin_is_taken_off_and_rounded_down() {
        assert_eq!(valid_ms(30_000, 30_000), 28_800);
        assert_eq!(valid_ms(11_000, 30_000), 10_560, "revoked with 4 s of grace, 7 s after the request came");
        assert_eq!([0, 1, 24, 25, 26].map(|left| valid_ms(left, 30_000)), [0, 0, 23, 24, 24]);
        assert_eq!(valid_ms(u32::MAX, u32::MAX), 4_123_168_603);
        assert_eq!(grace_ms(4_000), 3_840);
    }

    /// A lease that a newer request has renewed, or that a pause of the server has extended, lasts longer from the receipt of
    /// this one than its time to live.
    #[test]
    fn it_is_never_more_than_the_time_to_live() {
        assert_eq!(valid_ms(45_000, 30_000), 28_800);
    }
}

//! Times as arguments: `30`, `0.5`, `30s`, `5m`, `1h`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::exit::Failure;
use signalbox_client::HelloAnswer;
use signalbox_model::{Milliseconds, UnixMilliseconds, UnixSeconds, span};

/// A time above zero: a number of seconds, or a number followed by a unit.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    time_or(text, "")
}

/// As [`time`]; a mistake names the other words that are allowed.
fn time_or(text: &str, others: &str) -> Result<Duration, String> {
    span(text).ok_or_else(|| {
        format!(
            "expected {others}a number of seconds above 0 and below 1000000000, such as 5 or 0.5, or a number with a unit, which is \
             ms, s, m or h, such as 30s, 5m or 24h"
        )
    })
}

/// The longest time to wait; `None`: as long as the server allows.
pub(super) type WaitLimit = Option<Duration>;

/// For messages.
pub(super) fn shown(limit: WaitLimit) -> String {
    limit.map_or("the longest wait that the server allows".to_owned(), |limit| {
        format!("{} s", limit.as_secs_f64())
    })
}

/// The value of `--wait`: [`time`], or `max` for as long as the server allows.
pub(super) fn wait_limit(text: &str) -> Result<WaitLimit, String> {
    match text {
        "max" => Ok(None),
        "0" => Err("without this option, the request does not wait; omit it".to_owned()),
        _ => time_or(text, "max, or ").map(Some),
    }
}

/// Like [`wait_limit`], but allows 0, which means not to wait.
pub(super) fn wait_limit_or_none(text: &str) -> Result<WaitLimit, String> {
    match text {
        "0" => Ok(Some(Duration::ZERO)),
        "max" => Ok(None),
        _ => time_or(text, "max, 0, ").map(Some),
    }
}

/// Refuses a `--wait` that is longer than the server allows, as the request would wait for less than was asked for.
pub(super) fn check_wait(wait: WaitLimit, server: HelloAnswer) -> Result<(), Failure> {
    let wait = wait.unwrap_or_default();
    at_most("wait", wait, server.wait_max, "session.max_wait); use a shorter time, or --wait max")
}

/// Refuses a `--lease` that is longer than the server allows, as the resources would be held for less than was asked for.
pub(super) fn check_lease(lease: Duration, server: HelloAnswer) -> Result<(), Failure> {
    at_most(
        "lease",
        lease,
        server.ttl_max,
        "session.max_ttl); use a shorter time, and renew the lease in time",
    )
}

fn at_most(option: &str, given: Duration, max: Milliseconds, advice: &str) -> Result<(), Failure> {
    let max = Duration::from(max);
    if given <= max {
        return Ok(());
    }
    let (given, max) = (given.as_secs_f64(), max.as_secs_f64());
    Err(Failure::usage(format!(
        "--{option} {given} s is longer than the server allows, at most {max} s ({advice}"
    )))
}

/// Like [`time`], but allows 0, which means no time.
pub(super) fn time_or_none(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { time_or(text, "0, ") }
}

/// A time before now ([`time`]), or one in UTC.
pub(super) fn moment(text: &str) -> Result<UnixMilliseconds, &'static str> {
    let before = |ago: Duration| UnixMilliseconds(now().0.saturating_sub(ago.as_millis() as u64));
    time(text).map(before).or_else(|_| text.parse()).map_err(
        |_| "expected a time before now such as 90s, 30m or 24h, or one in UTC such as 2026-11-21T03:00",
    )
}

/// The present time.
pub(super) fn now() -> UnixMilliseconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    UnixMilliseconds(since.map_or(0, |since| since.as_millis() as u64))
}

/// The present time in seconds of Unix time; 0 if the clock is set to a time before 1970.
pub(super) fn unix_now_s() -> u64 {
    UnixSeconds::from(now()).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_options_take_words() {
        assert_eq!(time_or_none("0"), Ok(Duration::ZERO));
        assert_eq!((wait_limit("max"), wait_limit("5m")), (Ok(None), Ok(Some(Duration::from_secs(300)))));
        assert!(wait_limit("0").is_err() && wait_limit("").is_err() && wait_limit("soon").is_err());
        assert_eq!(wait_limit_or_none("0"), Ok(Some(Duration::ZERO)));
    }
}

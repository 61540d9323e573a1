//! Times as arguments: `30`, `0.5`, `30s`, `5m`, `1h`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::exit::Failure;
use signalbox_client::HelloAnswer;
use signalbox_model::{UnixMilliseconds, UnixSeconds};

/// What was expected: perhaps other words, or a time.
fn expected(others: &str) -> String {
    format!(
        "expected {others}a number of seconds above 0 and below 1000000000, such as 5 or 0.5, or a time such as 30s, 5m or 1h"
    )
}

/// A time above zero: a number of seconds, or a number followed by a unit.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    time_or(text, "")
}

/// As [`time`]; a mistake names the other words that are allowed.
fn time_or(text: &str, others: &str) -> Result<Duration, String> {
    let wrong = || expected(others);
    let (number, unit_s) = match text.as_bytes().last() {
        Some(b's') => (&text[..text.len() - 1], 1.0),
        Some(b'm') => (&text[..text.len() - 1], 60.0),
        Some(b'h') => (&text[..text.len() - 1], 3600.0),
        _ => (text, 1.0),
    };
    // The standard parser would also take a sign, an exponent and words.
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = number.parse().ok().filter(|_| is_plain).ok_or_else(wrong)?;
    // The clock cannot represent deadlines that are many decades away.
    match Duration::try_from_secs_f64(number * unit_s) {
        Ok(time) if !time.is_zero() && time < Duration::from_secs(1_000_000_000) => Ok(time),
        _ => Err(wrong()),
    }
}

/// The longest time to wait; `None`: as long as the server allows.
pub(super) type WaitLimit = Option<Duration>;

/// The value of `--wait`: [`time`], or `max` for as long as the server allows.
pub(super) fn wait_limit(text: &str) -> Result<WaitLimit, String> {
    if text == "max" { Ok(None) } else { time_or(text, "max, or ").map(Some) }
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
    let max = Duration::from(server.wait_max);
    let Some(wait) = wait.filter(|wait| *wait > max) else { return Ok(()) };
    Err(Failure::usage(format!(
        "--wait {} s is longer than the server allows, at most {} s (session.max_wait); use a shorter time, or --wait max",
        wait.as_secs_f64(),
        max.as_secs_f64()
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
    fn a_time_is_seconds_or_has_a_unit() {
        for (text, seconds) in
            [("30", 30.0), ("0.5", 0.5), ("30s", 30.0), ("5m", 300.0), ("1h", 3600.0), ("1.5h", 5400.0)]
        {
            assert_eq!(time(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in [
            "",
            "s",
            "0",
            "0s",
            "-1",
            "nan",
            "inf",
            "1d",
            "5 m",
            "5mm",
            "1e9",
            "1e3",
            "+3",
            "1000000000",
            "1e300h",
            "ü",
        ] {
            assert!(time(text).is_err(), "{text}");
        }
        assert_eq!(time_or_none("0"), Ok(Duration::ZERO));
        assert_eq!((wait_limit("max"), wait_limit("5m")), (Ok(None), Ok(Some(Duration::from_secs(300)))));
        assert!(wait_limit("0").is_err() && wait_limit("").is_err() && wait_limit("soon").is_err());
        assert_eq!(wait_limit_or_none("0"), Ok(Some(Duration::ZERO)));
    }
}

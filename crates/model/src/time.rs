//! Time spans and Unix time. Waits and leases use monotonic time, which the core defines.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A time span in milliseconds, as on the wire: up to 49 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Milliseconds(pub u32);

impl Milliseconds {
    /// The default grace period of a revocation or removal on the command line and in the HTTP API.
    pub const GRACE_DEFAULT: Self = Self(10_000);

    /// The whole milliseconds of a span; the longest value if the span is longer.
    pub fn saturating_from(span: Duration) -> Self {
        Self(u32::try_from(span.as_millis()).unwrap_or(u32::MAX))
    }
}

impl From<Milliseconds> for Duration {
    fn from(span: Milliseconds) -> Self {
        Self::from_millis(span.0.into())
    }
}

/// Parses a time span as people write it: a number of seconds, or a number with a unit, such as `0.5`, `30s`, `500ms`,
/// `5m` or `1h`. `None`: the text is something else, or the span is 0, or has 1000000000 seconds or more, which might
/// overflow when it is added to a time.
pub fn span(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 4] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let with_unit = UNITS.into_iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, unit_s) = with_unit.unwrap_or((text, 1.0));
    // The standard parser would also take a sign, an exponent and words.
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = number.parse().ok().filter(|_| is_plain)?;
    let span = Duration::try_from_secs_f64(number * unit_s).ok()?;
    (!span.is_zero() && span < Duration::from_secs(1_000_000_000)).then_some(span)
}

/// Seconds since the Unix epoch, as the server read them from its clock: for intervals, and for what people read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "views", derive(serde::Serialize, serde::Deserialize))]
pub struct UnixSeconds(pub u64);

/// Milliseconds since the Unix epoch: for the history of grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMilliseconds(pub u64);

impl UnixMilliseconds {
    /// The milliseconds from this time until `then`; 0 if `then` is earlier, because the clock was set back.
    pub fn until(self, then: Self) -> u64 {
        then.0.saturating_sub(self.0)
    }
}

impl From<UnixSeconds> for UnixMilliseconds {
    fn from(time: UnixSeconds) -> Self {
        Self(time.0.saturating_mul(1000))
    }
}

impl From<UnixMilliseconds> for UnixSeconds {
    fn from(time: UnixMilliseconds) -> Self {
        Self(time.0 / 1000)
    }
}

/// The days from 1 March of the year 0 to the Unix epoch. Years begin in March here, so that a leap day is the last day
/// of a year.
const DAYS_BEFORE_EPOCH: u64 = 719_468;
/// The number of days in 400 years, an era, after which the calendar repeats.
const DAYS_OF_ERA: u64 = 146_097;

/// The date and time of day in UTC, to the second: `2026-11-21T01:52:03Z`.
impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        date_and_time(self.0, f)?;
        f.write_str("Z")
    }
}

/// The date and time of day in UTC: `2026-11-21T01:52:03.953Z`.
impl fmt::Display for UnixMilliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        date_and_time(self.0 / 1000, f)?;
        write!(f, ".{:03}Z", self.0 % 1000)
    }
}

fn date_and_time(unix_s: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let days = days + DAYS_BEFORE_EPOCH;
    let (era, day) = (days / DAYS_OF_ERA, days % DAYS_OF_ERA);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    write!(f, "{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}")
}

/// The error for a text that is not a date and time of day in UTC since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTime;

impl fmt::Display for NoTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a time in UTC, such as 2026-11-21T01:52:03Z, 2026-11-21T01:52 or 2026-11-21")
    }
}

/// Parses the text that [`Display`](fmt::Display) writes. The text may also end after the day, the minute or the
/// second, and its `Z` may be missing.
impl FromStr for UnixMilliseconds {
    type Err = NoTime;

    fn from_str(text: &str) -> Result<Self, NoTime> {
        const LOWEST: &[u8; 23] = b"0000-01-01T00:00:00.000";
        let text = text.strip_suffix('Z').unwrap_or(text).as_bytes();
        let mut whole = *LOWEST;
        whole.get_mut(..text.len()).ok_or(NoTime)?.copy_from_slice(text);
        let has_shape = whole.iter().zip(LOWEST).all(|(byte, of)| match of.is_ascii_digit() {
            true => byte.is_ascii_digit(),
            false => byte == of,
        });
        if !has_shape || ![10, 16, 19, 23].contains(&text.len()) {
            return Err(NoTime);
        }
        let number = |range: std::ops::Range<usize>| {
            whole[range].iter().fold(0, |number, digit| 10 * number + u64::from(digit - b'0'))
        };
        let (year, month, day) = (number(0..4), number(5..7), number(8..10));
        let (hour, minute, second, ms) = (number(11..13), number(14..16), number(17..19), number(20..23));
        let is_in_range = (1970..).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
        if !is_in_range || hour > 23 || minute > 59 || second > 60 {
            return Err(NoTime);
        }
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let (era, year) = (year / 400, year % 400);
        let day_of_era = 365 * year + year / 4 - year / 100 + (153 * month + 2) / 5 + day - 1;
        let days = era * DAYS_OF_ERA + day_of_era - DAYS_BEFORE_EPOCH;
        Ok(Self((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + ms))
    }
}

//! Whole numbers as arguments, with messages that name the range.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A parser for whole numbers of this range.
pub(super) fn within<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Clone,
{
    // The standard parser would also take a sign.
    move |text| match text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse()) {
        Some(Ok(number)) if range.contains(&number) => Ok(number),
        _ => Err(format!("expected a whole number from {} to {}", range.start(), range.end())),
    }
}

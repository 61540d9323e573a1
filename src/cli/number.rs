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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_outside_the_range_is_refused_with_the_range() {
        let parse = within(1..=u16::MAX);
        assert_eq!((parse("1"), parse("65535")), (Ok(1), Ok(65_535)));
        for text in ["", "0", "65536", "-1", "+1", "1.5", "x", "99999999999999999999999"] {
            assert_eq!(parse(text).unwrap_err(), "expected a whole number from 1 to 65535", "{text}");
        }
    }
}

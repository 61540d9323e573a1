//! The values of arguments: names and patterns of names, numbers, and times such as `30`, `0.5`, `30s`, `5m`, `1h`.

use std::ffi::OsString;
use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStringExt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::exit::Failure;
use signalbox_client::{Error, HelloAnswer, Scope, SessionId, checked};
use signalbox_model::{Milliseconds, Quoted, UnixMilliseconds, UnixSeconds, span};

/// A name of a valid length: any bytes, UTF-8 or not.
#[derive(Clone, Debug)]
pub(super) struct Name(Vec<u8>);

impl Name {
    pub(super) fn parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().try_map(|argument: OsString| Self::new(argument.into_vec()))
    }

    pub(super) fn new(bytes: Vec<u8>) -> Result<Self, Error> {
        checked(&bytes)?;
        Ok(Self(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// For messages.
impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Quoted(&self.0).fmt(f)
    }
}

/// Returns the names in quotes, separated by commas.
pub(super) fn quoted<'a>(names: impl IntoIterator<Item = &'a Name>) -> String {
    names.into_iter().map(Name::to_string).collect::<Vec<_>>().join(", ")
}

/// The arguments of a command that lists one name, the names with a prefix (`PREFIX*`), or without a pattern all names.
#[derive(Debug, Args)]
pub(super) struct PatternArguments {
    /// List only this name, or the names with this prefix
    #[arg(value_name = "NAME|PREFIX*", value_parser = Name::parser())]
    pattern: Option<Name>,

    /// Treat a * at the end as a part of the name
    #[arg(long, requires = "pattern")]
    exact: bool,
}

impl PatternArguments {
    /// Returns the name to list; `None` if the names with a prefix, or all names, are listed.
    pub(super) fn name(&self) -> Option<&Name> {
        self.pattern.as_ref().filter(|pattern| matches!(scope(pattern, self.exact), Scope::Name(_)))
    }

    pub(super) fn scope(&self) -> Scope<&[u8]> {
        self.pattern.as_ref().map_or(Scope::Prefix(b""), |pattern| scope(pattern, self.exact))
    }
}

/// Returns the names that a pattern selects.
pub(super) fn scope(pattern: &Name, is_exact: bool) -> Scope<&[u8]> {
    match pattern.bytes().strip_suffix(b"*").filter(|_| !is_exact) {
        Some(prefix) => Scope::Prefix(prefix),
        None => Scope::Name(pattern.bytes()),
    }
}

/// Returns whether `dump`, `list` and `watch` would read the name as a pattern, that is, as a prefix with a `*`.
pub(super) fn looks_like_pattern(name: &[u8]) -> bool {
    name.ends_with(b"*")
}

/// The option of commands that take whole names, which do not have to exist.
#[derive(Debug, Args)]
pub(super) struct WholeNames {
    /// Take names as they are
    ///
    /// Even those that end in *, or look as if an amount followed the name.
    #[arg(long)]
    pub(super) exact: bool,
}

impl WholeNames {
    /// Refuses a name that looks like a pattern: it would be a separate name, which no other client uses.
    pub(super) fn check<'a>(&self, names: impl IntoIterator<Item = &'a Name>) -> Result<(), Failure> {
        let pattern = names.into_iter().find(|name| !self.exact && looks_like_pattern(name.bytes()));
        pattern.map_or(Ok(()), |name| {
            Err(Failure::usage(format!(
                "{name} looks like a pattern, but this command takes whole names; if the * is a part of the name, add --exact"
            )))
        })
    }
}

/// Returns a parser for whole numbers of this range.
pub(super) fn within<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Clone,
{
    // The standard parser would also accept a sign.
    move |text| match text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse()) {
        Some(Ok(number)) if range.contains(&number) => Ok(number),
        _ => Err(format!("expected a whole number from {} to {}", range.start(), range.end())),
    }
}

/// Parses the id of a session.
pub(super) fn session_id(text: &str) -> Result<SessionId, String> {
    let number = within(1..=u64::MAX)(text)?;
    Ok(SessionId::from_number(number).expect("the number is not 0"))
}

/// Parses a time above zero: a number of seconds, or a number followed by a unit.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    time_or(text, "")
}

/// Like [`time`], but the error also names `others`, other values that are allowed.
fn time_or(text: &str, others: &str) -> Result<Duration, String> {
    span(text).ok_or_else(|| {
        format!(
            "expected {others}a number of seconds above 0 and below 1000000000, such as 5 or 0.5, or a number with a unit, which is \
             ms, s, m or h, such as 30s, 5m or 24h"
        )
    })
}

/// Like [`time`], but allows 0, which means no time.
pub(super) fn time_or_none(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { time_or(text, "0, ") }
}

/// The longest time to wait; `None` for as long as the server allows.
pub(super) type WaitLimit = Option<Duration>;

/// Parses the value of `--wait`: [`time`], or `max` for as long as the server allows.
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

/// Returns a limit as text, for messages.
pub(super) fn shown(limit: WaitLimit) -> String {
    limit.map_or("the longest wait that the server allows".to_owned(), |limit| {
        format!("{} s", limit.as_secs_f64())
    })
}

/// Refuses a `--wait` that is longer than the server allows, because the request would wait for less time than
/// requested.
pub(super) fn check_wait(wait: WaitLimit, server: HelloAnswer) -> Result<(), Failure> {
    let wait = wait.unwrap_or_default();
    at_most("wait", wait, server.wait_max, "session.max_wait); use a shorter time, or --wait max")
}

/// Refuses a `--lease` that is longer than the server allows, because the resources would be held for less time than
/// requested.
pub(super) fn check_lease(lease: Duration, server: HelloAnswer) -> Result<(), Failure> {
    let advice = "session.max_ttl); use a shorter time, and renew the lease in time";
    at_most("lease", lease, server.ttl_max, advice)
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

/// Parses an age ([`time`]) or a time in UTC.
pub(super) fn moment(text: &str) -> Result<UnixMilliseconds, &'static str> {
    let before = |ago: Duration| UnixMilliseconds(now().0.saturating_sub(ago.as_millis() as u64));
    time(text).map(before).or_else(|_| text.parse()).map_err(
        |_| "expected a time before now such as 90s, 30m or 24h, or one in UTC such as 2026-11-21T03:00",
    )
}

pub(super) fn now() -> UnixMilliseconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    UnixMilliseconds(since.map_or(0, |since| since.as_millis() as u64))
}

/// Returns the present time in seconds of Unix time; 0 if the clock is set to a time before 1970.
pub(super) fn unix_now_s() -> u64 {
    UnixSeconds::from(now()).0
}

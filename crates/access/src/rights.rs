//! Rights: which kinds of operations are permitted, and on which names.
//!
//! Invariant: a right that is not listed is refused. Rights do not imply each other.

use std::fmt;
use std::str::FromStr;

use signalbox_model::{Namespace, Target, noun};

/// The word for the System V semaphore sets.
const SETS: &str = "sysv";

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To see what exists and who uses it.
    Read,
    /// To take resources and to wait for them.
    Acquire,
    /// To change what others have: to declare, resize, revoke, delete.
    Administer,
}

/// Objects that rights are limited to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Area {
    /// The names of a kind, or of both, that begin with a prefix; all names if it is empty.
    Names(Option<Namespace>, String),
    /// The System V semaphore sets.
    Sets,
}

/// Which operations are permitted, and on which objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// By [`Right`].
    permitted: [bool; 3],
    /// `None`: everywhere.
    areas: Option<Vec<Area>>,
}

/// The text does not describe rights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownRights {
    /// A word is not a right.
    #[error("\"{}\" is not a right; write read, acquire, administer, all or none, with commas between them", .0.escape_debug())]
    Right(String),
    /// A word is not an area.
    #[error(
        "\"{}\" is not an area; write limit (both kinds of names), counter, semaphore or sysv, or with a prefix limit:PREFIX, \
         counter:PREFIX or semaphore:PREFIX",
        .0.escape_debug()
    )]
    Area(String),
}

impl Rights {
    /// All rights everywhere.
    pub const ALL: Self = Self { permitted: [true; 3], areas: None };

    /// No rights.
    pub const NONE: Self = Self { permitted: [false; 3], areas: None };

    /// To read and to acquire, everywhere.
    pub const READ_AND_ACQUIRE: Self = Self { permitted: [true, true, false], areas: None };

    /// Reads rights, such as `read,acquire`, limited to these areas; without areas, everywhere.
    pub fn parse<'a>(rights: &str, areas: impl IntoIterator<Item = &'a str>) -> Result<Self, UnknownRights> {
        let mut parsed = Self::NONE;
        match rights {
            "none" => {}
            "all" => parsed.permitted = [true; 3],
            list => {
                for word in list.split(',') {
                    let right = Right::ALL.into_iter().find(|right| right.name() == word);
                    let right = right.ok_or_else(|| UnknownRights::Right(word.to_owned()))?;
                    parsed.permitted[right as usize] = true;
                }
            }
        }
        let areas = areas.into_iter().map(str::parse).collect::<Result<Vec<Area>, _>>()?;
        parsed.areas = (!areas.is_empty()).then_some(areas);
        Ok(parsed)
    }

    /// Whether an operation is permitted.
    pub fn permit(&self, right: Right, target: Target<'_>) -> bool {
        self.permitted[right as usize]
            && match &self.areas {
                None => true,
                Some(areas) => areas.iter().any(|area| area.covers(target)),
            }
    }

    /// The same without one right.
    pub fn without(&self, right: Right) -> Self {
        let mut rights = self.clone();
        rights.permitted[right as usize] = false;
        rights
    }

    /// Whether they include all of `other`.
    pub fn include(&self, other: &Self) -> bool {
        let rights_included =
            Right::ALL.into_iter().all(|r| self.permitted[r as usize] || !other.permitted[r as usize]);
        let areas_included = match (&self.areas, &other.areas) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(others)) => {
                others.iter().flat_map(Area::targets).all(|other| own.iter().any(|area| area.covers(other)))
            }
        };
        *other == Self::NONE || (rights_included && areas_included)
    }

    /// The rights alone, as they are written.
    pub fn words(&self) -> String {
        let words = Right::ALL.into_iter().filter(|right| self.permitted[*right as usize]).map(Right::name);
        let words: Vec<_> = words.collect();
        if words.is_empty() { "none".to_owned() } else { words.join(",") }
    }

    /// The areas; empty: everywhere.
    pub fn areas(&self) -> &[Area] {
        self.areas.as_deref().unwrap_or_default()
    }
}

impl FromStr for Rights {
    type Err = UnknownRights;

    /// Rights and areas, with spaces between them: `read,acquire counter:web/ semaphore`.
    fn from_str(text: &str) -> Result<Self, UnknownRights> {
        let mut words = text.split_whitespace();
        Self::parse(words.next().unwrap_or_default(), words)
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words())?;
        self.areas().iter().try_for_each(|area| write!(f, " {area}"))
    }
}

impl Right {
    const ALL: [Self; 3] = [Self::Read, Self::Acquire, Self::Administer];

    /// As it is written in rules, tokens and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Acquire => "acquire",
            Self::Administer => "administer",
        }
    }
}

impl Area {
    fn covers(&self, target: Target<'_>) -> bool {
        match (self, target) {
            (_, Target::Anywhere) | (Self::Sets, Target::Sets) => true,
            // A listing of a prefix shows only names that begin with it, so it is covered if the prefix itself is.
            (Self::Names(own, prefix), Target::Name(namespace, name) | Target::Prefix(namespace, name)) => {
                own.is_none_or(|own| own == namespace) && name.starts_with(prefix.as_bytes())
            }
            _ => false,
        }
    }

    /// The targets that together are the whole area.
    fn targets(&self) -> Vec<Target<'_>> {
        match self {
            Self::Names(kind, prefix) => Namespace::one_or_all(*kind)
                .map(|namespace| Target::Prefix(namespace, prefix.as_bytes()))
                .collect(),
            Self::Sets => vec![Target::Sets],
        }
    }
}

impl FromStr for Area {
    type Err = UnknownRights;

    fn from_str(text: &str) -> Result<Self, UnknownRights> {
        if text == SETS {
            return Ok(Self::Sets);
        }
        let (word, prefix) = text.split_once(':').unwrap_or((text, ""));
        let kind = [None, Some(Namespace::Counters), Some(Namespace::Semaphores)];
        let kind = kind.into_iter().find(|kind| noun(*kind) == word);
        let kind = kind.ok_or_else(|| UnknownRights::Area(text.to_owned()))?;
        Ok(Self::Names(kind, prefix.to_owned()))
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Names(kind, prefix) if prefix.is_empty() => f.write_str(noun(*kind)),
            Self::Names(kind, prefix) => write!(f, "{}:{prefix}", noun(*kind)),
            Self::Sets => f.write_str(SETS),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rights(text: &str) -> Rights {
        text.parse().unwrap()
    }

    #[test]
    fn rights_hold_for_names_that_begin_with_the_prefix_and_for_nothing_else() {
        use Namespace::{Counters, Semaphores};
        use Right::{Acquire, Administer, Read};
        let limited = rights("read,acquire counter:web/ semaphore");
        for (right, target, expected) in [
            (Read, Target::Name(Counters, b"web/1"), true),
            (Acquire, Target::Name(Counters, b"web/"), true),
            (Read, Target::Name(Counters, b"web"), false),
            (Read, Target::Name(Counters, b"my-web/1"), false),
            (Read, Target::Name(Counters, b"WEB/1"), false),
            (Read, Target::Name(Semaphores, b"x"), true),
            (Administer, Target::Name(Semaphores, b"x"), false),
            (Read, Target::Prefix(Counters, b""), false),
            (Read, Target::Prefix(Counters, b"web"), false),
            (Read, Target::Prefix(Counters, b"web/1"), true),
            (Read, Target::Prefix(Semaphores, b""), true),
            (Read, Target::Sets, false),
            (Read, Target::Server, false),
            (Acquire, Target::Anywhere, true),
            (Administer, Target::Anywhere, false),
        ] {
            assert_eq!(limited.permit(right, target), expected, "{right:?} {target:?}");
        }
        let of_both = rights("acquire limit:web/");
        for namespace in Namespace::ALL {
            assert!(of_both.permit(Acquire, Target::Name(namespace, b"web/1")));
            assert!(!of_both.permit(Acquire, Target::Name(namespace, b"web")));
        }
        assert!(Rights::ALL.permit(Administer, Target::Server));
        assert!(!Rights::NONE.permit(Read, Target::Anywhere));
    }

    #[test]
    fn rights_are_shown_as_they_are_written() {
        for text in [
            "none",
            "read",
            "read,acquire,administer counter:a:b sysv",
            "acquire semaphore:x",
            "read limit sysv",
            "acquire limit:x",
        ] {
            assert_eq!(rights(text).to_string(), text);
        }
        assert_eq!(rights("all"), Rights::ALL);
        for text in ["", "write", "read,", "Read", "read sysv:1", "read queue", "read,none"] {
            assert!(text.parse::<Rights>().is_err(), "{text}");
        }
    }

    proptest! {
        /// What includes other rights permits all that they permit.
        #[test]
        fn included_rights_are_permitted(
            one in "(read|acquire|read,acquire|all|none)( counter| counter:[ab]{1,2}| limit:[ab]{1,2}| semaphore| limit| sysv){0,3}",
            other in "(read|acquire|read,acquire|all|none)( counter| counter:[ab]{1,2}| limit:[ab]{1,2}| semaphore| limit| sysv){0,3}",
            name in "[ab]{1,3}",
        ) {
            let (one, other) = (rights(&one), rights(&other));
            if one.include(&other) {
                for right in Right::ALL {
                    let of = |namespace| {
                        [Target::Name(namespace, name.as_bytes()), Target::Prefix(namespace, b"")]
                    };
                    let targets = Namespace::ALL.into_iter().flat_map(of);
                    for target in targets.chain([Target::Sets, Target::Server]) {
                        prop_assert!(one.permit(right, target) || !other.permit(right, target));
                    }
                }
            }
        }
    }
}

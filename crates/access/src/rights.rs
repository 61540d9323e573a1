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
    /// The names of one namespace, or of both, that begin with a prefix; all names if it is empty.
    Names(Option<Namespace>, String),
    /// The System V semaphore sets.
    Sets,
}

/// Which operations are permitted, and on which objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Indexed by [`Right`].
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

    /// Parses rights, such as `read,acquire`, limited to these areas; without areas, everywhere.
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

    /// Returns whether an operation is permitted.
    pub fn permit(&self, right: Right, target: Target<'_>) -> bool {
        self.permitted[right as usize]
            && match &self.areas {
                None => true,
                Some(areas) => areas.iter().any(|area| area.covers(target)),
            }
    }

    /// Returns these rights without one of them.
    pub fn without(&self, right: Right) -> Self {
        let mut rights = self.clone();
        rights.permitted[right as usize] = false;
        rights
    }

    /// Returns whether these rights include all of `other`.
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

    /// The text of the rights, without their areas.
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

    /// Parses rights and areas, with spaces between them: `read,acquire counter:web/ semaphore`.
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

    /// The name in rules, tokens and logs.
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

//! What `run` and `acquire` want: names, how much of each, and how long to wait for it.

use std::collections::HashSet;
use std::time::Duration;

use clap::{Args, value_parser};

use super::exit::{Exit, Failure};
use super::name::Name;
use super::time::time;
use crate::client::{Claim, Error, Namespace, Status};

/// The arguments that say what is wanted.
#[derive(Debug, Args)]
pub(super) struct Wanted {
    /// Counters or semaphores to acquire of, all or none. Without --max each says its own: NAME=MAX, or NAME=R/MAX; of a
    /// declared semaphore that is NAME, or NAME=R/
    #[arg(value_name = "NAME", required = true, value_parser = Name::parser())]
    names: Vec<Name>,

    /// How many resources there are altogether, of each NAME; a semaphore that exists keeps its own
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    max: Option<u32>,

    /// How many resources to acquire of each NAME; without --max, each is a declared semaphore [default: 1]
    #[arg(long, value_name = "R", value_parser = value_parser!(u32).range(1..))]
    resources: Option<u32>,
}

/// The arguments that say how long to wait.
#[derive(Debug, Args)]
pub(super) struct Waiting {
    /// Wait in the queue: for so long at most, or as long as the server lets it
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = time)]
    pub(super) wait: Option<Option<Duration>>,

    /// Do not wait where N wait already
    #[arg(long, value_name = "N", requires = "wait", value_parser = value_parser!(u32).range(1..))]
    pub(super) queue_max: Option<u32>,
}

/// Resources of one name.
#[derive(Clone, Debug)]
pub(super) struct Amount {
    pub(super) name: Name,
    pub(super) resources: u32,
    /// How many there are altogether; `None`: of a semaphore, as many as it was declared with.
    pub(super) max: Option<u32>,
}

/// Resources of at least one name, of the same kind, that are had together or not at all.
#[derive(Clone, Debug)]
pub(super) struct Amounts {
    namespace: Namespace,
    each: Vec<Amount>,
}

impl Wanted {
    /// What is wanted, where it can be had at all.
    pub(super) fn amounts(&self, namespace: Namespace) -> Result<Amounts, Failure> {
        let each = self.names.iter().map(|name| self.amount(name, namespace)).collect::<Result<Vec<_>, _>>();
        let each = each.map_err(|message| Failure::new(Exit::Usage, message))?;
        let mut seen = HashSet::new();
        if let Some(Amount { name, .. }) = each.iter().find(|amount| !seen.insert(amount.name.bytes())) {
            let message = format!("{name} is asked for twice; ask for it once, with the sum");
            return Err(Failure::new(Exit::Usage, message));
        }
        Ok(Amounts { namespace, each })
    }

    fn amount(&self, argument: &Name, namespace: Namespace) -> Result<Amount, String> {
        let resources = self.resources.unwrap_or(1);
        match (self.max, self.resources, namespace) {
            (None, None, _) => return Amount::parse(argument, namespace),
            (None, Some(_), Namespace::Counters) => {
                return Err(
                    "--resources needs a maximum; give --max N as well, or NAME=R/N for each".to_owned()
                );
            }
            (Some(max), ..) if resources > max => {
                return Err(format!(
                    "--resources {resources} can never fit --max {max}; lower one or raise the other"
                ));
            }
            _ => {}
        }
        Ok(Amount { name: argument.clone(), resources, max: self.max })
    }
}

impl Amount {
    /// Takes `NAME=MAX` or `NAME=R/MAX` apart, at the last `=`, as a name may have others. Of a semaphore it may also be
    /// `NAME=R/` or `NAME`.
    fn parse(argument: &Name, namespace: Namespace) -> Result<Self, String> {
        let may_be_declared = namespace == Namespace::Semaphores;
        let no_maximum = || {
            format!(
                "{argument} has no maximum; give --max N for all names, or {argument}=N or {argument}=R/N"
            )
        };
        let bytes = argument.bytes();
        let Some(equals) = bytes.iter().rposition(|byte| *byte == b'=') else {
            let declared = || Self { name: argument.clone(), resources: 1, max: None };
            return may_be_declared.then(declared).ok_or_else(no_maximum);
        };
        let name = Name::new(bytes[..equals].to_vec()).map_err(|error| error.to_string())?;
        let text = std::str::from_utf8(&bytes[equals + 1..]).map_err(|_| no_maximum())?;
        let (resources, max) = text.split_once('/').unwrap_or(("1", text));
        let is_declared = may_be_declared && max.is_empty() && !text.is_empty();
        let max = if is_declared { Ok(None) } else { max.parse().map(Some) };
        match (resources.parse(), max) {
            (Ok(resources), Ok(max)) if (1..=max.unwrap_or(u32::MAX)).contains(&resources) => {
                Ok(Self { name, resources, max })
            }
            (Ok(_), Ok(_)) => Err(format!(
                "{argument} can never be had; ask for at least 1 and at most the maximum of {name}"
            )),
            _ => Err(no_maximum()),
        }
    }
}

impl Amounts {
    pub(super) fn claims(&self) -> Vec<Claim> {
        let claim = |Amount { name, resources, max }: &Amount| {
            match (self.namespace, *max) {
                (Namespace::Counters, Some(max)) => Claim::counter(name.bytes(), max),
                (Namespace::Semaphores, Some(max)) => Claim::semaphore(name.bytes(), max),
                (_, None) => Claim::declared(name.bytes()),
            }
            .resources(*resources)
        };
        self.each.iter().map(claim).collect()
    }

    /// The one, where there is no other.
    pub(super) fn single(&self) -> Option<&Amount> {
        match &self.each[..] {
            [amount] => Some(amount),
            _ => None,
        }
    }

    /// The names, for a sentence.
    pub(super) fn names(&self) -> String {
        self.each.iter().map(|amount| amount.name.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// That a server has refused it, as a sentence about what was wanted.
    pub(super) fn refused(&self, error: Error, waiting: &Waiting) -> Failure {
        let what = self.in_words();
        let (exit, message) = match (&error, waiting.wait) {
            (Error::Status(Status::ResourceNotAvailable), None) => {
                (Exit::NothingAvailable, format!("{what} cannot be had now; try again later"))
            }
            // One that waits is refused so where a semaphore is too small for it.
            (Error::Status(Status::ResourceNotAvailable), Some(None)) => {
                (Exit::Failure, format!("{what} can never be had, as there are fewer; ask for fewer"))
            }
            (Error::Status(Status::ResourceNotAvailable | Status::TimedOut), _) => (
                Exit::NothingAvailable,
                format!("{what} did not come free in time; try again later, or give --wait more time"),
            ),
            (Error::Status(Status::NotFound), _) => {
                let names = self.names();
                (
                    Exit::Failure,
                    format!("no semaphore named {names} is declared; declare it, or say a maximum"),
                )
            }
            (Error::Status(Status::Removed), _) => {
                let names = self.names();
                (Exit::Failure, format!("{names} was removed by an administrator meanwhile; ask for another"))
            }
            (Error::Status(Status::QueueFull), _) => (
                Exit::NothingAvailable,
                format!("too many wait for {what} already; try again later, or raise --queue-max"),
            ),
            _ => return error.into(),
        };
        Failure::new(exit, message)
    }

    fn in_words(&self) -> String {
        let kind = match self.namespace {
            Namespace::Counters => "counter",
            Namespace::Semaphores => "semaphore",
        };
        match self.single() {
            Some(Amount { name, resources, .. }) => format!("{resources} of the {kind} {name}"),
            None => format!("what is wanted of the {kind}s {}", self.names()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(argument: &str, namespace: Namespace) -> Result<(String, u32, Option<u32>), String> {
        let amount = Amount::parse(&Name::new(argument.as_bytes().to_vec()).unwrap(), namespace)?;
        Ok((amount.name.to_string(), amount.resources, amount.max))
    }

    #[test]
    fn an_amount_stands_behind_the_last_equals_sign() {
        for namespace in [Namespace::Counters, Namespace::Semaphores] {
            let parsed = |argument| parsed(argument, namespace);
            assert_eq!(parsed("gpu=4"), Ok(("gpu".to_owned(), 1, Some(4))));
            assert_eq!(parsed("gpu=2/4"), Ok(("gpu".to_owned(), 2, Some(4))));
            assert_eq!(parsed("a=b=4"), Ok(("a=b".to_owned(), 1, Some(4))));
            assert_eq!(parsed("a/b=4294967295"), Ok(("a/b".to_owned(), 1, Some(u32::MAX))));
            for wrong in [
                "gpu=",
                "gpu=x",
                "gpu=0",
                "gpu=5/4",
                "gpu=0/4",
                "gpu=1/2/3",
                "gpu=4294967296",
                "=4",
                "gpu=0/",
            ] {
                assert!(parsed(wrong).is_err(), "{wrong}");
            }
        }
    }

    #[test]
    fn a_declared_semaphore_needs_no_maximum() {
        let semaphore = |argument| parsed(argument, Namespace::Semaphores);
        assert_eq!(semaphore("gpu"), Ok(("gpu".to_owned(), 1, None)));
        assert_eq!(semaphore("gpu=2/"), Ok(("gpu".to_owned(), 2, None)));
        assert_eq!(semaphore("a=b=1/"), Ok(("a=b".to_owned(), 1, None)));
        for counter in ["gpu", "gpu=2/"] {
            assert!(parsed(counter, Namespace::Counters).is_err(), "{counter}");
        }
    }
}

//! The request of `run` and `acquire`: names, the amount of each, and how long to wait.

use std::collections::HashSet;

use clap::Args;

use super::exit::{Exit, Failure};
use super::name::{Name, quoted};
use super::number::within;
use super::output::escaped;
use super::time::{WaitLimit, wait_limit};
use crate::client::{Claim, Namespace};

/// The arguments that say what to acquire.
#[derive(Debug, Args)]
pub(super) struct Wanted {
    /// Counters or semaphores to acquire, all or none; without --max, written as NAME=MAX or NAME=R/MAX, or for declared
    /// semaphores NAME or NAME=R/; all NAMEs stand together, before or after the options
    #[arg(value_name = "NAME", required = true, value_parser = Name::parser())]
    names: Vec<Name>,

    /// Maximum of each counter, or capacity of each semaphore that does not exist yet
    #[arg(long, value_name = "N", value_parser = within(1..=u32::MAX))]
    max: Option<u32>,

    /// Resources to acquire of each NAME; without --max, each NAME is a declared semaphore [default: 1]
    #[arg(long, value_name = "R", value_parser = within(1..=u32::MAX))]
    resources: Option<u32>,

    /// Slot to acquire of the only NAME, a declared semaphore whose resources are numbered; any other is not taken
    #[arg(long, value_name = "N", conflicts_with_all = ["max", "resources"], value_parser = within(0..=u16::MAX))]
    slot: Option<u16>,
}

/// The arguments that control waiting.
#[derive(Debug, Args)]
pub(super) struct Waiting {
    /// Wait in the queue, at most TIME, or with max as long as the server allows
    #[arg(long, value_name = "TIME|max", value_parser = wait_limit)]
    pub(super) wait: Option<WaitLimit>,

    /// Do not wait if N or more requests are waiting already
    #[arg(long, value_name = "N", requires = "wait", value_parser = within(1..=u32::MAX))]
    pub(super) queue_max: Option<u32>,
}

/// Resources of one name.
#[derive(Clone, Debug)]
pub(super) struct Amount {
    pub(super) name: Name,
    pub(super) resources: u32,
    /// The maximum or capacity; `None` for a semaphore that is declared.
    pub(super) max: Option<u32>,
    /// The slot of a declared semaphore; `None`: any.
    pub(super) slot: Option<u16>,
}

/// Resources of one or more names of one namespace, which are acquired together or not at all.
#[derive(Clone, Debug)]
pub(super) struct Amounts {
    namespace: Namespace,
    each: Vec<Amount>,
}

impl Wanted {
    /// The request, or the usage error in it.
    pub(super) fn amounts(&self, namespace: Namespace) -> Result<Amounts, Failure> {
        let each = self.names.iter().map(|name| self.amount(name, namespace)).collect::<Result<Vec<_>, _>>();
        let each = each.map_err(|message| Failure::new(Exit::Usage, message))?;
        let each = self.with_slot(each, namespace).map_err(|message| Failure::new(Exit::Usage, message))?;
        let mut seen = HashSet::new();
        if let Some(Amount { name, .. }) = each.iter().find(|amount| !seen.insert(amount.name.bytes())) {
            let message = format!("{name} is given twice; give it once, with the sum of the resources");
            return Err(Failure::new(Exit::Usage, message));
        }
        Ok(Amounts { namespace, each })
    }

    /// Adds the slot to the only name.
    fn with_slot(&self, mut each: Vec<Amount>, namespace: Namespace) -> Result<Vec<Amount>, String> {
        let Some(slot) = self.slot else { return Ok(each) };
        let [Amount { resources: 1, max: None, slot: wanted, .. }] = &mut each[..] else {
            return Err(format!(
                "--slot {slot} requires one NAME, without a number of resources and a maximum; acquire other names \
                 separately"
            ));
        };
        if namespace == Namespace::Counters {
            return Err(format!(
                "--slot {slot} requires a semaphore, because counters have no slots; add --semaphore"
            ));
        }
        *wanted = Some(slot);
        Ok(each)
    }

    fn amount(&self, argument: &Name, namespace: Namespace) -> Result<Amount, String> {
        let resources = self.resources.unwrap_or(1);
        match (self.max, self.resources, namespace) {
            (None, None, _) => return Amount::parse(argument, namespace),
            (None, Some(_), Namespace::Counters) => {
                return Err(
                    "--resources requires a maximum; add --max N, or write each name as NAME=R/N".to_owned()
                );
            }
            (Some(max), ..) if resources > max => {
                return Err(format!(
                    "--resources {resources} is more than --max {max}; lower --resources or raise --max"
                ));
            }
            _ => {}
        }
        Ok(Amount { name: argument.clone(), resources, max: self.max, slot: None })
    }
}

impl Amount {
    /// Parses `NAME=MAX` or `NAME=R/MAX`, for a semaphore also `NAME=R/` or `NAME`. The last `=` counts, because a name
    /// may contain others.
    fn parse(argument: &Name, namespace: Namespace) -> Result<Self, String> {
        let may_be_declared = namespace == Namespace::Semaphores;
        let bytes = argument.bytes();
        let Some(equals) = bytes.iter().rposition(|byte| *byte == b'=') else {
            let declared = || Self { name: argument.clone(), resources: 1, max: None, slot: None };
            return may_be_declared.then(declared).ok_or_else(|| {
                let text = escaped(bytes);
                format!(
                    "{argument} has no maximum; add --max N for all names, or write {text}=N or {text}=R/N"
                )
            });
        };
        let name = Name::new(bytes[..equals].to_vec()).map_err(|error| error.to_string())?;
        let malformed = || {
            let text = escaped(name.bytes());
            format!(
                "{argument} has no valid number after the \"=\"; write {text}=MAX or {text}=R/MAX, or add --max N if the \
                 \"=\" belongs to the name"
            )
        };
        let text = std::str::from_utf8(&bytes[equals + 1..]).map_err(|_| malformed())?;
        let (resources, max) = text.split_once('/').unwrap_or(("1", text));
        let is_declared = may_be_declared && max.is_empty() && !text.is_empty();
        let max: Option<u32> = if is_declared { None } else { Some(max.parse().map_err(|_| malformed())?) };
        let resources: u32 = resources.parse().map_err(|_| malformed())?;
        if resources == 0 {
            return Err(format!("{argument}: 0 resources requested; request at least 1"));
        }
        if let Some(max) = max.filter(|max| *max < resources) {
            return Err(format!(
                "{argument}: {resources} requested, but the maximum is {max}; lower the request or raise the maximum"
            ));
        }
        Ok(Self { name, resources, max, slot: None })
    }
}

impl Amounts {
    #[cfg(test)]
    pub(super) fn new(namespace: Namespace, each: Vec<Amount>) -> Self {
        Self { namespace, each }
    }

    pub(super) fn claims(&self) -> Vec<Claim> {
        let claim = |Amount { name, resources, max, slot }: &Amount| {
            let claim = match (self.namespace, *max) {
                (Namespace::Counters, Some(max)) => Claim::counter(name.bytes(), max),
                (Namespace::Semaphores, Some(max)) => Claim::semaphore(name.bytes(), max),
                (_, None) => Claim::declared(name.bytes()),
            }
            .resources(*resources);
            slot.map_or(claim.clone(), |slot| claim.slot(slot))
        };
        self.each.iter().map(claim).collect()
    }

    /// The only one, if there is only one.
    pub(super) fn single(&self) -> Option<&Amount> {
        match &self.each[..] {
            [amount] => Some(amount),
            _ => None,
        }
    }

    pub(super) fn each(&self) -> &[Amount] {
        &self.each
    }

    pub(super) fn namespace(&self) -> Namespace {
        self.namespace
    }

    /// The names in quotes, separated by commas.
    pub(super) fn names(&self) -> String {
        quoted(self.each.iter().map(|amount| &amount.name))
    }

    pub(super) fn kind(&self) -> &'static str {
        match self.namespace {
            Namespace::Counters => "counter",
            Namespace::Semaphores => "semaphore",
        }
    }

    /// The kind and the names, such as `counter "backup"`.
    pub(super) fn object(&self) -> String {
        let plural = if self.single().is_some() { "" } else { "s" };
        format!("{}{plural} {}", self.kind(), self.names())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(argument: &str, namespace: Namespace) -> Result<(String, u32, Option<u32>), String> {
        let amount = Amount::parse(&Name::new(argument.as_bytes().to_vec()).unwrap(), namespace)?;
        Ok((escaped(amount.name.bytes()), amount.resources, amount.max))
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

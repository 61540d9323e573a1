//! The request of `run` and `acquire`: names, the amount of each, and how long to wait.

use std::collections::HashSet;

use clap::Args;

use super::exit::{Exit, Failure};
use super::name::{Name, quoted};
use super::number::within;
use super::output::escaped;
use super::pattern::WholeNames;
use super::time::{WaitLimit, wait_limit};
use signalbox_client::{Claim, Namespace};

/// The arguments that say what to acquire.
#[derive(Debug, Args)]
pub(super) struct Wanted {
    /// Counters (with --semaphore, semaphores) to acquire, all or none: NAME with --max, or NAME=MAX or NAME=R/MAX; without
    /// a maximum declared semaphores: NAME or NAME=R/; all NAMEs stand together, before or after the options
    #[arg(value_name = "NAME", required_unless_present = "named", value_parser = Name::parser())]
    names: Vec<Name>,

    /// Another NAME, which may start with a -: --name=-x
    #[arg(id = "named", long = "name", value_name = "NAME", value_parser = Name::parser())]
    named: Vec<Name>,

    #[command(flatten)]
    whole: WholeNames,

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
        let names = self.names.iter().chain(&self.named);
        let each = names.map(|name| self.amount(name)).collect::<Result<Vec<_>, _>>();
        let each = each.map_err(|message| Failure::new(Exit::Usage, message))?;
        self.whole.check(each.iter().map(|amount| &amount.name))?;
        let each = self.with_slot(each).map_err(|message| Failure::new(Exit::Usage, message))?;
        let mut seen = HashSet::new();
        if let Some(Amount { name, .. }) = each.iter().find(|amount| !seen.insert(amount.name.bytes())) {
            let message = format!("{name} is given twice; give it once, with the sum of the resources");
            return Err(Failure::new(Exit::Usage, message));
        }
        Ok(Amounts { namespace, each })
    }

    /// Adds the slot to the only name.
    fn with_slot(&self, mut each: Vec<Amount>) -> Result<Vec<Amount>, String> {
        let Some(slot) = self.slot else { return Ok(each) };
        let [Amount { resources: 1, max: None, slot: wanted, .. }] = &mut each[..] else {
            return Err(format!(
                "--slot {slot} requires one NAME, without a number of resources and a maximum; acquire other names \
                 separately"
            ));
        };
        *wanted = Some(slot);
        Ok(each)
    }

    fn amount(&self, argument: &Name) -> Result<Amount, String> {
        let (options, amount) = match (self.max, self.resources) {
            (None, None) => return Amount::parse(argument),
            (Some(max), None) => (format!("--max {max}"), max.to_string()),
            (None, Some(resources)) => (format!("--resources {resources}"), format!("{resources}/")),
            (Some(max), Some(resources)) if resources > max => {
                return Err(format!(
                    "--resources {resources} is more than --max {max}; lower --resources or raise --max"
                ));
            }
            (Some(max), Some(resources)) => {
                (format!("--max {max} and --resources {resources}"), format!("{resources}/{max}"))
            }
        };
        if Amount::split(argument).is_some_and(|(_, text)| is_amount(text)) {
            let text = argument.shown();
            return Err(format!(
                "{argument} has an amount of its own, which contradicts {options}; omit one of the two, or, if {argument} \
                 is the whole name, write {text}={amount}"
            ));
        }
        Ok(Amount {
            name: argument.clone(),
            resources: self.resources.unwrap_or(1),
            max: self.max,
            slot: None,
        })
    }
}

/// Whether the text behind an `=` looks like an amount: `N`, `R/N` or `R/`.
fn is_amount(text: &[u8]) -> bool {
    let mut parts = text.split(|byte| *byte == b'/');
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(max), None, _) => is_number(max),
        (Some(resources), Some(max), None) => is_number(resources) && (max.is_empty() || is_number(max)),
        _ => false,
    }
}

/// Whether a name ends as if an amount followed it, so that it is probably a mistake where none is allowed.
pub(super) fn has_amount(name: &Name) -> bool {
    Amount::split(name).is_some_and(|(_, text)| text.is_empty() || is_amount(text))
}

impl Amount {
    /// The name and the text behind the last `=`, because a name may contain others.
    fn split(argument: &Name) -> Option<(&[u8], &[u8])> {
        let bytes = argument.bytes();
        let equals = bytes.iter().rposition(|byte| *byte == b'=')?;
        Some((&bytes[..equals], &bytes[equals + 1..]))
    }

    /// Parses `NAME=MAX` or `NAME=R/MAX`, and for a declared semaphore `NAME=R/` or `NAME`.
    fn parse(argument: &Name) -> Result<Self, String> {
        let Some((name, text)) = Self::split(argument) else {
            return Ok(Self { name: argument.clone(), resources: 1, max: None, slot: None });
        };
        let name = Name::new(name.to_vec()).map_err(|error| error.to_string())?;
        let malformed = || {
            let text = name.shown();
            format!(
                "{argument} has no valid number after the \"=\"; write {text}=MAX or {text}=R/MAX with numbers up to {}, or \
                 add --max N if the \"=\" belongs to the name",
                u32::MAX
            )
        };
        if name.bytes().ends_with(b"=") {
            let (text, name) = (escaped(text), name.shown());
            return Err(format!(
                "{argument} has two \"=\" before the amount; write {}={text}, or, if the name is \"{name}\", give the amount \
                 with --max and --resources",
                name.trim_end_matches('=')
            ));
        }
        let text = std::str::from_utf8(text).ok().filter(|text| is_amount(text.as_bytes()));
        let text = text.ok_or_else(malformed)?;
        let (resources, max) = text.split_once('/').unwrap_or(("1", text));
        let is_declared = max.is_empty() && !text.is_empty();
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
            let claim = match (*max, self.namespace) {
                (None, _) => Claim::declared(name.bytes()),
                (Some(max), Namespace::Counters) => Claim::counter(name.bytes(), max),
                (Some(max), Namespace::Semaphores) => Claim::semaphore(name.bytes(), max),
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

    /// The namespace of the names that have a maximum.
    pub(super) fn namespace(&self) -> Namespace {
        self.namespace
    }

    /// The namespace of one of the names. Counters always have a maximum, so a name without one is a semaphore.
    pub(super) fn namespace_of(&self, amount: &Amount) -> Namespace {
        amount.max.map_or(Namespace::Semaphores, |_| self.namespace)
    }

    /// The names in quotes, separated by commas.
    pub(super) fn names(&self) -> String {
        quoted(self.each.iter().map(|amount| &amount.name))
    }

    /// What one of the names refers to.
    pub(super) fn kind_of(&self, amount: &Amount) -> &'static str {
        self.namespace_of(amount).noun()
    }

    /// The kinds and the names, such as `counter "backup"` or `counters "a", "b" and semaphore "gpu"`.
    pub(super) fn object(&self) -> String {
        let of_kind = |kind: &str| {
            let names: Vec<_> = self
                .each
                .iter()
                .filter(|amount| self.kind_of(amount) == kind)
                .map(|amount| &amount.name)
                .collect();
            let plural = if names.len() == 1 { "" } else { "s" };
            (!names.is_empty()).then(|| format!("{kind}{plural} {}", quoted(names)))
        };
        ["counter", "semaphore"].into_iter().filter_map(of_kind).collect::<Vec<_>>().join(" and ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(argument: &str) -> Result<(String, u32, Option<u32>), String> {
        let amount = Amount::parse(&Name::new(argument.as_bytes().to_vec()).unwrap())?;
        Ok((escaped(amount.name.bytes()), amount.resources, amount.max))
    }

    #[test]
    fn an_amount_stands_behind_the_last_equals_sign() {
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
            "gpu==4",
            "gpu=+4",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_declared_semaphore_needs_no_maximum() {
        assert_eq!(parsed("gpu"), Ok(("gpu".to_owned(), 1, None)));
        assert_eq!(parsed("gpu=2/"), Ok(("gpu".to_owned(), 2, None)));
        assert_eq!(parsed("a=b=1/"), Ok(("a=b".to_owned(), 1, None)));
    }

    #[test]
    fn an_equals_sign_without_numbers_behind_it_belongs_to_the_name() {
        for amount in ["4", "2/4", "2/", "0/4", "5/4"] {
            assert!(is_amount(amount.as_bytes()), "{amount}");
        }
        for other in ["", "/", "/4", "x", "2/4/6", "2/x", "-1"] {
            assert!(!is_amount(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn names_of_both_kinds_are_told_apart() {
        let amount =
            |name: &str, max| Amount { name: Name::new(name.into()).unwrap(), resources: 1, max, slot: None };
        let both = Amounts::new(Namespace::Counters, vec![amount("gpu", None), amount("seats", Some(3))]);
        assert_eq!(both.object(), "counter \"seats\" and semaphore \"gpu\"");
        let several = Amounts::new(Namespace::Semaphores, vec![amount("a", None), amount("b", Some(3))]);
        assert_eq!(several.object(), "semaphores \"a\", \"b\"");
    }
}

//! The request of `run` and `acquire`: names, the amount of each, and how long to wait.

use std::collections::HashSet;

use clap::Args;

use super::exit::{End, Failure};
use super::values::{Name, WaitLimit, WholeNames, quoted, wait_limit, within};
use signalbox_client::{Claim, Namespace};
use signalbox_model::noun;

/// The arguments that say what to acquire.
#[derive(Debug, Args)]
pub(super) struct Wanted {
    /// Limits to acquire, all or none: NAME, NAME=R, NAME:MAX or NAME=R:MAX
    ///
    /// R is the number of resources, and MAX the maximum of a limit that is not declared. Give all NAMEs together, before or
    /// after the options.
    #[arg(value_name = "NAME", required_unless_present = "named", value_parser = Name::parser())]
    names: Vec<Name>,

    /// Another NAME; it may start with a -: --name=-x
    #[arg(id = "named", long = "name", value_name = "NAME", value_parser = Name::parser())]
    named: Vec<Name>,

    #[command(flatten)]
    whole: WholeNames,

    /// Maximum of each limit that is not declared
    ///
    /// It applies to this request only. A limit that is declared with a larger capacity is refused.
    #[arg(long, value_name = "N", value_parser = within(1..=u32::MAX))]
    max: Option<u32>,

    /// Resources to acquire of each NAME [default: 1]
    #[arg(long, value_name = "R", value_parser = within(1..=u32::MAX))]
    resources: Option<u32>,

    /// Numbered slot to acquire of the only NAME
    ///
    /// The limit must be declared with --slots. No other slot is acquired.
    #[arg(long, value_name = "N", conflicts_with_all = ["max", "resources"], value_parser = within(0..=u16::MAX))]
    slot: Option<u16>,
}

/// The arguments that control waiting.
#[derive(Debug, Args)]
pub(super) struct Waiting {
    /// Wait in the queue, at most TIME
    ///
    /// With max, as long as the server allows.
    #[arg(long, value_name = "TIME|max", value_parser = wait_limit)]
    pub(super) wait: Option<WaitLimit>,

    /// Do not wait if N or more requests already wait
    #[arg(long, value_name = "N", requires = "wait", value_parser = within(1..=u32::MAX))]
    pub(super) queue_max: Option<u32>,

    /// Single flight: one command works, and those that wait end when it has succeeded
    ///
    /// The maximum is 1: of many commands with this option, one is granted the only resource of NAME.
    #[arg(long)]
    pub(super) share: bool,

    /// With --share, the exit status when another command has done the work [default: 0]
    #[arg(long, value_name = "N", requires = "share", value_parser = within(0..=u8::MAX))]
    pub(super) done_status: Option<u8>,
}

/// Resources of one name.
#[derive(Clone, Debug)]
pub(super) struct Amount {
    pub(super) name: Name,
    pub(super) resources: u32,
    /// The maximum or capacity; `None` if none is given, so that the name must be declared.
    pub(super) max: Option<u32>,
    /// The slot of a declared semaphore; `None` for any.
    pub(super) slot: Option<u16>,
}

/// Resources of one or more names of one kind, which are acquired together or not at all.
#[derive(Clone, Debug)]
pub(super) struct Amounts {
    /// `None` for limits, whose kinds the server knows.
    pub(super) kind: Option<Namespace>,
    pub(super) each: Vec<Amount>,
}

impl Waiting {
    /// Returns the amounts to request: for a single flight, one resource of one name with a maximum of 1. Fails if the
    /// amounts do not fit the options.
    pub(super) fn checked(&self, mut amounts: Amounts) -> Result<Amounts, Failure> {
        match &mut amounts.each[..] {
            _ if !self.share => {}
            [Amount { resources: 1, max: max @ (None | Some(1)), slot: None, .. }] => *max = Some(1),
            _ => {
                return Err(Failure::usage(
                    "--share requires one NAME, one resource of it and a maximum of 1; omit the numbers, and acquire other \
                     names separately",
                ));
            }
        }
        let lacks_max = |amount: &&Amount| amount.max.is_none() && amounts.kind == Some(Namespace::Counters);
        if let Some(Amount { name, .. }) = amounts.each.iter().find(lacks_max) {
            return Err(Failure::usage(format!(
                "counter {name} needs a maximum; add --max N, or omit --counter if it is declared"
            )));
        }
        Ok(amounts)
    }

    /// Returns how this process ends if another command has done the work.
    pub(super) fn done(&self) -> Failure {
        Failure::silent(End::Status(self.done_status.unwrap_or_default()))
    }
}

impl Wanted {
    /// Returns the request. Fails if the arguments contradict each other.
    pub(super) fn amounts(&self, kind: Option<Namespace>) -> Result<Amounts, Failure> {
        let names = self.names.iter().chain(&self.named);
        let each = names.map(|name| self.amount(name)).collect::<Result<Vec<_>, _>>();
        let each = each.map_err(Failure::usage)?;
        self.whole.check(each.iter().map(|amount| &amount.name))?;
        let each = self.with_slot(each).map_err(Failure::usage)?;
        let mut seen = HashSet::new();
        if let Some(Amount { name, .. }) = each.iter().find(|amount| !seen.insert(amount.name.bytes())) {
            return Err(Failure::usage(format!(
                "{name} is given twice; give it once, with the sum of the resources"
            )));
        }
        Ok(Amounts { kind, each })
    }

    /// Sets the slot that `--slot` gives, for the only name. Fails if there are several names, a number of resources or a
    /// maximum.
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
        let (name, own) = match self.whole.exact {
            true => (argument.clone(), None),
            false => split(argument)?,
        };
        let given = self.max.map(|_| "--max").or(self.resources.map(|_| "--resources"));
        if let (Some(_), Some(option)) = (own, given) {
            return Err(format!(
                "{argument} has an amount of its own, which contradicts {option}; omit {option}, and write both numbers as \
                 NAME=R:MAX"
            ));
        }
        let (resources, max) = own.unwrap_or((self.resources.unwrap_or(1), self.max));
        Amount { name, resources, max, slot: None }.checked()
    }
}

/// The amount after a name: resources and a maximum.
type OwnAmount = (u32, Option<u32>);

/// Splits `NAME=R`, `NAME:MAX` and `NAME=R:MAX`. A name that still looks as if an amount followed it is refused,
/// because it would be a different limit from the one that was meant.
fn split(argument: &Name) -> Result<(Name, Option<OwnAmount>), String> {
    let (rest, max) = number_after(argument.bytes(), b':');
    let (name, resources) = number_after(rest, b'=');
    if name.contains(&b'=') || name.ends_with(b" ") || number_after(name, b':').1.is_some() {
        return Err(format!(
            "{argument} has no amount of the form NAME=R, NAME:MAX or NAME=R:MAX, with whole numbers; correct it, or, if all of \
             it is the name, add --exact and give the amount with --resources and --max"
        ));
    }
    if max.is_none() && resources.is_none() {
        return Ok((argument.clone(), None));
    }
    let number = |text: Option<&[u8]>| -> Result<Option<u32>, String> {
        let Some(text) = text else { return Ok(None) };
        let number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        let too_large =
            || format!("{argument} has a number above {}, the largest; use a smaller one", u32::MAX);
        number.map(Some).ok_or_else(too_large)
    };
    let own = (number(resources)?.unwrap_or(1), number(max)?);
    let name = Name::new(name.to_vec()).map_err(|error| error.to_string())?;
    Ok((name, Some(own)))
}

/// Splits bytes that end in `separator` and digits: returns those before the separator, and the digits. Returns all other
/// bytes whole, without digits.
fn number_after(bytes: &[u8], separator: u8) -> (&[u8], Option<&[u8]>) {
    let digits = bytes.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (rest, digits) = bytes.split_at(bytes.len() - digits);
    match rest.strip_suffix(&[separator]) {
        Some(name) if !digits.is_empty() => (name, Some(digits)),
        _ => (bytes, None),
    }
}

/// Returns whether a name has, or seems to have, an amount, which is probably a mistake where none is allowed.
pub(super) fn has_amount(name: &Name) -> bool {
    !matches!(split(name), Ok((_, None)))
}

impl Amount {
    /// Refuses numbers that contradict each other.
    fn checked(self) -> Result<Self, String> {
        let Self { name, resources, max, .. } = &self;
        if *resources == 0 {
            return Err(format!("{name}: 0 resources requested; request at least 1"));
        }
        if let Some(max) = max.filter(|max| max < resources) {
            return Err(format!(
                "{name}: {resources} requested, but the maximum is {max}; lower the request or raise the maximum"
            ));
        }
        Ok(self)
    }
}

impl Amounts {
    pub(super) fn claims(&self) -> Vec<Claim> {
        let claim = |Amount { name, resources, max, slot }: &Amount| {
            let claim = match (self.kind, *max) {
                (Some(Namespace::Counters), Some(max)) => Claim::counter(name.bytes(), max),
                (Some(Namespace::Semaphores), Some(max)) => Claim::semaphore(name.bytes(), max),
                (Some(_), None) => Claim::declared(name.bytes()),
                (None, Some(max)) => Claim::limit(name.bytes()).maximum(max),
                (None, None) => Claim::limit(name.bytes()),
            }
            .resources(*resources);
            slot.map_or(claim.clone(), |slot| claim.slot(slot))
        };
        self.each.iter().map(claim).collect()
    }

    /// Returns the amount, if there is only one.
    pub(super) fn single(&self) -> Option<&Amount> {
        match &self.each[..] {
            [amount] => Some(amount),
            _ => None,
        }
    }

    /// Returns the names in quotes, separated by commas.
    pub(super) fn names(&self) -> String {
        quoted(self.each.iter().map(|amount| &amount.name))
    }

    /// Returns the kind and the names, such as `limit "backup"` or `limits "a", "b"`.
    pub(super) fn object(&self) -> String {
        let plural = if self.each.len() == 1 { "" } else { "s" };
        format!("{}{plural} {}", noun(self.kind), self.names())
    }
}

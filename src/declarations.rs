//! Declarations as code: the comparison of a document of declarations with what is declared gives a step for each name.
//! The command line and HTTP read documents and run the steps; this file defines the steps, and which of them cannot be
//! run.
//!
//! Invariant: a step is an ordinary operation of administrators, so rights, logs and the store do not know about
//! documents.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::Serialize;

use signalbox_model::views::{Declared, Named};
use signalbox_model::{Declaration, DeclaredEntry, IfExists, ListEntry, Operation, Quoted, Removal};

/// A declared semaphore as it is now.
pub(crate) type Present<'a> = DeclaredEntry<&'a [u8], &'a [u16]>;

/// A step, which makes one name match the document.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    Unchanged(Declaration<'a>),
    Declare(Declaration<'a>),
    Change { from: Present<'a>, to: Declaration<'a> },
    Remove { from: Present<'a>, how: Removal },
}

/// The reason why a step is not run.
#[derive(Debug, Serialize)]
pub(crate) struct Obstacle {
    /// A word for programs, which does not change.
    pub(crate) code: &'static str,
    /// A sentence for people.
    pub(crate) message: String,
}

/// A step in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    #[serde(flatten)]
    name: Named,
    change: &'static str,
    /// `None` if it was not declared before.
    from: Option<Declared>,
    /// `None` if it is not declared afterwards.
    to: Option<Declared>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Obstacle>,
}

/// Returns an error message if a name does not begin with the prefix of its document.
pub(crate) fn outside(name: &[u8], prefix: &[u8]) -> Option<String> {
    (!name.starts_with(prefix)).then(|| {
        format!("{} does not begin with the prefix {}; correct one of them", Quoted(name), Quoted(prefix))
    })
}

/// Returns a name that is declared twice, if there is one.
pub(crate) fn twice<'a>(declarations: &[Declaration<'a>]) -> Option<&'a [u8]> {
    let mut names = HashSet::new();
    declarations.iter().map(|declaration| declaration.name).find(|name| !names.insert(*name))
}

/// Returns whether a waiting request is refused once the semaphore has this capacity.
pub(crate) fn needs_more<T, S: AsRef<[u16]>>(waiter: &ListEntry<T, S>, capacity: u32) -> bool {
    waiter.resources > capacity || waiter.slots.as_ref().iter().any(|slot| u32::from(*slot) >= capacity)
}

/// Returns a step for each wanted declaration, in their order; their names must differ. With `prune`, steps that remove the
/// other semaphores of `present` follow, in the order of the names, except those that the configuration declares.
pub(crate) fn steps<'a>(
    wanted: &[Declaration<'a>],
    present: impl IntoIterator<Item = Present<'a>>,
    prune: Option<Removal>,
) -> Vec<Step<'a>> {
    // A semaphore that is being removed counts as not declared: it is declared again, or its removal continues.
    let present = present.into_iter().filter(|present| !present.removing);
    let mut present: BTreeMap<_, _> = present.map(|present| (present.name, present)).collect();
    let mut steps: Vec<_> = wanted
        .iter()
        .map(|&to| match present.remove(to.name) {
            None => Step::Declare(to),
            Some(from) if declaration(&from) == to => Step::Unchanged(to),
            Some(from) => Step::Change { from, to },
        })
        .collect();
    if let Some(how) = prune {
        let others = present.into_values().filter(|present| !present.configured);
        steps.extend(others.map(|from| Step::Remove { from, how }));
    }
    steps
}

/// Returns the declaration that a document would have for a declared semaphore.
pub(crate) fn declaration<'a>(present: &Present<'a>) -> Declaration<'a> {
    let Present { name, capacity, numbered, label, .. } = *present;
    Declaration { name, capacity, numbered, label }
}

impl<'a> Step<'a> {
    /// Returns the operation that runs the step; `None` if nothing changes.
    pub(crate) fn operation(&self) -> Option<Operation<'a>> {
        match *self {
            Self::Unchanged(_) => None,
            Self::Declare(to) | Self::Change { to, .. } => {
                Some(Operation::Declare { if_exists: IfExists::Set, declarations: vec![to] })
            }
            // The generation is compared, because another administrator may have declared it again.
            Self::Remove { from, how } => {
                Some(Operation::Remove { name: from.name, how, expected: Some(from.generation) })
            }
        }
    }

    /// Returns the reason why the step cannot be run, as far as the present state shows one.
    pub(crate) fn obstacle(&self) -> Option<Obstacle> {
        match *self {
            Self::Change { from: Present { configured: true, .. }, .. } => Some(Obstacle {
                code: "configured",
                message:
                    "the server's configuration declares it; change it there, then reload the configuration"
                        .to_owned(),
            }),
            Self::Change { from: Present { in_use, capacity, numbered, .. }, to }
                if to.numbered != numbered && in_use > 0 =>
            {
                Some(Obstacle {
                    code: "in_use",
                    message: format!(
                        "{in_use} of {capacity} in use, so its resources cannot be changed between numbered and not numbered; wait \
                         until they are released"
                    ),
                })
            }
            Self::Remove { from: Present { in_use, capacity, waiting, .. }, how: Removal::IfIdle }
                if in_use > 0 || waiting > 0 =>
            {
                Some(Obstacle {
                    code: "in_use",
                    message: format!(
                        "{in_use} of {capacity} in use, {waiting} waiting; wait until it is idle, or choose another \"when\""
                    ),
                })
            }
            _ => None,
        }
    }

    /// Returns the new capacity if it is lower and requests wait, some of which may need more.
    pub(crate) fn lowered(&self) -> Option<u32> {
        match *self {
            Self::Change { from, to } if from.waiting > 0 && to.capacity < from.capacity => Some(to.capacity),
            _ => None,
        }
    }

    pub(crate) fn name(&self) -> &'a [u8] {
        match self {
            Self::Unchanged(of) | Self::Declare(of) | Self::Change { to: of, .. } => of.name,
            Self::Remove { from, .. } => from.name,
        }
    }

    /// Returns the change that the step makes, in one word.
    pub(crate) fn change(&self) -> &'static str {
        match self {
            Self::Unchanged(_) => "unchanged",
            Self::Declare(_) => "declare",
            Self::Change { .. } => "change",
            Self::Remove { .. } => "remove",
        }
    }

    /// Returns the step in JSON, with the reason if it is not run.
    pub(crate) fn line(&self, error: Option<Obstacle>) -> Line {
        let (from, to) = match self {
            Self::Unchanged(of) => (Some(*of), Some(*of)),
            Self::Declare(to) => (None, Some(*to)),
            Self::Change { from, to } => (Some(declaration(from)), Some(*to)),
            Self::Remove { from, .. } => (Some(declaration(from)), None),
        };
        let shown = |declaration: Option<Declaration<'_>>| declaration.as_ref().map(Declared::of);
        let name = Named::of(self.name());
        Line { name, change: self.change(), from: shown(from), to: shown(to), error }
    }
}

/// Writes the differences of a change; for the other steps, the declaration.
impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = |numbered| if numbered { "slots" } else { "no slots" };
        match *self {
            Self::Change { from, to } => {
                let mut comma = "";
                if from.capacity != to.capacity {
                    write!(f, "capacity {} -> {}", from.capacity, to.capacity)?;
                    comma = ", ";
                }
                if from.numbered != to.numbered {
                    write!(f, "{comma}{} -> {}", slots(from.numbered), slots(to.numbered))?;
                    comma = ", ";
                }
                if from.label != to.label {
                    write!(f, "{comma}label {} -> {}", Quoted(from.label), Quoted(to.label))?;
                }
                Ok(())
            }
            Self::Unchanged(of) | Self::Declare(of) => show(&of, f),
            Self::Remove { from, .. } => show(&declaration(&from), f),
        }
    }
}

fn show(declaration: &Declaration<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "capacity {}", declaration.capacity)?;
    if declaration.numbered {
        f.write_str(", slots")?;
    }
    if !declaration.label.is_empty() {
        write!(f, ", label {}", Quoted(declaration.label))?;
    }
    Ok(())
}

/// Returns the obstacle to lowering a capacity to this one, if any waiting requests need more.
pub(crate) fn refuses(waiters: usize, capacity: u32) -> Option<Obstacle> {
    let (requests, need) = if waiters == 1 { ("request", "needs") } else { ("requests", "need") };
    (waiters > 0).then(|| Obstacle {
        code: "refuses_waiters",
        message: format!(
            "{waiters} waiting {requests} {need} more than the new capacity {capacity} and would be refused; permit that with \
             \"refuse-waiters\""
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use signalbox_model::{Generation, Milliseconds};

    #[test]
    fn a_waiting_request_needs_more_than_a_capacity_by_its_amount_or_its_slot() {
        for (resources, slots, expected) in
            [(2, vec![], false), (3, vec![], true), (1, vec![1], false), (1, vec![2], true)]
        {
            let (label, address) = ("", "");
            let waiter = ListEntry {
                grant: None,
                session: 1,
                since: None,
                resources,
                position: 1,
                label,
                address,
                slots,
            };
            assert_eq!(needs_more(&waiter, 2), expected, "{waiter:?}");
        }
    }

    fn present(name: &[u8], change: impl FnOnce(&mut Present<'_>)) -> Present<'_> {
        let mut present = Present {
            generation: Generation(7),
            capacity: 4,
            in_use: 0,
            waiting: 0,
            numbered: false,
            removing: false,
            configured: false,
            paused: false,
            name,
            label: b"",
            slots_out: &[],
        };
        change(&mut present);
        present
    }

    /// What a step does, and why it is not taken.
    type Told = (&'static str, Option<&'static str>);

    fn told(steps: &[Step<'_>]) -> Vec<Told> {
        steps.iter().map(|step| (step.change(), step.obstacle().map(|obstacle| obstacle.code))).collect()
    }

    #[test]
    fn each_name_has_the_step_that_makes_it_as_the_document_says() {
        let to = Declaration { name: b"a", capacity: 4, numbered: false, label: b"" };
        let (slots, less) = (Declaration { numbered: true, ..to }, Declaration { capacity: 3, ..to });
        let labeled = Declaration { label: b"x", ..to };
        // The declaration, what there is, the step and its obstacle, and the capacity if waiting requests may need more.
        type Change = fn(&mut Present<'_>);
        let cases: [(Declaration<'_>, Change, Told, Option<u32>); 10] = [
            (to, |_| (), ("unchanged", None), None),
            (to, |of| (of.in_use, of.waiting, of.paused) = (4, 1, true), ("unchanged", None), None),
            (to, |of| of.removing = true, ("declare", None), None),
            (labeled, |_| (), ("change", None), None),
            (labeled, |of| of.configured = true, ("change", Some("configured")), None),
            (slots, |_| (), ("change", None), None),
            (slots, |of| of.in_use = 1, ("change", Some("in_use")), None),
            (less, |of| of.in_use = 4, ("change", None), None),
            (less, |of| of.waiting = 1, ("change", None), Some(3)),
            (less, |of| (of.waiting, of.capacity) = (1, 3), ("unchanged", None), None),
        ];
        for (wanted, change, expected, lowered) in cases {
            let steps = steps(&[wanted], [present(b"a", change)], None);
            assert_eq!((told(&steps), steps[0].lowered()), (vec![expected], lowered), "{steps:?}");
        }
        assert_eq!(told(&steps(&[to], [], None)), [("declare", None)]);
    }

    #[test]
    fn what_a_document_does_not_have_is_removed_only_if_it_is_told_to() {
        let to = Declaration { name: b"b", capacity: 4, numbered: false, label: b"" };
        let all = || {
            [
                present(b"c", |of| of.waiting = 1),
                present(b"b", |_| ()),
                present(b"a", |of| of.in_use = 1),
                present(b"d", |of| of.configured = true),
                present(b"e", |of| of.removing = true),
                present(b"f", |_| ()),
            ]
        };
        assert_eq!(told(&steps(&[to], all(), None)), [("unchanged", None)]);
        for (how, obstacle) in
            [(Removal::IfIdle, Some("in_use")), (Removal::Now { grace: Milliseconds(0) }, None)]
        {
            let steps = steps(&[to], all(), Some(how));
            assert_eq!(
                told(&steps),
                [("unchanged", None), ("remove", obstacle), ("remove", obstacle), ("remove", None)]
            );
            assert_eq!(steps[1..].iter().map(Step::name).collect::<Vec<_>>(), [b"a", b"c", b"f"]);
            let Some(Operation::Remove { expected, .. }) = steps[1].operation() else { panic!("{steps:?}") };
            assert_eq!(expected, Some(Generation(7)), "not one that was declared again");
        }
    }
}

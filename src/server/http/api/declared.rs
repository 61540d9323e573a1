//! Declared semaphores, as `signalbox list` prints them.

use serde::Serialize;

use super::super::super::Server;
use super::super::access::{Right, Target};
use super::super::answer::{Answer, Json};
use super::super::paging::Page;
use super::{Context, Labeled, Named};
use signalbox_core::{Declared, Namespace, Origin};

/// A declared semaphore.
#[derive(Serialize)]
struct Semaphore {
    #[serde(flatten)]
    name: Named,
    capacity: u32,
    in_use: u32,
    waiting: u32,
    #[serde(flatten)]
    declaration: Declaration,
}

/// What was declared.
#[derive(Debug, Serialize)]
pub(super) struct Declaration {
    /// A string: many JSON readers convert numbers to doubles, which would round it.
    generation: String,
    slots: bool,
    removing: bool,
    configured: bool,
    paused: bool,
    slots_out: Box<[u16]>,
    #[serde(flatten)]
    label: Labeled,
}

impl Declaration {
    fn of(declared: &Declared) -> Self {
        let record = &declared.record;
        Self {
            generation: record.generation.to_string(),
            slots: record.numbered,
            removing: record.removing,
            configured: record.origin == Origin::Configuration,
            paused: record.service.paused,
            slots_out: record.service.slots_out.clone(),
            label: Labeled::of(record.label.clone()),
        }
    }

    /// The declaration of a semaphore; `None`: it is not declared.
    pub(super) fn find(server: &Server, name: &[u8]) -> Option<Self> {
        let mut listing = server.core.declared(name);
        // The list is ordered by name, so the name itself precedes all longer ones.
        let first = server.core.list_declared(&mut listing).into_iter().next();
        first.filter(|declared| *declared.record.name == *name).map(|declared| Self::of(&declared))
    }
}

/// Which declared semaphores a page has.
#[derive(Clone, Copy)]
enum List {
    All,
    Paused,
    /// More is in use than there is, after a smaller capacity was set.
    AboveCapacity,
    /// Slots are out of service.
    OutOfService,
}

impl List {
    fn has(self, declared: &Declared) -> bool {
        let record = &declared.record;
        match self {
            Self::All => true,
            Self::Paused => record.service.paused,
            Self::AboveCapacity => declared.in_use > record.capacity,
            Self::OutOfService => !record.service.slots_out.is_empty(),
        }
    }
}

impl Semaphore {
    fn of(declared: Declared) -> Self {
        Self {
            capacity: declared.record.capacity,
            in_use: declared.in_use,
            waiting: declared.waiting,
            declaration: Declaration::of(&declared),
            name: Named::of(declared.record.name),
        }
    }
}

pub(in super::super) async fn declared(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let prefix = parameters.bytes("prefix")?.unwrap_or_default();
    let lists = [
        ("all", List::All),
        ("paused", List::Paused),
        ("above_capacity", List::AboveCapacity),
        ("out_of_service", List::OutOfService),
    ];
    let list = parameters.word("list", &lists)?;
    let page = Page::of(parameters)?;
    let server = context.server()?;
    context.parameters.end()?;
    let mut listing = server.core.declared(&prefix);
    let is_wanted = |declared: &Declared| {
        list.has(declared)
            && context
                .permissions
                .may(Right::Read, Target::Name(Namespace::Semaphores, &declared.record.name))
    };
    let next = || server.core.list_declared(&mut listing);
    let page = page.take(next, is_wanted, Semaphore::of).await?;
    Json::of(&page)
}

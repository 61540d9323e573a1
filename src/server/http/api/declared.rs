//! Declared semaphores, as `signalbox list` prints them.

use serde::Serialize;

use super::super::super::Server;
use super::super::access::{Right, Target};
use super::super::answer::Answer;
use super::super::paging::Page;
use super::{Context, Labeled, Named};
use crate::core::{Declared, Namespace, Origin};

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
    let page = Page::of(parameters)?;
    let server = context.server()?;
    context.parameters.end()?;
    let mut listing = server.core.declared(&prefix);
    let may_read = |declared: &Declared| {
        context.permissions.may(Right::Read, Target::Name(Namespace::Semaphores, &declared.record.name))
    };
    let next = || server.core.list_declared(&mut listing);
    let page = page.take(&context.memory, next, may_read, Semaphore::of).await?;
    context.answer(&page)
}

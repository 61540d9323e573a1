//! Declared semaphores, as `signalbox list` prints them.

use super::super::access::Right;
use super::super::answer::{Answer, Json};
use super::super::paging::Page;
use super::Context;
use signalbox_core::DeclaredSemaphore;
use signalbox_model::views::Semaphore;
use signalbox_model::{Namespace, Target};

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
    fn has(self, declared: &DeclaredSemaphore) -> bool {
        match self {
            Self::All => true,
            Self::Paused => declared.record.service.paused,
            Self::AboveCapacity => declared.in_use > declared.record.capacity,
            Self::OutOfService => !declared.record.service.slots_out.is_empty(),
        }
    }
}

pub(in super::super) async fn declared(mut context: Context) -> Answer {
    // Without it, all would be looked at for an empty page.
    context.check_read(Target::Anywhere)?;
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
    let is_wanted = |declared: &DeclaredSemaphore| {
        list.has(declared)
            && context
                .permissions
                .may(Right::Read, Target::Name(Namespace::Semaphores, &declared.record.name))
    };
    let next = || server.core.list_declared(&mut listing);
    let page = page.take(next, is_wanted, |declared| Semaphore::of(&declared.entry())).await?;
    Json::of(&page)
}

//! The records of declared semaphores that a server finds at its start.

use signalbox_core::{DeclarationRecord, Origin, Record, Service};

/// A declared semaphore with a name of its own.
pub fn declaration(number: u32) -> Record {
    Record::Declaration(DeclarationRecord {
        name: format!("bench-{number:09}").into_bytes().into(),
        capacity: 3,
        label: Box::default(),
        numbered: false,
        generation: u64::from(number) + 1,
        created: 0,
        origin: Origin::Request,
        removing: false,
        evicted_grace_ms: None,
        service: Service::default(),
    })
}

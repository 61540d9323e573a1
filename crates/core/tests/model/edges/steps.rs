//! Work that grows with the number of names is done in steps, which together visit each name once and are small each.

use std::collections::BTreeMap;

use super::*;
use signalbox_core::{DeclarationRecord, DeclaredSemaphore, NameCursor, WaitedListing};

/// The maximum number of bytes in a step of a listing, approximately.
const STEP_BYTES: usize = 64 * 1024;
/// The maximum number of entries in a step of a listing.
const STEP_ENTRIES: usize = 128;

#[test]
fn each_walk_over_the_names_visits_each_of_them_once() {
    const NAMES: usize = 300;
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    let mut session = core.open_session();
    let names: Vec<_> = (0..NAMES).map(|number| format!("name {number:03}").into_bytes()).collect();
    for namespace in Namespace::ALL {
        for name in &names {
            core.acquire(namespace, name, Claim::new(1, 1).unwrap(), &mut session, START.unix).unwrap();
        }
        let check = |walk: &str, mut visited: Vec<Vec<u8>>| {
            visited.sort();
            assert_eq!(visited, names, "{namespace:?}, {walk}");
        };

        let mut dump = core.dump(namespace);
        check("dump", std::iter::from_fn(|| dump.next(&core, START.unix, |name, _| name.to_vec())).collect());

        let (mut survey, mut surveyed) = (core.survey(namespace), Vec::new());
        while survey.step(&core, 7, START.unix, |name, _| surveyed.push(name.to_vec())) {}
        check("survey", surveyed);

        // Pages of one name each, and pages of all names of a shard.
        for is_one_each in [true, false] {
            let (mut shown, mut from, mut shared_shards) = (Vec::new(), NameCursor::default(), 0);
            loop {
                let mut last = None;
                let show = |name: &[u8], after| {
                    shown.push(name.to_vec());
                    last = Some(after);
                    !is_one_each
                };
                let wanted = (&b"name"[..], Some(session.id()));
                let Some(of_shard) = core.show_names(namespace, from, wanted, show) else { break };
                shared_shards += u64::from(of_shard > 1 && from.after.is_none());
                assert!(shown.len() <= NAMES, "pages do not end");
                from = last.unwrap_or(NameCursor { shard: from.shard + 1, after: None });
            }
            check("pages", shown);
            assert_eq!(core.conflicts(namespace), shared_shards);
        }

        let (mut checked, mut failures) = (core.check(namespace), Vec::new());
        let mut steps = 1;
        while checked.step(7, &mut failures) {
            steps += 1;
        }
        assert_eq!((checked.checked(), failures.len()), (NAMES as u64, 0));
        assert_eq!(steps, NAMES / 7 + 1, "seven names in each step");

        let mut sweep = core.sweep(namespace);
        while sweep.step(7, START.unix) {}
        assert_eq!((sweep.visited(), sweep.names(), sweep.collected()), (NAMES as u64, NAMES as u64, 0));
    }
}

/// Takes all steps of a listing, whose entries have these bytes. Checks that each step has as many entries as it may have.
fn listed<T>(mut step: impl FnMut() -> Vec<T>, bytes_of: impl Fn(&T) -> usize) -> Vec<T> {
    let mut all: Vec<T> = Vec::new();
    let mut before: Option<(usize, usize)> = None;
    loop {
        let entries = step();
        let sizes: Vec<_> = entries.iter().map(&bytes_of).collect();
        let bytes: usize = sizes.iter().sum();
        assert!(entries.len() <= 1 || bytes <= STEP_BYTES, "{bytes} bytes");
        assert!(entries.len() <= STEP_ENTRIES);
        if let (Some((entries, bytes)), Some(first)) = (before, sizes.first()) {
            assert!(
                entries == STEP_ENTRIES || bytes + first > STEP_BYTES,
                "there was room for another entry"
            );
        }
        if entries.is_empty() {
            return all;
        }
        before = Some((entries.len(), bytes));
        all.extend(entries);
    }
}

#[test]
fn listings_of_declared_semaphores_are_made_in_steps() {
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    let mut records = BTreeMap::new();
    // Many small ones, some with long labels, and some with many slots out of service.
    for number in 0..400_u16 {
        let name = format!("semaphore {number:03}").into_bytes();
        let slots_out = if number % 10 == 0 { (0..20 * number).collect() } else { Box::default() };
        let service = Service { paused: false, slots_out };
        let label = vec![b'l'; if number > 300 { 1000 } else { 0 }].into();
        let record = DeclarationRecord { label, ..declaration(&name, 65_536, service) };
        core.restore(Record::Declaration(record.clone()), START).unwrap();
        records.insert(name, record);
    }
    let mut listing = core.declared(b"semaphore");
    let bytes_of = |semaphore: &DeclaredSemaphore| {
        let DeclarationRecord { name, label, service, .. } = &semaphore.record;
        name.len() + label.len() + 2 * service.slots_out.len()
    };
    let declared = listed(|| core.list_declared(&mut listing), bytes_of);
    assert!(declared.iter().map(|semaphore| &semaphore.record).eq(records.values()));
}

#[test]
fn listings_of_names_that_requests_wait_for_are_made_in_steps() {
    let mut server = Server::new();
    let mut names: Vec<_> = (0..200).map(|number| format!("name {number:03}").into_bytes()).collect();
    names.iter_mut().skip(140).for_each(|name| name.resize(10_000, b'n'));
    let declared = |name| Declaration { name, capacity: 1, numbered: false, label: b"" };
    let declarations: Vec<_> = names.iter().map(|name| declared(&name[..])).collect();
    let call = server.call(0);
    server.core.change(call, declaring(IfExists::Fail, &declarations), START);
    for name in names.iter().rev() {
        server.granted(1, &[name]);
        assert_eq!(server.acquire(0, &[name]), Outcome::Waiting);
    }
    let mut listing = WaitedListing::default();
    let waited = listed(|| server.core.list_waited(&mut listing), |(_, name)| name.len());
    let in_order = names.iter().rev().map(|name| (SEMAPHORES, &name[..]));
    assert!(waited.iter().map(|(namespace, name)| (*namespace, &name[..])).eq(in_order));
}

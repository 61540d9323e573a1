//! The rules by themselves, without sockets: what a name, a holder and a visit of all names cost.

use std::hint::black_box;
use std::num::NonZeroU32;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use signalbox::server::steps::{ENDING_NAMES, SWEEP_NAMES};
use signalbox_core::{Claim, Core, NameHasher, Session};
use signalbox_model::Namespace;
use signalbox_model::UnixSeconds;

const NAMES: u32 = 10_000;
const NAMES_MANY: u32 = 1_000_000;
/// The step from one name to the next. It shares no factor with the number of names, so the next one is not in the cache by order.
const STRIDE: usize = 7919;
const NOW: UnixSeconds = UnixSeconds(1_000_000_050);
const SPACE: Namespace = Namespace::Semaphores;

fn core() -> Core {
    let stat_interval_s = NonZeroU32::new(100).expect("100 is not 0");
    Core::new(stat_interval_s, NameHasher::with_seeds(1, 2, 3, 4))
}

fn names(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|index| format!("bench-{index:010}").into_bytes()).collect()
}

fn claim() -> Claim {
    Claim::new(1, 1_000_000).expect("1 of 1,000,000 is a claim")
}

fn acquire(core: &Core, name: &[u8], session: &mut Session) {
    core.acquire(SPACE, name, claim(), session, NOW).expect("there is enough of everything");
}

fn release(core: &Core, name: &[u8], session: &mut Session) {
    core.release(SPACE, name, 1, session, NOW).expect("it was acquired");
}

/// A core in which one session holds `count` names.
fn filled(count: u32) -> (Core, Session) {
    let core = core();
    let mut session = core.open_session();
    names(count).iter().for_each(|name| acquire(&core, name, &mut session));
    (core, session)
}

fn end(core: &Core, session: Session) {
    let mut ending = core.end_session(session);
    while ending.step(ENDING_NAMES, NOW) {}
}

fn pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("registry/acquire and release");
    group.throughput(Throughput::Elements(2));
    group.bench_function("existing names", |bencher| {
        let (core, mut session) = filled(0);
        let names = names(NAMES);
        names.iter().for_each(|name| acquire(&core, name, &mut session));
        names.iter().for_each(|name| release(&core, name, &mut session));
        let mut turn = 0;
        bencher.iter(|| {
            turn = (turn + STRIDE) % names.len();
            acquire(&core, &names[turn], &mut session);
            release(&core, &names[turn], &mut session);
        });
    });
    group.bench_function("a name with 1,000 holders", |bencher| {
        let core = core();
        let mut holders: Vec<_> = (0..1000).map(|_| core.open_session()).collect();
        holders.iter_mut().for_each(|holder| acquire(&core, b"fought over", holder));
        let mut session = core.open_session();
        bencher.iter(|| {
            acquire(&core, b"fought over", &mut session);
            release(&core, b"fought over", &mut session);
        });
    });
    group.finish();
}

fn new_names(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("registry/acquire of new names");
    group.throughput(Throughput::Elements(NAMES.into())).sample_size(20);
    group.bench_function(NAMES.to_string(), |bencher| {
        let names = names(NAMES);
        bencher.iter_batched_ref(
            || filled(0),
            |(core, session)| names.iter().for_each(|name| acquire(core, name, session)),
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

fn visits(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("registry/1,000,000 names");
    group.throughput(Throughput::Elements(NAMES_MANY.into())).sample_size(10);
    let (core, _session) = filled(NAMES_MANY);
    group.bench_function("dump", |bencher| {
        bencher.iter(|| {
            let mut dump = core.dump(SPACE);
            while dump.next(&core, NOW, |name, item| black_box((name.len(), item))).is_some() {}
        });
    });
    drop(core);
    group.bench_function("sweep that removes them", |bencher| {
        bencher.iter_batched_ref(
            || {
                let (core, session) = filled(NAMES_MANY);
                end(&core, session);
                core
            },
            |core| {
                let mut sweep = core.sweep(SPACE);
                while sweep.step(SWEEP_NAMES, NOW) {}
                assert_eq!(sweep.collected(), u64::from(NAMES_MANY));
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn sessions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("session");
    group.throughput(Throughput::Elements(1));
    group.bench_function("open, hold a name, end", |bencher| {
        let (core, holder) = filled(NAMES);
        end(&core, holder);
        let names = names(NAMES);
        let mut turn = 0;
        bencher.iter(|| {
            turn = (turn + STRIDE) % names.len();
            let mut session = core.open_session();
            acquire(&core, &names[turn], &mut session);
            end(&core, session);
        });
    });
    // Of few names, the session remembers where their handles are; of many, releases look in the map.
    for held in [16, 1024] {
        group.throughput(Throughput::Elements(2));
        group.bench_function(format!("acquire one, release the {held}th last"), |bencher| {
            let (core, mut session) = filled(0);
            let names = names(NAMES);
            let name = |turn: usize| &names[turn * STRIDE % names.len()];
            (0..held).for_each(|turn| acquire(&core, name(turn), &mut session));
            let mut turn = 0;
            bencher.iter(|| {
                acquire(&core, name(turn + held), &mut session);
                release(&core, name(turn), &mut session);
                turn += 1;
            });
        });
    }
    group.throughput(Throughput::Elements(NAMES_MANY.into())).sample_size(10);
    group.bench_function("end of one that holds 1,000,000 names", |bencher| {
        bencher.iter_batched(
            || filled(NAMES_MANY),
            |(core, session)| {
                end(&core, session);
                core
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(core_benches, pairs, new_names, visits, sessions);
criterion_main!(core_benches);

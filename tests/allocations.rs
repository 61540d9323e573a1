//! Hot paths allocate nothing for an existing name, with one holder or with many.

use std::num::NonZeroU32;

use bytes::BytesMut;
use signalbox_core::{Claim, Core, NameHasher};
use signalbox_model::{Namespace, UnixSeconds};
use signalbox_protocol::{Opaque, Request, RequestCodec};

const NOW: UnixSeconds = UnixSeconds(1_000_000_000);

fn core() -> Core {
    Core::new(NonZeroU32::new(60).unwrap(), NameHasher::with_seeds(1, 2, 3, 4))
}

#[test]
fn acquire_and_release_of_an_existing_name_allocate_nothing() {
    let core = core();
    let claim = Claim::new(1, 100).unwrap();
    for namespace in Namespace::ALL {
        let (mut one, mut other) = (core.open_session(), core.open_session());
        let mut round = || {
            for session in [&mut one, &mut other] {
                core.acquire(namespace, b"a name", claim, session, NOW).unwrap();
            }
            core.value(namespace, b"a name").unwrap();
            for session in [&mut one, &mut other] {
                core.release(namespace, b"a name", 1, session, NOW).unwrap();
            }
        };
        round();
        let allocated = allocation_counter::measure(|| (0..100).for_each(|_| round()));
        assert_eq!(allocated.count_total, 0, "{namespace:?}");
    }
}

#[test]
fn refusals_allocate_nothing() {
    let core = core();
    let mut session = core.open_session();
    let claim = Claim::new(1, 1).unwrap();
    core.acquire(Namespace::Counters, b"full", claim, &mut session, NOW).unwrap();
    let allocated = allocation_counter::measure(|| {
        core.acquire(Namespace::Counters, b"full", claim, &mut session, NOW).unwrap_err();
        core.release(Namespace::Counters, b"full", 2, &mut session, NOW).unwrap_err();
        core.release(Namespace::Counters, b"absent", 2, &mut session, NOW).unwrap_err();
        core.value(Namespace::Counters, b"absent").unwrap_err();
    });
    assert_eq!(allocated.count_total, 0);
}

#[test]
fn decoding_a_sequence_of_frames_allocates_nothing_once_the_buffer_exists() {
    let mut run = Vec::new();
    for _ in 0..16 {
        Request::Acquire { name: b"a name", resources: 1, maximum: 2 }.compose(Opaque([0; 4]), &mut run);
    }
    let mut buffer = BytesMut::with_capacity(16 * 1024);
    let mut codec = RequestCodec::default();
    let mut read = || {
        buffer.reserve(4 * 1024);
        buffer.extend_from_slice(&run);
        let mut frames = codec.decode(&mut buffer).unwrap().unwrap();
        let mut requests = 0;
        while let Some(frame) = frames.next() {
            frame.parse().unwrap();
            requests += 1;
        }
        requests
    };
    // The first split makes the buffer a shared one.
    read();
    let allocated = allocation_counter::measure(|| {
        for _ in 0..100 {
            assert_eq!(read(), 16);
        }
    });
    assert_eq!(allocated.count_total, 0);
}

/// A name with a second holder has memory for it beside its object.
#[test]
fn a_sweep_frees_the_memory_of_a_second_holder_that_has_left() {
    let core = core();
    let claim = Claim::new(1, 100).unwrap();
    let (mut one, mut other) = (core.open_session(), core.open_session());
    for name in [b"first", b"other"] {
        core.acquire(Namespace::Semaphores, name, claim, &mut one, NOW).unwrap();
    }
    let mut hold_and_sweep = |name| {
        core.acquire(Namespace::Semaphores, name, claim, &mut other, NOW).unwrap();
        core.release(Namespace::Semaphores, name, 1, &mut other, NOW).unwrap();
        let mut sweep = core.sweep(Namespace::Semaphores);
        while sweep.step(1, NOW) {}
    };
    // The session's table of names is created with the first.
    hold_and_sweep(b"first");
    let allocated = allocation_counter::measure(|| hold_and_sweep(b"other"));
    assert!(allocated.count_total > 0, "the second holder needs memory");
    assert_eq!(allocated.count_current, 0);
}

//! The instructions of a pair of Acquire and Release, in the core and in the codec alone, and of a pair of AcquireGrant and
//! ReleaseGrant of a leased session, without and with a history of grants. Unlike times, they are the same in every run.
//! Valgrind's callgrind (Debian's package `valgrind`) counts them for a short run and a long one; the difference leaves out
//! what is done only once.
//!
//! ```sh
//! cargo bench --bench instructions
//! ```

use std::process::Command;
use std::sync::Arc;
use std::task::Waker;

use bytes::BytesMut;
use signalbox::server::Clock;
use signalbox_core::{
    Answer, Call, Claim, Core, Kind, Mailbox, Moment, MonotonicMs, NameHasher, Outcome, Queueing, Token, Want,
};
use signalbox_model::{Namespace, RequestId, RequestIds, SessionKey, UnixSeconds};
use signalbox_protocol::{Opaque, Request, RequestCodec, Response};

const NAMES: u32 = 10_000;
const SHORT: u32 = 16_000;
const LONG: u32 = 176_000;

/// Requests that are read at once.
const RUN: u32 = 32;

/// Pairs whose history is taken at once.
const TAKEN: u32 = 1000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, "--count", what, pairs] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        let pairs = pairs.parse().expect("a number of pairs");
        return match what {
            "core" => core_pairs(pairs),
            "codec" => codec_pairs(pairs),
            "leased" => leased_pairs(pairs, false),
            _ => leased_pairs(pairs, true),
        };
    }
    println!("instructions of a pair, by valgrind's callgrind");
    for what in ["core", "codec", "leased", "recorded"] {
        let Some((short, long)) = instructions(what, SHORT).zip(instructions(what, LONG)) else {
            eprintln!("not counted: valgrind does not run here; install it (Debian's package valgrind)");
            return;
        };
        println!("{what:>8} {:>6}", (long - short) / u64::from(LONG - SHORT));
    }
}

/// The instructions of a whole run of this program.
fn instructions(what: &str, pairs: u32) -> Option<u64> {
    let program = std::env::current_exe().ok()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["--count", what, &pairs.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split("Collected :").nth(1))?;
    line.trim().parse().ok()
}

/// One connection's pairs on names that exist, each drawn as often as any other.
fn core_pairs(pairs: u32) {
    let core = Core::new(60.try_into().expect("not zero"), NameHasher::with_seeds(1, 2, 3, 4));
    let now = UnixSeconds(1);
    let claim = Claim::new(1, 1000).expect("one fits a thousand");
    let names: Vec<String> = (0..NAMES).map(|number| format!("name-{number:010}")).collect();
    let pair = |session: &mut _, name: &str| {
        let name = name.as_bytes();
        core.acquire(Namespace::Counters, name, claim, session, now).expect("no other session holds it");
        core.release(Namespace::Counters, name, 1, session, now).expect("just acquired");
    };
    let mut first = core.open_session();
    names.iter().for_each(|name| pair(&mut first, name));
    let mut session = core.open_session();
    for number in 0..pairs {
        pair(&mut session, &names[(number.wrapping_mul(2_654_435_761) % NAMES) as usize]);
    }
}

/// Pairs of one client with a lease. The history is taken as the server takes it, but not written.
fn leased_pairs(pairs: u32, is_recorded: bool) {
    let core = Core::new(60.try_into().expect("not zero"), NameHasher::with_seeds(1, 2, 3, 4));
    if is_recorded {
        let clock = Clock::system();
        core.keep_history(move || clock.now_ms(), Waker::noop().clone());
    }
    let now = Moment { monotonic: MonotonicMs(1), unix: UnixSeconds(1) };
    let connection = core.open_session().id();
    core.join(connection, None, &Arc::new(Mailbox::of(([192, 0, 2, 1], 4000).into(), None)));
    let (key, label) = (SessionKey([7; 16]), b"worker-1.example.org");
    let opened = core.open_leased(connection, key, 60_000, label, Token(1), now);
    assert!(matches!(opened, Outcome::Answered(_)), "{opened:?}");
    let names: Vec<String> = (0..NAMES).map(|number| format!("name-{number:010}")).collect();
    let claim = Claim::new(1, 1000).expect("one fits a thousand");
    let call = |request: u64| {
        let own = RequestId(request);
        Call { connection, ids: RequestIds { own, lowest_unanswered: own }, token: Token(1) }
    };
    let mut taken = Vec::new();
    for number in 0..pairs {
        let name = names[(number.wrapping_mul(2_654_435_761) % NAMES) as usize].as_bytes();
        let want = Want { kind: Kind::Of(Namespace::Counters), name, claim, slot: None, is_shared: false };
        let (request, queueing) = (1 + 2 * u64::from(number), Queueing { wait_ms: 0, queue_max: 0 });
        let Outcome::Answered(Answer::Granted(granted)) =
            core.acquire_grant(call(request), &[want], queueing, now)
        else {
            panic!("no other session holds it");
        };
        core.release_grant(call(request + 1), granted.grant, false, now);
        if number % TAKEN == 0 {
            core.take_history(&mut taken);
        }
    }
}

/// The same requests read in runs, and their answers written.
fn codec_pairs(pairs: u32) {
    let mut run = Vec::new();
    for number in 0..RUN / 2 {
        let name = format!("name-{number:010}");
        let name = name.as_bytes();
        Request::Acquire { name, resources: 1, maximum: 1000 }.compose(Opaque([0; 4]), &mut run);
        Request::Release { name, resources: 1 }.compose(Opaque([0; 4]), &mut run);
    }
    let (mut input, mut output) = (BytesMut::with_capacity(65_536), Vec::with_capacity(65_536));
    let mut codec = RequestCodec::default();
    for _ in 0..pairs / (RUN / 2) {
        input.reserve(16_384);
        input.extend_from_slice(&run);
        let mut frames = codec.decode(&mut input).expect("they are in order").expect("they are whole");
        assert!(codec.decode(&mut input).expect("nothing is left").is_none());
        while let Some(frame) = frames.next() {
            let response = match frame.parse().expect("they are in order") {
                Request::Acquire { resources, .. } => Response::Resources(resources),
                _ => Response::Done,
            };
            response.compose(frame.opcode(), frame.opaque(), &mut output);
        }
        output.clear();
    }
}

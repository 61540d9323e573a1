//! What the library adds to a round trip: `semop` through the library, and the same request written to and read from a
//! socket without anything else, in turns in one process. Prints the medians of the turns.
//!
//! `cargo bench -p signalbox-sysv` runs it. The target is 1.25 times for both latency and processor time.

#[path = "../tests/library/server.rs"]
mod server;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use libc::sembuf;
use signalbox::protocol::{
    Caller, Groups, Opaque, Operation, Operations, RequestId, RequestIds, SEM_UNDO, SysvRequest,
    WAIT_FOREVER_MS,
};

const TURNS: usize = 41;
const CALLS_PER_TURN: u64 = 2000;

/// Set in the process that measures.
const ADDRESS: &str = "ROUND_TRIP_ADDRESS";

fn main() {
    if let Ok(address) = std::env::var(ADDRESS) {
        return measure(&address);
    }
    let server = server::TestServer::start();
    let address = server.address.to_string();
    let library: PathBuf = std::env::current_exe().unwrap().with_file_name("libsignalbox_sysv.so");
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.env("LD_PRELOAD", library).env("SIGNALBOX_SYSV_SERVER", &address).env("SIGNALBOX_SYSV_KEYS", "all");
    assert!(child.env(ADDRESS, &address).status().unwrap().success());
}

/// Time on the clock and on the processor.
type Cost = (Duration, Duration);

fn measure(address: &str) {
    // SAFETY: semget has no arguments in memory.
    let set = unsafe { libc::semget(1, 1, libc::IPC_CREAT | 0o600) };
    assert!(set >= 0x4000_0000, "the set is the server's: {set}");
    let mut bare = Bare::connect(address, set);
    let (mut through_library, mut without) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        through_library.push(cost(|call| operate(set, change(call))));
        without.push(cost(|call| bare.operate(change(call))));
    }
    let ((wall, cpu), (bare_wall, bare_cpu)) = (median(through_library), median(without));
    let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
    println!("library: {wall:?}, of which the processor {cpu:?}; bare: {bare_wall:?}, {bare_cpu:?}");
    println!("latency {:.2} times, processor {:.2} times", ratio(wall, bare_wall), ratio(cpu, bare_cpu));
}

/// Posts and takes in turns.
fn change(call: u64) -> i16 {
    if call % 2 == 0 { 1 } else { -1 }
}

fn operate(set: i32, change: i16) {
    let mut operation = sembuf { sem_num: 0, sem_op: change, sem_flg: SEM_UNDO.cast_signed() };
    // SAFETY: the list has one operation.
    assert_eq!(unsafe { libc::semop(set, &raw mut operation, 1) }, 0);
}

fn cost(mut call: impl FnMut(u64)) -> Cost {
    let (start, cpu) = (Instant::now(), processor_time());
    (0..CALLS_PER_TURN).for_each(&mut call);
    let calls = u32::try_from(CALLS_PER_TURN).unwrap();
    (start.elapsed() / calls, (processor_time() - cpu) / calls)
}

/// Of this thread, which is the only one.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

fn median(mut costs: Vec<Cost>) -> Cost {
    costs.sort_unstable();
    let wall = costs[costs.len() / 2].0;
    costs.sort_unstable_by_key(|(_, cpu)| *cpu);
    (wall, costs[costs.len() / 2].1)
}

/// A blocking socket, and nothing that is not needed to make the same calls.
struct Bare {
    stream: TcpStream,
    post: BytesMut,
    take: BytesMut,
    request: u64,
}

impl Bare {
    fn connect(address: &str, set: i32) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let caller = Caller { uid: 0, gid: 0 };
        let open =
            SysvRequest::OpenProcess { ttl: None, pid: 1, caller, groups: Groups::default(), label: b"" };
        let mut out = BytesMut::new();
        open.compose(Opaque([0; 4]), &mut out);
        stream.write_all(&out).unwrap();
        assert_eq!(stream.read(&mut [0; 256]).unwrap(), 12 + 28);
        let request = |change| {
            let (mut out, mut rows) = (BytesMut::new(), BytesMut::new());
            let ids = RequestIds { own: RequestId(1), lowest_unanswered: RequestId(1) };
            let operations = [Operation { number: 0, change, flags: SEM_UNDO }];
            let operations = Operations::encode(&operations, &mut rows).unwrap();
            let call = SysvRequest::SemOp { ids, caller, set, wait_ms: WAIT_FOREVER_MS, operations };
            call.compose(Opaque([0; 4]), &mut out);
            out
        };
        Self { stream, post: request(1), take: request(-1), request: 0 }
    }

    fn operate(&mut self, change: i16) {
        self.request += 1;
        let bytes = if change == 1 { &mut self.post } else { &mut self.take };
        for place in [12, 20] {
            bytes[place..place + 8].copy_from_slice(&self.request.to_be_bytes());
        }
        self.stream.write_all(bytes).unwrap();
        let mut response = [0; 64];
        assert_eq!(self.stream.read(&mut response).unwrap(), 16);
        assert_eq!(response[12..16], [0; 4]);
    }
}

//! Connections that hold many names, and Dumps of them.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;

use signalbox_protocol::{Opaque, Request};

use super::answers::{Answers, ask};

/// Requests that are sent before their answers are read.
const BATCH: u32 = 1000;

/// A connection that holds the names of 16 bytes with these numbers, one resource of each.
pub fn hold(address: SocketAddr, names: Range<u32>) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    let mut answers = Answers::of(stream.try_clone().expect("a socket has two ends"));
    let mut out = Vec::new();
    for first in names.clone().step_by(BATCH as usize) {
        let batch = first..names.end.min(first.saturating_add(BATCH));
        out.clear();
        for index in batch.clone() {
            let name = format!("held-{index:011}");
            let request = Request::Acquire { name: name.as_bytes(), resources: 1, maximum: 1 };
            request.compose(Opaque([0; 4]), &mut out);
        }
        stream.write_all(&out).expect("the server reads");
        batch.for_each(|_| {
            answers.skip();
        });
    }
    stream
}

/// Reads one Dump to its end, which is an empty body, or until it is no longer needed. Returns the number of names.
pub fn dump(address: SocketAddr, is_over: impl Fn() -> bool) -> u32 {
    let mut answers = ask(address, &Request::Dump);
    let mut names = 0;
    while answers.skip() > 0 && !is_over() {
        names += 1;
    }
    names
}

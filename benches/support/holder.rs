//! Connections that hold many names, and what lists them.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;

use bytes::BytesMut;
use signalbox::protocol::{Opaque, Request};

/// Requests that are sent before their answers are read.
const BATCH: u32 = 1000;

/// A connection that holds the names of 16 bytes with these numbers, one resource of each.
pub fn hold(address: SocketAddr, names: Range<u32>) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    let mut answers = Answers::of(stream.try_clone().expect("a socket has two ends"));
    let mut out = BytesMut::new();
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

/// Reads one Dump to its end, which is an empty body, or until it is not wanted any more. Gives the number of names.
pub fn dump(address: SocketAddr, is_over: impl Fn() -> bool) -> u32 {
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    let mut request = BytesMut::new();
    Request::Dump.compose(Opaque([0; 4]), &mut request);
    stream.write_all(&request).expect("the server reads");
    let mut answers = Answers::of(stream);
    let mut names = 0;
    while answers.skip() > 0 && !is_over() {
        names += 1;
    }
    names
}

/// Answers whose content does not matter.
pub struct Answers {
    stream: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Answers {
    pub fn of(stream: TcpStream) -> Self {
        Self { stream: BufReader::with_capacity(1 << 18, stream), body: Vec::new() }
    }

    /// Reads one and tells how long its body is.
    pub fn skip(&mut self) -> usize {
        let mut header = [0; 12];
        self.stream.read_exact(&mut header).expect("the server answers");
        let [.., b0, b1, b2, b3, _, _, _, _] = header;
        self.body.resize(u32::from_be_bytes([b0, b1, b2, b3]) as usize, 0);
        self.stream.read_exact(&mut self.body).expect("the server answers");
        self.body.len()
    }
}

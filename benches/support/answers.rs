//! Answers of a server, read one by one.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use bytes::Bytes;
use signalbox_protocol::{Opaque, Request, ResponseFrame};

/// The value of an item of Stats.
pub fn statistic(address: SocketAddr, name: &str) -> u64 {
    let statistics = ask(address, &Request::Stats).read().statistics().expect("an answer to Stats");
    let item = statistics.iter().find(|item| item.name == name).expect("the server counts it");
    item.value.parse().expect("a number")
}

/// Sends one request on a separate connection. Returns the answer.
pub fn ask(address: SocketAddr, request: &Request<'_>) -> Answers {
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    let mut bytes = Vec::new();
    request.compose(Opaque([0; 4]), &mut bytes);
    stream.write_all(&bytes).expect("the server reads");
    Answers::of(stream)
}

/// The answers that arrive on a connection.
pub struct Answers {
    stream: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Answers {
    pub fn of(stream: TcpStream) -> Self {
        Self { stream: BufReader::with_capacity(1 << 18, stream), body: Vec::new() }
    }

    /// Reads an answer whose content does not matter, and returns the length of its body.
    pub fn skip(&mut self) -> usize {
        self.read_header();
        self.body.len()
    }

    /// Reads answers up to that to the request with this opaque.
    pub fn skip_to(&mut self, opaque: Opaque) {
        while self.read_header()[8..] != opaque.0 {}
    }

    fn read(&mut self) -> ResponseFrame {
        let [_, opcode, status, _, _, _, _, _, opaque @ ..] = self.read_header();
        let body = Bytes::copy_from_slice(&self.body);
        ResponseFrame { opcode, status, opaque: Opaque(opaque), body }
    }

    /// Reads one answer, and returns its header.
    fn read_header(&mut self) -> [u8; 12] {
        let mut header = [0; 12];
        self.stream.read_exact(&mut header).expect("the server answers");
        let [.., b0, b1, b2, b3, _, _, _, _] = header;
        self.body.resize(u32::from_be_bytes([b0, b1, b2, b3]) as usize, 0);
        self.stream.read_exact(&mut self.body).expect("the server answers");
        header
    }
}

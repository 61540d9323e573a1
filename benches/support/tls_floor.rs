//! The floor over TLS: the least work that a server of this protocol can do with rustls. It polls, reads once, decrypts,
//! answers every frame with a constant, encrypts and writes once, on one thread.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::exit;
use std::sync::Arc;
use std::thread;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use super::floor::answer_frames;

/// The argument that makes a benchmark's own binary this server.
pub const ARGUMENT: &str = "--be-the-tls-floor";

const LISTENER: Token = Token(usize::MAX);

/// The number of bytes that rustls reads at once.
const READ_BYTES: usize = 4096;

/// Runs the floor if the arguments are `--be-the-tls-floor CERTIFICATE KEY`. It prints its port on standard output and
/// ends when its standard input ends.
pub fn become_if_asked() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [argument, certificate, key] = &arguments[..]
        && argument == ARGUMENT
    {
        serve(Path::new(certificate), Path::new(key))
            .unwrap_or_else(|error| panic!("the TLS floor: {error}"));
    }
}

fn serve(certificate: &Path, key: &Path) -> io::Result<()> {
    let config = Arc::new(config(certificate, key));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        exit(0);
    });
    listener.set_nonblocking(true)?;
    let mut listener = mio::net::TcpListener::from_std(listener);
    let mut poll = Poll::new()?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(1024);
    let mut connections: Vec<Option<Connection>> = Vec::new();
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for event in &events {
            if event.token() != LISTENER {
                let connection = &mut connections[event.token().0];
                if connection.as_mut().is_some_and(|connection| connection.answer().is_err()) {
                    *connection = None;
                }
                continue;
            }
            while let Ok((mut stream, _)) = listener.accept() {
                stream.set_nodelay(true)?;
                poll.registry().register(&mut stream, Token(connections.len()), Interest::READABLE)?;
                let tls = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
                let connection = Connection { stream, tls, received: Vec::new(), answers: Vec::new() };
                connections.push(Some(connection));
            }
        }
    }
}

/// The same as signalbox's: TLS 1.3 without resumption.
fn config(certificate: &Path, key: &Path) -> ServerConfig {
    let chain = vec![CertificateDer::from_pem_file(certificate).expect("it was made for this")];
    let key = PrivateKeyDer::from_pem_file(key).expect("it was made for this");
    let mut config = ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring has its cipher suites")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("they belong together");
    config.send_tls13_tickets = 0;
    config
}

struct Connection {
    stream: TcpStream,
    tls: ServerConnection,
    received: Vec<u8>,
    answers: Vec<u8>,
}

impl Connection {
    fn answer(&mut self) -> io::Result<()> {
        loop {
            let read = match self.tls.read_tls(&mut self.stream) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let plain = self.tls.process_new_packets().map_err(io::Error::other)?.plaintext_bytes_to_read();
            let start = self.received.len();
            self.received.resize(start + plain, 0);
            self.tls.reader().read_exact(&mut self.received[start..])?;
            self.answers.clear();
            let answered = answer_frames(&self.received, &mut self.answers);
            self.received.drain(..answered);
            self.tls.writer().write_all(&self.answers)?;
            // Clients of the benchmarks read their answers, so these fit into the socket's buffer.
            while self.tls.wants_write() {
                self.tls.write_tls(&mut self.stream)?;
            }
            // A read that was not full has emptied the socket.
            if read < READ_BYTES {
                return Ok(());
            }
        }
    }
}

//! The socket of a connection, with or without TLS.

use std::io::{self, Read, Write};
use std::time::Duration;

use bytes::BytesMut;
use mio::net::TcpStream;
use rustls::{ClientConnection, Stream, StreamOwned};

use super::dialect::Dialect;
use super::error::LoadError;
use signalbox_client::{Address, Disconnect, Tls};

/// More than the answer to the first request.
const ANSWER_BYTES: usize = 1024;

/// Why a socket could not be opened.
#[derive(Debug)]
pub(super) enum OpenError {
    /// The operating system refused, the server closed the connection, or it did not answer.
    Io(io::Error),
    /// What the server answered cannot be used.
    Load(LoadError),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<LoadError> for OpenError {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

/// Sends the first request, and waits for its answer.
fn introduce(
    stream: &mut (impl Read + Write),
    hello: &[u8],
    dialect: &impl Dialect,
) -> Result<(), OpenError> {
    stream.write_all(hello)?;
    stream.flush()?;
    let mut received = BytesMut::new();
    loop {
        if let Some(answer) = dialect.parse(&mut received)? {
            return if answer.is_welcome() { Ok(()) } else { Err(LoadError::TokenRefused.into()) };
        }
        let mut some = [0; ANSWER_BYTES];
        match stream.read(&mut some)? {
            0 => return Err(LoadError::from(Disconnect::ClosedByServer).into()),
            read => received.extend_from_slice(&some[..read]),
        }
    }
}

/// A socket that does not block.
#[derive(Debug)]
pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    /// Opens the socket of a connection, after its handshake if it uses TLS, and after the first request of the dialect if
    /// there is one. Waits for the answer for as long as `timeout`.
    pub(super) fn open(
        mut stream: std::net::TcpStream,
        tls: Option<&(Tls, Address)>,
        dialect: &impl Dialect,
        timeout: Duration,
    ) -> Result<Self, OpenError> {
        let mut tls = match tls {
            Some((tls, address)) => {
                let mut connection = tls.connection(address)?;
                while connection.is_handshaking() {
                    connection.complete_io(&mut stream)?;
                }
                Some(connection)
            }
            None => None,
        };
        let mut hello = Vec::new();
        dialect.introduce(&mut hello);
        if !hello.is_empty() {
            stream.set_read_timeout(Some(timeout))?;
            let introduced = match &mut tls {
                Some(connection) => introduce(&mut Stream::new(connection, &mut stream), &hello, dialect),
                None => introduce(&mut stream, &hello, dialect),
            };
            introduced.map_err(|error| match error {
                OpenError::Io(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    LoadError::Silent { connections: 1, waited: timeout }.into()
                }
                other => other,
            })?;
        }
        stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(stream);
        Ok(match tls {
            Some(connection) => Self::Tls(Box::new(StreamOwned::new(connection, stream))),
            None => Self::Plain(stream),
        })
    }

    pub(super) fn stream(&mut self) -> &mut TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &mut stream.sock,
        }
    }

    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Whether records wait that the socket has not taken.
    pub(super) fn has_unsent(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.conn.wants_write(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

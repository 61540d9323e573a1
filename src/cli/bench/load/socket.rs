//! The socket of a connection, with or without TLS.

use std::io::{self, Read, Write};

use mio::net::TcpStream;
use rustls::{ClientConnection, StreamOwned};

use crate::client::{Address, Tls};

/// A socket that does not block.
#[derive(Debug)]
pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    /// Opens the socket of a connection, after its handshake if it uses TLS.
    pub(super) fn open(mut stream: std::net::TcpStream, tls: Option<&(Tls, Address)>) -> io::Result<Self> {
        let tls = match tls {
            Some((tls, address)) => {
                let mut connection = tls.connection(address)?;
                while connection.is_handshaking() {
                    connection.complete_io(&mut stream)?;
                }
                Some(connection)
            }
            None => None,
        };
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

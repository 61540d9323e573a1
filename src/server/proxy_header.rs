//! Reads the header by which a proxy states the client's address, at the start of a connection.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt};

use signalbox_protocol::{ProxyHeader, ProxyHeaderError};

/// The initial buffer, in bytes: enough for a header without additional fields. More is allocated as bytes arrive.
const BYTES_USUAL: usize = 64;

/// The reason why no header was read.
#[derive(Debug, Error)]
pub(super) enum HeaderError {
    #[error("the peer closed the connection before its PROXY protocol header was complete")]
    Closed,
    #[error(transparent)]
    Io(io::Error),
    #[error(transparent)]
    Bad(ProxyHeaderError),
    #[error(
        "no PROXY protocol header was completed in time, which the key \"proxies\" requires of this address; make the \
         proxy send version 2 of it (HAProxy: send-proxy-v2), or remove the address from \"proxies\""
    )]
    Timeout,
}

/// Reads the header, and nothing after it, within this time. Returns the address that it states, if any.
/// `note_received` receives the length of each piece in bytes.
pub(super) async fn read_header<S: AsyncRead + Unpin>(
    stream: &mut S,
    within: Duration,
    note_received: impl Fn(usize),
) -> Result<Option<SocketAddr>, HeaderError> {
    let untimed = async {
        let mut received = BytesMut::with_capacity(BYTES_USUAL);
        loop {
            match ProxyHeader::parse(&received).map_err(HeaderError::Bad)? {
                ProxyHeader::Complete { client, .. } => return Ok(client),
                ProxyHeader::Incomplete { bytes_least } => {
                    let missing = bytes_least - received.len();
                    let read = (&mut *stream).take(missing as u64).read_buf(&mut received).await;
                    match read.map_err(HeaderError::Io)? {
                        0 => return Err(HeaderError::Closed),
                        read => note_received(read),
                    }
                }
            }
        }
    };
    tokio::time::timeout(within, untimed).await.unwrap_or(Err(HeaderError::Timeout))
}

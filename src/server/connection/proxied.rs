//! The start of a connection that comes from a proxy: the header that states the client's address.

use std::net::SocketAddr;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::super::metrics::Traffic;
use super::super::state::Server;
use super::end::End;
use signalbox_protocol::ProxyHeader;

/// Room for a header without additional fields. More is allocated as bytes arrive.
const HEADER_BYTES_USUAL: usize = 64;

/// Reads the header, and nothing behind it. Returns the address that it states, if any. It has to be complete within the
/// time of a frame.
pub(super) async fn read_header<S: AsyncRead + Unpin>(
    stream: &mut S,
    server: &Server,
    traffic: &Traffic,
) -> Result<Option<SocketAddr>, End> {
    let header = read_untimed(stream, traffic);
    let in_time = tokio::time::timeout(server.frame_timeout(), header).await;
    in_time.unwrap_or(Err(End::HeaderTimeout))
}

async fn read_untimed<S: AsyncRead + Unpin>(
    stream: &mut S,
    traffic: &Traffic,
) -> Result<Option<SocketAddr>, End> {
    let mut received = BytesMut::with_capacity(HEADER_BYTES_USUAL);
    loop {
        match ProxyHeader::parse(&received).map_err(End::BadHeader)? {
            ProxyHeader::Complete { client, .. } => return Ok(client),
            ProxyHeader::Incomplete { bytes_least } => {
                let missing = bytes_least - received.len();
                let read = (&mut *stream).take(missing as u64).read_buf(&mut received).await;
                match read.map_err(End::Io)? {
                    0 => return Err(End::Peer),
                    read => traffic.note_received(read),
                }
            }
        }
    }
}

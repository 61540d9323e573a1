//! The first bytes of a connection where TLS is required: the start of a handshake or of a request that is refused.

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::super::metrics::Traffic;
use super::super::state::Server;
use super::parts::End;
use signalbox_model::Status;
use signalbox_protocol::{HEADER_BYTES, Opaque, Response, TLS_HANDSHAKE};

/// The initial buffer, in bytes: enough for most first TLS messages. More is allocated as bytes arrive.
const FIRST_BYTES_USUAL: usize = 1024;

/// How a connection begins.
pub(super) enum Opening {
    /// With a TLS handshake; these are its first bytes.
    Tls(BytesMut),
    /// With a plain request; this is its answer.
    Plain(Vec<u8>),
}

/// Reads the first byte, or a whole header if it begins a plain request, within the frame timeout.
pub(super) async fn read_opening<S: AsyncRead + Unpin>(
    stream: &mut S,
    server: &Server,
    traffic: &Traffic,
) -> Result<Opening, End> {
    let untimed = async {
        let mut received = BytesMut::with_capacity(FIRST_BYTES_USUAL);
        loop {
            match stream.read_buf(&mut received).await.map_err(End::Io)? {
                0 => return Err(End::Peer),
                read => traffic.note_received(read),
            }
            if received[0] == TLS_HANDSHAKE {
                return Ok(Opening::Tls(received));
            }
            if let Some(header) = received.first_chunk() {
                return Ok(Opening::Plain(refusal(header)));
            }
        }
    };
    tokio::time::timeout(server.frame_timeout(), untimed).await.unwrap_or(Err(End::FrameTimeout))
}

/// Composes the refusal of a request with this header.
fn refusal(header: &[u8; HEADER_BYTES]) -> Vec<u8> {
    let mut answer = Vec::new();
    let opaque = Opaque([header[8], header[9], header[10], header[11]]);
    Response::Failed(Status::TlsRequired).compose(header[1], opaque, &mut answer);
    answer
}

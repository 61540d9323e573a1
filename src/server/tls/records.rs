//! Drives rustls: bytes of records in, requests and bytes of records out. No I/O.
//!
//! The connection of rustls has no buffers of its own here (`rustls::unbuffered`), so an idle connection has none: records
//! are read into a buffer of the thread and decrypted there.

use rustls::Error;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};

/// Where a connection stands when all complete records are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The handshake needs more of the client's records.
    Handshake,
    /// Requests and answers may be sent.
    Established,
    /// The client has sent close_notify, and sends nothing more.
    Closed,
}

/// Processes the complete records at the start of `received`. Hands on what the client sent in them, and appends records
/// that have to be sent to `out`, also if it fails: then an alert. Returns how many bytes were processed.
pub(super) fn process(
    connection: &mut UnbufferedServerConnection,
    received: &mut [u8],
    out: &mut Vec<u8>,
    mut deliver: impl FnMut(&[u8]),
) -> (usize, Result<Progress, Error>) {
    let mut processed = 0;
    loop {
        let UnbufferedStatus { discard, state, .. } =
            connection.process_tls_records(&mut received[processed..]);
        let progress = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                let mut further = 0;
                while let Some(Ok(record)) = traffic.next_record() {
                    deliver(record.payload);
                    further += record.discard;
                }
                processed += further;
                None
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                encode(&mut data, out);
                None
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // The caller sends `out` before it reads again.
                data.done();
                None
            }
            Ok(ConnectionState::BlockedHandshake) => Some(Ok(Progress::Handshake)),
            Ok(ConnectionState::WriteTraffic(_)) => Some(Ok(Progress::Established)),
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Some(Ok(Progress::Closed)),
            Ok(other) => unreachable!("the server accepts no early data: {other:?}"),
            Err(error) => {
                // The alert that tells the client.
                let rest = &mut received[processed + discard..];
                if let Ok(ConnectionState::EncodeTlsData(mut data)) =
                    connection.process_tls_records(rest).state
                {
                    encode(&mut data, out);
                }
                Some(Err(error))
            }
        };
        processed += discard;
        if let Some(progress) = progress {
            return (processed, progress);
        }
    }
}

fn encode<Data>(data: &mut EncodeTlsData<'_, Data>, out: &mut Vec<u8>) {
    let start = out.len();
    let mut room = 0;
    loop {
        out.resize(start + room, 0);
        match data.encode(&mut out[start..]) {
            Ok(written) => return out.truncate(start + written),
            Err(EncodeError::InsufficientSize(error)) => room = error.required_size,
            Err(EncodeError::AlreadyEncoded) => unreachable!("each is encoded once"),
        }
    }
}

/// Encrypts bytes for the client, behind records that have to be sent first. Writes to the start of `out`, which grows if
/// it is too small. Returns the length. `received` are the bytes that [`process`] has left, which rustls refers to.
pub(super) fn encrypt(
    connection: &mut UnbufferedServerConnection,
    received: &mut [u8],
    plain: &[u8],
    out: &mut Vec<u8>,
) -> Result<usize, Error> {
    write(connection, received, out, |traffic, out| traffic.encrypt(plain, out))
}

/// Encrypts close_notify, as [`encrypt`].
pub(super) fn close_notify(
    connection: &mut UnbufferedServerConnection,
    received: &mut [u8],
    out: &mut Vec<u8>,
) -> Result<usize, Error> {
    write(connection, received, out, |traffic, out| traffic.queue_close_notify(out))
}

fn write(
    connection: &mut UnbufferedServerConnection,
    received: &mut [u8],
    out: &mut Vec<u8>,
    mut encrypt: impl FnMut(&mut WriteTraffic<'_, ServerConnectionData>, &mut [u8]) -> Result<usize, EncryptError>,
) -> Result<usize, Error> {
    let mut ahead = Vec::new();
    loop {
        match connection.process_tls_records(received).state? {
            ConnectionState::EncodeTlsData(mut data) => encode(&mut data, &mut ahead),
            ConnectionState::TransmitTlsData(data) => data.done(),
            ConnectionState::PeerClosed => {}
            ConnectionState::WriteTraffic(mut traffic) => {
                let start = ahead.len();
                loop {
                    if out.len() < start {
                        out.resize(start, 0);
                    }
                    match encrypt(&mut traffic, &mut out[start..]) {
                        Ok(written) => {
                            out[..start].copy_from_slice(&ahead);
                            return Ok(start + written);
                        }
                        Err(EncryptError::InsufficientSize(error)) => {
                            out.resize(start + error.required_size, 0);
                        }
                        Err(EncryptError::EncryptExhausted) => return Err(Error::EncryptError),
                    }
                }
            }
            _ => return Err(Error::HandshakeNotComplete),
        }
    }
}

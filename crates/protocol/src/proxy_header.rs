//! The header of the PROXY protocol, version 2. A proxy sends it before the first frame, to state the address of the
//! client whose connection it forwards.
//!
//! Parsing is a pure function of the bytes received so far. It never asks for bytes after the header, so that a reader
//! does not take the first frame from the socket. Additional fields (TLVs) are skipped.

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

/// The longest header in bytes, with its additional fields. It fits into one packet on every path, as the PROXY
/// protocol recommends to senders. A header that announces more ends the connection.
pub const PROXY_HEADER_BYTES_MAX: usize = FIXED_BYTES + LENGTH_MAX;

/// The first bytes of every header of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// A header of version 2 without an address (the command LOCAL), as proxies send it for their own checks.
pub const PROXY_HEADER_LOCAL: [u8; FIXED_BYTES] = *b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// The first bytes of every header of version 1, which is a line of text.
const SIGNATURE_V1: &[u8] = b"PROXY ";

/// The length in bytes of the fixed part: the signature, the version and command, the family, and the length of the
/// rest.
const FIXED_BYTES: usize = SIGNATURE.len() + 4;

/// The longest length after the fixed part, in bytes.
const LENGTH_MAX: usize = 520;

/// A header at the start of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// More bytes are needed.
    Incomplete {
        /// The minimum length of the header in bytes, from the start of the connection. It is more than was received.
        bytes_least: usize,
    },
    /// A complete header.
    Complete {
        /// The length of the header in bytes. Frames follow it.
        bytes: usize,
        /// The address of the client; `None` if the proxy itself is the client, as for a health check, or does not know
        /// the address.
        client: Option<SocketAddr>,
    },
}

/// The start of a connection is not a header that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProxyHeaderError {
    /// The connection begins with something else.
    #[error(
        "the connection does not begin with a PROXY protocol header, which the key \"proxies\" requires of this \
         address; make the proxy send version 2 of it (HAProxy: send-proxy-v2), or remove the address from \"proxies\""
    )]
    Missing,
    /// The connection begins with a header of version 1.
    #[error(
        "the proxy sends version 1 of the PROXY protocol; make it send version 2 (HAProxy: send-proxy-v2 instead of \
         send-proxy)"
    )]
    Version1,
    /// The version or the command is unknown.
    #[error(
        "the PROXY protocol header has the version and command {0:#04x}; make the proxy send version 2 with the command \
         PROXY or LOCAL"
    )]
    UnknownCommand(u8),
    /// The addresses are not those of a connection.
    #[error(
        "the PROXY protocol header has the address family and transport {0:#04x}; make the proxy forward TCP over IPv4 \
         or IPv6"
    )]
    UnknownFamily(u8),
    /// The header ends before the addresses that it must have.
    #[error("the PROXY protocol header announces {announced} bytes, but its addresses take {needed}")]
    TooShort {
        /// The announced length in bytes, without the fixed part.
        announced: usize,
        /// The length of the addresses in bytes.
        needed: usize,
    },
    /// The header is longer than the limit.
    #[error(
        "the PROXY protocol header announces {announced} bytes; the longest allowed is {LENGTH_MAX}; make the proxy send \
         fewer additional fields (TLVs)"
    )]
    TooLong {
        /// The announced length in bytes, without the fixed part.
        announced: usize,
    },
}

impl ProxyHeader {
    /// Parses the header at the start of a connection. `received` has all bytes received so far; an error is returned
    /// as soon as they show it.
    pub fn parse(received: &[u8]) -> Result<Self, ProxyHeaderError> {
        let compared = received.len().min(SIGNATURE.len());
        if received[..compared] != SIGNATURE[..compared] {
            return match begins_with_version_1(received) {
                Some(true) => Err(ProxyHeaderError::Version1),
                Some(false) => Err(ProxyHeaderError::Missing),
                None => Ok(Self::Incomplete { bytes_least: FIXED_BYTES }),
            };
        }
        let Some(fixed) = received.first_chunk::<FIXED_BYTES>() else {
            return Ok(Self::Incomplete { bytes_least: FIXED_BYTES });
        };
        let &[.., command, family, length_high, length_low] = fixed;
        let length = usize::from(u16::from_be_bytes([length_high, length_low]));
        let ip_bytes = ip_bytes(command, family)?;
        // Both addresses, and both ports.
        let needed = if ip_bytes == 0 { 0 } else { 2 * ip_bytes + 4 };
        if length > LENGTH_MAX {
            return Err(ProxyHeaderError::TooLong { announced: length });
        }
        if length < needed {
            return Err(ProxyHeaderError::TooShort { announced: length, needed });
        }
        let bytes = FIXED_BYTES + length;
        let Some(addresses) = received.get(FIXED_BYTES..bytes) else {
            return Ok(Self::Incomplete { bytes_least: bytes });
        };
        Ok(Self::Complete { bytes, client: client(addresses, ip_bytes) })
    }

    /// Returns whether a connection begins with a header of any version. `received` must have at least as many bytes as
    /// the header of a frame, because fewer bytes may not suffice to recognise the header.
    pub(super) fn is_at_the_start_of(received: &[u8]) -> bool {
        received.starts_with(&SIGNATURE) || begins_with_version_1(received) == Some(true)
    }
}

/// Returns whether a connection begins with a header of version 1; `None` if more bytes are needed.
fn begins_with_version_1(received: &[u8]) -> Option<bool> {
    let compared = received.len().min(SIGNATURE_V1.len());
    if received[..compared] != SIGNATURE_V1[..compared] {
        return Some(false);
    }
    (compared == SIGNATURE_V1.len()).then_some(true)
}

/// Returns the length of an IP address in the header, in bytes; 0 if it states no address that can be used.
fn ip_bytes(command: u8, family: u8) -> Result<usize, ProxyHeaderError> {
    match (command, family) {
        // LOCAL: the proxy's own connection. A receiver must ignore the family.
        (0x20, _) => Ok(0),
        // PROXY with an unspecified family, or a client on a Unix socket of the proxy's machine.
        (0x21, 0x00 | 0x31) => Ok(0),
        (0x21, 0x11) => Ok(4),
        (0x21, 0x21) => Ok(16),
        (0x21, other) => Err(ProxyHeaderError::UnknownFamily(other)),
        (other, _) => Err(ProxyHeaderError::UnknownCommand(other)),
    }
}

/// Returns the client's address: the first of the two IP addresses, and the first of the two ports after them; `None`
/// if there is no address.
fn client(addresses: &[u8], ip_bytes: usize) -> Option<SocketAddr> {
    let ip = match ip_bytes {
        4 => IpAddr::from(*addresses.first_chunk::<4>()?),
        16 => IpAddr::from(*addresses.first_chunk::<16>()?),
        _ => return None,
    };
    let port = addresses.get(2 * ip_bytes..)?.first_chunk()?;
    Some(SocketAddr::new(ip, u16::from_be_bytes(*port)))
}

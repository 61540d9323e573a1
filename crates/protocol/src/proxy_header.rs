//! The header of the PROXY protocol, version 2: by it, a proxy states the address of the client whose connection it
//! forwards, before the first frame.
//!
//! Parsing is a pure function of the bytes received so far. It never asks for bytes after the header, so that a reader
//! leaves the first frame where it is. Additional fields (TLVs) are skipped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

/// The longest header in bytes, with its additional fields: what fits into one packet on every path, as the PROXY
/// protocol recommends to senders. A header that announces more ends the connection.
pub const PROXY_HEADER_BYTES_MAX: usize = FIXED_BYTES + LENGTH_MAX;

/// The first bytes of every header of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// A header of version 2 without an address (the command LOCAL), as proxies send it for their own checks.
pub const PROXY_HEADER_LOCAL: [u8; FIXED_BYTES] = *b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// The first bytes of every header of version 1, which is a line of text.
const SIGNATURE_V1: &[u8] = b"PROXY ";

/// The signature, version and command, family, and length.
const FIXED_BYTES: usize = SIGNATURE.len() + 4;

/// The longest length after the fixed part, in bytes.
const LENGTH_MAX: usize = 520;

/// The start of a connection, as far as a header is expected there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// More bytes are needed: a header of version 2 has at least this many in all, more than were given.
    Incomplete {
        /// Bytes from the start of the connection.
        bytes_least: usize,
    },
    /// A complete header.
    Complete {
        /// The length of the header in bytes. Frames follow it.
        bytes: usize,
        /// The address of the client. `None`: the proxy itself is the client, as for a health check, or does not know the
        /// address.
        client: Option<SocketAddr>,
    },
}

/// Why the start of a connection is not a header that can be used.
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
    /// Parses the header at the start of a connection, of which `received` has been read. An error is found as soon as the
    /// bytes received so far show it.
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
        let format = AddressFormat::of(command, family)?;
        if length > LENGTH_MAX {
            return Err(ProxyHeaderError::TooLong { announced: length });
        }
        if length < format.bytes() {
            return Err(ProxyHeaderError::TooShort { announced: length, needed: format.bytes() });
        }
        let bytes = FIXED_BYTES + length;
        let Some(addresses) = received.get(FIXED_BYTES..bytes) else {
            return Ok(Self::Incomplete { bytes_least: bytes });
        };
        Ok(Self::Complete { bytes, client: format.client(addresses) })
    }

    /// Whether a connection begins with a header of some version. `received` has at least as many bytes as the header of a
    /// frame; fewer may not tell.
    pub(super) fn is_at_the_start_of(received: &[u8]) -> bool {
        received.starts_with(&SIGNATURE) || begins_with_version_1(received) == Some(true)
    }
}

/// `None`: more bytes will tell.
fn begins_with_version_1(received: &[u8]) -> Option<bool> {
    let compared = received.len().min(SIGNATURE_V1.len());
    if received[..compared] != SIGNATURE_V1[..compared] {
        return Some(false);
    }
    (compared == SIGNATURE_V1.len()).then_some(true)
}

/// How a header states the addresses of the connection to the proxy.
#[derive(Clone, Copy)]
enum AddressFormat {
    /// It states none that can be used.
    None,
    /// 4 bytes for each address, and 2 for each port; the client's come first.
    Ipv4,
    /// 16 bytes for each address, and 2 for each port.
    Ipv6,
}

impl AddressFormat {
    fn of(command: u8, family: u8) -> Result<Self, ProxyHeaderError> {
        match (command, family) {
            // LOCAL: the proxy's own connection. A receiver must ignore the family.
            (0x20, _) => Ok(Self::None),
            // PROXY with an unspecified family, or a client on a Unix socket of the proxy's machine.
            (0x21, 0x00 | 0x31) => Ok(Self::None),
            (0x21, 0x11) => Ok(Self::Ipv4),
            (0x21, 0x21) => Ok(Self::Ipv6),
            (0x21, other) => Err(ProxyHeaderError::UnknownFamily(other)),
            (other, _) => Err(ProxyHeaderError::UnknownCommand(other)),
        }
    }

    /// The length of the addresses and ports of both ends.
    fn bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Ipv4 => 12,
            Self::Ipv6 => 36,
        }
    }

    /// The client's address from the part after the fixed one, which has at least [`bytes`](Self::bytes).
    fn client(self, addresses: &[u8]) -> Option<SocketAddr> {
        let (ip, port) = match self {
            Self::None => return None,
            Self::Ipv4 => {
                let (ip, rest) = addresses.split_first_chunk::<4>()?;
                (IpAddr::V4(Ipv4Addr::from(*ip)), rest.get(4..6)?)
            }
            Self::Ipv6 => {
                let (ip, rest) = addresses.split_first_chunk::<16>()?;
                (IpAddr::V6(Ipv6Addr::from(*ip)), rest.get(16..18)?)
            }
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes(port.try_into().ok()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    /// 192.0.2.7 port 4660 to 192.0.2.1 port 11215.
    const IPV4: [u8; 12] = [192, 0, 2, 7, 192, 0, 2, 1, 0x12, 0x34, 0x2b, 0xcf];

    fn ipv6() -> Vec<u8> {
        let [from, to] = ["2001:db8::7", "2001:db8::1"].map(|ip| ip.parse::<Ipv6Addr>().unwrap().octets());
        [&from[..], &to, &[0x12, 0x34], &[0x2b, 0xcf]].concat()
    }

    fn complete(bytes: usize, client: Option<&str>) -> Result<ProxyHeader, ProxyHeaderError> {
        Ok(ProxyHeader::Complete { bytes, client: client.map(|address| address.parse().unwrap()) })
    }

    #[test]
    fn the_clients_address_is_that_of_the_source() {
        let address = "192.0.2.7:4660";
        assert_eq!(ProxyHeader::parse(&header(0x21, 0x11, &IPV4)), complete(28, Some(address)));
        let address = "[2001:db8::7]:4660";
        assert_eq!(ProxyHeader::parse(&header(0x21, 0x21, &ipv6())), complete(52, Some(address)));
    }

    #[test]
    fn additional_fields_and_frames_behind_the_header_are_skipped() {
        let mut bytes = header(0x21, 0x11, &[&IPV4[..], &[0x03, 0, 4, 1, 2, 3, 4]].concat());
        bytes.extend([0x90; 30]);
        assert_eq!(ProxyHeader::parse(&bytes), complete(35, Some("192.0.2.7:4660")));
    }

    #[test]
    fn a_connection_of_the_proxy_itself_and_one_without_an_address_state_none() {
        // LOCAL ignores the family and the addresses.
        for family in 0..=u8::MAX {
            assert_eq!(ProxyHeader::parse(&header(0x20, family, &IPV4)), complete(28, None));
        }
        assert_eq!(ProxyHeader::parse(&header(0x20, 0x00, &[])), complete(16, None));
        assert_eq!(ProxyHeader::parse(&header(0x21, 0x00, &[])), complete(16, None));
        assert_eq!(ProxyHeader::parse(&header(0x21, 0x31, &[b'/'; 216])), complete(232, None));
    }

    #[test]
    fn each_start_of_a_header_asks_for_more_but_never_for_a_byte_behind_it() {
        for bytes in [header(0x21, 0x11, &IPV4), header(0x21, 0x21, &ipv6()), header(0x20, 0, &[])] {
            for received in 0..bytes.len() {
                let Ok(ProxyHeader::Incomplete { bytes_least }) = ProxyHeader::parse(&bytes[..received])
                else {
                    panic!("{received} of {} bytes", bytes.len());
                };
                assert!((received + 1..=bytes.len()).contains(&bytes_least), "{received}: {bytes_least}");
            }
            assert!(matches!(ProxyHeader::parse(&bytes), Ok(ProxyHeader::Complete { .. })));
        }
    }

    #[test]
    fn other_input_is_refused_at_the_first_byte_that_differs() {
        assert_eq!(ProxyHeader::parse(&[0x90]), Err(ProxyHeaderError::Missing));
        for position in 0..SIGNATURE.len() {
            let mut bytes = SIGNATURE[..=position].to_vec();
            bytes[position] ^= 1;
            assert_eq!(ProxyHeader::parse(&bytes), Err(ProxyHeaderError::Missing), "{position}");
        }
        let version_1 = b"PROXY TCP4 192.0.2.7 192.0.2.1 4660 11215\r\n";
        for received in 1..SIGNATURE_V1.len() {
            let incomplete = ProxyHeader::Incomplete { bytes_least: FIXED_BYTES };
            assert_eq!(ProxyHeader::parse(&version_1[..received]), Ok(incomplete));
        }
        assert_eq!(ProxyHeader::parse(version_1), Err(ProxyHeaderError::Version1));
        assert_eq!(ProxyHeader::parse(b"PROVE"), Err(ProxyHeaderError::Missing));
    }

    #[test]
    fn unknown_commands_and_families_are_refused() {
        for command in (0..=u8::MAX).filter(|command| ![0x20, 0x21].contains(command)) {
            let error = ProxyHeaderError::UnknownCommand(command);
            assert_eq!(ProxyHeader::parse(&header(command, 0x11, &IPV4)), Err(error));
        }
        for family in (0..=u8::MAX).filter(|family| ![0x00, 0x11, 0x21, 0x31].contains(family)) {
            let error = ProxyHeaderError::UnknownFamily(family);
            assert_eq!(ProxyHeader::parse(&header(0x21, family, &ipv6())), Err(error));
        }
    }

    #[test]
    fn the_length_fits_the_addresses_and_the_limit() {
        let error = ProxyHeaderError::TooShort { announced: 11, needed: 12 };
        assert_eq!(ProxyHeader::parse(&header(0x21, 0x11, &IPV4[..11])), Err(error));
        let error = ProxyHeaderError::TooShort { announced: 35, needed: 36 };
        assert_eq!(ProxyHeader::parse(&header(0x21, 0x21, &ipv6()[..35])), Err(error));
        let longest = header(0x21, 0x11, &[&IPV4[..], &[0; 508]].concat());
        assert_eq!(longest.len(), PROXY_HEADER_BYTES_MAX);
        assert_eq!(ProxyHeader::parse(&longest), complete(536, Some("192.0.2.7:4660")));
        // The announced length is enough to know.
        let longer = header(0x20, 0x00, &[0; 521]);
        let error = ProxyHeaderError::TooLong { announced: 521 };
        assert_eq!(ProxyHeader::parse(&longer[..FIXED_BYTES]), Err(error));
    }

    #[test]
    fn a_header_of_either_version_is_recognised_where_none_is_expected() {
        let frame = [0x90, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(ProxyHeader::is_at_the_start_of(&header(0x21, 0x11, &IPV4)));
        assert!(ProxyHeader::is_at_the_start_of(b"PROXY TCP4 192.0.2.7 192.0.2.1 4660 11215\r\n"));
        assert!(!ProxyHeader::is_at_the_start_of(b"PROVE TCP4 1"));
        assert!(!ProxyHeader::is_at_the_start_of(&frame));
    }
}

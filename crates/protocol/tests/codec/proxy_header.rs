//! The header of the PROXY protocol at the start of a connection.

use std::net::Ipv6Addr;

use super::*;
use signalbox_protocol::{PROXY_HEADER_BYTES_MAX, ProxyHeader, ProxyHeaderError};

/// The first bytes of a header of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// The length of a header of version 2 without addresses.
const FIXED_BYTES: usize = 16;

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
            let Ok(ProxyHeader::Incomplete { bytes_least }) = ProxyHeader::parse(&bytes[..received]) else {
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
    for received in 1..b"PROXY ".len() {
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
    // The announced length is enough to refuse it.
    let longer = header(0x20, 0x00, &[0; 521]);
    let error = ProxyHeaderError::TooLong { announced: 521 };
    assert_eq!(ProxyHeader::parse(&longer[..FIXED_BYTES]), Err(error));
}

/// The error for these bytes where a server expects a frame. It answers the first of them before it closes the connection.
fn in_place_of_a_frame(bytes: &[u8]) -> DecodeError {
    let (mut codec, mut received) = (RequestCodec::default(), BytesMut::from(bytes));
    assert!(codec.decode(&mut received).unwrap().is_some());
    codec.decode(&mut received).unwrap_err()
}

#[test]
fn a_header_of_either_version_is_recognised_where_none_is_expected() {
    for header in [&header(0x21, 0x11, &IPV4)[..], b"PROXY TCP4 192.0.2.7 192.0.2.1 4660 11215\r\n"] {
        assert!(matches!(in_place_of_a_frame(header), DecodeError::ProxyHeader));
    }
    assert!(matches!(in_place_of_a_frame(b"PROVE TCP4 1"), DecodeError::WrongMagic { .. }));
}

//! Which texts are addresses of servers.

use signalbox_client::{Address, AddressError};

fn parsed(text: &str) -> Result<(String, Option<u16>), AddressError> {
    text.parse::<Address>().map(|address| (address.host().to_owned(), address.port()))
}

#[test]
fn an_address_is_a_host_with_or_without_a_port() {
    for (text, host, port) in [
        ("example.org", "example.org", None),
        ("example.org:7", "example.org", Some(7)),
        ("127.0.0.1:11215", "127.0.0.1", Some(11215)),
        ("::1", "::1", None),
        ("fe80::1%eth0", "fe80::1%eth0", None),
        ("[::1]", "::1", None),
        ("[2001:db8::1]:65535", "2001:db8::1", Some(65535)),
    ] {
        assert_eq!(parsed(text), Ok((host.to_owned(), port)), "{text}");
    }
}

#[test]
fn what_is_no_address_is_refused_with_the_reason() {
    assert_eq!(parsed(""), Err(AddressError::HostMissing));
    assert_eq!(parsed(":7"), Err(AddressError::HostMissing));
    for text in ["a:b:c", "[::1", "[::1]7", "[example.org]:7", "example.org/path", "two words"] {
        assert_eq!(parsed(text), Err(AddressError::HostMalformed), "{text}");
    }
    for port in ["", "0", "65536", "http", "-1"] {
        assert_eq!(parsed(&format!("host:{port}")), Err(AddressError::Port { port: port.to_owned() }));
    }
}

#[test]
fn an_address_is_displayed_as_it_is_written() {
    for text in ["example.org", "example.org:7", "[::1]:7", "::1"] {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
    }
}

//! A range of IP addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// An address or a network: all addresses that begin with the same bits.
///
/// IPv4 addresses that are mapped to IPv6 are the IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Without bits after the prefix, and an IPv4 address in its own form.
    address: IpAddr,
    /// How many bits all addresses have in common: at most those of an address.
    prefix: u8,
}

/// The text is neither an address nor a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be an IP address or a network, such as 192.0.2.1 or 10.0.0.0/8")]
pub struct UnknownNetwork;

/// The bits in front of an IPv4 address that is mapped to IPv6.
const MAPPED_PREFIX: u8 = 96;

impl Network {
    /// Whether the network has this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (bits, bits_of_network) = match (address.to_canonical(), self.address) {
            (IpAddr::V4(address), IpAddr::V4(network)) => {
                (left_aligned(address.to_bits()), left_aligned(network.to_bits()))
            }
            (IpAddr::V6(address), IpAddr::V6(network)) => (address.to_bits(), network.to_bits()),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
        };
        (bits ^ bits_of_network) & mask(self.prefix) == 0
    }

    /// Whether it has addresses of loopback.
    pub(super) fn has_loopback(&self) -> bool {
        let loopback = Self { address: IpAddr::from([127, 0, 0, 0]), prefix: 8 }.range();
        let range = self.range();
        self.contains(Ipv6Addr::LOCALHOST.into())
            || (range.start() <= loopback.end() && loopback.start() <= range.end())
    }

    /// Whether it has all addresses of the family of this one.
    pub fn is_everywhere(&self, of: IpAddr) -> bool {
        self.prefix == 0 && self.address.is_ipv4() == of.is_ipv4()
    }

    /// The first and the last address, those of IPv4 as they are mapped to IPv6.
    pub fn range(&self) -> RangeInclusive<Ipv6Addr> {
        let (first, prefix) = match self.address {
            IpAddr::V4(address) => (address.to_ipv6_mapped(), MAPPED_PREFIX + self.prefix),
            IpAddr::V6(address) => (address, self.prefix),
        };
        first..=Ipv6Addr::from_bits(first.to_bits() | !mask(prefix))
    }
}

impl FromStr for Network {
    type Err = UnknownNetwork;

    fn from_str(text: &str) -> Result<Self, UnknownNetwork> {
        let (address, prefix) =
            text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| UnknownNetwork)?;
        let (bits, bits_of_address) = match address {
            IpAddr::V4(address) => (left_aligned(address.to_bits()), 32),
            IpAddr::V6(address) => (address.to_bits(), 128),
        };
        let prefix = match prefix {
            None => bits_of_address,
            // `parse` would accept a sign.
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| UnknownNetwork)?
            }
            Some(_) => return Err(UnknownNetwork),
        };
        // With bits after the prefix, one of the two is a typing error.
        if prefix > bits_of_address || bits & !mask(prefix) != 0 {
            return Err(UnknownNetwork);
        }
        match address {
            IpAddr::V6(mapped) if prefix >= MAPPED_PREFIX && is_mapped(mapped) => {
                Ok(Self { address: address.to_canonical(), prefix: prefix - MAPPED_PREFIX })
            }
            address => Ok(Self { address, prefix }),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits_of_address = if self.address.is_ipv4() { 32 } else { 128 };
        if self.prefix == bits_of_address {
            write!(f, "{}", self.address)
        } else {
            write!(f, "{}/{}", self.address, self.prefix)
        }
    }
}

fn is_mapped(address: Ipv6Addr) -> bool {
    address.to_ipv4_mapped().is_some()
}

/// The bits of an IPv4 address where those of an IPv6 address begin.
fn left_aligned(bits: u32) -> u128 {
    u128::from(bits) << 96
}

/// The first bits of 128.
fn mask(prefix: u8) -> u128 {
    // A shift by all bits would overflow.
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_network_has_its_first_and_last_address() {
        for (network, first, last) in [
            ("192.0.2.1", "::ffff:192.0.2.1", "::ffff:192.0.2.1"),
            ("10.0.0.0/8", "::ffff:10.0.0.0", "::ffff:10.255.255.255"),
            ("0.0.0.0/0", "::ffff:0.0.0.0", "::ffff:255.255.255.255"),
            ("2001:db8::/64", "2001:db8::", "2001:db8::ffff:ffff:ffff:ffff"),
            ("::1", "::1", "::1"),
            ("::/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let range = network.parse::<Network>().unwrap().range();
            assert_eq!(range, first.parse().unwrap()..=last.parse().unwrap(), "{network}");
        }
    }

    #[test]
    fn a_network_has_loopback_if_it_has_one_of_its_addresses() {
        for (network, expected) in [
            ("127.0.0.2", true),
            ("127.1.0.0/16", true),
            ("0.0.0.0/0", true),
            ("64.0.0.0/2", true),
            ("128.0.0.0/2", false),
            ("10.0.0.0/8", false),
            ("::1", true),
            ("::/64", true),
            ("2001:db8::/32", false),
        ] {
            assert_eq!(network.parse::<Network>().unwrap().has_loopback(), expected, "{network}");
        }
    }

    #[test]
    fn a_network_has_the_addresses_that_begin_with_its_bits() {
        for (network, inside, outside) in [
            ("192.0.2.1", &["192.0.2.1", "::ffff:192.0.2.1"][..], &["192.0.2.2", "192.0.2.0", "::1"][..]),
            (
                "10.0.0.0/8",
                &["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3"],
                &["9.255.255.255", "11.0.0.0"],
            ),
            ("192.0.2.128/25", &["192.0.2.128", "192.0.2.255"], &["192.0.2.127", "192.0.3.128"]),
            ("0.0.0.0/0", &["0.0.0.0", "255.255.255.255"], &["::", "::1"]),
            ("2001:db8::/33", &["2001:db8:7fff::1", "2001:db8::"], &["2001:db8:8000::", "192.0.2.1"]),
            ("::/0", &["::1", "ffff::"], &["192.0.2.1", "::ffff:192.0.2.1"]),
            ("::1", &["::1"], &["::2", "0.0.0.1"]),
            ("::ffff:10.0.0.0/104", &["10.1.2.3", "::ffff:10.1.2.3"], &["11.0.0.0", "::ffff:11.0.0.0"]),
        ] {
            let network: Network = network.parse().unwrap();
            for address in inside {
                assert!(network.contains(address.parse().unwrap()), "{address} in {network}");
            }
            for address in outside {
                assert!(!network.contains(address.parse().unwrap()), "{address} not in {network}");
            }
        }
    }

    #[test]
    fn a_network_is_shown_as_it_is_written() {
        for text in ["192.0.2.1", "10.0.0.0/8", "0.0.0.0/0", "2001:db8::/32", "::1", "::/0"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
        for (text, shown) in [("192.0.2.1/32", "192.0.2.1"), ("::ffff:10.0.0.0/104", "10.0.0.0/8")] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn other_texts_are_no_network() {
        for text in [
            "",
            "/",
            "/8",
            "10.0.0.0/",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "10.0.0.0/8/8",
            "10.0.0.1/8",
            "2001:db8::1/64",
            "10.0.0.0/255.0.0.0",
            "10.0.0.0/256",
            "localhost",
            "10.0.0",
            "[::1]",
        ] {
            assert_eq!(text.parse::<Network>(), Err(UnknownNetwork), "{text}");
        }
    }
}

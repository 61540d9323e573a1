//! The few fields of a certificate that rustls does not expose: its names and its validity.
//!
//! The certificates are those of the configuration, or of clients that rustls has verified. Fields that cannot be parsed
//! are skipped.

use std::ops::Range;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use signalbox_access::{CertificateName, NameKind};

/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16]; // UTF8String, PrintableString, IA5String.

/// The tag of the version of a certificate, which may be left out.
const VERSION: u8 = 0xa0;

/// The object identifier 2.5.4.3.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

/// Reads elements of DER, one after the other.
struct Elements<'a>(&'a [u8]);

impl<'a> Iterator for Elements<'a> {
    /// The tag and the contents.
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, length], rest) = self.0.split_first_chunk()?;
        let (length, rest) = match length {
            ..=0x7f => (usize::from(length), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
                (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, contents))
    }
}

/// The first element, if it has this tag.
fn element(bytes: &[u8], tag: u8) -> Option<&[u8]> {
    Elements(bytes).next().filter(|(found, _)| *found == tag).map(|(_, contents)| contents)
}

/// The names in a certificate: its DNS names, then its URIs, then its common names, of which the last is the most specific one
/// and comes first.
pub(super) fn names(certificate: &CertificateDer<'_>) -> Vec<CertificateName> {
    let Ok(parsed) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let of = |kind| move |text| CertificateName::new(kind, text);
    let mut names: Vec<_> = parsed.valid_dns_names().map(of(NameKind::Dns)).collect();
    names.extend(parsed.valid_uri_names().map(of(NameKind::Uri)));
    names.extend(common_names(parsed.subject()).into_iter().rev().map(of(NameKind::CommonName)));
    names
}

/// The common names of a subject in their order. The subject is the contents of its sequence.
fn common_names(subject: &[u8]) -> Vec<&str> {
    let attributes = Elements(subject).filter(|(tag, _)| *tag == SET).flat_map(|(_, set)| Elements(set));
    let named = attributes.filter_map(|(_, attribute)| {
        let mut parts = Elements(attribute);
        let is_common_name = parts.next()? == (OBJECT_IDENTIFIER, &COMMON_NAME);
        let (tag, text) = parts.next()?;
        if is_common_name && TEXTS.contains(&tag) { str::from_utf8(text).ok() } else { None }
    });
    named.collect()
}

/// The validity of a certificate, in seconds of Unix time. The start is 0 if it cannot be read.
pub(in crate::server) fn validity(certificate: &[u8]) -> Option<Range<u64>> {
    let signed = element(element(certificate, SEQUENCE)?, SEQUENCE)?;
    // The serial number, the algorithm, the issuer, and then the validity.
    let (_, validity) = Elements(signed).skip_while(|(tag, _)| *tag == VERSION).nth(3)?;
    let mut times = Elements(validity).map(|(tag, time)| unix_time(tag, time));
    Some(times.next()?.unwrap_or(0)..times.next()??)
}

fn unix_time(tag: u8, time: &[u8]) -> Option<u64> {
    let digits = str::from_utf8(time).ok()?.strip_suffix('Z')?;
    match (tag, digits.len()) {
        (GENERALIZED_TIME, 14) => unix_seconds(digits),
        // Years from 50 are those of the last century (RFC 5280, 4.1.2.5.1).
        (UTC_TIME, 12) if digits < "5" => unix_seconds(&format!("20{digits}")),
        (UTC_TIME, 12) => unix_seconds(&format!("19{digits}")),
        _ => None,
    }
}

/// The Unix time of `YYYYMMDDHHMMSS` in UTC; `None` before 1970.
fn unix_seconds(digits: &str) -> Option<u64> {
    let number = |range: Range<usize>| digits.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(4..6)?, number(6..8)?);
    // Years start in March here, so that the leap day is the last day of a year. The epoch is 719,468 days after
    // 1 March of the year 0.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    let days = days.checked_sub(1 + 719_468)?;
    Some(days * 86_400 + number(8..10)? * 3_600 + number(10..12)? * 60 + number(12..14)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tlv(tag: u8, contents: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag, 0x82];
        bytes.extend(u16::try_from(contents.len()).unwrap().to_be_bytes());
        bytes.extend(contents);
        bytes
    }

    fn attribute(identifier: &[u8], tag: u8, text: &str) -> Vec<u8> {
        let parts = [tlv(OBJECT_IDENTIFIER, identifier), tlv(tag, text.as_bytes())].concat();
        tlv(SET, &tlv(SEQUENCE, &parts))
    }

    #[test]
    fn common_names_are_found_in_each_type_of_text() {
        for tag in TEXTS {
            let subject = [
                attribute(&[0x55, 0x04, 0x0a], tag, "Example"),
                attribute(&COMMON_NAME, tag, "department"),
                attribute(&COMMON_NAME, tag, "worker-ä"),
            ];
            assert_eq!(common_names(&subject.concat()), ["department", "worker-ä"]);
        }
        assert!(common_names(&attribute(&[0x55, 0x04, 0x0a], 0x0c, "Example")).is_empty());
        assert!(common_names(&attribute(&COMMON_NAME, 0x1e, "x")).is_empty(), "a text of another encoding");
    }

    #[test]
    fn the_validity_is_found_with_and_without_a_version() {
        let life = |tag, begin: &str, end: &str| {
            tlv(SEQUENCE, &[begin, end].map(|time| tlv(tag, time.as_bytes())).concat())
        };
        let certificate = |version: &[u8], life: &[u8]| {
            let before = [tlv(0x02, &[1]), tlv(SEQUENCE, &[]), tlv(SEQUENCE, &[])].concat();
            tlv(SEQUENCE, &tlv(SEQUENCE, &[version, &before, life].concat()))
        };
        for (tag, end, expected) in [
            (UTC_TIME, "261123104500Z", Some(1_795_430_700)),
            (UTC_TIME, "991123104500Z", Some(943_353_900)),
            (GENERALIZED_TIME, "20501123104500Z", Some(2_552_813_100)),
            (GENERALIZED_TIME, "20240229000000Z", Some(1_709_164_800)),
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "691231235959Z", None),
            (UTC_TIME, "2611231045Z", None),
        ] {
            for version in [tlv(VERSION, &tlv(0x02, &[2])), Vec::new()] {
                let from_nothing = validity(&certificate(&version, &life(tag, "x", end)));
                assert_eq!(from_nothing, expected.map(|end| 0..end));
                let point = validity(&certificate(&version, &life(tag, end, end)));
                assert_eq!(point, expected.map(|end| end..end));
            }
        }
    }

    #[test]
    fn nothing_is_found_in_other_bytes() {
        for bytes in
            [&[][..], &[0x30], &[0x30, 0x81], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0x30, 0x80, 0, 0]]
        {
            assert_eq!((common_names(bytes), validity(bytes)), (Vec::new(), None));
        }
    }
}

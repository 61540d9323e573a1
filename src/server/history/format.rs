//! The line of an entry: that of [`HistoryLine`](signalbox_model::history::HistoryLine), which reads it.
//!
//! It is written by hand, since serde takes several times as many instructions, and a server writes two lines for each grant.

use std::net::{IpAddr, SocketAddr};

use signalbox_core::{HistoryEntry, HistoryEvent, HistoryPart};
use signalbox_model::hex;
use signalbox_model::{UnixMilliseconds, UnixSeconds};

/// Writes lines.
#[derive(Debug, Default)]
pub(super) struct Format {
    /// The second of the last line, and the line until the `.` behind it.
    second: Option<(u64, Vec<u8>)>,
}

impl Format {
    /// Adds the line of an entry.
    pub(super) fn put(&mut self, text: &mut Vec<u8>, entry: &HistoryEntry<'_>) {
        let HistoryEntry { head, address, identity, label, parts } = entry;
        self.put_time(text, head.time);
        let (event, key, amount) = match head.event {
            HistoryEvent::Granted { waited_ms } => ("granted", &b",\"waited_ms\":"[..], waited_ms),
            HistoryEvent::Ended { end, held_ms } => (end.word(), &b",\"held_ms\":"[..], held_ms),
        };
        text.extend_from_slice(event.as_bytes());
        text.extend_from_slice(b"\",\"grant\":\"");
        put_number(text, head.grant.0);
        text.extend_from_slice(b"\",\"session\":\"");
        put_number(text, head.session.number());
        text.extend_from_slice(b"\",\"limits\":[");
        for (index, part) in parts.clone().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            put_part(text, &part);
        }
        text.push(b']');
        if let Some(address) = address {
            text.extend_from_slice(b",\"address\":\"");
            put_address(text, address);
            text.push(b'"');
        }
        if !identity.is_empty() {
            put_text(text, b",\"identity", identity);
        }
        if !label.is_empty() {
            put_text(text, b",\"label", label);
        }
        text.extend_from_slice(if head.is_durable { b",\"durable\":true" } else { b",\"durable\":false" });
        text.extend_from_slice(key);
        put_number(text, amount);
        text.extend_from_slice(b"}\n");
    }

    fn put_time(&mut self, text: &mut Vec<u8>, time: UnixMilliseconds) {
        let UnixSeconds(second) = time.into();
        let (of, begin) = self.second.get_or_insert_default();
        if *of != second || begin.is_empty() {
            *of = second;
            let shown = UnixSeconds(second).to_string();
            *begin = format!("{{\"time\":\"{}.", shown.trim_end_matches('Z')).into_bytes();
        }
        text.extend_from_slice(begin);
        let ms = (time.0 % 1000) as u16;
        text.extend_from_slice(&[ms / 100, ms / 10 % 10, ms % 10].map(|digit| b'0' + digit as u8));
        text.extend_from_slice(b"Z\",\"event\":\"");
    }
}

fn put_part(text: &mut Vec<u8>, part: &HistoryPart<'_>) {
    text.extend_from_slice(b"{\"kind\":\"");
    text.extend_from_slice(part.namespace.noun().as_bytes());
    put_text(text, b"\",\"name", part.name);
    text.extend_from_slice(b",\"resources\":");
    put_number(text, part.resources.into());
    for (index, slot) in part.slots().enumerate() {
        text.extend_from_slice(if index == 0 { b",\"slots\":[" } else { b"," });
        put_number(text, slot.into());
    }
    text.extend_from_slice(if part.slots().len() > 0 { b"]}" } else { b"}" });
}

/// Adds a key and its text; if that is not UTF-8, the key with `_hex` and its hexadecimal digits.
fn put_text(text: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    text.extend_from_slice(key);
    if is_plain(value) {
        text.extend_from_slice(b"\":\"");
        text.extend_from_slice(value);
        text.push(b'"');
        return;
    }
    match str::from_utf8(value) {
        Ok(value) => {
            text.extend_from_slice(b"\":");
            serde_json::to_writer(text, value).expect("a text is always JSON");
        }
        Err(_) => {
            text.extend_from_slice(b"_hex\":\"");
            text.extend_from_slice(hex(value).as_bytes());
            text.push(b'"');
        }
    }
}

/// Whether a text is itself in JSON.
fn is_plain(text: &[u8]) -> bool {
    let is_special = |byte: &u8| !matches!(byte, b' '..=b'~') | matches!(byte, b'"' | b'\\');
    // Of sixteen bytes at a time, which are compared at once.
    let (chunks, rest) = text.as_chunks::<16>();
    let mut last = [b' '; 16];
    last[..rest.len()].copy_from_slice(rest);
    !chunks.iter().chain([&last]).any(|chunk| chunk.iter().fold(false, |any, byte| any | is_special(byte)))
}

fn put_address(text: &mut Vec<u8>, address: &SocketAddr) {
    let IpAddr::V4(ip) = address.ip() else {
        text.extend_from_slice(address.to_string().as_bytes());
        return;
    };
    for (octet, after) in ip.octets().into_iter().zip(*b"...:") {
        let [hundreds, tens, ones] = [octet / 100, octet / 10 % 10, octet % 10].map(|digit| b'0' + digit);
        match octet {
            100.. => text.extend_from_slice(&[hundreds, tens, ones, after]),
            10.. => text.extend_from_slice(&[tens, ones, after]),
            _ => text.extend_from_slice(&[ones, after]),
        }
    }
    put_number(text, address.port().into());
}

fn put_number(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_as_it_is_shown() {
        for expected in ["0.9.10.99:1", "100.109.200.255:65535", "[::1]:7"] {
            let mut text = Vec::new();
            put_address(&mut text, &expected.parse().unwrap());
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }

    #[test]
    fn a_text_is_that_of_json() {
        for (value, expected) in [
            (&b"a b~"[..], r#"k":"a b~""#),
            (b"\"\\\n\x1f", r#"k":"\"\\\n\u001f""#),
            ("\u{e9}".as_bytes(), "k\":\"\u{e9}\""),
            (b"\xff", r#"k_hex":"ff""#),
            (b"0123456789abcdef", r#"k":"0123456789abcdef""#),
            (b"0123456789abcde\"", r#"k":"0123456789abcde\"""#),
            (b"0123456789abcdef\"", r#"k":"0123456789abcdef\"""#),
        ] {
            let mut text = Vec::new();
            put_text(&mut text, b"k", value);
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }
}

//! The keys of `semget` that go to the server.

use std::str::FromStr;

/// A user's choice of the keys that go to the server. Keys are compared without a sign, as `ipcs` prints them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    all: bool,
    ranges: Vec<(u32, u32)>,
    /// Keys of this host, each with the server's key that replaces it.
    map: Vec<(u32, u32)>,
}

impl Keys {
    /// The server's key for a key of this host; `None`: the key belongs to the kernel. The key 0 (`IPC_PRIVATE`) makes
    /// a new set with each call, so `all` does not include it; only an item of its own does.
    pub fn shared(&self, local: i32) -> Option<i32> {
        let key = local.cast_unsigned();
        if let Some((_, shared)) = self.map.iter().find(|(local, _)| *local == key) {
            return Some(shared.cast_signed());
        }
        let listed = self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&key));
        (listed || (self.all && key != 0)).then_some(local)
    }

    /// The key of this host for a key of the server.
    pub fn local(&self, shared: i32) -> i32 {
        let mapped = self.map.iter().find(|(_, to)| *to == shared.cast_unsigned());
        mapped.map_or(shared, |(local, _)| local.cast_signed())
    }

    /// Adds the items of a list, separated by commas or blanks.
    pub fn extend(&mut self, list: &str) -> Result<(), String> {
        for item in list.split([',', ' ', '\t']).filter(|item| !item.is_empty()) {
            self.add(item)?;
        }
        Ok(())
    }

    /// Returns whether no key goes to the server.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, item: &str) -> Result<(), String> {
        if item == "all" {
            self.all = true;
            return Ok(());
        }
        let key = |text| key(text).map(i32::cast_unsigned);
        let wrong = || {
            format!(
                "\"{item}\" is not \"all\", a key (42, 0x2a), a range (0x1000-0x1fff) or a mapping of this host's key to the \
                 shared one (0x5101a2b3=0x10)"
            )
        };
        if let Some((local, shared)) = item.split_once('=') {
            let (local, shared) = (key(local).ok_or_else(wrong)?, key(shared).ok_or_else(wrong)?);
            if self.map.iter().any(|(other, to)| *other == local && *to != shared) {
                return Err(format!("\"{item}\" maps a key that another item maps elsewhere"));
            }
            self.map.push((local, shared));
            return Ok(());
        }
        let (first, last) = match key(item) {
            Some(single) => (single, single),
            None => {
                let (first, last) = item.split_once('-').ok_or_else(wrong)?;
                (key(first).ok_or_else(wrong)?, key(last).ok_or_else(wrong)?)
            }
        };
        if first > last {
            return Err(format!("the range \"{item}\" ends before it begins"));
        }
        self.ranges.push((first, last));
        Ok(())
    }
}

impl FromStr for Keys {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let mut keys = Self::default();
        keys.extend(list)?;
        Ok(keys)
    }
}

/// Parses a key as a user writes it: in decimal with or without a minus, or in hexadecimal. `None`: the text is not a
/// key.
pub fn key(text: &str) -> Option<i32> {
    match text.strip_prefix("0x") {
        // The standard parsers would accept a plus; a hexadecimal key has no sign.
        Some(digits) if digits.starts_with(['+', '-']) => None,
        Some(digits) => u32::from_str_radix(digits, 16).ok().map(u32::cast_signed),
        None if text.starts_with('+') => None,
        None => text.parse().ok().or_else(|| text.parse().ok().map(u32::cast_signed)),
    }
}

//! Keys of sets, as arguments and as output. Like ipcs, this program shows them without a sign, in hexadecimal digits.

/// Reads a key: in hexadecimal with `0x`, or in decimal, with or without a sign.
pub(super) fn key(text: &str) -> Option<i32> {
    match text.strip_prefix("0x") {
        // `from_str_radix` accepts a sign.
        Some(digits) if digits.starts_with(['+', '-']) => None,
        Some(digits) => u32::from_str_radix(digits, 16).ok().map(u32::cast_signed),
        None if text.starts_with('+') => None,
        None => text.parse().ok().or_else(|| text.parse().ok().map(u32::cast_signed)),
    }
}

/// The key as this program shows it.
pub(super) fn shown(key: i32) -> String {
    format!("{key:#010x}")
}

/// Why a text is no list of keys for `--keys`. The library reads the list itself; this is only for an error at once.
pub(super) fn check_keys(list: &str) -> Result<(), String> {
    let mut items = list.split([',', ' ', '\t']).filter(|item| !item.is_empty()).peekable();
    if items.peek().is_none() {
        return Err("expected all, or keys and ranges such as 42,0x1000-0x1fff".to_owned());
    }
    items.try_for_each(|item| match range(item) {
        _ if item == "all" => Ok(()),
        Some((first, last)) if first <= last => Ok(()),
        Some(_) => Err(format!("the range \"{item}\" ends before it begins")),
        None if mapping(item).is_ok() => Err(format!("\"{item}\" is a mapping; give it with --map")),
        None => Err(format!("\"{item}\" is not all, a key (42, 0x2a) or a range (0x1000-0x1fff)")),
    })
}

/// The first and the last key of a range, or a key as both.
fn range(item: &str) -> Option<(u32, u32)> {
    if let Some(single) = key(item) {
        return Some((single.cast_unsigned(), single.cast_unsigned()));
    }
    let (first, last) = item.split_once('-')?;
    Some((key(first)?.cast_unsigned(), key(last)?.cast_unsigned()))
}

/// Checks a mapping of a key of this host to the key that all hosts share, for `--map`.
pub(super) fn mapping(text: &str) -> Result<String, String> {
    let pair = text.split_once('=').and_then(|(local, shared)| Some((key(local)?, key(shared)?)));
    match pair {
        Some(_) => Ok(text.to_owned()),
        None => Err("expected the key of this host and the shared key, such as 0x5101a2b3=0x10".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_decimal_or_hexadecimal() {
        for (text, expected) in
            [("42", 42), ("0x2a", 42), ("-1", -1), ("0xffffffff", -1), ("4294967295", -1), ("0", 0)]
        {
            assert_eq!(key(text), Some(expected), "{text}");
        }
        for text in ["", "0x", "x", "0x-1", "+1", "4294967296", "-2147483649", "0x1ffffffff", "1 ", "2a"] {
            assert_eq!(key(text), None, "{text}");
        }
        assert_eq!((shown(42), shown(-1)), ("0x0000002a".to_owned(), "0xffffffff".to_owned()));
    }

    #[test]
    fn a_list_of_keys_has_keys_and_ranges() {
        for list in ["all", "42", "1-5,0x10", " 7 8,0x80000000-0xffffffff", "all,0"] {
            assert_eq!(check_keys(list), Ok(()), "{list}");
        }
        for (list, message) in [
            ("", "expected all"),
            (",", "expected all"),
            ("x", "\"x\" is not"),
            ("5-1", "ends before"),
            ("1=2", "\"1=2\" is a mapping; give it with --map"),
        ] {
            assert!(check_keys(list).unwrap_err().contains(message), "{list}");
        }
        assert!(mapping("0x5101a2b3=16").is_ok() && mapping("1=").is_err() && mapping("1").is_err());
    }
}

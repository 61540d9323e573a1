use signalbox_model::sysv::{Keys, key};

fn keys(list: &str) -> Keys {
    list.parse().unwrap()
}

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
}

#[test]
fn all_includes_every_key_but_private_sets() {
    let keys = keys("all");
    assert_eq!(keys.shared(1), Some(1));
    assert_eq!(keys.shared(-1), Some(-1));
    assert_eq!(keys.shared(0), None);
    assert_eq!(self::keys("all,0").shared(0), Some(0));
}

#[test]
fn ranges_and_single_keys_are_included_to_their_ends() {
    let keys = keys("0x1000-0x1fff, 42 -7");
    for key in [0x1000, 0x1fff, 42, -7] {
        assert_eq!(keys.shared(key), Some(key), "{key}");
    }
    for key in [0, 0xfff, 0x2000, 41, 43, -6, 7] {
        assert_eq!(keys.shared(key), None, "{key}");
    }
    assert_eq!(self::keys("0x80000000-0xffffffff").shared(i32::MIN), Some(i32::MIN));
}

#[test]
fn a_mapped_key_has_another_name_on_the_server() {
    let keys = keys("0x5101a2b3=0x10 0x10");
    assert_eq!(keys.shared(0x5101_a2b3), Some(0x10));
    assert_eq!(keys.local(0x10), 0x5101_a2b3);
    assert_eq!(keys.local(0x11), 0x11);
}

#[test]
fn what_is_no_list_of_keys_is_refused() {
    for list in ["everything", "0x", "1-", "-", "1=", "=1", "0x1ffffffff", "1-2-3", "ALL", "0X10"] {
        let error = list.parse::<Keys>().unwrap_err();
        assert!(error.starts_with(&format!("\"{list}\" is not \"all\"")), "{error}");
    }
    assert!("2-1".parse::<Keys>().unwrap_err().contains("ends before it begins"));
    assert!("1=2,1=3".parse::<Keys>().unwrap_err().contains("\"1=3\" maps a key"));
    assert!(keys(" , ").is_empty());
}

use signalbox_model::{Quoted, about_all, escaped, escaped_except, is_unsafe};

#[test]
fn long_names_and_long_lists_are_cut_and_controls_are_escaped() {
    assert_eq!(Quoted(&[b'a'; 70_000]).to_string(), format!("\"{}…\"", "a".repeat(255)));
    let name = |index: u8| format!("semaphore \"{index}\"");
    let few = about_all("acquire", (0..3).map(name));
    assert_eq!(few, "acquire semaphore \"0\", semaphore \"1\" and semaphore \"2\"");
    let many = about_all("acquire", (0..10).map(name));
    assert!(many.ends_with(", semaphore \"7\" and 2 more"), "{many}");
    let odd = Quoted(b"a\x1b[0m\"\xff\xc3\xa9\xe3\x85\xa4").to_string();
    assert_eq!(odd, r#""a\x1b[0m\"\xffé\xe3\x85\xa4""#);
}

#[test]
fn text_stays_as_it_is_and_the_rest_is_escaped() {
    assert_eq!(escaped("jobs/nightly größe".as_bytes()), "jobs/nightly größe");
    assert_eq!(escaped(b"a\tb\nc\\d\re"), r"a\tb\nc\\d\x0de");
    assert_eq!(escaped(b"\x1b[31m\x7f\0"), r"\x1b[31m\x7f\x00");
    assert_eq!(escaped(b"\xff\xc3("), r"\xff\xc3(");
    assert_eq!(escaped("\u{9b}31m".as_bytes()), r"\xc2\x9b31m", "a terminal takes U+009B for ESC [");
    assert_eq!(escaped("a\u{202e}b\u{2069}".as_bytes()), r"a\xe2\x80\xaeb\xe2\x81\xa9");
    assert_eq!(escaped("\u{200e}\u{200f}\u{61c}".as_bytes()), r"\xe2\x80\x8e\xe2\x80\x8f\xd8\x9c");
    assert_eq!(escaped("שלום\u{200b}\u{3164}".as_bytes()), r"שלום\xe2\x80\x8b\xe3\x85\xa4", "letters stay");
    assert_eq!(escaped_except("a\n\tb\\ \u{1b}ü".as_bytes(), "\\\n"), "a\n\\tb\\ \\x1bü");
}

#[test]
fn what_shows_itself_is_safe() {
    for unsafe_one in
        "\u{1b}\u{7f}\u{9b}\u{a0}\u{ad}\u{34f}\u{61c}\u{200b}\u{200d}\u{2028}\u{202e}\u{2060}\u{3000}\u{3164}\
                       \u{fe0f}\u{feff}\u{e0041}"
            .chars()
    {
        assert!(is_unsafe(unsafe_one), "{unsafe_one:?}");
    }
    for safe in " aZ~¡ßשאйа日한０🚚\u{301}".chars() {
        assert!(!is_unsafe(safe), "{safe:?}");
    }
}

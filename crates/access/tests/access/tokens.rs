//! Tokens, and the text of their file.

use proptest::prelude::*;

use super::token;
use signalbox_access::{Entry, NoSuchToken, Rights, Token, Tokens, TokensError, Verdict};

#[test]
fn a_token_is_valid_until_it_expires_or_is_removed() {
    let [token, stranger] = [7, 8].map(token);
    let entry = Entry::of(&token, "web".to_owned(), Rights::ALL, 1, Some(100));
    let mut tokens = Tokens::default();
    tokens.add(entry.clone()).unwrap();
    assert_eq!(tokens.verify(&token, 99), Verdict::Valid(&entry));
    assert_eq!(tokens.verify(&token, 100), Verdict::Expired(&entry));
    assert_eq!(tokens.verify(&stranger, 99), Verdict::Unknown);
    assert_eq!(tokens.revalidate(&entry, 99), Verdict::Valid(&entry));
    assert_eq!(tokens.revalidate(&entry, 100), Verdict::Expired(&entry));
    assert_eq!(tokens.add(entry.clone()), Err(TokensError::NameTaken("web".to_owned())));
    let named = |name: &str| {
        let mut named = entry.clone();
        named.name = name.to_owned();
        named
    };
    assert_eq!(tokens.add(named("twin")), Err(TokensError::IdTaken("twin".to_owned())));
    for name in ["", "a b", "ä", &"x".repeat(65)] {
        assert!(matches!(tokens.add(named(name)), Err(TokensError::Name(_))), "{name}");
    }
    tokens.add(Entry::of(&stranger, "x".repeat(64), Rights::ALL, 1, None)).unwrap();
    tokens.remove(&"x".repeat(64), None).unwrap();
    assert!(tokens.remove("web", Some(stranger.id())).is_err());
    tokens.remove("web", Some(token.id())).unwrap();
    assert_eq!(tokens.revalidate(&entry, 99), Verdict::Unknown);
    assert!(tokens.remove("web", None).is_err());
}

/// Its public id is in listings and logs.
#[test]
fn a_secret_of_another_token_with_the_same_id_is_unknown() {
    let [original, stranger] = [7, 8].map(token);
    let [shown, other] = [&original, &stranger].map(Token::reveal);
    let forged = Token::parse([&shown[..20], &other[20..]].concat().as_bytes()).unwrap();
    assert_eq!(forged.id(), original.id());
    let of = |token| Entry::of(token, "web".to_owned(), Rights::ALL, 1, Some(100));
    let mut tokens = Tokens::default();
    tokens.add(of(&original)).unwrap();
    for now_s in [99, 100] {
        assert_eq!(tokens.verify(&forged, now_s), Verdict::Unknown, "{now_s}");
        assert_eq!(tokens.revalidate(&of(&forged), now_s), Verdict::Unknown, "{now_s}");
    }
}

#[test]
fn a_rotation_takes_the_rights_of_the_newest_secret_and_leaves_other_tokens_alone() {
    let [first, second, third, other] = [1, 2, 3, 4].map(token);
    let table = |token: &Token, name: &str, rights: &str| {
        let mut tokens = Tokens::default();
        tokens.add(Entry::of(token, name.to_owned(), rights.parse().unwrap(), 1, Some(10))).unwrap();
        tokens.to_string()
    };
    // Somebody has edited the rights of one.
    let text = [
        table(&first, "web", "read"),
        table(&second, "web", "acquire").replace("expires_at = 10", "expires_at = 30"),
        table(&other, "db", "all"),
    ];
    let mut tokens: Tokens = text.concat().parse().unwrap();
    tokens.rotate("web", &third, 20, None, 25).unwrap();
    let found: Vec<_> =
        tokens.iter().map(|entry| (&*entry.name, entry.rights.to_string(), entry.expires_at_s)).collect();
    assert_eq!(
        found,
        [
            ("web", "acquire".to_owned(), Some(25)),
            ("db", "read,acquire,administer".to_owned(), Some(10)),
            ("web", "acquire".to_owned(), None)
        ]
    );
    let three = [text[0].clone(), text[1].clone(), table(&third, "web", "read")].concat();
    assert_eq!(three.parse::<Tokens>(), Err(TokensError::TooManySecrets("web".to_owned())));
}

#[test]
fn a_token_has_two_secrets_while_it_is_rotated() {
    let [first, second, third] = [1, 2, 3].map(token);
    let mut tokens = Tokens::default();
    tokens.add(Entry::of(&first, "web".to_owned(), Rights::READ_AND_ACQUIRE, 1, None)).unwrap();
    tokens.rotate("web", &second, 10, Some(100), 20).unwrap();
    let is_valid = |tokens: &Tokens, token: &Token, now_s| {
        let Verdict::Valid(entry) = tokens.verify(token, now_s) else { return false };
        assert_eq!((&*entry.name, &entry.rights), ("web", &Rights::READ_AND_ACQUIRE));
        true
    };
    let valid =
        |tokens: &Tokens, now_s| [&first, &second, &third].map(|token| is_valid(tokens, token, now_s));
    assert_eq!((valid(&tokens, 19), valid(&tokens, 20)), ([true, true, false], [false, true, false]));
    assert_eq!(tokens.to_string().parse::<Tokens>().unwrap(), tokens);
    let before = tokens.clone();
    let refused = tokens.rotate("web", &third, 19, None, 30);
    assert_eq!(refused, Err(TokensError::TooManySecrets("web".to_owned())));
    assert_eq!(tokens, before);
    tokens.rotate("web", &third, 20, None, 1_000).unwrap();
    assert_eq!((valid(&tokens, 20), valid(&tokens, 100)), ([false, true, true], [false, false, true]));
    assert_eq!(tokens.iter().count(), 2, "the first has expired");
    let mut expired = tokens.clone();
    expired.rotate("web", &first, 100, Some(110), 105).unwrap();
    expired.rotate("web", &second, 110, None, 1_000).unwrap();
    assert_eq!(expired.iter().count(), 1, "both have expired");
    assert_eq!(
        tokens.rotate("other", &first, 20, None, 30),
        Err(NoSuchToken::Name("other".to_owned()).into())
    );
    tokens.remove("web", None).unwrap();
    assert_eq!(tokens.iter().count(), 0);
}

#[test]
fn the_next_expiry_is_the_first_after_a_time() {
    let mut tokens = Tokens::default();
    for (name, byte, expires_at_s) in [("late", 1, Some(300)), ("never", 2, None), ("soon", 3, Some(200))] {
        tokens.add(Entry::of(&token(byte), name.to_owned(), Rights::ALL, 1, expires_at_s)).unwrap();
    }
    let expected = [(0, Some(200)), (199, Some(200)), (200, Some(300)), (300, None)];
    assert_eq!(expected.map(|(after_s, _)| (after_s, tokens.next_expiry(after_s))), expected);
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(prefix in "[\\x00-\\x1f\\x7f\\PC]{0,20}", byte in any::<u8>(), expiry in any::<Option<u32>>()) {
        let token = token(byte);
        let area = format!("counter:{prefix}");
        let rights = Rights::parse("read,administer", [&*area, "sysv"]).unwrap();
        let mut tokens = Tokens::default();
        tokens.add(Entry::of(&token, "a".to_owned(), rights, 1, expiry.map(u64::from))).unwrap();
        let text = tokens.to_string();
        prop_assert!(!text.contains(&token.reveal()[21..]));
        prop_assert_eq!(text.parse::<Tokens>().unwrap(), tokens);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>(), lines in "(\\[\\[token\\]\\]\n|[a-z_]{2,10} = [\"0-9a-f\\[\\]]{0,70}\n){0,9}") {
        let _ = text.parse::<Tokens>();
        let _ = lines.parse::<Tokens>();
    }
}

#[test]
fn damaged_files_are_refused_by_what_is_wrong() {
    let hash = "0".repeat(64);
    let table = |rest: &str| format!("[[token]]\nname = \"a\"\ncreated_at = 1\n{rest}");
    for (text, expected) in [
        ("tokn = 1".to_owned(), "unknown field"),
        (table(""), "missing field"),
        (table(&format!("id = \"1\"\nhash = \"{hash}\"\nrights = \"read\"")), "the id of the token \"a\""),
        (table("id = \"0000000000000000\"\nhash = \"0\"\nrights = \"read\""), "the hash of the token \"a\""),
        (
            table(&format!("id = \"0000000000000000\"\nhash = \"{hash}\"\nrights = \"root\"")),
            "\"root\" is not a right",
        ),
    ] {
        let problem = text.parse::<Tokens>().unwrap_err().to_string();
        assert!(problem.contains(expected), "{problem}");
    }
}

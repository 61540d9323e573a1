//! The text of a file of tokens: TOML, one table `[[token]]` for each.

use std::fmt::{self, Write};
use std::str::FromStr;

use serde::Deserialize;

use super::rights::Rights;
use super::token::{TokenId, from_hex, hex};
use super::tokens::{Entry, Tokens, TokensError};

const HEAD: &str =
    "# The tokens of a signalbox server. \"signalbox token\" writes this file and removes other comments.\n";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    token: Vec<Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    id: String,
    hash: String,
    rights: String,
    #[serde(default)]
    areas: Vec<String>,
    created_at: u64,
    expires_at: Option<u64>,
}

/// The text of a file.
impl FromStr for Tokens {
    type Err = TokensError;

    fn from_str(text: &str) -> Result<Self, TokensError> {
        let document: Document = toml::from_str(text).map_err(|error| {
            // Not the error as a whole, which quotes the line, where a token or a hash may be.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            TokensError::Syntax(format!("line {line}: {}", error.message()))
        })?;
        let mut tokens = Self::default();
        for Table { name, id, hash, rights, areas, created_at, expires_at } in document.token {
            let damaged = |part| TokensError::Damaged { name: name.clone(), part };
            let id = TokenId(from_hex(id.as_bytes()).ok_or_else(|| damaged("id"))?);
            let hash = from_hex(hash.as_bytes()).ok_or_else(|| damaged("hash"))?;
            let rights = Rights::parse(&rights, areas.iter().map(String::as_str))
                .map_err(|problem| TokensError::Rights { name: name.clone(), problem })?;
            tokens.insert(Entry {
                name,
                id,
                hash,
                rights,
                created_at_s: created_at,
                expires_at_s: expires_at,
            })?;
        }
        Ok(tokens)
    }
}

/// The text of a file with these tokens.
impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEAD)?;
        for entry in self.iter() {
            let areas: Vec<_> = entry.rights.areas().iter().map(|area| quoted(&area.to_string())).collect();
            let mut put = |key, value: &dyn fmt::Display| writeln!(f, "{key} = {value}");
            put("\n[[token]]\nname", &quoted(&entry.name))?;
            put("id", &quoted(&entry.id.to_string()))?;
            put("hash", &quoted(&hex(&entry.hash)))?;
            put("rights", &quoted(&entry.rights.words()))?;
            if !areas.is_empty() {
                put("areas", &format!("[{}]", areas.join(", ")))?;
            }
            put("created_at", &entry.created_at_s)?;
            if let Some(at) = entry.expires_at_s {
                put("expires_at", &at)?;
            }
        }
        Ok(())
    }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                write!(quoted, "\\u{:04X}", u32::from(control)).expect("a String takes all text");
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Token;
    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_again(prefix in "[\\x00-\\x1f\\x7f\\PC]{0,20}", byte in any::<u8>(), expiry in any::<Option<u32>>()) {
            let token = Token::random(|bytes| { bytes.fill(byte); Ok::<_, ()>(()) }).unwrap();
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
            (
                table(&format!("id = \"1\"\nhash = \"{hash}\"\nrights = \"read\"")),
                "the id of the token \"a\"",
            ),
            (
                table("id = \"0000000000000000\"\nhash = \"0\"\nrights = \"read\""),
                "the hash of the token \"a\"",
            ),
            (
                table(&format!("id = \"0000000000000000\"\nhash = \"{hash}\"\nrights = \"root\"")),
                "\"root\" is not a right",
            ),
        ] {
            let problem = text.parse::<Tokens>().unwrap_err().to_string();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}

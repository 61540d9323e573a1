//! The tokens of a file: their names, hashes, rights and expiry. The text of a file is TOML, one table `[[token]]` for each secret.
//!
//! Invariants: ids are unique. A name has one secret, or two while its clients change from one to the other.

use std::fmt::{self, Write};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::rights::{Rights, UnknownRights};
use super::token::{HASH_BYTES, Token, TokenId, from_hex};
use signalbox_model::hex;

/// A token in the file, or one of two secrets of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// 1 to 64 letters, digits, dots, hyphens and underscores.
    pub name: String,
    /// The public id in the token, by which its entry is found.
    pub id: TokenId,
    hash: [u8; HASH_BYTES],
    /// The rights that it gives.
    pub rights: Rights,
    /// When it was created, in seconds of Unix time.
    pub created_at_s: u64,
    /// When it expires, in seconds of Unix time; `None`: never.
    pub expires_at_s: Option<u64>,
}

/// A token without its hash, as the command line prints it with `--json` and as the HTTP API returns it.
#[derive(Debug, Serialize)]
pub struct ListedToken {
    name: String,
    id: String,
    rights: String,
    areas: Vec<String>,
    /// In seconds of Unix time.
    created_at: u64,
    /// In seconds of Unix time; `None`: never.
    expires_at: Option<u64>,
    is_expired: bool,
}

impl ListedToken {
    /// Returns the token of an entry as of `now_s`, in seconds of Unix time.
    pub fn of(entry: &Entry, now_s: u64) -> Self {
        Self {
            name: entry.name.clone(),
            id: entry.id.to_string(),
            rights: entry.rights.words(),
            areas: entry.rights.areas().iter().map(ToString::to_string).collect(),
            created_at: entry.created_at_s,
            expires_at: entry.expires_at_s,
            is_expired: entry.is_expired(now_s),
        }
    }
}

const FILE_HEAD: &str =
    "# The tokens of a signalbox server. \"signalbox token\" writes this file and removes other comments.\n";

/// The most secrets of a token.
const SECRETS_MAX: usize = 2;

/// The tokens of a file, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens(Vec<Entry>);

/// The result of [`Tokens::verify`] and [`Tokens::revalidate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// The token of this entry.
    Valid(&'a Entry),
    /// The token of this entry, which has expired.
    Expired(&'a Entry),
    /// The file does not have this token.
    Unknown,
}

/// An error in a file of tokens, or in a change of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokensError {
    /// The text is not TOML, or has unknown keys.
    #[error("{0}")]
    Syntax(String),
    /// The name is empty or too long, or has a character that is not allowed.
    #[error("the name \"{}\" must be 1 to 64 letters, digits, dots, hyphens and underscores", .0.escape_debug())]
    Name(String),
    /// Another token has the name.
    #[error(
        "there is a token \"{0}\" already; choose another name, give it another secret (signalbox token rotate {0}), or revoke it first"
    )]
    NameTaken(String),
    /// The token already has two secrets.
    #[error(
        "the token \"{0}\" has two secrets that are valid already; wait until the earlier one expires, or revoke that \
         (signalbox token revoke {0} --id ID; signalbox token list shows the ids)"
    )]
    TooManySecrets(String),
    /// No token has this name, or this name and id.
    #[error(transparent)]
    NoSuchToken(#[from] NoSuchToken),
    /// Two tokens have the same id.
    #[error("the id of the token \"{0}\" is that of another one; remove one of the two")]
    IdTaken(String),
    /// The id or the hash is damaged.
    #[error(
        "the {part} of the token \"{name}\" is not what \"signalbox token create\" writes; create the token again"
    )]
    Damaged {
        /// The name of the token.
        name: String,
        /// The damaged key.
        part: &'static str,
    },
    /// The rights cannot be read.
    #[error("the rights of the token \"{name}\": {problem}")]
    Rights {
        /// The name of the token.
        name: String,
        /// The problem.
        problem: UnknownRights,
    },
}

/// There is no token of this name, or it has no secret with this id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSuchToken {
    /// There is no token of this name.
    #[error("there is no token \"{}\"; \"signalbox token list\" shows all", .0.escape_debug())]
    Name(String),
    /// The token has other ids.
    #[error("the token \"{0}\" has no secret with the id {1}; \"signalbox token list\" shows the ids")]
    Id(String, TokenId),
}

impl Entry {
    /// Returns the entry of a token in the file.
    pub fn of(
        token: &Token,
        name: String,
        rights: Rights,
        created_at_s: u64,
        expires_at_s: Option<u64>,
    ) -> Self {
        Self { name, id: token.id(), hash: token.hash(), rights, created_at_s, expires_at_s }
    }

    /// Returns whether it has expired at this time, in seconds of Unix time.
    pub fn is_expired(&self, now_s: u64) -> bool {
        self.expires_at_s.is_some_and(|at| at <= now_s)
    }
}

impl Tokens {
    /// Adds a token with a name that no other token has.
    pub fn add(&mut self, entry: Entry) -> Result<(), TokensError> {
        if self.of_name(&entry.name).next().is_some() {
            return Err(TokensError::NameTaken(entry.name));
        }
        self.insert(entry)
    }

    /// Gives the token of this name another secret, with the same rights, which expires at `expires_at_s` (`None`: never). The
    /// present secret expires at `overlap_end_s`, unless it expires earlier; one that has expired is removed. Times are seconds of
    /// Unix time. Fails if there is no such token, or if two of its secrets are valid.
    pub fn rotate(
        &mut self,
        name: &str,
        token: &Token,
        now_s: u64,
        expires_at_s: Option<u64>,
        overlap_end_s: u64,
    ) -> Result<(), TokensError> {
        let newest = self.of_name(name).last().ok_or_else(|| NoSuchToken::Name(name.to_owned()))?;
        let entry = Entry::of(token, name.to_owned(), newest.rights.clone(), now_s, expires_at_s);
        if self.of_name(name).filter(|entry| !entry.is_expired(now_s)).count() >= SECRETS_MAX {
            return Err(TokensError::TooManySecrets(name.to_owned()));
        }
        self.0.retain(|entry| entry.name != name || !entry.is_expired(now_s));
        for earlier in self.0.iter_mut().filter(|entry| entry.name == name) {
            earlier.expires_at_s =
                Some(earlier.expires_at_s.map_or(overlap_end_s, |at| at.min(overlap_end_s)));
        }
        self.insert(entry)
    }

    /// Adds a token, or the second secret of one.
    fn insert(&mut self, entry: Entry) -> Result<(), TokensError> {
        let is_usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if !(1..=64).contains(&entry.name.len()) || !entry.name.chars().all(is_usual) {
            return Err(TokensError::Name(entry.name));
        }
        if self.of_name(&entry.name).count() >= SECRETS_MAX {
            return Err(TokensError::TooManySecrets(entry.name));
        }
        if self.0.iter().any(|other| other.id == entry.id) {
            return Err(TokensError::IdTaken(entry.name));
        }
        self.0.push(entry);
        Ok(())
    }

    /// Removes the token of this name, or only its secret with this id.
    pub fn remove(&mut self, name: &str, id: Option<TokenId>) -> Result<(), NoSuchToken> {
        if self.of_name(name).next().is_none() {
            return Err(NoSuchToken::Name(name.to_owned()));
        }
        let is_removed = |entry: &mut Entry| entry.name == name && id.is_none_or(|id| entry.id == id);
        match (self.0.extract_if(.., is_removed).count(), id) {
            (0, Some(id)) => Err(NoSuchToken::Id(name.to_owned(), id)),
            _ => Ok(()),
        }
    }

    /// The secrets of a token, the newest last.
    fn of_name<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.0.iter().filter(move |entry| entry.name == name)
    }

    /// The entries, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter()
    }

    /// The time when the next token expires after `after_s`, both in seconds of Unix time; `None` if no token does.
    pub fn next_expiry(&self, after_s: u64) -> Option<u64> {
        self.0.iter().filter_map(|entry| entry.expires_at_s).filter(|at| *at > after_s).min()
    }

    /// Verifies a token at this time, in seconds of Unix time. How long that takes depends only on its public id.
    pub fn verify(&self, token: &Token, now_s: u64) -> Verdict<'_> {
        self.verdict(token.id(), now_s, |hash| token.has_hash(hash))
    }

    /// Verifies again a token that was verified before, with the entry `earlier`. `now_s` is in seconds of Unix time.
    pub fn revalidate(&self, earlier: &Entry, now_s: u64) -> Verdict<'_> {
        self.verdict(earlier.id, now_s, |hash| *hash == earlier.hash)
    }

    fn verdict(&self, id: TokenId, now_s: u64, is_hash: impl Fn(&[u8; HASH_BYTES]) -> bool) -> Verdict<'_> {
        match self.0.iter().find(|entry| entry.id == id) {
            Some(entry) if !is_hash(&entry.hash) => Verdict::Unknown,
            Some(entry) if entry.is_expired(now_s) => Verdict::Expired(entry),
            Some(entry) => Verdict::Valid(entry),
            None => Verdict::Unknown,
        }
    }
}

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

/// Parses the text of a file.
impl FromStr for Tokens {
    type Err = TokensError;

    fn from_str(text: &str) -> Result<Self, TokensError> {
        let document: Document = toml::from_str(text).map_err(|error| {
            // The rest of the error is left out, because it quotes the line, which may contain a token or a hash.
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

/// Writes the text of a file with these tokens.
impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FILE_HEAD)?;
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

/// Returns the text as a basic string of TOML.
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

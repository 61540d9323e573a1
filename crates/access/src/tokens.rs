//! The tokens of a file: their names, hashes, rights and expiry.
//!
//! Invariants: ids are unique. A name has one secret, or two while its clients change from one to the other.

use super::rights::{Rights, UnknownRights};
use super::token::{HASH_BYTES, Token, TokenId};

/// One token in the file, or one of its two secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// 1 to 64 letters, digits, dots, hyphens and underscores.
    pub name: String,
    /// The public id in the token, by which its entry is found.
    pub id: TokenId,
    pub(super) hash: [u8; HASH_BYTES],
    /// The rights that it gives.
    pub rights: Rights,
    /// When it was made, in seconds of Unix time.
    pub created_at_s: u64,
    /// When it expires, in seconds of Unix time; `None`: never.
    pub expires_at_s: Option<u64>,
}

/// A token as the command line prints it with `--json`, and the HTTP API answers it: without its hash.
#[derive(Debug, serde::Serialize)]
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
    /// The token at this time.
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

/// Why entries cannot be tokens of one file.
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
    /// The token has as many secrets as it may have.
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
        /// Which key.
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
    /// The entry of a token in the file.
    pub fn of(
        token: &Token,
        name: String,
        rights: Rights,
        created_at_s: u64,
        expires_at_s: Option<u64>,
    ) -> Self {
        Self { name, id: token.id(), hash: token.hash(), rights, created_at_s, expires_at_s }
    }

    /// Whether it has expired at this time, in seconds of Unix time.
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
    pub(super) fn insert(&mut self, entry: Entry) -> Result<(), TokensError> {
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

    /// In the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter()
    }

    /// When the next token expires after this time, both in seconds of Unix time; `None`: none does.
    pub fn next_expiry(&self, after_s: u64) -> Option<u64> {
        self.0.iter().filter_map(|entry| entry.expires_at_s).filter(|at| *at > after_s).min()
    }

    /// Verifies a token at this time, in seconds of Unix time. How long that takes depends only on its public id.
    pub fn verify(&self, token: &Token, now_s: u64) -> Verdict<'_> {
        self.verdict(token.id(), now_s, |hash| token.has_hash(hash))
    }

    /// Verifies a token again that was verified with the entry `earlier`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_valid_until_it_expires_or_is_removed() {
        let token = Token::random(|bytes| {
            bytes.fill(7);
            Ok::<_, ()>(())
        })
        .unwrap();
        let stranger = Token::random(|bytes| {
            bytes.fill(8);
            Ok::<_, ()>(())
        })
        .unwrap();
        let entry = Entry::of(&token, "web".to_owned(), Rights::ALL, 1, Some(100));
        let mut tokens = Tokens::default();
        tokens.add(entry.clone()).unwrap();
        assert_eq!(tokens.verify(&token, 99), Verdict::Valid(&entry));
        assert_eq!(tokens.verify(&token, 100), Verdict::Expired(&entry));
        assert_eq!(tokens.verify(&stranger, 99), Verdict::Unknown);
        assert_eq!(tokens.revalidate(&entry, 99), Verdict::Valid(&entry));
        assert_eq!(tokens.revalidate(&entry, 100), Verdict::Expired(&entry));
        assert_eq!(tokens.add(entry.clone()), Err(TokensError::NameTaken("web".to_owned())));
        let twin = Entry { name: "twin".to_owned(), ..entry.clone() };
        assert_eq!(tokens.add(twin), Err(TokensError::IdTaken("twin".to_owned())));
        for name in ["", "a b", "ä", &"x".repeat(65)] {
            let named = Entry { name: name.to_owned(), ..entry.clone() };
            assert!(matches!(tokens.add(named), Err(TokensError::Name(_))), "{name}");
        }
        assert!(tokens.remove("web", Some(stranger.id())).is_err());
        tokens.remove("web", Some(token.id())).unwrap();
        assert_eq!(tokens.revalidate(&entry, 99), Verdict::Unknown);
        assert!(tokens.remove("web", None).is_err());
    }

    #[test]
    fn a_token_has_two_secrets_while_it_is_rotated() {
        let [first, second, third] = [1, 2, 3].map(|byte| {
            let random = Token::random(|bytes| {
                bytes.fill(byte);
                Ok::<_, ()>(())
            });
            random.unwrap()
        });
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
        for (name, byte, expires_at_s) in [("late", 1, Some(300)), ("never", 2, None), ("soon", 3, Some(200))]
        {
            let token = Token::random(|bytes| {
                bytes.fill(byte);
                Ok::<_, ()>(())
            });
            tokens.add(Entry::of(&token.unwrap(), name.to_owned(), Rights::ALL, 1, expires_at_s)).unwrap();
        }
        let expected = [(0, Some(200)), (199, Some(200)), (200, Some(300)), (300, None)];
        assert_eq!(expected.map(|(after_s, _)| (after_s, tokens.next_expiry(after_s))), expected);
    }
}

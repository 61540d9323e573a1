//! `signalbox token`: creates, revokes and lists the tokens in a file. It needs no server.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::arguments::Common;
use super::exit::{Failure, check_output};
use super::table::Column;
use super::values::{time, unix_now_s};
use signalbox_access::{Entry, ListedToken, Rights, Token, TokenId, read_tokens, update_tokens};

/// Create, rotate, revoke and list the tokens of clients
///
/// A token is a random secret that proves what its client may do. These commands change the file that access.tokens
/// names in the configuration of the server; the server reads it at its start and on SIGHUP. The file contains no
/// secrets, only hashes. A symbolic link is followed, and stays.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox token create web --rights read,acquire --area limit:web/ > web.token
  signalbox token create operator --rights all --expires-in 2160h
  signalbox token rotate web > web.token.new && systemctl reload signalbox
  signalbox token revoke web && systemctl reload signalbox
  signalbox token list --json")]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(Create),
    Rotate(Rotate),
    Revoke(Revoke),
    /// List the tokens
    ///
    /// With --json, the output is one object per line with the keys name, id, rights, areas, created_at, expires_at
    /// (both in seconds of Unix time; null: never) and is_expired. The server's status page shows when clients last
    /// used them.
    #[command(after_help = "Examples:\n  signalbox token list\n  signalbox token list --json")]
    List(Source),
}

/// The file of tokens.
#[derive(Debug, Args)]
struct Source {
    /// File of tokens, as access.tokens names it in the configuration of the server
    #[arg(long, value_name = "FILE", default_value = "/etc/signalbox/tokens.toml")]
    file: PathBuf,
}

/// Create a token, and print it once
///
/// The token goes to standard output, and is kept nowhere else. The server accepts it after SIGHUP.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  signalbox token create web --rights read,acquire --area limit:web/ > web.token"
)]
struct Create {
    /// Name of the token in logs, of 1 to 64 letters, digits, dots, hyphens and underscores
    name: String,

    /// What the token permits: read, acquire and administer, separated by commas, or all
    #[arg(long, value_name = "RIGHTS")]
    rights: String,

    /// Where it permits that: limit (declared or not), counter, semaphore or sysv, or names that begin with a prefix,
    /// such as limit:PREFIX; may be repeated [default: everywhere]
    #[arg(long = "area", value_name = "AREA")]
    areas: Vec<String>,

    #[command(flatten)]
    life: Life,

    #[command(flatten)]
    source: Source,
}

/// How long a secret is accepted.
#[derive(Debug, Args)]
struct Life {
    /// Time after which the token is refused, in seconds or with a unit (30s, 5m, 24h), or never
    #[arg(long, value_name = "TIME", value_parser = expiry, default_value = "8760h")]
    expires_in: Expiry,
}

/// The time after which a secret is refused; `None` for never.
#[derive(Clone, Copy, Debug)]
struct Expiry(Option<Duration>);

/// Create a new secret for a token, and print it once
///
/// The token has the same name and rights. Its previous secret is accepted for a while, so that its clients can change
/// to the new one; the server's status page, /api/v1/tokens and the metric signalbox_token_last_use_timestamp_seconds
/// show when each was last used. The server accepts the new one after SIGHUP.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  signalbox token rotate web > web.token.new && systemctl reload signalbox\n  \
                  signalbox token rotate web --overlap 24h > web.token.new"
)]
struct Rotate {
    /// Name of the token
    name: String,

    /// How long the previous secret is still accepted, in seconds or with a unit (30s, 5m, 24h)
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "168h")]
    overlap: Duration,

    #[command(flatten)]
    life: Life,

    #[command(flatten)]
    source: Source,
}

/// Remove a token
///
/// It loses its rights when the server gets SIGHUP, on open connections too.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  signalbox token revoke web && systemctl reload signalbox")]
struct Revoke {
    /// Name of the token
    name: String,

    /// Remove only the secret with this id, as "signalbox token list" shows it [default: all]
    #[arg(long, value_name = "ID")]
    id: Option<TokenId>,

    #[command(flatten)]
    source: Source,
}

const COLUMNS: [Column; 4] =
    [Column::word("NAME", 4), Column::word("ID", 16), Column::word("EXPIRES", 12), Column::text("RIGHTS")];

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    match &arguments.action {
        Action::Create(arguments) => create(arguments)?,
        Action::Rotate(arguments) => rotate(arguments)?,
        Action::Revoke(Revoke { name, id, source }) => {
            update_tokens(&source.file, |tokens| {
                tokens.remove(name, *id).map_err(|error| Failure::refused(error.to_string()))
            })?;
        }
        Action::List(source) => list(source, common)?,
    }
    Ok(())
}

fn create(arguments: &Create) -> Result<(), Failure> {
    let Create { name, rights, areas, life, source } = arguments;
    let rights = Rights::parse(rights, areas.iter().map(String::as_str))
        .map_err(|error| Failure::usage(error.to_string()))?;
    if rights.words() == "none" {
        return Err(Failure::usage(
            "a token without rights permits nothing; give --rights read, acquire, administer or all",
        ));
    }
    let (token, now) = (random()?, unix_now_s());
    let entry = Entry::of(&token, name.clone(), rights, now, life.end(now));
    update_tokens(&source.file, |tokens| {
        tokens.add(entry).map_err(|error| Failure::usage(error.to_string()))?;
        print(&token)
    })
}

fn rotate(arguments: &Rotate) -> Result<(), Failure> {
    let Rotate { name, overlap, life, source } = arguments;
    let (token, now) = (random()?, unix_now_s());
    update_tokens(&source.file, |tokens| {
        let rotated = tokens.rotate(name, &token, now, life.end(now), after(now, *overlap));
        rotated.map_err(|error| Failure::refused(error.to_string()))?;
        print(&token)
    })
}

/// Prints a token. The file is changed only afterwards: if printing fails, the token is lost, and must not be in the file.
fn print(token: &Token) -> Result<(), Failure> {
    check_output()?;
    writeln!(std::io::stdout(), "{}", token.reveal())
        .map_err(|error| Failure::unwritten(&error, "; the file of tokens was not changed"))
}

fn random() -> Result<Token, Failure> {
    Token::random(getrandom::fill).map_err(|error| {
        Failure::refused(format!("cannot get random numbers from the system: {error}; check /dev/urandom"))
    })
}

fn expiry(text: &str) -> Result<Expiry, String> {
    if text == "never" {
        return Ok(Expiry(None));
    }
    time(text).map(|time| Expiry(Some(time))).map_err(|advice| format!("{advice}, or never"))
}

impl Life {
    fn end(&self, now_s: u64) -> Option<u64> {
        self.expires_in.0.map(|time| after(now_s, time))
    }
}

/// Returns the time this long after now, in seconds of Unix time, rounded up, so that a secret is valid for the whole time.
fn after(now_s: u64, time: Duration) -> u64 {
    now_s + time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn list(source: &Source, common: &Common) -> Result<(), Failure> {
    let tokens = read_tokens(&source.file)?;
    let now = unix_now_s();
    let mut rows = common.rows(&COLUMNS);
    for entry in tokens.iter() {
        let expires = match entry.expires_at_s {
            None => "never".to_owned(),
            Some(_) if entry.is_expired(now) => "expired".to_owned(),
            Some(at) if at - now < 3600 => format!("in {} s", at - now),
            Some(at) => format!("in {} h", (at - now) / 3600),
        };
        let rights = entry.rights.to_string().escape_debug().to_string();
        rows.push_with(&ListedToken::of(entry, now), &[("EXPIRES", &expires), ("RIGHTS", &rights)])?;
    }
    Ok(rows.finish()?)
}

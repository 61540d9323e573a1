//! The session that `acquire` handed over to a script: the arguments of `renew` and `release`, and their requests.

use std::time::Duration;

use clap::Args;

use super::exit::{Exit, Failure};
use super::number::within;
use super::server::Server;
use crate::client::{Direct, Error, SessionKey, Status};

/// The variables that `acquire` prints. `run` sets the last one for its command.
pub(super) const SESSION: &str = "SIGNALBOX_SESSION";
pub(super) const KEY: &str = "SIGNALBOX_KEY";
pub(super) const GRANT: &str = "SIGNALBOX_GRANT";
pub(super) const SLOTS: &str = "SIGNALBOX_SLOTS";

/// The arguments that name the session.
#[derive(Debug, Args)]
pub(super) struct SessionArguments {
    /// Id of the session, as printed by "signalbox acquire"
    #[arg(long, value_name = "ID", env = SESSION, value_parser = within(0..=u64::MAX))]
    session: Option<u64>,

    /// Key of the session; pass it in the environment, because other users can read the arguments of a command
    #[arg(long, value_name = "HEX", env = KEY, hide_env_values = true)]
    key: Option<String>,
}

impl SessionArguments {
    /// The session with its key. No message repeats the key, not even a malformed one.
    pub(super) fn credentials(&self) -> Result<Credentials, Failure> {
        let (Some(session), Some(key)) = (self.session, &self.key) else {
            let message = format!(
                "no session is given; set {SESSION} and {KEY} to what \"signalbox acquire\" printed (eval \"$(signalbox \
                 acquire …)\" sets both), or use --session and --key"
            );
            return Err(Failure::new(Exit::Usage, message));
        };
        let key = bytes_of(key).ok_or_else(|| {
            let message = format!(
                "the key of the session must have 32 hexadecimal digits; use the value of {KEY} that \"signalbox \
                 acquire\" printed"
            );
            Failure::new(Exit::Usage, message)
        })?;
        Ok(Credentials::new(session, SessionKey(key)))
    }
}

/// A session's id and its key.
#[derive(Debug)]
pub(super) struct Credentials {
    session: u64,
    key: SessionKey,
}

impl Credentials {
    pub(super) fn new(session: u64, key: SessionKey) -> Self {
        Self { session, key }
    }

    /// Renews the session's lease and returns its length.
    pub(super) async fn renew(&self, server: &Server) -> Result<Duration, Failure> {
        self.attach(server).await.map(|(_, left)| left)
    }

    /// Ends the session and releases everything that it holds.
    pub(super) async fn close(&self, server: &Server) -> Result<(), Failure> {
        let (direct, _) = self.attach(server).await?;
        self.checked(server.answer(direct.close_session()).await?)
    }

    async fn attach(&self, server: &Server) -> Result<(Direct, Duration), Failure> {
        let direct = server.direct().await?;
        let left = self.checked(server.answer(direct.attach_session(self.session, self.key)).await?)?;
        Ok((direct, left))
    }

    fn checked<T>(&self, result: Result<T, Error>) -> Result<T, Failure> {
        match result {
            Err(error) if error.status() == Some(Status::NoSuchSession) => {
                let message = format!(
                    "session {} does not exist, or its key is wrong: its lease expired, it was released or revoked, or \
                     the server was restarted; others may hold its resources now, so stop the work",
                    self.session
                );
                Err(Failure::new(Exit::Failure, message))
            }
            result => Ok(result?),
        }
    }
}

/// The bytes of 32 hexadecimal digits.
fn bytes_of(digits: &str) -> Option<[u8; 16]> {
    let is_key = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u128::from_str_radix(digits, 16).ok().filter(|_| is_key)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::hex;

    #[test]
    fn a_key_is_what_was_printed_and_nothing_else() {
        let key = *b"\x00\x01exactly 16 b\xff\xfe";
        assert_eq!(bytes_of(&hex(&key)), Some(key));
        for wrong in ["", "00", "+0000000000000000000000000000000", "0000000000000000000000000000000g"] {
            assert_eq!(bytes_of(wrong), None, "{wrong}");
        }
    }
}

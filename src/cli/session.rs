//! `signalbox renew`, `signalbox release` and `signalbox verify`: renew or release the session that `acquire` handed
//! over to a script, and check a grant.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::messages::warn;
use super::output::seconds;
use super::server::Server;
use super::table::Column;
use super::values::within;
use signalbox_client::{Direct, Error, GraceLeft, GrantId, GrantState, SessionKey, Status, VerifiedGrant};
use signalbox_model::from_hex;
use signalbox_model::views::ttl_left_s;

/// The environment variables that `acquire` prints. `run` sets the last two of these four, and [`EVENTS_FD`], for its
/// command.
pub(super) const SESSION: &str = "SIGNALBOX_SESSION";
pub(super) const KEY: &str = "SIGNALBOX_KEY";
pub(super) const GRANT: &str = "SIGNALBOX_GRANT";
pub(super) const SLOTS: &str = "SIGNALBOX_SLOTS";

/// The environment variable with the number of the descriptor from which the command of `run` reads what happens to its
/// resources.
pub(super) const EVENTS_FD: &str = "SIGNALBOX_EVENTS_FD";

/// The arguments that name the session.
#[derive(Debug, Args)]
pub(super) struct SessionArguments {
    /// Id of the session, as printed by "signalbox acquire"
    #[arg(long, value_name = "ID", env = SESSION, value_parser = within(0..=u64::MAX))]
    session: Option<u64>,

    /// Key of the session
    ///
    /// Pass it in the environment, because other users can read the arguments of a command.
    #[arg(long, value_name = "HEX", env = KEY, hide_env_values = true)]
    key: Option<String>,

    /// Grant that the session must still hold
    ///
    /// As printed by "signalbox acquire"; with --session, the variable is ignored.
    #[arg(long, value_name = "ID", env = GRANT, value_parser = within(0..=u64::MAX))]
    grant: Option<u64>,
}

impl SessionArguments {
    /// Returns the grant to check. With `--session` but without `--grant`, SIGNALBOX_GRANT is ignored, because it belongs
    /// to the session in SIGNALBOX_SESSION.
    fn grant(&self, common: &Common) -> Option<GrantId> {
        let is_of_other = common.has("session") && !common.has("grant");
        self.grant.filter(|_| !is_of_other).map(GrantId)
    }

    /// Returns the session with its key. No message repeats the key, not even a malformed one.
    pub(super) fn credentials(&self, common: &Common) -> Result<Credentials, Failure> {
        let missing = |what: &str| {
            Err(Failure::usage(format!(
                "{what}; set {SESSION} and {KEY} to what \"signalbox acquire\" printed (held=$(signalbox acquire …) || \
                 exit; eval \"$held\"), or use --session and --key"
            )))
        };
        let (session, key) = match (self.session, &self.key) {
            (Some(session), Some(key)) => (session, key),
            (Some(session), None) => return missing(&format!("the key of session {session} is not given")),
            (None, Some(_)) => return missing("a key is given, but not the id of its session"),
            (None, None) => return missing("no session is given"),
        };
        let key = from_hex(key).and_then(|key| key.try_into().ok()).ok_or_else(|| {
            Failure::usage(format!(
                "the key of the session must have 32 hexadecimal digits; use the value of {KEY} that \"signalbox \
                 acquire\" printed"
            ))
        })?;
        Ok(Credentials { session, key: SessionKey(key), grant: self.grant(common) })
    }
}

/// Renew the lease of resources that were acquired with "signalbox acquire"
///
/// Prints the length of the lease in seconds, counted from now; with --json, an object with the key lease. If the
/// session no longer exists, or no longer holds its grant because that was revoked or its semaphore was removed, the
/// exit status is 1, and others may hold the resources. While the grant is being revoked, a warning on standard error
/// says how long is left.
///
/// The session, its key and its grant are read from SIGNALBOX_SESSION, SIGNALBOX_KEY and SIGNALBOX_GRANT, which
/// "signalbox acquire" prints. With --session, SIGNALBOX_GRANT is not read, because it belongs to another session: give
/// --grant too. Without a grant, only the session is checked.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox renew
  signalbox renew > /dev/null || exit")]
pub(super) struct Renew {
    #[command(flatten)]
    session: SessionArguments,
}

pub(super) async fn renew(arguments: &Renew, common: &Common) -> Result<(), Failure> {
    let credentials = arguments.session.credentials(common)?;
    let lease = seconds(credentials.renew(&common.server).await?);
    common.print(&json!({ "lease": lease }), lease)
}

/// Release resources that were acquired with "signalbox acquire"
///
/// Closes the session, which releases everything that it holds. If the session no longer existed, or no longer held its
/// grant because that was revoked or its semaphore was removed, the exit status is 1: others may have held the
/// resources in the meantime.
///
/// The session, its key and its grant are read from SIGNALBOX_SESSION, SIGNALBOX_KEY and SIGNALBOX_GRANT, which
/// "signalbox acquire" prints. With --session, SIGNALBOX_GRANT is not read, because it belongs to another session: give
/// --grant too. Without a grant, only the session is checked.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox release
  render 7 && signalbox release --done || signalbox release
  trap 'signalbox release' EXIT; trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 143' TERM")]
pub(super) struct Release {
    #[command(flatten)]
    session: SessionArguments,

    /// The work is done: commands that wait with --share end, instead of working one after the other
    #[arg(long)]
    done: bool,
}

pub(super) async fn release(arguments: &Release, common: &Common) -> Result<(), Failure> {
    let credentials = arguments.session.credentials(common)?;
    credentials.close(&common.server, arguments.done).await
}

/// A session's id and its key, and the grant that it is expected to hold.
#[derive(Debug)]
pub(super) struct Credentials {
    session: u64,
    key: SessionKey,
    /// Without it, only the session is checked.
    grant: Option<GrantId>,
}

impl Credentials {
    pub(super) fn new(session: u64, key: SessionKey) -> Self {
        Self { session, key, grant: None }
    }

    /// Renews the session's lease and returns its length. Fails if the grant is gone, and warns if it will be soon.
    pub(super) async fn renew(&self, server: &Server) -> Result<Duration, Failure> {
        let Attached { left, grant, .. } = self.attach(server).await?;
        if let Some(VerifiedGrant { state: GrantState::Retiring, grace_left, .. }) = grant? {
            warn(&self.retiring(grace_left));
        }
        Ok(left)
    }

    /// Ends the session and releases everything that it holds; `is_done` if the work of its single flight is done.
    /// Fails if the grant was gone before; the session is ended nevertheless. With `is_done`, fails without ending the
    /// session if no grant is given, or one that was not acquired with `--share`.
    pub(super) async fn close(&self, server: &Server, is_done: bool) -> Result<(), Failure> {
        let Attached { direct, grant, .. } = self.attach(server).await?;
        match self.grant {
            None if is_done => {
                let message = "--done requires the grant; set SIGNALBOX_GRANT to what \"signalbox acquire\" printed, or use \
                               --grant";
                return Err(Failure::new(Exit::Usage, message));
            }
            Some(id) if is_done && grant.is_ok() => match server.answer(direct.release_done(id)).await {
                Err(error) if error.status() == Some(Status::InvalidArguments) => {
                    let message = format!(
                        "{} was not acquired with --share, so nothing waits for its work, and it is still held; release it \
                         without --done",
                        self.shown_grant()
                    );
                    return Err(Failure::new(Exit::Usage, message));
                }
                result => result?,
            },
            _ => {}
        }
        self.explained(server.answer(direct.close_session()).await)?;
        grant.map(drop)
    }

    /// Attaches to the session, which renews its lease. A grant of another session is the user's mistake, so it is
    /// refused before anything changes.
    async fn attach(&self, server: &Server) -> Result<Attached, Failure> {
        let direct = server.direct().await?;
        let grant = self.verified(server, &direct).await;
        if let Ok(Some(VerifiedGrant { session, .. })) = grant
            && session != self.session
        {
            return Err(Failure::usage(format!(
                "{} is held by session {session}, not by session {}; give the grant and the session that the same \
                 \"signalbox acquire\" printed",
                self.shown_grant(),
                self.session
            )));
        }
        let left = self.explained(server.answer(direct.attach_session(self.session, self.key)).await)?;
        Ok(Attached { direct, left, grant })
    }

    /// Returns the state of the grant, if one is given. Fails if no session holds it.
    async fn verified(&self, server: &Server, direct: &Direct) -> Result<Option<VerifiedGrant>, Failure> {
        let Some(grant) = self.grant else { return Ok(None) };
        match server.answer(direct.verify(grant)).await {
            Err(error) if error.status() == Some(Status::NotAcquired) => Err(Failure::refused(format!(
                "{} is no longer held: it was revoked or released, or its semaphore was removed; others may hold its \
                     resources now, so stop the work",
                self.shown_grant()
            ))),
            result => Ok(Some(result?)),
        }
    }

    fn shown_grant(&self) -> String {
        self.grant.map_or_else(String::new, |GrantId(grant)| format!("grant {grant}"))
    }

    fn explained<T>(&self, result: Result<T, Error>) -> Result<T, Failure> {
        match result {
            Err(error) if error.status() == Some(Status::NoSuchSession) => Err(Failure::refused(format!(
                "session {} does not exist, or its key is wrong: its lease expired, it was released or revoked, or \
                     the server was restarted; others may hold its resources now, so stop the work",
                self.session
            ))),
            result => Ok(result?),
        }
    }

    /// Returns the warning for a grant that is retiring.
    fn retiring(&self, grace_left: GraceLeft) -> String {
        let grant = self.shown_grant();
        match grace_left {
            GraceLeft::For(left) => format!(
                "{grant} is being revoked, and its holder loses it in {} s, renewed or not; stop the work and release it",
                seconds(left.into())
            ),
            GraceLeft::NotRevoked => format!(
                "{grant} is still held, but its semaphore is being removed or was declared again, or its slot is out of \
                 service; finish the work and release it"
            ),
        }
    }
}

/// A session that this process has attached to.
struct Attached {
    direct: Direct,
    /// The length of its lease.
    left: Duration,
    /// The grant, if one is expected.
    grant: Result<Option<VerifiedGrant>, Failure>,
}

const COLUMNS: [Column; 3] =
    [Column::word("STATE", 8).under("standing"), Column::number("SESSION", 20), Column::number("LEFT", 10)];

/// Check whether a grant is held, by which session, and for how long
///
/// Prints one of three states, each with its exit status: held (0); retiring (2), which is still held, but is being
/// revoked, or its semaphore is being removed, was removed and declared again, or no longer has its slot; gone (1).
///
/// The columns are: state, session, seconds until the lease ends without renewal; the session of a connection has no lease. With
/// --json, the output is one object with the keys grant, standing, session and left.
///
/// The command does not renew the lease. A service that receives the id of a grant with a request can check with this
/// command whether the sender still holds it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox verify 4711
  signalbox verify \"$SIGNALBOX_GRANT\" > /dev/null || exit")]
pub(super) struct Verify {
    /// Id of the grant
    #[arg(value_parser = within(0..=u64::MAX))]
    grant: u64,
}

pub(super) async fn verify(arguments: &Verify, common: &Common) -> Result<(), Failure> {
    let (grant, server) = (arguments.grant, &common.server);
    let direct = server.direct().await?;
    let verified = match server.answer(direct.verify(GrantId(grant))).await {
        Err(error) if error.status() == Some(Status::NotAcquired) => None,
        result => Some(result?),
    };
    let (state, end) = match verified.map(|verified| verified.state) {
        Some(GrantState::Held) => ("held", Ok(())),
        Some(GrantState::Retiring) => ("retiring", Err(Failure::silent(Exit::Retiring))),
        None => ("gone", Err(Failure::silent(Exit::Failure))),
    };
    let left = verified.and_then(|verified| ttl_left_s(verified.ttl_left));
    // Ids are strings: many JSON readers convert numbers to doubles, which would round them.
    let session = verified.map(|verified| verified.session.to_string());
    let object = json!({ "grant": grant.to_string(), "standing": state, "session": session, "left": left });
    let mut rows = common.rows(&COLUMNS);
    rows.push(&object)?;
    rows.finish()?;
    end
}

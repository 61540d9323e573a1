//! `signalbox revoke` and `signalbox cancel`: take grants from their holders, and waiting requests from their queues.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;

use super::arguments::Common;
use super::change;
use super::exit::Failure;
use super::listing::{self, ListingKind};
use super::messages::warn;
use super::server::PERMISSION_DENIED;
use super::sessions;
use super::values::{Name, session_id, time_or_none, within};
use crate::config::Clients;
use signalbox_client::{Direct, GrantId, Revocation, SessionEntry, Status};
use signalbox_model::{Cancellation, Milliseconds, Operation, SessionId, SessionKind};

/// Cancel a waiting request, or all waiting requests of a session
///
/// A canceled request leaves its queue, and its client is told that it was canceled. The session keeps what it holds.
/// "signalbox status" prints the ids of requests in the column GRANT (their grants would get the same ids), and the ids
/// of sessions. With --session, the command prints how many requests were canceled. A client that keeps running may
/// request again; "signalbox pause" makes all requests for a name wait.
#[derive(Debug, Args)]
#[command(
    override_usage = "signalbox cancel [OPTIONS] <--request <ID>|--session <ID>>",
    after_help = "Examples:\n  signalbox cancel --request 4711\n  signalbox cancel --session 17"
)]
#[group(required = true, multiple = false)]
pub(super) struct Cancel {
    /// Id of the waiting request
    #[arg(long, value_name = "ID", value_parser = within(0..=u64::MAX))]
    request: Option<u64>,

    /// Id of the session whose waiting requests are canceled; it keeps what it holds
    #[arg(long, value_name = "ID", value_parser = session_id)]
    session: Option<SessionId>,
}

impl Cancel {
    pub(super) async fn run(&self, common: &Common) -> Result<(), Failure> {
        let operation = Operation::Cancel(match (self.request, self.session) {
            (Some(request), _) => Cancellation::Request(GrantId(request)),
            (None, session) => Cancellation::Session(session.expect("clap requires one of the two")),
        });
        change::request_and_print(common, &common.server.direct().await?, &operation, &[]).await
    }
}

/// Revoke the grants of a name, one grant, or sessions with everything that they hold
///
/// The server notifies the holder, and releases the resources when the grace period ends, whether the holder has stopped or
/// not. "signalbox status" prints the ids, and "signalbox sessions" the addresses of clients. A second revocation can shorten the
/// grace period, but not extend it.
///
/// With NAME, every grant of it is revoked, with all names that were acquired together with it. On a terminal, the command asks
/// first; elsewhere, it needs --yes. It prints how many grants were revoked. What plain Acquires hold has no grant: revoke the
/// sessions of their connections.
///
/// With --client, the leased sessions are revoked whose client connects, or last connected, from the address or
/// network, or with the token or certificate, which "signalbox sessions" shows as token:NAME and certificate:NAME. The
/// command prints how many sessions were revoked. The server continues even if --timeout ends first; 100,000 sessions
/// with a data directory take some seconds. Connections are not closed: what a connection holds without a lease is
/// released when its client disconnects, or when its session is revoked by --session. A client that keeps running may
/// open new sessions. System V processes are not revoked. A session that was restored at the start of the server and
/// whose client has not come back has no address and no identity.
///
/// With --dry-run, nothing is revoked: the output is the list of the holders, as in "signalbox status --holders", or of
/// the sessions, as in "signalbox sessions".
#[derive(Debug, Args)]
#[command(
    override_usage = "signalbox revoke [OPTIONS] <NAME|--grant <ID>|--session <ID>|--client <CLIENT>>",
    after_help = "\
Examples:
  signalbox revoke deploys
  signalbox revoke --grant 4711
  signalbox revoke --session 17 --grace 5m
  signalbox revoke --client 192.0.2.7 --grace 0
  signalbox revoke --client 2001:db8::/64 --dry-run
  signalbox revoke --client token:deploy"
)]
pub(super) struct Revoke {
    #[command(flatten)]
    target: Target,

    /// How long the holder keeps its resources [default: 10]
    ///
    /// It can stop in this grace period; 0 for no time.
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    grace: Option<Duration>,

    /// With NAME or --client: only list what would be revoked
    #[arg(long, conflicts_with_all = ["grant", "session"])]
    dry_run: bool,

    /// With NAME: do not ask for confirmation
    #[arg(long, requires = "name")]
    yes: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Target {
    /// Limit whose grants are revoked
    #[arg(value_parser = Name::parser())]
    name: Option<Name>,

    /// Id of the grant
    #[arg(long, value_name = "ID", value_parser = within(0..=u64::MAX))]
    grant: Option<u64>,

    /// Id of the session; its grants are revoked, and its waiting requests end
    #[arg(long, value_name = "ID", value_parser = session_id)]
    session: Option<SessionId>,

    /// Client whose leased sessions are revoked
    ///
    /// Its address, a network such as 10.0.0.0/8, token:NAME or certificate:NAME.
    #[arg(long, value_name = "CLIENT")]
    client: Option<Clients>,
}

impl Revoke {
    pub(super) async fn run(&self, common: &Common) -> Result<(), Failure> {
        let Target { name, grant, session, client } = &self.target;
        let direct = common.server.direct().await?;
        let what = match (name, grant, session, client) {
            (Some(name), ..) => return self.revoke_all_of(common, &direct, name).await,
            (_, Some(grant), ..) => Revocation::Grant(GrantId(*grant)),
            (_, _, Some(session), _) => Revocation::Session(*session),
            (.., client) => client.as_ref().expect("clap requires one of the four").revocation(),
        };
        match self.dry_run {
            true => {
                let would_end = |session: &SessionEntry<Bytes>| {
                    session.kind == SessionKind::Leased && what.is_about(session)
                };
                sessions::print(common, &direct, would_end).await
            }
            false => change::request_and_print(common, &direct, &self.operation(what), &[]).await,
        }
    }

    fn operation<'a>(&self, what: Revocation<'a>) -> Operation<'a> {
        let grace = self.grace.map_or(Milliseconds::GRACE_DEFAULT, Milliseconds::saturating_from);
        Operation::Revoke { what, grace }
    }

    async fn revoke_all_of(&self, common: &Common, direct: &Direct, name: &Name) -> Result<(), Failure> {
        if self.dry_run {
            return listing::print(common, name, ListingKind::Holders).await;
        }
        let server = &common.server;
        let namespace = server.resolve(direct, name).await?;
        let holders = listing::all(direct, namespace, name.bytes(), ListingKind::Holders);
        let holders = match server.answer(holders).await {
            Err(error) if error.status() == Some(Status::NotFound) => {
                return Err(server.not_found(name).await);
            }
            holders => holders?,
        };
        let grants: Vec<_> = holders.iter().filter_map(|holder| holder.grant).collect();
        let object = format!("{} {name}", namespace.noun());
        if grants.len() < holders.len() {
            warn(&format!(
                "{} of {} holders of {object} have no grant, and keep what they hold; \"signalbox status\" shows their \
                 sessions, which --session revokes",
                holders.len() - grants.len(),
                holders.len()
            ));
        }
        if grants.is_empty() && !server.answer(direct.may_administer(namespace, name.bytes())).await? {
            return Err(Failure::refused(format!(
                "cannot revoke the grants of {object}: {PERMISSION_DENIED}"
            )));
        }
        if !grants.is_empty() && !self.yes {
            let s = if grants.len() == 1 { "" } else { "s" };
            confirm(&format!("revoke {} grant{s} of {object}", grants.len()))?;
        }
        let mut revoked = 0;
        for grant in grants {
            let operation = self.operation(Revocation::Grant(grant));
            match server.answer(direct.change(&operation)).await {
                Ok(_) => revoked += 1,
                // It was released meanwhile.
                Err(error) if error.status() == Some(Status::NotAcquired) => {}
                Err(error) => return Err(change::refused(server, direct, &operation, error).await),
            }
        }
        Ok(writeln!(io::stdout(), "{revoked}")?)
    }
}

/// Asks for confirmation on the terminal. Fails if the user does not confirm, or if there is no terminal: `--yes` is then
/// required.
fn confirm(what: &str) -> Result<(), Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::usage(format!("this would {what}; confirm that with --yes")));
    }
    write!(io::stderr(), "{what}? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::refused("nothing was revoked")),
    }
}

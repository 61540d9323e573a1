//! `signalbox apply` and `signalbox export-declarations`: make the declared semaphores match a file, and write them to
//! a file.
//!
//! Each change is a separate request, as with `declare` and `remove`, so a file may be applied in part. It can then be
//! applied again.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;

use super::arguments::Common;
use super::change::{When, removal, waiting_for_more};
use super::exit::{Exit, Failure};
use super::messages::warn;
use super::output::{escaped, json, sanitized};
use super::server::{PERMISSION_DENIED, Server};
use super::values::time_or_none;
use crate::config::{DeclarationsFile, DeclareConfig};
use crate::declarations::{Obstacle, Step, refuses, steps};
use signalbox_client::{DeclaredEntry, Direct, Error, Namespace, Status};
use signalbox_model::Quoted;

/// Make the declared semaphores match a file
///
/// The file is in TOML. It begins with prefix = "TEXT", with which the names of all its declarations begin; every name
/// begins with the empty prefix. Then each declaration is a table [[semaphore.declare]] with name, capacity and perhaps
/// slots and label, as in the server's configuration. "signalbox export-declarations" writes such a file.
///
/// Semaphores that differ are declared or changed, and the others stay as they are, so applying the same file again
/// changes nothing. With --prune, declared semaphores below the prefix that the file does not have are removed, except
/// those that the server's configuration declares. Pauses and slots out of service stay.
///
/// The output is one line for each name: declare, change, remove, unchanged or refused; the name, escaped as in lists;
/// the difference; and if the change was refused, the reason. With --dry-run, these lines say what would change. With
/// --json, the output is one object per line with the keys name (or name_hex), change, from and to (null or an object
/// with the keys capacity, slots and label) and, if the change was refused, error (an object with the keys code and
/// message).
///
/// Each change is made separately: if some are refused, the others are made, and the exit status is 1. If the file has
/// a mistake, nothing is changed, and the exit status is 78.
///
/// The server accepts these requests from its own machine and from the addresses in admin_from of its configuration, or
/// with a token that has the right to administer each name that changes and to read the names below the prefix.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox apply -f limits.toml --dry-run
  signalbox apply -f limits.toml --prune
  signalbox apply -f limits.toml --prune --when last-holder --json")]
pub(super) struct Arguments {
    /// File of declarations; - for the standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,

    /// Change nothing, and print what would change
    #[arg(long)]
    dry_run: bool,

    /// Remove declared semaphores below the prefix that the file does not have
    #[arg(long)]
    prune: bool,

    /// With --prune: when to remove a semaphore
    #[arg(long, value_enum, value_name = "WHEN", default_value = "idle", requires = "prune")]
    when: When,

    /// With --when now: how long holders keep their resources, so that they can stop; 0 for no time [default: 10]
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    grace: Option<Duration>,

    /// Lower a capacity even if that refuses the waiting requests for more
    #[arg(long)]
    refuse_waiters: bool,
}

pub(super) async fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    let Arguments { file, dry_run, prune, when, grace, refuse_waiters } = arguments;
    let server = &common.server;
    let removal = removal(*when, *grace)?;
    let DeclarationsFile { prefix, declare } = match DeclarationsFile::load(file) {
        Ok(file) => file,
        Err(error) => {
            error.mistakes().iter().for_each(|mistake| warn(mistake));
            return Err(Failure::silent(Exit::Configuration));
        }
    };
    let direct = server.direct().await?;
    let present = below(server, &direct, &prefix).await?;
    let wanted: Vec<_> = declare.iter().map(DeclareConfig::declaration).collect();
    // A file cannot contain names that are not UTF-8, so semaphores with such names stay as they are, even with --prune.
    let present = present.iter().filter(|entry| str::from_utf8(&entry.name).is_ok());
    let steps = steps(&wanted, present.map(DeclaredEntry::borrowed), prune.then_some(removal));
    let mut out = BufWriter::new(io::stdout().lock());
    let mut refused = 0;
    for (index, step) in steps.iter().enumerate() {
        let obstacle = match execute(step, server, &direct, *refuse_waiters, *dry_run).await {
            Ok(obstacle) => obstacle,
            Err(failure) => {
                out.flush()?;
                let count = steps.len();
                warn(&format!("{index} of {count} names are done; apply the file again for the others"));
                return Err(failure);
            }
        };
        refused += usize::from(obstacle.is_some());
        match common.json {
            true => writeln!(out, "{}", json(&step.line(obstacle)))?,
            false => writeln!(out, "{}", line(step, obstacle.as_ref()))?,
        }
    }
    out.flush()?;
    if refused > 0 {
        let (count, would) = (steps.len(), if *dry_run { "would be" } else { "were" });
        let message =
            format!("changes of {refused} of {count} names {would} refused; the output has the reasons");
        return Err(Failure::new(Exit::Failure, message));
    }
    Ok(())
}

/// Executes a step; a dry run only looks for obstacles. Returns the obstacle that prevents the step, if any. Fails if the
/// connection does.
async fn execute(
    step: &Step<'_>,
    server: &Server,
    direct: &Direct,
    refuse_waiters: bool,
    dry_run: bool,
) -> Result<Option<Obstacle>, Failure> {
    let operation = step.operation();
    if dry_run && operation.is_some() {
        match server.answer(direct.may_administer(Namespace::Semaphores, step.name())).await {
            Ok(true) => {}
            Ok(false) => return Ok(Some(not_permitted())),
            Err(error) => return refusal(error).map(Some),
        }
    }
    if let Some(obstacle) = step.obstacle() {
        return Ok(Some(obstacle));
    }
    if let (Some(capacity), false) = (step.lowered(), refuse_waiters) {
        let waiters = server.answer(waiting_for_more(direct, step.name(), capacity)).await;
        match waiters.map(|waiters| refuses(waiters, capacity)) {
            Ok(None) => {}
            Ok(obstacle) => return Ok(obstacle),
            Err(error) => return refusal(error).map(Some),
        }
    }
    match operation {
        Some(operation) if !dry_run => match server.answer(direct.change(&operation)).await {
            Ok(_) => Ok(None),
            Err(error) => refusal(error).map(Some),
        },
        _ => Ok(None),
    }
}

/// Returns why the server refused a request. Fails if the error is not a refusal.
fn refusal(error: Error) -> Result<Obstacle, Failure> {
    let Some(status) = error.status() else { return Err(error.into()) };
    Ok(match status {
        Status::NotPermitted => not_permitted(),
        _ => Obstacle { code: status.name(), message: error.kind().to_string() },
    })
}

fn not_permitted() -> Obstacle {
    Obstacle { code: Status::NotPermitted.name(), message: PERMISSION_DENIED.to_owned() }
}

/// Returns the output line for a step.
fn line(step: &Step<'_>, obstacle: Option<&Obstacle>) -> String {
    let (change, name) = (step.change(), escaped(step.name()));
    match obstacle {
        None => format!("{change:<9}  {name}  {step}"),
        Some(Obstacle { message, .. }) => {
            format!("refused    {name}  {change} {step}: {}", sanitized(message).replace('\n', " "))
        }
    }
}

/// Lists the declared semaphores below a prefix.
async fn below(server: &Server, direct: &Direct, prefix: &str) -> Result<Vec<DeclaredEntry<Bytes>>, Failure> {
    let explained = |error: Error| match error.status() {
        Some(Status::NotPermitted) => Failure::new(
            Exit::Failure,
            format!(
                "cannot list what is declared below the prefix {}: this client may not read all of it; use a token with the right \
                 to read it, or a longer prefix",
                Quoted(prefix.as_bytes())
            ),
        ),
        _ => error.into(),
    };
    server.all(direct.list(prefix.as_bytes())).await.map_err(explained)
}

/// Write the declared semaphores as a file for "signalbox apply"
///
/// The file has all declared semaphores whose names begin with the prefix, without those that are being removed. A name
/// that is not UTF-8 cannot be in such a file: the command says how many were left out, and "signalbox apply" leaves
/// them as they are. Bytes of a label that are not UTF-8 become U+FFFD.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox export-declarations > limits.toml
  signalbox export-declarations --prefix ci/ > ci.toml")]
pub(super) struct ExportArguments {
    /// Prefix of the names
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    prefix: String,
}

pub(super) async fn export(arguments: &ExportArguments, common: &Common) -> Result<(), Failure> {
    let ExportArguments { prefix } = arguments;
    let server = &common.server;
    let direct = server.direct().await?;
    let entries = below(server, &direct, prefix).await?;
    let mut declare = Vec::new();
    let mut left_out = 0;
    for DeclaredEntry { name, capacity, numbered, label, .. } in
        entries.iter().filter(|entry| !entry.removing)
    {
        match str::from_utf8(name) {
            Ok(name) => declare.push(DeclareConfig {
                name: name.to_owned(),
                capacity: *capacity,
                slots: *numbered,
                label: String::from_utf8_lossy(label).into_owned(),
            }),
            Err(_) => left_out += 1,
        }
    }
    let file = DeclarationsFile { prefix: prefix.clone(), declare };
    let mut out = BufWriter::new(io::stdout().lock());
    write!(out, "{file}")?;
    out.flush()?;
    if left_out > 0 {
        warn(&format!(
            "not in the file: {left_out} declared semaphores whose names are not UTF-8; \"signalbox list\" lists them"
        ));
    }
    Ok(())
}

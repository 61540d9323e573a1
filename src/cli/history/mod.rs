//! `signalbox history`: shows who held a limit, from the files of `log.grants`. It needs no server.

mod files;
mod pairs;

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::messages::warn;
use super::output::merged;
use super::table::Column;
use super::values::{PatternArguments, moment, now};
use crate::config::Loaded;
use files::Files;
use pairs::{Pairs, Row};
use signalbox_model::UnixMilliseconds;
use signalbox_model::history::{HistoryLimit, HistoryWord};
use signalbox_model::views::{Labeled, Named};

const COLUMNS: [Column; 11] = [
    Column::word("GRANTED", 24),
    Column::milliseconds("WAITED", 10),
    Column::milliseconds("HELD", 10),
    Column::word("END", 12),
    Column::number("RESOURCES", 9).omitted(2),
    Column::word("SLOTS", 5).omitted(3),
    Column::number("GRANT", 20).omitted(4),
    Column::text("ADDRESS").omitted(1),
    Column::text("IDENTITY").omitted(5),
    Column::text("LABEL"),
    Column::text("NAME"),
];

/// Show who has held a limit, when and for how long
///
/// The server records grants in a file if its configuration sets log.grants; this command reads that file and those
/// that logrotate has made of it (FILE.1, FILE.2.gz, ...; "gzip" must be installed for the latter). With NAME, it shows
/// the grants of this limit; with PREFIX*, those of all limits with this prefix; without an argument, all grants. Each
/// node of a cluster has a file of its own, with the grants of the time in which it led: collect them, and give each
/// with --file.
///
/// The rows come in the order in which the grants ended, and those that are still held come last. The columns are: when
/// the grant was made (UTC), how long the request had waited and how long the grant was held (in seconds), its end,
/// resources, slots, grant (the fencing token), address, identity and label of the client, and name. The end is
/// released, disconnected (the connection that it belonged to ended), expired (its lease ended), revoked (even if the
/// client released it within the grace period), stopped (it was lost when the server stopped) or held (it has not
/// ended).
///
/// With --json, the output is one object per line with the keys granted, ended (null if that is not known), end, waited and
/// held (in seconds), kind, name, resources, slots, grant, session, address, identity and label.
///
/// The history is not complete where the server was killed or a disk was full or slow; the latter is reported on
/// standard error. A grant whose end is missing may be shown as held.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox history backup --since 24h
  signalbox history 'deploys/*' --since 2026-11-21T03:00 --until 2026-11-21T03:30
  signalbox history gpu --file node-1/grants.log --file node-2/grants.log
  signalbox history backup --json | jq 'select(.waited > 60)'")]
pub(super) struct Arguments {
    #[command(flatten)]
    pattern: PatternArguments,

    /// Only grants that were held after this: an age (24h), or a time in UTC (2026-11-21T03:00)
    #[arg(long, value_name = "TIME|UTC", value_parser = moment)]
    since: Option<UnixMilliseconds>,

    /// Only grants that were held before this: an age, or a time in UTC
    #[arg(long, value_name = "TIME|UTC", value_parser = moment)]
    until: Option<UnixMilliseconds>,

    /// File of a server, instead of log.grants in --config; for a cluster, give one per node
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,

    /// Configuration file of the server
    #[arg(long, value_name = "FILE", default_value = "/etc/signalbox.toml", conflicts_with = "file")]
    config: PathBuf,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    let paths =
        if arguments.file.is_empty() { vec![configured(&arguments.config)?] } else { arguments.file.clone() };
    let files = Files::open(&paths).map_err(|error| Failure::new(Exit::Failure, error.to_string()))?;
    let scope = arguments.pattern.scope();
    let is_of_scope = |limit: &HistoryLimit<'_>| scope.contains(&limit.name_bytes());
    let is_in_time = |row: &Row| {
        arguments.since.is_none_or(|since| row.last >= since)
            && arguments.until.is_none_or(|until| row.granted <= until)
    };
    let mut rows = common.rows(&COLUMNS);
    let mut push = |row: &Row| {
        let mut limits =
            row.line.limits.iter().filter(|limit| is_of_scope(limit)).filter(|_| is_in_time(row));
        limits.try_for_each(|limit| rows.push(&object_of(row, limit)))
    };
    let (mut pairs, mut lost) = (Pairs::default(), 0);
    for read in files {
        let line = match read {
            Ok(line) => line,
            Err(problem) => {
                warn(&problem);
                continue;
            }
        };
        if line.event == HistoryWord::Lost && arguments.since.is_none_or(|since| line.time >= since) {
            lost += line.lines.unwrap_or_default();
        }
        if line.limits.is_empty() || line.limits.iter().any(&is_of_scope) {
            pairs.add(*line).iter().try_for_each(&mut push)?;
        }
    }
    pairs.held(now()).iter().try_for_each(&mut push)?;
    rows.finish()?;
    if lost > 0 {
        warn(&format!(
            "the server has lost {lost} lines, because its disk was full or slow: grants may be missing, or shown as held"
        ));
    }
    Ok(())
}

/// Returns the file that the configuration names.
fn configured(config: &Path) -> Result<PathBuf, Failure> {
    let advice = "the server keeps a history only if its configuration sets log.grants: give the configuration with --config, or the \
                  history with --file";
    let loaded = Loaded::read(Some(config), std::env::vars_os())
        .map_err(|error| Failure::new(Exit::Configuration, format!("{error}; {advice}")))?;
    loaded.config.log.grants.ok_or_else(|| {
        let message = format!(
            "{}: log.grants is not set, so the server keeps no history of grants; set it and restart the server, or give the \
             file with --file",
            config.display()
        );
        Failure::new(Exit::Configuration, message)
    })
}

/// Returns a row in JSON, with durations in seconds.
fn object_of(row: &Row, limit: &HistoryLimit<'_>) -> Value {
    let line = &row.line;
    let seconds = |ms: u64| ms as f64 / 1000.0;
    merged([
        json!({
            "granted": row.granted,
            "ended": row.ended,
            "end": row.end,
            "waited": row.waited_ms.map(seconds),
            "held": row.held_ms.map(seconds),
            "kind": limit.kind.noun(),
        }),
        json!(Named::of(&limit.name_bytes())),
        json!({
            "resources": limit.resources,
            "slots": limit.slots,
            "grant": line.grant.map(|grant| grant.to_string()),
            "session": line.session,
            "address": line.address,
            "identity": line.identity,
        }),
        json!(Labeled::of(&line.label_bytes())),
    ])
}

//! `signalbox data`: checks, exports and imports the data directory of a server that is not running, or the records of a
//! cluster; exports those of a running server.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::arguments::Common;
use super::cluster::{Cluster, Source};
use super::exit::{Exit, Failure};
use super::messages::warn;
use super::output::json;
use super::server::{PERMISSION_DENIED, Server, block_on};
use super::table::write_fields;
use crate::cluster::timing;
use signalbox_client::{Features, Status};
use signalbox_cluster::data::{self, read_all};
use signalbox_storage::{Counts, ExportWriter, ImportError, Record, Report, StorageError, contradictions};

/// Check, export or import a data directory, or the records of a cluster
///
/// A server with data_dir in its configuration stores declared semaphores and leased sessions there. These commands need a
/// directory that no server is using. If a server is using it, or it cannot be read or written, the exit status is 71. If
/// its data is damaged, of a newer version, or missing, the exit status is 65.
///
/// With --cluster, the commands use the records of a cluster, which are in etcd. "check" and "export" read all records
/// as they are at one moment, even while nodes serve clients. "export --server" does the same with a running server.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox data check /var/lib/signalbox
  (umask 077; signalbox data export /var/lib/signalbox > signalbox.jsonl)
  signalbox data import /var/lib/signalbox < signalbox.jsonl
  signalbox data export /var/lib/signalbox | signalbox data import --cluster
  (umask 077; signalbox data export --server 127.0.0.1 > signalbox.jsonl)")]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

/// The records that a command uses: those of a data directory or of a cluster.
#[derive(Debug, Args)]
struct Location {
    /// Data directory, as in data_dir of the configuration
    #[arg(value_name = "DIRECTORY", conflicts_with = "cluster")]
    directory: Option<PathBuf>,

    /// Use the records of the cluster of --config instead of a data directory
    #[arg(long)]
    cluster: bool,

    #[command(flatten)]
    source: Source,
}

impl Location {
    /// Returns the directory, or `None` for the cluster.
    fn directory(&self) -> Result<Option<&Path>, Failure> {
        match (self.directory.as_deref(), self.cluster) {
            (None, false) => Err(Failure::usage(
                "which records? give the DIRECTORY of a server that is not running, --cluster, or to export those of a running \
                 server --server HOST",
            )),
            (directory, _) => Ok(directory),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check a data directory for damage
    ///
    /// Prints the number of declared semaphores, sessions, grants and cached replies, and of durable System V semaphore
    /// sets with the processes that have used them. Damage and contradictions between records are reported on standard
    /// error, one message each, and the exit status is then 65. The directory is not changed.
    ///
    /// needs_repair is not an error: it means that the server was not shut down properly and will repair the file when it starts.
    /// With --json, the output is one object with the keys declared, sessions, grants, answers, sysv_sets, sysv_processes,
    /// needs_repair and problems (an array of messages).
    #[command(after_help = "\
Examples:
  signalbox data check /var/lib/signalbox
  signalbox data check /var/lib/signalbox --json | jq .problems")]
    Check(Location),
    /// Write the contents of a data directory, a cluster or a running server to standard output; the output is secret
    ///
    /// The output is one JSON object per line, which "signalbox data import" reads. THE OUTPUT IS SECRET: it contains the keys
    /// of sessions, with which anyone can take over the sessions and what they hold, and the key that proves places in queues.
    /// Write it where no other user can read it.
    ///
    /// Records that cannot be read are omitted and reported on standard error, and the exit status is 65; this includes the
    /// latest changes, if they are damaged. The directory is not changed.
    ///
    /// With --server, the export is a backup of a running server: all records as they are at one moment, with
    /// everything that the server acknowledged before the command was started. The server keeps serving, and its file
    /// may grow. It accepts the request from its own machine and from the addresses in admin_from of its configuration.
    /// Without --tls, the keys are sent over the network unencrypted; run the command on the server's machine, or over
    /// a network that you trust. If the command fails, the output lacks its last line, and "signalbox data import"
    /// refuses it.
    #[command(after_help = "\
Examples:
  (umask 077; signalbox data export /var/lib/signalbox > signalbox.jsonl)
  (umask 077; signalbox data export --server 127.0.0.1 > signalbox.jsonl)")]
    Export(Location),
    /// Create a data directory from an export on standard input
    ///
    /// Reads the output of "signalbox data export", and imports all of it or nothing. The directory must be empty; if it does not
    /// exist, it is created. Run the command as the user of the server, or change the owner of the directory afterwards. With
    /// --json, the output is one object with the keys directory (or the cluster) and records.
    ///
    /// With --cluster, the cluster must be new: no node may have joined it. Nodes can join once all records are stored;
    /// if the command fails before that, run it again.
    #[command(after_help = "\
Examples:
  signalbox data import /var/lib/signalbox < signalbox.jsonl
  signalbox data export /var/lib/signalbox | signalbox data import /srv/signalbox")]
    Import(Location),
}

/// Returns whether a running server is exported. Only the command line selects that, not the environment.
fn is_of_server(location: &Location, common: &Common) -> Result<bool, Failure> {
    match (common.has("server"), location.directory.is_some() || location.cluster) {
        (true, true) => {
            Err(Failure::usage("--server exports a running server; omit it, or omit DIRECTORY and --cluster"))
        }
        (is_option, _) => Ok(is_option),
    }
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    match &arguments.action {
        Action::Check(location) => check(location, common.json),
        Action::Export(location) if is_of_server(location, common)? => {
            block_on(export_online(&common.server))
        }
        Action::Export(location) => export(location),
        Action::Import(location) => import(location, common),
    }
}

/// The keys of the results of a check, in the order of the output.
const KEYS: [&str; 7] =
    ["declared", "sessions", "grants", "answers", "sysv_sets", "sysv_processes", "needs_repair"];

fn check(location: &Location, as_json: bool) -> Result<(), Failure> {
    let report = match location.directory()? {
        Some(directory) => signalbox_storage::check(directory)?,
        None => {
            let records = records_of(&mut location.source.open()?)?;
            let mut counts = Counts::default();
            records.iter().for_each(|record| counts.count(record));
            Report { needs_repair: false, counts, problems: contradictions(&records) }
        }
    };
    let Report { needs_repair, counts, ref problems } = report;
    let signalbox_storage::Counts { declarations, sessions, grants, answers, sets, processes } = counts;
    let found = serde_json::json!({
        "declared": declarations,
        "sessions": sessions,
        "grants": grants,
        "answers": answers,
        "sysv_sets": sets,
        "sysv_processes": processes,
        "needs_repair": needs_repair,
        "problems": problems,
    });
    match as_json {
        true => writeln!(io::stdout(), "{}", json(&found))?,
        false => write_fields(&mut io::stdout(), 14, &KEYS, &found, &[])?,
    }
    if !as_json {
        problems.iter().for_each(|problem| warn(problem));
    }
    check_problems(problems)
}

/// Fails, without a message, if a command has reported problems.
fn check_problems(problems: &[String]) -> Result<(), Failure> {
    if problems.is_empty() { Ok(()) } else { Err(Failure::silent(Exit::Data)) }
}

/// Returns all records of a cluster, in the order of keys.
fn records_of(cluster: &mut Cluster) -> Result<Vec<Record>, StorageError> {
    let mut records = Vec::new();
    read_all(&mut cluster.etcd, &cluster.keys, &mut |record| records.push(record))?;
    records.sort_by_cached_key(Record::key);
    Ok(records)
}

fn export(location: &Location) -> Result<(), Failure> {
    let mut out = Output { out: BufWriter::new(io::stdout().lock()), failure: None };
    let exported = match location.directory()? {
        Some(directory) => signalbox_storage::export(directory, &mut out),
        None => {
            let records = records_of(&mut location.source.open()?)?;
            let mut export = ExportWriter::begin(&mut out);
            records.into_iter().for_each(|record| export.add(record));
            export.end().map(|()| Vec::new())
        }
    };
    if let Some(failure) = out.failure {
        return Err(failure.into());
    }
    let problems = exported?;
    problems.iter().for_each(|problem| warn(problem));
    check_problems(&problems)
}

/// Writes the records of a running server as they are at one moment. Writing blocks the only thread on purpose: if the
/// output is read slowly, the server must send slowly.
async fn export_online(server: &Server) -> Result<(), Failure> {
    let direct = server.direct().await?;
    if !direct.server().features.contains(Features::EXPORT) {
        return Err(Failure::refused(format!(
            "{} has no data directory, so it stores nothing; set data_dir in its configuration",
            server.shown()
        )));
    }
    let mut out = io::stdout().lock();
    let mut parts = server.answer(direct.export()).await?;
    loop {
        match server.next(&mut parts).await {
            Ok(Some(part)) => out.write_all(&part)?,
            Ok(None) => break,
            Err(error) if error.status() == Some(Status::NotPermitted) => {
                return Err(Failure::refused(format!("nothing was exported: {PERMISSION_DENIED}")));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(out.flush()?)
}

/// Standard output that keeps its first error, because the store reports such an error as one of its own.
struct Output<W> {
    out: W,
    failure: Option<io::Error>,
}

impl<W: Write> Output<W> {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            self.failure.get_or_insert(error);
            kind.into()
        })
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.note(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.note(flushed)
    }
}

fn import(location: &Location, common: &Common) -> Result<(), Failure> {
    let (name, records) = match location.directory()? {
        Some(directory) => {
            (directory.display().to_string(), signalbox_storage::import(directory, &mut io::stdin().lock())?)
        }
        None => {
            let mut cluster = location.source.open()?;
            let records = signalbox_storage::read_export(&mut io::stdin().lock())?;
            data::import(&mut cluster.etcd, &cluster.keys, timing(&cluster.config), &records)?;
            (format!("cluster {}", cluster.config.name), records.len() as u64)
        }
    };
    let object = serde_json::json!({ "directory": name, "records": records });
    common.print(&object, format_args!("{name}: imported {records} records"))
}

impl From<data::ImportError> for Failure {
    fn from(error: data::ImportError) -> Self {
        let exit = match error {
            data::ImportError::Call(_) => Exit::Unavailable,
            data::ImportError::InUse { .. } => Exit::Usage,
            data::ImportError::Concurrent => Exit::System,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        Self::new(exit_for(&error), error.to_string())
    }
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        let exit = match &error {
            ImportError::Storage(error) => exit_for(error),
            ImportError::Line { .. } | ImportError::Contradiction(_) => Exit::Data,
            ImportError::NotEmpty(_) => Exit::Usage,
            ImportError::Commit(_) | ImportError::Unreadable(_) => Exit::System,
        };
        Self::new(exit, error.to_string())
    }
}

/// Returns the exit status for an error: [`Exit::Data`] if a retry cannot fix it. A retry can fix the others, such as a
/// full disk or a server that is about to end.
pub(super) fn exit_for(error: &StorageError) -> Exit {
    match error {
        StorageError::Missing { .. } | StorageError::Newer { .. } | StorageError::Damaged { .. } => {
            Exit::Data
        }
        StorageError::Unusable { .. } | StorageError::InUse { .. } | StorageError::NotFlushed { .. } => {
            Exit::System
        }
        StorageError::Etcd { .. } => Exit::Unavailable,
    }
}

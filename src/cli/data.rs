//! `signalbox data`: the data directory of a server that does not run, looked at, saved and begun anew.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::exit::{Exit, Failure, warn};
use super::output::json;
use crate::storage::{self, ImportError, Report, StorageError};

const LONG: &str = "\
Check, save or begin a data directory

A server that has data_dir in its configuration keeps there what is declared and what leased sessions hold. All of this is \
for a directory that no server uses; where one does, or the directory cannot be read or written, the exit status is 71. \
Where what is kept is damaged, of a newer version, or not there, it is 65.";

const EXAMPLES: &str = "\
Examples:
  signalbox data check /var/lib/signalbox
  (umask 077; signalbox data export /var/lib/signalbox > signalbox.jsonl)
  signalbox data import /var/lib/signalbox < signalbox.jsonl";

/// Check, save or begin a data directory
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES, disable_help_subcommand = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Check(Check),
    Export(Export),
    Import(Import),
}

const CHECK_LONG: &str = "\
Check that a data directory is sound

Prints how many declared semaphores, sessions, grants and remembered answers there are. What is damaged, and what records \
say that cannot be true together, is told on standard error, a sentence each; the exit status is 65 then. Nothing is \
changed.

That needs_repair is yes is no fault: the server was not stopped in an orderly way, and repairs the file when it is \
started. With --json it is one object with the keys declared, sessions, grants, answers, needs_repair and problems (an \
array of sentences).";

const CHECK_EXAMPLES: &str = "\
Examples:
  signalbox data check /var/lib/signalbox
  signalbox data check /var/lib/signalbox --json | jq .problems";

/// Check that a data directory is sound
#[derive(Debug, Args)]
#[command(long_about = CHECK_LONG, after_help = CHECK_EXAMPLES)]
struct Check {
    /// Data directory, as data_dir names it
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXPORT_LONG: &str = "\
Write all that a data directory holds to standard output

It is one JSON object a line, which \"signalbox data import\" reads. IT IS SECRET: it has the keys of sessions, with which \
anybody can take over what they hold. Let nobody else read where it goes.

What cannot be read is left out and told on standard error, and the exit status is 65 then. Nothing is changed in the \
directory.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  (umask 077; signalbox data export /var/lib/signalbox > signalbox.jsonl)";

/// Write all that a data directory holds to standard output; it is secret
#[derive(Debug, Args)]
#[command(long_about = EXPORT_LONG, after_help = EXPORT_EXAMPLES)]
struct Export {
    /// Data directory, as data_dir names it
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

const IMPORT_LONG: &str = "\
Begin a data directory with what standard input says

It reads what \"signalbox data export\" wrote, and takes all of it or nothing. The directory is empty, or is made. Run it as \
the user that the server runs as, or give it what is made there.";

const IMPORT_EXAMPLES: &str = "\
Examples:
  signalbox data import /var/lib/signalbox < signalbox.jsonl
  signalbox data export /var/lib/signalbox | signalbox data import /srv/signalbox";

/// Begin a data directory with what standard input says
#[derive(Debug, Args)]
#[command(long_about = IMPORT_LONG, after_help = IMPORT_EXAMPLES)]
struct Import {
    /// Empty directory, or one to be made
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.action {
        Action::Check(Check { directory, json }) => check(directory, *json),
        Action::Export(Export { directory }) => export(directory),
        Action::Import(Import { directory }) => import(directory),
    }
}

fn check(directory: &Path, as_json: bool) -> Result<ExitCode, Failure> {
    let report = storage::check(directory)?;
    let Report { needs_repair, counts, ref problems } = report;
    let storage::Counts { declarations, sessions, grants, answers } = counts;
    let mut out = io::stdout().lock();
    if as_json {
        let found = Found { declared: declarations, sessions, grants, answers, needs_repair, problems };
        writeln!(out, "{}", json(&found))?;
    } else {
        writeln!(out, "declared      {declarations}\nsessions      {sessions}\ngrants        {grants}")?;
        writeln!(out, "answers       {answers}\nneeds_repair  {}", if needs_repair { "yes" } else { "no" })?;
    }
    out.flush()?;
    if !as_json {
        problems.iter().for_each(|problem| warn(problem));
    }
    Ok(if problems.is_empty() { Exit::Success } else { Exit::Data }.into())
}

/// What a check found, in JSON.
#[derive(Serialize)]
struct Found<'a> {
    declared: u64,
    sessions: u64,
    grants: u64,
    answers: u64,
    needs_repair: bool,
    problems: &'a [String],
}

fn export(directory: &Path) -> Result<ExitCode, Failure> {
    let mut out = Output { out: BufWriter::new(io::stdout().lock()), failure: None };
    let exported = storage::export(directory, &mut out);
    if let Some(failure) = out.failure {
        return Err(failure.into());
    }
    let problems = exported?;
    problems.iter().for_each(|problem| warn(&format!("{problem}; it is left out")));
    Ok(if problems.is_empty() { Exit::Success } else { Exit::Data }.into())
}

/// Standard output, which remembers that it failed: to the store that is one of its own failures.
struct Output<W> {
    out: W,
    failure: Option<io::Error>,
}

impl<W: Write> Output<W> {
    fn remember<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
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
        self.remember(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.remember(flushed)
    }
}

fn import(directory: &Path) -> Result<ExitCode, Failure> {
    let records = storage::import(directory, &mut io::stdin().lock())?;
    writeln!(io::stdout(), "{}: begun with {records} records", directory.display())?;
    Ok(Exit::Success.into())
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
            ImportError::Line { .. } | ImportError::Disagreement(_) => Exit::Data,
            ImportError::NotEmpty(_) => Exit::Usage,
            ImportError::Commit(_) | ImportError::Unreadable(_) => Exit::System,
        };
        Self::new(exit, error.to_string())
    }
}

/// Tells what trying again cannot mend from what it can: another server that is about to end, a disk that is full.
pub(super) fn exit_for(error: &StorageError) -> Exit {
    match error {
        StorageError::Missing { .. } | StorageError::Newer { .. } | StorageError::Damaged { .. } => {
            Exit::Data
        }
        StorageError::Unusable { .. } | StorageError::InUse { .. } | StorageError::NotFlushed { .. } => {
            Exit::System
        }
    }
}

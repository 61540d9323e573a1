//! The options of all subcommands, and checks that the parser does not make: a subcommand accepts only options that it
//! uses, and no part of an option's value becomes a NAME.
//!
//! `run a --lease 10 days` would otherwise acquire a second counter, `days`. So all NAMEs must be given together,
//! before or after the options, and a unit of time directly after a TIME is refused everywhere.

use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, Id};
use serde::Serialize;

use super::exit::Failure;
use super::output::{Form, escaped, json};
use super::server::Server;
use super::table::{Column, Rows};

/// Units of time, which are unlikely names. A TIME is one word with its unit, so such a word alone is probably a
/// mistake.
const UNITS: &[&str] = &[
    "ms", "msec", "s", "sec", "secs", "second", "seconds", "m", "min", "mins", "minute", "minutes", "h",
    "hr", "hrs", "hour", "hours", "d", "day", "days", "w", "week", "weeks",
];

/// Subcommands that are not clients of a server.
const WITHOUT_SERVER: [&str; 9] =
    ["serve", "check-config", "history", "cluster", "data", "token", "completions", "complete-names", "man"];

/// Subcommands that depend on the kind of a name, or on the port that the kind selects.
const WITH_KIND: &str = "run acquire status list watch top ping await-idle revoke get dump stats bench";

/// Subcommands that cannot print JSON.
const WITHOUT_JSON: [&str; 6] =
    ["serve", "top", "export-declarations", "completions", "complete-names", "man"];

/// Subcommands whose NAME may be a System V semaphore set.
const WITH_SYSV: [&str; 2] = ["status", "watch"];

/// The id of `--sysv`.
pub(super) const SYSV: &str = "sysv";

/// The options of all subcommands, which can be given before or after them.
#[derive(Debug, Args)]
pub(super) struct Common {
    #[command(flatten)]
    pub(super) server: Server,

    /// Print JSON: one object, or for a list one object per line
    ///
    /// A missing value is null. A name or label that is not UTF-8 has the key name_hex or label_hex, in hexadecimal digits.
    #[arg(long, global = true)]
    pub(super) json: bool,

    /// Print a list without its header
    ///
    /// A list is a table on a terminal; elsewhere, tabs separate its columns. A missing value is -. In a name, a
    /// backslash is printed as \\, a tab as \t and a newline as \n. Each byte of other control characters, direction
    /// marks, invisible characters and unusual spaces, and each byte that is not UTF-8, is printed as \xNN. "printf %b"
    /// of bash converts this back.
    #[arg(long, global = true)]
    no_header: bool,

    /// NAME is a System V semaphore set
    ///
    /// Give its key (0x2a, 42), or id: and its id; see "signalbox sysv".
    #[arg(id = SYSV, long = SYSV, global = true, conflicts_with_all = ["counter", "semaphore"])]
    pub(super) sysv: bool,

    /// The options that were given on the command line, as [`checked`] returned them.
    #[arg(skip)]
    pub(super) given: Vec<Id>,
}

impl Common {
    /// Returns whether an option was given on the command line, not by the environment.
    pub(super) fn has(&self, option: &str) -> bool {
        self.given.iter().any(|given| given == option)
    }

    /// Prints the result of a command: one JSON object, or a text.
    pub(super) fn print(&self, object: &impl Serialize, text: impl Display) -> Result<(), Failure> {
        let text = if self.json { json(object) } else { text.to_string() };
        Ok(writeln!(io::stdout(), "{text}")?)
    }

    /// Returns the form in which lists are printed.
    pub(super) fn form(&self) -> Form {
        Form::of_output(self.json, !self.no_header)
    }

    /// Starts a list on standard output.
    pub(super) fn rows(&self, columns: &'static [Column]) -> Rows<BufWriter<StdoutLock<'static>>> {
        Rows::new(self.form(), columns, BufWriter::new(io::stdout().lock()))
    }
}

/// Defines the common options for each subcommand. The short help of a subcommand omits them, since the program's help
/// has them. The long help of a subcommand omits those that it does not use.
pub(super) fn with_common(program: Command) -> Command {
    let options: Vec<_> = program.get_arguments().filter(|option| option.is_global_set()).cloned().collect();
    with_options(program, &options, "")
}

fn with_options(command: Command, options: &[Arg], path: &str) -> Command {
    command.mut_subcommands(|command| {
        let path = format!("{path} {}", command.get_name());
        let is_new = |option: &&Arg| command.get_arguments().all(|own| own.get_id() != option.get_id());
        let new = options.iter().filter(is_new).cloned().map(|option| {
            match takes(&path, option.get_id().as_str()) {
                true => option.hide_short_help(true),
                false => option.hide(true),
            }
        });
        let new: Vec<_> = new.collect();
        with_options(command.args(new), options, &path)
    })
}

/// Returns whether the subcommand at the end of this path uses an option.
fn takes(path: &str, option: &str) -> bool {
    let path = path.trim_start();
    let first = path.split(' ').next().unwrap_or_default();
    match option {
        SYSV => WITH_SYSV.contains(&path),
        "json" | "no_header" => !WITHOUT_JSON.contains(&path),
        "counter" | "semaphore" => path == "data export" || WITH_KIND.split(' ').any(|with| with == path),
        _ => path == "data export" || !WITHOUT_SERVER.contains(&first),
    }
}

/// Checks the parsed arguments of a command and its subcommands. Returns the options that were given on the command
/// line, not by the environment.
pub(super) fn checked(mut command: &Command, mut matches: &ArgMatches) -> Result<Vec<Id>, Failure> {
    let mut path = String::new();
    while let Some((name, inner)) = matches.subcommand() {
        command = command.find_subcommand(name).expect("the matches are of this command");
        matches = inner;
        path = format!("{path} {name}");
    }
    let is_given = |id: &Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    let mut hidden = command.get_arguments().filter(|option| option.is_hide_set());
    if let Some(option) = hidden.find(|option| is_given(option.get_id())) {
        return Err(Failure::usage(format!("{} has no {}; omit it", path.trim_start(), shown(option))));
    }
    let mut positionals = command.get_positionals().filter(|argument| !argument.is_last_set());
    positionals.try_for_each(|argument| check_words(command, matches, argument)).map_err(Failure::usage)?;
    // The ids include an option before the subcommand, even if the subcommand does not take it.
    let known = matches.ids().filter(|id| matches.try_contains_id(id.as_str()).is_ok());
    Ok(known.filter(|id| is_given(id)).cloned().collect())
}

/// Checks that the words of a positional argument are together, and that none is a unit that was meant for a TIME.
fn check_words(command: &Command, matches: &ArgMatches, argument: &Arg) -> Result<(), String> {
    let id = argument.get_id().as_str();
    let (Some(indices), Some(words)) = (matches.indices_of(id), matches.get_raw(id)) else { return Ok(()) };
    let mut before: Option<usize> = None;
    for (index, word) in indices.zip(words) {
        let word = escaped(word.as_encoded_bytes());
        let option = option_before(command, matches, index);
        let is_after_option = before.is_none_or(|before| before + 1 < index);
        let is_unit = |option: &&Arg| is_after_option && takes_time(option) && UNITS.contains(&&word[..]);
        if let Some(option) = option.filter(is_unit) {
            return Err(format!(
                "\"{word}\" after {} looks like a part of the time; a TIME is one word, such as 30s, 5m or 1h; if \
                 \"{word}\" is a name, put it before the options",
                shown(option)
            ));
        }
        if before.is_some_and(|before| before + 1 < index) {
            let options = option.map_or_else(|| "options".to_owned(), shown);
            return Err(format!(
                "\"{word}\" is separated from the other names by {options}; if it is a name, put all names together, \
                 before or after the options; if it belongs to the value of an option, quote the value"
            ));
        }
        before = Some(index);
    }
    Ok(())
}

/// Returns the option whose value is directly before this index.
fn option_before<'a>(command: &'a Command, matches: &ArgMatches, index: usize) -> Option<&'a Arg> {
    let is_before = |option: &&Arg| {
        let known = matches.try_contains_id(option.get_id().as_str()).unwrap_or(false);
        let mut indices =
            matches.indices_of(option.get_id().as_str()).filter(|_| known).into_iter().flatten();
        indices.any(|before| before + 1 == index)
    };
    command.get_arguments().filter(|argument| !argument.is_positional()).find(is_before)
}

fn takes_time(option: &Arg) -> bool {
    option.get_value_names().is_some_and(|names| names.iter().any(|name| name.starts_with("TIME")))
}

fn shown(option: &Arg) -> String {
    format!("--{}", option.get_long().unwrap_or_default())
}

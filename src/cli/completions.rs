//! `signalbox completions`: completion scripts for shells, generated from the definitions of the options. Those for
//! bash, zsh and fish also complete names, with `signalbox complete-names`: it prints nothing where no name is
//! expected, or if the server does not answer in time, because a shell must not hang.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use clap_complete::Shell;

use super::arguments::SYSV;
use super::exit::Failure;
use super::list;
use super::output::escaped;
use super::server::{Server, block_on_quietly};
use super::sysv::names_of_sets;
use signalbox_client::Scope;

/// Print a completion script for a shell
///
/// The scripts for bash, zsh and fish also complete the names of counters and semaphores, which they request from the
/// server of --server or SIGNALBOX_SERVER.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox completions bash > /etc/bash_completion.d/signalbox
  source <(signalbox completions zsh)")]
pub(super) struct Arguments {
    /// Shell to print the script for
    shell: Shell,
}

/// Completes names after the generated function has completed everything else.
const BASH: &str = r#"
_signalbox_names() {
    _signalbox "$@"
    if [[ "${COMP_WORDS[COMP_CWORD]}" == -* ]]; then return 0; fi
    local name
    while IFS= read -r name; do
        COMPREPLY+=("$(printf %q "$name")")
    done < <("$1" complete-names -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null)
}

complete -F _signalbox_names -o bashdefault -o default signalbox
"#;

const ZSH: &str = r#"
_signalbox_names() {
    local -a names
    names=("${(@f)$(signalbox complete-names -- "${(@)words[1,CURRENT]}" 2> /dev/null)}")
    compadd -a names
}
"#;

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut command = super::command();
    // The generator panics if writing fails, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "signalbox", &mut script);
    let script = String::from_utf8_lossy(&script);
    let script = match arguments.shell {
        Shell::Bash => format!("{script}{BASH}"),
        Shell::Zsh => zsh(&script),
        Shell::Fish => format!("{script}{}", fish(&command)),
        _ => script.into_owned(),
    };
    Ok(std::io::stdout().write_all(script.as_bytes())?)
}

/// Replaces the completion of files by that of names, in the arguments that are names. Inserts [`ZSH`] after the first
/// line, because zsh reads the name of the command (`#compdef`) only from the first line.
fn zsh(script: &str) -> String {
    let is_name = |line: &str| {
        ["':name", "'::name", "'::pattern", "'*::names", "'::set"].iter().any(|start| line.starts_with(start))
    };
    let lines = script.lines().map(|line| match is_name(line) {
        true => line.replace(":_default'", ":_signalbox_names'"),
        false => line.to_owned(),
    });
    let (head, rest) = (lines.clone().take(1), lines.skip(1));
    head.chain(ZSH.lines().map(str::to_owned)).chain(rest).map(|line| line + "\n").collect()
}

fn fish(command: &Command) -> String {
    let subcommands: Vec<_> = subcommands(command).collect();
    format!(
        "complete -c signalbox -n \"__fish_seen_subcommand_from {}\" -f -a \"(signalbox complete-names -- (commandline \
         -opc)[2..-1] (commandline -ct) 2> /dev/null)\"\n",
        subcommands.join(" ")
    )
}

/// Print the names that complete a command line
#[derive(Debug, Args)]
#[command(after_help = "Example: signalbox complete-names -- get ba", hide = true)]
pub(super) struct NamesArguments {
    /// The words after the program's name, the last one incomplete
    #[arg(last = true, value_name = "WORD")]
    words: Vec<String>,
}

/// The longest time that a shell waits for names.
const LIMIT: Duration = Duration::from_millis(800);

/// The maximum number of names that are printed: a user does not read longer lists.
const NAMES_MAX: usize = 500;

/// The names that complete the arguments of a subcommand.
#[derive(Clone, Copy)]
enum Source {
    /// Names of one namespace, as plain operations list them.
    Plain,
    /// Limits: declared semaphores, and what is in use.
    Limits,
    /// Declared semaphores.
    Declared,
    /// System V semaphore sets.
    Sets,
}

impl Source {
    fn of(subcommand: &str) -> Option<Self> {
        Some(match subcommand {
            "get" | "dump" | "delete" => Self::Plain,
            "watch" | "await-idle" | "status" | "list" | "revoke" | "run" | "acquire" => Self::Limits,
            "declare" | "resize" | "pause" | "resume" | "slot" | "remove" => Self::Declared,
            "sysv" => Self::Sets,
            _ => return None,
        })
    }
}

/// Returns the subcommands that have names as arguments.
fn subcommands(command: &Command) -> impl Iterator<Item = &str> {
    command.get_subcommands().map(Command::get_name).filter(|name| Source::of(name).is_some())
}

pub(super) fn print_names(arguments: &NamesArguments) -> Result<(), Failure> {
    let words = joined(&arguments.words);
    let Some((current, before)) = words.split_last() else { return Ok(()) };
    // The shell completes only the last of the parts into which it has split the word.
    let last = arguments.words.last().map_or(0, |last| if is_break(last) { 0 } else { last.len() });
    let known = current.len() - last;
    for name in names(before, current) {
        writeln!(std::io::stdout(), "{}", &name[known..])?;
    }
    Ok(())
}

/// Joins words that bash has split at `=` and `:`.
fn joined(words: &[String]) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    let mut is_open = false;
    for word in words {
        match joined.last_mut() {
            Some(last) if is_open || is_break(word) => last.push_str(word),
            _ => joined.push(word.clone()),
        }
        is_open = is_break(word);
    }
    joined
}

fn is_break(word: &str) -> bool {
    matches!(word, "=" | ":")
}

fn names(before: &[String], current: &str) -> BTreeSet<String> {
    let found = || {
        let command = super::command().ignore_errors(true);
        let line = [OsString::from("signalbox")].into_iter().chain(before.iter().map(OsString::from));
        let matches = command.clone().try_get_matches_from(line).ok()?;
        let (subcommand, mut matches) = matches.subcommand()?;
        let mut source = Source::of(subcommand)?;
        let mut definitions = command.find_subcommand(subcommand)?;
        if let Source::Sets = source {
            let (inner, inner_matches) = matches.subcommand()?;
            if !matches!(inner, "show" | "remove") {
                return None;
            }
            (definitions, matches) = (definitions.find_subcommand(inner)?, inner_matches);
        } else if matches.try_get_one::<bool>(SYSV).ok().flatten() == Some(&true) {
            source = Source::Sets;
        }
        if current.starts_with('-') || before.iter().any(|word| word == "--") || is_value(definitions, before)
        {
            return None;
        }
        // The word after the only name is not a name, such as the number in `slot NAME N`.
        let has_name = |id| matches.try_contains_id(id).unwrap_or(false);
        if ["name", "pattern", "set"].into_iter().any(has_name) {
            return None;
        }
        names_from_server(matches, source, current)
    };
    found().unwrap_or_default()
}

/// Returns whether the next word is the value of an option.
fn is_value(command: &Command, before: &[String]) -> bool {
    let Some(option) = before.last().and_then(|word| word.strip_prefix('-')) else { return false };
    command.get_arguments().any(|argument| {
        let is_long = option.strip_prefix('-').is_some_and(|name| argument.get_long() == Some(name));
        let is_short = argument.get_short().is_some_and(|short| option == short.to_string());
        (is_long || is_short) && argument.get_action().takes_values()
    })
}

fn names_from_server(matches: &ArgMatches, source: Source, prefix: &str) -> Option<BTreeSet<String>> {
    let server = Server::from_arg_matches(matches).ok()?;
    let ask = async {
        let names = tokio::time::timeout(LIMIT, fetch(&server, source, prefix.as_bytes())).await;
        Ok(names.ok().flatten())
    };
    block_on_quietly(ask).ok().flatten()
}

async fn fetch(server: &Server, source: Source, prefix: &[u8]) -> Option<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    match source {
        Source::Sets => {
            names_of_sets(server).await?.iter().for_each(|name| add(&mut names, name.as_bytes(), prefix));
        }
        Source::Plain => {
            let client = server.connect().await.ok()?;
            let dump = server.all(client.dump()).await.ok()?;
            dump.iter().for_each(|entry| add(&mut names, &entry.name, prefix));
        }
        Source::Limits | Source::Declared => {
            let direct = server.direct().await.ok()?;
            let only_declared = matches!(source, Source::Declared);
            let listed = list::names(server, &direct, Scope::Prefix(prefix), only_declared).await.ok()?;
            listed.iter().for_each(|row| add(&mut names, &row.name, prefix));
        }
    }
    Some(names)
}

/// Adds a name with this prefix, if a shell can show it and a user can type it.
fn add(names: &mut BTreeSet<String>, name: &[u8], prefix: &[u8]) {
    if let Ok(text) = str::from_utf8(name)
        && name.starts_with(prefix)
        && names.len() < NAMES_MAX
        && escaped(name) == text
    {
        names.insert(text.to_owned());
    }
}

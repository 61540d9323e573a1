//! The command line: all subcommands, and how errors are reported.
//!
//! Each subcommand has its own file with its options and its implementation; this file lists them. An error is one
//! message on stderr that starts with `signalbox: `, and `exit` has the table of all exit statuses.

mod acquire;
mod apply;
mod arguments;
mod await_idle;
mod bench;
mod change;
mod cluster;
mod completions;
mod data;
mod executable;
mod exit;
mod history;
mod identity;
mod leased;
mod list;
mod listing;
mod man;
mod messages;
mod outer;
mod output;
mod ping;
mod place;
mod plain;
mod refusal;
mod revoke;
mod run;
mod serve;
mod server;
mod session;
mod sessions;
mod signals;
mod status;
mod sysv;
mod table;
mod token;
mod top;
mod values;
mod wanted;
mod watch;

use std::process::ExitCode;

use clap::error::{ContextValue, ErrorKind};
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};

use arguments::Common;
use exit::{Exit, Failure};
use output::cut;
use server::block_on;

const EXAMPLES: &str = "\
Examples:
  signalbox serve --config /etc/signalbox.toml
  signalbox ping --server lock.example.org
  signalbox run backup --max 1 -- /usr/local/bin/backup
  signalbox status backup";

/// Returns the definition of the command line.
fn command() -> clap::Command {
    let command = Program::command().mut_subcommands(|command| {
        // Without a subcommand, a group reports which ones it has. By default, the parser would print the whole help
        // instead, unless an environment variable sets an option.
        let is_group = command.has_subcommands();
        let command = match is_group {
            true => command.arg_required_else_help(false).disable_help_subcommand(true),
            false => command,
        };
        with_short_help(command)
    });
    with_negative_values(arguments::with_common(grouped(command)))
}

/// Leaves all examples but the first to `--help`, so that `-h` fits a screen.
fn with_short_help(command: clap::Command) -> clap::Command {
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let first = examples.lines().take(2).collect::<Vec<_>>().join("\n");
    command.after_help(first).after_long_help(examples).mut_subcommands(with_short_help)
}

/// The subcommands as the help lists them; every visible one is in one group.
const GROUPS: [(&str, &str); 4] = [
    ("Everyday", "run acquire renew release status list watch top ping"),
    (
        "Administration",
        "apply export-declarations declare resize pause resume slot remove delete revoke cancel sessions history await-idle \
         verify token",
    ),
    ("Server", "serve check-config cluster data sysv completions man"),
    ("Plain operations, as in yrmcds", "get dump stats bench"),
];

/// Lists the subcommands in groups, in the help of the program.
fn grouped(command: clap::Command) -> clap::Command {
    let mut listed = String::new();
    for (title, names) in GROUPS {
        listed += &format!("{title}:\n");
        for name in names.split(' ') {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            listed += &format!("  {name:<19}  {}\n", about.map(ToString::to_string).unwrap_or_default());
        }
        listed += "\n";
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{listed}Options:\n{{options}}{{after-help}}"
    ))
}

/// Accepts `-1` after an option as its value, and `-1s` as a time, so that the error names the option and the range of
/// its values.
fn with_negative_values(command: clap::Command) -> clap::Command {
    let takes_values = |argument: &Arg| argument.get_action().takes_values() && !argument.is_last_set();
    let may_be_number =
        |argument: &Arg| !argument.is_positional() || ["slot", "grant"].contains(&argument.get_id().as_str());
    let command = command.mut_args(|argument| match takes_values(&argument) && may_be_number(&argument) {
        true if argument.get_value_names().is_some_and(|names| names == ["TIME"]) => {
            argument.allow_hyphen_values(true)
        }
        true => argument.allow_negative_numbers(true),
        false => argument,
    });
    command.mut_subcommands(with_negative_values)
}

/// Distributed semaphores and counters: a server and its command-line client
///
/// "signalbox serve" runs the server. All other subcommands that take --server are clients of a running server, of
/// signalbox or, for plain operations, of yrmcdsd: they limit how many processes use a resource at the same time,
/// across machines.
#[derive(Debug, Parser)]
#[command(name = "signalbox", version, after_help = EXAMPLES, after_long_help = after_long_help())]
struct Program {
    #[command(flatten)]
    common: Common,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Arguments),
    CheckConfig(serve::CheckArguments),
    Ping(ping::Arguments),
    Get(plain::Get),
    Stats(plain::Stats),
    Dump(plain::Dump),
    Status(status::Arguments),
    Watch(watch::Arguments),
    Top(top::Arguments),
    Apply(apply::Arguments),
    ExportDeclarations(apply::ExportArguments),
    #[command(flatten)]
    Change(change::Change),
    Cancel(revoke::Cancel),
    Revoke(revoke::Revoke),
    List(list::Arguments),
    Sessions(sessions::Arguments),
    History(history::Arguments),
    AwaitIdle(await_idle::Arguments),
    Run(run::Arguments),
    Acquire(acquire::Arguments),
    Renew(session::Renew),
    Release(session::Release),
    Verify(session::Verify),
    Bench(bench::Arguments),
    Sysv(sysv::Arguments),
    Cluster(cluster::Arguments),
    Data(data::Arguments),
    Token(token::Arguments),
    Completions(completions::Arguments),
    #[command(hide = true)]
    CompleteNames(completions::NamesArguments),
    Man(man::Arguments),
}

impl Command {
    /// Returns whether the subcommand handles signals, instead of being ended by them.
    fn handles_signals(&self) -> bool {
        matches!(self, Self::Serve(_) | Self::Top(_) | Self::Run(_) | Self::Acquire(_))
    }
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    // Prevents core dumps, which would contain tokens, and the keys of sessions and certificates. If the system refuses, the
    // program works nevertheless; the server tries again, and reports a failure.
    let _ = nix::sys::prctl::set_dumpable(false);
    let command = command();
    let matches = match command.clone().try_get_matches() {
        Ok(matches) => matches,
        Err(answer) => return explain(&answer),
    };
    let given = match arguments::checked(&command, &matches) {
        Ok(given) => given,
        Err(failure) => return failure.end(),
    };
    let program = match Program::from_arg_matches(&matches) {
        Ok(mut program) => {
            program.common.given = given;
            program
        }
        Err(answer) => return explain(&answer),
    };
    if !program.command.handles_signals() {
        signals::end_first_process();
    }
    let common = &program.common;
    let result = match program.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::CheckConfig(arguments) => serve::check(&arguments, common),
        Command::Ping(arguments) => block_on(ping::run(&arguments, common)),
        Command::Get(arguments) => block_on(plain::get(&arguments, common)),
        Command::Stats(arguments) => block_on(plain::stats(&arguments, common)),
        Command::Dump(arguments) => block_on(plain::dump(&arguments, common)),
        Command::Status(arguments) => block_on(status::run(&arguments, common)),
        Command::Watch(arguments) => block_on(watch::run(&arguments, common)),
        Command::Top(arguments) => top::run(&arguments, common),
        Command::Apply(arguments) => block_on(apply::run(&arguments, common)),
        Command::ExportDeclarations(arguments) => block_on(apply::export(&arguments, common)),
        Command::Change(change) => block_on(change.run(common)),
        Command::Cancel(arguments) => block_on(arguments.run(common)),
        Command::Revoke(arguments) => block_on(arguments.run(common)),
        Command::List(arguments) => block_on(list::run(&arguments, common)),
        Command::Sessions(arguments) => block_on(sessions::run(&arguments, common)),
        Command::History(arguments) => history::run(&arguments, common),
        Command::AwaitIdle(arguments) => block_on(await_idle::run(&arguments, common)),
        Command::Run(arguments) => run::run(&arguments, common),
        Command::Acquire(arguments) => block_on(acquire::run(&arguments, common)),
        Command::Renew(arguments) => block_on(session::renew(&arguments, common)),
        Command::Release(arguments) => block_on(session::release(&arguments, common)),
        Command::Verify(arguments) => block_on(session::verify(&arguments, common)),
        Command::Bench(arguments) => bench::run(&arguments, common),
        Command::Sysv(arguments) => sysv::run(&arguments, common),
        Command::Cluster(arguments) => cluster::run(&arguments, common),
        Command::Data(arguments) => data::run(&arguments, common),
        Command::Token(arguments) => token::run(&arguments, common),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::CompleteNames(arguments) => completions::print_names(&arguments),
        Command::Man(arguments) => man::run(&arguments),
    };
    let code = result.map_or_else(Failure::end, |()| ExitCode::SUCCESS);
    messages::flush();
    code
}

/// Prints the help or the version that was requested, or the error in the arguments.
fn explain(answer: &clap::Error) -> ExitCode {
    if !answer.use_stderr() {
        return answer.print().map_or_else(|error| Failure::from(error).end(), |()| ExitCode::SUCCESS);
    }
    let text = error_text(answer);
    match text.strip_prefix("error: ").filter(|_| std::env::args_os().len() > 1) {
        Some(mistake) => Failure::usage(mistake.trim_end()).end(),
        // Without arguments, prints the whole help, regardless of environment variables.
        None => {
            messages::write(command().render_help().to_string());
            messages::flush();
            Failure::silent(Exit::Usage).end()
        }
    }
}

/// The longest part of a value that a message shows, in characters.
const VALUE_SHOWN_MAX: usize = 200;

/// Returns the text of an error in the arguments, with long values cut, and with advice that fits this program.
fn error_text(answer: &clap::Error) -> String {
    let mut text = answer.render().to_string();
    for (_, value) in answer.context() {
        if let ContextValue::String(value) = value {
            text = text.replace(value.as_str(), &cut(value, VALUE_SHOWN_MAX));
        }
    }
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    // The tip to pass an unknown option as a value, as in `-- --json`, is removed. It is wrong for `run`, whose command
    // follows the `--`, and almost always an option was meant.
    if let Some(tip) = lines.iter().position(|line| line.trim_start().starts_with("tip: to pass '")) {
        // The empty line below the tip is removed too.
        lines.drain(tip..(tip + 2).min(lines.len()));
    }
    let lacks_dashes = answer.kind() == ErrorKind::UnknownArgument
        || lines.iter().any(|line| line.trim_start().starts_with("<COMMAND>"));
    let usage = lines.iter().position(|line| line.starts_with("Usage:") && line.contains("-- <COMMAND>"));
    if let (true, Some(usage)) = (lacks_dashes, usage) {
        let tip = "  tip: put -- before the command; a NAME that starts with - is given as --name=-x";
        lines.splice(usage..usage, [tip.to_owned(), String::new()]);
    }
    for line in &mut lines {
        if line.starts_with("Usage:") {
            // The parser shows an option as required if its environment variable is set.
            let optional = ["--server <HOST[:PORT]>", "--session <ID>", "--key <HEX>", "--grant <ID>"];
            *line =
                optional.iter().fold(line.clone(), |line, option| line.replace(&format!(" {option}"), ""));
        }
        // The parser lists this subcommand, although it is hidden.
        *line = line.replace("complete-names, ", "");
    }
    lines.join("\n")
}

fn after_long_help() -> String {
    let mut text = format!("{EXAMPLES}\n\nExit status:\n");
    for (status, meaning) in exit::TABLE {
        text.push_str(&format!("  {status:<7}  {meaning}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_contradict_nothing() {
        command().debug_assert();
    }

    #[test]
    fn the_help_lists_every_visible_subcommand_once() {
        let mut listed: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.split(' ')).collect();
        let command = command();
        let mut visible: Vec<_> = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(clap::Command::get_name)
            .collect();
        listed.sort_unstable();
        visible.sort_unstable();
        assert_eq!(listed, visible);
    }

    #[test]
    fn every_help_shows_an_example() {
        for command in command().get_subcommands() {
            let help = command.clone().render_help().to_string();
            let example = format!("signalbox {}", command.get_name());
            assert!(help.contains("Example") && help.contains(&example), "{help}");
        }
    }
}

//! The command line: all subcommands, and how errors are reported.
//!
//! Each subcommand has its own file with its options and its implementation; this file lists them. An error is one
//! message on stderr that starts with `signalbox: `, and `exit` has the table of all exit statuses.

mod acquire;
mod await_idle;
pub mod bench;
mod check_config;
mod completions;
mod data;
mod declare;
mod declared;
mod dump;
mod exit;
mod get;
mod holders;
mod leased;
mod list;
mod listing;
mod man;
mod name;
mod number;
mod output;
mod ping;
mod refusal;
mod release;
mod remove;
mod renew;
mod resize;
mod revoke;
mod run;
mod serve;
mod server;
mod session;
mod signals;
mod slots;
mod stats;
mod time;
mod verify;
mod waiters;
mod wanted;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use exit::{Exit, Failure};

const EXAMPLES: &str = "\
Examples:
  signalbox serve --config /etc/signalbox.toml
  signalbox ping --server lock.example.org
  signalbox run backup --max 1 -- /usr/local/bin/backup
  signalbox dump --semaphore";

/// Distributed semaphores and counters: a server and its command-line client
///
/// "signalbox serve" runs the server. All other subcommands that take --server are clients of a running server, of
/// signalbox or, for plain operations, of yrmcdsd: they limit how many processes use a resource at the same time,
/// across machines.
#[derive(Debug, Parser)]
#[command(name = "signalbox", version, after_help = EXAMPLES, after_long_help = after_long_help())]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Arguments),
    CheckConfig(check_config::Arguments),
    Ping(ping::Arguments),
    Get(get::Arguments),
    Stats(stats::Arguments),
    Dump(dump::Arguments),
    Holders(holders::Arguments),
    Waiters(waiters::Arguments),
    Watch(watch::Arguments),
    Declare(declare::Arguments),
    Resize(resize::Arguments),
    Remove(remove::Arguments),
    List(list::Arguments),
    AwaitIdle(await_idle::Arguments),
    Run(run::Arguments),
    Acquire(acquire::Arguments),
    Renew(renew::Arguments),
    Release(release::Arguments),
    Revoke(revoke::Arguments),
    Verify(verify::Arguments),
    Bench(bench::Arguments),
    Data(data::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    let program = match Program::try_parse() {
        Ok(program) => program,
        Err(answer) => return explain(&answer),
    };
    let result = match program.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::CheckConfig(arguments) => check_config::run(&arguments),
        Command::Ping(arguments) => ping::run(&arguments),
        Command::Get(arguments) => get::run(&arguments),
        Command::Stats(arguments) => stats::run(&arguments),
        Command::Dump(arguments) => dump::run(&arguments),
        Command::Holders(arguments) => holders::run(&arguments),
        Command::Waiters(arguments) => waiters::run(&arguments),
        Command::Watch(arguments) => watch::run(&arguments),
        Command::Declare(arguments) => declare::run(&arguments),
        Command::Resize(arguments) => resize::run(&arguments),
        Command::Remove(arguments) => remove::run(&arguments),
        Command::List(arguments) => list::run(&arguments),
        Command::AwaitIdle(arguments) => await_idle::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Acquire(arguments) => acquire::run(&arguments),
        Command::Renew(arguments) => renew::run(&arguments),
        Command::Release(arguments) => release::run(&arguments),
        Command::Revoke(arguments) => revoke::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Data(arguments) => data::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man(arguments) => man::run(&arguments),
    };
    result.unwrap_or_else(Failure::report)
}

/// Prints the help or the version that was requested, or the error in the arguments.
fn explain(answer: &clap::Error) -> ExitCode {
    if !answer.use_stderr() {
        // A reader that closes the pipe early is no error.
        let _ = answer.print();
        return ExitCode::SUCCESS;
    }
    let text = without_tip_of_values(&answer.render().to_string());
    match text.strip_prefix("error: ") {
        Some(mistake) => Failure::new(Exit::Usage, mistake.trim_end()).report(),
        // Without arguments, clap returns the whole help.
        None => {
            let _ = answer.print();
            Exit::Usage.into()
        }
    }
}

/// Removes the tip that an unknown option can be passed as a value, as in `-- --json`. It is wrong for `run`, whose command
/// stands there, and an option is what was meant almost always.
fn without_tip_of_values(text: &str) -> String {
    let mut lines: Vec<_> = text.lines().collect();
    if let Some(tip) = lines.iter().position(|line| line.trim_start().starts_with("tip: to pass '")) {
        // With the empty line below it.
        lines.drain(tip..(tip + 2).min(lines.len()));
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
    use clap::CommandFactory;

    use super::Program;

    #[test]
    fn the_definitions_contradict_nothing() {
        Program::command().debug_assert();
    }

    #[test]
    fn every_help_shows_an_example() {
        for command in Program::command().get_subcommands() {
            let help = command.clone().render_help().to_string();
            let example = format!("signalbox {}", command.get_name());
            assert!(help.contains("Example") && help.contains(&example), "{help}");
        }
    }
}

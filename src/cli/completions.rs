//! `signalbox completions`: completion scripts for shells, generated from the definitions of `--help`. Those for bash, zsh
//! and fish also complete names, by `signalbox complete-names`.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use super::complete_names::subcommands;
use super::exit::{Exit, Failure};

/// Print a completion script for a shell
///
/// The scripts for bash, zsh and fish also complete the names of counters and semaphores: they ask the server of --server
/// or SIGNALBOX_SERVER.
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

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
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
    std::io::stdout().write_all(script.as_bytes())?;
    Ok(Exit::Success.into())
}

/// Replaces the completion of the arguments that are names, which the generator takes for files.
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

//! `signalbox man`: the manual pages, generated from the definitions of `--help`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::exit::{self, Exit, Failure};

const EXAMPLES: &str = "\
Examples:
  signalbox man | man -l -
  signalbox man --dir /usr/local/share/man/man1";

/// Print the manual page, or write the pages of all subcommands to a directory
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Write signalbox.1 and a page for each subcommand to this directory
    #[arg(long)]
    dir: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut program = super::command().disable_help_subcommand(true);
    program.build();
    match &arguments.dir {
        None => io::stdout().write_all(&page(&program)?)?,
        Some(dir) => write_pages(dir, &program)?,
    }
    Ok(())
}

/// Writes the page of a command and those of its subcommands.
fn write_pages(dir: &Path, command: &Command) -> Result<(), Failure> {
    write_page(dir, command)?;
    let mut documented = command.get_subcommands().filter(|command| !command.is_hide_set());
    documented.try_for_each(|command| write_pages(dir, command))
}

fn write_page(dir: &Path, command: &Command) -> Result<(), Failure> {
    let path = dir.join(Man::new(command.clone()).get_filename());
    fs::write(&path, page(command)?).map_err(|error| {
        Failure::new(
            Exit::Output,
            format!(
                "cannot write {}: {error}; give an existing directory that you can write to",
                path.display()
            ),
        )
    })
}

/// Returns a manual page with the usual sections. The generator does not support the last two: examples and exit
/// statuses.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone())
        .source(format!("signalbox {}", env!("CARGO_PKG_VERSION")))
        .manual("signalbox");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::new();
    if let Some(text) = command.get_after_help() {
        examples(&mut roff, &text.to_string());
    }
    exit_statuses(&mut roff);
    roff.to_writer(&mut page)?;
    Ok(page)
}

/// Adds the examples of `--help`, with the heading of a manual page.
fn examples(roff: &mut Roff, text: &str) {
    roff.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in text.lines().skip(1) {
        roff.text([roman(line.trim_start())]);
    }
    roff.control("fi", []);
}

fn exit_statuses(roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in exit::TABLE {
        roff.control("TP", []).text([bold(*status)]).text([roman(*meaning)]);
    }
}

//! `signalbox sysv run`: replaces itself with a command whose System V semaphores are those of a server.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use super::library;
use super::program;
use super::settings::{self, CONFIG, KEYS, SERVER};
use crate::cli::arguments::Common;
use crate::cli::exit::Failure;
use crate::cli::identity;
use crate::cli::server::block_on;
use signalbox_model::sysv::Keys;

/// Written by hand because the generator of the manual page omits the two dashes.
const USAGE: &str = "signalbox sysv run [OPTIONS] -- <COMMAND>...";

/// Run a command whose System V semaphores are on a server
///
/// The command and the programs that it starts run unchanged: a library that is loaded into them (LD_PRELOAD) sends their
/// calls of semget, semop, semtimedop and semctl for the selected keys to the server. Calls for other keys go to the
/// kernel. The command replaces this program, so its exit status, its process id and its signals are its own.
///
/// Before that, this program checks that the library is there, that it can be loaded into the command, and that the server
/// answers and supports the calls. If one of them fails, the command is not started (71: the library, 69: the server).
///
/// The keys are those of --keys and --map, else those of SIGNALBOX_SYSV_KEYS, else those of the file. The server is
/// that of --server, else of SIGNALBOX_SYSV_SERVER, else of the file, else of SIGNALBOX_SERVER. Several addresses are
/// the nodes of one cluster: the programs use the one that leads, and the next one after a failover. The library itself
/// reads its other settings from the file and the environment.
///
/// The token is that of --token-file, else of SIGNALBOX_TOKEN_FILE, else of SIGNALBOX_TOKEN. The library presents it to
/// the server, so every program that is started must be able to read the file. Calls of semaphores need the rights read
/// and acquire, on all objects or on the area sysv. Without them, they fail with EACCES. The library has no TLS, and
/// sends the token to a server on another machine only with --token-over-plain or SIGNALBOX_TOKEN_OVER_PLAIN=1.
///
/// The dynamic linker does not load the library into programs that are linked statically, for 32 bits or to another C
/// library, nor into those that change their user (set-user-id), such as sudo: start those the other way round, "sudo
/// signalbox sysv run". Such a command, or a script that it interprets, is not started (71). The programs that the
/// command starts are not checked: their semaphores would be those of their own host.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox sysv run --keys all -- php worker.php
  signalbox sysv run --server lock.example.org --keys 0x1000-0x1fff,42 -- perl job.pl
  signalbox sysv run --server 10.0.0.1,10.0.0.2,10.0.0.3 --keys all -- php worker.php
  signalbox sysv run --map 0x5101a2b3=0x10 -- php worker.php
  signalbox sysv run --config /etc/signalbox-sysv.conf -- php-fpm", override_usage = USAGE)]
pub(super) struct Arguments {
    /// Keys that go to the server: all, or keys and ranges, separated by commas (42,0x1000-0x1fff)
    #[arg(long, value_name = "all|RANGES", value_parser = keys)]
    keys: Vec<String>,

    /// A key of this host that goes to the server as another key, for keys of ftok, which differ between hosts
    #[arg(long = "map", value_name = "LOCAL=SHARED", value_parser = mapping)]
    mappings: Vec<String>,

    /// File with settings of the library
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The library to load, instead of the one that belongs to this program
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn keys(list: &str) -> Result<String, String> {
    match list.parse::<Keys>()?.is_empty() {
        true => Err("expected all, or keys and ranges such as 42,0x1000-0x1fff".to_owned()),
        false => Ok(list.to_owned()),
    }
}

fn mapping(item: &str) -> Result<String, String> {
    match item.contains('=') {
        true => keys(item),
        false => Err("expected the key of this host and the shared key, such as 0x5101a2b3=0x10".to_owned()),
    }
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    let given_server = &common.server;
    let Arguments { keys, mappings, config, library, .. } = arguments;
    given_server.tls.refuse(
        "the library for System V semaphores does not use TLS; omit --tls, --ca and --cert, unset \
         SIGNALBOX_TLS, SIGNALBOX_CA and SIGNALBOX_CERT, and give it a server on this machine, or a proxy here that connects \
         over TLS",
    )?;
    let settings = settings::read(config.as_deref())?;
    let keys: Vec<_> = keys.iter().chain(mappings).cloned().collect();
    if keys.is_empty() && !settings.has_keys {
        return Err(Failure::usage(format!(
            "no keys are selected, so all semaphores would stay on this host; add --keys all, a list such as --keys \
             42,0x1000-0x1fff, or --map, or set {KEYS} or \"keys\" in a file of --config"
        )));
    }
    let addresses = settings.servers.filter(|_| !common.has("server"));
    let server = given_server.with_addresses(addresses.unwrap_or_else(|| given_server.addresses()));
    let library = library::find(library.as_deref())?;
    let (program, rest) = arguments.command.split_first().expect("clap requires a command");
    program::check(program)?;

    let mut command = Command::new(program);
    command.args(rest).env(library::PRELOAD, library::preload(&library)?).env(SERVER, server.shown());
    if !keys.is_empty() {
        command.env(KEYS, keys.join(","));
    }
    if let Some(config) = config {
        command.env(CONFIG, config);
    }
    if let Some(file) = given_server.token.file() {
        // The command may change its directory before it starts other programs.
        let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        command.env(identity::TOKEN_FILE, absolute);
    }
    if given_server.token.token_over_plain {
        command.env(identity::TOKEN_OVER_PLAIN, "1");
    }
    library::check_settings(&command)?;
    block_on(async { server.direct().await.map(drop) })?;
    Err(Failure::of_command(program, &command.exec()))
}

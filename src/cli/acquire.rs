//! `signalbox acquire`: resources that outlive this process, for scripts that hold them over several commands.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::exit::{Exit, Failure, warn};
use super::leased::{self, Held};
use super::output::{hex, json};
use super::server::{Server, block_on};
use super::session::{Credentials, GRANT, KEY, SESSION, SLOTS};
use super::signals::Signals;
use super::slots;
use super::time::time;
use super::wanted::{Amounts, Waiting, Wanted};
use crate::client::HandedOver;

const LONG: &str = "\
Acquire resources for a script, and print the session that holds them

The resources are held for the time that --lease says, also when this program has ended: until \"signalbox release\", \
and as long again with each \"signalbox renew\". What is printed are assignments for a shell, of which these two \
take the session. SIGNALBOX_KEY is secret: who has it can release what is held. SIGNALBOX_GRANT is a number that grows \
from grant to grant of a name, for a store that fences with it. Where slots of a semaphore were acquired, SIGNALBOX_SLOTS \
has their numbers, separated by commas; of several NAMEs, a colon stands between those of one and of the next.

A semaphore that \"signalbox declare\" declared needs no maximum.

Where nothing is available, nothing is printed and the exit status is 75; with --wait, it is first waited for in a \
fair queue. \"eval\" forgets that status, so keep the output in a variable first.

A command that runs longer than the lease is safer under \"signalbox run --lease\", which renews it.";

const EXAMPLES: &str = "\
Examples:
  held=$(signalbox acquire deploys --max 3 --lease 5m --wait) || exit; eval \"$held\"
  signalbox acquire gpu=2/4 licences=10 --lease 1h --json
  signalbox acquire --semaphore gpu --resources 2 --lease 1h";

const USAGE: &str = "\
signalbox acquire [OPTIONS] --lease <TIME> --max <N> <NAME>...
       signalbox acquire [OPTIONS] --lease <TIME> <NAME=[R/]MAX>...
       signalbox acquire [OPTIONS] --lease <TIME> --semaphore <NAME[=R/]>...";

/// Acquire resources for a script, and print the session that holds them
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES, override_usage = USAGE)]
pub(super) struct Arguments {
    #[command(flatten)]
    wanted: Wanted,

    #[command(flatten)]
    waiting: Waiting,

    /// How long the resources are held without renewal; the server has bounds for it
    #[arg(long, value_name = "TIME", value_parser = time)]
    lease: Duration,

    /// Print one JSON object instead of assignments
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let amounts = arguments.wanted.amounts(arguments.server.namespace())?;
    block_on(acquire(arguments, &amounts))
}

async fn acquire(arguments: &Arguments, amounts: &Amounts) -> Result<ExitCode, Failure> {
    let Arguments { waiting, lease, server, .. } = arguments;
    let mut signals = Signals::listen()?;
    let task = format!("acquire for process {}", std::os::unix::process::parent_id());
    let Held { client, permit } =
        leased::acquire(server, Some(*lease), &task, amounts, waiting, &mut signals).await?;
    let slots = slots::of(&permit);
    let handed = match server.answer(permit.hand_over()).await {
        Ok(Ok(handed)) => handed,
        failed => {
            // This program would be gone before its lease thread has given back what nobody has heard of.
            client.close().await;
            failed??
        }
    };
    // The wire has whole milliseconds.
    if handed.ttl.as_millis() < lease.as_millis() {
        // Nobody renews it, so a script that counts on more would go on without.
        let (given, asked) = (handed.ttl.as_secs_f64(), lease.as_secs_f64());
        warn(&format!("the server leases for {given} s at most, not for {asked} s; renew before that"));
    }
    if let Err(error) = print(&handed, &slots, arguments.json) {
        // Nobody knows the key now, so nobody else can give it back.
        Credentials::new(handed.session, handed.key).close(server).await?;
        let message = format!("cannot write the output ({error}), so nothing is held; check where it goes");
        return Err(Failure::new(Exit::Output, message));
    }
    Ok(Exit::Success.into())
}

/// `slots` are those of each name, in the order of the arguments.
fn print(handed: &HandedOver, slots: &[Vec<u16>], as_json: bool) -> std::io::Result<()> {
    let HandedOver { session, key, grant, ttl } = handed;
    let key = hex(&key.0);
    let text = if as_json {
        let lease = ttl.as_secs_f64();
        json(&Line { session: *session, key: &key, grant: grant.0.to_string(), slots, lease }) + "\n"
    } else {
        let mut text =
            format!("export {SESSION}={session}\nexport {KEY}={key}\nexport {GRANT}={}\n", grant.0);
        if let Some(slots) = slots::of_all(slots) {
            text.push_str(&format!("export {SLOTS}={slots}\n"));
        }
        text
    };
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[derive(Serialize)]
struct Line<'a> {
    session: u64,
    key: &'a str,
    /// As text, since it is larger than what readers that take every number for a double keep whole.
    grant: String,
    /// Of each name; empty where its resources have no numbers.
    slots: &'a [Vec<u16>],
    /// In seconds.
    lease: f64,
}

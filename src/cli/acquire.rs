//! `signalbox acquire`: acquires resources for a script. They stay held after this process has ended.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::sync::oneshot;

use super::arguments::Common;
use super::exit::{Failure, check_output};
use super::leased::{self, Held};
use super::messages;
use super::outer;
use super::output;
use super::session::{Credentials, GRANT, KEY, SESSION, SLOTS};
use super::signals::Signals;
use super::values::time;
use super::wanted::{Waiting, Wanted};
use signalbox_client::HandedOver;
use signalbox_model::hex;

const USAGE: &str = "\
signalbox acquire [OPTIONS] --lease <TIME> --max <N> <NAME>...
       signalbox acquire [OPTIONS] --lease <TIME> <NAME[=R][:MAX]>...";

/// Acquire resources for a script, and print the session that holds them
///
/// The resources stay held after this command has ended, until "signalbox release", or until --lease has passed without
/// a "signalbox renew". The output is shell assignments, and both of these commands read the session from the
/// variables. SIGNALBOX_KEY is secret: with it, anyone can release the resources. SIGNALBOX_GRANT is a fencing token:
/// it grows with each grant of a name. If numbered slots were acquired, SIGNALBOX_SLOTS has their numbers, separated by
/// commas, with a colon between those of different NAMEs.
///
/// A NAME is a limit: it is declared ("signalbox declare"), or its maximum comes with each request. A maximum below the
/// declared capacity is refused.
///
/// If the resources are in use, nothing is printed and the exit status is 75; with --wait, the request first waits in a
/// fair queue. "eval" discards the exit status, so store the output in a variable first.
///
/// With --share, only one of many scripts that need the same result works for it: it acquires the only resource of
/// NAME, checks that the result is still missing, works, and ends with "signalbox release --done". Then this command
/// prints nothing in the scripts that wait, and exits with 0 or with --done-status, because the result exists. If the
/// script releases without --done, or its lease ends, the next one works.
///
/// Nothing renews the lease while a command of the script runs. Start a command that may take longer than the lease with
/// "signalbox run --lease" instead.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  held=$(signalbox acquire deploys --max 3 --lease 5m --wait max) || exit; eval \"$held\"
  signalbox acquire seats=2:4 licences:10 --lease 1h --json
  signalbox acquire gpu --resources 2 --lease 1h
  held=$(signalbox acquire page-7 --share --wait 10s --lease 1m) || exit; [ -z \"$held\" ] || eval \"$held\"", override_usage = USAGE)]
pub(super) struct Arguments {
    #[command(flatten)]
    wanted: Wanted,

    #[command(flatten)]
    waiting: Waiting,

    /// How long the resources stay held without renewal
    #[arg(long, value_name = "TIME", value_parser = time)]
    lease: Duration,
}

pub(super) async fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    let Arguments { wanted, waiting, lease } = arguments;
    let server = &common.server;
    let amounts = waiting.checked(wanted.amounts(server.kind())?)?;
    check_output()?;
    let mut signals = Signals::listen()?;
    messages::in_background();
    let task = format!("acquire for process {}", std::os::unix::process::parent_id());
    let Held { client, permit } =
        leased::acquire(server, Some(*lease), &task, &amounts, waiting, &outer::of_runs(), &mut signals)
            .await?;
    let slots = leased::slots_of(&permit);
    let handover = async { server.answer(permit.hand_over()).await.map_err(Failure::from) };
    let handed = match leased::unless_signalled(&mut signals, handover).await {
        Ok(handed) => handed,
        Err(failure) => {
            // Without this, the process could end before its background thread has released the permit.
            client.close().await;
            return Err(failure);
        }
    };
    let text = if common.json { json_line(&handed, &slots) } else { assignments(&handed, &slots) };
    let printed = leased::unless_signalled(&mut signals, async { Ok(print(text).await) }).await;
    let mut consequences = "; the resources were released";
    // No other process knows the key, so only this one can release the resources.
    if !matches!(printed, Ok(Ok(())))
        && let Err(failure) = Credentials::new(handed.session, handed.key).close(server, false).await
    {
        failure.report();
        consequences = "; the resources stay held until the lease ends";
    }
    printed?.map_err(|error| Failure::unwritten(&error, consequences))
}

/// Prints in a separate thread, so that a signal can end the wait: writing to a full pipe blocks until its reader reads.
async fn print(text: String) -> io::Result<()> {
    let (sender, printed) = oneshot::channel();
    thread::Builder::new().spawn(move || {
        messages::ignore_signals_of_writes();
        let mut out = io::stdout();
        // Sending fails if a signal has ended the wait.
        let _ = sender.send(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    })?;
    printed.await.expect("the thread sends the result before it ends")
}

/// Returns assignments for a shell. `slots` has one entry per name, in the order of the arguments.
fn assignments(handed: &HandedOver, slots: &[Vec<u16>]) -> String {
    let HandedOver { session, key, grant, .. } = handed;
    let key = hex(&key.0);
    let mut text = format!("export {SESSION}={session}\nexport {KEY}={key}\nexport {GRANT}={}\n", grant.0);
    if let Some(slots) = leased::slots_value(slots) {
        text.push_str(&format!("export {SLOTS}={slots}\n"));
    }
    text
}

/// Returns one JSON object. Ids are strings: many JSON readers convert numbers to doubles, which would round them.
fn json_line(HandedOver { session, key, grant, ttl }: &HandedOver, slots: &[Vec<u16>]) -> String {
    let object = json!({
        "session": session.to_string(),
        "key": hex(&key.0),
        "grant": grant.to_string(),
        "slots": slots,
        "lease": ttl.as_secs_f64(),
    });
    output::json(&object) + "\n"
}

//! `signalbox run`: runs a command while holding resources for it.
//!
//! There are two ways to hold them: `plain` by a connection, `leased` by a leased session. Both raise an alarm in
//! `supervise` when the resources are about to be lost, and `supervise` ends the command and its descendants, which
//! `processes` and `descendants` know.

mod arguments;
mod descendants;
mod leased;
mod plain;
mod processes;
mod supervise;

use super::arguments::Common;
use super::exit::Failure;
use super::messages;
use super::server::block_on;
use super::wanted::Amount;
pub(super) use arguments::Arguments;
use signalbox_client::Maximum;

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    let server = &common.server;
    let amounts = arguments.waiting.checked(arguments.wanted.amounts(server.kind())?)?;
    messages::in_background();
    let end = match amounts.single() {
        // A plain Acquire has a kind and a maximum, and does not wait.
        Some(amount @ Amount { max: Some(max), .. }) if arguments.is_plain(server) => {
            block_on(plain::run(arguments, server, amount, Maximum(*max), &amounts))
        }
        _ => block_on(leased::run(arguments, server, &amounts)),
    }?;
    Err(Failure::silent(end))
}

//! `signalbox run`: runs a command while holding resources for it.
//!
//! A connection holds them (`plain`), or a leased session (`leased`). Both raise an alarm in `supervise` when the
//! resources are about to be lost or were lost, and `supervise` ends the command and its descendants, which `processes`
//! and `descendants` find.

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

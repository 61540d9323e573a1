//! While a request waits: a line on the terminal with its place in the queue, the holders before it, and whether the
//! semaphore is paused.
//!
//! The line is on standard error, only if that is a terminal and this process is in its foreground, and is erased when the
//! wait ends. It never delays the request, and a server that does not answer leaves the line as it was.

use std::convert::Infallible;
use std::io::{self, IsTerminal};
use std::time::Duration;

use nix::unistd::{getpgrp, tcgetpgrp};

use super::listing::{self, Entry, ListingKind};
use super::messages;
use super::output::{cut, error_width, escaped, or_nothing};
use super::server::{Server, label, resolved};
use super::wanted::{Amount, Amounts};
use signalbox_client::{Direct, Error, Status};
use signalbox_model::noun;

/// A request that is granted sooner shows nothing.
const FIRST: Duration = Duration::from_millis(300);

/// How often the line is brought up to date.
const REFRESH: Duration = Duration::from_secs(2);

/// Waits for the result of a request; the task is its label in lists of waiters.
pub(super) async fn shown_while<T>(
    server: &Server,
    task: &str,
    amounts: &Amounts,
    request: impl Future<Output = T>,
) -> T {
    if !io::stderr().is_terminal() {
        return request.await;
    }
    let own = label(task);
    tokio::select! {
        biased;
        result = request => result,
        never = show(server, &own, amounts) => match never {},
    }
}

/// The line on the terminal, which is erased when this is dropped.
struct Line {
    is_shown: bool,
}

impl Line {
    fn show(&mut self, text: &str) {
        // One character less, because some terminals wrap a full line.
        let text = cut(text, error_width().saturating_sub(1));
        self.is_shown = true;
        messages::write_line(format!("\r{text}\x1b[K"));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.is_shown {
            messages::write_line("\r\x1b[K".to_owned());
        }
    }
}

async fn show(server: &Server, own: &[u8], amounts: &Amounts) -> Infallible {
    let mut line = Line { is_shown: false };
    let mut connection = None;
    tokio::time::sleep(FIRST).await;
    loop {
        if in_background() {
            tokio::time::sleep(REFRESH).await;
            continue;
        }
        let ask = async {
            let direct = match connection.take() {
                Some(direct) => direct,
                None => server.direct().await.ok()?,
            };
            let text = text(&direct, own, amounts).await.ok()?;
            connection = Some(direct);
            text
        };
        if let Ok(Some(text)) = tokio::time::timeout(server.timeout(), ask).await {
            line.show(&text);
        }
        tokio::time::sleep(REFRESH).await;
    }
}

/// Whether another process group uses the terminal now. If this is not the terminal of this session, nobody else does.
fn in_background() -> bool {
    tcgetpgrp(io::stderr()).is_ok_and(|foreground| foreground != getpgrp())
}

/// The line for the name that the request waits for; `None`: it waits for none.
async fn text(direct: &Direct, own: &[u8], amounts: &Amounts) -> Result<Option<String>, Error> {
    for amount in amounts.each() {
        let name = amount.name.bytes();
        let namespace = match resolved(direct, amounts.kind(), name).await {
            Err(error) if error.status() == Some(Status::NotFound) => continue,
            namespace => namespace?,
        };
        let waiters = listing::all(direct, namespace, name, ListingKind::Waiters).await?;
        // The label has the machine and the process id, so it is that of this request.
        let Some(place) = waiters.iter().position(|waiter| waiter.label == own) else { continue };
        let holders = listing::all(direct, namespace, name, ListingKind::Holders).await?;
        let declared = listing::declared_as(direct, namespace, name).await?;
        let is_paused = declared.is_some_and(|declared| declared.paused);
        return Ok(Some(composed(amounts, amount, (place + 1, waiters.len()), is_paused, &holders)));
    }
    Ok(None)
}

fn composed(
    amounts: &Amounts,
    amount: &Amount,
    (place, waiters): (usize, usize),
    is_paused: bool,
    holders: &[Entry],
) -> String {
    let by: Vec<_> = holders
        .iter()
        .map(|holder| match holder.label.is_empty() {
            true => or_nothing(&holder.address),
            false => escaped(&holder.label),
        })
        .collect();
    let held = if by.is_empty() { "not held".to_owned() } else { format!("held by {}", by.join(", ")) };
    let (kind, name) = (noun(amounts.kind()), &amount.name);
    let paused = if is_paused { "paused by an administrator; " } else { "" };
    format!("signalbox: waiting for {kind} {name}: {paused}position {place} of {waiters}; {held}")
}

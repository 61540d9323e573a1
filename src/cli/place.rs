//! Shows a line on the terminal while a request waits: its place in the queue, the holders, and whether the semaphore
//! is paused.
//!
//! The line is written to standard error, if that is a terminal and this process is in its foreground, and is erased
//! when the wait ends. It never delays the request, and a server that does not answer leaves the line as it was.

use std::convert::Infallible;
use std::future::pending;
use std::io::{self, IsTerminal};
use std::time::Duration;

use nix::unistd::{getpgrp, tcgetpgrp};

use super::listing::State;
use super::messages;
use super::output::{cut, escaped, text_or_dash, width_of};
use super::refusal::{Answer, Questions};
use super::wanted::Amounts;
use signalbox_model::noun;

/// The time before the line is shown: a request that is granted sooner shows nothing.
const FIRST: Duration = Duration::from_millis(300);

/// The time between two updates of the line.
const REFRESH: Duration = Duration::from_secs(2);

/// The line on the terminal, which is erased when this is dropped.
struct Line {
    is_shown: bool,
}

impl Line {
    fn show(&mut self, text: &str) {
        // One character less, because some terminals wrap a full line.
        let text = cut(text, width_of(io::stderr()).saturating_sub(1));
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

/// Shows the line of the request with this label for as long as this is polled.
pub(super) async fn show(questions: &mut Questions<'_>, own: &[u8]) -> Infallible {
    if !io::stderr().is_terminal() {
        return pending().await;
    }
    let mut line = Line { is_shown: false };
    tokio::time::sleep(FIRST).await;
    loop {
        if !in_background() {
            let answers = questions.answers(true).await;
            if let Some(text) = text(questions.amounts, own, &answers) {
                line.show(&text);
            }
        }
        tokio::time::sleep(REFRESH).await;
    }
}

/// Returns whether another process group is in the foreground of the terminal; `false` if standard error is not the
/// terminal of this session.
fn in_background() -> bool {
    tcgetpgrp(io::stderr()).is_ok_and(|foreground| foreground != getpgrp())
}

/// Returns the line for the name that the request waits for; `None` if it does not wait.
fn text(amounts: &Amounts, own: &[u8], answers: &[Answer]) -> Option<String> {
    let waited_for = amounts.each.iter().zip(answers).find_map(|(amount, answer)| {
        let state = answer.as_ref().ok()?.as_ref()?;
        // The label has the machine and the process id, so no other request has the same one.
        let place = state.queue.iter().position(|waiter| waiter.label == own)?;
        Some((amount, state, place + 1))
    });
    let (amount, State { declared, holders, queue, .. }, place) = waited_for?;
    let by: Vec<_> = holders
        .iter()
        .map(|holder| match holder.label.is_empty() {
            true => text_or_dash(&holder.address),
            false => escaped(&holder.label),
        })
        .collect();
    let held = if by.is_empty() { "not held".to_owned() } else { format!("held by {}", by.join(", ")) };
    let is_paused = declared.as_ref().is_some_and(|declared| declared.paused);
    let paused = if is_paused { "paused by an administrator; " } else { "" };
    let (kind, name, waiters) = (noun(amounts.kind), &amount.name, queue.len());
    Some(format!("signalbox: waiting for {kind} {name}: {paused}position {place} of {waiters}; {held}"))
}

//! A leader among many: of all processes that run this, one at a time does the work, and another takes over when that
//! one ends, hangs or is cut off.
//!
//! ```sh
//! SIGNALBOX_SERVER=lock.example.org cargo run --example leader
//! ```
//!
//! All of them queue for a semaphore of one. Whoever has it works until it ends, or until it is lost: the client tells
//! before the server lets another lead, and `guard` drops the work then. What that cannot stop is a write that is under
//! way already. Where two leaders for a moment would do harm, send the grant's number along as `fenced_writer` does.

use std::convert::Infallible;
use std::env;
use std::process::ExitCode;
use std::time::Duration;

use signalbox::client::{Client, Error, Permit, Status};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// What the processes have in common; another name is another election.
const ELECTION: &str = "example/leader";

/// For how long a leader that is cut off keeps others from leading, and may go on itself.
const LEASE: Duration = Duration::from_secs(15);

/// How often there is something to do, and the longest that it takes.
const PERIOD: Duration = Duration::from_millis(500);
const STEP_MAX: Duration = Duration::from_millis(100);

/// How long to wait after a failure that may be over soon.
const PAUSE: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leader: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Takes part in the election until a signal says to stop.
async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let server = env::var("SIGNALBOX_SERVER").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let label = format!("leader[{}]", std::process::id());
    // Without looking for a server: one that is away now is waited for like one that is away later.
    let client = Client::builder(server.parse()?).label(label).ttl(LEASE).build()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let result = tokio::select! {
        result = take_part(&client) => result,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    // So that the next one leads at once and not when the lease is over.
    client.close().await;
    Ok(result?)
}

/// Leads whenever it is this process' turn. Returns only what trying again does not mend.
async fn take_part(client: &Client) -> Result<(), Error> {
    loop {
        match client.semaphore(ELECTION).capacity(1).acquire().await {
            Ok(permit) => lead(permit).await,
            Err(error) if may_pass(&error) => {
                eprintln!("leader: {error}");
                sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whether another try may have better luck. `TimedOut` is the longest wait that the server allows, not a failure.
fn may_pass(error: &Error) -> bool {
    use Status::{LimitReached, OutOfMemory, Revoked, TimedOut};
    matches!(
        error,
        Error::Unreachable { .. } | Error::Status(TimedOut | LimitReached | OutOfMemory | Revoked)
    )
}

/// Works for as long as the permit is held.
async fn lead(permit: Permit) {
    println!("leading by grant {}", permit.id().0);
    tokio::select! {
        result = permit.guard(work(&permit)) => {
            let Err(lost) = result;
            println!("leading no more: {lost}");
        }
        () = permit.revocation() => {
            println!("leading no more: an administrator wants another to lead");
            // The grace is for work that has to be brought to an end; here there is none.
            if let Err(error) = permit.release().await {
                eprintln!("leader: {error}");
            }
        }
    }
}

/// The periodic work; your own goes here.
async fn work(permit: &Permit) -> Infallible {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // `guard` stops the work where it awaits. A step that does not await is not begun unless there is time for it.
        if permit.time_left() > Some(STEP_MAX) {
            println!("at work");
        }
    }
}

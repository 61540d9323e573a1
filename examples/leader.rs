//! Leader election: of all processes that run this program, one at a time does the work. Another one takes over when
//! the leader ends, hangs or is disconnected.
//!
//! ```sh
//! SIGNALBOX_SERVER=lock.example.org cargo run --example leader
//! ```
//!
//! All processes queue for a semaphore with the capacity 1. The holder works until it ends or loses the permit. The
//! client knows of the loss before the server grants the permit to another process, and `guard` then drops the work.
//! It cannot stop a write that is already under way. If two leaders for a moment would do harm, send the fencing token
//! with each write, as `fenced_writer` does.

use std::convert::Infallible;
use std::env;
use std::process::ExitCode;
use std::time::Duration;

use signalbox_client::{Client, Error, ErrorKind, Permit, Status};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// The name of the election.
const ELECTION: &str = "example/leader";

/// How long a disconnected leader may continue. Another process can lead only afterwards.
const LEASE: Duration = Duration::from_secs(15);

/// The period of the work, and the longest time of one step.
const PERIOD: Duration = Duration::from_millis(500);
const STEP_MAX: Duration = Duration::from_millis(100);

/// The pause after a temporary failure.
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

/// Takes part in the election until a signal stops the process.
async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let server = env::var("SIGNALBOX_SERVER").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let label = format!("leader[{}]", std::process::id());
    // `build` does not connect: a server that is unreachable now is handled like one that is unreachable later.
    let client = Client::builder(server.parse()?).label(label).ttl(LEASE).build()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let result = tokio::select! {
        result = take_part(&client) => result,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    // The next process then leads at once, not only after the end of the lease.
    client.close().await;
    Ok(result?)
}

/// Leads whenever this process has the permit. Returns only errors that are not temporary.
async fn take_part(client: &Client) -> Result<(), Error> {
    loop {
        match client.semaphore(ELECTION).capacity(1).acquire().await {
            Ok(permit) => lead(permit).await,
            Err(error) if is_temporary(&error) => {
                eprintln!("leader: {error}");
                sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns whether the error is temporary. `TimedOut` is the longest wait that the server allows, not a failure.
fn is_temporary(error: &Error) -> bool {
    use Status::{OutOfMemory, Revoked, TimedOut};
    matches!(
        error.kind(),
        ErrorKind::Unreachable { .. }
            | ErrorKind::LimitReached { .. }
            | ErrorKind::Status(TimedOut | OutOfMemory | Revoked)
    )
}

/// Works for as long as the permit is held.
async fn lead(permit: Permit) {
    println!("leading by grant {}", permit.id().0);
    tokio::select! {
        result = permit.guard(work(&permit)) => {
            let Err(lost) = result;
            println!("no longer leading: {lost}");
        }
        () = permit.revocation() => {
            println!("no longer leading: an administrator wants another to lead");
            // The grace period is for work that has to be finished; here there is none.
            if let Err(error) = permit.release().await {
                eprintln!("leader: {error}");
            }
        }
    }
}

/// The periodic work. Replace it with your own.
async fn work(permit: &Permit) -> Infallible {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // `guard` stops the work at an await. A step without an await starts only if the lease is long enough for it.
        if permit.time_left() > Some(STEP_MAX) {
            println!("at work");
        }
    }
}

//! A writer that may be overtaken and does no harm: the number of its grant goes with every write, and the store
//! refuses numbers that are lower than what it has seen.
//!
//! ```sh
//! seq 3 | SIGNALBOX_SERVER=lock.example.org cargo run --example fenced_writer -- /tmp/journal
//! ```
//!
//! Each line of standard input is written to the file as a line of its own, behind the number of the grant. Of all
//! processes that run this, one writes and the others wait. One that is stopped for a minute loses its lease, another
//! writes, and when the first goes on, the store refuses it: it has no need to know the time, and asks nobody.
//!
//! This program has no executor and waits by `client::blocking`.

use std::env;
use std::fs::OpenOptions;
use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use signalbox::client::{self, Lost, blocking};

/// The semaphore of one that writers take turns by.
const NAME: &str = "example/journal";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fenced_writer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let path = env::args_os().nth(1).ok_or("say which file to write, as the first argument")?;
    let store = Store { path: path.into() };
    let server = env::var("SIGNALBOX_SERVER").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let label = format!("fenced_writer[{}]", std::process::id());
    let builder = client::Client::builder(server.parse()?).label(label);
    let client = blocking::Client::connect_with(builder)?;
    let result = write_all(&client, &store);
    // Also after a failure, so that the next one need not wait for the end of the lease.
    client.close();
    result
}

/// Writes the lines of standard input while this process holds the semaphore.
fn write_all(client: &blocking::Client, store: &Store) -> Result<(), Box<dyn std::error::Error>> {
    let permit = client.wait(client.semaphore(NAME).capacity(1).acquire())?;
    let fence = permit.id().0;
    for line in io::stdin().lock().lines() {
        let line = line?;
        // This spares a write that would be refused. It cannot take the place of the store's own look: the process may
        // be stopped between these two lines.
        if !permit.is_held() {
            return Err(Lost::Expired.into());
        }
        store.append(fence, &line)?;
    }
    client.wait(permit.release())?;
    Ok(())
}

/// A file of lines, each behind the number of the grant that it was written under. In a database this is a column:
/// `UPDATE journal SET text = $2, fence = $1 WHERE fence <= $1`, which must have changed one row.
struct Store {
    path: PathBuf,
}

impl Store {
    /// Adds a line, unless a holder with a greater number was here before.
    fn append(&self, fence: u64, line: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&self.path)?;
        // To look and to write must be one step. Closing the file unlocks it.
        file.lock()?;
        let mut journal = String::new();
        file.read_to_string(&mut journal)?;
        let fences = journal.lines().filter_map(|line| line.split_once(' ')?.0.parse::<u64>().ok());
        let greatest = fences.max().unwrap_or_default();
        if fence < greatest {
            let refusal = format!("grant {greatest} has written since, so grant {fence} is refused");
            return Err(io::Error::other(refusal));
        }
        file.write_all(format!("{fence} {line}\n").as_bytes())
    }
}

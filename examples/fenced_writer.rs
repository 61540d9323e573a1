//! A writer with a fencing token: it sends the id of its grant with every write, and the store refuses a lower id than
//! it has seen. So a writer that was suspended and lost its lease cannot overwrite its successor.
//!
//! ```sh
//! seq 3 | SIGNALBOX_SERVER=lock.example.org cargo run --example fenced_writer -- /tmp/journal
//! ```
//!
//! The program appends each line of standard input to the file, after the id of the grant. Of all processes that run
//! it, one writes and the others wait. If a process is suspended for a minute, it loses its lease and another process
//! writes. When the first one continues, the store refuses its writes, without a clock and without asking the server.
//!
//! This program has no async runtime and uses `client::blocking`.

use std::env;
use std::fs::OpenOptions;
use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use signalbox_client::{Client, Lost, blocking};

/// A semaphore with the capacity 1, so that one process writes at a time.
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
    let path = env::args_os().nth(1).ok_or("the file to write is missing; give it as the first argument")?;
    let store = Store { path: path.into() };
    let server = env::var("SIGNALBOX_SERVER").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let label = format!("fenced_writer[{}]", std::process::id());
    let builder = Client::builder(server.parse()?).label(label);
    let client = blocking::Client::connect_with(builder)?;
    let result = write_all(&client, &store);
    // Even after a failure, so that the next writer does not have to wait for the end of the lease.
    client.close();
    result
}

/// Writes the lines of standard input while this process holds the semaphore.
fn write_all(client: &blocking::Client, store: &Store) -> Result<(), Box<dyn std::error::Error>> {
    let permit = client.wait(client.semaphore(NAME).capacity(1).acquire())?;
    let fence = permit.id().0;
    for line in io::stdin().lock().lines() {
        let line = line?;
        // This avoids a write that the store would refuse. It cannot replace the check of the store, because the
        // process may be suspended between these two lines.
        if !permit.is_held() {
            return Err(Lost::Expired.into());
        }
        store.append(fence, &line)?;
    }
    client.wait(permit.release())?;
    Ok(())
}

/// A file of lines, each with the id of the grant that it was written under. In a database, this is a column:
/// `UPDATE journal SET text = $2, fence = $1 WHERE fence <= $1` must change one row.
struct Store {
    path: PathBuf,
}

impl Store {
    /// Appends a line, unless a holder with a greater id has written before.
    fn append(&self, fence: u64, line: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&self.path)?;
        // The check and the write must be atomic. Closing the file unlocks it.
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

//! A worker pool with a limit of connections per tenant: over all processes on all machines, each tenant's database has
//! a limited number of connections, and a tenant with many jobs does not block the others.
//!
//! ```sh
//! printf '%s\n' 'blue one' 'blue two' 'red one' | SIGNALBOX_SERVER=lock.example.org cargo run --example worker_pool
//! ```
//!
//! Each line of standard input is a job: a tenant and a task. The program prints the jobs that are done. If jobs are
//! left, it prints them to standard error and exits with the status 1.
//!
//! The limit is the maximum of a counter, which is part of each request: restart the program with another maximum to
//! change it. A semaphore would keep the capacity that it was created with.

use std::collections::VecDeque;
use std::env;
use std::io::{self, BufRead};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use signalbox_client::{Client, Error, Status};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The connections of a tenant, over all processes.
const CONNECTIONS_MAX: u32 = 2;

/// The number of jobs that this process does at once.
const WORKERS: usize = 8;

/// How long a worker waits for a busy tenant before it takes another job. A long wait would let one tenant occupy all
/// workers.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// A worker does not wait for a tenant with this many waiters.
const QUEUE_MAX: u32 = 4;

#[derive(Debug)]
struct Job {
    tenant: String,
    task: String,
}

/// The jobs that no worker has taken. Clones share the queue.
#[derive(Clone, Default)]
struct Queue(Arc<Mutex<VecDeque<Job>>>);

impl Queue {
    fn push(&self, job: Job) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(job);
    }

    fn pop(&self) -> Option<Job> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("worker_pool: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Does all jobs. Returns whether all of them are done.
async fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let queue = Queue::default();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (tenant, task) = line.split_once(' ').ok_or("a job is a tenant, a space and a task")?;
        queue.push(Job { tenant: tenant.to_owned(), task: task.to_owned() });
    }
    let server = env::var("SIGNALBOX_SERVER").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let label = format!("worker_pool[{}]", std::process::id());
    // All workers share one client: one connection, and one lease to renew.
    let client = Client::builder(server.parse()?).label(label).connect().await?;
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(worker(client.clone(), queue.clone()));
    }
    while let Some(ended) = workers.join_next().await {
        // A worker that failed has returned its job to the queue.
        if let Err(error) = ended? {
            eprintln!("worker_pool: {error}");
        }
    }
    client.close().await;
    let mut is_all_done = true;
    while let Some(Job { tenant, task }) = queue.pop() {
        is_all_done = false;
        eprintln!("worker_pool: not done: {tenant} {task}");
    }
    Ok(is_all_done)
}

/// Does jobs until the queue is empty. An error means that the worker cannot continue.
async fn worker(client: Client, queue: Queue) -> Result<(), Error> {
    while let Some(job) = queue.pop() {
        let request = client.counter(format!("tenant/{}", job.tenant)).maximum(CONNECTIONS_MAX);
        // The label shows an operator, in `signalbox status`, which job uses the tenant's connections.
        let request = request.label(format!("worker_pool: {}", job.task));
        match request.timeout(WAIT_MAX).queue_max(QUEUE_MAX).acquire().await {
            Ok(permit) => match permit.guard(query(&job)).await {
                Ok(()) => {
                    println!("done: {} {}", job.tenant, job.task);
                    // A loss after the work was done does no harm.
                    if let Err(error) = permit.release().await {
                        eprintln!("worker_pool: {error}");
                    }
                }
                Err(lost) => {
                    eprintln!("worker_pool: {} {}: {lost}", job.tenant, job.task);
                    queue.push(job);
                }
            },
            // The tenant is busy: other jobs first.
            Err(error) if error.status() == Some(Status::TimedOut) => queue.push(job),
            Err(error) if error.status() == Some(Status::QueueFull) => {
                queue.push(job);
                sleep(WAIT_MAX / 2).await;
            }
            Err(error) => {
                queue.push(job);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Connects to the tenant's database and does the job. Replace it with your own, and open and close the connection in
/// it: the permit counts connections, not queries.
async fn query(_job: &Job) {
    sleep(Duration::from_millis(50)).await;
}

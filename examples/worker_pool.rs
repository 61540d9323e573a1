//! A pool of workers with a budget of connections per tenant: however many processes run this on however many machines,
//! a tenant's database sees only so many connections at once, and a tenant with much to do does not keep the others
//! waiting.
//!
//! ```sh
//! printf '%s\n' 'blue one' 'blue two' 'red one' | SIGNALBOX_SERVER=lock.example.org cargo run --example worker_pool
//! ```
//!
//! Each line of standard input is a job: its tenant and what to do. What is done is printed. The exit status is 1 where
//! jobs are left, and standard error says which.
//!
//! The budget is the maximum of a counter, which comes with each request: to change it, start the program anew with
//! another. A semaphore would keep the capacity that it was made with.

use std::collections::VecDeque;
use std::env;
use std::io::{self, BufRead};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use signalbox::client::{Client, Error, Status};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How many connections a tenant may have, over all processes.
const BUDGET: u32 = 2;

/// How many jobs this process does at once.
const WORKERS: usize = 8;

/// How long a worker waits for a tenant that is busy before it looks for another job. Short, as one tenant could
/// otherwise have all workers wait for it.
const PATIENCE: Duration = Duration::from_millis(200);

/// How many wait for a tenant already where it is not worth waiting.
const QUEUE_MAX: u32 = 4;

#[derive(Debug)]
struct Job {
    tenant: String,
    task: String,
}

/// Jobs that nobody works on. Clones are the same queue.
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

/// Does all jobs, and tells whether none is left.
async fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let queue = Queue::default();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (tenant, task) = line.split_once(' ').ok_or("a job is a tenant, a space and a task")?;
        queue.push(Job { tenant: tenant.to_owned(), task: task.to_owned() });
    }
    let server = env::var("SIGNALBOX_SERVER").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let label = format!("worker_pool[{}]", std::process::id());
    // One client for all workers: it is one connection, and one lease to renew.
    let client = Client::builder(server.parse()?).label(label).connect().await?;
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(worker(client.clone(), queue.clone()));
    }
    while let Some(ended) = workers.join_next().await {
        // A worker that was stopped leaves its job to the others, or to the end of this function.
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

/// Does jobs until there is none. An error says that there is no use in going on.
async fn worker(client: Client, queue: Queue) -> Result<(), Error> {
    while let Some(job) = queue.pop() {
        let budget = client.counter(format!("tenant/{}", job.tenant)).maximum(BUDGET);
        match budget.timeout(PATIENCE).queue_max(QUEUE_MAX).acquire().await {
            Ok(permit) => match permit.guard(query(&job)).await {
                Ok(()) => {
                    println!("done: {} {}", job.tenant, job.task);
                    // That it was lost after the work was done is no harm to the work.
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
            Err(Error::Status(Status::TimedOut)) => queue.push(job),
            Err(Error::Status(Status::QueueFull)) => {
                queue.push(job);
                sleep(PATIENCE / 2).await;
            }
            Err(error) => {
                queue.push(job);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Connects to the tenant's database and does the job; your own goes here. The connection is opened and closed within,
/// since the permit counts connections and not queries.
async fn query(_job: &Job) {
    sleep(Duration::from_millis(50)).await;
}

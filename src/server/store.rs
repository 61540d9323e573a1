//! The thread that writes what is to outlive the process.
//!
//! It takes what the core has come to want kept, all of it together, has the store make it durable, and tells the core;
//! what comes meanwhile waits for the next turn. So one flush to disk serves everybody who asked in its time.
//!
//! Where the store fails, the core takes back what it could not keep, and the thread tries again after a pause. Only a
//! flush that fails ends it for good: what is on disk then is not known, and nothing more is promised.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use tracing::{error, info};

use super::Server;
use crate::storage::{CommitError, Storage};

/// How long the store is left alone after it failed.
const PAUSE: Duration = Duration::from_secs(1);

/// The thread, and how it is told to end.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    is_ending: AtomicBool,
}

/// Wakes the thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}


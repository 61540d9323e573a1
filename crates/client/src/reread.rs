//! Values from files that are read again for each use, because files may be replaced while a client runs.

use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::warn;

/// Reads a value from its files. The error is a text for the user.
type Read<T> = dyn Fn() -> Result<T, String> + Send + Sync;

/// A value and the files that it is read from.
pub(super) struct Reread<T> {
    /// `None`: one of the files, such as a pipe, can be read only once.
    read: Option<Box<Read<T>>>,
    state: Mutex<State<T>>,
}

struct State<T> {
    last: T,
    /// Why the last read failed, which was logged; `None`: it succeeded.
    problem: Option<String>,
}

impl<T: Clone + Send + 'static> Reread<T> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// The error of `read`.
    pub(super) fn new<E: Display>(
        files: &[&Path],
        read: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, E> {
        let last = read()?;
        let may_be_read_again = files.iter().all(|file| file.is_file());
        let read: Box<Read<T>> = Box::new(move || read().map_err(|error| error.to_string()));
        let state = Mutex::new(State { last, problem: None });
        Ok(Arc::new(Self { read: may_be_read_again.then_some(read), state }))
    }

    /// Returns the value that was read last.
    pub(super) fn last(&self) -> T {
        self.state().last.clone()
    }

    /// Reads the files again, and returns the value. If that fails, returns the last value, and logs each new reason as
    /// a warning.
    pub(super) async fn latest(self: &Arc<Self>) -> T {
        let this = Arc::clone(self);
        // A file system that does not answer must not delay the renewal of leases.
        let read = tokio::task::spawn_blocking(move || this.read_again()).await;
        // Without a result, the runtime is being shut down.
        read.unwrap_or_else(|_| self.last())
    }

    fn read_again(&self) -> T {
        let Some(read) = &self.read else { return self.last() };
        let read = read();
        let mut state = self.state();
        match read {
            Ok(value) => *state = State { last: value, problem: None },
            Err(problem) if state.problem.as_ref() == Some(&problem) => {}
            Err(problem) => {
                warn!("{problem}; what was read before stays in use; repair the file");
                state.problem = Some(problem);
            }
        }
        state.last.clone()
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn what_cannot_be_read_leaves_the_last_value_in_use() {
        let answers = [Ok(1), Ok(2), Err("gone"), Err("gone"), Ok(3)];
        let next = AtomicUsize::new(0);
        let value = Reread::new(&[], move || answers[next.fetch_add(1, Ordering::Relaxed)]).unwrap();
        assert_eq!(value.last(), 1);
        for expected in [2, 2, 2, 3] {
            assert_eq!((value.latest().await, value.last()), (expected, expected));
        }
    }

    #[tokio::test]
    async fn what_is_no_file_is_read_once() {
        let reads = AtomicUsize::new(0);
        let read = move || Ok::<_, String>(reads.fetch_add(1, Ordering::Relaxed));
        let value = Reread::new(&[Path::new("/dev/null")], read).unwrap();
        assert_eq!((value.latest().await, value.latest().await), (0, 0));
    }
}

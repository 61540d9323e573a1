//! Prevents signal handlers, and the cancellation of the thread, in the middle of a call.
//!
//! Signals are blocked while a call changes the library's state and writes its request. Only the wait for the response
//! unblocks them, atomically, so that a signal that arrives between the request and the wait is not lost. A handler may
//! call `semop` again: it finds a consistent state, and takes another connection.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::time::TimeSpec;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old_state: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`. The C library's semaphore calls are not cancellation points, so the library's must not be.
const CANCEL_DISABLE: c_int = 1;

/// The signals of faults of the program itself. They cannot be postponed.
const FAULTS: [Signal; 6] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGABRT];

/// Blocks signals and cancellation of the calling thread until it is dropped.
pub struct Shield {
    mask_before: SigSet,
    cancel_state_before: c_int,
}

/// The reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The descriptor is ready.
    Ready,
    /// The program caught a signal.
    Signal,
    /// The time is up.
    TimeUp,
}

impl Shield {
    pub fn raise() -> Self {
        let mut blocked = SigSet::all();
        FAULTS.into_iter().for_each(|fault| blocked.remove(fault));
        let mask_before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK).expect("the arguments are valid");
        let mut cancel_state_before = 0;
        // SAFETY: the pointer is to a variable of this function.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut cancel_state_before) };
        Self { mask_before, cancel_state_before }
    }

    /// Waits until the descriptor is ready for these events, with the program's own signal mask.
    pub fn wait(&self, descriptor: BorrowedFd<'_>, events: PollFlags, until: Option<Instant>) -> Woken {
        self.poll(&mut [PollFd::new(descriptor, events)], until)
    }

    /// Waits for a time, with the program's own signal mask.
    pub fn pause(&self, time: Duration) -> Woken {
        self.poll(&mut [], Some(Instant::now() + time))
    }

    fn poll(&self, descriptors: &mut [PollFd<'_>], until: Option<Instant>) -> Woken {
        let left = until.map(|until| TimeSpec::from(until.saturating_duration_since(Instant::now())));
        match ppoll(descriptors, left, Some(self.mask_before)) {
            Ok(0) => Woken::TimeUp,
            Err(Errno::EINTR) => Woken::Signal,
            // The other errors are about arguments; reading from the descriptor shows what is wrong with it.
            Ok(_) | Err(_) => Woken::Ready,
        }
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        // SAFETY: it was the thread's state before.
        unsafe { pthread_setcancelstate(self.cancel_state_before, null_mut()) };
        // It was the thread's mask before, so it is valid.
        let _ = self.mask_before.thread_set_mask();
    }
}

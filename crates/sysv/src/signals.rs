//! What the program must not do in the middle of a call: run a signal handler, or cancel the thread.
//!
//! Signals stay blocked while a call changes the library's state and writes its request. Only the wait for the response
//! lets them in, and in one step with the wait, so that a signal that arrives between the request and the wait is not
//! lost. A handler may call `semop` again: it finds a consistent state, and takes another connection.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use libc::{pollfd, sigset_t, timespec};

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old_state: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`. The kernel's calls are not cancellation points.
const CANCEL_DISABLE: c_int = 1;

/// Faults of the program itself; they cannot be postponed.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT];

/// Blocks signals and cancellation of the calling thread while it lives.
pub struct Shield {
    mask_before: sigset_t,
    cancel_state_before: c_int,
}

/// Why a wait ended.
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
    /// Blocks signals and cancellation.
    pub fn raise() -> Self {
        let mut blocked = MaybeUninit::<sigset_t>::uninit();
        let mut mask_before = MaybeUninit::<sigset_t>::uninit();
        let mut cancel_state_before = 0;
        // SAFETY: sigfillset initialises the set that the others read; pthread_sigmask initialises the mask before, as
        // its arguments are valid. The pointers are to variables of this function.
        unsafe {
            libc::sigfillset(blocked.as_mut_ptr());
            for fault in FAULTS {
                libc::sigdelset(blocked.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), mask_before.as_mut_ptr());
            pthread_setcancelstate(CANCEL_DISABLE, &raw mut cancel_state_before);
            Self { mask_before: mask_before.assume_init(), cancel_state_before }
        }
    }

    /// Waits until the descriptor is ready for these events of poll, with the program's own signal mask.
    pub fn wait(&self, descriptor: c_int, events: i16, until: Option<Instant>) -> Woken {
        self.poll(&mut [pollfd { fd: descriptor, events, revents: 0 }], until)
    }

    /// Waits for a time, with the program's own signal mask.
    pub fn pause(&self, time: Duration) -> Woken {
        self.poll(&mut [], Some(Instant::now() + time))
    }

    fn poll(&self, descriptors: &mut [pollfd], until: Option<Instant>) -> Woken {
        let left = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
        });
        let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let count = descriptors.len() as libc::nfds_t;
        // SAFETY: there are `count` descriptors; the time is null or lives until the end of this function.
        let ready =
            unsafe { libc::ppoll(descriptors.as_mut_ptr(), count, left, &raw const self.mask_before) };
        match ready {
            0 => Woken::TimeUp,
            1.. => Woken::Ready,
            // The other errors are about arguments; reading from the descriptor shows what is wrong with it.
            _ if crate::errno::current() == libc::EINTR => Woken::Signal,
            _ => Woken::Ready,
        }
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        // SAFETY: both values were the thread's before.
        unsafe {
            pthread_setcancelstate(self.cancel_state_before, null_mut());
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask_before, null_mut());
        }
    }
}

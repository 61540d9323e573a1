//! A server whose process is stopped for a while, and a program whose semaphores are on it.

use nix::sys::signal::Signal;

use crate::support::daemon::Daemon;
use crate::support::sysv_program::SysvProgram;
use crate::support::{eventually, is_stopped};

#[test]
fn a_program_keeps_what_it_holds_on_a_server_that_was_stopped_for_longer_than_calls_wait() {
    if !SysvProgram::is_possible() {
        return;
    }
    let mut daemon = Daemon::start();
    let server = daemon.address("counter").to_string();
    let mut holder = SysvProgram::start(&server, &[("SIGNALBOX_SYSV_TIMEOUT", "500ms")]);
    let mut observer = SysvProgram::start(&server, &[]);
    holder.make_set(42, 1);
    observer.find_set(42);
    holder.add(-1);
    assert_eq!(holder.answer(), "done");
    daemon.signal(Signal::SIGSTOP);
    let pid = daemon.pid().as_raw() as u32;
    eventually("every thread is stopped", || is_stopped(pid));
    assert_eq!(holder.value(), "failed: Identifier removed", "the server is silent for too long");
    daemon.signal(Signal::SIGCONT);
    assert_eq!(holder.value(), "0", "its process lives on");
    assert_eq!(observer.value(), "0");
}

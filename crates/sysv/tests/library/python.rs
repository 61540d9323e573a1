//! Python's `sysv_ipc`: it does and says the same with the kernel's semaphores and with the library.

use crate::interpreters::{are_installed, python};
use crate::world::{Console, World, compare};

#[track_caller]
fn python_with_sysv_ipc(serial: u8, scene: impl Fn(&World)) {
    if are_installed(&[python()]) {
        compare(serial, scene);
    }
}

/// A console that calls the semaphore `s`.
fn console(world: &World, name: &'static str, arguments: &str) -> Console {
    let mut console = world.console(name, world.command(python()), "consoles/console.py");
    let new = format!("(s := sysv_ipc.Semaphore({}{arguments})).key", world.key());
    console.says(&new, &i32::from_str_radix(&world.key()[2..], 16).expect("a key").to_string());
    console
}

/// A new set, for the owner, with 2 units.
const NEW: &str = ", sysv_ipc.IPC_CREX, 0o640, 2";

#[test]
fn a_semaphore_is_acquired_and_released() {
    python_with_sysv_ipc(40, |world| {
        let mut a = console(world, "a", NEW);
        let mut b = console(world, "b", "");
        a.says("s.value", "2");
        a.says("oct(s.mode)", "'0o640'");
        a.says("s.uid == s.cuid == os.geteuid() and s.gid == s.cgid == os.getegid()", "True");
        a.says("s.undo", "False");
        a.says("s.block", "True");
        let again = format!("sysv_ipc.Semaphore({}{NEW})", world.key());
        a.says(&again, "ExistentialError: A semaphore with the specified key already exists");
        a.says("s.acquire()", "None");
        a.says("s.last_pid == os.getpid()", "True");
        b.says("s.acquire()", "None");
        b.says("s.value", "0");
        a.says("s.last_pid == os.getpid()", "False");
        a.tell("s.acquire()");
        world.until_waiting(0, 1);
        b.says("s.waiting_for_nonzero", "1");
        b.says("s.waiting_for_zero", "0");
        b.says("s.release()", "None");
        a.answers("None");
        b.says("s.waiting_for_nonzero", "0");
        b.says("s.release(5)", "None");
        b.says("s.value", "5");
        b.says("s.acquire(delta=4)", "None");
        b.says("setattr(s, 'value', 3)", "None");
        a.says("s.value", "3");
        a.says(
            "setattr(s, 'value', 32768)",
            "ValueError: The semaphore's value must remain between 0 and SEMVMX",
        );
        a.says("setattr(s, 'mode', 0o600)", "None");
        b.says("oct(s.mode)", "'0o600'");
        a.says("s.o_time > 0", "True");
        a.says("s.remove()", "None");
        assert!(world.has_no_set());
    });
}

#[test]
fn an_acquisition_has_a_timeout() {
    python_with_sysv_ipc(41, |world| {
        let mut a = console(world, "a", ", sysv_ipc.IPC_CREX, 0o600, 0");
        a.says("sysv_ipc.SEMAPHORE_TIMEOUT_SUPPORTED", "True");
        let busy = "BusyError: The semaphore is busy";
        a.says("s.acquire(0)", busy);
        a.says("s.acquire(0.05)", busy);
        a.says("s.Z(0.05)", "None");
        a.says("setattr(s, 'block', False)", "None");
        a.says("s.acquire()", busy);
        a.says("setattr(s, 'block', True)", "None");
        a.says("s.release()", "None");
        a.says("s.Z(0)", busy);
        a.says("s.Z(0.05)", busy);
        a.says("s.acquire(20)", "None");
        a.says("s.value", "0");
        // In time.
        let mut b = console(world, "b", "");
        a.tell("s.acquire(20)");
        world.until_waiting(0, 1);
        b.says("s.release()", "None");
        a.answers("None");
    });
}

#[test]
fn the_end_of_a_process_is_undone() {
    python_with_sysv_ipc(43, |world| {
        let mut a = console(world, "a", NEW);
        let mut b = console(world, "b", "");
        for undone in ["True", "False"] {
            a.says(&format!("setattr(s, 'undo', {undone})"), "None");
            a.says("s.undo", undone);
            a.says("s.acquire()", "None");
        }
        b.tell("s.acquire()");
        world.until_waiting(0, 1);
        a.kill();
        b.answers("None");
        assert_eq!(world.values(), "0");
        // A context acquires and releases.
        b.says("setattr(s, 'undo', True)", "None");
        b.says("s.release()", "None");
        b.says("s.__enter__() is s", "True");
        b.says("s.value", "0");
        b.says("s.__exit__(None, None, None)", "None");
        b.says("s.value", "1");
        b.end();
        // The two adjustments of the context cancel out; the release before is undone.
        world.until_values("0");
    });
}

#[test]
fn a_signal_is_handled_and_ends_the_wait() {
    python_with_sysv_ipc(45, |world| {
        let mut a = console(world, "a", ", sysv_ipc.IPC_CREX, 0o600, 0");
        a.says(
            "(caught := []) or signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))",
            "<Handlers.SIG_DFL: 0>",
        );
        a.tell("s.acquire()");
        world.until_waiting(0, 1);
        let pid = nix::unistd::Pid::from_raw(a.pid().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGUSR1).expect("it runs");
        a.answers("Error: Signaled while waiting");
        a.says("caught", "[1]");
    });
}

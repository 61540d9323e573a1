//! PHP's semaphore functions (`sem_get`, `sem_acquire`, `sem_release`, `sem_remove`), one test for each property of them:
//! PHP does and says the same with the kernel's semaphores and with the library, and it is what the test expects.
//!
//! PHP's sets have three semaphores: 0 has the units that can be acquired, 1 counts the objects, 2 guards `sem_get`.

use crate::interpreters::are_installed;
use crate::until;
use crate::world::{World, compare};

#[track_caller]
fn php(serial: u8, scene: impl Fn(&World)) {
    if are_installed(&["php"]) {
        compare(serial, scene);
    }
}

/// `sem_get` with the key and further arguments.
fn get(world: &World, arguments: &str) -> String {
    format!("$s = sem_get({}{arguments})", world.key())
}

#[test]
fn sem_get_makes_three_semaphores_and_sets_them_up_under_a_guard() {
    php(17, |world| {
        // The defaults are 1 unit and the mode 666.
        let mut a = world.php("a");
        a.says(&get(world, ""), "SysvSemaphore");
        assert_eq!(world.values(), "1,1,0");
        let stat = world.observe(&format!("ctl {} 0 IPC_STAT", world.set()));
        assert!(stat.contains(" 666 ") && stat.ends_with(" 3"), "{stat}");
        for semaphore in 0..3 {
            assert_eq!(world.number(semaphore, "GETPID"), a.pid());
        }
        // Another one waits until the guard is down, and has changed nothing until then.
        let (mut guard, set) = (world.stepper(), world.set());
        assert_eq!(guard.ask(format!("op {set} - 2,1,SEM_UNDO")), "= 0");
        let mut b = world.php("b");
        b.tell(&get(world, ", 1, 0600"));
        until("b waits", || world.number(2, "GETZCNT") == 1);
        assert_eq!(world.values(), "1,1,1");
        guard.kill();
        b.answers("SysvSemaphore");
        assert_eq!(world.values(), "1,2,0");
        // Its end lowers what it raised.
        b.kill();
        world.until_values("1,1,0");
        a.kill();
        world.until_values("1,0,0");
        // The first, and each that is the only one, sets the units: by a call that clears the adjustments of others.
        let mut holder = world.stepper();
        assert_eq!(holder.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
        let mut c = world.php("c");
        c.says(&get(world, ", 4"), "SysvSemaphore");
        assert_eq!(world.values(), "4,1,0");
        holder.kill();
        c.kill();
        world.until_values("4,0,0");
    });
}

#[test]
fn sem_acquire_takes_a_unit_each_time() {
    php(20, |world| {
        let (mut a, mut other) = (world.php("a"), world.stepper());
        a.says(&get(world, ", 2"), "SysvSemaphore");
        a.says("sem_acquire($s)", "true");
        assert_eq!(world.values(), "1,1,0");
        a.says("sem_acquire($s, true)", "true");
        assert_eq!(world.values(), "0,1,0");
        a.says("sem_acquire($s, true)", "false");
        // It waits for itself.
        a.tell("sem_acquire($s)");
        world.until_waiting(0, 1);
        assert!(a.is_silent());
        assert_eq!(other.ask(format!("op {} - 0,1,0", world.set())), "= 0");
        a.answers("true");
        assert_eq!(world.values(), "0,1,0");
        // All three have adjustments.
        a.kill();
        world.until_values("3,0,0");
    });
}

#[test]
fn sem_acquire_waits_on_after_a_signal() {
    php(28, |world| {
        let (mut a, mut other) = (world.php("a"), world.stepper());
        a.says(&get(world, ", 1"), "SysvSemaphore");
        a.says("sem_acquire($s)", "true");
        a.says("$caught = 0", "0");
        a.says("pcntl_async_signals(true)", "false");
        a.says("pcntl_signal(SIGUSR1, function () use (&$caught) { $caught++; }, false)", "true");
        a.tell("sem_acquire($s)");
        for _ in 0..10 {
            world.until_waiting(0, 1);
            signal(a.pid());
            until("the handler of PHP ran", || !has_pending_signal(a.pid()));
        }
        world.until_waiting(0, 1);
        assert!(a.is_silent());
        assert_eq!(other.ask(format!("op {} - 0,1,0", world.set())), "= 0");
        a.answers("true");
        a.says("$caught", "10");
    });
}

fn signal(pid: u32) {
    let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGUSR1).expect("it runs");
}

/// Whether SIGUSR1 is still to be delivered to a process.
fn has_pending_signal(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let pending = |line: &str| {
        let digits = line.strip_prefix("ShdPnd:").or_else(|| line.strip_prefix("SigPnd:"))?;
        u64::from_str_radix(digits.trim(), 16).ok()
    };
    status.lines().filter_map(pending).any(|signals| signals & 1 << (libc::SIGUSR1 - 1) != 0)
}

#[test]
fn the_end_of_an_object_releases_what_it_acquired() {
    php(22, |world| {
        let mut a = world.php("a");
        a.says(&get(world, ", 3"), "SysvSemaphore");
        a.says("sem_acquire($s)", "true");
        a.says("sem_acquire($s)", "true");
        assert_eq!(world.values(), "1,1,0");
        a.says("$s = null", "NULL");
        assert_eq!(world.values(), "3,0,0");
        // At the end of its process as well, of which nothing remains to be undone.
        a.says(&get(world, ", 3"), "SysvSemaphore");
        a.says("sem_acquire($s)", "true");
        a.end();
        world.until_values("3,0,0");
    });
}

#[test]
fn without_auto_release_the_end_of_the_process_releases() {
    php(29, |world| {
        let (mut a, mut b) = (world.php("a"), world.php("b"));
        a.says(&get(world, ", 1, 0666, false"), "SysvSemaphore");
        b.says(&get(world, ""), "SysvSemaphore");
        a.says("sem_acquire($s)", "true");
        a.says("$s = null", "NULL");
        assert_eq!(world.values(), "0,2,0", "the object took nothing back");
        b.tell("sem_acquire($s)");
        world.until_waiting(0, 1);
        a.end();
        b.answers("true");
        world.until_values("0,1,0");
    });
}

#[test]
fn sem_remove_ends_the_waits_of_others() {
    php(23, |world| {
        let mut consoles = ["a", "b", "c"].map(|name| world.php(name));
        for console in &mut consoles {
            console.says(&get(world, ""), "SysvSemaphore");
        }
        let [a, b, c] = &mut consoles;
        let key = world.key();
        a.says("sem_acquire($s)", "true");
        b.tell("sem_acquire($s)");
        c.tell("sem_acquire($s)");
        world.until_waiting(0, 2);
        a.says("sem_remove($s)", "true");
        let removed = format!("false | sem_acquire(): Failed to acquire key {key}: Identifier removed");
        b.answers(&removed);
        c.answers(&removed);
        assert!(world.has_no_set());
        for console in [&mut *a, b] {
            let gone = format!("sem_remove(): SysV semaphore for key {key} does not (any longer) exist");
            console.says("sem_remove($s)", &format!("false | {gone}"));
            let invalid = format!("sem_acquire(): Failed to acquire key {key}: Invalid argument");
            console.says("sem_acquire($s)", &format!("false | {invalid}"));
            console.says("sem_acquire($s, true)", &format!("false | {invalid}"));
        }
        let invalid = format!("sem_release(): Failed to release key {key}: Invalid argument");
        a.says("sem_release($s)", &format!("false | {invalid}"));
        // The end of an object whose set is gone says nothing, and another set is not touched.
        let set = world.observe(&format!("get {key} 3 {}", libc::IPC_CREAT | 0o600));
        assert!(set.starts_with("= "), "{set}");
        c.says("$s = null", "NULL");
        b.end();
        a.kill();
        assert_eq!(world.values(), "0,0,0");
    });
}

#[test]
fn key_0_is_private() {
    php(31, |world| {
        let mut command = world.command("php");
        if world.is_of_server() {
            command.env("SIGNALBOX_SYSV_KEYS", "all,0");
        }
        let mut a = world.console("a", command, "consoles/console.php");
        a.says("$s = sem_get(0)", "SysvSemaphore");
        a.says("$t = sem_get(0)", "SysvSemaphore");
        assert!(matches!(world.sets_of_server(), None | Some(2)));
        // Each has a unit of its own.
        for object in ["$s", "$t"] {
            a.says(&format!("sem_acquire({object}, true)"), "true");
            a.says(&format!("sem_acquire({object}, true)"), "false");
        }
        for object in ["$s", "$t"] {
            a.says(&format!("sem_remove({object})"), "true");
        }
        let warning = "sem_acquire(): Failed to acquire key 0x0: Invalid argument";
        a.says("sem_acquire($s, true)", &format!("false | {warning}"));
    });
}

#[test]
fn the_objects_of_a_child_release_what_its_parent_acquired() {
    php(26, |world| {
        let (mut a, mut b) = (world.php("a"), world.php("b"));
        a.says(&get(world, ""), "SysvSemaphore");
        b.says(&get(world, ""), "SysvSemaphore");
        a.says("sem_acquire($s)", "true");
        // The child ends its copy of the object, and stops.
        let child = "[$s = null, posix_kill(posix_getpid(), SIGSTOP)]";
        let wait = "pcntl_waitpid($child, $status, WUNTRACED) === $child";
        a.says(&format!("($child = pcntl_fork()) === 0 ? {child} : {wait}"), "true");
        assert_eq!(world.values(), "1,1,0");
        b.says("sem_acquire($s, true)", "true");
        // The end of the child takes back what it has added. No value is below 0.
        a.says("posix_kill($child, SIGKILL) && pcntl_waitpid($child, $status) === $child", "true");
        world.until_values("0,2,0");
        // The parent's object does not know of this.
        a.says("sem_release($s)", "true");
        b.says("sem_release($s)", "true");
        assert_eq!(world.values(), "2,2,0");
        a.kill();
        world.until_values("2,1,0");
    });
}

#[test]
fn sem_get_overwrites_a_holder_that_is_not_counted() {
    php(27, |world| {
        let (mut a, mut b) = (world.php("a"), world.php("b"));
        a.says(&get(world, ", 5"), "SysvSemaphore");
        let (mut holder, set) = (world.stepper(), world.set());
        assert_eq!(holder.ask(format!("op {set} - 0,-5,SEM_UNDO")), "= 0");
        a.says("$s = null", "NULL");
        assert_eq!(world.values(), "0,0,0");
        b.says(&get(world, ", 5"), "SysvSemaphore");
        assert_eq!(world.values(), "5,1,0", "the holder's units are given to others");
        holder.kill();
        b.says("$s = null", "NULL");
        assert_eq!(world.values(), "5,0,0", "and its end gives nothing back");
        // A holder that has raised semaphore 1 is spared.
        let mut holder = world.stepper();
        assert_eq!(holder.ask(format!("op {set} - 1,1,SEM_UNDO 0,-5,SEM_UNDO")), "= 0");
        b.says(&get(world, ", 5"), "SysvSemaphore");
        assert_eq!(world.values(), "0,2,0");
        b.tell("sem_acquire($s)");
        world.until_waiting(0, 1);
        holder.kill();
        b.answers("true");
        world.until_values("4,1,0");
    });
}

//! Perl's `semget`, `semop` and `semctl`, and its module `IPC::Semaphore`: they do and say the same with the kernel's
//! semaphores and with the library.

use std::process::Command;

use crate::interpreters::{are_installed, skipped};
use crate::until;
use crate::world::{Console, World, compare};

#[track_caller]
fn perl(serial: u8, scene: impl Fn(&World)) {
    if are_installed(&["perl"]) {
        compare(serial, scene);
    }
}

/// A console with the set in `$v{set}`, which the first one makes.
fn with_set(world: &World, name: &'static str, count: u32) -> Console {
    let mut console = world.perl(name);
    let get = format!("defined($v{{set}} = semget({}, {count}, IPC_CREAT | 0600))", world.key());
    console.says(&get, "1");
    console
}

#[test]
fn a_result_of_0_is_true() {
    perl(5, |world| {
        let mut a = with_set(world, "a", 2);
        a.says("semctl($v{set}, 0, GETVAL, 0)", "0 but true");
        a.says("semctl($v{set}, 0, SETVAL, 3)", "0 but true");
        a.says("semctl($v{set}, 0, GETVAL, 0)", "3");
        a.says("semctl($v{set}, 0, GETNCNT, 0)", "0 but true");
        a.says("semctl($v{set}, 1, GETZCNT, 0)", "0 but true");
        a.says("semctl($v{set}, 0, GETPID, 0) == $$", "1");
        a.says("semctl($v{set}, 1, GETPID, 0)", "0 but true");
        a.says("semop($v{set}, ops(0, -1, 0))", "1");
        a.says("semop($v{set}, ops(1, -1, IPC_NOWAIT)) || $!", "Resource temporarily unavailable");
        a.says("semop($v{set}, ops(2, 1, 0)) || $!", "File too large");
        a.says("semop($v{set}, ops()) || $!", "Invalid argument");
        a.says("semop($v{set}, ops(1, 1)) || $!", "Invalid argument");
        a.says("semop($v{set}, ops((0, 1, 0) x 501)) || $!", "Argument list too long");
        a.says("semctl($v{set}, 2, GETVAL, 0) // $!", "Invalid argument");
        a.says("semctl($v{set}, 0, SETVAL, 32768) // $!", "Numerical result out of range");
        let missing = format!("semget({} ^ 0x80, 1, 0) // $!", world.key());
        a.says(&missing, "No such file or directory");
        assert_eq!(world.values(), "2,0");
    });
}

/// Perl asks for the number of semaphores, to know how long the values are.
#[test]
fn all_values_are_as_many_as_the_set_has() {
    perl(6, |world| {
        let mut a = with_set(world, "a", 3);
        a.says("semctl($v{set}, 0, SETALL, pack('S!*', 1, 2, 3))", "0 but true");
        a.says("semctl($v{set}, 0, GETALL, $v{all} = '')", "0 but true");
        a.says("unpack('S!*', $v{all})", "1 2 3");
        a.says(
            "semctl($v{set}, 0, SETALL, pack('S!*', 9))",
            "died: Bad arg length for semctl, is 2, should be 6",
        );
        a.says("semctl($v{set}, 0, SETALL, pack('S!*', 1, 2, 32768)) // $!", "Numerical result out of range");
        assert_eq!(world.values(), "1,2,3");
        // Another program, which did not make the set.
        let mut b = world.perl("b");
        b.says(&format!("defined($v{{set}} = semget({}, 0, 0))", world.key()), "1");
        b.says("semctl($v{set}, 0, GETALL, $v{all} = '') && unpack('S!*', $v{all})", "1 2 3");
    });
}

#[test]
fn the_module_has_the_same_sets() {
    perl(7, |world| {
        let mut a = world.perl("a");
        let new = format!("IPC::Semaphore->new({}, 4, IPC_CREAT | IPC_EXCL | 0640)", world.key());
        a.says(&format!("ref($v{{s}} = {new})"), "IPC::Semaphore");
        a.says(&format!("{new} || $!"), "File exists");
        a.says("$v{s}->setall(4, 3, 2, 1)", "0 but true");
        a.says("$v{s}->getall", "4 3 2 1");
        a.says("$v{s}->setval(3, 0)", "0 but true");
        a.says("$v{s}->getval(0)", "4");
        a.says("$v{s}->op(0, -1, SEM_UNDO, 3, 1, 0)", "1");
        a.says("$v{s}->getall", "3 3 2 1");
        a.says("$v{s}->getpid(0) == $$", "1");
        a.says("$v{s}->stat->nsems", "4");
        a.says("sprintf '%o', $v{s}->stat->mode", "640");
        a.says("$v{s}->stat->uid == $> && $v{s}->stat->cuid == $>", "1");
        a.says("abs($v{s}->stat->otime - time) < 100 && abs($v{s}->stat->ctime - time) < 100", "1");
        a.says("$v{s}->set(mode => 0600)", "0");
        a.says("sprintf '%o', $v{s}->stat->mode", "600");
        // Waiters are counted for both kinds of waits.
        let [mut b, mut c] = ["b", "c"].map(|name| world.perl(name));
        for other in [&mut b, &mut c] {
            other.says(
                &format!("ref($v{{s}} = IPC::Semaphore->new({}, 0, 0))", world.key()),
                "IPC::Semaphore",
            );
        }
        b.tell("$v{s}->op(0, -4, 0)");
        c.tell("$v{s}->op(0, 0, 0) || $!");
        until("both wait", || world.waiting(0) == 1 && world.number(0, "GETZCNT") == 1);
        a.says("$v{s}->getncnt(0)", "1");
        a.says("$v{s}->getzcnt(0)", "1");
        a.says("$v{s}->op(0, 1, SEM_UNDO)", "1");
        b.answers("1");
        c.answers("1");
        b.tell("$v{s}->op(0, -1, 0) || $!");
        world.until_waiting(0, 1);
        a.says("$v{s}->remove", "0 but true");
        b.answers("Identifier removed");
        a.says("$v{s}->getval(0) // $!", "Invalid argument");
    });
}

/// A program that takes an id of 0 for a failure fails with the first set of a kernel, and never with the server's.
#[test]
fn no_id_of_the_server_is_false() {
    if !are_installed(&["perl", "unshare"]) {
        return;
    }
    let script = "my $set = semget(0x2a, 1, 01600); print $set ? 'true' : defined $set ? 'false' : $!;";
    let output = |mut command: Command| {
        let output = command.args(["-e", script]).output().expect("it is installed");
        (output.status.success(), String::from_utf8(output.stdout).expect("it is ASCII"))
    };
    let mut kernel = Command::new("unshare");
    kernel.args(["--ipc", "perl"]);
    match output(kernel) {
        (true, said) => assert_eq!(said, "false"),
        (false, _) => {
            skipped("namespaces cannot be made here; that needs root");
        }
    }
    let world = World::of_server(10);
    assert_eq!(output(world.command("perl")), (true, "true".to_owned()));
}

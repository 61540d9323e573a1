//! The programs of the article about PHP and System V semaphores (`sysv-semaphores.md`): a writer in Perl and readers in
//! PHP give the same lines with the kernel's semaphores and with the library.

use crate::interpreters::are_installed;
use crate::world::{Console, World, compare};

/// A writer and readers share the set.
pub fn share(world: &World) {
    let key = world.key();
    let start = |interpreter, script| world.start(world.command(interpreter), script, &[&key]);
    let mut writer = start("perl", "article/writer.pl");
    assert_eq!([writer.line(), writer.line()], ["value 0 but true", "ready"]);
    let mut readers = [0; 2].map(|_| start("php", "article/reader.php"));
    readers.iter().for_each(|reader| assert_eq!(reader.line(), "ready"));
    let [one, other] = &mut readers;

    // The writer waits for the reader, and holds back others afterwards.
    assert_eq!(one.ask("acquire"), "acquired");
    writer.tell("lock");
    world.until_waiting(0, 1);
    assert_eq!(one.ask("release"), "released");
    assert_eq!(writer.line(), "locked");
    assert_eq!(one.ask("try"), "busy");
    one.tell("acquire");
    other.tell("acquire");
    world.until_waiting(0, 2);
    assert_eq!(writer.ask("unlock"), "unlocked");
    assert_eq!([one.line(), other.line()], ["acquired", "acquired"]);
    assert_eq!(one.ask("release"), "released");
    let again = format!("sem_release(): SysV semaphore for key {key} is not currently acquired");
    assert_eq!(one.ask("release"), again);
    assert_eq!(other.ask("release"), "released");

    // The kernel, and the server, give back what a killed writer holds.
    assert_eq!(writer.ask("lock"), "locked");
    one.tell("acquire");
    world.until_waiting(0, 1);
    writer.kill();
    assert_eq!(one.line(), "acquired");
    assert_eq!(one.ask("release"), "released");

    // The set is removed while a call waits.
    let mut writer = start("perl", "article/writer.pl");
    assert_eq!([writer.line(), writer.line()], ["value 32767", "ready"]);
    assert_eq!(writer.ask("lock"), "locked");
    one.tell("acquire");
    world.until_waiting(0, 1);
    assert_eq!(other.ask("remove"), "removed");
    assert_eq!(one.line(), format!("sem_acquire(): Failed to acquire key {key}: Identifier removed"));
    let gone = format!("sem_remove(): SysV semaphore for key {key} does not (any longer) exist");
    assert_eq!(other.ask("remove"), gone);
    assert_eq!(writer.ask("unlock"), "failed: Invalid argument");
}

#[test]
fn perl_and_php_share_a_set() {
    if are_installed(&["perl", "php"]) {
        compare(1, share);
    }
}

/// Units of the writer's set.
const UNITS: i32 = 10;

/// Sets the semaphores up as the article does, so that PHP leaves them as they are.
fn set_up(world: &World, writer: &mut Console) {
    let key = world.key();
    writer.says(&format!("defined($v{{set}} = semget({key}, 3, IPC_CREAT | 0666))"), "1");
    writer.says("semop($v{set}, ops(2, 0, 0, 2, 1, SEM_UNDO))", "1");
    writer.says("semctl($v{set}, 0, GETVAL, 0)", "0 but true");
    writer.says(&format!("semop($v{{set}}, ops(0, {UNITS}, 0))"), "1");
    writer.says(&format!("semop($v{{set}}, ops(0, -{UNITS}, SEM_UNDO))"), "1");
    let done = format!("semop($v{{set}}, ops(1, 1, SEM_UNDO, 0, {UNITS}, SEM_UNDO, 2, -1, SEM_UNDO))");
    writer.says(&done, "1");
    assert_eq!(world.values(), format!("{UNITS},1,0"));
}

fn lock() -> String {
    format!("semop($v{{set}}, ops(0, -{UNITS}, SEM_UNDO))")
}

fn unlock() -> String {
    format!("semop($v{{set}}, ops(0, {UNITS}, SEM_UNDO | IPC_NOWAIT))")
}

/// The value of semaphore 0, and how many calls wait for it to grow.
#[track_caller]
fn found(world: &World) -> (u32, u32) {
    (world.number(0, "GETVAL"), world.waiting(0))
}

fn readers<const N: usize>(world: &World, names: [&'static str; N]) -> [Console; N] {
    names.map(|name| {
        let mut reader = world.php(name);
        reader.says(&format!("$s = sem_get({}, {UNITS})", world.key()), "SysvSemaphore");
        reader
    })
}

/// The twelve steps of "No 0 crossing / no decrement below 0".
#[test]
fn the_twelve_steps_of_the_article() {
    if !are_installed(&["perl", "php"]) {
        return;
    }
    compare(2, |world| {
        let mut writer = world.perl("writer");
        set_up(world, &mut writer);
        let [mut a, mut b, mut c, mut d, mut e, mut f] = readers(world, ["a", "b", "c", "d", "e", "f"]);
        assert_eq!(found(world), (10, 0));
        for reader in [&mut a, &mut b, &mut c] {
            reader.says("sem_acquire($s)", "true");
        }
        assert_eq!(found(world), (7, 0));
        writer.tell(&lock());
        world.until_waiting(0, 1);
        assert_eq!(found(world), (7, 1));
        for reader in [&mut a, &mut b] {
            reader.says("sem_release($s)", "true");
        }
        assert_eq!(found(world), (9, 1));
        // Late readers overtake the writer.
        for reader in [&mut d, &mut e] {
            reader.says("sem_acquire($s)", "true");
        }
        assert_eq!(found(world), (7, 1));
        for reader in [&mut d, &mut e] {
            reader.says("sem_release($s)", "true");
        }
        assert_eq!(found(world), (9, 1));
        assert!(writer.is_silent());
        c.says("sem_release($s)", "true");
        writer.answers("1");
        assert_eq!(found(world), (0, 0));
        f.tell("sem_acquire($s)");
        world.until_waiting(0, 1);
        assert_eq!(found(world), (0, 1));
        writer.says(&unlock(), "1");
        f.answers("true");
        assert_eq!(found(world), (9, 0));
        f.says("sem_release($s)", "true");
        assert_eq!(found(world), (10, 0));
    });
}

#[test]
fn a_writer_starves_while_readers_overlap() {
    if !are_installed(&["perl", "php"]) {
        return;
    }
    compare(3, |world| {
        let mut writer = world.perl("writer");
        set_up(world, &mut writer);
        let mut readers = readers(world, ["a", "b", "c", "d"]);
        readers[0].says("sem_acquire($s)", "true");
        writer.tell(&lock());
        world.until_waiting(0, 1);
        for turn in 1..=20 {
            readers[turn % 4].says("sem_acquire($s)", "true");
            readers[(turn - 1) % 4].says("sem_release($s)", "true");
            assert_eq!(found(world), (9, 1), "turn {turn}");
            assert!(writer.is_silent(), "turn {turn}");
        }
        readers[20 % 4].says("sem_release($s)", "true");
        writer.answers("1");
    });
}

/// With a gate, which the writer closes before it waits, it gets the units when the readers of that moment have left.
#[test]
fn a_gate_protects_a_writer_from_starvation() {
    if !are_installed(&["perl"]) {
        return;
    }
    compare(4, |world| {
        let [mut writer, mut inside, mut late] = ["writer", "inside", "late"].map(|name| world.perl(name));
        for program in [&mut writer, &mut inside, &mut late] {
            let get = format!("defined($v{{set}} = semget({}, 2, IPC_CREAT | 0666))", world.key());
            program.says(&get, "1");
        }
        writer.says(&format!("semctl($v{{set}}, 0, SETVAL, {UNITS})"), "0 but true");
        let enter = "semop($v{set}, ops(1, 0, 0, 0, -1, SEM_UNDO))";
        inside.says(enter, "1");
        writer.says("semop($v{set}, ops(1, 1, SEM_UNDO))", "1");
        writer.tell(&lock());
        world.until_waiting(0, 1);
        late.tell(enter);
        crate::until("the late reader waits", || world.number(1, "GETZCNT") == 1);
        assert_eq!(world.values(), "9,1");
        inside.says("semop($v{set}, ops(0, 1, SEM_UNDO))", "1");
        writer.answers("1");
        assert_eq!(world.values(), "0,1");
        assert!(late.is_silent());
        let open = format!("semop($v{{set}}, ops(0, {UNITS}, SEM_UNDO, 1, -1, SEM_UNDO))");
        writer.says(&open, "1");
        late.answers("1");
        assert_eq!(world.values(), "9,0");
    });
}

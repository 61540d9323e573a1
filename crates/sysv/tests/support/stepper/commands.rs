//! The commands of the stepper.
//!
//! ```text
//! get KEY COUNT FLAGS                  semget
//! op SET TIMEOUT NUMBER,CHANGE,FLAGS…  semop if TIMEOUT is "-", else semtimedop; TIMEOUT is nanoseconds or SECONDS:NANOSECONDS
//! op SET null                          semop with a null pointer
//! ctl SET NUMBER COMMAND [ARGUMENT…]   semctl; SETVAL VALUE, SETALL V,V,…, IPC_SET UID GID MODE
//! look SET                             = VALUE:GETPID:GETNCNT:GETZCNT of each semaphore, joined by commas
//! fork SOCKET                          the child connects to SOCKET and obeys commands from there; = PID of the child
//! thread SOCKET                        the same with a thread
//! wait PID                             waits for a child; = its status
//! exec FUNCTION [PROGRAM]              replaces the program by itself or PROGRAM; = PID from the new program
//! catch                                catches SIGUSR1 from now on
//! catch-and-op SET NUMBER,CHANGE,FLAGS catches SIGUSR2, with a handler that calls semop
//! caught                               = how often a handler ran, and the last error number of its semop
//! user UID GID                         gives up privileges
//! close-all                            closes the descriptors from 3 on
//! replace-all PATH                     puts a file in their place; = how many there were
//! dlopen PATH FLAGS FUNCTION ARGUMENT  loads a library and calls its function
//! variable NAME                        = the value of an environment variable, or nothing
//! pid                                  = the process id
//! exit [STATUS]                        ends without an answer
//! ```
//!
//! Numbers are decimal, or hexadecimal with 0x, or octal with 0o. Flags are also the names of `<sys/sem.h>`, joined by
//! `|`. `IPC_STAT` answers key, uid, gid, cuid, cgid, mode, otime, ctime and nsems.

use std::ffi::c_int;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::{sembuf, timespec};

use crate::calls::{self, Errno};

/// The line that answers a command.
pub enum Answer {
    Value(String),
    Failed(Errno),
    Misunderstood,
    None,
}

/// The action after the answer.
pub enum Then {
    Continue,
    Exit(i32),
    /// This is the child of a fork.
    ServeInChild(UnixStream),
}

/// The largest number of semaphores of a set.
const COUNT_MAX: usize = 32000;

/// No semaphore has this value; it shows which values GETALL wrote.
const NO_VALUE: u16 = u16::MAX;

/// Obeys one command.
pub fn obey(words: &[&str]) -> (Answer, Then) {
    let answer = match words {
        ["exit"] => return (Answer::None, Then::Exit(0)),
        ["exit", status] => return (Answer::None, Then::Exit(number(status).unwrap_or(1))),
        ["fork", socket] => return fork(socket),
        _ => answer_to(words),
    };
    let answer = match answer {
        None => Answer::Misunderstood,
        Some(Ok(value)) => Answer::Value(value),
        Some(Err(errno)) => Answer::Failed(errno),
    };
    (answer, Then::Continue)
}

type Outcome = Option<Result<String, Errno>>;

fn answer_to(words: &[&str]) -> Outcome {
    Some(match words {
        ["get", key, count, flags] => text(calls::get(number(key)?, number(count)?, flags_of(flags)?)),
        ["op", set, "null"] => text(calls::op_of_nothing(number(set)?)),
        ["op", set, timeout, list @ ..] => {
            let mut operations = list.iter().map(|o| operation(o)).collect::<Option<Vec<_>>>()?;
            let timeout = if *timeout == "-" { None } else { Some(time(timeout)?) };
            text(calls::op(number(set)?, &mut operations, timeout))
        }
        ["ctl", set, index, command, arguments @ ..] => {
            return control(number(set)?, number(index)?, command, arguments);
        }
        ["look", set] => look(number(set)?),
        ["thread", socket] => {
            crate::serve_in_thread(UnixStream::connect(socket).ok()?);
            Ok("0".to_owned())
        }
        ["wait", child] => text(calls::wait_for_child(number(child)?)),
        ["exec", function] => {
            let program = std::env::current_exe().ok()?;
            text(calls::exec(function, program.to_str()?))
        }
        ["exec", function, program] => text(calls::exec(function, program)),
        ["catch"] => text(calls::catch(libc::SIGUSR1, count_signal)),
        ["catch-and-op", set, list] => {
            HANDLER_SET.store(number(set)?, Ordering::SeqCst);
            let sembuf { sem_num, sem_op, sem_flg } = operation(list)?;
            HANDLER_OPERATION[0].store(sem_num.into(), Ordering::SeqCst);
            HANDLER_OPERATION[1].store(sem_op.into(), Ordering::SeqCst);
            HANDLER_OPERATION[2].store(sem_flg.into(), Ordering::SeqCst);
            text(calls::catch(libc::SIGUSR2, operate_on_signal))
        }
        ["caught"] => {
            let errno = HANDLER_ERRNO.load(Ordering::SeqCst);
            Ok(format!("{} {errno}", CAUGHT.load(Ordering::SeqCst)))
        }
        ["user", uid, gid] => {
            text(calls::become_user(number(uid)?.cast_unsigned(), number(gid)?.cast_unsigned()))
        }
        ["close-all"] => {
            calls::close_all();
            Ok("0".to_owned())
        }
        ["replace-all", path] => text(calls::replace_all(path)),
        ["dlopen", path, flags, function, argument] => {
            let called = calls::load_and_call(path, number(flags)?, function, number(argument)?);
            called.map(|value| value.to_string()).ok_or(libc::ENOENT)
        }
        ["variable", name] => Ok(std::env::var(name).unwrap_or_default()),
        ["pid"] => Ok(std::process::id().to_string()),
        _ => return None,
    })
}

fn control(set: c_int, index: c_int, command: &str, arguments: &[&str]) -> Outcome {
    Some(match (command, arguments) {
        ("IPC_RMID", []) => text(calls::ctl(set, index, libc::IPC_RMID)),
        ("GETVAL", []) => text(calls::ctl(set, index, libc::GETVAL)),
        ("GETPID", []) => text(calls::ctl(set, index, libc::GETPID)),
        ("GETNCNT", []) => text(calls::ctl(set, index, libc::GETNCNT)),
        ("GETZCNT", []) => text(calls::ctl(set, index, libc::GETZCNT)),
        ("SETVAL", [value]) => text(calls::ctl_value(set, index, libc::SETVAL, number(value)?)),
        ("GETALL", []) => values(set, index).map(|values| {
            let texts: Vec<_> = values.iter().map(u16::to_string).collect();
            texts.join(",")
        }),
        ("SETALL", [list]) => {
            let values = list.split(',').map(|value| u16::try_from(number(value)?).ok());
            let mut values = values.collect::<Option<Vec<_>>>()?;
            values.resize(COUNT_MAX, 0); // So that a short list is not read beyond its end.
            text(calls::ctl_values(set, index, libc::SETALL, &mut values))
        }
        ("IPC_SET", [uid, gid, mode]) => {
            let mut stat = calls::empty_stat();
            stat.sem_perm.uid = number(uid)?.cast_unsigned();
            stat.sem_perm.gid = number(gid)?.cast_unsigned();
            stat.sem_perm.mode = number(mode)?.try_into().ok()?;
            text(calls::ctl_stat(set, index, libc::IPC_SET, &mut stat))
        }
        ("IPC_STAT", []) => {
            let mut stat = calls::empty_stat();
            calls::ctl_stat(set, index, libc::IPC_STAT, &mut stat).map(|_| {
                let p = &stat.sem_perm;
                let (mode, nsems) = (p.mode, stat.sem_nsems);
                format!(
                    "{} {} {} {} {} {mode:o} {} {} {nsems}",
                    p.__key, p.uid, p.gid, p.cuid, p.cgid, stat.sem_otime, stat.sem_ctime
                )
            })
        }
        ("SEM_STAT_ANY", []) => {
            text(calls::ctl_stat(set, index, calls::SEM_STAT_ANY, &mut calls::empty_stat()))
        }
        (command, []) => text(calls::ctl(set, index, number(command)?)),
        _ => return None,
    })
}

fn values(set: c_int, index: c_int) -> Result<Vec<u16>, Errno> {
    let mut values = vec![NO_VALUE; COUNT_MAX];
    calls::ctl_values(set, index, libc::GETALL, &mut values)?;
    values.truncate(values.iter().take_while(|value| **value != NO_VALUE).count());
    Ok(values)
}

fn look(set: c_int) -> Result<String, Errno> {
    let semaphores = (0..).zip(values(set, 0)?).map(|(index, value)| {
        let [process, growth, zero] =
            [libc::GETPID, libc::GETNCNT, libc::GETZCNT].map(|command| calls::ctl(set, index, command));
        Ok(format!("{value}:{}:{}:{}", process?, growth?, zero?))
    });
    semaphores.collect::<Result<Vec<_>, Errno>>().map(|semaphores| semaphores.join(","))
}

fn fork(socket: &str) -> (Answer, Then) {
    match calls::fork() {
        Err(errno) => (Answer::Failed(errno), Then::Continue),
        Ok(0) => {
            let socket = UnixStream::connect(socket).expect("the driver listens");
            (Answer::None, Then::ServeInChild(socket))
        }
        Ok(child) => (Answer::Value(child.to_string()), Then::Continue),
    }
}

static CAUGHT: AtomicU32 = AtomicU32::new(0);
static HANDLER_SET: AtomicI32 = AtomicI32::new(0);
static HANDLER_OPERATION: [AtomicI32; 3] = [const { AtomicI32::new(0) }; 3];
static HANDLER_ERRNO: AtomicI32 = AtomicI32::new(0);

extern "C" fn count_signal(_: c_int) {
    CAUGHT.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn operate_on_signal(_: c_int) {
    let [number, change, flags] = HANDLER_OPERATION.each_ref().map(|part| part.load(Ordering::SeqCst));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "they came from these types")]
    let mut list = [sembuf { sem_num: number as u16, sem_op: change as i16, sem_flg: flags as i16 }];
    let result = calls::op(HANDLER_SET.load(Ordering::SeqCst), &mut list, None);
    HANDLER_ERRNO.store(result.err().unwrap_or(0), Ordering::SeqCst);
    CAUGHT.fetch_add(1, Ordering::SeqCst);
}

fn text(result: Result<c_int, Errno>) -> Result<String, Errno> {
    result.map(|value| value.to_string())
}

fn operation(word: &str) -> Option<sembuf> {
    let parts: Vec<_> = word.split(',').collect();
    let [index, change, flags] = parts[..] else { return None };
    Some(sembuf {
        sem_num: number(index)?.try_into().ok()?,
        sem_op: number(change)?.try_into().ok()?,
        sem_flg: flags_of(flags)?.try_into().ok()?,
    })
}

fn flags_of(word: &str) -> Option<c_int> {
    let flag = |word: &str| match word {
        "IPC_NOWAIT" => Some(libc::IPC_NOWAIT),
        "SEM_UNDO" => Some(libc::SEM_UNDO),
        "IPC_CREAT" => Some(libc::IPC_CREAT),
        "IPC_EXCL" => Some(libc::IPC_EXCL),
        _ => number(word),
    };
    word.split('|').try_fold(0, |flags, word| Some(flags | flag(word)?))
}

/// Keys are as often written without a sign as with one.
fn number(word: &str) -> Option<c_int> {
    let (digits, radix) = match word.as_bytes() {
        [b'0', b'x', ..] => (&word[2..], 16),
        [b'0', b'o', ..] => (&word[2..], 8),
        _ => (word, 10),
    };
    let number = i64::from_str_radix(digits, radix).ok()?;
    i32::try_from(number).ok().or_else(|| u32::try_from(number).ok().map(u32::cast_signed))
}

fn time(word: &str) -> Option<timespec> {
    if let Some((seconds, nanoseconds)) = word.split_once(':') {
        return Some(timespec { tv_sec: seconds.parse().ok()?, tv_nsec: nanoseconds.parse().ok()? });
    }
    let nanoseconds: i64 = word.parse().ok()?;
    Some(timespec { tv_sec: nanoseconds / 1_000_000_000, tv_nsec: nanoseconds % 1_000_000_000 })
}

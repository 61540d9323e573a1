//! The calls themselves, and which of them go to the server.

use std::process::Stdio;

use crate::stepper::{STEPPER, Stepper, preloaded};
use crate::support::TestServer;
use crate::until;

#[test]
fn sets_are_shared_and_answered_as_by_the_kernel() {
    let server = TestServer::start();
    let (mut a, mut b) = (Stepper::start(server.address), Stepper::start(server.address));
    assert_eq!(a.ask("get 7 3 0o600"), "! ENOENT");
    let set = a.set(7, "1,2,3");
    assert_eq!(b.ask("get 7 0 0"), format!("= {set}"));
    assert_eq!(b.ask("get 7 3 IPC_CREAT|IPC_EXCL"), "! EEXIST");
    assert_eq!(b.ask("get 7 4 0"), "! EINVAL");
    assert_eq!(b.ask("get 7 -1 0"), "! EINVAL");
    assert_eq!(b.ask(format!("op {set} - 0,-1,0 1,4,0")), "= 0");
    assert_eq!(a.values(&set), "= 0,6,3");
    assert_eq!(a.ask(format!("ctl {set} 1 GETPID")), format!("= {}", b.pid()));
    let stat = a.ask(format!("ctl {set} 0 IPC_STAT"));
    assert!(stat.starts_with("= 7 ") && stat.ends_with(" 3") && stat.contains(" 600 "), "{stat}");
    let [uid, gid] = [1, 2].map(|field| stat.split(' ').nth(field + 1).unwrap().to_owned());
    assert_eq!(a.ask(format!("ctl {set} 0 IPC_SET {uid} {gid} 0o1646")), "= 0");
    let stat = a.ask(format!("ctl {set} 0 IPC_STAT"));
    assert!(stat.contains(" 646 "), "nine bits of the mode: {stat}");
    assert_eq!(a.ask(format!("ctl {set} 0 SETVAL 32768")), "! ERANGE");
    assert_eq!(a.ask(format!("ctl {set} 3 GETVAL")), "! EINVAL");
    assert_eq!(a.ask(format!("ctl {set} -1 GETVAL")), "! EINVAL");
    assert_eq!(b.ask(format!("ctl {set} 0 IPC_RMID")), "= 0");
    assert_eq!(a.ask(format!("ctl {set} 0 GETVAL")), "! EINVAL");
}

#[test]
fn arguments_are_checked_as_by_the_kernel() {
    let server = TestServer::start();
    let mut a = Stepper::start(server.address);
    let set = a.set(7, "0");
    assert_eq!(a.ask(format!("op {set} -")), "! EINVAL");
    assert_eq!(a.ask(format!("op {set} null")), "! EFAULT");
    assert_eq!(a.ask(format!("op {set} - {}", "0,0,0 ".repeat(500))), "= 0");
    assert_eq!(a.ask(format!("op {set} - {}", "0,0,0 ".repeat(501))), "! E2BIG");
    for timeout in ["-1:0", "0:-1", "0:1000000000"] {
        assert_eq!(a.ask(format!("op {set} {timeout} 0,1,0")), "! EINVAL", "{timeout}");
    }
    assert_eq!(a.ask(format!("op {set} 0 0,-1,0")), "! EAGAIN");
    assert_eq!(a.ask(format!("op {set} 2000000 0,-1,0")), "! EAGAIN");
    assert_eq!(a.ask(format!("op {set} 9223372036854775807:0 0,0,0")), "= 0");
    assert_eq!(a.ask(format!("op {set} - 1,-1,0")), "! EFBIG");
    assert_eq!(a.ask(format!("ctl {set} 0 999")), "! EINVAL");
    assert_eq!(a.ask(format!("ctl {set} 0 SEM_STAT_ANY")), "! EINVAL");
}

#[test]
fn a_private_set_is_the_kernels_unless_its_key_is_listed() {
    let server = TestServer::start();
    let mut listed = Stepper::spawn(preloaded(STEPPER, server.address).env("SIGNALBOX_SYSV_KEYS", "0"));
    let private = listed.ask("get 0 1 0o600");
    assert!(private.strip_prefix("= ").unwrap().parse::<i32>().unwrap() >= 0x4000_0000, "{private}");
    let mut all = Stepper::start(server.address);
    let Some(kernels) = all.ask("get 0 1 0o600").strip_prefix("= ").map(str::to_owned) else {
        return; // The kernel has no sets to give here.
    };
    assert_eq!(all.ask(format!("op {kernels} - 0,3,0")), "= 0");
    let mut kernel = Stepper::spawn(&mut std::process::Command::new(STEPPER));
    assert_eq!(kernel.values(&kernels), "= 3", "a program without the library sees the set");
    assert_eq!(all.ask(format!("ctl {kernels} 0 SETVAL 5")), "= 0");
    assert_eq!(kernel.values(&kernels), "= 5");
    assert_eq!(all.ask(format!("ctl {kernels} 0 IPC_RMID")), "= 0");
}

#[test]
fn a_mapped_key_is_another_one_on_the_server() {
    let server = TestServer::start();
    let host = |keys| Stepper::spawn(preloaded(STEPPER, server.address).env("SIGNALBOX_SYSV_KEYS", keys));
    let (mut a, mut b) = (host("0x5101a2b3=0x10"), host("0x51ffffff=0x10"));
    let set = a.set(0x5101_a2b3, "4");
    assert_eq!(b.ask("get 0x51ffffff 1 0"), format!("= {set}"));
    let stat = b.ask(format!("ctl {set} 0 IPC_STAT"));
    assert!(stat.starts_with(&format!("= {} ", 0x51ff_ffff)), "the program's own key: {stat}");
}

#[test]
fn wrong_settings_fail_every_call_and_are_reported_once() {
    let server = TestServer::start();
    let mut command = preloaded(STEPPER, server.address);
    let mut a = Stepper::spawn(command.env("SIGNALBOX_SYSV_KEYS", "al").stderr(Stdio::piped()));
    assert_eq!(a.ask("get 7 1 IPC_CREAT|0o600"), "! EINVAL");
    assert_eq!(a.ask("op 1073741824 - 0,1,0"), "! EINVAL");
    assert_eq!(a.ask("ctl 0 0 GETVAL"), "! EINVAL");
    let said = a.end();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("SIGNALBOX_SYSV_KEYS: \"al\" is not \"all\", a key"), "{said}");
}

#[test]
fn without_settings_the_library_does_nothing() {
    let server = TestServer::start();
    let mut command = preloaded(STEPPER, server.address);
    for setting in ["SERVER", "KEYS", "TIMEOUT"] {
        command.env_remove(format!("SIGNALBOX_SYSV_{setting}"));
    }
    let mut a = Stepper::spawn(&mut command);
    let answer = a.ask("get 0 1 0o600");
    if let Some(set) = answer.strip_prefix("= ") {
        assert!(set.parse::<i32>().unwrap() < 0x4000_0000, "{set}");
        assert_eq!(a.ask(format!("ctl {set} 0 IPC_RMID")), "= 0");
    }
}

#[test]
fn the_server_is_told_whom_the_program_acts_as() {
    let server = TestServer::start();
    let mut a = Stepper::start(server.address);
    if a.ask("user 65534 65534") != "= 0" {
        return; // Only root can become another user.
    }
    let set = a.set(7, "1");
    let stat = a.ask(format!("ctl {set} 0 IPC_STAT"));
    assert!(stat.contains(" 65534 65534 65534 65534 600 "), "{stat}");
    let mut b = Stepper::start(server.address);
    assert_eq!(b.ask("user 65533 65533"), "= 0");
    assert_eq!(b.ask(format!("ctl {set} 0 GETVAL")), "! EACCES");
    assert_eq!(b.ask(format!("ctl {set} 0 IPC_RMID")), "! EPERM");
}

#[test]
fn a_call_waits_until_another_process_makes_room() {
    let server = TestServer::start();
    let (mut a, mut b) = (Stepper::start(server.address), Stepper::start(server.address));
    let set = a.set(7, "0");
    b.send(format!("op {set} - 0,-2,0"));
    until("b waits", || a.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
    assert_eq!(a.ask(format!("op {set} - 0,1,0")), "= 0");
    assert!(b.is_silent());
    assert_eq!(a.ask(format!("op {set} - 0,1,0")), "= 0");
    assert_eq!(b.answer(), "= 0");
    b.send(format!("op {set} - 0,-1,0"));
    until("b waits", || a.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
    assert_eq!(a.ask(format!("ctl {set} 0 IPC_RMID")), "= 0");
    assert_eq!(b.answer(), "! EIDRM");
}

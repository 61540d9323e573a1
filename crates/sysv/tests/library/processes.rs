//! Threads, forks and replaced programs: which of them share adjustments.

use signalbox_client::sysv::SetId;
use signalbox_client::{Client, blocking};

use crate::stepper::{STEPPER, Stepper, preloaded};
use crate::support::TestServer;
use crate::until;
use crate::world::{World, compare};

#[test]
fn a_killed_process_gives_back_what_it_took() {
    let server = TestServer::start();
    let (mut a, mut b) = (Stepper::start(server.address), Stepper::start(server.address));
    let set = a.set(7, "1");
    assert_eq!(b.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
    a.send(format!("op {set} - 0,-1,SEM_UNDO"));
    let mut c = Stepper::start(server.address);
    until("a waits", || c.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
    b.kill();
    assert_eq!(a.answer(), "= 0");
    a.send("exit");
    until("the exit of a is noticed", || c.values(&set) == "= 1");
}

#[test]
fn threads_wait_side_by_side_and_share_adjustments() {
    let server = TestServer::start();
    let (mut a, mut observer) = (Stepper::start(server.address), Stepper::start(server.address));
    let set = a.set(7, "0,5");
    let (mut first, _) = a.branch("thread");
    let (mut second, _) = a.branch("thread");
    first.send(format!("op {set} - 0,-1,0"));
    until("the first waits", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
    second.send(format!("op {set} - 0,-1,0"));
    until("both wait", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 2");
    // More calls than the server remembers from the lowest unanswered one on.
    for _ in 0..1500 {
        a.send(format!("op {set} - 1,-1,0 1,1,0"));
    }
    for _ in 0..1500 {
        assert_eq!(a.answer(), "= 0");
    }
    assert_eq!(a.ask(format!("op {set} - 0,1,0")), "= 0");
    assert_eq!(first.answer(), "= 0");
    assert_eq!(a.ask(format!("op {set} - 0,1,0")), "= 0");
    assert_eq!(second.answer(), "= 0");
    // The end of a thread undoes nothing; the end of the process undoes what its threads did.
    assert_eq!(first.ask(format!("op {set} - 1,-2,SEM_UNDO")), "= 0");
    drop(first);
    assert_eq!(second.ask(format!("op {set} - 1,-1,SEM_UNDO")), "= 0");
    assert_eq!(observer.values(&set), "= 0,2");
    a.kill();
    until("the process is undone", || observer.values(&set) == "= 0,5");
}

#[test]
fn a_child_has_no_adjustments_and_does_not_keep_those_of_its_parent() {
    let server = TestServer::start();
    let (mut a, mut observer) = (Stepper::start(server.address), Stepper::start(server.address));
    let set = a.set(7, "9");
    assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
    let (mut child, pid) = a.branch("fork");
    assert_eq!(child.ask(format!("op {set} - 0,-2,SEM_UNDO")), "= 0");
    assert_eq!(observer.ask(format!("ctl {set} 0 GETPID")), pid, "the child is a process of its own");
    let (_idle, _) = a.branch("fork");
    assert_eq!(observer.values(&set), "= 6");
    child.send("exit");
    until("the child's operation is undone", || observer.values(&set) == "= 8");
    a.kill();
    until("the parent's is, although a child of it lives", || observer.values(&set) == "= 9");
}

/// Every function by which a program can replace itself.
const EXEC: [&str; 12] = [
    "execve",
    "execv",
    "execvp",
    "execvpe",
    "execl",
    "execl-long",
    "execlp",
    "execle",
    "fexecve",
    "execveat",
    "execveat-beside",
    "execveat-open",
];

#[test]
fn a_process_keeps_its_adjustments_when_it_replaces_its_program() {
    let scene = |world: &World| {
        let mut a = world.stepper();
        let set = a.set(world.key_number(), "100");
        let pid = format!("= {}", a.pid());
        for (done, function) in EXEC.into_iter().enumerate() {
            assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
            assert_eq!(a.ask(format!("exec {function}")), pid, "{function}");
            assert_eq!(a.ask("variable SIGNALBOX_SYSV_PROCESS"), "= ");
            assert_eq!(world.values(), (99 - done).to_string(), "{function}");
        }
        // The last program can take back what the first ones did.
        assert_eq!(a.ask(format!("op {set} - 0,10,SEM_UNDO")), "= 0");
        a.kill();
        world.until_values("100");
    };
    compare(60, scene);
}

#[test]
fn a_process_goes_on_if_its_program_is_not_replaced() {
    let scene = |world: &World| {
        let mut a = world.stepper();
        let set = a.set(world.key_number(), "5");
        assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
        for function in EXEC {
            let failure = match function {
                "fexecve" => "! EINVAL",
                "execveat-open" => "! EBADF",
                _ => "! ENOENT",
            };
            assert_eq!(a.ask(format!("exec {function} /nowhere")), failure, "{function}");
        }
        assert_eq!(world.values(), "4");
        assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
        // The last call before the end: another one would withdraw the announcement too.
        assert_eq!(a.ask("exec execve /nowhere"), "! ENOENT");
        a.kill();
        // At once: a process that announced its departure would live on for a time.
        world.until_values("5");
    };
    compare(61, scene);
}

#[test]
fn a_child_that_runs_a_program_hands_nothing_over() {
    let server = TestServer::start();
    let (mut a, mut observer) = (Stepper::start(server.address), Stepper::start(server.address));
    let set = a.set(7, "5");
    assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
    let (mut child, pid) = a.branch("fork");
    child.send("exec execve /bin/true");
    assert_eq!(a.ask(format!("wait {}", &pid[2..])), "= 0");
    assert_eq!(observer.values(&set), "= 4", "the parent's adjustment was not touched");
    assert_eq!(a.ask(format!("op {set} - 0,1,SEM_UNDO")), "= 0");
    assert_eq!(observer.values(&set), "= 5");
}

#[test]
fn a_program_is_listed_with_its_label_or_with_its_name() {
    let server = TestServer::start();
    let label = |label: Option<&str>| {
        let mut command = preloaded(STEPPER, server.address);
        command.envs(label.map(|label| ("SIGNALBOX_SYSV_LABEL", label)));
        let mut a = Stepper::spawn(&mut command);
        let set = a.set(7, "1");
        assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
        let client = Client::builder(server.address.to_string().parse().unwrap());
        let client = blocking::Client::connect_with(client).unwrap();
        let users = client.wait(async {
            let users = client.direct().await?.set_users(SetId(set.parse().unwrap())).await?;
            users.all().await
        });
        let users = users.unwrap();
        assert_eq!((users.len(), users[0].pid), (1, a.pid()));
        a.kill();
        until("its adjustments are undone", || Stepper::start(server.address).values(&set) == "= 1");
        String::from_utf8_lossy(&users[0].label).into_owned()
    };
    assert_eq!(label(Some("printers")), "printers");
    assert!(label(None).starts_with("sysv-stepper@"));
}

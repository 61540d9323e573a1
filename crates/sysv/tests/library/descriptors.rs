//! Programs that close or replace descriptors that they did not open.

use crate::stepper::Stepper;
use crate::support::TestServer;
use crate::until;

#[test]
fn a_program_that_closes_all_descriptors_gets_a_new_process() {
    let server = TestServer::start();
    let mut a = Stepper::start(server.address);
    let set = a.set(7, "3");
    assert_eq!(a.ask("close-all"), "= 0");
    assert_eq!(a.ask(format!("op {set} - 0,-1,0")), "= 0", "it had no adjustments to lose");
    assert_eq!(a.values(&set), "= 2");
}

#[test]
fn lost_adjustments_are_reported_once() {
    let server = TestServer::start();
    let (mut a, mut observer) = (Stepper::start(server.address), Stepper::start(server.address));
    let set = a.set(7, "3");
    assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
    assert_eq!(a.ask("close-all"), "= 0");
    until("the process has ended on the server", || observer.values(&set) == "= 3");
    assert_eq!(a.ask("get 7 1 0"), format!("= {set}"), "it needs no adjustments");
    assert_eq!(a.ask(format!("op {set} - 0,1,SEM_UNDO")), "! EIDRM");
    assert_eq!(observer.values(&set), "= 3");
    assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
}

#[test]
fn the_library_never_writes_into_files_of_the_program() {
    let server = TestServer::start();
    let mut a = Stepper::start(server.address);
    let set = a.set(7, "3");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let replaced = a.ask(format!("replace-all {}", file.display()));
    assert!(replaced != "= 0", "the library's descriptor is among them");
    assert_eq!(a.ask(format!("op {set} - 0,-1,0")), "= 0");
    assert_eq!(std::fs::read(&file).unwrap(), b"");
    let (mut thread, _) = a.branch("thread");
    assert_eq!(thread.ask(format!("op {set} - 0,-1,0")), "= 0");
    assert_eq!(std::fs::read(&file).unwrap(), b"");
}

//! Semaphore sets by the client's calls, which behave like `semget`, `semop` and `semctl`.

use std::time::Duration;

use crate::started;
use crate::support::{PATIENCE, TestServer};
use signalbox_client::sysv::{
    Caller, Errno, IPC_NOWAIT, Identity, Operation, Ownership, Process, SEM_UNDO, SetId, UserRole,
};
use signalbox_client::{Client, Direct, Features, Status};

async fn process(server: &TestServer, pid: u32, uid: u32) -> (Direct, Process) {
    let client = Client::builder(server.semaphores.to_string().parse().unwrap()).build().unwrap();
    let direct = client.direct().await.unwrap();
    assert!(direct.server().features.contains(Features::SYSV));
    let identity = Identity { pid, caller: Caller { uid, gid: uid }, groups: &[], label: b"test" };
    let process = direct.open_process(&identity).await.unwrap();
    (direct, process)
}

const fn take(flags: u16) -> Operation {
    Operation { number: 0, change: -1, flags }
}

/// Waits until this many calls wait for the first semaphore to grow.
async fn until_waiting(process: &Process, set: SetId, calls: u32) {
    let waiting = async {
        while process.semaphores(set).await.unwrap()[0].waiting_for_growth != calls {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn calls_do_what_those_of_the_kernel_do() {
    let server = started(|_| {});
    let (_, root) = process(&server, 1, 0).await;
    let missing = root.find(0x2a).await.unwrap_err();
    assert_eq!((missing.errno(), missing.is_refusal()), (Some(Errno::NoEnt), true));
    assert_eq!(
        missing.to_string(),
        "cannot find the semaphore set with the key 0x0000002a: there is no such set; check the key, or create the set \
         (ENOENT)"
    );
    let set = root.create(0x2a, 100, 0o600).await.unwrap();
    assert_eq!(root.find(0x2a).await.unwrap(), (set, 100));
    assert_eq!(root.create(0x2a, 1, 0o600).await.unwrap_err().errno(), Some(Errno::Exist));
    root.set_value(set, 99, 7).await.unwrap();
    root.operate(set, &[Operation { number: 99, change: 2, flags: 0 }], None).await.unwrap();
    let semaphores = root.semaphores(set).await.unwrap();
    assert_eq!((semaphores.len(), semaphores[99].value, semaphores[99].pid), (100, 9, 1));
    assert_eq!((semaphores[0].value, semaphores[0].pid), (0, 0));
    let (_, other) = process(&server, 2, 1000).await;
    assert_eq!(other.values(set).await.unwrap_err().errno(), Some(Errno::Access));
    assert_eq!(other.remove(set).await.unwrap_err().errno(), Some(Errno::Perm));
    root.set_ownership(set, Ownership { uid: 1000, gid: 1000, mode: 0o640 }).await.unwrap();
    let stat = other.stat(set).await.unwrap();
    assert_eq!(
        (stat.ownership.uid, stat.creator_uid, stat.ownership.mode, stat.count),
        (1000, 0, 0o640, 100)
    );
    other.set_values(set, &[3; 100]).await.unwrap();
    assert_eq!(other.values(set).await.unwrap(), [3; 100]);
    assert_eq!(other.set_values(set, &[3; 99]).await.unwrap_err().errno(), Some(Errno::Inval));
    other.remove(set).await.unwrap();
    let error = other.stat(set).await.unwrap_err();
    assert_eq!(error.errno(), Some(Errno::Inval));
    assert!(error.to_string().starts_with(&format!("cannot read semaphore set {set}: ")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn listings_show_who_has_adjustments_and_who_waits() {
    let server = started(|_| {});
    let (direct, holder) = process(&server, 1, 0).await;
    let set = holder.create(0, 1, 0o666).await.unwrap();
    holder.set_value(set, 0, 1).await.unwrap();
    holder.operate(set, &[take(SEM_UNDO)], None).await.unwrap();
    let (_, waiter) = process(&server, 2, 5).await;
    let waiting = tokio::spawn(async move { waiter.operate(set, &[take(0)], None).await });
    until_waiting(&holder, set, 1).await;
    let mut sets = direct.sets().await.unwrap();
    let listed = sets.next().await.unwrap().unwrap();
    assert_eq!((listed.set, listed.stat.key, listed.waiting, listed.adjusting), (set, 0, 1, 1));
    assert!(sets.next().await.is_none());
    let mut users = direct.set_users(set).await.unwrap();
    let mut all = Vec::new();
    while let Some(user) = users.next().await {
        let user = user.unwrap();
        all.push((user.role, user.pid, user.uid, user.operations[0].change, user.label));
    }
    let label = || Box::from(&b"test"[..]);
    assert_eq!(all, [(UserRole::Adjusts, 1, 0, 1, label()), (UserRole::Waits, 2, 5, -1, label())]);
    let error = direct.set_users(SetId(1)).await.unwrap().next().await.unwrap().unwrap_err();
    assert_eq!(error.status(), Some(Status::NotFound));

    // The end of the holder's connection gives back what it took.
    drop((direct, holder, sets, users));
    tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
}

/// Both are as long as the protocol allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_process_may_have_a_long_label_and_many_groups() {
    let server = started(|_| {});
    let client = Client::builder(server.counters.to_string().parse().unwrap()).build().unwrap();
    let direct = client.direct().await.unwrap();
    let (groups, label) = ([7; 1025], [b'x'; 256]);
    let identity = Identity { pid: 1, caller: Caller { uid: 0, gid: 0 }, groups: &groups, label: &label };
    let process = direct.open_process(&identity).await.unwrap();
    let set = process.create(0, 1, 0o600).await.unwrap();
    process.operate(set, &[Operation { number: 0, change: 1, flags: SEM_UNDO }], None).await.unwrap();
    let user = direct.set_users(set).await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(*user.label, label[..255]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_call_waits_no_longer_than_its_caller() {
    let server = started(|_| {});
    let (_, process) = process(&server, 1, 0).await;
    let set = process.create(0, 1, 0o600).await.unwrap();
    let refused = process.operate(set, &[take(IPC_NOWAIT)], None).await.unwrap_err();
    assert_eq!(refused.errno(), Some(Errno::Again));
    let late = process.operate(set, &[take(0)], Some(Duration::from_millis(1))).await.unwrap_err();
    assert_eq!(late.errno(), Some(Errno::Again));
    let waiting = {
        let process = process.clone();
        tokio::spawn(async move { process.operate(set, &[take(0)], None).await })
    };
    until_waiting(&process, set, 1).await;
    waiting.abort();
    until_waiting(&process, set, 0).await;
    process.set_value(set, 0, 1).await.unwrap();
    assert_eq!(process.values(set).await.unwrap(), [1], "the canceled call takes nothing");
}

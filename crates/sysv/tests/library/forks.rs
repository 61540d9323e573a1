//! A program with the Rust client that forks. The test is here because this package may call `fork`.

use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::time::Duration;

use signalbox_client::blocking;
use signalbox_client::{Client, ErrorKind, Lost, Maximum, PlainClient, Resources};

use crate::support::TestServer;
use crate::until;

/// A child of this process, which is ended when this is dropped.
struct Child {
    pid: libc::pid_t,
    said: std::fs::File,
}

impl Child {
    /// Runs a function in a child, which then waits. A child that hangs is ended after a while, and has said nothing.
    fn of_fork(run: impl FnOnce() -> String) -> Self {
        let mut ends = [0; 2];
        // SAFETY: there is room for both ends, which are owned by the files below.
        let [reading, writing] = unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            ends.map(|end| std::fs::File::from_raw_fd(end))
        };
        // SAFETY: the child uses no lock that another thread may have, except those of the client, which is the test; the C
        // library keeps those of its allocator usable.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: these calls have no memory of ours.
                unsafe {
                    libc::alarm(10);
                    let said = run();
                    let _ = (&writing).write_all(said.as_bytes());
                    drop(writing);
                    libc::alarm(60);
                    loop {
                        libc::pause();
                    }
                }
            }
            pid => {
                assert!(pid > 0, "{}", std::io::Error::last_os_error());
                Self { pid, said: reading }
            }
        }
    }

    fn said(&mut self) -> String {
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the child was not waited for before, so the number is its own.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn calls_in_a_fork_fail_at_once_and_the_parent_keeps_its_permits() {
    let server = TestServer::start();
    let builder = Client::builder(server.address.to_string().parse().unwrap()).ttl(Duration::from_secs(60));
    let client = blocking::Client::connect_with(builder).unwrap();
    let [kept, released, dropped] = ["kept", "released", "dropped"]
        .map(|name| client.wait(client.counter(name).maximum(1).acquire()).unwrap());
    let direct = client.wait(client.direct()).unwrap();
    let (mut released, mut dropped) = (Some(released), Some(dropped));
    let mut child = Child::of_fork(|| {
        let acquired = client.wait(client.counter("b").maximum(1).acquire()).unwrap_err();
        let is_forked = |kind: &ErrorKind| matches!(kind, ErrorKind::Forked);
        let mut wrong = Vec::new();
        let mut check = |what: &str, holds: bool| wrong.extend((!holds).then(|| what.to_owned()));
        check("acquire", is_forked(acquired.kind()));
        check("is_held", !kept.is_held());
        check("lost", client.wait(kept.lost()) == Lost::Forked);
        check("guard", client.wait(kept.guard(async {})).unwrap_err().lost() == Some(Lost::Forked));
        let released = client.wait(released.take().unwrap().release());
        check("release", released.unwrap_err().lost() == Some(Lost::Forked));
        drop(dropped.take());
        check("direct", is_forked(client.wait(client.direct()).unwrap_err().kind()));
        check("sessions", is_forked(client.wait(direct.sessions()).unwrap_err().kind()));
        client.clone().close();
        format!("{acquired}; wrong: {wrong:?}")
    });
    let said = child.said();
    assert!(said.contains("a fork of the one that has made the client"), "{said:?}");
    assert!(said.ends_with("wrong: []"), "{said}");
    for permit in [kept, released.unwrap(), dropped.unwrap()] {
        assert!(client.wait(direct.verify(permit.id())).is_ok());
        assert!(permit.is_held());
        client.wait(permit.release()).unwrap();
    }
}

#[test]
fn what_a_plain_connection_holds_is_released_although_a_fork_has_its_socket() {
    let server = TestServer::start();
    let address = server.address.to_string().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let child = runtime.block_on(async {
        let client = PlainClient::connect(&address).await.unwrap();
        client.acquire(b"a", Resources(1), Maximum(1)).await.unwrap();
        let mut child = Child::of_fork(|| "ready".to_owned());
        assert_eq!(child.said(), "ready");
        drop(client);
        // The task of the connection ends.
        tokio::task::yield_now().await;
        child
    });
    let other = runtime.block_on(PlainClient::connect(&address)).unwrap();
    let acquires = || runtime.block_on(other.acquire(b"a", Resources(1), Maximum(1))).is_ok();
    until("the resource is free", acquires);
    drop(child);
}

//! The program on a terminal: tables fit it, and a wait shows its place in the queue.

use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;
use tokio::process::Child;

use super::{assert_fails, finished, line, program_at, ran, stderr, stdout, stdout_of};
use crate::support::daemon::Daemon;
use crate::support::fake_server::{FakeServer, soon};

/// A terminal: what is written to its end for programs appears in its text and on its screen.
struct Terminal {
    shown: Arc<Mutex<Shown>>,
    keys: File,
    programs: Option<OwnedFd>,
}

/// The output that a terminal has received.
struct Shown {
    /// All of it, with the sequences that control the terminal.
    text: String,
    /// What a person sees of it.
    screen: vt100::Parser,
}

const ROWS: u16 = 24;

impl Terminal {
    fn new(columns: u16) -> Self {
        let size = Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let mut master = File::from(pty.master);
        let screen = vt100::Parser::new(NonZero::new(ROWS).unwrap(), NonZero::new(columns).unwrap(), 0);
        let shown = Arc::new(Mutex::new(Shown { text: String::new(), screen }));
        let (written, keys) = (Arc::clone(&shown), master.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of the last program is an error of the terminal.
            while let Ok(count @ 1..) = master.read(&mut bytes) {
                let mut shown = written.lock().unwrap();
                shown.text.push_str(&String::from_utf8_lossy(&bytes[..count]));
                shown.screen.process(&bytes[..count]);
            }
        });
        Self { shown, keys, programs: Some(pty.slave) }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Takes the end that a program writes to.
    fn take(&mut self) -> Stdio {
        self.programs.take().unwrap().into()
    }

    /// Takes the end for a program that reads from it too.
    fn take_both(&mut self) -> (Stdio, Stdio) {
        let output = self.programs.take().unwrap();
        (output.try_clone().unwrap().into(), output.into())
    }

    /// Waits until the text is as expected, and returns it.
    async fn shows(&self, what: &str, is_shown: impl Fn(&str) -> bool) -> String {
        self.until(what, |shown| shown.text.clone(), is_shown).await
    }

    /// Waits until the screen is as expected, and returns its lines.
    async fn screen_shows(&self, what: &str, is_shown: impl Fn(&str) -> bool) -> String {
        self.until(what, |shown| shown.screen.screen().contents(), is_shown).await
    }

    async fn until(
        &self,
        what: &str,
        of: impl Fn(&Shown) -> String,
        is_shown: impl Fn(&str) -> bool,
    ) -> String {
        let text = || of(&self.shown.lock().unwrap());
        let wait = async {
            loop {
                let text = text();
                if is_shown(&text) {
                    return text;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(20), wait).await {
            Ok(text) => text,
            Err(_) => panic!("not shown within 20 s: {what}; the terminal has {:?}", text()),
        }
    }
}

/// `top` on this terminal, from which it also gets its keys.
fn top(server: SocketAddr, terminal: &mut Terminal) -> Child {
    let (input, output) = terminal.take_both();
    let mut command = program_at(server, &["top", "--interval", "0.1"]);
    command.stdin(input).stdout(output).env("TERM", "xterm").env_remove("NO_COLOR").spawn().unwrap()
}

/// The sequence that ends the use of the whole screen.
const LEFT: &str = "\x1b[?1049l";

#[tokio::test]
async fn top_shows_the_server_until_a_key_ends_it() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let mut wire = daemon.counter();
    assert_eq!(wire.acquire(b"tricky\x1b[2J\xe2\x80\xae", 1, 8).status, 0);
    let mut terminal = Terminal::new(120);
    let mut child = top(server, &mut terminal);
    let text = terminal.shows("a name", |text| text.contains(r"tricky\x1b[2J\xe2\x80\xae")).await;
    assert!(!text.contains('\u{202e}'), "{text:?}");
    terminal.press("3");
    terminal.screen_shows("the sessions", |screen| screen.contains("TTL LEFT")).await;
    terminal.press("4");
    terminal.screen_shows("the statistics", |screen| screen.contains("command:acquire")).await;
    terminal.press("/grants\r");
    terminal.screen_shows("the filter", |screen| screen.contains("filter \"grants\"")).await;
    terminal.press("?");
    terminal.screen_shows("the keys", |screen| screen.contains("PgUp")).await;
    // The list of keys is closed, and then the filter.
    terminal.press("\x7f\x7f");
    let is_closed = |screen: &str| !screen.contains("PgUp") && !screen.contains("filter");
    terminal.screen_shows("neither keys nor a filter", is_closed).await;
    terminal.press("1\r");
    terminal.screen_shows("the holders", |screen| screen.contains("HELD FOR")).await;
    terminal.press("q");
    assert_eq!(soon("the end", child.wait()).await.unwrap().code(), Some(0));
    terminal.shows("the end", |text| text.contains(LEFT)).await;
}

#[tokio::test]
async fn top_gives_the_terminal_back_on_a_signal_and_waits_for_a_server_that_is_gone() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let mut terminal = Terminal::new(120);
    let mut child = top(server, &mut terminal);
    terminal.screen_shows("the server", |screen| screen.contains(env!("CARGO_PKG_VERSION"))).await;
    drop(daemon);
    terminal.screen_shows("the problem", |screen| screen.contains("trying again")).await;
    let pid = Pid::from_raw(child.id().unwrap().cast_signed());
    kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(soon("the end", child.wait()).await.unwrap().code(), Some(0));
    terminal.shows("the end", |text| text.contains(LEFT)).await;
}

#[tokio::test]
async fn top_obeys_keys_while_the_server_does_not_answer() {
    let server = FakeServer::bind().await;
    let mut terminal = Terminal::new(120);
    let mut child = top(server.address(), &mut terminal);
    let _asked = server.accept().await;
    terminal.press("3");
    terminal.screen_shows("the sessions", |screen| screen.contains("TTL LEFT")).await;
    terminal.press("q");
    assert_eq!(soon("the end", child.wait()).await.unwrap().code(), Some(0));
    terminal.shows("the end", |text| text.contains(LEFT)).await;
}

#[tokio::test]
async fn top_needs_a_terminal() {
    let mut daemon = Daemon::start();
    let output = ran(daemon.address("counter"), &["top"]).await;
    assert_fails(&output, 64, "top needs a terminal");
}

#[tokio::test]
async fn tables_fit_the_terminal() {
    let mut daemon = Daemon::start();
    let server = daemon.address("semaphore");
    let long = "a-rather-long-name-of-a-semaphore/".repeat(8);
    let label = "what this is for ".repeat(14);
    let declare = ["declare", &long, "--capacity", "4", "--slots", "--label", &label];
    stdout(&ran(server, &declare).await);
    let held = ["acquire", &long, "--lease", "1h", "--json"];
    let held = ran(server, &held).await;
    let held: serde_json::Value = serde_json::from_str(stdout(&held)).unwrap();
    let grant = held["grant"].as_str().unwrap();
    for columns in [80, 60, 200] {
        for arguments in [
            &["dump", "--semaphore"][..],
            &["list"],
            &["status", "--holders", &long, "--semaphore"],
            &["status", "--waiters", &long, "--semaphore"],
            &["status", &long],
            &["resize", &long, "4"],
            &["verify", grant],
        ] {
            let mut terminal = Terminal::new(columns);
            let child = program_at(server, arguments).stdout(terminal.take()).spawn().unwrap();
            let output = finished(child).await;
            assert_eq!(stderr(&output), "", "{arguments:?}");
            let text = terminal.shows("a line", |text| text.ends_with('\n')).await;
            let table = text.lines().filter(|line| arguments[0] != "status" || !line.starts_with("name"));
            let table = table.filter(|line| !line.starts_with("label"));
            for line in table {
                assert!(line.chars().count() <= usize::from(columns), "{columns}: {arguments:?}: {text}");
            }
            let is_cut = text.contains('…');
            assert!(is_cut || !matches!(arguments[0], "dump" | "list"), "{columns}: {text}");
        }
    }
    let wide = ran(server, &["list"]).await;
    assert!(stdout(&wide).contains(&label), "the output to a program is complete");
}

#[tokio::test]
async fn a_wait_shows_its_place_and_the_holders() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let mut holder =
        program_at(server, &["run", "job", "--max", "1", "--", "sh", "-c", "echo ready; read _"])
            .spawn()
            .unwrap();
    assert_eq!(line(&mut stdout_of(&mut holder)).await, "ready");
    let arguments = ["run", "job", "--max", "1", "--wait", "max", "--", "echo", "started"];
    let mut terminal = Terminal::new(300);
    let first = program_at(server, &arguments).stderr(terminal.take()).spawn().unwrap();
    let shown = terminal.shows("the place", |text| text.contains("held by")).await;
    assert!(shown.contains("waiting for limit \"job\": position 1 of 1; held by "), "{shown}");
    assert!(shown.contains("run[") && shown.contains("] sh"), "{shown}");
    let mut second_terminal = Terminal::new(60);
    let second = program_at(server, &arguments).stderr(second_terminal.take()).spawn().unwrap();
    let shown = second_terminal.shows("the place", |text| text.contains("position 2 of 2")).await;
    let line = shown.trim_start_matches('\r').split('\x1b').next().unwrap();
    assert!(line.chars().count() < 60, "{line}");
    let piped = program_at(server, &arguments).spawn().unwrap();
    holder.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    for waiter in [first, second, piped] {
        let output = soon("the waiter to be served", waiter.wait_with_output()).await.unwrap();
        assert_eq!((&output.stdout[..], stderr(&output)), (&b"started\n"[..], ""));
    }
    let erased = |text: &str| text.ends_with("\r\x1b[K");
    terminal.shows("no line", erased).await;
    second_terminal.shows("no line", erased).await;
}

//! The status page in a real browser.

use std::cell::Cell;
use std::process::{Child, Command, Stdio};

use fantoccini::Locator;
use nix::sys::signal::Signal;
use serde_json::json;
use signalbox_protocol::Opcode;

use crate::browser::{Browser, eventually_async, start};
use crate::client::HttpDaemon;
use crate::support::caller::{Caller, one_of};
use crate::support::daemon::SIGNALBOX;
use crate::support::{OK, frame, named};

/// A name that would do something if it were markup, with characters that hide, turn or cover text.
const HOSTILE: &str =
    "<img src=x onerror=document.title='owned'>\u{202e}\u{7}evil&amp;a\u{301}\u{301}\u{301}\u{301}\u{301}";

/// A process that waits for a semaphore, until it is dropped.
struct Waiting(Child);

impl Waiting {
    fn start(http: &mut HttpDaemon, name: &str) -> Self {
        let mut command = Command::new(SIGNALBOX);
        command.args(["run", name, "--semaphore", "--wait", "1h", "--lease", "30", "--", "sleep", "60"]);
        command.env("SIGNALBOX_SERVER", http.daemon.address("counter").to_string()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How the page shows the invisible characters of that name.
const ESCAPED: [&str; 3] = ["\\u{202e}", "\\u{7}", "\\u{301}"];

#[tokio::test]
async fn the_page_shows_contention_and_an_administrator_changes_it() {
    let Some(browser) = Browser::start(1200, false).await else { return };
    let (mut http, token, _directory) = start();
    http.command(&["declare", "licences", "--capacity", "2", "--label", "seats of the compiler"]);
    let held = http.command(&[
        "acquire",
        "licences",
        "--semaphore",
        "--lease",
        "1h",
        "--max",
        "2",
        "--resources",
        "2",
    ]);
    assert!(held.contains("SESSION"), "{held}");
    let waiting = Waiting::start(&mut http, "licences");

    browser.open(&http, "/").await;
    browser.shows("serving").await;
    browser.shows("licences").await;
    browser.shows("2 of 2").await;
    browser.open(&http, "/name?kind=semaphore&name=licences").await;
    browser.shows("seats of the compiler").await;
    browser.shows("Waiting requests, in the order in which they are served: 1 of 1").await;
    browser.picture("name").await;

    // Without a token, a change asks for one.
    browser.press("Pause").await;
    browser.fill("#token-text", &token).await;
    browser.confirm("Use").await;
    browser.shows("Pause \"licences\"?").await;
    browser.confirm("Pause").await;
    browser.shows("\"licences\" is paused").await;
    // The button that takes the place of the pressed one takes its focus.
    eventually_async("the keyboard is at the next button", async || {
        let label = browser.value_of("return document.activeElement.textContent").await;
        (label == "Resume").then_some(())
    })
    .await;
    browser.press("Resume").await;
    browser.confirm("Resume").await;
    browser.shows("\"licences\" is in service").await;
    browser.press("Resize").await;
    browser.fill("#confirm-fields input", "0").await;
    browser.shows("▲ 1 of 1 waiting requests is refused").await;
    browser.fill("#confirm-fields input", "1").await;
    eventually_async("the smaller capacity refuses nothing", async || {
        (!browser.text().await.contains("is refused")).then_some(())
    })
    .await;
    // Enter confirms.
    browser.fill("#confirm-fields input", "5\u{e007}").await;
    browser.shows("has the capacity 5").await;
    let listed = http.command(&["list", "--json"]);
    assert!(listed.contains("\"capacity\":5"), "{listed}");
    browser.press("Revoke").await;
    browser.shows("Its holder loses").await;
    browser.confirm("Cancel").await;
    let holders = http.command(&["status", "--holders", "licences", "--semaphore", "--no-header"]);
    assert_eq!(holders.lines().count(), 2, "it was resized, so both hold: {holders}");
    // What was done is not shown on later views.
    assert!(browser.text().await.contains("Done: "));
    browser.open(&http, "/declared").await;
    browser.shows("Declared semaphores").await;
    assert!(!browser.text().await.contains("Done: "));
    drop(waiting);
    browser.end().await;
}

#[tokio::test]
async fn names_are_shown_as_text_whatever_they_are_and_found_among_many() {
    let Some(browser) = Browser::phone(true).await else { return };
    let (mut http, _, _directory) = start();
    let mut wire = http.daemon.counter();
    assert_eq!(wire.acquire(HOSTILE.as_bytes(), 7, 9).status, OK);
    assert_eq!(wire.acquire(&[b'x'; 65_535], 3, 3).status, OK);
    assert_eq!(wire.acquire(b"bytes \xff\xfe", 2, 3).status, OK);
    browser.open(&http, "/names").await;
    browser.shows("3 names").await;
    for part in
        ESCAPED.into_iter().chain(["<img src=x onerror=", "&amp;", "(65,535 bytes)", "bytes 6279746573"])
    {
        browser.shows(part).await;
    }
    assert_eq!(browser.value_of("return document.images.length").await, 1, "the icon alone");
    assert_ne!(browser.value_of("return document.title").await, "owned");
    browser.picture("hostile").await;
    // The page is as wide as the phone.
    let too_wide = "return document.documentElement.scrollWidth > document.documentElement.clientWidth";
    assert_eq!(browser.value_of(too_wide).await, false);

    // A hundred thousand names, a thousand requests at a time.
    let numbers: Vec<u32> = (0..100_000).collect();
    for some in numbers.chunks(1_000) {
        let request = |number: &u32| {
            let name = format!("job-{number:05}");
            frame(Opcode::Acquire.code(), *b"many", &named(&[1, 1], name.as_bytes()))
        };
        wire.send(&some.iter().flat_map(request).collect::<Vec<_>>());
        assert!(some.iter().all(|_| wire.answer().status == OK));
    }
    browser.shows("100 names, and perhaps more").await;
    browser.press("Next").await;
    eventually_async("the next page shows", async || {
        let view = browser.value_of("return location.hash").await;
        view.as_str()?.contains("after=counter.").then_some(())
    })
    .await;
    browser.shows("100 names, and perhaps more").await;
    browser.press("First page").await;
    browser.fill("form.search input", "job-99999\u{e007}").await;
    // One of a hundred thousand, after pages without a match.
    browser.shows("1 name").await;
    browser.shows("job-99999").await;

    // The name of 64 KiB has a page of its own, which is found by its link.
    browser.open(&http, "/names?prefix=xxx").await;
    browser.shows("(65,535 bytes)").await;
    browser.click(Locator::Css("tbody a")).await;
    browser.shows("All names").await;
    browser.shows("Holders: 1 of 1").await;
    browser.end().await;
}

#[tokio::test]
async fn the_page_is_used_by_keyboard_and_says_when_the_server_is_gone() {
    let Some(browser) = Browser::start(1000, false).await else { return };
    let (http, _, _directory) = start();
    browser.open(&http, "/").await;
    browser.shows("serving").await;
    // Everything that can be pressed has a name, the tables have captions, and the page a heading and a language.
    let unnamed = "return [...document.querySelectorAll('button, a, input, select')].filter((element) => element.checkVisibility() && \
                   !(element.textContent.trim() || element.getAttribute('aria-label') || element.labels?.length)).length";
    assert_eq!(browser.value_of(unnamed).await, 0);
    assert_eq!(
        browser.value_of("return document.querySelectorAll('table:not(:has(caption))').length").await,
        0
    );
    assert_eq!(
        browser
            .value_of("return [document.documentElement.lang, document.querySelectorAll('h1').length]")
            .await,
        json!(["en", 1])
    );
    // The first stop of the Tab key leads to the content, and Enter follows a link of the views.
    let body = browser.page.find(Locator::Css("body")).await.unwrap();
    body.send_keys("\u{e004}").await.unwrap();
    assert_eq!(browser.value_of("return document.activeElement.className").await, "skip");
    let sessions = browser.page.find(Locator::LinkText("Sessions")).await.unwrap();
    sessions.send_keys("\u{e007}").await.unwrap();
    browser.shows("Lease ends in").await;
    assert_eq!(browser.value_of("return document.activeElement.id").await, "content");
    drop(http);
    browser.shows("the server cannot be reached").await;
    browser.shows("unreachable").await;
    browser.end().await;
}

/// A stopped process still accepts connections, and answers nothing.
#[tokio::test]
async fn a_server_that_is_stopped_is_shown_as_one_that_does_not_answer() {
    let Some(browser) = Browser::start(1000, false).await else { return };
    let (http, _, _directory) = start();
    browser.open(&http, "/").await;
    browser.shows("● serving").await;
    let is_stale = "return document.body.classList.contains('stale')";
    assert_eq!(browser.value_of(is_stale).await, false);
    http.daemon.signal(Signal::SIGSTOP);
    browser.shows("✖ no answer").await;
    browser.shows("data of ").await;
    browser.shows("the server has not answered within 5 s").await;
    assert_eq!(browser.value_of(is_stale).await, true);
    assert!(!browser.text().await.contains("serving"));
    http.daemon.signal(Signal::SIGCONT);
    browser.shows("● serving").await;
    assert_eq!(browser.value_of(is_stale).await, false);

    // Updates that are turned off look different from live ones, and say how old the data is.
    let look = "const live = document.getElementById('live');
        return [live.textContent, getComputedStyle(live).color, getComputedStyle(live).backgroundColor]";
    let live = browser.value_of(look).await;
    browser.press("● Live").await;
    browser.shows("❚❚ Stopped").await;
    let stopped = browser.value_of(look).await;
    for index in 0..3 {
        assert_ne!(live[index], stopped[index], "{live} {stopped}");
    }
    browser.shows("data of ").await;
    browser.press("❚❚ Stopped").await;
    eventually_async("the page is live again", async || {
        (!browser.text().await.contains("data of ")).then_some(())
    })
    .await;
    browser.end().await;
}

/// Waits until a column of the first row, the number of waiting requests, is one.
async fn first_row_waits(browser: &Browser, column: u8) {
    let cell = format!("return document.querySelector('tbody tr td:nth-child({column})')?.textContent ?? ''");
    eventually_async("a request waits in the first row", async || {
        (browser.value_of(&cell).await == "1").then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_needs_attention_is_on_the_first_screen_of_a_phone() {
    let Some(browser) = Browser::phone(false).await else { return };
    let (mut http, _, _directory) = start();
    browser.open(&http, "/").await;
    browser.shows("✔ Healthy").await;
    browser.shows("no request waits").await;
    let names = "return [...document.querySelectorAll('dt')].slice(-2).map((name) => name.textContent)";
    assert_eq!(browser.value_of(names).await, json!(["Version", "Up"]), "what matters least comes last");

    for number in 0..8 {
        http.command(&["declare", &format!("cut-{number}"), "--capacity", "3"]);
        let name = format!("cut-{number}");
        let all = ["acquire", &name, "--semaphore", "--lease", "1h", "--resources", "3"];
        http.command(&all);
        http.command(&["resize", &name, "2"]);
    }
    http.command(&["declare", "gpu", "--capacity", "8", "--slots"]);
    for slot in ["1", "2", "3", "6"] {
        http.command(&["slot", "gpu", slot, "--out"]);
    }
    http.command(&["declare", "maintenance", "--capacity", "1"]);
    http.command(&["pause", "maintenance"]);
    let waiting = Waiting::start(&mut http, "maintenance");
    for text in ["❚❚ 1 semaphore is paused", "▲ 8 semaphores are above capacity", "▲ above capacity"]
    {
        browser.shows(text).await;
    }
    browser.shows("◌ slots 1–3, 6 out of service").await;
    assert!(!browser.text().await.contains("Healthy"));
    first_row_waits(&browser, 4).await;
    browser.picture("phone").await;
    let first_row = "const row = document.querySelector('tbody tr');
        return [row.textContent, scrollY + row.getBoundingClientRect().bottom <= innerHeight]";
    let first = browser.value_of(first_row).await;
    let text = first[0].as_str().unwrap();
    assert!(text.contains("maintenance") && text.contains("❚❚ paused") && text.contains("0 of 1"), "{text}");
    assert_eq!(first[1], true, "the paused queue is below the first screen");

    // The list of names says so as well.
    browser.open(&http, "/names?prefix=maintenance").await;
    browser.shows("1 name").await;
    browser.shows("❚❚ paused").await;
    // On a phone, a session takes two lines.
    browser.open(&http, "/sessions?sort=waiting").await;
    first_row_waits(&browser, 6).await;
    let rows =
        "return [...document.querySelectorAll('tbody tr')].map((row) => [row.textContent, row.offsetHeight])";
    let rows = browser.value_of(rows).await;
    let rows = rows.as_array().unwrap();
    assert!(rows.len() > 8 && rows[0][0].as_str().unwrap().contains("sleep"), "{rows:?}");
    assert!(rows.iter().all(|row| row[1].as_u64().unwrap() < 80), "{rows:?}");
    browser.picture("sessions").await;
    drop(waiting);
    browser.end().await;
}

#[tokio::test]
async fn changes_are_offered_only_where_they_are_possible() {
    let Some(browser) = Browser::start(1200, true).await else { return };
    let mut http = HttpDaemon::start();
    http.command(&["declare", "gpu", "--capacity", "4"]);
    let offered = "return [...document.querySelectorAll('main button.change, main .change button')]
        .map((button) => button.checkVisibility())";
    browser.open(&http, "/declared").await;
    browser.shows("gpu").await;
    let buttons = browser.value_of(offered).await;
    let buttons = buttons.as_array().unwrap();
    assert!(buttons.len() >= 3 && buttons.iter().all(|is_shown| *is_shown == false), "{buttons:?}");
    assert_eq!(http.post("/api/v1/pause", &[], r#"{"name": "gpu"}"#).status, 401);

    let (mut http, token, _directory) = start();
    http.command(&["declare", "gpu", "--capacity", "4", "--slots"]);
    http.command(&["declare", "old", "--capacity", "4"]);
    http.command(&["acquire", "gpu", "--semaphore", "--lease", "1h"]);
    browser.open(&http, "/declared?prefix=old").await;
    browser.press("Remove").await;
    browser.fill("#token-text", &token).await;
    browser.confirm("Use").await;
    browser.shows("Remove \"old\"?").await;
    let grace = "return document.querySelector('dialog[open] [name=grace]').value";
    assert_eq!(browser.value_of(grace).await, "10");
    browser.confirm("Remove").await;
    browser.shows("Done: \"old\" is removed.").await;
    assert!(!http.command(&["list", "--json"]).contains("\"old\""));

    // The page keeps the token as long as it is not loaded again.
    browser.click(Locator::LinkText("Declared")).await;
    browser.click(Locator::LinkText("gpu")).await;
    browser.press("Slots").await;
    browser.fill("#confirm-fields input", "3").await;
    browser.confirm("Change").await;
    browser.shows("slot 3 of \"gpu\" is out of service").await;
    browser.shows("◌ slot 3 out of service").await;
    browser.picture("dark").await;
    browser.press("Slots").await;
    browser.shows("Out of service now: slot 3.").await;
    browser.confirm("Change").await;
    browser.shows("slot 3 of \"gpu\" is in service").await;

    browser.click(Locator::LinkText("Sessions")).await;
    browser.press("Revoke a client").await;
    browser.fill("#confirm-fields input", "127.0.0.1").await;
    assert_eq!(browser.value_of(grace).await, "10");
    browser.confirm("Revoke").await;
    browser.shows("of 127.0.0.1 are revoked, with a grace period of 10 s.").await;
    browser.end().await;
}

#[tokio::test]
async fn a_session_and_a_client_lead_to_what_they_hold() {
    let Some(browser) = Browser::start(1200, false).await else { return };
    let (mut http, token, _directory) = start();
    http.command(&["declare", "gpu", "--capacity", "8", "--slots"]);
    http.command(&["declare", "maintenance", "--capacity", "1"]);
    http.command(&["pause", "maintenance"]);
    http.command(&["acquire", "gpu=3", "--lease", "1h"]);
    let waiting = Waiting::start(&mut http, "maintenance");
    let mut wire = http.daemon.counter();
    assert_eq!(wire.acquire(b"plain", 2, 3).status, OK);

    browser.open(&http, "/").await;
    eventually_async("use and queue are drawn", async || {
        let points = "return [...document.querySelectorAll('.figures polyline')]
            .map((line) => line.getAttribute('points').split(' ').length)";
        let points = browser.value_of(points).await;
        (points.as_array()?.len() == 2 && points[0].as_u64()? >= 3).then_some(())
    })
    .await;
    first_row_waits(&browser, 4).await;
    browser.picture("overview").await;

    browser.open(&http, "/name?kind=semaphore&name=gpu").await;
    browser.click(Locator::Css("tbody a[href*='session=']")).await;
    browser.shows("All sessions").await;
    browser.shows("0–2").await;
    browser.open(&http, "/sessions?sort=waiting").await;
    first_row_waits(&browser, 6).await;
    browser.click(Locator::Css("tbody a[href*='client=127.0.0.1']")).await;
    browser.shows("Client 127.0.0.1").await;
    for text in ["gpu", "0–2", "maintenance", "◔ waits"] {
        browser.shows(text).await;
    }
    let holders = http.get("/api/v1/holders?kind=counter&name=plain").json();
    let connection = holders["items"][0]["session"].as_str().unwrap();
    browser.open(&http, &format!("/held?session={connection}")).await;
    browser.shows("Held by plain Acquires of this connection: 1 name").await;

    browser.open(&http, "/held?client=127.0.0.1").await;
    // The view before has such a button, too.
    browser.shows("Client 127.0.0.1").await;
    browser.press("Revoke").await;
    browser.fill("#token-text", &token).await;
    browser.confirm("Use").await;
    browser.shows("Revoke all sessions of a client?").await;
    browser.fill("#confirm-fields [name=grace]", "0").await;
    browser.confirm("Revoke").await;
    browser.shows("sessions of 127.0.0.1 are revoked.").await;
    eventually_async("what it held is gone", async || (!browser.text().await.contains("gpu")).then_some(()))
        .await;
    drop(waiting);
    browser.end().await;
}

#[tokio::test]
async fn sessions_are_sorted_over_all_pages() {
    let Some(browser) = Browser::start(1200, false).await else { return };
    let (mut http, _, _directory) = start();
    let mut holder = Caller::new(http.daemon.counter());
    // The page shows some hundred of them at a time.
    for _ in 0..1_200 {
        holder.open(3_600_000);
    }
    holder.take(one_of(1, b"a"));
    let last = holder.open(3_600_000).session;
    holder.take(one_of(1, b"b"));
    holder.take(one_of(1, b"c"));
    browser.open(&http, "/sessions").await;
    browser.shows("1 to ").await;
    let first_row = "return document.querySelector('tbody tr')?.textContent ?? ''";
    let has_last = async || browser.value_of(first_row).await.as_str().unwrap().contains(&last.to_string());
    assert!(!has_last().await);
    browser.press("Next").await;
    // The order of all sessions begins at their first page.
    let choose = "const order = [...document.querySelectorAll('select')].at(-1);
        order.value = 'grants'; order.dispatchEvent(new Event('change'));";
    browser.value_of(choose).await;
    eventually_async("the session with the most grants comes first", async || has_last().await.then_some(()))
        .await;
    browser.shows("The first ").await;
    browser.shows("sessions in this order").await;
    browser.open(&http, "/server").await;
    browser.shows("Tokens that clients may show").await;
    browser.shows("none since the start").await;
    browser.end().await;
}

/// Each request that the server refuses is counted, logged, and slows its client down.
#[tokio::test]
async fn a_page_that_may_not_list_the_tokens_asks_for_them_once() {
    let Some(browser) = Browser::start(1000, false).await else { return };
    let (http, _config) = HttpDaemon::with("enable = true\n[access]\nnetworks = ['127.0.0.0/8 read']\n");
    browser.open(&http, "/server").await;
    browser.shows("Where durable state is kept").await;
    let requests = async || {
        let text = "return (await (await fetch('/metrics')).text()).match(/^signalbox_http_requests_total (\\d+)/m)[1]";
        browser.value_of(text).await.as_str().unwrap().parse::<u64>().unwrap()
    };
    let before = requests().await;
    // A refresh is fewer than ten requests; each of these calls is one.
    let own = Cell::new(0);
    eventually_async("the page is refreshed some times", async || {
        own.set(own.get() + 1);
        (requests().await > before + own.get() + 20).then_some(())
    })
    .await;
    let refused = "return (await (await fetch('/metrics')).text()).match(/reason=\"rights\"} (\\d+)/)[1]";
    assert_eq!(browser.value_of(refused).await, "1");
    browser.end().await;
}

#[tokio::test]
async fn a_node_that_does_not_lead_shows_the_data_of_the_leader() {
    let Some(browser) = Browser::start(1000, false).await else { return };
    let (mut http, _, _directory) = start();
    http.command(&["declare", "gpu", "--capacity", "4"]);
    browser.open(&http, "/declared").await;
    browser.shows("● serving").await;
    // The answer of a node that does not lead, and forwards other requests to the leader.
    let node = r#"{"version": "0", "state": "relaying", "time": 9, "started": 1, "changes": true, "server": null,
        "cluster": {"name": "site", "node": "b", "leader": "a", "nodes": [{"node": "a", "addresses": ["10.0.0.1:11215"]}]}}"#;
    let answer = async |path: &str, answer: &str| {
        let script = format!(
            "const asked = window.fetch; window.fetch = (path, options) =>
            path === '{path}' ? Promise.resolve({answer}) : asked(path, options);"
        );
        browser.value_of(&script).await
    };
    answer("/api/v1/status", &format!("Response.json({node})")).await;
    browser.shows("◐ relaying").await;
    browser.shows("Node a (10.0.0.1:11215) leads the cluster site").await;
    browser.shows("gpu").await;
    let buttons = "return [...document.querySelectorAll('main .change button')].map((button) => button.checkVisibility())";
    assert_eq!(browser.value_of(buttons).await, json!([false, false, false]));
    browser.click(Locator::LinkText("Overview")).await;
    browser.shows("✔ Healthy").await;
    // One that does not forward it.
    let refused =
        "Response.json({ error: { code: 'not_serving', message: 'another node leads' } }, { status: 503 })";
    answer("/api/v1/leader", refused).await;
    browser.shows("its data is not here: another node leads").await;
    browser.click(Locator::LinkText("Declared")).await;
    browser.shows("its data is not here").await;
    assert_eq!(browser.value_of("return document.querySelector('table').checkVisibility()").await, false);
    browser.end().await;
}

//! The status page in a real browser.

use std::process::{Command, Stdio};

use fantoccini::Locator;
use nix::sys::signal::Signal;
use serde_json::json;
use signalbox_protocol::Opcode;

use crate::browser::{Browser, eventually_async, start};
use crate::support::daemon::SIGNALBOX;
use crate::support::{OK, frame, named};

/// A name that would do something if it were markup, with characters that hide or turn text.
const HOSTILE: &str = "<img src=x onerror=document.title='owned'>\u{202e}\u{7}evil&amp;";

/// How the page shows the characters of that name which nobody could see.
const ESCAPED: [&str; 2] = ["\\u{202e}", "\\u{7}"];

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
    let mut waiting = Command::new(SIGNALBOX);
    waiting.args(["run", "licences", "--semaphore", "--wait", "1h", "--lease", "30", "--", "sleep", "60"]);
    waiting.env("SIGNALBOX_SERVER", http.daemon.address("counter").to_string()).stderr(Stdio::null());
    let mut waiting = waiting.spawn().unwrap();

    browser.open(&http, "/").await;
    browser.shows("serving").await;
    browser.shows("licences").await;
    browser.shows("2 of 2").await;
    browser.picture("overview").await;
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
    browser.press("Resume").await;
    browser.confirm("Resume").await;
    browser.shows("\"licences\" is in service").await;
    browser.press("Resize").await;
    // Enter confirms.
    browser.fill("#confirm-number", "5\u{e007}").await;
    browser.shows("has the capacity 5").await;
    let listed = http.command(&["list", "--json"]);
    assert!(listed.contains("\"capacity\":5"), "{listed}");
    browser.press("Revoke").await;
    browser.shows("Its holder loses").await;
    browser.picture("confirm").await;
    browser.confirm("Cancel").await;
    let holders = http.command(&["holders", "licences", "--semaphore"]);
    assert_eq!(holders.lines().count(), 2, "it was resized, so both hold: {holders}");
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    browser.end().await;
}

#[tokio::test]
async fn names_are_shown_as_text_whatever_they_are_and_found_among_many() {
    let Some(browser) = Browser::start(400, true).await else { return };
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
    browser.picture("phone").await;
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
    // One of a hundred thousand, behind pages without any.
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
    browser.picture("stopped").await;
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

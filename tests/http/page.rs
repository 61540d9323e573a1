//! The status page in a real browser: Debian's Chromium, driven by its ChromeDriver.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fantoccini::wd::Capabilities;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use signalbox::protocol::Opcode;
use tempfile::TempDir;

use super::client::HttpDaemon;
use crate::support::daemon::{SIGNALBOX, open_directory, works};
use crate::support::ports::free_ports;
use crate::support::{OK, frame, named, skipped};

/// How long something may take to appear.
const SOON: Duration = Duration::from_secs(20);

/// A name that would do something if it were markup, with characters that hide or turn text.
const HOSTILE: &str = "<img src=x onerror=document.title='owned'>\u{202e}\u{7}evil&amp;";

/// How the page shows the characters of that name which nobody could see.
const ESCAPED: [&str; 2] = ["\\u{202e}", "\\u{7}"];

/// A browser, which ends with this.
struct Browser {
    driver: Child,
    page: Client,
    _profile: TempDir,
}

impl Browser {
    /// `None`, and a line that says so, if there is no browser.
    async fn start(width: u32, is_dark: bool) -> Option<Self> {
        if !works("chromedriver", &["--version"]) {
            skipped("chromedriver is missing; install the packages chromium and chromium-driver");
            return None;
        }
        let [port] = free_ports();
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={port}")).stdout(Stdio::null()).stderr(Stdio::null());
        let driver = command.spawn().unwrap();
        let profile = tempfile::tempdir().unwrap();
        let mut arguments: Vec<String> = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
        ]
        .map(str::to_owned)
        .to_vec();
        arguments.push(format!("--window-size={width},900"));
        arguments.push(format!("--user-data-dir={}", profile.path().display()));
        if is_dark {
            arguments.push("--force-dark-mode".to_owned());
            arguments.push("--blink-settings=preferredColorScheme=0".to_owned());
        }
        let options = json!({ "goog:chromeOptions": { "args": arguments } });
        let capabilities: Capabilities = serde_json::from_value(options).unwrap();
        let address = format!("http://127.0.0.1:{port}");
        let page = eventually_async("the browser starts", async || {
            let mut builder = ClientBuilder::new(HttpConnector::new());
            builder.capabilities(capabilities.clone()).connect(&address).await.ok()
        })
        .await;
        Some(Self { driver, page, _profile: profile })
    }

    async fn open(&self, http: &HttpDaemon, view: &str) {
        self.page.goto(&format!("http://{}/#{view}", http.address)).await.unwrap();
    }

    /// Waits until the text of the page has this.
    async fn shows(&self, what: &str) {
        let found = tokio::time::timeout(SOON, async {
            while !self.text().await.contains(what) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        if found.await.is_err() {
            panic!("{what:?} does not show: {}", self.text().await);
        }
    }

    async fn text(&self) -> String {
        match self.page.find(Locator::Css("body")).await {
            Ok(body) => body.text().await.unwrap_or_default(),
            Err(_) => String::new(),
        }
    }

    /// Presses the button with this text, once it can be pressed.
    async fn press(&self, text: &str) {
        let button = format!(
            "//button[not(@disabled)][normalize-space(.)='{text}'][not(ancestor::dialog[not(@open)])]"
        );
        let button = self.page.wait().at_most(SOON).for_element(Locator::XPath(&button)).await.unwrap();
        button.click().await.unwrap();
    }

    /// Presses the button with this text in the open dialog.
    async fn confirm(&self, text: &str) {
        let button = format!("//dialog[@open]//button[normalize-space(.)='{text}']");
        let button = self.page.wait().at_most(SOON).for_element(Locator::XPath(&button)).await.unwrap();
        button.click().await.unwrap();
    }

    async fn fill(&self, css: &str, text: &str) {
        let field = self.page.wait().at_most(SOON).for_element(Locator::Css(css)).await.unwrap();
        field.clear().await.unwrap();
        field.send_keys(text).await.unwrap();
    }

    async fn value_of(&self, script: &str) -> Value {
        self.page.execute(script, Vec::new()).await.unwrap()
    }

    /// Saves a picture, if the environment names a directory for it.
    async fn picture(&self, name: &str) {
        if let Some(directory) = std::env::var_os("SIGNALBOX_SCREENSHOTS") {
            let picture = self.page.screenshot().await.unwrap();
            std::fs::write(std::path::Path::new(&directory).join(format!("{name}.png")), picture).unwrap();
        }
    }

    async fn end(self) {
        let _ = self.page.clone().close().await;
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

async fn eventually_async<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    for _ in 0..200 {
        if let Some(found) = ask().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{what}: not within the time")
}

/// A daemon with a token that may administer.
fn start() -> (HttpDaemon, String, TempDir) {
    let directory = open_directory();
    let file = directory.path().join("tokens.toml");
    let create =
        ["token", "create", "admin", "--rights", "read,acquire,administer", "--file", file.to_str().unwrap()];
    let output = Command::new(SIGNALBOX).args(create).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let token = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let (http, config) =
        HttpDaemon::with(&format!("enable = true\n[access]\ntokens = '{}'\n", file.display()));
    // The server has read it.
    drop(config);
    (http, token, directory)
}

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
    browser.open(&http, "/names?sort=in_use").await;
    browser.shows("of 100,003").await;
    for part in ESCAPED.into_iter().chain(["<img src=x onerror=", "&amp;", "(65,535 bytes)", "bytes fffe"]) {
        let part = if part == "bytes fffe" { "bytes 6279746573" } else { part };
        browser.shows(part).await;
    }
    assert_eq!(browser.value_of("return document.images.length").await, 1, "the icon alone");
    assert_ne!(browser.value_of("return document.title").await, "owned");
    browser.picture("phone").await;
    // The page is as wide as the phone.
    let too_wide = "return document.documentElement.scrollWidth > document.documentElement.clientWidth";
    assert_eq!(browser.value_of(too_wide).await, false);

    browser.fill("form.search input", "job-99999\u{e007}").await;
    browser.shows("1 to 1 of 1").await;
    browser.shows("job-99999").await;
    browser.open(&http, "/names?offset=99900&search=job-").await;
    browser.shows("99,901 to 100,000 of 100,000").await;
    browser.press("Previous").await;
    browser.shows("99,801 to 99,900 of 100,000").await;

    // The name of 64 KiB has a page of its own, which is found by its link.
    browser.open(&http, "/names?search=xxx").await;
    let link = browser.page.wait().at_most(SOON).for_element(Locator::Css("tbody a")).await.unwrap();
    link.click().await.unwrap();
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

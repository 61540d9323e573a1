//! A real browser, Debian's Chromium, which its ChromeDriver drives, and a daemon for it.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fantoccini::wd::Capabilities;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::HttpDaemon;
use crate::support::daemon::{SIGNALBOX, open_directory, works};
use crate::support::ports::free_ports;
use crate::support::skipped;

/// How long something may take to appear.
pub const SOON: Duration = Duration::from_secs(60);

/// A running browser, which is killed when this is dropped.
pub struct Browser {
    driver: Child,
    pub page: Client,
    _profile: TempDir,
}

impl Browser {
    /// A browser with a window of this width. `None`, with a line on standard error, if there is no browser.
    pub async fn start(width: u32, is_dark: bool) -> Option<Self> {
        Self::launch(json!({ "args": arguments([&*format!("--window-size={width},900")], is_dark) })).await
    }

    /// The browser of a phone, or `None` as above. A window has a minimum width, which is more than that of phones.
    pub async fn phone(is_dark: bool) -> Option<Self> {
        let screen = json!({ "width": 390, "height": 844, "pixelRatio": 1 });
        Self::launch(
            json!({ "args": arguments([], is_dark), "mobileEmulation": { "deviceMetrics": screen } }),
        )
        .await
    }

    /// A browser with further arguments, or `None` as above.
    pub async fn with(further: impl IntoIterator<Item = &str>) -> Option<Self> {
        Self::launch(json!({ "args": arguments(further, false) })).await
    }

    async fn launch(mut options: Value) -> Option<Self> {
        if !works("chromedriver", &["--version"]) {
            skipped("chromedriver is missing; install the packages chromium and chromium-driver");
            return None;
        }
        let [port] = free_ports();
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={port}")).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let driver = command.spawn().unwrap();
        let profile = tempfile::tempdir().unwrap();
        let arguments = options["args"].as_array_mut().unwrap();
        arguments.push(format!("--user-data-dir={}", profile.path().display()).into());
        let capabilities = json!({ "goog:chromeOptions": options });
        let capabilities: Capabilities = serde_json::from_value(capabilities).unwrap();
        let address = format!("http://127.0.0.1:{port}");
        let page = eventually_async("the browser starts", async || {
            let mut builder = ClientBuilder::new(HttpConnector::new());
            builder.capabilities(capabilities.clone()).connect(&address).await.ok()
        })
        .await;
        Some(Self { driver, page, _profile: profile })
    }

    pub async fn open(&self, http: &HttpDaemon, view: &str) {
        self.page.goto(&format!("http://{}/#{view}", http.address)).await.unwrap();
    }

    /// Waits until the text of the page contains this.
    pub async fn shows(&self, what: &str) {
        let found = tokio::time::timeout(SOON, async {
            while !self.text().await.contains(what) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        if found.await.is_err() {
            panic!("not shown: {what:?}: {}", self.text().await);
        }
    }

    /// The visible text of the page. The WebDriver's own command for it keeps the page busy for minutes if it has many rows.
    pub async fn text(&self) -> String {
        let shown = self.page.execute("return document.body?.innerText", Vec::new()).await;
        shown.ok().as_ref().and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// Presses the button with this text, once it can be pressed.
    pub async fn press(&self, text: &str) {
        let button = format!(
            "//button[not(@disabled)][normalize-space(.)='{text}'][not(ancestor::dialog[not(@open)])]"
        );
        self.click(Locator::XPath(&button)).await;
    }

    /// Presses the button with this text in the open dialog.
    pub async fn confirm(&self, text: &str) {
        self.click(Locator::XPath(&format!("//dialog[@open]//button[normalize-space(.)='{text}']"))).await;
    }

    /// Clicks an element, once there is one. The page may replace it in between; then the new one is clicked.
    pub async fn click(&self, locator: Locator<'_>) {
        let what = format!("{locator:?} can be clicked");
        eventually_async(&what, async || self.page.find(locator).await.ok()?.click().await.ok()).await;
    }

    pub async fn fill(&self, css: &str, text: &str) {
        eventually_async(&format!("{css} can be filled"), async || {
            let field = self.page.find(Locator::Css(css)).await.ok()?;
            field.clear().await.ok()?;
            field.send_keys(text).await.ok()
        })
        .await;
    }

    pub async fn value_of(&self, script: &str) -> Value {
        self.page.execute(script, Vec::new()).await.unwrap()
    }

    /// Saves a picture for the documents (`docs/page-NAME.png`), if the environment names a directory for it.
    pub async fn picture(&self, name: &str) {
        if let Some(directory) = std::env::var_os("SIGNALBOX_SCREENSHOTS") {
            let picture = self.page.screenshot().await.unwrap();
            let file = format!("page-{name}.png");
            std::fs::write(std::path::Path::new(&directory).join(file), picture).unwrap();
        }
    }

    pub async fn end(self) {
        let _ = self.page.clone().close().await;
    }
}

/// The arguments of every browser, and further ones.
fn arguments<'a>(further: impl IntoIterator<Item = &'a str>, is_dark: bool) -> Vec<&'a str> {
    let always = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ];
    let dark = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"];
    always.into_iter().chain(further).chain(dark.into_iter().filter(|_| is_dark)).collect()
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser is in the group of its driver, and would stay after a test that fails.
        let group = Pid::from_raw(self.driver.id().try_into().expect("a number of a process"));
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.driver.wait();
    }
}

pub async fn eventually_async<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let found = tokio::time::timeout(SOON, async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// A daemon with a token that may administer.
pub fn start() -> (HttpDaemon, String, TempDir) {
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

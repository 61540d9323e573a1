//! Hostile pages in a real browser: what they send from the browser of a visitor changes nothing, and they learn nothing.
//!
//! `tests/http/hostile.rs` sends the headers that a browser would send. Here the browser decides what it sends and what a page may see
//! of the answers, so these tests also check the headers by which the server forbids other sites to use its answers.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use fantoccini::Locator;
use serde_json::{Value, json};

use crate::browser::{Browser, eventually_async, start};
use crate::client::HttpDaemon;

const PAGE: &str = include_str!("hostile_page.html");

/// The name of a semaphore, which no hostile page may learn.
const SECRET: &str = "secret-gpu";

/// The declaration that hostile pages try to make.
const CHANGE: &str = r#"{"name": "owned", "capacity": 9}"#;

/// A name of the attacker that resolves to this machine.
const EVIL: &str = "evil.test";

/// Makes the browser resolve that name.
const RESOLVE: &str = "--host-resolver-rules=MAP evil.test 127.0.0.1";

/// The page learns nothing from an attempt.
const REFUSED: &str = "refused";

/// The server of the attacker. It protects nothing that it answers, so that attempts against itself succeed.
struct HostileSite {
    address: SocketAddr,
}

impl HostileSite {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A browser also opens connections on which it sends nothing.
                std::thread::spawn(move || answer(stream));
            }
        });
        Self { address }
    }

    fn origin(&self, host: &str) -> String {
        format!("http://{host}:{}", self.address.port())
    }

    /// The address of the page that attacks a server with a token.
    fn page(&self, host: &str, target: &str, token: &str) -> String {
        format!("{}/?target={target}&token={token}", self.origin(host))
    }
}

/// Answers one request of a browser. `None` if the browser has closed the connection before.
fn answer(stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length, mut is_image) = (String::new(), 0, false);
    reader.read_line(&mut first).ok()?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().to_ascii_lowercase().split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse().ok()?,
            Some(("accept", kinds)) => is_image = kinds.trim().starts_with("image/"),
            Some(_) => {}
            None => break,
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    let path = first.split(' ').nth(1)?;
    let (kind, body) = match path.split('?').next()? {
        "/" => ("text/html", PAGE),
        "/page.js" => ("text/javascript", "window.included = true;"),
        "/page.css" => ("text/css", "h1 { color: red }"),
        _ if is_image => ("image/svg+xml", "<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'/>"),
        _ => ("application/json", "{}"),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    reader.into_inner().write_all(format!("{head}{body}").as_bytes()).ok()
}

/// The state of the daemon that a page might change.
fn state(http: &HttpDaemon) -> Value {
    http.get("/api/v1/declared").json()
}

/// A daemon with a secret, and a token that may change everything.
fn victim() -> (HttpDaemon, String, tempfile::TempDir) {
    let (mut http, token, directory) = start();
    http.command(&["declare", SECRET, "--capacity", "4"]);
    (http, token, directory)
}

/// Checks that the daemon is as it was, and that the change which the pages tried can be made with their token.
fn assert_unchanged(http: &HttpDaemon, before: &Value, token: &str) {
    assert_eq!(state(http), *before);
    let bearer = format!("Bearer {token}");
    let made = http.post("/api/v1/declare", &[("Authorization", &bearer)], CHANGE);
    assert_eq!(made.status, 200, "the attempts could not have succeeded: {}", made.text());
}

/// Opens a page that attacks, and returns what the page has learned from each attempt.
async fn attempts(browser: &Browser, page: &str) -> BTreeMap<String, String> {
    browser.page.goto(page).await.unwrap();
    let outcome = eventually_async("the page has tried everything", async || {
        Some(browser.value_of("return window.outcome ?? null").await).filter(|outcome| !outcome.is_null())
    });
    serde_json::from_value(outcome.await).unwrap()
}

/// The address and the text of what the frame in the page shows.
async fn framed(browser: &Browser) -> (String, String) {
    let frame = browser.page.find(Locator::Css("iframe")).await.unwrap();
    frame.enter_frame().await.unwrap();
    let address = browser.value_of("return document.URL").await.as_str().unwrap().to_owned();
    let text = browser.text().await;
    browser.page.clone().enter_parent_frame().await.unwrap();
    (address, text)
}

#[tokio::test]
async fn a_hostile_page_changes_nothing_and_learns_nothing() {
    let Some(browser) = Browser::with([RESOLVE]).await else { return };
    let ((http, token, _directory), site) = (victim(), HostileSite::start());
    let before = state(&http);
    let target = format!("http://{}", http.address);
    // Another port of the same host, and another host.
    for host in ["127.0.0.1", EVIL] {
        let own = site.origin(host);
        for (attempt, learned) in attempts(&browser, &site.page(host, &own, &token)).await {
            assert_ne!(learned, REFUSED, "this test would not notice that a page can {attempt}");
        }
        let (address, text) = framed(&browser).await;
        assert_eq!((address, text), (format!("{own}/"), "A hostile page".to_owned()));

        for (attempt, learned) in attempts(&browser, &site.page(host, &target, &token)).await {
            assert_eq!(learned, REFUSED, "a page of {own} can {attempt}");
        }
        let (address, text) = framed(&browser).await;
        assert!(address.starts_with("chrome-error:"), "a page of {own} frames {address}: {text}");

        // The visitor sees the answer, and the page does not.
        browser.value_of(&format!("submitForm('{target}')")).await;
        browser.shows("origin_not_allowed").await;
    }
    assert_unchanged(&http, &before, &token);
    browser.end().await;
}

/// In a browser that lets pages send and read everything, the server still sees which page makes a change.
#[tokio::test]
async fn a_change_from_a_hostile_page_is_refused_although_the_browser_permits_it() {
    let Some(browser) = Browser::with([RESOLVE, "--disable-web-security"]).await else { return };
    let ((http, token, _directory), site) = (victim(), HostileSite::start());
    let before = state(&http);
    let target = format!("http://{}", http.address);
    for host in ["127.0.0.1", EVIL] {
        let learned = attempts(&browser, &site.page(host, &target, &token)).await;
        assert!(learned["read"].starts_with("status 200"), "the browser protects the server: {learned:?}");
        for attempt in ["change with a token", "change", "read by POST"] {
            let refusal = &learned[attempt];
            let is_refused = refusal.starts_with("status 403") && refusal.contains("origin_not_allowed");
            assert!(is_refused, "{attempt} from {host}: {refusal}");
        }
    }
    assert_unchanged(&http, &before, &token);
    browser.end().await;
}

/// The attacker's name resolves to the daemon, so for the browser its answers belong to the attacker's page.
#[tokio::test]
async fn a_page_whose_name_was_made_to_lead_here_learns_nothing() {
    let Some(browser) = Browser::with([RESOLVE]).await else { return };
    let (http, token, _directory) = victim();
    let before = state(&http);
    browser.page.goto(&format!("http://{EVIL}:{}/", http.address.port())).await.unwrap();
    browser.shows("host_not_allowed").await;
    assert_eq!(browser.value_of("return location.hostname").await, EVIL);
    let script = "const [token, body, done] = arguments;
        const bearer = { Authorization: `Bearer ${token}` };
        const post = { method: 'POST', headers: { ...bearer, 'Content-Type': 'application/json' }, body };
        const ask = async (path, options) => {
            const answer = await fetch(path, options);
            return [path, answer.status, await answer.text()];
        };
        const paths = ['/', '/page.js', '/api/v1/store', '/metrics', '/api/v1/status', '/api/v1/names', '/api/v1/declared'];
        Promise.all([
            ...paths.map((path) => ask(path)),
            ask('/api/v1/declared', { headers: bearer }),
            ask('/api/v1/names', { ...post, body: '{}' }),
            ask('/api/v1/declare', post),
        ]).then(done, (error) => done(`${error}`));";
    let answers = browser.page.execute_async(script, vec![json!(token), json!(CHANGE)]).await.unwrap();
    let answers: Vec<(String, u16, String)> =
        serde_json::from_value(answers.clone()).unwrap_or_else(|error| panic!("{error}: {answers}"));
    assert_eq!(answers.len(), 10);
    for (path, status, text) in answers {
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path}: {text}"));
        assert_eq!((status, &answer["error"]["code"]), (421, &json!("host_not_allowed")), "{path}");
        assert!(!text.contains(SECRET), "{path}: {text}");
    }
    assert_unchanged(&http, &before, &token);
    browser.end().await;
}

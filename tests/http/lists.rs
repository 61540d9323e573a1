//! The lists of the JSON API, compared with what the command line prints.

use serde_json::{Value, json};

use crate::client::HttpDaemon;
use crate::support::eventually;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The names of a page.
fn names(page: &Value) -> Vec<&str> {
    page["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

/// A page, once the copy of names has these many.
#[track_caller]
fn page_with(http: &HttpDaemon, query: &str, total: u64) -> Value {
    let mut page = Value::Null;
    eventually("the names are complete", || {
        page = http.get(&format!("/api/v1/names?{query}")).json();
        page["total"] == total && page["complete"] == true
    });
    page
}

#[test]
fn names_come_page_by_page_in_the_order_of_the_request() {
    let mut http = HttpDaemon::start();
    let (mut counter, mut semaphore) = (http.daemon.counter(), http.daemon.semaphore());
    for number in 0..250_u32 {
        counter.acquire(format!("job/{number:03}").as_bytes(), 1 + number % 7, 10);
    }
    semaphore.acquire(b"gpu", 2, 4);
    let first = page_with(&http, "limit=3", 251);
    assert_eq!(names(&first), ["gpu", "job/000", "job/001"]);
    assert_eq!(
        first["items"][0],
        json!({"kind": "semaphore", "name": "gpu", "in_use": 2, "capacity": 4, "available": 2, "peak": 2, "waiting": 0})
    );
    assert_eq!(
        (&first["items"][1]["kind"], &first["items"][1]["capacity"]),
        (&json!("counter"), &Value::Null)
    );
    let middle = page_with(&http, "kind=counter&offset=100&limit=2", 250);
    assert_eq!(names(&middle), ["job/100", "job/101"]);
    assert_eq!(names(&page_with(&http, "kind=counter&offset=249", 250)), ["job/249"]);
    assert_eq!(names(&page_with(&http, "offset=1000", 251)), [""; 0]);
    assert_eq!(names(&page_with(&http, "order=desc&limit=1", 251)), ["job/249"]);
    assert_eq!(names(&page_with(&http, "sort=in_use&limit=2", 251)), ["job/006", "job/013"]);
    assert_eq!(names(&page_with(&http, "prefix=job%2F24&limit=1", 10)), ["job/240"]);
    assert_eq!(names(&page_with(&http, "search=p", 1)), ["gpu"]);
    assert_eq!(page_with(&http, "limit=0", 251)["items"], json!([]));
}

#[test]
fn a_name_of_any_bytes_can_be_read_and_asked_for() {
    let mut http = HttpDaemon::start();
    let mut counter = http.daemon.counter();
    let long = vec![0xfe; 65_535];
    let hostile: [&[u8]; 7] = [
        b"..",
        b"a/../b?c#d",
        b"<script>alert(1)</script>",
        "\u{202e}\u{0}".as_bytes(),
        b"\xff\x00",
        &long,
        b"%2e",
    ];
    for name in hostile {
        counter.acquire(name, 1, 2);
    }
    let page = page_with(&http, "", hostile.len() as u64);
    for item in page["items"].as_array().unwrap() {
        let name = match (&item["name"], &item["name_hex"]) {
            (Value::String(text), Value::Null) => text.clone().into_bytes(),
            (Value::Null, Value::String(digits)) => {
                let pairs = digits.as_bytes().chunks(2);
                pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
            }
            other => panic!("{other:?}"),
        };
        assert!(hostile.contains(&&name[..]));
        let mut question = item.clone();
        question.as_object_mut().unwrap().retain(|key, _| key.starts_with("name"));
        let found = http.post("/api/v1/name", &[], &question.to_string()).json();
        let mut usage = found["items"][0].clone();
        for key in ["declared", "holders", "holders_total", "queue"] {
            assert!(usage.as_object_mut().unwrap().remove(key).is_some(), "{key}");
        }
        assert_eq!(usage, *item);
    }
    let by_url = http.get("/api/v1/name?name_hex=ff00").json();
    assert_eq!(by_url["items"][0]["name_hex"], "ff00");
}

#[test]
fn objects_are_those_of_the_command_line() {
    let mut http = HttpDaemon::start();
    http.command(&["declare", "gpu", "--capacity", "4", "--slots", "--label", "room 3"]);
    http.command(&["acquire", "gpu=3/", "--lease", "1h"]);
    let listed = lines(&http.command(&["list", "--json"]));
    assert_eq!(http.get("/api/v1/declared").json()["items"], Value::from(listed));

    let mut status = lines(&http.command(&["status", "gpu", "--json"])).remove(0);
    let mut found = http.get("/api/v1/name?name=gpu").json()["items"][0].take();
    assert_eq!(found.as_object_mut().unwrap().remove("holders_total"), Some(json!(1)));
    // The command line does not print how long leases last.
    let left = found["holders"][0].as_object_mut().unwrap().remove("ttl_left").unwrap();
    assert!((3_500.0..=3_600.0).contains(&left.as_f64().unwrap()), "{left}");
    assert_eq!(found, status);

    let mut holders = http.get("/api/v1/holders?kind=semaphore&name=gpu").json();
    holders["items"][0].as_object_mut().unwrap().remove("ttl_left").unwrap();
    assert_eq!((&holders["items"], &holders["total"]), (&status["holders"].take(), &json!(1)));
    assert_eq!(http.get("/api/v1/waiters?kind=semaphore&name=gpu").json()["items"], json!([]));

    let printed = lines(&http.command(&["sessions", "--json"])).remove(0);
    let sessions = http.get("/api/v1/sessions").json();
    let leased = &sessions["items"][0];
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(leased), keys(&printed));
    assert!(leased["session"].is_string() && holders["items"][0]["session"].is_string(), "{leased}");
    assert_eq!(
        (&leased["kind"], &leased["session"], &leased["grants"]),
        (&json!("leased"), &printed["session"], &json!(1))
    );

    let stats: Value = serde_json::from_str(&http.command(&["stats", "--json"])).unwrap();
    let answer = http.get("/api/v1/stats?kind=counter").json();
    assert_eq!(keys(&answer), keys(&stats));
    assert_eq!(answer["grants"], 1);
}

#[test]
fn the_status_has_the_figures_of_the_server() {
    let mut http = HttpDaemon::start();
    let mut counter = http.daemon.counter();
    counter.acquire(b"a", 1, 1);
    let mut status = Value::Null;
    eventually("the acquire is counted", || {
        status = http.get("/api/v1/status").json();
        status["server"]["counters"]["acquires"] == 1
    });
    assert_eq!((&status["state"], &status["cluster"]), (&json!("serving"), &Value::Null));
    assert_eq!(
        (&status["server"]["counters"]["names"], &status["server"]["durable"]),
        (&json!(1), &json!(false))
    );
    assert_eq!(http.get("/api/v1/store").json()["kind"], "memory");
    assert_eq!(http.get("/api/v1/cluster").json(), Value::Null);
    assert_eq!(http.get("/api/v1/refusals").json()["counters"]["names"], 0);
    assert_eq!(http.get("/api/v1/sysv/sets").json()["items"], json!([]));
    assert_eq!(http.get("/api/v1/sysv/users?id=1").status, 404);
}

//! The lists of the JSON API, compared with what the command line prints.

use std::process::Command;

use serde_json::{Value, json};

use crate::client::HttpDaemon;
use crate::support::caller::{Caller, LONG, one_of};
use crate::support::daemon::SIGNALBOX;
use crate::support::{OK, eventually};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The names of a page.
fn names(page: &Value) -> Vec<&str> {
    page["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

/// All pages of a query, one after the other.
#[track_caller]
fn pages(http: &HttpDaemon, query: &str) -> Vec<Value> {
    let mut pages = vec![http.get(&format!("/api/v1/names?{query}")).json()];
    while let Some(next) = pages.last().unwrap()["next"].as_str() {
        pages.push(http.get(&format!("/api/v1/names?{query}&after={next}")).json());
    }
    pages
}

#[test]
fn names_come_page_by_page_each_once() {
    let mut http = HttpDaemon::start();
    let (mut counter, mut semaphore) = (http.daemon.counter(), http.daemon.semaphore());
    let jobs: Vec<_> = (0..250).map(|number| format!("job/{number:03}")).collect();
    jobs.iter().for_each(|name| assert_eq!(counter.acquire(name.as_bytes(), 1, 10).status, OK));
    semaphore.acquire(b"gpu", 2, 4);
    let gpu = pages(&http, "prefix=gp");
    assert_eq!(
        gpu,
        [json!({
            "items": [{
                "kind": "semaphore", "name": "gpu", "in_use": 2, "capacity": 4, "available": 2, "peak": 2, "waiting": 0
            }],
            "limit": 100,
            "next": null,
        })]
    );
    for (query, expected) in [
        ("limit=7", [&["gpu".to_owned()], &jobs[..]].concat()),
        ("limit=250", [&["gpu".to_owned()], &jobs[..]].concat()),
        ("kind=counter&limit=1", jobs.clone()),
        ("kind=counter&prefix=job%2F24&limit=4", jobs[240..].to_vec()),
        ("kind=semaphore&prefix=job", Vec::new()),
    ] {
        let pages = pages(&http, query);
        let mut found = Vec::new();
        for page in &pages {
            let names = names(page);
            assert!(names.len() <= page["limit"].as_u64().unwrap() as usize && names.is_sorted(), "{page}");
            found.extend(names.into_iter().map(str::to_owned));
        }
        found.sort();
        assert_eq!(found, expected, "{query}");
    }
    assert_eq!(http.get("/api/v1/names?limit=0").json()["items"], json!([]));
    for wrong in ["after=x", "after=counter.0.g", "list=waiting&after=counter.0.", "list=paused", "offset=1"]
    {
        assert_eq!(http.get(&format!("/api/v1/names?{wrong}")).code(), "bad_request", "{wrong}");
    }
}

#[test]
fn lists_have_the_names_that_need_attention() {
    let mut http = HttpDaemon::start();
    for (name, arguments) in [("busy", &["--slots"][..]), ("idle", &[]), ("late", &[]), ("first", &[])] {
        http.command(&[&["declare", name, "--capacity", "2"][..], arguments].concat());
    }
    http.command(&["acquire", "busy=2", "--lease", "1h"]);
    let mut waiting = Vec::new();
    // The last name in the order of names waits first, and the other one has more waiters.
    for (name, count) in [("late", 1), ("first", 2)] {
        http.command(&["pause", name]);
        for _ in 0..count {
            let mut command = Command::new(SIGNALBOX);
            command.args(["run", name, "--wait", "max", "--", "true"]);
            command.env("SIGNALBOX_SERVER", http.daemon.address("counter").to_string());
            waiting.push(command.spawn().unwrap());
            eventually("it waits", || {
                http.get("/api/v1/stats?kind=semaphore").json()["waiters"] == waiting.len()
            });
        }
    }
    let list = |path: &str, list: &str| http.get(&format!("/api/v1/{path}?list={list}")).json();
    let waited = list("names", "waiting");
    assert_eq!((names(&waited), &waited["items"][1]["waiting"]), (vec!["late", "first"], &json!(2)));
    assert_eq!(names(&http.get("/api/v1/names?list=waiting&limit=1").json()), ["late"]);
    assert_eq!(names(&http.get("/api/v1/names?list=waiting&prefix=f").json()), ["first"]);
    assert_eq!(names(&http.get("/api/v1/names?list=waiting&kind=counter").json()), [""; 0]);
    assert_eq!(names(&list("declared", "paused")), ["first", "late"]);
    assert_eq!(names(&list("declared", "above_capacity")), [""; 0]);
    assert_eq!(names(&list("declared", "out_of_service")), [""; 0]);
    assert_eq!(names(&list("declared", "no_capacity")), [""; 0]);
    http.command(&["resize", "idle", "0"]);
    http.command(&["slot", "busy", "0", "--out"]);
    http.command(&["resize", "busy", "1"]);
    let list = |list: &str| http.get(&format!("/api/v1/declared?list={list}")).json();
    assert_eq!(names(&list("above_capacity")), ["busy"]);
    assert_eq!(names(&list("no_capacity")), ["idle"]);
    assert_eq!((names(&list("out_of_service")), &list("out_of_service")["total"]), (vec!["busy"], &json!(1)));
    for name in ["late", "first"] {
        http.command(&["resume", name]);
    }
    waiting.iter_mut().for_each(|waiting| assert!(waiting.wait().unwrap().success()));
    eventually("none waits", || names(&http.get("/api/v1/names?list=waiting").json()).is_empty());
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
    let pages = pages(&http, "");
    let items: Vec<_> = pages.iter().flat_map(|page| page["items"].as_array().unwrap()).collect();
    assert_eq!(items.len(), hostile.len());
    for item in items {
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
    http.command(&["acquire", "gpu=3", "--lease", "1h"]);
    // The command line lists more fields of each name.
    let listed = lines(&http.command(&["list", "--json"])).remove(0);
    let declared = http.get("/api/v1/declared").json()["items"][0].take();
    let (declared, listed) = (declared.as_object().unwrap(), listed.as_object().unwrap());
    assert!(declared.iter().all(|(key, value)| listed.get(key) == Some(value)), "{declared:?} {listed:?}");

    let mut status = lines(&http.command(&["status", "gpu", "--json"])).remove(0);
    let mut found = http.get("/api/v1/name?name=gpu").json()["items"][0].take();
    assert_eq!(found.as_object_mut().unwrap().remove("holders_total"), Some(json!(1)));
    for holders in [&mut found, &mut status] {
        let left = holders["holders"][0].as_object_mut().unwrap().remove("ttl_left").unwrap();
        assert!((3_500.0..=3_600.0).contains(&left.as_f64().unwrap()), "{left}");
    }
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

/// Opens a session that holds these names.
fn session_with(holder: &mut Caller, names: &[&[u8]], ttl_ms: u32) -> u64 {
    let session = holder.open(ttl_ms).session;
    names.iter().for_each(|name| drop(holder.take(one_of(1, name))));
    session
}

#[test]
fn sessions_are_sorted_over_all_pages() {
    let mut http = HttpDaemon::start();
    let mut holder = Caller::new(http.daemon.counter());
    // More than one page; the last ones have the most grants and the shortest lease.
    for _ in 0..1_200 {
        holder.open(60_000);
    }
    let second = session_with(&mut holder, &[b"a"], 50_000);
    let first = session_with(&mut holder, &[b"b", b"c"], 40_000);
    let sessions = |sort: &str| {
        let page = http.get(&format!("/api/v1/sessions?limit=1000&sort={sort}&search=leased")).json();
        assert_eq!(
            (&page["total"], &page["next"], &page["offset"]),
            (&json!(1_202), &Value::Null, &json!(0)),
            "{sort}"
        );
        let items = page["items"].as_array().unwrap();
        assert!(items.len() > 2);
        [0, 1].map(|index| items[index]["session"].as_str().unwrap().to_owned())
    };
    for sort in ["grants", "lease"] {
        assert_eq!(sessions(sort), [first.to_string(), second.to_string()], "{sort}");
    }
    let mut waiter = Caller::new(http.daemon.counter());
    let waiting = waiter.open(60_000).session.to_string();
    waiter.want(one_of(1, b"a"), LONG);
    eventually("a request waits in the first session", || {
        let page = http.get("/api/v1/sessions?limit=1&sort=waiting").json();
        page["items"][0]["session"] == waiting
    });
    let oldest = http.get("/api/v1/sessions?limit=1000&sort=age").json();
    let ages: Vec<_> = oldest["items"].as_array().unwrap().iter().map(|item| item["age"].as_u64()).collect();
    assert!(ages.is_sorted_by(|one, next| one >= next), "{ages:?}");
    assert_eq!(http.get("/api/v1/sessions?sort=age&offset=1").status, 400);
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

#[test]
fn a_client_that_may_read_nothing_gets_no_lists() {
    let ask = |rights: &str| {
        let access = format!("enable = true\n[access]\nnetworks = ['127.0.0.0/8 {rights}']\n");
        let (http, _config) = HttpDaemon::with(&access);
        ["names", "names?list=waiting", "declared"].map(|list| http.get(&format!("/api/v1/{list}")).status)
    };
    assert_eq!(ask("acquire"), [403; 3]);
    assert_eq!(ask("read counter:web/"), [200; 3]);
}

#[test]
fn what_sessions_hold_and_wait_for_is_found_by_session_and_by_client() {
    let mut http = HttpDaemon::start();
    http.command(&["declare", "gpu", "--capacity", "4", "--slots"]);
    let held = http.command(&["acquire", "gpu=3", "tenant:8", "--lease", "1h"]);
    let session =
        held.lines().find_map(|line| line.strip_prefix("export SIGNALBOX_SESSION=")).unwrap().to_owned();
    http.command(&["declare", "paused", "--capacity", "1"]);
    http.command(&["pause", "paused"]);
    let mut command = Command::new(SIGNALBOX);
    command.args(["run", "paused", "--wait", "max", "--", "true"]);
    command.env("SIGNALBOX_SERVER", http.daemon.address("counter").to_string());
    let mut waiting = command.spawn().unwrap();
    eventually("it waits", || http.get("/api/v1/stats?kind=semaphore").json()["waiters"] == 1);

    let mut printed = lines(&http.command(&["status", "--session", &session, "--json"]));
    let mut found = http.get(&format!("/api/v1/held?session={session}")).json();
    assert_eq!(found["total"], 2, "{found}");
    let mut items = found["items"].as_array_mut().unwrap().clone();
    for entries in [&mut printed, &mut items] {
        entries.sort_by_key(|entry| entry["name"].as_str().unwrap().to_owned());
        for entry in entries {
            assert!(entry.as_object_mut().unwrap().remove("ttl_left").unwrap().as_f64().unwrap() > 3_500.0);
        }
    }
    assert_eq!(items, printed);
    let of_client = |client: &str| http.get(&format!("/api/v1/held?client={client}")).json();
    let states = |page: &Value| {
        let items = page["items"].as_array().unwrap().iter();
        items
            .map(|item| {
                (item["name"].as_str().unwrap().to_owned(), item["state"].as_str().unwrap().to_owned())
            })
            .collect::<Vec<_>>()
    };
    let expected = [("gpu", "holds"), ("tenant", "holds"), ("paused", "waits")];
    let expected = expected.map(|(name, state)| (name.to_owned(), state.to_owned()));
    assert_eq!(states(&of_client("127.0.0.0/8")), expected);
    assert_eq!(of_client("127.0.0.2")["total"], 0);
    let page = http.get("/api/v1/held?client=127.0.0.1&limit=1&offset=2").json();
    assert_eq!(
        (states(&page), &page["total"], &page["next"]),
        (expected[2..].to_vec(), &json!(3), &Value::Null)
    );
    assert_eq!(http.get("/api/v1/held?session=18446744073709551615").json()["total"], 0);
    for wrong in ["", "session=1&client=127.0.0.1", "client=somewhere"] {
        assert_eq!(http.get(&format!("/api/v1/held?{wrong}")).code(), "bad_request", "{wrong}");
    }

    // What a connection holds by plain Acquires is found among the names.
    let mut wire = http.daemon.counter();
    assert_eq!(wire.acquire(b"plain", 2, 3).status, OK);
    let holders = http.get("/api/v1/holders?kind=counter&name=plain").json();
    let connection = holders["items"][0]["session"].as_str().unwrap();
    let holds = |connection: &str| http.get(&format!("/api/v1/names?holder={connection}"));
    assert_eq!(names(&holds(connection).json()), ["plain"]);
    assert_eq!(holds(&session).code(), "no_such_session");
    assert_eq!(http.get(&format!("/api/v1/names?list=waiting&holder={connection}")).code(), "bad_request");
    http.command(&["resume", "paused"]);
    assert!(waiting.wait().unwrap().success());
}

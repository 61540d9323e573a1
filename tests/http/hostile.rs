//! Pages of other sites, host names that resolve to this server, and requests that two parsers read differently.

use crate::client::HttpDaemon;

#[test]
fn a_request_for_another_host_is_refused() {
    let (http, _file) = HttpDaemon::with("hosts = 'own.example.org box.example.org'\n");
    let port = http.address.port();
    for host in [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        "127.0.0.1.evil.example".to_owned(),
        "192.0.2.1".to_owned(),
        "[::]".to_owned(),
        "0.0.0.0".to_owned(),
        "2130706433".to_owned(),
        "localhost.evil.example".to_owned(),
        "xbox.example.org".to_owned(),
        "box.example.org.evil.example".to_owned(),
        "example.org".to_owned(),
    ] {
        for path in ["/", "/page.js", "/metrics", "/api/v1/names", "/nothing"] {
            let reply = http.request("GET", path, &[("Host", &host)], "");
            assert_eq!((reply.status, reply.code()), (421, "host_not_allowed".to_owned()), "{host} {path}");
        }
    }
    for host in [
        "localhost",
        "LOCALHOST:80",
        "localhost.",
        "127.0.0.1",
        "[::1]:1",
        "[::ffff:127.0.0.1]",
        "127.9.9.9:8080",
        "Box.example.org:443",
    ] {
        assert_eq!(http.request("GET", "/api/v1/status", &[("Host", host)], "").status, 200, "{host}");
    }
}

#[test]
fn a_request_names_one_host() {
    let http = HttpDaemon::start();
    for request in [
        "GET /api/v1/status HTTP/1.1\r\n\r\n",
        "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        "GET /api/v1/status HTTP/1.1\r\nHost: \r\n\r\n",
        "GET /api/v1/status HTTP/1.1\r\nHost: evil.example@localhost\r\n\r\n",
        "GET /api/v1/status HTTP/1.1\r\nHost: localhost:evil\r\n\r\n",
        "GET /api/v1/status HTTP/1.1\r\nHost: localhost:99999\r\n\r\n",
        "GET /api/v1/status HTTP/1.1\r\nHost: [::1]:+80\r\n\r\n",
        "GET http://evil.example/api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET http://localhost/api/v1/status HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    ] {
        let reply = http.send(request.as_bytes());
        assert_eq!((reply.status, reply.code()), (400, "bad_host".to_owned()), "{request:?}");
    }
    let same = http.send(b"GET http://localhost/api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(same.status, 200);
    let other = http.send(b"GET http://evil.example/api/v1/status HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_eq!(other.status, 421);
}

#[test]
fn pages_of_other_sites_can_send_nothing() {
    let http = HttpDaemon::start();
    let port = http.address.port();
    let own = format!("http://{}", http.address);
    let ask = |headers: &[(&str, &str)]| http.post("/api/v1/names", headers, "{}");
    assert_eq!(ask(&[]).status, 200, "a program sends no origin");
    assert_eq!(ask(&[("Origin", &own), ("Sec-Fetch-Site", "same-origin")]).status, 200);
    assert_eq!(ask(&[("Sec-Fetch-Site", "none")]).status, 200, "a person has entered the address");
    let of_proxy = own.replace("http:", "https:");
    assert_eq!(ask(&[("Origin", &of_proxy)]).status, 200, "a proxy in front may have ended TLS");
    let own_host = http.address.to_string();
    let read =
        http.request("GET", "/api/v1/status", &[("Host", &own_host), ("Origin", "https://evil.example")], "");
    assert_eq!(
        (read.status, read.header("access-control-allow-origin")),
        (200, None),
        "browsers protect answers"
    );
    let other_port = format!("http://127.0.0.1:{}", if port == 1 { 2 } else { port - 1 });
    let [ftp, with_user, as_user, with_path] = [
        format!("ftp://{}", http.address),
        format!("http://user@{}", http.address),
        format!("{own}@evil.example"),
        format!("{own}/"),
    ];
    let origins = [
        &*ftp,
        &with_user,
        &as_user,
        &with_path,
        "file://",
        "null",
        "https://evil.example",
        "http://localhost",
        &*other_port,
        "http://127.0.0.1.evil.example",
        "",
    ];
    for origin in origins {
        let reply = ask(&[("Origin", origin)]);
        assert_eq!((reply.status, reply.code()), (403, "origin_not_allowed".to_owned()), "{origin}");
        assert_eq!(reply.header("access-control-allow-origin"), None);
    }
    assert_eq!(ask(&[("Origin", &own), ("Origin", "https://evil.example")]).status, 403);
    for site in ["cross-site", "same-site"] {
        assert_eq!(ask(&[("Sec-Fetch-Site", site)]).status, 403, "{site}");
    }
    let preflight = [
        ("Host", &*http.address.to_string()),
        ("Origin", "https://evil.example"),
        ("Access-Control-Request-Method", "POST"),
    ];
    let reply = http.request("OPTIONS", "/api/v1/names", &preflight, "");
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (403, None));
}

#[test]
fn changes_need_a_token_also_on_loopback() {
    let mut http = HttpDaemon::start();
    http.command(&["declare", "gpu", "--capacity", "4"]);
    let body = r#"{"name": "gpu", "capacity": 9}"#;
    for path in ["declare", "resize", "pause", "resume", "slot", "remove", "revoke", "delete-counter"] {
        let path = format!("/api/v1/{path}");
        for token in [None, Some("Bearer "), Some("Bearer sbx_unknown"), Some("Basic cm9vdDpyb290")] {
            let headers: Vec<_> = token.map(|token| ("Authorization", token)).into_iter().collect();
            let reply = http.post(&path, &headers, body);
            assert_eq!((reply.status, reply.code()), (401, "unauthorized".to_owned()), "{path} {token:?}");
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        }
        let twice = [("Authorization", "Bearer a"), ("Authorization", "Bearer b")];
        assert_eq!(http.post(&path, &twice, body).status, 401);
        assert_eq!(http.get(&path).status, 405, "{path}");
    }
    let unchanged = &http.get("/api/v1/declared").json()["items"][0];
    assert_eq!(
        (&unchanged["capacity"], &unchanged["paused"]),
        (&serde_json::json!(4), &serde_json::json!(false))
    );
}

#[test]
fn a_body_that_a_form_can_send_is_refused() {
    let http = HttpDaemon::start();
    let host = http.address.to_string();
    for kind in [
        Some("text/plain"),
        Some("application/x-www-form-urlencoded"),
        Some("multipart/form-data; boundary=a"),
        Some("application/json; charset=utf-16"),
        Some("application/jsonp"),
        Some("text/plain, application/json"),
        None,
    ] {
        let kind = kind.map(|kind| ("Content-Type", kind));
        let headers: Vec<_> = [("Host", &*host)].into_iter().chain(kind).collect();
        let reply = http.request("POST", "/api/v1/names", &headers, "{}");
        assert_eq!((reply.status, reply.code()), (415, "content_type".to_owned()), "{kind:?}");
    }
    let twice = [("Host", &*host), ("Content-Type", "application/json"), ("Content-Type", "text/plain")];
    assert_eq!(http.request("POST", "/api/v1/names", &twice, "{}").status, 415);
    for utf8 in ["Application/JSON; charset=UTF-8", "application/json;charset=\"utf-8\""] {
        let headers = [("Host", &*host), ("Content-Type", utf8)];
        assert_eq!(http.request("POST", "/api/v1/names", &headers, "{}").status, 200, "{utf8}");
    }
    let query = http.post("/api/v1/names?limit=1", &[], "{}");
    assert_eq!((query.status, query.code()), (400, "bad_request".to_owned()));
}

#[test]
fn a_body_with_two_lengths_is_refused() {
    let http = HttpDaemon::start();
    let head = "POST /api/v1/names HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    for lengths in [
        "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n",
        "Content-Length: 2\r\nContent-Length: 3\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Content-Length: +2\r\n",
    ] {
        let reply = http.send(format!("{head}{lengths}\r\n2\r\n{{}}\r\n0\r\n\r\n").as_bytes());
        assert!([400, 411].contains(&reply.status), "{lengths:?}: {reply:?}");
    }
    let chunked =
        http.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n").as_bytes());
    assert_eq!((chunked.status, chunked.code()), (411, "length_required".to_owned()));
}

//! The paths of the API, in one table, which `docs/openapi.json` describes; and the steps of a request: it is checked,
//! authorized, read and answered.
//!
//! A page of another site can make its visitor's browser send requests here. It must not learn anything, and must not
//! change anything:
//!
//! - The host that a request names must be known. A page whose own host name was made to resolve to this server (DNS
//!   rebinding) sends that name. Only [probes](health::is_probe) may name any host or none.
//! - Every POST, and so every change, must have a JSON body. A page can send that to another site only if the other
//!   site permits it (CORS), and nothing here permits it. If the browser names the page's origin, it must be that of
//!   the request's host.
//! - No answer sets a cookie, and no cookie is read.
//!
//! Requests that a proxy on this machine forwards would all seem to come from this machine. The server recognises them
//! by the headers that proxies add.

use std::net::IpAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CONTENT_LENGTH, CONTENT_TYPE, FORWARDED, HOST, HeaderName, HeaderValue, ORIGIN, TRANSFER_ENCODING,
    VIA,
};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, Request, StatusCode};
use tokio::time::timeout;

use super::super::access::Ended;
use super::access::{Peer, Permissions, permissions_of, require_token, shown_token};
use super::answer::{Answer, ApiError, HEADERS, Response};
use super::api;
use super::connections::OpenConnection;
use super::health;
use super::leases;
use super::metrics;
use super::page;
use super::query::Parameters;
use super::request::Context;
use super::shared::Shared;
use signalbox_model::Quoted;

/// Headers that show that a program forwards the request of another client.
static OF_FORWARDED: [HeaderName; 4] =
    [FORWARDED, VIA, HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("x-real-ip")];

static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The longest time for reading the body of a request and answering it.
const REQUEST_MAX: Duration = Duration::from_secs(30);

/// The longest body, in bytes: a name of 64 KiB, each byte of which may take six in JSON.
const BODY_BYTES_MAX: usize = 512 * 1024;

/// The longest time for the body of a request for a lease. The rest of [`REQUEST_MAX`] is for its wait.
const LEASE_BODY_MAX: Duration = REQUEST_MAX.saturating_sub(leases::PARKED_MAX);

/// The longest body, in bytes, with which the connection of a request for a lease counts among those for leases. If the
/// body is longer, the connection counts among the general ones.
const LEASE_BODY_BYTES: u64 = 16 * 1024;

/// A path of the API.
struct Route {
    path: &'static str,
    kind: Kind,
    handler: fn(Context) -> Pin<Box<dyn Future<Output = Answer> + Send>>,
}

/// The kind of a path's requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Reads. May also be a POST with the parameters in its body, because names may be too long for a URL.
    Read,
    /// Changes something, which needs a token.
    Change,
    /// Acquires or renews a lease.
    Lease,
    /// Releases a lease, which needs only its key.
    Release,
}

macro_rules! routes {
    ($($path:literal $kind:ident $handler:path;)*) => {
        &[$(Route { path: $path, kind: Kind::$kind, handler: |context| Box::pin($handler(context)) }),*]
    };
}

impl Route {
    /// Returns whether its requests read, and so may be GETs.
    fn is_read(&self) -> bool {
        self.kind == Kind::Read
    }

    /// Returns whether a node that does not lead forwards the request to the leader, perhaps more than once.
    fn may_be_forwarded(&self) -> bool {
        self.kind != Kind::Change && !OF_THIS_NODE.contains(&self.path)
    }
}

/// The paths that are about the node that receives the request.
const OF_THIS_NODE: [&str; 2] = ["/api/v1/status", "/api/v1/cluster"];

/// All paths of the API.
const ROUTES: &[Route] = routes! {
    "/api/v1/status" Read api::status::status;
    "/api/v1/leader" Read api::status::status;
    "/api/v1/stats" Read api::status::stats;
    "/api/v1/refusals" Read api::status::refusals;
    "/api/v1/store" Read api::status::store;
    "/api/v1/cluster" Read api::status::cluster;
    "/api/v1/names" Read api::names::names;
    "/api/v1/name" Read api::names::name;
    "/api/v1/holders" Read api::lists::holders;
    "/api/v1/waiters" Read api::lists::waiters;
    "/api/v1/sessions" Read api::lists::sessions;
    "/api/v1/held" Read api::lists::held;
    "/api/v1/declared" Read api::lists::declared;
    "/api/v1/declarations" Read api::declarations::export;
    "/api/v1/tokens" Read api::lists::tokens;
    "/api/v1/sysv/sets" Read api::lists::sets;
    "/api/v1/sysv/users" Read api::lists::users;
    "/api/v1/apply" Change api::declarations::apply;
    "/api/v1/declare" Change api::changes::declare;
    "/api/v1/resize" Change api::changes::resize;
    "/api/v1/pause" Change api::changes::pause;
    "/api/v1/resume" Change api::changes::resume;
    "/api/v1/slot" Change api::changes::slot;
    "/api/v1/remove" Change api::changes::remove;
    "/api/v1/revoke" Change api::changes::revoke;
    "/api/v1/cancel" Change api::changes::cancel;
    "/api/v1/delete-counter" Change api::changes::delete_counter;
    "/api/v1/grant" Read api::grants::grant;
    "/api/v1/lease/acquire" Lease leases::acquire;
    "/api/v1/lease/renew" Lease leases::renew;
    "/api/v1/lease/release" Release leases::release;
};

/// Returns the entry of a path of the API.
fn route_of(path: &str) -> Option<&'static Route> {
    ROUTES.iter().find(|route| route.path == path)
}

/// Checks a request, answers it, and adds the headers of every answer. The request is boxed, because each function on
/// the way to its handler would otherwise keep room for it while it waits.
pub(super) async fn handle(
    connection: &Arc<OpenConnection>,
    peer: &Peer,
    request: Box<Request<Incoming>>,
) -> Response {
    connection.shared.requests.add(1);
    let is_forwarded = OF_FORWARDED.iter().any(|name| request.headers().contains_key(name));
    let forwarded = is_forwarded.then(|| peer.forwarded());
    let peer = forwarded.as_ref().unwrap_or(peer);
    let mut response = match check(&connection.shared, peer, &request) {
        Ok(()) => answer_in_time(connection, peer, request).await,
        Err(error) => error.into(),
    };
    for (name, value) in &HEADERS {
        response.headers_mut().insert(name, value.clone());
    }
    response
}

/// Refuses a request that a page of another site may have sent, or that is ambiguous.
fn check(shared: &Shared, peer: &Peer, request: &Request<Incoming>) -> Result<(), ApiError> {
    let headers = request.headers();
    // A proxy in front may read a request differently if it has both a Content-Length and a Transfer-Encoding. hyper drops
    // one of the two headers, so this cannot be seen here, and every Transfer-Encoding is refused.
    if headers.contains_key(TRANSFER_ENCODING) {
        return Err(ApiError::new(
            StatusCode::LENGTH_REQUIRED,
            "length_required",
            "a body in chunks is not accepted; send it with a Content-Length",
        ));
    }
    if health::is_probe(request.method(), request.uri().path()) {
        return Ok(());
    }
    // If plain requests are accepted only from this machine, the connection comes from this machine, but the client of a
    // forwarded request may be elsewhere.
    let tls = shared.rules.tls.get();
    if !peer.is_encrypted && tls.is_some_and(|tls| !tls.permits_plain(peer.client.address)) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "tls_required",
            "the request was forwarded, and the server accepts plain requests of clients on its machine only; let the \
             proxy connect over TLS, or set tls.plain to \"allow\"",
        ));
    }
    let host = host_of(request)?;
    if !is_known(&host, peer.local, &shared.config().http.hosts) {
        return Err(ApiError::new(
            StatusCode::MISDIRECTED_REQUEST,
            "host_not_allowed",
            format!(
                "this server does not know the host {}; use its address, or add the name to http.hosts of the \
                 configuration",
                Quoted(host.host().as_bytes())
            ),
        ));
    }
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(());
    }
    check_origin(headers, &host, peer.is_encrypted)?;
    // A POST to any other path is refused by `answer`, which names the methods that are possible.
    let is_post = *request.method() == Method::POST && route_of(request.uri().path()).is_some();
    if is_post { check_content_type(headers) } else { Ok(()) }
}

/// Returns the host that the request is for. The request must have one header Host, and may name the same host in its
/// first line.
fn host_of(request: &Request<Incoming>) -> Result<Authority, ApiError> {
    let wrong = |problem: &str| {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "bad_host",
            format!("{problem}; send one header Host with a host and a port"),
        )
    };
    let mut named = request.headers().get_all(HOST).iter();
    let host = match (named.next(), named.next()) {
        (Some(host), None) => host,
        (None, _) => return Err(wrong("the request has no header Host")),
        (Some(_), Some(_)) => return Err(wrong("the request has several headers Host")),
    };
    let host = host.to_str().ok().and_then(|host| Authority::from_str(host).ok());
    let host = host
        .filter(|host| !host.as_str().contains('@') && has_valid_port(host))
        .ok_or_else(|| wrong("the header Host names no host"))?;
    match request.uri().authority() {
        Some(line) if !line.as_str().eq_ignore_ascii_case(host.as_str()) => {
            Err(wrong("the line of the request and the header Host name different hosts"))
        }
        _ => Ok(host),
    }
}

/// Returns whether the port of a host is valid or missing.
fn has_valid_port(host: &Authority) -> bool {
    let rest = host.as_str().strip_prefix(host.host());
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok();
    rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
}

/// Returns whether a host is this server: loopback, the address that the client has connected to, or a name of the configuration.
/// The port is not compared, because a tunnel may have another one.
fn is_known(host: &Authority, local: IpAddr, names: &[String]) -> bool {
    let name = host.host();
    let name = name.strip_suffix('.').unwrap_or(name);
    let address =
        name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name).parse::<IpAddr>();
    match address.map(|address| address.to_canonical()) {
        Ok(address) => address.is_loopback() || address == local,
        Err(_) => {
            name.eq_ignore_ascii_case("localhost")
                || names.iter().any(|known| known.eq_ignore_ascii_case(name))
        }
    }
}

/// Refuses a request if the browser says that a page of another host sends it.
fn check_origin(headers: &HeaderMap, host: &Authority, is_encrypted: bool) -> Result<(), ApiError> {
    let refused = || {
        ApiError::new(
            StatusCode::FORBIDDEN,
            "origin_not_allowed",
            "a page of another site has sent this request, which only a page of this server may; open the page of this \
             server",
        )
    };
    let mut origins = headers.get_all(ORIGIN).iter();
    if let Some(origin) = origins.next() {
        let is_ours = origin.to_str().is_ok_and(|origin| is_origin_of(origin, host, is_encrypted));
        if !is_ours || origins.next().is_some() {
            return Err(refused());
        }
    }
    match headers.get(&SEC_FETCH_SITE).map(HeaderValue::as_bytes) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(refused()),
    }
}

/// Returns whether an origin is that of a host. The origin of a request over TLS must be `https` too.
fn is_origin_of(origin: &str, host: &Authority, is_encrypted: bool) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let default_port = match scheme {
        "https" => 443,
        // A proxy in front may have ended TLS, so the origin of a plain connection may be either.
        "http" if !is_encrypted => 80,
        _ => return false,
    };
    let Ok(authority) = Authority::from_str(authority) else { return false };
    let port = |authority: &Authority| authority.port_u16().unwrap_or(default_port);
    !authority.as_str().contains('@')
        && authority.host().eq_ignore_ascii_case(host.host())
        && port(&authority) == port(host)
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let is_json = types.next().and_then(|value| value.to_str().ok()).is_some_and(|value| {
        let (kind, parameters) = value.split_once(';').unwrap_or((value, ""));
        let allowed = ["", "charset=utf-8", "charset=\"utf-8\""];
        kind.trim().eq_ignore_ascii_case("application/json")
            && allowed.iter().any(|allowed| parameters.trim().eq_ignore_ascii_case(allowed))
    });
    if is_json && types.next().is_none() {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "content_type",
        "a POST needs a body of JSON; send Content-Type: application/json",
    ))
}

/// Answers a request within [`REQUEST_MAX`]. It was checked by this node, or by the one that forwards it.
pub(super) async fn answer_in_time(
    connection: &Arc<OpenConnection>,
    peer: &Peer,
    request: Box<Request<Incoming>>,
) -> Response {
    let answered = timeout(REQUEST_MAX, answer(connection, peer, request)).await;
    answered.unwrap_or_else(|_| ApiError::too_slow(REQUEST_MAX).into())
}

async fn answer(connection: &Arc<OpenConnection>, peer: &Peer, request: Box<Request<Incoming>>) -> Response {
    let shared = &connection.shared;
    let path = request.uri().path();
    let (is_get, is_post) =
        (matches!(*request.method(), Method::GET | Method::HEAD), *request.method() == Method::POST);
    if let Some(route) = route_of(path) {
        if is_post || route.is_read() && is_get {
            return answer_api(route, connection, peer, request).await.unwrap_or_else(Response::from);
        }
        return wrong_method(request.method(), if route.is_read() { "GET,HEAD,POST" } else { "POST" });
    }
    let file = page::FILES.iter().find(|file| file.path == path);
    let is_ours = file.is_some() || health::PATHS.contains(&path) || path == "/metrics";
    // A probe needs little memory, so its connection may stay among those for leases.
    if !health::is_probe(request.method(), path) {
        connection.use_for_anything();
    }
    match (path, file) {
        _ if !is_ours => no_such_path(path),
        _ if health::is_default_of_haproxy(request.method(), path) => health::readyz(shared),
        _ if !is_get => wrong_method(request.method(), "GET,HEAD"),
        (_, Some(file)) => file.answer(),
        ("/healthz", _) => health::healthz(),
        ("/readyz", _) => health::readyz(shared),
        _ => {
            metrics::metrics(&connection.connections, peer, request.headers()).unwrap_or_else(Response::from)
        }
    }
}

async fn answer_api(
    route: &Route,
    connection: &Arc<OpenConnection>,
    peer: &Peer,
    request: Box<Request<Incoming>>,
) -> Result<Response, ApiError> {
    // Boxed, so that the memory for receiving is free while the handler waits.
    let answered = match Box::pin(receive(route, connection, peer, request)).await? {
        Received::Forwarded(response) => return Ok(response),
        Received::Whole(context) => (route.handler)(context),
    };
    let answer = match route.kind {
        Kind::Read => {
            let _permit =
                connection.shared.computed.acquire().await.map_err(|error| ApiError::internal(&error))?;
            answered.await
        }
        // The core acquires or releases in one call, so nothing is left half done if the client closes its connection.
        Kind::Lease | Kind::Release => answered.await,
        // If the client closes its connection, this future is dropped, but a change that has begun must be recorded.
        Kind::Change => tokio::spawn(answered).await.unwrap_or_else(|error| Err(ApiError::internal(&error))),
    };
    Ok(answer?.into())
}

/// The outcome of receiving a request.
enum Received {
    /// The leader has answered it.
    Forwarded(Response),
    /// This node has to answer it.
    Whole(Context),
}

/// Authorizes a request and reads its body, and forwards it if this node does not lead.
async fn receive(
    route: &Route,
    connection: &Arc<OpenConnection>,
    peer: &Peer,
    request: Box<Request<Incoming>>,
) -> Result<Received, ApiError> {
    let shared = &connection.shared;
    let (head, body) = (*request).into_parts();
    let forwarder = shared.forwarder().filter(|_| route.may_be_forwarded());
    if forwarder.is_none() {
        authorize(route, shared, peer, &head.headers)?;
    }
    count_connection(route, connection, &head.headers);
    let query = head.uri.query().unwrap_or_default();
    let is_get = matches!(head.method, Method::GET | Method::HEAD);
    let body = match route.kind {
        _ if is_get => Bytes::new(),
        _ if !query.is_empty() => {
            return Err(ApiError::bad_request(
                "a POST has its parameters in its body; send no query in the URL",
            ));
        }
        Kind::Lease | Kind::Release => timeout(LEASE_BODY_MAX, read(&head.headers, body))
            .await
            .map_err(|_| ApiError::too_slow(LEASE_BODY_MAX))??,
        Kind::Read | Kind::Change => read(&head.headers, body).await?,
    };
    connection.input.complete();
    if let Some(forwarder) = forwarder
        && let Some(response) = forwarder.forward(&shared.rules.access, peer, &head, &body).await?
    {
        return Ok(Received::Forwarded(response));
    }
    // The client may have lost its rights while it sent the body.
    let permissions = authorize(route, shared, peer, &head.headers)?;
    let parameters = if is_get { Parameters::of_query(query)? } else { Parameters::of_json(&body)? };
    let connection = Arc::clone(connection);
    let token = shown_token(&head.headers);
    Ok(Received::Whole(Context { permissions, token, peer: peer.clone(), connection, parameters }))
}

/// Returns the permissions of the client of a request. A change without a valid token is refused, and the refusal goes to the
/// audit log.
fn authorize(
    route: &Route,
    shared: &Shared,
    peer: &Peer,
    headers: &HeaderMap,
) -> Result<Permissions, ApiError> {
    let access = &shared.rules.access;
    match route.kind {
        Kind::Read | Kind::Lease => return permissions_of(access, peer, headers, route.path),
        Kind::Release => return Ok(access.permissions_of(&peer.client)),
        Kind::Change => {}
    }
    let permissions = require_token(access, peer, headers, route.path)
        .and_then(|()| permissions_of(access, peer, headers, route.path));
    if let (Err(error), Some(server)) = (&permissions, shared.stage().server()) {
        let ended = Ended::Denied(error.code);
        server.audit.record(Some(&peer.client), None, route.path, "server", ended);
    }
    permissions
}

/// Counts the connection by what the request needs: among those for leases if it may wait, among the general ones if it
/// may need memory for a long body or answer. If there is no room among those for leases, a request that does not wait
/// is answered all the same.
fn count_connection(route: &Route, connection: &OpenConnection, headers: &HeaderMap) {
    let is_short = length_of(headers).is_none_or(|length| length <= LEASE_BODY_BYTES);
    if is_short && matches!(route.kind, Kind::Lease | Kind::Release) {
        connection.use_for_leases();
    } else {
        connection.use_for_anything();
    }
}

/// Returns the length of the body that a request states.
fn length_of(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads a body to its end, or refuses it.
async fn read(headers: &HeaderMap, body: Incoming) -> Result<Bytes, ApiError> {
    // Bodies whose length is not stated were refused before.
    if length_of(headers).is_some_and(|length| length > BODY_BYTES_MAX as u64) {
        let message = format!("the body is longer than {BODY_BYTES_MAX} bytes; send a shorter one");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
    }
    let body = Limited::new(body, BODY_BYTES_MAX)
        .collect()
        .await
        .map_err(|_| ApiError::bad_request("the body ended before its Content-Length; send all of it"))?;
    Ok(body.to_bytes())
}

fn no_such_path(path: &str) -> Response {
    let path = Quoted(path.as_bytes());
    let message = format!("there is nothing at {path}; /api/v1/openapi.json lists what there is");
    ApiError::not_found(message).into()
}

fn wrong_method(method: &Method, allowed: &'static str) -> Response {
    let message = format!(
        "{} is not possible here; /api/v1/openapi.json lists the methods of each path",
        Quoted(method.as_str().as_bytes())
    );
    let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
    let mut response = Response::from(error);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn a_page_of_this_server_has_its_host_its_port_and_tls_if_the_request_has() {
        for (origin, host, is_encrypted, expected) in [
            ("http://a", "a", false, true),
            ("http://a:80", "a", false, true),
            ("http://A:8080", "a:8080", false, true),
            ("https://a", "a", false, true),
            ("https://a", "a", true, true),
            ("https://a:443", "a", true, true),
            ("https://a", "a:443", true, true),
            ("https://a:8443", "a:8443", true, true),
            ("http://a", "a", true, false),
            ("https://a", "a:80", false, false),
            ("https://a:80", "a", false, false),
            ("http://a:81", "a", false, false),
            ("http://b", "a", false, false),
            ("ftp://a", "a", false, false),
        ] {
            let is_ours = is_origin_of(origin, &Authority::from_str(host).unwrap(), is_encrypted);
            assert_eq!(is_ours, expected, "{origin} {host} {is_encrypted}");
        }
    }

    #[test]
    fn a_host_is_loopback_the_address_that_was_connected_to_or_any_of_those_configured() {
        let names = ["box.example.org", "other.example.org"].map(str::to_owned);
        for (host, expected) in [
            ("192.0.2.1", true),
            ("[::ffff:192.0.2.1]:80", true),
            ("192.0.2.2", false),
            ("127.0.0.2:1", true),
            ("localhost.:80", true),
            ("BOX.example.org", true),
            ("other.example.org.", true),
            ("another.example.org", false),
        ] {
            let known = is_known(&Authority::from_str(host).unwrap(), IpAddr::from([192, 0, 2, 1]), &names);
            assert_eq!(known, expected, "{host}");
        }
    }

    #[test]
    fn the_description_has_every_path_and_method_and_no_other() {
        let description: Value = serde_json::from_str(page::OPENAPI.content).unwrap();
        let paths = description["paths"].as_object().unwrap();
        let methods = |path: &Value| path.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        let described: BTreeSet<_> =
            paths.iter().map(|(path, methods_of)| (path.clone(), methods(methods_of))).collect();
        let of = |path: &str, methods: &[&str]| {
            (path.to_owned(), methods.iter().map(|method| (*method).to_owned()).collect::<BTreeSet<_>>())
        };
        let methods_of = |is_read: bool| if is_read { &["get", "post"][..] } else { &["post"] };
        let served = ROUTES.iter().map(|route| of(route.path, methods_of(route.is_read())));
        let others = ["/healthz", "/readyz", "/metrics", page::OPENAPI.path].map(|path| of(path, &["get"]));
        assert_eq!(described, served.chain(others).collect());
    }
}

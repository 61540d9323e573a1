//! What each request has to fulfil before its handler sees it, and the headers of each answer.
//!
//! A page of another site can have its visitor's browser send requests here. It must not learn anything, and must not
//! change anything:
//!
//! - The host that a request names has to be known. A page whose own name was made to lead here (DNS rebinding) names that.
//!   Only [probes](health::is_probe) may name any host or none.
//! - A POST, which all changes are, must have a body of JSON, which a page can send to another site only if that permits it
//!   (CORS), and nothing here permits it. If the browser names the page's origin, that has to be the one of the request's host.
//! - No answer sets a cookie, and no cookie is read.
//!
//! A program that forwards the requests of others on this machine would make all of them local. Its headers say that it is one.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{
    CONTENT_TYPE, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, TRANSFER_ENCODING, VIA,
};
use hyper::http::uri::Authority;
use hyper::{Method, Request, StatusCode};

use super::answer::{ApiError, HEADERS, Response};
use super::connections::OpenConnection;
use super::health;
use super::peer::Peer;
use super::routes::{answer_in_time, route_of};
use super::shared::Shared;
use signalbox_model::Quoted;

/// The headers of requests that a program forwards for another.
static OF_FORWARDED: [HeaderName; 4] =
    [FORWARDED, VIA, HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("x-real-ip")];

static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Checks a request, answers it, and adds the headers of every answer. It is boxed, since each function on the way to its
/// handler would keep room for it while it waits.
pub(super) async fn guard(
    connection: &Arc<OpenConnection>,
    peer: &Peer,
    request: Box<Request<Incoming>>,
) -> Response {
    connection.shared.requests.add(1);
    let forwarded = is_forwarded(request.headers()).then(|| peer.forwarded());
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

fn is_forwarded(headers: &HeaderMap) -> bool {
    OF_FORWARDED.iter().any(|name| headers.contains_key(name))
}

fn check(shared: &Shared, peer: &Peer, request: &Request<Incoming>) -> Result<(), ApiError> {
    let headers = request.headers();
    // A server in front may read a request with two lengths differently, and hyper drops one of them before this.
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
    // Where plain requests are accepted from this machine only, the connection was, and the client may be elsewhere.
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
    // Nothing else has a POST, and the answer says so.
    let is_post = *request.method() == Method::POST && route_of(request.uri().path()).is_some();
    if is_post { check_content_type(headers) } else { Ok(()) }
}

/// The host that the request is for. A request names it once: in the header, and perhaps the same in its line.
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
        .filter(|host| !host.as_str().contains('@') && has_no_wrong_port(host))
        .ok_or_else(|| wrong("the header Host names no host"))?;
    match request.uri().authority() {
        Some(line) if !line.as_str().eq_ignore_ascii_case(host.as_str()) => {
            Err(wrong("the line of the request and the header Host name different hosts"))
        }
        _ => Ok(host),
    }
}

/// Whether there is a port behind the host, or nothing.
fn has_no_wrong_port(host: &Authority) -> bool {
    let rest = host.as_str().strip_prefix(host.host());
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok();
    rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
}

/// Whether a host is this server: loopback, the address that the client has connected to, or a name of the configuration.
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

/// If a browser says which page sends the request, it has to be one of this host.
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

/// Whether an origin is that of a host. A page over TLS must not be one without.
fn is_origin_of(origin: &str, host: &Authority, is_encrypted: bool) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let default_port = match scheme {
        "https" => 443,
        // A proxy in front may have ended TLS, so a plain connection may have an origin of either.
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

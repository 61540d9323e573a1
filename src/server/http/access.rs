//! The client of a request, and its rights. The rules are those of the service ports (`super::super::access`); this module reads
//! the tokens of requests, and composes refusals.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderMap};

use super::super::access::Access;
pub(super) use super::super::access::{Permissions, Right};
use super::super::client_address::Client;
use super::answer::ApiError;
use signalbox_model::{Target, TokenRefusal};

const SCHEME: &str = "Bearer ";

/// The number of seconds after which a client with too many wrong tokens may show another.
const QUIET_S: u32 = 60;

/// The client of a request, and its connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) client: Arc<Client>,
    /// The address of this machine that the client has connected to; for a request that a node forwards, the address of
    /// that node.
    pub(super) local: IpAddr,
    pub(super) is_encrypted: bool,
}

impl Peer {
    /// Returns the client of a request that another program forwards over this connection.
    pub(super) fn forwarded(&self) -> Self {
        let Client { address, certificate } = &*self.client;
        let client = Client { address: address.forwarded(), certificate: certificate.clone() };
        Self { client: Arc::new(client), ..*self }
    }
}

/// Returns the rights of the client of a request to this path: those of its token if it shows one, otherwise those of
/// its certificate or its address. A refused token is counted and logged.
pub(super) fn permissions_of(
    access: &Access,
    peer: &Peer,
    headers: &HeaderMap,
    path: &str,
) -> Result<Permissions, ApiError> {
    let operation = || format!("HTTP {path}");
    let shown = token(headers).inspect_err(|_| {
        access.note_refusal(&peer.client, None, &operation(), "the header Authorization has no token");
    })?;
    let Some(token) = shown else {
        return Ok(access.permissions_of(&peer.client));
    };
    let proven = access.authenticate(&peer.client, peer.is_encrypted, token);
    proven.map_err(|denied| {
        if access.note_failure(&peer.client, &operation(), denied) {
            return too_many();
        }
        denied_token(denied)
    })
}

/// Refuses a request whose token must not be forwarded to another node: it would cross the network in the clear.
pub(super) fn may_forward_token(access: &Access, peer: &Peer, headers: &HeaderMap) -> Result<(), ApiError> {
    let may_show = || access.accepts_token_of(&peer.client, peer.is_encrypted);
    if !headers.contains_key(AUTHORIZATION) || may_show() {
        return Ok(());
    }
    Err(denied_token(TokenRefusal::OverPlain))
}

fn denied_token(denied: TokenRefusal) -> ApiError {
    unauthorized(&format!("the client may not do this: {denied}; {}", denied.advice()))
}

/// Returns the token that a request shows; `None`: it has no header Authorization.
fn token(headers: &HeaderMap) -> Result<Option<&[u8]>, ApiError> {
    let mut shown = headers.get_all(AUTHORIZATION).iter();
    let Some(first) = shown.next() else { return Ok(None) };
    let (scheme, token) = first.as_bytes().split_at_checked(SCHEME.len()).unwrap_or_default();
    match shown.next() {
        None if scheme.eq_ignore_ascii_case(SCHEME.as_bytes()) => Ok(Some(token.trim_ascii())),
        _ => Err(unauthorized("the header Authorization must be given once, as \"Bearer\" and a token")),
    }
}

/// Returns a copy of the token of a request whose header Authorization was checked.
pub(super) fn shown_token(headers: &HeaderMap) -> Option<Box<[u8]>> {
    Some(token(headers).ok()??.into())
}

/// Refuses a change without a token, even from this machine: a page in a browser there must not be able to make changes. The
/// refusal is counted and logged.
pub(super) fn require_token(
    access: &Access,
    peer: &Peer,
    headers: &HeaderMap,
    path: &str,
) -> Result<(), ApiError> {
    if headers.contains_key(AUTHORIZATION) {
        return Ok(());
    }
    access.note_refusal(&peer.client, None, &format!("HTTP {path}"), "a change needs a token");
    Err(unauthorized(
        "a change needs a token, also from this machine; send it in the header Authorization: Bearer, with the right to \
         administer",
    ))
}

/// Returns the error for a client without this right, and counts and logs the refusal.
pub(super) fn refuse(
    access: &Access,
    peer: &Peer,
    permissions: &Permissions,
    right: Right,
    target: Target<'_>,
) -> ApiError {
    let verb = match right {
        Right::Read => "read",
        Right::Acquire => "acquire",
        Right::Administer => "change",
    };
    let operation = format!("HTTP {verb}");
    access.note_missing(&peer.client, permissions.identity(), &operation, right);
    let target = match target {
        Target::Server => "what concerns all names".to_owned(),
        Target::Anywhere => "what the request is about".to_owned(),
        target => target.to_string(),
    };
    let right = right.name();
    let message = format!("the client may not {verb} {target}; send a token with the right to {right} it");
    ApiError::new(StatusCode::FORBIDDEN, "not_permitted", message)
}

fn unauthorized(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
}

fn too_many() -> ApiError {
    ApiError::new(
        StatusCode::TOO_MANY_REQUESTS,
        "too_many_wrong_tokens",
        "this client has shown too many wrong tokens; try again after a minute, with another token",
    )
    .retry_after(QUIET_S)
}

#[cfg(test)]
impl Peer {
    /// A client on this machine.
    pub(super) fn of_test() -> Self {
        use super::super::client_address::ClientAddress;
        let address = ClientAddress::of_peer(([127, 0, 0, 1], 1).into());
        let client = Arc::new(Client { address, certificate: Arc::default() });
        Self { client, local: IpAddr::from([127, 0, 0, 1]), is_encrypted: false }
    }
}

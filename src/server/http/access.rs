//! Who may do what. Everything that decides it is in this file.

use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, HeaderMap};

use super::answer::ApiError;
use super::listener::Peer;
use super::shared::Shared;
use crate::core::Namespace;

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    Read,
    Administer,
}

/// What a right is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'a> {
    /// Everything.
    Server,
    Name(Namespace, &'a [u8]),
}

/// What the client of a request may do.
#[derive(Clone, Debug)]
pub(super) struct Permissions {
    may_read: bool,
    may_administer: bool,
}

impl Permissions {
    /// Those of a client that may do everything.
    #[cfg(test)]
    pub(super) const ALL: Self = Self { may_read: true, may_administer: true };

    /// The permissions of the client, by its token if it presents one.
    pub(super) fn of(_shared: &Shared, _peer: &Peer, headers: &HeaderMap) -> Result<Self, ApiError> {
        match headers.get(AUTHORIZATION) {
            None => Ok(Self { may_read: true, may_administer: false }),
            Some(_) => {
                Err(unauthorized("the token is not known; use one that \"signalbox token create\" has made"))
            }
        }
    }

    pub(super) fn may(&self, right: Right, _target: Target<'_>) -> bool {
        match right {
            Right::Read => self.may_read,
            Right::Administer => self.may_administer,
        }
    }
}

/// A change needs a token, also from this machine.
pub(super) fn require_token(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.contains_key(AUTHORIZATION) {
        return Ok(());
    }
    Err(unauthorized(
        "a change needs a token, also from this machine; send it in the header Authorization: Bearer, with the right to \
         administer",
    ))
}

/// The client may not do this.
pub(super) fn not_permitted(what: &str, right: &str) -> ApiError {
    let message = format!("the client may not {what}; send a token with {right}");
    ApiError::new(StatusCode::FORBIDDEN, "not_permitted", message)
}

fn unauthorized(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
}

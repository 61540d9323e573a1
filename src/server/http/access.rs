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
}

impl Permissions {
    /// The permissions of the client, by its token if it presents one.
    pub(super) fn of(_shared: &Shared, _peer: &Peer, headers: &HeaderMap) -> Result<Self, ApiError> {
        match headers.get(AUTHORIZATION) {
            None => Ok(Self { may_read: true }),
            Some(_) => {
                Err(unauthorized("the token is not known; use one that \"signalbox token create\" has made"))
            }
        }
    }

    pub(super) fn may(&self, right: Right, _target: Target<'_>) -> bool {
        match right {
            Right::Read => self.may_read,
            Right::Administer => false,
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

fn unauthorized(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
}

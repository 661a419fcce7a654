//! Refusal of a caller: its response, and what the audit log says of it.

use std::time::Duration;

use axum::{
    http::{HeaderValue, StatusCode, header::WWW_AUTHENTICATE},
    response::{IntoResponse as _, Response},
};
use tidegate_protocol::Code;

use super::super::refusal;
use crate::{
    audit::Actor,
    keys::{KeyHolder, KeyRejection, Scope},
};

/// Reason for which a caller is refused.
pub(in crate::api) enum Refused {
    /// The request has no key.
    NoKey,
    /// The key is refused.
    Key(KeyRejection),
    /// The key is refused, after too many others; with the time to wait.
    TooMany(KeyRejection, Duration),
    /// The key has not this scope.
    Scope(Scope),
    /// A rule of the node refuses the request; with the time to wait.
    Limit(Duration),
}

impl Refused {
    /// Returns the reason as a word.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::NoKey => "missing",
            Self::Key(rejection) | Self::TooMany(rejection, _) => match rejection {
                KeyRejection::Malformed => "malformed",
                KeyRejection::Unknown(_) => "unknown",
                KeyRejection::Revoked(_) => "revoked",
                KeyRejection::Expired(_) => "expired",
                KeyRejection::ForeignNetwork(_) => "network",
            },
            Self::Scope(_) => "scope",
            Self::Limit(_) => "limit",
        }
    }

    /// Returns the caller, as far as it is known.
    pub(super) fn actor(&self) -> Actor {
        let of = |holder: &KeyHolder| Actor::Key { id: holder.id.clone(), name: holder.name.clone() };
        match self {
            Self::Key(rejection) | Self::TooMany(rejection, _) => match rejection {
                KeyRejection::Malformed => Actor::Unknown(None),
                KeyRejection::Unknown(id) => Actor::Unknown(Some(id.clone())),
                KeyRejection::Revoked(holder)
                | KeyRejection::Expired(holder)
                | KeyRejection::ForeignNetwork(holder) => of(holder),
            },
            Self::NoKey | Self::Scope(_) | Self::Limit(_) => Actor::Unknown(None),
        }
    }

    /// Returns the response. Only the holder of the right secret learns more than that the key is refused.
    pub(in crate::api) fn response(&self) -> Response {
        let mut response = match self {
            Self::Scope(scope) => {
                let message = format!("the key does not have the scope `{scope}`");
                refusal(StatusCode::FORBIDDEN, Code::ScopeMissing, &message, Code::ScopeMissing.cure())
                    .into_response()
            }
            Self::TooMany(_, wait) => {
                let cure = "Check the key before the next try: each refused one counts.";
                limited("too many refused keys from this address", cure, *wait)
            }
            Self::Limit(wait) => {
                let message = "a rule of this node (GET /v1/rules) refuses this request for now";
                limited(message, Code::RateLimited.cure(), *wait)
            }
            Self::NoKey => unauthorized(Code::KeyInvalid.what()),
            Self::Key(KeyRejection::Malformed | KeyRejection::Unknown(_)) => {
                unauthorized("the key is not one of this node")
            }
            Self::Key(KeyRejection::Revoked(_)) => unauthorized("the key was revoked"),
            Self::Key(KeyRejection::Expired(_)) => unauthorized("the key has expired"),
            Self::Key(KeyRejection::ForeignNetwork(_)) => {
                unauthorized("the key may not be used from this address")
            }
        };
        if response.status() == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tidegate\""));
        }
        response
    }
}

/// Returns a response that names the time to wait.
fn limited(message: &str, cure: &str, wait: Duration) -> Response {
    refusal(StatusCode::TOO_MANY_REQUESTS, Code::RateLimited, message, cure).after(wait).into_response()
}

fn unauthorized(message: &str) -> Response {
    refusal(StatusCode::UNAUTHORIZED, Code::KeyInvalid, message, Code::KeyInvalid.cure()).into_response()
}

//! Authentication of clients: the keys that verify their tokens, and the rules that the claims have to meet.
//!
//! Each key pins one algorithm: HS256, RS256, ES256 or EdDSA. Tokens are never logged, and never part of a URL.

use std::{borrow::Cow, time::Duration};

use tidegate_protocol::Code;

mod cache;
mod claims;
mod fault;
mod fetch;
mod grants;
pub mod jwks;
mod key;
mod keyring;
mod mint;
mod rules;
mod secret;
mod verifier;

pub use self::{
    claims::Claims,
    fault::TokenFault,
    grants::{Grants, PRIORITY_MAX},
    key::{TokenKey, read_keys},
    keyring::{Keyring, RemoteSettings},
    mint::{SigningKey, sign, sign_until},
    rules::{ClaimRules, TokenIdentity, TokenTerm, identity_of},
    secret::{create_key, load_key, load_or_create_key, read_key},
    verifier::Verifier,
};

/// Refusal of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRefusal {
    /// Code for the client.
    pub code: Code,
    /// Reason in words; empty if the code says enough.
    pub reason: Cow<'static, str>,
    /// Time until another refused token of the address is answered with its own code, if too many were refused.
    pub wait: Option<Duration>,
}

#[cfg(test)]
mod tests;

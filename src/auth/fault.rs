//! Faults of tokens: the reasons for which a token is refused, each with its code and text.

use tidegate_protocol::Code;

use crate::metrics::Metrics;

/// Reason for which a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFault {
    /// Larger than `auth.token_bytes_max`.
    TooLarge,
    /// Not three parts of base64url with a JSON header and JSON claims, or without `sub` or `exp`.
    Malformed,
    /// Header with extensions (`crit`) that the verifier would have to know.
    Critical,
    /// Algorithm `none`.
    Unsigned,
    /// No selected key is for the token's algorithm.
    Algorithm,
    /// No key has the token's `kid`, or the token names none where it has to.
    UnknownKey,
    /// Signature of another key.
    Signature,
    /// `sub` or `dev` is no id.
    BadId,
    /// Another claim has a wrong type or is over its bound.
    BadClaim,
    /// `exp` has passed.
    Expired,
    /// Revoked, by itself or with others.
    Revoked,
    /// `nbf` has not come.
    Early,
    /// Valid for longer than `auth.max_lifetime_s`.
    TooLong,
    /// `iss` is not in `auth.issuers`.
    Issuer,
    /// `aud` names none of `auth.audiences`.
    Audience,
    /// The keys of `auth.jwks_url` were never loaded.
    NoKeys,
    /// Too many tokens wait for their verification.
    Busy,
    /// The hook `login` refused the credential.
    HookDenied,
    /// The hook `login` gave no answer.
    HookUnavailable,
    /// Too many tokens of the address were refused, so the hook `login` was not asked.
    AddressLimited,
}

impl TokenFault {
    /// Returns the code for the client.
    pub const fn code(self) -> Code {
        match self {
            Self::Expired => Code::TokenExpired,
            Self::Revoked => Code::TokenRevoked,
            Self::NoKeys => Code::Overloaded,
            Self::Busy => Code::Busy,
            Self::HookUnavailable => Code::HookUnavailable,
            Self::AddressLimited => Code::RateLimited,
            _ => Code::TokenInvalid,
        }
    }

    /// Returns whether the token was valid once: its client has to learn that it needs a new one.
    pub const fn was_valid(self) -> bool {
        matches!(self, Self::Expired | Self::Revoked)
    }

    /// Returns whether a retry of the same token may succeed; such a refusal says nothing about the client.
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::NoKeys | Self::Busy | Self::HookUnavailable | Self::AddressLimited)
    }

    /// Returns whether no key of the node can have signed the token, so that it may be a credential of another system.
    pub const fn is_of_another_issuer(self) -> bool {
        matches!(self, Self::Malformed | Self::Algorithm | Self::UnknownKey | Self::Signature)
    }

    /// Returns the reason in words; empty if the code says enough.
    pub const fn text(self) -> &'static str {
        match self {
            Self::TooLarge => "the token is larger than the node accepts",
            Self::Malformed => "the token is no JWT with the claims sub and exp",
            Self::Critical => "the token has a crit header; no extension is supported",
            Self::Unsigned => "the token is not signed (alg none)",
            Self::Algorithm => "the token's algorithm is not that of the key",
            Self::UnknownKey => "no key has the token's kid",
            Self::Signature => "the token is signed with another key",
            Self::BadId => "sub and dev must match [A-Za-z0-9_.-]{1,64}",
            Self::BadClaim => "a claim of the token is not well formed or too long",
            Self::Expired | Self::Revoked => "",
            Self::Early => "the token is not valid yet (nbf)",
            Self::TooLong => "the token is valid for longer than the node accepts",
            Self::Issuer => "the token is of another issuer (iss)",
            Self::Audience => "the token is for another audience (aud)",
            Self::NoKeys => "the keys that verify tokens are not loaded yet; try again",
            Self::Busy => "too many tokens wait for their verification; try again",
            Self::HookDenied => "the application refused the credential",
            Self::HookUnavailable => "the application can't be asked about the credential; try again",
            Self::AddressLimited => "too many refused tokens from this address",
        }
    }

    /// Returns the remedy for the operator or the author of the back end.
    pub const fn cure(self) -> &'static str {
        match self {
            Self::TooLarge => {
                "use fewer patterns in rooms and to, or raise auth.token_bytes_max and limits.hello_bytes_max"
            }
            Self::Malformed => "sign a JSON object with sub and a whole number exp, each claim once",
            Self::Critical => "sign without crit",
            Self::Unsigned => "sign with HS256, RS256, ES256 or EdDSA",
            Self::Algorithm => {
                "sign with the algorithm of the key: hex HS256, RSA RS256, P-256 ES256, Ed25519 EdDSA"
            }
            Self::UnknownKey => {
                "set kid to the id of a key of the node, or add the key to auth.key_files or the set of auth.jwks_url"
            }
            Self::Signature => {
                "sign with the key whose kid the token names; an HS256 key is the 32 bytes, not the 64 digits"
            }
            Self::BadId => "use ids of 1 to 64 of these characters",
            Self::BadClaim => "see the table of claims in docs/tokens.md",
            Self::Expired => "mint a new token; check the clock of the back end",
            Self::Revoked => "mint a new token, with iat; check the clock of the back end",
            Self::Early => "check the clock of the back end, or raise auth.leeway_s (at most 60)",
            Self::TooLong => "set an earlier exp, or raise auth.max_lifetime_s",
            Self::Issuer => "set iss to one of auth.issuers",
            Self::Audience => "set aud to one of auth.audiences",
            Self::NoKeys => "check that the node reaches auth.jwks_url",
            Self::Busy => "try again; add nodes if it persists",
            Self::HookDenied => "log in to the application again",
            Self::HookUnavailable => "check the server of hooks.login_url, and the log of the node",
            Self::AddressLimited => "try again; see limits.address_logins_per_second",
        }
    }

    /// Counts the fault.
    pub fn count(self, metrics: &Metrics) {
        let counter = match self {
            Self::TooLarge | Self::Malformed | Self::Critical | Self::BadId | Self::BadClaim => {
                &metrics.tokens_malformed
            }
            Self::Unsigned | Self::Algorithm => &metrics.tokens_algorithm,
            Self::UnknownKey => &metrics.tokens_unknown_key,
            Self::Signature => &metrics.tokens_forged,
            Self::Expired => &metrics.tokens_expired,
            Self::Revoked => &metrics.tokens_revoked,
            Self::Early | Self::TooLong => &metrics.tokens_time,
            Self::Issuer | Self::Audience => &metrics.tokens_foreign,
            Self::NoKeys | Self::Busy => &metrics.tokens_deferred,
            // The hook counts its questions.
            Self::HookDenied | Self::HookUnavailable | Self::AddressLimited => return,
        };
        counter.increment(1);
    }
}

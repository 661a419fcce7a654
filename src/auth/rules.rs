//! Rules that the claims of a token have to meet, and the identity that it then names.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::id::{DeviceId, UserId};

use super::{
    claims::{Claims, OneOrMany},
    fault::TokenFault,
    grants::Grants,
};

/// Most values of an `aud`.
const AUDIENCES_MAX: usize = 16;

/// Identity that a valid token names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIdentity {
    /// User of the token.
    pub user: UserId,
    /// Only device that may use the token; `None` if any device may.
    pub device: Option<DeviceId>,
    /// Further claims; `None` if the token has none of them.
    pub grants: Option<Arc<Grants>>,
    /// Times of the token.
    pub term: TokenTerm,
}

/// Times of a token that matter as long as a connection uses it, in ms since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenTerm {
    /// Time from which a login with the token is refused: `exp` with the leeway.
    pub expires_ms: u64,
    /// Time of issue (`iat`); `None` if the token names none.
    pub issued_ms: Option<u64>,
}

/// Times between which a token is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validity {
    pub(super) from: f64,
    pub(super) until: u64,
}

/// Rules that the claims of all tokens have to meet.
#[derive(Clone, Debug)]
pub struct ClaimRules {
    /// Accepted issuers; with none, `iss` is ignored.
    pub issuers: Vec<String>,
    /// Accepted audiences; with none, `aud` is ignored.
    pub audiences: Vec<String>,
    /// Longest validity; zero for no limit.
    pub max_lifetime: Duration,
    /// Tolerated difference between the clocks of issuer and node.
    pub leeway: Duration,
    /// Largest token in bytes.
    pub token_bytes_max: usize,
}

impl Default for ClaimRules {
    fn default() -> Self {
        Self {
            issuers: Vec::new(),
            audiences: Vec::new(),
            max_lifetime: Duration::ZERO,
            leeway: Duration::from_secs(30),
            token_bytes_max: 3_584,
        }
    }
}

impl ClaimRules {
    /// Checks the claims at `now_s`, and returns the identity with the times of its validity.
    pub(super) fn check(&self, claims: &Claims, now_s: u64) -> Result<(TokenIdentity, Validity), TokenFault> {
        let until = claims.exp;
        let validity = Validity { from: claims.nbf.unwrap_or(0.0), until };
        self.check_times(validity, now_s)?;
        if !self.max_lifetime.is_zero() {
            // A time of issue in the future would hide a long validity.
            let issued = claims.iat.map_or(now_s as f64, |iat| iat.min(now_s as f64));
            if until as f64 - issued > (self.max_lifetime + self.leeway).as_secs_f64() {
                return Err(TokenFault::TooLong);
            }
        }
        let is_known = |accepted: &[String], value: &String| accepted.contains(value);
        if !self.issuers.is_empty() && !claims.iss.as_ref().is_some_and(|iss| is_known(&self.issuers, iss)) {
            return Err(TokenFault::Issuer);
        }
        if !self.audiences.is_empty() {
            let audiences = claims.aud.as_ref().map(OneOrMany::values).unwrap_or_default();
            if !audiences.iter().take(AUDIENCES_MAX).any(|aud| is_known(&self.audiences, aud)) {
                return Err(TokenFault::Audience);
            }
        }
        let bad_id = |_| TokenFault::BadId;
        let identity = TokenIdentity {
            user: UserId::new(&claims.sub).map_err(bad_id)?,
            device: claims.dev.as_deref().map(DeviceId::new).transpose().map_err(bad_id)?,
            grants: Grants::of(claims)?.map(Arc::new),
            term: TokenTerm {
                // The first second that `check_times` refuses.
                expires_ms: until.saturating_add(self.leeway.as_secs() + 1).saturating_mul(1_000),
                issued_ms: claims.iat.map(|iat| (iat * 1_000.0) as u64),
            },
        };
        Ok((identity, validity))
    }

    /// Checks only the times, which may pass after a token was verified.
    pub(super) fn check_times(&self, validity: Validity, now_s: u64) -> Result<(), TokenFault> {
        let leeway = self.leeway.as_secs();
        if validity.until < now_s.saturating_sub(leeway) {
            return Err(TokenFault::Expired);
        }
        if validity.from > (now_s + leeway) as f64 {
            return Err(TokenFault::Early);
        }
        Ok(())
    }
}

/// Returns the identity that claims of a trusted source name, which need no issuer and no audience.
///
/// # Errors
/// A claim is not well formed, or the claims are not valid at `wall_ms`.
pub fn identity_of(claims: &Claims, wall_ms: u64) -> Result<TokenIdentity, TokenFault> {
    let rules = ClaimRules { leeway: Duration::ZERO, ..ClaimRules::default() };
    rules.check(claims, wall_ms / 1_000).map(|(identity, _)| identity)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(rules: &ClaimRules, claims: serde_json::Value) -> Option<TokenFault> {
        let claims = serde_json::from_value(claims).unwrap();
        rules.check(&claims, 1_000_000).err()
    }

    #[test]
    fn times_are_checked_with_the_leeway() {
        let rules = ClaimRules { max_lifetime: Duration::from_secs(600), ..ClaimRules::default() };
        let at = |exp: u64, more: serde_json::Value| {
            let mut claims = json!({"sub": "ann", "exp": exp});
            claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            check(&rules, claims)
        };
        assert_eq!(at(1_000_060, json!({})), None);
        assert_eq!(at(999_970, json!({})), None);
        assert_eq!(at(999_969, json!({})), Some(TokenFault::Expired));
        assert_eq!(at(1_000_060, json!({"nbf": 1_000_030})), None);
        assert_eq!(at(1_000_060, json!({"nbf": 1_000_031})), Some(TokenFault::Early));
        assert_eq!(at(1_000_630, json!({})), None);
        assert_eq!(at(1_000_631, json!({})), Some(TokenFault::TooLong));
        assert_eq!(at(1_000_060, json!({"iat": 900_000})), Some(TokenFault::TooLong));
        let later = json!({"iat": 1_900_000});
        assert_eq!(at(2_000_000, later), Some(TokenFault::TooLong), "a later time of issue hides nothing");
    }

    #[test]
    fn term_ends_with_the_first_refused_second() {
        let rules = ClaimRules::default();
        let term = |claims: serde_json::Value, now_s| {
            let claims = serde_json::from_value(claims).unwrap();
            rules.check(&claims, now_s).map(|(identity, _)| identity.term)
        };
        let short = term(json!({"sub": "ann", "exp": 1_000_000, "iat": 999_000.5}), 1_000_030).unwrap();
        assert_eq!(short, TokenTerm { expires_ms: 1_000_031_000, issued_ms: Some(999_000_500) });
        assert_eq!(term(json!({"sub": "ann", "exp": 1_000_000}), 1_000_031), Err(TokenFault::Expired));
        let endless = term(json!({"sub": "ann", "exp": u64::MAX, "iat": -1}), 1_000_000).unwrap();
        assert_eq!(endless, TokenTerm { expires_ms: u64::MAX, issued_ms: Some(0) });
    }

    #[test]
    fn issuer_and_audience_are_required_once_configured() {
        let rules =
            ClaimRules { issuers: vec!["me".into()], audiences: vec!["tg".into()], ..ClaimRules::default() };
        let with = |iss: serde_json::Value, aud: serde_json::Value| {
            check(&rules, json!({"sub": "ann", "exp": 1_000_060, "iss": iss, "aud": aud}))
        };
        assert_eq!(with(json!("me"), json!("tg")), None);
        assert_eq!(with(json!("me"), json!(["x", "tg"])), None);
        assert_eq!(with(json!("you"), json!("tg")), Some(TokenFault::Issuer));
        assert_eq!(with(json!(null), json!("tg")), Some(TokenFault::Issuer));
        assert_eq!(with(json!("me"), json!(["x"])), Some(TokenFault::Audience));
        assert_eq!(with(json!("me"), json!(null)), Some(TokenFault::Audience));
    }
}

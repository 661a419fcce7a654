//! Verifier of tokens: selects the key by the header, checks signature and claims, and keeps costly checks off the
//! threads of shards.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::Algorithm;
use serde::{Deserialize, de::IgnoredAny};
use tokio::sync::Semaphore;

use super::{
    cache::{self, VerifiedTokens},
    fault::TokenFault,
    key::TokenKey,
    keyring::Keyring,
    rules::{ClaimRules, TokenIdentity, Validity},
};
use crate::{live::Live, supervised};

/// Most tokens that wait for a check of their signature or for a refresh of the keys; further ones are refused.
const WAITING_MAX: usize = 4_096;

/// Most signatures that are checked at once, whatever the number of cores.
const CHECKS_MAX: usize = 8;

/// Verifier of tokens.
pub struct Verifier {
    keyring: Arc<Keyring>,
    rules: Live<ClaimRules>,
    verified: VerifiedTokens,
    checks: Semaphore,
    waiting: AtomicUsize,
}

/// Part of a header that selects the key.
struct Head {
    algorithm: Algorithm,
    id: Option<String>,
}

impl Head {
    fn of(token: &str, bytes_max: usize) -> Result<Self, TokenFault> {
        #[derive(Deserialize)]
        struct Fields {
            alg: String,
            kid: Option<String>,
            crit: Option<IgnoredAny>,
        }
        if token.len() > bytes_max {
            return Err(TokenFault::TooLarge);
        }
        let (head, _) = token.split_once('.').ok_or(TokenFault::Malformed)?;
        let head = BASE64URL_NOPAD.decode(head.as_bytes()).map_err(|_| TokenFault::Malformed)?;
        let fields: Fields = serde_json::from_slice(&head).map_err(|_| TokenFault::Malformed)?;
        if fields.crit.is_some() {
            return Err(TokenFault::Critical);
        }
        let algorithm = match fields.alg.as_str() {
            "HS256" => Algorithm::HS256,
            "RS256" => Algorithm::RS256,
            "ES256" => Algorithm::ES256,
            "EdDSA" => Algorithm::EdDSA,
            other if other.eq_ignore_ascii_case("none") => return Err(TokenFault::Unsigned),
            _ => return Err(TokenFault::Algorithm),
        };
        Ok(Self { algorithm, id: fields.kid })
    }
}

/// Place among the tokens that wait.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Verifier {
    /// Creates a verifier of tokens that are signed with a key of the ring and meet the rules.
    pub fn new(keyring: Arc<Keyring>, rules: ClaimRules) -> Self {
        let checks = thread::available_parallelism().map_or(1, |cores| cores.get()).min(CHECKS_MAX);
        let (verified, waiting) = (VerifiedTokens::default(), AtomicUsize::new(0));
        Self { keyring, rules: Live::new(rules), verified, checks: Semaphore::new(checks), waiting }
    }

    /// Replaces the node's own keys and the rules; connections that are logged in stay.
    pub fn replace(&self, own: Vec<TokenKey>, rules: ClaimRules) {
        // In this order: tokens that were verified by the former rules are void with the new version of the keys.
        self.rules.set(rules);
        self.keyring.replace_own(own);
    }

    /// Returns the longest validity of a token by the rules in force; zero for no limit.
    pub fn max_lifetime(&self) -> Duration {
        self.rules.get().max_lifetime
    }

    /// Creates a verifier of HS256 tokens signed with `key`.
    pub fn hs256(key: &[u8]) -> Self {
        Self::new(Arc::new(Keyring::new(vec![TokenKey::hs256(key, None)], None)), ClaimRules::default())
    }

    /// Verifies a token at the wall-clock time `wall_ms` (ms since 1970) on this thread, with the keys in force.
    ///
    /// # Errors
    /// The token is refused, for the reason given.
    pub fn verify(&self, token: &str, wall_ms: u64) -> Result<TokenIdentity, TokenFault> {
        let head = Head::of(token, self.rules.get().token_bytes_max)?;
        let keys = self.keyring.set().find(head.id.as_deref(), head.algorithm)?;
        self.open(&keys, token, wall_ms).map(|(identity, _)| identity)
    }

    /// Verifies a token at the wall-clock time `wall_ms`. An HS256 token, and one that was verified before, is ready at
    /// the first poll; the signatures of others are checked on threads that may block, a few at once. A token with an
    /// unknown `kid` may wait for a refresh of the remote keys.
    ///
    /// # Errors
    /// The token is refused, for the reason given; with [`TokenFault::Busy`] if too many tokens wait.
    pub async fn check(self: Arc<Self>, token: String, wall_ms: u64) -> Result<TokenIdentity, TokenFault> {
        let head = Head::of(&token, self.rules.get().token_bytes_max)?;
        let id = head.id.as_deref();
        let mut set = self.keyring.set();
        let mut found = set.find(id, head.algorithm);
        let mut place = None;
        if matches!(found, Err(TokenFault::UnknownKey | TokenFault::NoKeys)) {
            place = Some(self.wait()?);
            if self.keyring.refresh().await {
                set = self.keyring.set();
                found = set.find(id, head.algorithm);
            }
        }
        let keys = found?;
        if keys.iter().all(|key| key.is_fast()) {
            return self.open(&keys, &token, wall_ms).map(|(identity, _)| identity);
        }
        let hash = cache::hash(&token);
        if let Some((identity, validity)) = self.verified.get(&hash, set.version) {
            return self.rules.get().check_times(validity, wall_ms / 1_000).map(|()| identity);
        }
        let _place = match place {
            Some(place) => place,
            None => self.wait()?,
        };
        let _check = self.checks.acquire().await.map_err(|_| TokenFault::Busy)?;
        let verifier = Arc::clone(&self);
        let work = move || verifier.open(&keys, &token, wall_ms);
        // The runtime drops the work only when the node stops.
        let verified = supervised::spawn_blocking("a check of a token", work).await;
        let verified = verified.map_err(|_| TokenFault::Busy)??;
        self.verified.insert(hash, set.version, verified.clone());
        Ok(verified.0)
    }

    fn wait(&self) -> Result<Waiting<'_>, TokenFault> {
        let place = Waiting(&self.waiting);
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            return Err(TokenFault::Busy);
        }
        Ok(place)
    }

    /// Checks the signature with each key until one fits, then the claims.
    fn open(
        &self,
        keys: &[Arc<TokenKey>],
        token: &str,
        wall_ms: u64,
    ) -> Result<(TokenIdentity, Validity), TokenFault> {
        let mut opened = Err(TokenFault::Signature);
        for key in keys {
            opened = key.open(token);
            if !matches!(opened, Err(TokenFault::Signature)) {
                break;
            }
        }
        self.rules.get().check(&opened?, wall_ms / 1_000)
    }
}

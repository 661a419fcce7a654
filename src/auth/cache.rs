//! Cache of verified tokens, so that clients that reconnect cost no second check of the signature.

use std::{collections::HashMap, mem};

use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;

use super::rules::{TokenIdentity, Validity};

/// Most memory of one generation, in bytes; there are two.
const GENERATION_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Memory that an entry takes in addition to its grants, in bytes.
const ENTRY_BYTES: usize = 192;

/// Hash of a token.
pub(super) type TokenHash = [u8; 32];

/// Verified tokens by their hash, in two generations: the older one is dropped when the newer one is full.
#[derive(Default)]
pub(super) struct VerifiedTokens(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    /// Version of the keys that verified the tokens.
    version: u64,
    new: HashMap<TokenHash, (TokenIdentity, Validity)>,
    old: HashMap<TokenHash, (TokenIdentity, Validity)>,
    new_bytes: usize,
}

/// Returns the hash of a token.
pub(super) fn hash(token: &str) -> TokenHash {
    let mut hash = TokenHash::default();
    hash.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    hash
}

impl VerifiedTokens {
    /// Returns the identity of a token that was verified with keys of this version.
    pub(super) fn get(&self, hash: &TokenHash, version: u64) -> Option<(TokenIdentity, Validity)> {
        let cache = self.0.lock();
        if cache.version != version {
            return None;
        }
        cache.new.get(hash).or_else(|| cache.old.get(hash)).cloned()
    }

    /// Stores a token that was verified with keys of this version; other keys make all others void.
    pub(super) fn insert(&self, hash: TokenHash, version: u64, verified: (TokenIdentity, Validity)) {
        let mut cache = self.0.lock();
        if cache.version > version {
            return;
        }
        if cache.version < version {
            *cache = Generations { version, ..Generations::default() };
        }
        let bytes = ENTRY_BYTES + verified.0.grants.as_ref().map_or(0, |grants| grants.weight());
        if cache.new_bytes + bytes > GENERATION_BYTES_MAX {
            cache.old = mem::take(&mut cache.new);
            cache.new_bytes = 0;
        }
        cache.new_bytes += bytes;
        cache.new.insert(hash, verified);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::UserId;

    use super::*;
    use crate::auth::TokenTerm;

    fn verified() -> (TokenIdentity, Validity) {
        let identity = TokenIdentity {
            user: UserId::new("ann").unwrap(),
            device: None,
            grants: None,
            term: TokenTerm::default(),
        };
        (identity, Validity { from: 0.0, until: 1 })
    }

    #[test]
    fn other_keys_make_cached_tokens_void() {
        let cache = VerifiedTokens::default();
        cache.insert(hash("a"), 1, verified());
        assert!(cache.get(&hash("a"), 1).is_some() && cache.get(&hash("b"), 1).is_none());
        assert!(cache.get(&hash("a"), 2).is_none());
        cache.insert(hash("b"), 2, verified());
        cache.insert(hash("c"), 1, verified());
        assert!(cache.get(&hash("b"), 2).is_some() && cache.get(&hash("a"), 2).is_none());
        assert!(cache.get(&hash("c"), 2).is_none(), "a late result of former keys is not stored");
    }

    #[test]
    fn memory_is_bounded_and_recent_tokens_stay() {
        let cache = VerifiedTokens::default();
        let most = GENERATION_BYTES_MAX / ENTRY_BYTES;
        for n in 0..3 * most {
            cache.insert(hash(&n.to_string()), 1, verified());
        }
        let state = cache.0.lock();
        assert!(state.new.len() <= most && state.old.len() <= most);
        drop(state);
        assert!(cache.get(&hash(&(3 * most - 1).to_string()), 1).is_some());
        assert!(cache.get(&hash("0"), 1).is_none());
    }
}

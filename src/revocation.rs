//! Revocations: tokens that are refused although they have not expired, and the set of them that a node has in force.
//!
//! The store keeps them (`store/revocations.rs`); each node has all in memory, because every login is checked.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::RwLock;
use tidegate_protocol::id::{DeviceId, UserId};

use crate::auth::{Grants, TokenTerm};

/// Most revocations of one user, in addition to one of all tokens before a time.
pub const USER_REVOCATIONS_MAX: usize = 256;

/// Most revocations of all users; a node accepts no further ones.
pub const REVOCATIONS_MAX: usize = 100_000;

/// Largest id of a revoked token, in bytes: that of the claim `jti`.
pub const TOKEN_ID_BYTES_MAX: usize = 128;

/// Age from which a revocation is replaced by a later one of all tokens of its user: more than the clocks of an issuer
/// and a node may differ, so that no token that it names was issued after that one.
const REPLACED_AGE_MS: u64 = 120_000;

/// Time for which the store keeps that the revocations of a user were taken back, in ms. A node that reads no store for
/// longer keeps them in force until it restarts.
pub const CLEARED_TTL_MS: u64 = 86_400_000;

/// Tokens of a user that a revocation names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RevokedTokens {
    /// Tokens issued before this time, in ms since 1970, and those without a time of issue.
    Before(u64),
    /// Token with this id.
    Id(String),
    /// Tokens issued before this time, and those without a time of issue, when this device uses them.
    Device(DeviceId, u64),
    /// None: the earlier revocations of the user are taken back. The store keeps it for [`CLEARED_TTL_MS`], so that all
    /// nodes learn of it.
    Cleared,
}

/// Revocation of tokens of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// User of the tokens.
    pub user: UserId,
    /// Tokens that are refused.
    pub tokens: RevokedTokens,
    /// Time of the revocation, in ms since 1970.
    pub at_ms: u64,
    /// Time from which it is no longer needed, because all tokens that it names have expired; `None` if some never do.
    pub until_ms: Option<u64>,
}

/// Token as it is used: by a login, a refresh or a live connection.
#[derive(Clone, Copy, Debug)]
pub struct UsedToken<'a> {
    /// User of the token.
    pub user: &'a UserId,
    /// Device that uses it; `None` if it is not known yet.
    pub device: Option<&'a DeviceId>,
    /// Times of the token.
    pub term: TokenTerm,
    /// Further claims.
    pub grants: Option<&'a Grants>,
}

impl Revocation {
    /// Returns whether the revocation names the token.
    pub fn names(&self, token: &UsedToken<'_>) -> bool {
        let is_before = |before: u64| token.term.issued_ms.is_none_or(|issued| issued < before);
        self.user == *token.user
            && match &self.tokens {
                RevokedTokens::Before(before) => is_before(*before),
                RevokedTokens::Id(id) => token.grants.and_then(|it| it.token_id.as_deref()) == Some(id),
                RevokedTokens::Device(device, before) => {
                    token.device.is_some_and(|used_by| used_by == device) && is_before(*before)
                }
                RevokedTokens::Cleared => false,
            }
    }

    /// Returns whether this revocation makes `other` of the same user superfluous.
    pub fn replaces(&self, other: &Self) -> bool {
        match (&self.tokens, &other.tokens) {
            (RevokedTokens::Before(new), RevokedTokens::Before(old)) => new >= old,
            (RevokedTokens::Id(new), RevokedTokens::Id(old)) => new == old,
            (RevokedTokens::Device(new, after), RevokedTokens::Device(old, before)) => {
                new == old && after >= before
            }
            (RevokedTokens::Cleared, RevokedTokens::Cleared) => true,
            (RevokedTokens::Cleared, _) => other.at_ms <= self.at_ms,
            (RevokedTokens::Before(before), _) => other.at_ms.saturating_add(REPLACED_AGE_MS) <= *before,
            _ => false,
        }
    }

    /// Returns whether the revocation is no longer needed.
    pub fn is_over(&self, now_ms: u64) -> bool {
        self.until_ms.is_some_and(|until| until <= now_ms)
    }
}

/// Adds a revocation to those of one user. Returns false, and changes nothing, if the user has the maximum number. One
/// of all tokens before a time always fits, and so does one that takes back the others; it is added only if there are
/// some.
pub fn add_to(all: &mut Vec<Revocation>, new: &Revocation) -> bool {
    let is_cleared = |it: &Revocation| it.tokens == RevokedTokens::Cleared;
    let is_superfluous = if is_cleared(new) {
        !all.iter().any(|old| !is_cleared(old) && new.replaces(old))
    } else {
        let makes_superfluous = |old: &Revocation| old.replaces(new) && old != new && !new.replaces(old);
        all.iter().any(|old| !is_cleared(old) && makes_superfluous(old))
    };
    if is_superfluous {
        return true;
    }
    let always_fits = |it: &Revocation| is_cleared(it) || matches!(it.tokens, RevokedTokens::Before(_));
    let kept = all.iter().filter(|old| !always_fits(old) && !new.replaces(old)).count();
    if kept >= USER_REVOCATIONS_MAX && !always_fits(new) {
        return false;
    }
    all.retain(|old| !new.replaces(old));
    all.push(new.clone());
    true
}

/// Revocations in force on a node.
#[derive(Default)]
pub struct Revocations {
    of_user: RwLock<HashMap<UserId, Vec<Revocation>>>,
    count: AtomicU64,
}

impl Revocations {
    /// Puts a revocation in force, or takes back those of its user. One that is superfluous changes nothing.
    pub fn add(&self, new: &Revocation) {
        let mut of_user = self.of_user.write();
        let all = of_user.entry(new.user.clone()).or_default();
        let before = all.len();
        if new.tokens == RevokedTokens::Cleared {
            all.retain(|old| !new.replaces(old));
        } else if !add_to(all, new) {
            // The store has bounded the number; a few more come from nodes that wrote at the same time.
            all.push(new.clone());
        }
        let after = all.len();
        if after == 0 {
            of_user.remove(&new.user);
        }
        self.count.fetch_add(after as u64, Ordering::Relaxed);
        self.count.fetch_sub(before as u64, Ordering::Relaxed);
    }

    /// Removes the revocations that are no longer needed.
    pub fn prune(&self, now_ms: u64) {
        let mut of_user = self.of_user.write();
        of_user.retain(|_, all| {
            all.retain(|it| !it.is_over(now_ms));
            !all.is_empty()
        });
        let count = of_user.values().map(Vec::len).sum::<usize>();
        self.count.store(count as u64, Ordering::Relaxed);
    }

    /// Returns whether a revocation names the token.
    pub fn names(&self, token: &UsedToken<'_>) -> bool {
        if self.count() == 0 {
            return false;
        }
        let of_user = self.of_user.read();
        of_user.get(token.user).is_some_and(|all| all.iter().any(|it| it.names(token)))
    }

    /// Returns the revocations of a user, the newest first.
    pub fn of(&self, user: &UserId) -> Vec<Revocation> {
        let mut all = self.of_user.read().get(user).cloned().unwrap_or_default();
        all.sort_by_key(|it| std::cmp::Reverse(it.at_ms));
        all
    }

    /// Returns the number of revocations.
    pub fn count(&self) -> usize {
        usize::try_from(self.count.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> UserId {
        UserId::new(name).unwrap()
    }

    fn revocation(tokens: RevokedTokens, at_ms: u64) -> Revocation {
        Revocation { user: user("ann"), tokens, at_ms, until_ms: None }
    }

    fn device(name: &str) -> DeviceId {
        DeviceId::new(name).unwrap()
    }

    #[test]
    fn revocation_names_tokens_of_its_user_by_time_id_or_device() {
        let (ann, bob, phone, desk) = (user("ann"), user("bob"), device("phone"), device("desk"));
        let mut grants = Grants::default();
        grants.token_id.replace("t1".into());
        let token = |user, device, issued_ms, grants| UsedToken {
            user,
            device,
            term: TokenTerm { expires_ms: u64::MAX, issued_ms },
            grants,
        };
        let before = revocation(RevokedTokens::Before(1_000), 0);
        assert!(before.names(&token(&ann, None, Some(999), None)));
        assert!(before.names(&token(&ann, None, None, None)), "its time of issue is unknown");
        assert!(!before.names(&token(&ann, None, Some(1_000), None)));
        assert!(!before.names(&token(&bob, None, Some(999), None)));
        let id = revocation(RevokedTokens::Id("t1".into()), 0);
        assert!(id.names(&token(&ann, Some(&desk), Some(5_000), Some(&grants))));
        assert!(!id.names(&token(&ann, Some(&desk), None, None)));
        let lost = revocation(RevokedTokens::Device(phone.clone(), 1_000), 0);
        assert!(lost.names(&token(&ann, Some(&phone), Some(1), None)));
        assert!(!lost.names(&token(&ann, Some(&desk), Some(1), None)));
        assert!(!lost.names(&token(&ann, Some(&phone), Some(1_000), None)), "issued for the found device");
        assert!(!lost.names(&token(&ann, None, Some(1), None)));
    }

    #[test]
    fn set_is_bounded_per_user_and_a_later_time_replaces_older_ones() {
        let mut all = Vec::new();
        for n in 0..USER_REVOCATIONS_MAX {
            assert!(add_to(&mut all, &revocation(RevokedTokens::Id(n.to_string()), 1_000)));
        }
        let one_more = revocation(RevokedTokens::Id("one more".into()), 1_000);
        assert!(!add_to(&mut all, &one_more) && !all.contains(&one_more));
        assert!(add_to(&mut all, &revocation(RevokedTokens::Id("7".into()), 2_000)), "replaces its own");
        // A clock that is ahead may have issued those tokens after this time.
        assert!(add_to(&mut all, &revocation(RevokedTokens::Before(121_000 - 1), 121_000)));
        assert_eq!(all.len(), USER_REVOCATIONS_MAX + 1);
        assert!(add_to(&mut all, &revocation(RevokedTokens::Before(122_000), 122_000)));
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(add_to(&mut all, &revocation(RevokedTokens::Before(5), 123_000)));
        assert_eq!(all[0].tokens, RevokedTokens::Before(122_000), "an earlier time takes nothing back");
    }

    #[test]
    fn cleared_revocations_are_no_longer_in_force() {
        let cleared = revocation(RevokedTokens::Cleared, 10);
        let old = revocation(RevokedTokens::Id("t".into()), 10);
        let new = revocation(RevokedTokens::Before(3), 11);
        let mut all = Vec::new();
        assert!(add_to(&mut all, &cleared) && all.is_empty(), "there is none to take back");
        all = vec![old.clone(), new.clone()];
        assert!(add_to(&mut all, &cleared));
        assert_eq!(all, [new.clone(), cleared.clone()]);
        assert!(add_to(&mut all, &old));
        assert_eq!(all, [new.clone(), cleared.clone(), old.clone()], "revoked again");
        let set = Revocations::default();
        [&old, &new, &cleared].into_iter().for_each(|it| set.add(it));
        assert_eq!((set.of(&user("ann")), set.count()), (vec![new], 1));
        set.add(&revocation(RevokedTokens::Cleared, 11));
        set.add(&cleared);
        assert_eq!((set.of(&user("ann")).len(), set.count()), (0, 0));
    }

    #[test]
    fn revocations_end_when_their_tokens_have_expired() {
        let set = Revocations::default();
        let token =
            |device| UsedToken { user: device, device: None, term: TokenTerm::default(), grants: None };
        set.add(&Revocation { until_ms: Some(10), ..revocation(RevokedTokens::Before(1), 1) });
        let ann = user("ann");
        assert!(set.names(&token(&ann)) && set.count() == 1 && set.of(&ann).len() == 1);
        set.prune(9);
        assert!(set.names(&token(&ann)));
        set.prune(10);
        assert!(!set.names(&token(&ann)) && set.count() == 0);
        set.add(&revocation(RevokedTokens::Before(1), 1));
        set.prune(u64::MAX);
        assert!(set.names(&token(&ann)), "some of its tokens never expire");
    }
}

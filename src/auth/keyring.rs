//! Keyring: the node's own keys, and those of a set that is loaded from a URL and replaced with overlap.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use jsonwebtoken::Algorithm;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

use super::{
    fault::TokenFault,
    key::{KEYS_MAX, TokenKey},
};

/// Most keys that the signature of one token is checked with.
const CANDIDATES_MAX: usize = 4;

/// Longest wait of a token with an unknown `kid` for the refresh that it caused.
const REFRESH_WAIT_MAX: Duration = Duration::from_secs(3);

/// Keys in force at one time.
pub(super) struct KeySet {
    keys: Vec<Arc<TokenKey>>,
    /// Rises with each change, so that results of earlier keys are recognised.
    pub(super) version: u64,
    /// Whether a remote set is configured and was never loaded.
    is_incomplete: bool,
}

impl KeySet {
    /// Returns the keys for a token with this `kid` and algorithm, at most [`CANDIDATES_MAX`].
    pub(super) fn find(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Vec<Arc<TokenKey>>, TokenFault> {
        let named: Vec<&Arc<TokenKey>> = match (id, &self.keys[..]) {
            // A single key without a `kid` verifies all tokens, as a node with one secret always did.
            (_, [only]) if id.is_none() || only.id().is_none() => vec![only],
            _ => self.keys.iter().filter(|key| key.id() == id).collect(),
        };
        if named.is_empty() {
            return Err(if self.is_incomplete { TokenFault::NoKeys } else { TokenFault::UnknownKey });
        }
        let fitting = named.into_iter().filter(|key| key.algorithm() == algorithm).take(CANDIDATES_MAX);
        let fitting: Vec<Arc<TokenKey>> = fitting.cloned().collect();
        if fitting.is_empty() { Err(TokenFault::Algorithm) } else { Ok(fitting) }
    }
}

/// Times of the remote set.
#[derive(Clone, Copy, Debug)]
pub struct RemoteSettings {
    /// Time for which a key stays in force after it vanished from the set.
    pub keep: Duration,
    /// Shortest time between refreshes that unknown `kid`s cause.
    pub cooldown: Duration,
}

struct Remote {
    settings: RemoteSettings,
    state: Mutex<RemoteState>,
    wanted: Notify,
    /// Number of attempts to load the set that have ended.
    attempts: watch::Sender<u64>,
}

#[derive(Default)]
struct RemoteState {
    /// Keys, each with the time at which it was first missed in the set.
    keys: Vec<(Arc<TokenKey>, Option<Instant>)>,
    requested_at: Option<Instant>,
    is_loaded: bool,
}

/// Keys that verify tokens.
pub struct Keyring {
    own: RwLock<Vec<Arc<TokenKey>>>,
    set: RwLock<Arc<KeySet>>,
    remote: Option<Remote>,
}

impl Keyring {
    /// Creates a keyring with these keys, and with those of a remote set if `remote` is given.
    pub fn new(own: Vec<TokenKey>, remote: Option<RemoteSettings>) -> Self {
        let own: Vec<Arc<TokenKey>> = own.into_iter().map(Arc::new).collect();
        let set = KeySet { keys: own.clone(), version: 0, is_incomplete: remote.is_some() };
        let remote = remote.map(|settings| Remote {
            settings,
            state: Mutex::default(),
            wanted: Notify::new(),
            attempts: watch::Sender::new(0),
        });
        Self { own: RwLock::new(own), set: RwLock::new(Arc::new(set)), remote }
    }

    /// Returns the keys in force.
    pub(super) fn set(&self) -> Arc<KeySet> {
        Arc::clone(&self.set.read())
    }

    /// Returns the number of keys in force.
    pub fn len(&self) -> usize {
        self.set.read().keys.len()
    }

    /// Returns whether no key is in force.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns each key in force as its `kid` and algorithm.
    pub fn names(&self) -> Vec<String> {
        let set = self.set();
        set.keys.iter().map(|key| format!("{:?} kid {}", key.algorithm(), key.id().unwrap_or("-"))).collect()
    }

    /// Replaces the remote set. A key that it no longer has stays in force for the configured time.
    pub fn replace(&self, fresh: Vec<TokenKey>, now: Instant) {
        let Some(remote) = &self.remote else { return };
        let mut state = remote.state.lock();
        let mut keys: Vec<(Arc<TokenKey>, Option<Instant>)> =
            fresh.into_iter().map(|key| (Arc::new(key), None)).collect();
        for (key, missed_at) in mem::take(&mut state.keys) {
            let missed_at = missed_at.unwrap_or(now);
            // A key of the same name is replaced: the publisher decides what the name means.
            let is_replaced = keys.iter().any(|(fresh, _)| fresh.id() == key.id());
            if !is_replaced && now - missed_at < remote.settings.keep && keys.len() < 2 * KEYS_MAX {
                keys.push((key, Some(missed_at)));
            }
        }
        state.keys = keys;
        state.is_loaded = true;
        self.publish(&state);
    }

    /// Removes keys that vanished from the set for longer than the configured time; a failed refresh removes no other.
    pub fn expire(&self, now: Instant) {
        let Some(remote) = &self.remote else { return };
        let mut state = remote.state.lock();
        let before = state.keys.len();
        let keep = remote.settings.keep;
        state.keys.retain(|(_, missed_at)| missed_at.is_none_or(|missed_at| now - missed_at < keep));
        if state.keys.len() < before {
            self.publish(&state);
        }
    }

    /// Replaces the node's own keys. Results of earlier keys are void, also if the keys are the same.
    pub fn replace_own(&self, own: Vec<TokenKey>) {
        *self.own.write() = own.into_iter().map(Arc::new).collect();
        match &self.remote {
            Some(remote) => self.publish(&remote.state.lock()),
            None => self.publish(&RemoteState { is_loaded: true, ..RemoteState::default() }),
        }
    }

    fn publish(&self, state: &RemoteState) {
        let own = self.own.read();
        let keys = own.iter().chain(state.keys.iter().map(|(key, _)| key)).cloned().collect();
        let mut set = self.set.write();
        *set = Arc::new(KeySet { keys, version: set.version + 1, is_incomplete: !state.is_loaded });
    }

    /// Requests a refresh of the remote set because of an unknown `kid`, and waits until it has ended. Returns whether
    /// there was one; requests within the cool-down cause none.
    pub(super) async fn refresh(&self) -> bool {
        let Some(remote) = &self.remote else { return false };
        let mut attempts = remote.attempts.subscribe();
        {
            let (mut state, now) = (remote.state.lock(), Instant::now());
            let is_recent = |at: Instant| now - at < remote.settings.cooldown;
            if state.requested_at.is_some_and(is_recent) {
                return false;
            }
            state.requested_at = Some(now);
        }
        remote.wanted.notify_one();
        tokio::time::timeout(REFRESH_WAIT_MAX, attempts.changed()).await.is_ok()
    }

    /// Waits until a refresh is requested.
    pub(super) async fn requested(&self) {
        match &self.remote {
            Some(remote) => remote.wanted.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Wakes the tokens that wait for the refresh that has ended.
    pub(super) fn attempted(&self) {
        if let Some(remote) = &self.remote {
            remote.attempts.send_modify(|attempts| *attempts += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: Option<&str>) -> TokenKey {
        TokenKey::hs256(&[7; 32], id)
    }

    fn found(keyring: &Keyring, id: Option<&str>) -> Result<usize, TokenFault> {
        keyring.set().find(id, Algorithm::HS256).map(|keys| keys.len())
    }

    #[test]
    fn kid_selects_the_key() {
        let one = Keyring::new(vec![key(None)], None);
        assert_eq!((found(&one, None), found(&one, Some("x"))), (Ok(1), Ok(1)));
        let named = Keyring::new(vec![key(Some("a"))], None);
        assert_eq!((found(&named, None), found(&named, Some("a"))), (Ok(1), Ok(1)));
        assert_eq!(found(&named, Some("x")), Err(TokenFault::UnknownKey));
        let many = Keyring::new(vec![key(None), key(Some("a")), key(Some("b"))], None);
        assert_eq!((found(&many, None), found(&many, Some("b"))), (Ok(1), Ok(1)));
        assert_eq!(found(&many, Some("x")), Err(TokenFault::UnknownKey));
        let all_named = Keyring::new(vec![key(Some("a")), key(Some("b"))], None);
        assert_eq!(found(&all_named, None), Err(TokenFault::UnknownKey));
        let other = one.set().find(None, Algorithm::RS256).unwrap_err();
        assert_eq!(other, TokenFault::Algorithm, "the key decides on the algorithm");
    }

    #[test]
    fn vanished_key_stays_in_force_for_a_time() {
        let (keep, cooldown) = (Duration::from_secs(60), Duration::from_secs(10));
        let keyring = Keyring::new(vec![], Some(RemoteSettings { keep, cooldown }));
        let start = Instant::now();
        assert_eq!(found(&keyring, Some("a")), Err(TokenFault::NoKeys));
        keyring.replace(vec![key(Some("a"))], start);
        keyring.replace(vec![key(Some("b"))], start + keep);
        assert_eq!((found(&keyring, Some("a")), found(&keyring, Some("b"))), (Ok(1), Ok(1)));
        keyring.expire(start + keep * 2 - Duration::from_secs(1));
        assert_eq!(found(&keyring, Some("a")), Ok(1));
        keyring.expire(start + keep * 2);
        assert_eq!(found(&keyring, Some("a")), Err(TokenFault::UnknownKey));
        keyring.expire(start + keep * 100);
        assert_eq!(found(&keyring, Some("b")), Ok(1), "keys of the last good set stay");
    }

    #[test]
    fn own_keys_are_replaced_next_to_remote_ones() {
        let settings = RemoteSettings { keep: Duration::ZERO, cooldown: Duration::ZERO };
        let keyring = Keyring::new(vec![key(Some("a"))], Some(settings));
        keyring.replace(vec![key(Some("r"))], Instant::now());
        let version = keyring.set().version;
        keyring.replace_own(vec![key(Some("b"))]);
        assert_eq!(found(&keyring, Some("a")), Err(TokenFault::UnknownKey));
        assert_eq!((found(&keyring, Some("b")), found(&keyring, Some("r"))), (Ok(1), Ok(1)));
        assert!(keyring.set().version > version);
        let alone = Keyring::new(vec![key(Some("a"))], None);
        alone.replace_own(vec![key(Some("b"))]);
        assert_eq!(found(&alone, Some("a")), Err(TokenFault::UnknownKey));
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_kids_cause_one_refresh_per_cooldown() {
        let settings = RemoteSettings { keep: Duration::ZERO, cooldown: Duration::from_secs(3_600) };
        let keyring = Arc::new(Keyring::new(vec![], Some(settings)));
        let refresher = Arc::clone(&keyring);
        let task = tokio::spawn(async move {
            refresher.requested().await;
            refresher.attempted();
        });
        assert!(keyring.refresh().await);
        task.await.unwrap();
        assert!(!keyring.refresh().await);
    }
}

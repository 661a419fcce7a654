//! Profiles of subjects on their way to the store and back.

use tidegate_protocol::machine::threshold::{PROFILE_BYTES, WeekProfile};

use super::{
    super::{
        guard::RuleGuard,
        keys::SubjectKeys,
        kinds::{LimitCall, LimitLevel},
        subjects::LimitSubjects,
    },
    keys::{BusyKey, RuleKey, RuleSubject},
};

/// First byte of a stored profile.
const VERSION: u8 = 1;

/// Bytes before the profile: the version, and the window in ms.
const HEAD_BYTES: usize = 5;

/// Subject whose profile the store has, or will have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileKey {
    /// Name of the profile within those of a node: rule, level and a hash of the subject.
    pub name: String,
    of: RuleKey,
}

/// Profile to store.
pub struct StoredProfile {
    /// Subject.
    pub key: ProfileKey,
    /// Value.
    pub value: Vec<u8>,
    /// Whether the store has a row of the subject already, so that this one needs no space.
    pub is_stored: bool,
    /// Whether an hour of the week is known; otherwise the profile has no effect yet.
    pub is_known: bool,
    /// Count of changes up to this value.
    changes: u32,
}

impl RuleGuard {
    /// Returns subjects whose profile is still to be read from the store, at most `most`.
    pub fn unread_profiles(&self, most: usize) -> Vec<ProfileKey> {
        // Names are hashed without the lock.
        let unread: Vec<(RuleKey, RuleSubject)> = {
            let keys = self.thresholds.keys.lock();
            let unread = keys.all().iter().filter(|entry| !entry.is_read);
            unread.take(most).map(|entry| (entry.of, entry.subject.clone())).collect()
        };
        unread.into_iter().map(|(of, subject)| ProfileKey { name: self.profile_name(&subject), of }).collect()
    }

    /// Takes the profile of a subject that the store has, or that it has none. One that can't be read, or is of another
    /// window, is none.
    pub fn handle_profile(&self, key: &ProfileKey, value: Option<&[u8]>) {
        let mut keys = self.thresholds.keys.lock();
        let Some(entry) = keys.get_mut(&key.of) else { return };
        (entry.is_read, entry.is_stored) = (true, value.is_some());
        if let Some(profile) = value.and_then(|value| decode(value, entry.window_ms)) {
            entry.profile = profile;
        }
    }

    /// Returns the profiles that have changed since they were stored, of the rules in force.
    pub fn changed_profiles(&self) -> Vec<StoredProfile> {
        struct Changed {
            of: RuleKey,
            subject: RuleSubject,
            profile: WeekProfile,
            window_ms: u32,
            is_stored: bool,
            changes: u32,
        }
        let in_force = self.in_force.get();
        let changed: Vec<Changed> = {
            let keys = self.thresholds.keys.lock();
            // Windows of a former rule may have a subject of the same name.
            let is_changed = |entry: &&BusyKey| entry.is_changed && in_force.has(entry.of.serial);
            let changed = |entry: &BusyKey| {
                let BusyKey { of, subject, profile, window_ms, is_stored, changes, .. } = entry;
                let (of, window_ms, is_stored, changes) = (*of, *window_ms, *is_stored, *changes);
                let (subject, profile) = (subject.clone(), profile.clone());
                Changed { of, subject, profile, window_ms, is_stored, changes }
            };
            keys.all().iter().filter(is_changed).map(changed).collect()
        };
        let stored = |it: Changed| StoredProfile {
            key: ProfileKey { name: self.profile_name(&it.subject), of: it.of },
            value: encode(&it.profile, it.window_ms),
            is_stored: it.is_stored,
            is_known: it.profile.is_known(),
            changes: it.changes,
        };
        changed.into_iter().map(stored).collect()
    }

    /// Takes notice that the store has these profiles. One that has changed since then is still to be stored.
    pub fn handle_profiles_stored<'a>(&self, stored: impl IntoIterator<Item = &'a StoredProfile>) {
        let mut keys = self.thresholds.keys.lock();
        for profile in stored {
            if let Some(entry) = keys.get_mut(&profile.key.of) {
                (entry.is_stored, entry.is_refused) = (true, false);
                entry.is_changed &= entry.changes != profile.changes;
            }
        }
    }

    /// Takes notice that the store has no space for these profiles. Their subjects may be replaced before they are stored.
    pub fn handle_profiles_refused<'a>(&self, refused: impl IntoIterator<Item = &'a StoredProfile>) {
        let mut keys = self.thresholds.keys.lock();
        for profile in refused {
            if let Some(entry) = keys.get_mut(&profile.key.of) {
                entry.is_refused = true;
            }
        }
    }

    /// Takes the names of profiles of replaced subjects, which are to be removed from the store; at most `most`.
    pub fn take_evicted_profiles(&self, most: usize) -> Vec<String> {
        let evicted = self.thresholds.keys.lock().take_evicted(most);
        evicted.iter().map(|subject| self.profile_name(subject)).collect()
    }

    fn profile_name(&self, RuleSubject { rule, level, name }: &RuleSubject) -> String {
        let hash = LimitSubjects::named(*level, name)
            .map_or(0, |it| SubjectKeys::new(&self.hasher, call(*level), &it).everywhere(*level));
        format!("{rule}/{}/{hash:032x}", level.name())
    }

    /// Returns whether the name stands for the subject: a shortened one does not.
    pub(in crate::limits) fn is_named(&self, level: LimitLevel, name: &str, key: u64) -> bool {
        LimitSubjects::named(level, name)
            .is_some_and(|it| SubjectKeys::new(&self.hasher, call(level), &it).key(level) == Some(key))
    }
}

/// Returns a call that has a subject of the level.
const fn call(level: LimitLevel) -> LimitCall {
    if matches!(level, LimitLevel::Key) { LimitCall::ApiPost } else { LimitCall::Send }
}

fn encode(profile: &WeekProfile, window_ms: u32) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEAD_BYTES + PROFILE_BYTES);
    value.push(VERSION);
    value.extend(window_ms.to_le_bytes());
    value.extend(profile.to_bytes());
    value
}

fn decode(value: &[u8], window_ms: u32) -> Option<WeekProfile> {
    let (head, profile) = value.split_first_chunk::<HEAD_BYTES>()?;
    let is_known = head[0] == VERSION && head[1..] == window_ms.to_le_bytes();
    let profile: &[u8; PROFILE_BYTES] = profile.try_into().ok()?;
    is_known.then(|| WeekProfile::from_bytes(profile))
}

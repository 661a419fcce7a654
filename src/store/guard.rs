//! Part of the port `Store` that keeps what the guard must remember: rules, bans, suspensions, storms and the like.
//!
//! All entries are one collection with one version, which each change raises. A reader that has read all up to a version
//! finds the later changes, and misses none: versions become visible in their order. A removed entry stays as a row
//! without a value for [`TOMBSTONE_MS`], so that readers learn of it. An entry that has ended by the clock of the store is
//! never returned again, and has no further row: readers end it themselves, by the time on each page.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Store, StoreError};
use crate::fault::Faulty;

/// Most entries that one call changes.
pub const GUARD_BATCH_MAX: usize = 256;

/// Most entries in all, including removed ones and those of kinds that this version does not know.
pub const GUARD_ENTRIES_MAX: u64 = 220_064;

/// Longest name of an entry, in bytes.
pub const GUARD_NAME_BYTES_MAX: usize = 256;

/// Longest value of an entry, in bytes.
pub const GUARD_VALUE_BYTES_MAX: usize = 4_096;

/// Most rows of a page, whatever the caller asks for: at most about 4.3 MB.
pub const GUARD_PAGE_MAX: usize = 1_000;

/// Time for which readers can learn that an entry was removed, in ms.
pub const TOMBSTONE_MS: u64 = 10 * 60 * 1_000;

/// Ended rows of each kind that a put removes first. More than a batch, so an ended entry never makes its kind full.
pub(crate) const ENDED_AT_ONCE: usize = 512;

const _: () = assert!(ENDED_AT_ONCE > GUARD_BATCH_MAX);

/// Kind of an entry. The numbers are stored and never change; rows of other numbers are kept, and not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GuardKind {
    /// Limit of a level of callers.
    Rule = 1,
    /// Network, user or device that is refused.
    Ban = 2,
    /// Network that is never banned.
    Allow = 3,
    /// User or device that may not send for a time.
    Suspend = 4,
    /// Priority of a user in live rooms.
    Priority = 5,
    /// Storm in force in a conversation.
    Storm = 6,
    /// Usual load of a key, by hours of the week.
    Profile = 7,
    /// State of a long window.
    Window = 8,
    /// Rule by which a single group has storms.
    StormRule = 9,
    /// Subject whose evidence is erased.
    Erasure = 10,
    /// Endpoint of webhooks, with its secrets.
    Webhook = 11,
    /// Live room that is closed.
    ClosedRoom = 12,
}

impl GuardKind {
    /// All kinds, by number.
    pub const ALL: [Self; 12] = [
        Self::Rule,
        Self::Ban,
        Self::Allow,
        Self::Suspend,
        Self::Priority,
        Self::Storm,
        Self::Profile,
        Self::Window,
        Self::StormRule,
        Self::Erasure,
        Self::Webhook,
        Self::ClosedRoom,
    ];

    /// Returns the stored number.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the kind of a stored number; `None` if this version does not know it.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// Returns the most entries of this kind, including removed ones. Together the kinds fit into
    /// [`GUARD_ENTRIES_MAX`], so none takes the space of another. Closed rooms have space for as many removed ones: the admin
    /// API bounds those in force by themselves.
    pub const fn entries_max(self) -> u64 {
        match self {
            Self::Rule | Self::Storm => 10_000,
            Self::ClosedRoom => 20_000,
            Self::Ban => 100_000,
            Self::Allow | Self::Profile | Self::StormRule => 5_000,
            Self::Window | Self::Erasure => 2_500,
            Self::Suspend => 20_000,
            Self::Priority => 40_000,
            Self::Webhook => 64,
        }
    }
}

/// Part of an entry or a batch that is outside of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGuard {
    /// The name is empty, too long, or has a zero byte.
    #[error("the name must have 1 to {GUARD_NAME_BYTES_MAX} bytes, none of them zero")]
    Name,
    /// The value is too long.
    #[error("the value must have at most {GUARD_VALUE_BYTES_MAX} bytes")]
    Value,
    /// The end is beyond what every store can compare.
    #[error("the end must be below 2^63")]
    Until,
    /// The batch is too long.
    #[error("a batch must have at most {GUARD_BATCH_MAX} entries")]
    Batch,
    /// The batch has two entries with the same key.
    #[error("a batch must not have an entry twice")]
    Repeated,
}

/// Kind and name of an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuardKey {
    kind: GuardKind,
    name: String,
}

impl GuardKey {
    /// Creates a key.
    ///
    /// # Errors
    /// [`InvalidGuard::Name`].
    pub fn new(kind: GuardKind, name: impl Into<String>) -> Result<Self, InvalidGuard> {
        let name = name.into();
        if name.is_empty() || name.len() > GUARD_NAME_BYTES_MAX || name.contains('\0') {
            return Err(InvalidGuard::Name);
        }
        Ok(Self { kind, name })
    }

    /// Returns the kind.
    pub const fn kind(&self) -> GuardKind {
        self.kind
    }

    /// Returns the name, unique within its kind.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Entry to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardEntry {
    key: GuardKey,
    value: Bytes,
    until_ms: Option<u64>,
}

impl GuardEntry {
    /// Creates an entry that ends at `until_ms` by the store's clock; `None` if it has no end.
    ///
    /// # Errors
    /// [`InvalidGuard::Value`] or [`InvalidGuard::Until`].
    pub fn new(key: GuardKey, value: Bytes, until_ms: Option<u64>) -> Result<Self, InvalidGuard> {
        if value.len() > GUARD_VALUE_BYTES_MAX {
            return Err(InvalidGuard::Value);
        }
        if until_ms.is_some_and(|until| i64::try_from(until).is_err()) {
            return Err(InvalidGuard::Until);
        }
        Ok(Self { key, value, until_ms })
    }
}

/// Entry to store, and the condition on which it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardPut {
    /// Entry.
    pub entry: GuardEntry,
    /// Version that the stored entry must have, 0 if there must be none; `None` if any will do.
    pub expected: Option<u64>,
}

/// Entries that are stored as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardBatch(Vec<GuardEdit>);

impl GuardBatch {
    /// Creates a batch.
    ///
    /// # Errors
    /// [`InvalidGuard::Batch`] or [`InvalidGuard::Repeated`].
    pub fn new(puts: Vec<GuardPut>) -> Result<Self, InvalidGuard> {
        if puts.len() > GUARD_BATCH_MAX {
            return Err(InvalidGuard::Batch);
        }
        let mut keys: Vec<&GuardKey> = puts.iter().map(|it| &it.entry.key).collect();
        keys.sort_unstable();
        if keys.windows(2).any(|two| two[0] == two[1]) {
            return Err(InvalidGuard::Repeated);
        }
        Ok(Self(puts.into_iter().map(GuardEdit::from).collect()))
    }

    /// Returns the changes.
    pub(crate) fn edits(&self) -> &[GuardEdit] {
        &self.0
    }
}

impl From<GuardPut> for GuardBatch {
    fn from(put: GuardPut) -> Self {
        Self(vec![put.into()])
    }
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardOutcome {
    /// Changed; this is the version of the last entry of the batch, in whose order the versions rise.
    Stored(u64),
    /// Nothing was to be done: the batch is empty, or the entry to remove does not exist.
    Unchanged,
    /// Refused: this entry has another version than expected, 0 if it does not exist. Nothing changed.
    Conflict(GuardKey, u64),
    /// Refused: this kind, or all kinds together, would have more entries than allowed. Nothing changed.
    Full(GuardKind),
}

/// Stored row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardRow {
    /// Version of its last change.
    pub version: u64,
    /// Kind and name.
    pub key: GuardKey,
    /// Value; `None` if the entry was removed.
    pub value: Option<Bytes>,
    /// End by the store's clock, in ms since 1970; `None` if it has no end.
    pub until_ms: Option<u64>,
}

impl GuardRow {
    /// Returns whether the row has ended at `now_ms`.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.until_ms.is_some_and(|until| until <= now_ms)
    }
}

/// Rows above a version, with the newest version of the same snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardPage {
    /// Version of the newest change; 0 if there was none. Lower than one of before if the store fell back to an older
    /// state: all must be read again.
    pub newest: u64,
    /// Version up to which this page has all rows, from where the next page goes on. The page is the last one if this is
    /// `newest`. A page may have no rows and not be the last one.
    pub read_to: u64,
    /// Store's clock, in ms since 1970.
    pub now_ms: u64,
    /// Rows that have not ended, by rising version, each entry once with its newest state.
    pub rows: Vec<GuardRow>,
}

/// Store of the guard's entries, as durable as archives. On return a change is visible to every read.
///
/// A change whose outcome is [`StoreError::Unknown`] may be repeated; with an expected version, the repeat may find the
/// version that the first attempt has written, which is a conflict.
#[async_trait]
pub trait GuardStore: Send + Sync {
    /// Stores the entries, or none of them. First removes some rows that have ended.
    async fn put_guard(&self, batch: &GuardBatch) -> Result<GuardOutcome, StoreError>;

    /// Removes an entry, if it has the `expected` version or that is `None`. Never refused as full.
    async fn remove_guard(&self, key: &GuardKey, expected: Option<u64>) -> Result<GuardOutcome, StoreError>;

    /// Returns rows with a version above `after`, at most `limit` and [`GUARD_PAGE_MAX`].
    async fn guard_since(&self, after: u64, limit: usize) -> Result<GuardPage, StoreError>;

    /// Returns an entry; `None` if it does not exist, was removed or has ended.
    async fn guard_get(&self, key: &GuardKey) -> Result<Option<GuardRow>, StoreError>;
}

#[async_trait]
impl GuardStore for Faulty<dyn Store> {
    async fn put_guard(&self, batch: &GuardBatch) -> Result<GuardOutcome, StoreError> {
        self.call("put_guard", self.inner.put_guard(batch)).await
    }

    async fn remove_guard(&self, key: &GuardKey, expected: Option<u64>) -> Result<GuardOutcome, StoreError> {
        self.call("remove_guard", self.inner.remove_guard(key, expected)).await
    }

    async fn guard_since(&self, after: u64, limit: usize) -> Result<GuardPage, StoreError> {
        self.call("guard_since", self.inner.guard_since(after, limit)).await
    }

    async fn guard_get(&self, key: &GuardKey) -> Result<Option<GuardRow>, StoreError> {
        self.call("guard_get", self.inner.guard_get(key)).await
    }
}

/// Change of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuardEdit {
    pub(crate) key: GuardKey,
    /// `None` to remove it.
    pub(crate) value: Option<Bytes>,
    until_ms: Option<u64>,
    expected: Option<u64>,
}

impl From<GuardPut> for GuardEdit {
    fn from(put: GuardPut) -> Self {
        let GuardPut { entry: GuardEntry { key, value, until_ms }, expected } = put;
        Self { key, value: Some(value), until_ms, expected }
    }
}

impl GuardEdit {
    /// Creates the removal of an entry.
    pub(crate) fn removal(key: &GuardKey, expected: Option<u64>) -> Self {
        Self { key: key.clone(), value: None, until_ms: None, expected }
    }

    /// Returns the end of the row that the change leaves: of a removal, the time until which readers learn of it.
    pub(crate) fn until_ms(&self, now_ms: u64) -> Option<u64> {
        match self.value {
            Some(_) => self.until_ms,
            None => Some(now_ms.saturating_add(TOMBSTONE_MS)),
        }
    }
}

/// Row that a change finds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundGuard {
    pub(crate) version: u64,
    /// Whether it has a value and has not ended.
    pub(crate) is_live: bool,
}

/// Numbers of rows, by the number of the kind.
pub(crate) type GuardCounts = BTreeMap<u8, u64>;

/// Checks changes against the rows that they find, in the order of the changes, and against the numbers of rows. Returns
/// the numbers that change.
///
/// # Errors
/// The outcome if the changes are refused, or change nothing.
pub(crate) fn check_edits(
    edits: &[GuardEdit],
    found: &[Option<FoundGuard>],
    counts: &GuardCounts,
) -> Result<GuardCounts, GuardOutcome> {
    let mut total = counts.values().sum::<u64>();
    let mut changed = GuardCounts::new();
    let mut is_change = false;
    for (edit, found) in edits.iter().zip(found) {
        let kind = edit.key.kind;
        let version = found.filter(|it| it.is_live).map_or(0, |it| it.version);
        if edit.expected.is_some_and(|expected| expected != version) {
            return Err(GuardOutcome::Conflict(edit.key.clone(), version));
        }
        is_change |= edit.value.is_some() || version > 0;
        if found.is_none() && edit.value.is_some() {
            let stored = counts.get(&kind.number()).copied().unwrap_or(0);
            let count = changed.entry(kind.number()).or_insert(stored);
            *count += 1;
            total += 1;
            if *count > kind.entries_max() || total > GUARD_ENTRIES_MAX {
                return Err(GuardOutcome::Full(kind));
            }
        }
    }
    if is_change { Ok(changed) } else { Err(GuardOutcome::Unchanged) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: GuardKind, name: &str) -> GuardKey {
        GuardKey::new(kind, name).unwrap()
    }

    fn put(kind: GuardKind, name: &str) -> GuardPut {
        let entry = GuardEntry::new(key(kind, name), Bytes::new(), None).unwrap();
        GuardPut { entry, expected: None }
    }

    #[test]
    fn numbers_are_fixed_and_the_kinds_fit_together() {
        let numbers = GuardKind::ALL.map(GuardKind::number);
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(
            GuardKind::ALL.map(|kind| GuardKind::from_number(kind.number())),
            GuardKind::ALL.map(Some)
        );
        assert_eq!((GuardKind::from_number(0), GuardKind::from_number(13)), (None, None));
        let sum: u64 = GuardKind::ALL.into_iter().map(GuardKind::entries_max).sum();
        assert_eq!(sum, GUARD_ENTRIES_MAX);
    }

    #[test]
    fn limits_of_keys_entries_and_batches_are_exact() {
        for (name, is_valid) in [("", false), ("a\0b", false), ("a", true)] {
            assert_eq!(GuardKey::new(GuardKind::Ban, name).is_ok(), is_valid, "{name:?}");
        }
        assert!(GuardKey::new(GuardKind::Ban, "n".repeat(256)).is_ok());
        assert_eq!(GuardKey::new(GuardKind::Ban, "n".repeat(257)), Err(InvalidGuard::Name));
        let of =
            |bytes: usize, until| GuardEntry::new(key(GuardKind::Ban, "a"), vec![0; bytes].into(), until);
        assert!(of(4_096, Some(i64::MAX as u64)).is_ok());
        assert_eq!(of(4_097, None), Err(InvalidGuard::Value));
        assert_eq!(of(0, Some(1 << 63)), Err(InvalidGuard::Until));
        let many = |count: usize| (0..count).map(|n| put(GuardKind::Ban, &n.to_string())).collect::<Vec<_>>();
        assert!(GuardBatch::new(many(256)).is_ok());
        assert_eq!(GuardBatch::new(many(257)), Err(InvalidGuard::Batch));
        let twice = vec![put(GuardKind::Ban, "a"), put(GuardKind::Allow, "a"), put(GuardKind::Ban, "a")];
        assert_eq!(GuardBatch::new(twice), Err(InvalidGuard::Repeated));
    }

    #[test]
    fn opened_rooms_leave_space_for_closed_ones() {
        let batch = GuardBatch::new(vec![put(GuardKind::ClosedRoom, "hall")]).unwrap();
        let check = |rows| check_edits(batch.edits(), &[None], &GuardCounts::from([(12, rows)]));
        assert_eq!(check(10_000), Ok(GuardCounts::from([(12, 10_001)])));
        assert_eq!(check(20_000), Err(GuardOutcome::Full(GuardKind::ClosedRoom)));
    }

    #[test]
    fn unknown_kinds_count_towards_the_whole_collection() {
        let batch = GuardBatch::new(vec![put(GuardKind::Rule, "a"), put(GuardKind::Rule, "b")]).unwrap();
        let check = |others| check_edits(batch.edits(), &[None, None], &GuardCounts::from([(99, others)]));
        assert_eq!(check(GUARD_ENTRIES_MAX - 2), Ok(GuardCounts::from([(1, 2)])));
        assert_eq!(check(GUARD_ENTRIES_MAX - 1), Err(GuardOutcome::Full(GuardKind::Rule)));
    }
}

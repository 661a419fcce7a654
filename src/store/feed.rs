//! Part of the port `Store` that keeps the feed: which records were archived, in log order, under dense numbers (ADR 31).
//!
//! The archive of a batch writes its part of the feed in the same transaction. Consumers follow a partition by number, and
//! store how far they are under the fence of its owner.

use std::ops::RangeInclusive;

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_protocol::{id::ConversationId, record::Body};

use super::{Fence, Store, StoreError};
use crate::fault::Faulty;

mod batch;

pub(crate) use self::batch::{DamagedFeed, EncodedBatch, FeedRow, FeedState, first_number, is_expired, page};

/// Most consumers that have cursors. The first cursor of a further one is refused as [`CursorOutcome::Full`].
pub const FEED_CONSUMERS_MAX: usize = 128;

/// Longest cursor of a consumer in a partition, in bytes.
pub const CURSOR_BYTES_MAX: usize = 256 * 1024;

/// Longest name of a consumer, in bytes.
pub const CONSUMER_BYTES_MAX: usize = 64;

/// Most entries of a page, whatever the caller asks for.
pub const FEED_PAGE_MAX: usize = 10_000;

/// Most rows, each of one batch, that [`FeedStore::trim_feed`] removes at once, so that it delays no archive.
pub const FEED_TRIM_ROWS: usize = 1_024;

/// Kind of an entry of the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeedKind {
    /// Message; the entry's seq is its row.
    Message,
    /// Change of a group or its members; the entry's seq is its row.
    Change,
    /// Recall; the entry's seq is its row, which names the message.
    Recall,
    /// Edit; the entry's seq is its row, which names the message.
    Edit,
    /// Removal of the oldest rows by retention or an operator; the entry's seq is the last removed one.
    Prune,
    /// Kind that a newer version has written, by its number. Consumers skip it.
    Unknown(u8),
}

impl FeedKind {
    /// Returns the stored number, which never changes; 0 is never used.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Message => 1,
            Self::Change => 2,
            Self::Recall => 3,
            Self::Prune => 4,
            Self::Edit => 5,
            Self::Unknown(number) => number,
        }
    }

    pub(crate) const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Message,
            2 => Self::Change,
            3 => Self::Recall,
            4 => Self::Prune,
            5 => Self::Edit,
            other => Self::Unknown(other),
        }
    }

    /// Returns the kind of a row of history; `None` for a body that has no row.
    pub(crate) const fn of(body: &Body) -> Option<Self> {
        match body {
            Body::Message(_) => Some(Self::Message),
            Body::Member(_) => Some(Self::Change),
            Body::Recall(_) => Some(Self::Recall),
            Body::Edit(_) => Some(Self::Edit),
            Body::Prune(_) | Body::Rules(_) => None,
        }
    }
}

/// Entry of the feed: a reference to a record of a conversation, without content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedEntry {
    /// Number in the partition. The first entry has 1, and each next one the next number.
    pub number: u64,
    /// Conversation id.
    pub conversation: ConversationId,
    /// Seq in the conversation; see [`FeedKind`].
    pub seq: u64,
    /// Kind of the record.
    pub kind: FeedKind,
    /// Receive time of the record, in ms since 1970.
    pub time: u64,
}

/// Limits of a page of the feed. A page has at least one entry, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedLimits {
    /// Most entries, and at most [`FEED_PAGE_MAX`].
    pub entries: usize,
    /// Approximate maximum of bytes in memory.
    pub bytes: usize,
}

/// Entries that follow a number, without a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedPage {
    /// Entries by rising number; none if the reader has them all.
    pub entries: Vec<FeedEntry>,
    /// Lowest number that retention has kept; `newest + 1` if it has kept none.
    pub oldest: u64,
    /// Number of the newest entry; 0 before the first.
    pub newest: u64,
}

/// Result of reading the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedRead {
    /// The entries after the number.
    Page(FeedPage),
    /// These entries, the next ones, are not in the feed: retention has removed them, or they were archived while the feed
    /// was off or by a version without one. The records themselves are in the history. Reading goes on after the last.
    Missing(RangeInclusive<u64>),
    /// The number is above that of the newest entry, which is this: the store fell back to an older state, or is another
    /// one. What the reader has seen above it will come again.
    Ahead(u64),
}

/// State of the feed of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedPosition {
    /// Partition number.
    pub partition: u32,
    /// Lowest number that retention has kept; `newest + 1` if it has kept none.
    pub oldest: u64,
    /// Number of the newest entry; 0 before the first.
    pub newest: u64,
    /// Bytes of the kept entries, in the store's encoding.
    pub bytes: u64,
}

/// Bounds by which old entries are removed, oldest first and up to the first that is within both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedBounds {
    /// Receive time below which entries are removed, in ms since 1970.
    pub before_ms: u64,
    /// Most bytes of the partition's feed, in the store's encoding.
    pub bytes_max: u64,
}

/// Consumer or cursor that is outside of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCursor {
    /// The name of the consumer is empty, too long, or has other characters.
    #[error("the name of a consumer must have 1 to {CONSUMER_BYTES_MAX} of the characters A-Z a-z 0-9 _ . -")]
    Consumer,
    /// The cursor is too long.
    #[error("a cursor must have at most {CURSOR_BYTES_MAX} bytes")]
    Bytes,
}

/// Name of a consumer of the feed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerName(String);

impl ConsumerName {
    /// Creates a name.
    ///
    /// # Errors
    /// [`InvalidCursor::Consumer`].
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidCursor> {
        let name = name.into();
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let is_valid = (1..=CONSUMER_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed);
        if is_valid { Ok(Self(name)) } else { Err(InvalidCursor::Consumer) }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Cursor of a consumer in a partition. Its bytes are the consumer's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedCursor {
    consumer: ConsumerName,
    partition: u32,
    bytes: Bytes,
}

impl FeedCursor {
    /// Creates a cursor.
    ///
    /// # Errors
    /// [`InvalidCursor::Bytes`].
    pub fn new(consumer: ConsumerName, partition: u32, bytes: Bytes) -> Result<Self, InvalidCursor> {
        let is_valid = bytes.len() <= CURSOR_BYTES_MAX;
        is_valid.then_some(Self { consumer, partition, bytes }).ok_or(InvalidCursor::Bytes)
    }

    /// Returns the name of the consumer.
    pub const fn consumer(&self) -> &ConsumerName {
        &self.consumer
    }

    /// Returns the partition number.
    pub const fn partition(&self) -> u32 {
        self.partition
    }

    /// Returns the consumer's bytes.
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Result of saving a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorOutcome {
    /// The cursor is stored in place of the former one.
    Saved,
    /// Refused: the consumer has no cursor, and [`FEED_CONSUMERS_MAX`] others have some. Nothing changed.
    Full,
}

/// Feed of each partition, and the cursors of its consumers.
///
/// The numbers are a function of the log from the record on with which the feed began: an archive of the same records, in
/// other batches or by another owner, gives the same entries the same numbers. They go on while the feed is off, and no
/// entry is written then. Records that a version without a feed has archived have no numbers; one number that no entry has
/// stands for them.
#[async_trait]
pub trait FeedStore: Send + Sync {
    /// Returns whether archives write the feed. If not, readers find that entries are missing.
    fn has_feed(&self) -> bool {
        true
    }

    /// Reads the entries after a number, in one snapshot.
    async fn read_feed(&self, partition: u32, after: u64, limits: FeedLimits)
    -> Result<FeedRead, StoreError>;

    /// Returns the state of each partition that has been taken over, by number, in one snapshot.
    async fn feed_positions(&self) -> Result<Vec<FeedPosition>, StoreError>;

    /// Returns the number of the newest entry: all that is archived later has a higher one.
    async fn feed_position(&self, partition: u32) -> Result<u64, StoreError> {
        let all = self.feed_positions().await?;
        Ok(all.into_iter().find(|it| it.partition == partition).map_or(0, |it| it.newest))
    }

    /// Removes the oldest entries that are outside of the bounds, at most [`FEED_TRIM_ROWS`] batches of them, and returns
    /// the number of removed batches: fewer than that means that none is left.
    async fn trim_feed(&self, partition: u32, fence: Fence, bounds: FeedBounds) -> Result<u64, StoreError>;

    /// Stores a cursor in place of the consumer's former one in the partition. A crash of the store may undo it, so that the
    /// consumer repeats what followed the former one; it never keeps a cursor and undoes an archive that was before it.
    ///
    /// Fails with [`StoreError::Fenced`] if another owner has the partition.
    async fn save_cursor(&self, fence: Fence, cursor: &FeedCursor) -> Result<CursorOutcome, StoreError>;

    /// Stores a cursor as [`Self::save_cursor`] does, as durably as an archive: for those that skip entries, or that an
    /// operator ordered. Archives of the partition may have to wait for it.
    async fn save_cursor_durably(
        &self,
        fence: Fence,
        cursor: &FeedCursor,
    ) -> Result<CursorOutcome, StoreError>;

    /// Returns the cursors of a consumer, by partition.
    async fn cursors(&self, consumer: &ConsumerName) -> Result<Vec<FeedCursor>, StoreError>;

    /// Returns the names of all consumers that have a cursor, sorted.
    async fn consumers(&self) -> Result<Vec<ConsumerName>, StoreError>;

    /// Removes all cursors of a consumer.
    async fn forget_consumer(&self, consumer: &ConsumerName) -> Result<(), StoreError>;
}

#[async_trait]
impl FeedStore for Faulty<dyn Store> {
    fn has_feed(&self) -> bool {
        self.inner.has_feed()
    }

    async fn read_feed(
        &self,
        partition: u32,
        after: u64,
        limits: FeedLimits,
    ) -> Result<FeedRead, StoreError> {
        self.call("read_feed", self.inner.read_feed(partition, after, limits)).await
    }

    async fn feed_positions(&self) -> Result<Vec<FeedPosition>, StoreError> {
        self.call("feed_positions", self.inner.feed_positions()).await
    }

    async fn trim_feed(&self, partition: u32, fence: Fence, bounds: FeedBounds) -> Result<u64, StoreError> {
        self.call("trim_feed", self.inner.trim_feed(partition, fence, bounds)).await
    }

    async fn save_cursor(&self, fence: Fence, cursor: &FeedCursor) -> Result<CursorOutcome, StoreError> {
        self.call("save_cursor", self.inner.save_cursor(fence, cursor)).await
    }

    async fn save_cursor_durably(
        &self,
        fence: Fence,
        cursor: &FeedCursor,
    ) -> Result<CursorOutcome, StoreError> {
        self.call("save_cursor_durably", self.inner.save_cursor_durably(fence, cursor)).await
    }

    async fn cursors(&self, consumer: &ConsumerName) -> Result<Vec<FeedCursor>, StoreError> {
        self.call("cursors", self.inner.cursors(consumer)).await
    }

    async fn consumers(&self) -> Result<Vec<ConsumerName>, StoreError> {
        self.call("consumers", self.inner.consumers()).await
    }

    async fn forget_consumer(&self, consumer: &ConsumerName) -> Result<(), StoreError> {
        self.call("forget_consumer", self.inner.forget_consumer(consumer)).await
    }
}

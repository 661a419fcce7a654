//! The feed; not kept by this store yet.

use async_trait::async_trait;

use super::EmbeddedStore;
use crate::store::{
    ConsumerName, CursorOutcome, FeedBounds, FeedCursor, FeedLimits, FeedPosition, FeedRead, FeedStore,
    Fence, StoreError,
};

fn absent() -> StoreError {
    StoreError::Unavailable("this store keeps no feed".to_owned())
}

#[async_trait]
impl FeedStore for EmbeddedStore {
    fn has_feed(&self) -> bool {
        false
    }

    async fn read_feed(&self, _: u32, _: u64, _: FeedLimits) -> Result<FeedRead, StoreError> {
        Err(absent())
    }

    async fn feed_positions(&self) -> Result<Vec<FeedPosition>, StoreError> {
        Err(absent())
    }

    async fn trim_feed(&self, _: u32, _: Fence, _: FeedBounds) -> Result<u64, StoreError> {
        Err(absent())
    }

    async fn save_cursor(&self, _: Fence, _: &FeedCursor) -> Result<CursorOutcome, StoreError> {
        Err(absent())
    }

    async fn cursors(&self, _: &ConsumerName) -> Result<Vec<FeedCursor>, StoreError> {
        Err(absent())
    }

    async fn consumers(&self) -> Result<Vec<ConsumerName>, StoreError> {
        Err(absent())
    }

    async fn forget_consumer(&self, _: &ConsumerName) -> Result<(), StoreError> {
        Err(absent())
    }
}

//! `Bus` over the embedded store: the log of one machine, durable.
//!
//! In the process it is a [`LocalBus`]: records are readable by their owner at once. An append is confirmed when its
//! records are on the disk, which the owner's archive does for all of them with one sync; what was read but not yet
//! confirmed dies with the process, and so does the owner that read it. The log on disk begins at the last record
//! that was archived: an archive allows what `trim` allows.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    bus::{
        AppendError, Appended, Batch, Bounds, Bus, BusState, LocalBus, LocalBusConfig, NodeFeed, Ownership,
        ReadError,
    },
    embedded::Engine,
    routes::NodeBoot,
};

/// The log of a node that keeps its messages on its own disk.
pub struct EmbeddedBus {
    local: LocalBus,
    engine: Arc<Engine>,
}

impl EmbeddedBus {
    /// The log of the engine's store. Once for each engine. Of the settings, the topic is the store's.
    pub fn new(engine: Arc<Engine>, config: LocalBusConfig) -> Self {
        let config = LocalBusConfig { topic: engine.topic(), ..config };
        Self { local: LocalBus::resume(config, |partition| engine.kept(partition)), engine }
    }
}

#[async_trait]
impl Bus for EmbeddedBus {
    fn partitions(&self) -> u32 {
        self.local.partitions()
    }

    fn state(&self) -> BusState {
        let refuses_all = self.engine.is_full() || self.local.state().refuses_all;
        BusState { durable: true, refuses_all }
    }

    async fn append(&self, partition: u32, records: Vec<Bytes>) -> Result<Appended, AppendError> {
        let append = |records| self.local.append_now(partition, records);
        self.engine.append(partition, records, append).await
    }

    async fn read(
        &self,
        partition: u32,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Batch, ReadError> {
        self.local.read(partition, from, max_records, max_bytes).await
    }

    async fn bounds(&self, partition: u32) -> Result<Bounds, ReadError> {
        self.local.bounds(partition).await
    }

    async fn trim(&self, partition: u32, archived: u64) -> Result<(), ReadError> {
        self.local.trim(partition, archived).await
    }

    async fn join(&self, me: &NodeBoot) -> Result<Box<dyn Ownership>, ReadError> {
        self.local.join(me).await
    }

    async fn publish_node(&self, to: &NodeBoot, records: Vec<Bytes>) -> Result<(), AppendError> {
        self.local.publish_node(to, records).await
    }

    async fn consume_node(&self, me: &NodeBoot) -> Result<Box<dyn NodeFeed>, ReadError> {
        self.local.consume_node(me).await
    }

    async fn close(&self, within: Duration) -> Result<(), AppendError> {
        // No append after this; then those before it.
        self.local.close(within).await?;
        if self.engine.spill(within).await {
            Ok(())
        } else {
            Err(AppendError::Unknown("what was appended last may not be on the disk".to_owned()))
        }
    }
}

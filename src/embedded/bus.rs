//! `Bus` over the embedded engine: the durable log of a single machine.
//!
//! Within the process it is a [`LocalBus`]: the owner reads records at once. An append is confirmed when its records
//! are on the disk, usually by the single sync of the owner's archive. Records that were read but not confirmed are
//! lost with the process, and so is the owner that read them. The log on disk begins at the last archived record:
//! each archive trims it.

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

/// Log of a node that stores its messages on its own disk.
pub struct EmbeddedBus {
    local: LocalBus,
    engine: Arc<Engine>,
}

impl EmbeddedBus {
    /// Creates the log of an engine, once per engine. The topic of `config` is replaced by that of the store.
    pub fn new(engine: Arc<Engine>, config: LocalBusConfig) -> Self {
        let config = LocalBusConfig { topic: engine.topic(), ..config };
        Self { local: LocalBus::resume(config, |partition| engine.initial_records(partition)), engine }
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
        // First bar new appends, then write the pending ones.
        self.local.close(within).await?;
        if self.engine.spill(within).await {
            Ok(())
        } else {
            Err(AppendError::Unknown("the last appended records may not be on the disk".to_owned()))
        }
    }
}

//! Fault-injecting wrapper of a `Bus`. Its event streams are those of the wrapped bus, without faults.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{AppendError, Appended, Batch, Bounds, Bus, BusState, NodeFeed, Ownership, ReadError};
use crate::{
    fault::{Breaks, Faulty},
    routes::{NodeBoot, TopicLag},
};

impl Breaks for AppendError {
    fn unavailable(why: String) -> Self {
        Self::Unavailable(why)
    }
    fn unknown(why: String) -> Self {
        Self::Unknown(why)
    }
}

impl Breaks for ReadError {
    fn unavailable(why: String) -> Self {
        Self::Unavailable(why)
    }
    fn unknown(why: String) -> Self {
        Self::Unavailable(why)
    }
}

#[async_trait]
impl Bus for Faulty<dyn Bus> {
    fn partitions(&self) -> u32 {
        self.inner.partitions()
    }

    fn state(&self) -> BusState {
        self.inner.state()
    }

    async fn append(&self, partition: u32, records: Vec<Bytes>) -> Result<Appended, AppendError> {
        self.call("append", self.inner.append(partition, records)).await
    }

    async fn read(
        &self,
        partition: u32,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Batch, ReadError> {
        self.call("read", self.inner.read(partition, from, max_records, max_bytes)).await
    }

    async fn bounds(&self, partition: u32) -> Result<Bounds, ReadError> {
        self.call("bounds", self.inner.bounds(partition)).await
    }

    async fn trim(&self, partition: u32, archived: u64) -> Result<(), ReadError> {
        self.call("trim", self.inner.trim(partition, archived)).await
    }

    async fn join(&self, me: &NodeBoot) -> Result<Box<dyn Ownership>, ReadError> {
        self.call("join", self.inner.join(me)).await
    }

    async fn publish_node(&self, to: &NodeBoot, records: Vec<Bytes>) -> Result<(), AppendError> {
        self.call("publish_node", self.inner.publish_node(to, records)).await
    }

    async fn consume_node(&self, me: &NodeBoot) -> Result<Box<dyn NodeFeed>, ReadError> {
        self.call("consume_node", self.inner.consume_node(me)).await
    }

    fn node_lag(&self) -> Option<TopicLag> {
        self.inner.node_lag()
    }

    async fn close(&self, within: Duration) -> Result<(), AppendError> {
        self.call("close", self.inner.close(within)).await
    }
}

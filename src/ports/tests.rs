//! Ports in memory, shared by the unit tests of the modules above.

use std::sync::Arc;

use tidegate_protocol::Time;

use super::Ports;
use crate::{
    bus::{LocalBus, LocalBusConfig, TopicId},
    link::Link,
    routes::{Leases, MemoryRoutes},
    scratch::MemoryScratch,
    store::MemoryStore,
};

impl Ports {
    /// Creates ports with a log of one partition that takes one record. A test replaces those that it is about.
    pub(crate) fn in_memory(link: Arc<dyn Link>) -> Self {
        let log = LocalBusConfig {
            partitions: 1,
            topic: TopicId(1),
            max_records: 1,
            max_bytes: 1,
            node_max_records: 1,
            node_max_bytes: 1,
        };
        let clock = || Time::from_millis(1);
        Self {
            bus: Arc::new(LocalBus::new(log)),
            store: Arc::new(MemoryStore::default()),
            routes: Arc::new(MemoryRoutes::new(1, Leases::default(), clock)),
            scratch: Arc::new(MemoryScratch::new(1, || 1)),
            link,
        }
    }
}

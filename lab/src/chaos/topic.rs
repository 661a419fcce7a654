//! Consumer of the topic of messages in a run of a cluster, which has to have everything at the end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
};
use serde_json::Value;

use super::{cluster::PARTITIONS, taken::Taken, world::World};
use crate::checker::TOPIC;

/// Longest wait for a record.
const POLL_TIMEOUT: Duration = Duration::from_millis(200);

/// Consumer of the topic, from its beginning.
pub(super) struct TopicReader {
    pub(super) taken: Arc<Taken>,
    is_over: Arc<AtomicBool>,
}

impl TopicReader {
    /// Starts a consumer, which reads on a thread until it is dropped.
    ///
    /// # Errors
    /// The library refuses the topic.
    pub(super) fn begin(world: &Arc<World>, brokers: &str, topic: &str) -> anyhow::Result<Self> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers).set("group.id", "none");
        config.set("reconnect.backoff.max.ms", "500");
        let consumer: BaseConsumer = config.create()?;
        let mut all = TopicPartitionList::new();
        for partition in 0..i32::try_from(PARTITIONS)? {
            all.add_partition_offset(topic, partition, Offset::Beginning)?;
        }
        consumer.assign(&all)?;
        let taken = Arc::new(Taken::new(TOPIC, Arc::clone(&world.recorder)));
        let is_over = Arc::new(AtomicBool::new(false));
        let (noting, over) = (Arc::clone(&taken), Arc::clone(&is_over));
        thread::spawn(move || {
            while !over.load(Ordering::Acquire) {
                // Brokers come and go; the library goes on by itself.
                let Some(Ok(record)) = consumer.poll(POLL_TIMEOUT) else { continue };
                let event = record.payload().and_then(|value| serde_json::from_slice::<Value>(value).ok());
                noting.note(&event.unwrap_or_default());
            }
        });
        Ok(Self { taken, is_over })
    }
}

impl Drop for TopicReader {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
    }
}

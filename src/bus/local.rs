//! `Bus` adapter in memory, for one node. Nothing survives the process.

use std::{
    collections::{HashMap, VecDeque},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use self::{log::Log, topic::Topic};
use super::{
    AppendError, Appended, Batch, Bounds, Bus, BusState, NodeEvent, NodeFeed, Ownership, OwnershipEvent,
    ReadError, TopicId,
};
use crate::routes::NodeBoot;

mod log;
mod topic;

/// Log and node topics in memory, for a single node.
///
/// One node owns all of it: the latest [`Bus::join`] is assigned every partition at once.
pub struct LocalBus(Arc<Shared>);

/// Size and limits of a [`LocalBus`].
#[derive(Clone, Copy, Debug)]
pub struct LocalBusConfig {
    /// Number of partitions.
    pub partitions: u32,
    /// Incarnation of this log; a fresh random number, since its records are lost with the process.
    pub topic: TopicId,
    /// Limit on the records of a partition; appends above it are refused until it is trimmed. [`BusState::refuses_all`]
    /// is set above half of it, so half must exceed the largest number of records in flight.
    pub max_records: usize,
    /// Limit on the bytes of a partition, with the same effects.
    pub max_bytes: usize,
    /// Limit on the records waiting in a node topic; above it the oldest are lost and a gap is reported.
    pub node_max_records: usize,
    /// Limit on the bytes waiting in a node topic, with the same effect.
    pub node_max_bytes: usize,
}

struct Shared {
    config: LocalBusConfig,
    partitions: Vec<Partition>,
    topics: Mutex<HashMap<NodeBoot, Arc<Topic>>>,
    group: Mutex<Group>,
    group_changed: Notify,
}

struct Partition {
    log: Mutex<Log>,
    /// Whether the log is over half full.
    over_half_full: AtomicBool,
    changed: Notify,
}

/// Owners group of a single member.
#[derive(Default)]
struct Group {
    /// Number of `join` calls; the latest one is the member.
    joined: u64,
    events: VecDeque<OwnershipEvent>,
    leaving: bool,
    closed: bool,
}

struct LocalOwnership {
    shared: Arc<Shared>,
    joined: u64,
}

struct LocalFeed {
    shared: Arc<Shared>,
    me: NodeBoot,
    topic: Arc<Topic>,
}

impl LocalBus {
    /// Creates an empty log.
    pub fn new(config: LocalBusConfig) -> Self {
        Self::resume(config, |_| (0, Vec::new()))
    }

    /// Creates a log whose partitions start with existing records, given with the offset of the first one.
    pub(crate) fn resume(config: LocalBusConfig, existing: impl Fn(u32) -> (u64, Vec<Bytes>)) -> Self {
        let partition = |number| {
            let (first, records) = existing(number);
            let log =
                Log::new(config.topic, config.max_records, config.max_bytes).starting_with(first, records);
            Partition { log: Mutex::new(log), over_half_full: AtomicBool::new(false), changed: Notify::new() }
        };
        Self(Arc::new(Shared {
            config,
            partitions: (0..config.partitions).map(partition).collect(),
            topics: Mutex::default(),
            group: Mutex::default(),
            group_changed: Notify::new(),
        }))
    }
}

impl LocalBus {
    /// Appends like [`Bus::append`], which never waits on this bus.
    pub(crate) fn append_now(&self, partition: u32, records: Vec<Bytes>) -> Result<Appended, AppendError> {
        let Some(partition) = self.0.partition(partition) else {
            return Err(AppendError::Rejected("no such partition".to_owned()));
        };
        let appended = {
            let mut log = partition.lock();
            let appended = log.append(records)?;
            partition.over_half_full.store(log.is_over_half_full(), Ordering::Relaxed);
            appended
        };
        partition.changed.notify_waiters();
        Ok(appended)
    }
}

impl Shared {
    fn partition(&self, partition: u32) -> Option<&Partition> {
        self.partitions.get(partition as usize)
    }

    fn group(&self) -> MutexGuard<'_, Group> {
        self.group.lock()
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<NodeBoot, Arc<Topic>>> {
        self.topics.lock()
    }

    fn disown_all(&self) {
        for partition in &self.partitions {
            partition.lock().owned = false;
            partition.changed.notify_waiters();
        }
    }
}

impl Partition {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }
}

fn no_partition() -> ReadError {
    ReadError::Unavailable("no such partition".to_owned())
}

#[async_trait]
impl Bus for LocalBus {
    fn partitions(&self) -> u32 {
        self.0.config.partitions
    }

    fn state(&self) -> BusState {
        // Refuses before the log is full, so that records in flight fit into the other half.
        let refuses_all =
            self.0.partitions.iter().any(|partition| partition.over_half_full.load(Ordering::Relaxed));
        BusState { durable: false, refuses_all }
    }

    async fn append(&self, partition: u32, records: Vec<Bytes>) -> Result<Appended, AppendError> {
        self.append_now(partition, records)
    }

    async fn read(
        &self,
        partition: u32,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Batch, ReadError> {
        let partition = self.0.partition(partition).ok_or_else(no_partition)?;
        loop {
            let mut changed = pin!(partition.changed.notified());
            // Registers before reading, so that an append in between still wakes this task.
            changed.as_mut().enable();
            if let Some(batch) = partition.lock().read(from, max_records, max_bytes)? {
                return Ok(batch);
            }
            changed.await;
        }
    }

    async fn bounds(&self, partition: u32) -> Result<Bounds, ReadError> {
        Ok(self.0.partition(partition).ok_or_else(no_partition)?.lock().bounds())
    }

    async fn trim(&self, partition: u32, archived: u64) -> Result<(), ReadError> {
        let partition = self.0.partition(partition).ok_or_else(no_partition)?;
        let mut log = partition.lock();
        log.trim(archived);
        partition.over_half_full.store(log.is_over_half_full(), Ordering::Relaxed);
        Ok(())
    }

    async fn join(&self, _: &NodeBoot) -> Result<Box<dyn Ownership>, ReadError> {
        let joined = {
            let mut group = self.0.group();
            if group.closed {
                return Err(ReadError::Unavailable("the bus is closed".to_owned()));
            }
            let events = (0..self.0.config.partitions).map(OwnershipEvent::Assigned).collect();
            *group = Group { joined: group.joined + 1, events, leaving: false, closed: false };
            // Ends the reads of the previous member.
            self.0.disown_all();
            group.joined
        };
        self.0.group_changed.notify_waiters();
        Ok(Box::new(LocalOwnership { shared: Arc::clone(&self.0), joined }))
    }

    async fn publish_node(&self, to: &NodeBoot, records: Vec<Bytes>) -> Result<(), AppendError> {
        if self.0.group().closed {
            return Err(AppendError::Rejected("the bus is closed; connect to another node".to_owned()));
        }
        let topic = self.0.topics().get(to).cloned();
        // No topic means that no feed is open; a feed opened later starts at the end anyway.
        topic.map_or(Ok(()), |topic| topic.publish(records))
    }

    async fn consume_node(&self, me: &NodeBoot) -> Result<Box<dyn NodeFeed>, ReadError> {
        if self.0.group().closed {
            return Err(ReadError::Unavailable("the bus is closed".to_owned()));
        }
        let topic = Arc::new(Topic::new(self.0.config.node_max_records, self.0.config.node_max_bytes));
        if let Some(earlier) = self.0.topics().insert(me.clone(), Arc::clone(&topic)) {
            earlier.close();
        }
        Ok(Box::new(LocalFeed { shared: Arc::clone(&self.0), me: me.clone(), topic }))
    }

    async fn close(&self, _: Duration) -> Result<(), AppendError> {
        self.0.group().closed = true;
        self.0.group_changed.notify_waiters();
        for partition in &self.0.partitions {
            partition.lock().closed = true;
            partition.changed.notify_waiters();
        }
        for topic in self.0.topics().drain() {
            topic.1.close();
        }
        Ok(())
    }
}

impl LocalOwnership {
    /// Returns the next event, `None` at the end, or an error if there is no event yet.
    fn try_next(&self) -> Result<Option<OwnershipEvent>, ()> {
        let mut group = self.shared.group();
        if group.closed || group.joined != self.joined {
            return Ok(None);
        }
        if let Some(event) = group.events.pop_front() {
            if let OwnershipEvent::Assigned(partition) = event
                && let Some(partition) = self.shared.partition(partition)
            {
                partition.lock().owned = true;
            }
            return Ok(Some(event));
        }
        let owned = self.shared.partitions.iter().any(|partition| partition.lock().owned);
        if group.leaving && !owned { Ok(None) } else { Err(()) }
    }
}

#[async_trait]
impl Ownership for LocalOwnership {
    async fn next(&mut self) -> Option<OwnershipEvent> {
        loop {
            let mut changed = pin!(self.shared.group_changed.notified());
            changed.as_mut().enable();
            if let Ok(event) = self.try_next() {
                return event;
            }
            changed.await;
        }
    }

    async fn release(&mut self, number: u32) {
        let mut group = self.shared.group();
        if group.joined != self.joined {
            return;
        }
        group.events.retain(|event| *event != OwnershipEvent::Revoked(number));
        if let Some(partition) = self.shared.partition(number) {
            partition.lock().owned = false;
            partition.changed.notify_waiters();
        }
        self.shared.group_changed.notify_waiters();
    }

    async fn leave(&mut self) {
        let mut group = self.shared.group();
        if group.joined != self.joined || group.leaving {
            return;
        }
        group.leaving = true;
        // Assignments that were not delivered need no revocation.
        group.events.clear();
        for (number, partition) in (0..).zip(&self.shared.partitions) {
            if partition.lock().owned {
                group.events.push_back(OwnershipEvent::Revoked(number));
            }
        }
        self.shared.group_changed.notify_waiters();
    }
}

impl Drop for LocalOwnership {
    fn drop(&mut self) {
        if self.shared.group().joined == self.joined {
            self.shared.disown_all();
        }
    }
}

#[async_trait]
impl NodeFeed for LocalFeed {
    async fn next(&mut self) -> Option<NodeEvent> {
        self.topic.next().await
    }
}

impl Drop for LocalFeed {
    fn drop(&mut self) {
        let mut topics = self.shared.topics();
        if topics.get(&self.me).is_some_and(|topic| Arc::ptr_eq(topic, &self.topic)) {
            topics.remove(&self.me);
        }
    }
}

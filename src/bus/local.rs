//! `Bus` inside one process: nothing outlives it.

use std::{
    collections::{HashMap, VecDeque},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;

use self::{log::Log, topic::Topic};
use super::{
    AppendError, Appended, Batch, Bounds, Bus, BusState, NodeEvent, NodeFeed, Ownership, OwnershipEvent,
    ReadError, TopicId,
};
use crate::routes::NodeBoot;

mod log;
mod topic;

/// The log of a node that keeps messages in memory only.
///
/// One node owns it: the first [`Bus::join`] is assigned every partition at once.
pub struct LocalBus(Arc<Shared>);

/// How much a [`LocalBus`] holds.
#[derive(Clone, Copy, Debug)]
pub struct LocalBusConfig {
    /// How many partitions.
    pub partitions: u32,
    /// Names this log; a fresh random number, since its records are gone with the process.
    pub topic: TopicId,
    /// The most records of a partition; appends beyond are refused until it is trimmed. From half of it on
    /// [`BusState::refuses_all`] says so, so let half be more than ever is under way.
    pub max_records: usize,
    /// The most bytes of a partition, in the same way.
    pub max_bytes: usize,
    /// The most records that wait in a node topic; the oldest beyond are lost and a gap is told.
    pub node_max_records: usize,
    /// The most bytes, in the same way.
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
    /// It is over half full.
    crowded: AtomicBool,
    changed: Notify,
}

/// Who owns what.
#[derive(Default)]
struct Group {
    /// Which call of `join` counts.
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
    /// An empty log.
    pub fn new(config: LocalBusConfig) -> Self {
        Self::resume(config, |_| (0, Vec::new()))
    }

    /// A log that begins, in each partition, with records from an offset on.
    pub(crate) fn resume(config: LocalBusConfig, kept: impl Fn(u32) -> (u64, Vec<Bytes>)) -> Self {
        let partition = |number| {
            let (first, records) = kept(number);
            let log =
                Log::new(config.topic, config.max_records, config.max_bytes).starting_with(first, records);
            Partition { log: Mutex::new(log), crowded: AtomicBool::new(false), changed: Notify::new() }
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
    /// What [`Bus::append`] does here, without a future around it.
    pub(crate) fn append_now(&self, partition: u32, records: Vec<Bytes>) -> Result<Appended, AppendError> {
        let Some(partition) = self.0.partition(partition) else {
            return Err(AppendError::Rejected("there is no such partition".to_owned()));
        };
        let appended = {
            let mut log = partition.lock();
            let appended = log.append(records)?;
            partition.crowded.store(log.is_crowded(), Ordering::Relaxed);
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
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<NodeBoot, Arc<Topic>>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_partition() -> ReadError {
    ReadError::Unavailable("there is no such partition".to_owned())
}

#[async_trait]
impl Bus for LocalBus {
    fn partitions(&self) -> u32 {
        self.0.config.partitions
    }

    fn state(&self) -> BusState {
        // Before it is full: what is under way has room in the other half.
        let crowded = self.0.partitions.iter().any(|partition| partition.crowded.load(Ordering::Relaxed));
        BusState { durable: false, refuses_all: crowded }
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
            // Before the look, so that no append falls between the look and the wait.
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
        partition.crowded.store(log.is_crowded(), Ordering::Relaxed);
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
            // Reads of the partitions that the last one owned end here.
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
        // Nobody listens: the node is gone, or its next run starts at the end anyway.
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
    /// The next event, or none at the end; an error when there is nothing to say yet.
    fn look(&self) -> Result<Option<OwnershipEvent>, ()> {
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
            if let Ok(event) = self.look() {
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
        // What was not told to be assigned need not be revoked.
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

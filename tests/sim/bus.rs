//! Log in memory that several nodes share, with an owners group that the simulation controls.
//!
//! Members get events as in Kafka's cooperative group: partitions are revoked before they move, or lost when the group
//! evicted a member. An evicted member may learn of it late.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tidegate::{
    bus::{
        AppendError, Appended, Batch, Bounds, Bus, BusState, LogRecord, NodeEvent, NodeFeed, Ownership,
        OwnershipEvent, ReadError, TopicId,
    },
    routes::NodeBoot,
};
use tokio::{sync::Notify, time::timeout};

const TOPIC: TopicId = TopicId(7);

/// Time until the group notices a crash by itself.
const SESSION_TIMEOUT: Duration = Duration::from_secs(6);

/// The log and its owners; clones share them.
#[derive(Clone)]
pub(crate) struct SharedLog(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    partitions: Vec<Partition>,
    members: BTreeMap<u64, Member>,
    next: u64,
    /// Topics that a node reads, by run.
    topics: BTreeMap<NodeBoot, VecDeque<Bytes>>,
}

#[derive(Default)]
struct Partition {
    records: Vec<Bytes>,
    /// Member that may read it.
    owner: Option<u64>,
    /// Whether the partition was revoked, and moves after its release.
    is_revoked: bool,
    /// Whether the partition has no leader, so that it can't be read.
    leaderless: bool,
}

#[derive(Default)]
struct Member {
    events: VecDeque<OwnershipEvent>,
    /// Whether the group has evicted the member.
    is_out: bool,
    leaving: bool,
}

/// Access of one node to the log.
pub(crate) struct NodeBus {
    log: SharedLog,
    /// Member numbers of the run, the present one last.
    members: Mutex<Vec<u64>>,
}

struct Seat {
    log: SharedLog,
    me: u64,
}

/// Feed of a node's own topic.
struct Feed {
    log: SharedLog,
    me: NodeBoot,
}

impl SharedLog {
    pub(crate) fn new(partitions: usize) -> Self {
        let partitions = (0..partitions).map(|_| Partition::default()).collect();
        let state = Mutex::new(State { partitions, ..State::default() });
        Self(Arc::new(Inner { state, changed: Notify::new() }))
    }

    pub(crate) fn node(&self) -> Arc<NodeBus> {
        Arc::new(NodeBus { log: self.clone(), members: Mutex::default() })
    }

    /// Evicts a member, as after its session timeout: its partitions move now. The member learns of it by
    /// [`Self::notify_eviction`].
    pub(crate) fn evict(&self, member: u64) {
        let mut state = self.lock();
        if let Some(it) = state.members.get_mut(&member) {
            it.is_out = true;
            it.events.clear();
        }
        for partition in state.partitions.iter_mut().filter(|it| it.owner == Some(member)) {
            (partition.owner, partition.is_revoked) = (None, false);
        }
        state.share();
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// Revokes a partition.
    pub(crate) fn revoke(&self, partition: usize) {
        let mut state = self.lock();
        let it = &mut state.partitions[partition];
        it.is_revoked = true;
        let owner = it.owner.expect("the partition has an owner");
        let owner = state.members.get_mut(&owner).expect("a valid value");
        owner.events.push_back(OwnershipEvent::Revoked(partition as u32));
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// Takes a partition's leader away.
    pub(crate) fn lose_leader(&self, partition: usize) {
        self.lock().partitions[partition].leaderless = true;
    }

    /// Notifies an evicted member, which joins again.
    pub(crate) fn notify_eviction(&self, member: u64) {
        let mut state = self.lock();
        let count = state.partitions.len() as u32;
        if let Some(it) = state.members.get_mut(&member).filter(|it| it.is_out) {
            it.is_out = false;
            it.events.extend((0..count).map(OwnershipEvent::Lost));
        }
        state.share();
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// Returns the records of a partition.
    pub(crate) fn records(&self, partition: usize) -> Vec<Bytes> {
        self.lock().partitions[partition].records.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no panic while the lock is held")
    }
}

impl State {
    /// Spreads the partitions evenly: free ones are assigned, others are revoked first.
    fn share(&mut self) {
        let there: Vec<u64> =
            self.members.iter().filter(|(_, it)| !it.is_out && !it.leaving).map(|(id, _)| *id).collect();
        for (number, partition) in self.partitions.iter_mut().enumerate() {
            let wanted = there.get(number % there.len().max(1)).copied();
            match (partition.owner, wanted) {
                (None, Some(wanted)) => {
                    partition.owner = Some(wanted);
                    self.members
                        .get_mut(&wanted)
                        .expect("a valid value")
                        .events
                        .push_back(OwnershipEvent::Assigned(number as u32));
                }
                (Some(owner), wanted) if Some(owner) != wanted && !partition.is_revoked => {
                    partition.is_revoked = true;
                    self.members
                        .get_mut(&owner)
                        .expect("a valid value")
                        .events
                        .push_back(OwnershipEvent::Revoked(number as u32));
                }
                _ => {}
            }
        }
    }
}

impl NodeBus {
    /// Returns its member number in the group, if it has joined.
    pub(crate) fn member(&self) -> Option<u64> {
        self.members().last().copied()
    }

    /// Returns all its member numbers. A join whose answer was lost leaves one that nobody uses, and to which the group
    /// assigns partitions until its session times out.
    pub(crate) fn members(&self) -> Vec<u64> {
        self.members.lock().expect("no panic while the lock is held").clone()
    }

    fn bounds_of(partition: &Partition) -> Bounds {
        Bounds { topic: TOPIC, first: 0, next: partition.records.len() as u64 }
    }
}

fn no_leader() -> ReadError {
    ReadError::Unavailable("the partition has no leader".to_owned())
}

#[async_trait]
impl Bus for NodeBus {
    fn partitions(&self) -> u32 {
        self.log.lock().partitions.len() as u32
    }

    fn state(&self) -> BusState {
        BusState { durable: true, refuses_all: false }
    }

    async fn append(&self, partition: u32, records: Vec<Bytes>) -> Result<Appended, AppendError> {
        let mut state = self.log.lock();
        let log = &mut state.partitions[partition as usize].records;
        let first = log.len() as u64;
        log.extend(records);
        let last = log.len() as u64 - 1;
        drop(state);
        self.log.0.changed.notify_waiters();
        Ok(Appended { first, last })
    }

    async fn read(&self, partition: u32, from: u64, most: usize, _: usize) -> Result<Batch, ReadError> {
        loop {
            let mut changed = pin!(self.log.0.changed.notified());
            changed.as_mut().enable();
            {
                let state = self.log.lock();
                let it = &state.partitions[partition as usize];
                if it.leaderless {
                    return Err(no_leader());
                }
                // An evicted member that does not know it continues to read, as from a broker with old metadata.
                let is_out = self.member().and_then(|me| state.members.get(&me)).is_some_and(|me| me.is_out);
                if it.owner != self.member() && !is_out {
                    return Err(ReadError::NotOwner);
                }
                let bounds = Self::bounds_of(it);
                if from > bounds.next {
                    return Err(ReadError::OutOfRange(bounds));
                }
                if from < bounds.next {
                    let records = it.records.iter().enumerate().skip(from as usize).take(most);
                    let records = records
                        .map(|(offset, bytes)| LogRecord { offset: offset as u64, bytes: bytes.clone() });
                    return Ok(Batch { bounds, records: records.collect() });
                }
            }
            changed.await;
        }
    }

    async fn bounds(&self, partition: u32) -> Result<Bounds, ReadError> {
        let state = self.log.lock();
        let it = &state.partitions[partition as usize];
        if it.leaderless { Err(no_leader()) } else { Ok(Self::bounds_of(it)) }
    }

    async fn trim(&self, _: u32, _: u64) -> Result<(), ReadError> {
        Ok(())
    }

    async fn join(&self, _: &NodeBoot) -> Result<Box<dyn Ownership>, ReadError> {
        let mut state = self.log.lock();
        let me = state.next;
        state.next += 1;
        state.members.insert(me, Member::default());
        state.share();
        drop(state);
        self.members.lock().expect("no panic while the lock is held").push(me);
        self.log.0.changed.notify_waiters();
        Ok(Box::new(Seat { log: self.log.clone(), me }))
    }

    async fn publish_node(&self, to: &NodeBoot, records: Vec<Bytes>) -> Result<(), AppendError> {
        // Nobody reads what was published to a run that has ended.
        if let Some(topic) = self.log.lock().topics.get_mut(to) {
            topic.extend(records);
        }
        self.log.0.changed.notify_waiters();
        Ok(())
    }

    async fn consume_node(&self, me: &NodeBoot) -> Result<Box<dyn NodeFeed>, ReadError> {
        self.log.lock().topics.insert(me.clone(), VecDeque::new());
        Ok(Box::new(Feed { log: self.log.clone(), me: me.clone() }))
    }

    async fn close(&self, _: Duration) -> Result<(), AppendError> {
        Ok(())
    }
}

#[async_trait]
impl NodeFeed for Feed {
    async fn next(&mut self) -> Option<NodeEvent> {
        loop {
            let mut changed = pin!(self.log.0.changed.notified());
            changed.as_mut().enable();
            if let Some(topic) = self.log.lock().topics.get_mut(&self.me)
                && !topic.is_empty()
            {
                return Some(NodeEvent::Records(std::mem::take(topic).into()));
            }
            changed.await;
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.log.lock().topics.remove(&self.me);
    }
}

#[async_trait]
impl Ownership for Seat {
    async fn next(&mut self) -> Option<OwnershipEvent> {
        loop {
            let mut changed = pin!(self.log.0.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.log.lock();
                let owns = state.partitions.iter().any(|it| it.owner == Some(self.me));
                let me = state.members.get_mut(&self.me)?;
                if let Some(event) = me.events.pop_front() {
                    return Some(event);
                }
                if me.leaving && !owns {
                    return None;
                }
            }
            changed.await;
        }
    }

    async fn release(&mut self, partition: u32) {
        let mut state = self.log.lock();
        let it = &mut state.partitions[partition as usize];
        if it.owner == Some(self.me) {
            (it.owner, it.is_revoked) = (None, false);
            state.share();
        }
        drop(state);
        self.log.0.changed.notify_waiters();
    }

    async fn leave(&mut self) {
        let mut state = self.log.lock();
        state.members.get_mut(&self.me).expect("a valid value").leaving = true;
        state.share();
        drop(state);
        self.log.0.changed.notify_waiters();
    }
}

/// Dropping the membership is a crash: the group notices after its session timeout.
impl Drop for Seat {
    fn drop(&mut self) {
        let (log, me) = (self.log.clone(), self.me);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let end = timeout(SESSION_TIMEOUT, std::future::pending::<()>()).await;
                assert!(end.is_err(), "only the timeout ends the wait");
                log.evict(me);
            });
        }
    }
}

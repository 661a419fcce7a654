//! Membership in the owners group, the Kafka consumer group that shares the partitions. The member reads nothing and
//! runs on its own thread.
//!
//! Kafka revokes partitions and waits; the owner archives, answers and releases them; then the member returns them. A
//! member that takes longer than `kafka.revoke_ms`, or sends no heartbeat for `kafka.session_ms`, has lost them.

use std::{
    collections::{BTreeSet, VecDeque},
    pin::pin,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    config::FromClientConfigAndContext as _,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext},
    error::{KafkaError, KafkaResult},
    types::{RDKafkaErrorCode, RDKafkaRespErr},
};
use tokio::sync::Notify;

use super::{
    super::{Ownership, OwnershipEvent},
    KafkaRefusal,
    context::Context,
    read::Reader,
};
use crate::{metrics::Metrics, supervised};

type Client = BaseConsumer<Context<Arc<Member>>>;

/// Delay between polls of the library and of the owner's state.
const GROUP_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Limit on the library events handled per poll.
const EVENTS_PER_POLL_MAX: usize = 256;

/// How long an owner keeps a partition that Kafka has revoked. Kafka reassigns it when all members have rejoined, and
/// the library waits a second between two joins of one member. Released at once, the partition would have no owner for
/// most of that second.
const REVOCATION_DELAY: Duration = Duration::from_millis(700);

/// How often the library's thread is woken; shorter than the heartbeat interval (`client::member`).
const HEARTBEAT_WAKE_INTERVAL: Duration = Duration::from_millis(40);

/// Group member, shared by its thread, the library's callbacks and the owner.
pub(super) struct Member {
    reader: Arc<Reader>,
    topic: String,
    revoke_within: Duration,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    events: VecDeque<OwnershipEvent>,
    /// Partitions announced to the owner, and neither released nor lost.
    owned: BTreeSet<u32>,
    /// Owned partitions whose revocation was queued for the owner.
    revoked: BTreeSet<u32>,
    /// Partitions that Kafka waits for, with the deadline of their return.
    returning: Option<(Vec<u32>, Instant)>,
    /// Time at which the owner gets the pending revocation.
    revoke_at: Option<Instant>,
    leaving: bool,
    /// Whether the owner no longer listens, so that everything is returned at once.
    ended: bool,
    /// Whether the thread has left the group.
    left: bool,
}

impl Member {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Ends the events and disowns everything, because another member replaces this one or the bus closes.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.events.clear();
        state.revoked.clear();
        for partition in std::mem::take(&mut state.owned) {
            self.reader.own(partition, false);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until the thread has left the group; otherwise the next member would wait for the session timeout of this
    /// one.
    pub(super) async fn wait_left(&self) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.lock().left {
                return;
            }
            changed.await;
        }
    }

    fn assigned(&self, partitions: &[u32]) {
        let mut state = self.lock();
        if !state.leaving && !state.ended {
            state.events.extend(partitions.iter().copied().map(OwnershipEvent::Assigned));
        }
    }

    /// Queues the revocation of the given partitions that the owner has.
    fn revoke(&self, state: &mut State, partitions: &[u32]) {
        for partition in partitions {
            // An assignment that the owner has not received is withdrawn without a revocation.
            state.events.retain(|event| *event != OwnershipEvent::Assigned(*partition));
            if state.owned.contains(partition) && state.revoked.insert(*partition) {
                state.events.push_back(OwnershipEvent::Revoked(*partition));
            }
        }
    }

    fn lose(&self, state: &mut State, partitions: &[u32]) {
        for partition in partitions {
            let stale = [OwnershipEvent::Assigned(*partition), OwnershipEvent::Revoked(*partition)];
            state.events.retain(|event| !stale.contains(event));
            state.revoked.remove(partition);
            if state.owned.remove(partition) {
                self.reader.own(*partition, false);
                state.events.push_back(OwnershipEvent::Lost(*partition));
            }
        }
    }

    fn disown(&self, state: &mut State, partition: u32) {
        state.events.retain(|event| *event != OwnershipEvent::Revoked(partition));
        state.revoked.remove(&partition);
        if state.owned.remove(&partition) {
            self.reader.own(partition, false);
        }
    }

    /// Revokes the partitions to be returned, once their delay has passed.
    fn revoke_when_due(&self) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let is_due = |at: Instant| state.leaving || state.ended || Instant::now() >= at;
        if !state.revoke_at.is_some_and(is_due) {
            return;
        }
        state.revoke_at = None;
        if let Some((partitions, _)) = state.returning.clone() {
            self.revoke(state, &partitions);
        }
    }

    /// Returns the partitions to return to Kafka now: released by the owner, past their deadline, or already `lost`.
    fn take_returnable(&self, lost: bool) -> Option<Vec<u32>> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (partitions, until) = state.returning.clone()?;
        let late = lost || state.ended || Instant::now() > until;
        if late {
            self.lose(state, &partitions);
        } else if state.revoke_at.is_some()
            || partitions.iter().any(|partition| state.owned.contains(partition))
        {
            return None;
        }
        (state.returning, state.revoke_at) = (None, None);
        tracing::debug!(?partitions, late, "returning partitions to the owners group");
        Some(partitions)
    }

    fn list(&self, partitions: &[u32]) -> KafkaResult<TopicPartitionList> {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            // At the end there is nothing to fetch, and Kafka has no other way to assign a partition without fetching.
            list.add_partition_offset(&self.topic, *partition as i32, Offset::End)?;
        }
        Ok(list)
    }
}

impl ConsumerContext for Context<Arc<Member>> {
    fn rebalance(&self, client: &Client, change: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let member = &self.role;
        let partitions: Vec<u32> = list.elements().iter().map(|one| one.partition().max(0) as u32).collect();
        tracing::debug!(?change, ?partitions, "owners group rebalanced");
        let applied = if change == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            member.assigned(&partitions);
            assign_paused(client, member, &partitions)
        } else {
            let mut state = member.lock();
            let lost = client.assignment_lost();
            if lost || state.ended {
                member.lose(&mut state, &partitions);
                drop(state);
                unassign(client, member, &partitions)
            } else {
                // Kafka waits until the thread has revoked the partitions from the owner and unassigned them.
                let now = Instant::now();
                let is_delayed = !state.leaving && !partitions.is_empty();
                state.revoke_at = Some(if is_delayed { now + REVOCATION_DELAY } else { now });
                state.returning = Some((partitions, now + REVOCATION_DELAY + member.revoke_within));
                Ok(())
            }
        };
        if let Err(error) = applied {
            tracing::error!(%error, "failed to apply a rebalance of the owners group");
        }
        member.changed.notify_waiters();
    }
}

fn assign_paused(client: &Client, member: &Member, partitions: &[u32]) -> Result<(), KafkaError> {
    let list = member.list(partitions)?;
    client.incremental_assign(&list)?;
    if partitions.is_empty() { Ok(()) } else { client.pause(&list) }
}

fn unassign(client: &Client, member: &Member, partitions: &[u32]) -> Result<(), KafkaError> {
    client.incremental_unassign(&member.list(partitions)?)
}

/// Joins the group; the thread runs until the returned ownership is dropped or has left.
pub(super) fn join(
    config: &ClientConfig,
    reader: &Arc<Reader>,
    topic: &str,
    revoke_within: Duration,
    metrics: &Metrics,
) -> Result<(Arc<Member>, Box<dyn Ownership>), KafkaRefusal> {
    let (state, changed) = (Mutex::default(), Notify::new());
    let member = Arc::new(Member {
        reader: Arc::clone(reader),
        topic: topic.to_owned(),
        revoke_within,
        state,
        changed,
    });
    let client = Client::from_config_and_context(config, Context::new(Arc::clone(&member), metrics))?;
    client.subscribe(&[topic])?;
    let ours = Arc::clone(&member);
    let run = move || {
        run(client, &ours);
        ours.lock().left = true;
        ours.changed.notify_waiters();
    };
    supervised::spawn_thread("tidegate-owners", run)
        .map_err(|error| KafkaRefusal::permanent(format!("failed to start a thread: {error}")))?;
    Ok((Arc::clone(&member), Box::new(KafkaOwnership(member))))
}

/// Runs the member until it has left the group or has ended.
///
/// The library waits by the wall clock: if the clock is set back by an hour, a wait of 20 ms lasts an hour. A node
/// whose heartbeats wait like that competes for its partitions with their new owners. So nothing here waits in the
/// library, and each call wakes the thread that sends heartbeats.
fn run(client: Client, member: &Member) {
    let (mut unsubscribed, mut woken, mut last_refusal) = (false, Instant::now(), None);
    loop {
        // A poll handles one event, log lines included, so a single one per interval would delay the group's events.
        for _ in 0..EVENTS_PER_POLL_MAX {
            // A record can arrive before its partition is paused; the reader gets it separately.
            if let Some(Err(error)) = client.poll(Duration::ZERO) {
                let code = error.rdkafka_error_code();
                // Logged once per code: no other symptom explains why the node owns nothing.
                if code.is_some_and(is_refusal) && last_refusal != code {
                    last_refusal = code;
                    tracing::error!(
                        %error,
                        "Kafka denies access to the owners group; allow reading kafka.group and kafka.topic"
                    );
                } else {
                    tracing::debug!(%error, "owners group error");
                }
            }
        }
        thread::park_timeout(GROUP_POLL_INTERVAL);
        if woken.elapsed() >= HEARTBEAT_WAKE_INTERVAL {
            // Only the wake-up of the library's thread matters, not the result.
            client.assignment().ok();
            woken = Instant::now();
        }
        member.revoke_when_due();
        if let Some(partitions) = member.take_returnable(client.assignment_lost())
            && let Err(error) = unassign(&client, member, &partitions)
        {
            tracing::error!(%error, ?partitions, "failed to return partitions to the owners group");
        }
        member.changed.notify_waiters();
        let (leaving, ended, is_returning) = {
            let state = member.lock();
            (state.leaving, state.ended, state.returning.is_some())
        };
        if ended {
            break;
        }
        if leaving && !unsubscribed {
            tracing::debug!("leaving the owners group");
            client.unsubscribe();
            unsubscribed = true;
        }
        if unsubscribed && !is_returning && client.assignment().is_ok_and(|list| list.count() == 0) {
            break;
        }
    }
    member.lock().ended = true;
    tracing::debug!("no partitions owned; closing the group member");
    // Leaves the group, and blocks until that is done.
    drop(client);
    tracing::debug!("left the owners group");
}

fn is_refusal(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{
        ClusterAuthorizationFailed, GroupAuthorizationFailed, SaslAuthenticationFailed,
        TopicAuthorizationFailed,
    };
    [GroupAuthorizationFailed, TopicAuthorizationFailed, ClusterAuthorizationFailed, SaslAuthenticationFailed]
        .contains(&code)
}

struct KafkaOwnership(Arc<Member>);

#[async_trait]
impl Ownership for KafkaOwnership {
    async fn next(&mut self) -> Option<OwnershipEvent> {
        let member = &self.0;
        loop {
            let mut changed = pin!(member.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = member.lock();
                if let Some(event) = state.events.pop_front() {
                    if let OwnershipEvent::Assigned(partition) = event {
                        state.owned.insert(partition);
                        member.reader.own(partition, true);
                    }
                    return Some(event);
                }
                if state.ended || (state.leaving && state.owned.is_empty()) {
                    return None;
                }
            }
            changed.await;
        }
    }

    async fn release(&mut self, partition: u32) {
        let mut state = self.0.lock();
        self.0.disown(&mut state, partition);
        drop(state);
        self.0.changed.notify_waiters();
    }

    async fn leave(&mut self) {
        let mut guard = self.0.lock();
        let state = &mut *guard;
        if state.leaving || state.ended {
            return;
        }
        state.leaving = true;
        state.events.retain(|event| !matches!(event, OwnershipEvent::Assigned(_)));
        let owned: Vec<u32> = state.owned.iter().copied().collect();
        self.0.revoke(state, &owned);
        drop(guard);
        self.0.changed.notify_waiters();
    }
}

impl Drop for KafkaOwnership {
    fn drop(&mut self) {
        self.0.end();
    }
}

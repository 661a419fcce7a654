//! Owning partitions: a member of the consumer group that reads nothing, on a thread of its own.
//!
//! Kafka asks for partitions back and waits; the owner archives, answers and releases; then they are given back. Who takes
//! longer than `kafka.revoke_ms`, or was not heard of for `kafka.session_ms`, has lost them.

use std::{
    collections::{BTreeSet, VecDeque},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
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
use crate::metrics::Metrics;

type Client = BaseConsumer<Context<Arc<Member>>>;

/// Between two looks at what the owner and Kafka want.
const TICK: Duration = Duration::from_millis(20);

/// Events of the library taken at each look, at most.
const EVENTS: usize = 256;

/// How long an owner goes on that is asked for a partition. Kafka gives it away at the next join of all members, and the library lets
/// a second pass between two joins of one: given up at once, the partition would be nobody's for most of that.
const KEEP: Duration = Duration::from_millis(700);

/// How often the thread of the library is woken: oftener than it is to send a heartbeat (`client::member`).
const WAKE: Duration = Duration::from_millis(40);

/// What the thread, the library's calls and the owner share.
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
    /// Told to the owner, and not released or lost.
    owned: BTreeSet<u32>,
    /// Of those, asked back.
    asked: BTreeSet<u32>,
    /// What Kafka waits for to be given back, and until when.
    giving: Option<(Vec<u32>, Instant)>,
    /// The owner is not asked for that before.
    keep_until: Option<Instant>,
    leaving: bool,
    /// Nobody listens any more: give everything back at once.
    over: bool,
    /// The thread has left the group.
    left: bool,
}

impl Member {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No events any more, and nothing is owned: another member takes this one's place, or the bus closes.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.over = true;
        state.events.clear();
        state.asked.clear();
        for partition in std::mem::take(&mut state.owned) {
            self.reader.own(partition, false);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until the thread has left the group, so that a next member need not wait for it to be missed.
    pub(super) async fn left(&self) {
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
        if !state.leaving && !state.over {
            state.events.extend(partitions.iter().copied().map(OwnershipEvent::Assigned));
        }
    }

    /// Asks the owner for them, if it has them.
    fn ask(&self, state: &mut State, partitions: &[u32]) {
        for partition in partitions {
            // Nobody was told, so nobody need stop.
            state.events.retain(|event| *event != OwnershipEvent::Assigned(*partition));
            if state.owned.contains(partition) && state.asked.insert(*partition) {
                state.events.push_back(OwnershipEvent::Revoked(*partition));
            }
        }
    }

    fn lose(&self, state: &mut State, partitions: &[u32]) {
        for partition in partitions {
            let news = [OwnershipEvent::Assigned(*partition), OwnershipEvent::Revoked(*partition)];
            state.events.retain(|event| !news.contains(event));
            state.asked.remove(partition);
            if state.owned.remove(partition) {
                self.reader.own(*partition, false);
                state.events.push_back(OwnershipEvent::Lost(*partition));
            }
        }
    }

    fn disown(&self, state: &mut State, partition: u32) {
        state.events.retain(|event| *event != OwnershipEvent::Revoked(partition));
        state.asked.remove(&partition);
        if state.owned.remove(&partition) {
            self.reader.own(partition, false);
        }
    }

    /// Asks the owner for what is to be given back, once it is time.
    fn ask_in_time(&self) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let due = |until: Instant| state.leaving || state.over || Instant::now() >= until;
        if !state.keep_until.is_some_and(due) {
            return;
        }
        state.keep_until = None;
        if let Some((partitions, _)) = state.giving.clone() {
            self.ask(state, &partitions);
        }
    }

    /// What can be given back now: the owner is done, or its time is over, or Kafka has given them away.
    fn ready_to_give(&self, lost: bool) -> Option<Vec<u32>> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (partitions, until) = state.giving.clone()?;
        let late = lost || state.over || Instant::now() > until;
        if late {
            self.lose(state, &partitions);
        } else if state.keep_until.is_some()
            || partitions.iter().any(|partition| state.owned.contains(partition))
        {
            return None;
        }
        (state.giving, state.keep_until) = (None, None);
        tracing::debug!(?partitions, late, "partitions are given back");
        Some(partitions)
    }

    fn list(&self, partitions: &[u32]) -> KafkaResult<TopicPartitionList> {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            // The end, where there is nothing to fetch: other than by its offsets Kafka can't be told to fetch nothing.
            list.add_partition_offset(&self.topic, *partition as i32, Offset::End)?;
        }
        Ok(list)
    }
}

impl ConsumerContext for Context<Arc<Member>> {
    fn rebalance(&self, client: &Client, what: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let member = &self.role;
        let partitions: Vec<u32> = list.elements().iter().map(|one| one.partition().max(0) as u32).collect();
        tracing::debug!(?what, ?partitions, "the group of owners changes");
        let done = if what == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            member.assigned(&partitions);
            take(client, member, &partitions)
        } else {
            let mut state = member.lock();
            let lost = client.assignment_lost();
            if lost || state.over {
                member.lose(&mut state, &partitions);
                drop(state);
                give(client, member, &partitions)
            } else {
                // The thread asks for them, and gives them back; until then Kafka waits.
                let now = Instant::now();
                let waits = !state.leaving && !partitions.is_empty();
                state.keep_until = Some(if waits { now + KEEP } else { now });
                state.giving = Some((partitions, now + KEEP + member.revoke_within));
                Ok(())
            }
        };
        if let Err(error) = done {
            tracing::error!(%error, "a change of owners was not carried out");
        }
        member.changed.notify_waiters();
    }
}

fn take(client: &Client, member: &Member, partitions: &[u32]) -> Result<(), KafkaError> {
    let list = member.list(partitions)?;
    client.incremental_assign(&list)?;
    if partitions.is_empty() { Ok(()) } else { client.pause(&list) }
}

fn give(client: &Client, member: &Member, partitions: &[u32]) -> Result<(), KafkaError> {
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
    thread::Builder::new()
        .name("tidegate-owners".to_owned())
        .spawn(move || {
            run(client, &ours);
            ours.lock().left = true;
            ours.changed.notify_waiters();
        })
        .map_err(|error| KafkaRefusal::wrong(format!("a thread could not be started: {error}")))?;
    Ok((Arc::clone(&member), Box::new(KafkaOwnership(member))))
}

/// The library waits by the wall clock: where that is put back by an hour, a wait for 20 ms lasts an hour, and a node whose
/// heartbeats wait like that fights for its partitions with whoever has them now. So nothing here waits in the library, and
/// each question wakes the thread that sends heartbeats.
fn run(client: Client, member: &Member) {
    let (mut unsubscribed, mut woken, mut said) = (false, Instant::now(), None);
    loop {
        // One poll is one event, whatever it is, so one alone would have the group wait for the lines of a log.
        for _ in 0..EVENTS {
            // Records of the moment before a partition was paused: somebody else reads them.
            if let Some(Err(error)) = client.poll(Duration::ZERO) {
                let code = error.rdkafka_error_code();
                // Nothing else would say why the node owns nothing.
                if code.is_some_and(is_refusal) && said != code {
                    said = code;
                    tracing::error!(%error, "Kafka refuses this node the group of owners: allow its user to read kafka.group and kafka.topic");
                } else {
                    tracing::debug!(%error, "the group of owners");
                }
            }
        }
        thread::park_timeout(TICK);
        if woken.elapsed() >= WAKE {
            // Its answer is of no interest.
            client.assignment().ok();
            woken = Instant::now();
        }
        member.ask_in_time();
        if let Some(partitions) = member.ready_to_give(client.assignment_lost())
            && let Err(error) = give(&client, member, &partitions)
        {
            tracing::error!(%error, "partitions were not given back");
        }
        member.changed.notify_waiters();
        let (leaving, over, giving) = {
            let state = member.lock();
            (state.leaving, state.over, state.giving.is_some())
        };
        if over {
            break;
        }
        if leaving && !unsubscribed {
            tracing::debug!("leaving the group of owners");
            client.unsubscribe();
            unsubscribed = true;
        }
        if unsubscribed && !giving && client.assignment().is_ok_and(|list| list.count() == 0) {
            break;
        }
    }
    member.lock().over = true;
    // Leaves the group, and waits for that.
    tracing::debug!("nothing is owned any more: the member of the group ends");
    drop(client);
    tracing::debug!("left the group of owners");
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
                if state.over || (state.leaving && state.owned.is_empty()) {
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
        if state.leaving || state.over {
            return;
        }
        state.leaving = true;
        state.events.retain(|event| !matches!(event, OwnershipEvent::Assigned(_)));
        let owned: Vec<u32> = state.owned.iter().copied().collect();
        self.0.ask(state, &owned);
        drop(guard);
        self.0.changed.notify_waiters();
    }
}

impl Drop for KafkaOwnership {
    fn drop(&mut self) {
        self.0.end();
    }
}

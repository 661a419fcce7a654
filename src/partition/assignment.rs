//! The partitions in this node's hands: an owner for each, begun and ended as the bus says (DESIGN 6.1).
//!
//! A partition that is asked back is given up between two batches, so everything decided is archived and told; one that
//! was lost is dropped where it stands, and the store's fence keeps what it was doing from counting (flaws S6 to S9). Where
//! owners answer first, one that was lost only waits for the transaction that is under way: what that archived, it tells.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tidegate_protocol::{id::UserId, machine::ledger::Stop};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, Id, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    exit::GivenUp,
    owner::{Owner, RETRY, Settings},
    stall::{STANDS_STILL, Stall},
};
use crate::{
    bus::{Ownership, OwnershipEvent, ReadError},
    delivery::{answer_cache::Answered, local::Outbound},
    mail::ConnKey,
    metrics::Metrics,
    ports::Ports,
    routes::Route,
    store::StoreError,
};

/// Between two looks at whether archives go on.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a node stays away that gave its partitions up: at first, and at the most.
const AWAY: Duration = Duration::from_secs(10);
const AWAY_MAX: Duration = Duration::from_secs(160);

/// Who has owned for so long and then stands still begins anew: it is not what was wrong before.
const HEALTHY: Duration = Duration::from_secs(60).saturating_add(STANDS_STILL);

/// How long an owner that was lost may wait for its transaction; longer than a statement takes by default.
const LAST_WORDS: Duration = Duration::from_secs(6);

/// Within this a node that the group of owners has put out hears of it.
const GROUP_HEARTBEAT: Duration = Duration::from_secs(3);

/// What an owner works with; one of each kind for all partitions of a node.
pub struct Owning {
    /// The ports.
    pub ports: Arc<Ports>,
    /// Users who log in, where one owner has the whole log and knows memberships in its order; else none, and
    /// [`login::answer_all`](crate::login::answer_all) is for them.
    pub logins: Option<mpsc::Receiver<Vec<(ConnKey, Route)>>>,
    /// Makes what tells the clients, once for each partition.
    pub outbound: Box<dyn Fn() -> Outbound + Send + Sync>,
    /// Where owners keep what they said, for who asks again; none = there are no other nodes.
    pub answered: Option<Arc<Answered>>,
    /// From the configuration.
    pub settings: Settings,
    /// Where it counts.
    pub metrics: Metrics,
    /// Cancelled, the node leaves, partition by partition.
    pub leaving: CancellationToken,
}

impl Owning {
    /// Tells the lease, and so the other nodes, what is owned.
    fn noter(&self) -> impl Fn(u32, bool) + Send + use<> {
        let (owned, metrics) = (Arc::clone(&self.ports.owned), self.metrics.clone());
        move |partition, is_owned| {
            owned.set(partition, is_owned);
            metrics.partitions_owned.set(owned.list().len() as f64);
        }
    }

    fn note(&self, partition: u32, is_owned: bool) {
        self.noter()(partition, is_owned);
    }
}

/// The partitions in this node's hands.
#[derive(Default)]
struct Hands {
    tasks: JoinSet<(u32, GivenUp)>,
    held: HashMap<u32, Held>,
}

struct Held {
    stop: CancellationToken,
    lost: CancellationToken,
    task: AbortHandle,
}

/// How owning ended.
enum Ended {
    /// The node leaves, or is of no use.
    ForGood,
    /// Its archive stood still while others went on: the partitions are theirs for now.
    ForNow,
    /// It does not know the rules by now: the partitions are others', and it serves its clients.
    Unfit,
}

/// What it means for a node that one of its partitions was given up.
enum Verdict {
    /// Nothing: it was asked back, or what is left is of use.
    Goes,
    /// It can't follow the rules of the log any more.
    Unfit,
    /// It is of no use, or its store can't be trusted: it ends and says so (`Node::broken`), so that its partitions go to
    /// others.
    Broken,
}

/// Owns what the bus assigns, each partition in a task of its own, until the node has left. Returns early when no
/// partition can be owned: then the node is of no use. A node whose archive stands still while those of others go on
/// leaves for a while, longer each time until it has owned in health for a minute: no group takes a single partition back from
/// one who stays.
pub async fn own_all(mut owning: Owning) {
    let (leaving, mut away) = (owning.leaving.clone(), AWAY);
    loop {
        let began = Instant::now();
        match own(&mut owning).await {
            Ended::ForGood => return,
            // Nothing is learnt without another program: it must not come back and take what it would give up again.
            Ended::Unfit => return leaving.cancelled().await,
            Ended::ForNow => {}
        }
        if began.elapsed() >= HEALTHY {
            away = AWAY;
        }
        let back = async {
            tokio::time::sleep(away).await;
            store_answers(&owning.ports).await;
        };
        tokio::select! {
            biased;
            () = leaving.cancelled() => return,
            () = back => {}
        }
        away = (2 * away).min(AWAY_MAX);
    }
}

/// Waits until the store can be read again.
async fn store_answers(ports: &Ports) {
    let Ok(nobody) = UserId::new("-") else { return };
    while let Err(error) = ports.store.memberships(&nobody, None, 1).await {
        tracing::debug!(%error, "this node owns nothing before the store answers");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn join(ports: &Ports) -> Box<dyn Ownership> {
    loop {
        match ports.bus.join(&ports.me).await {
            Ok(ownership) => return ownership,
            Err(error) => {
                tracing::warn!(%error, "the owners could not be joined");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn own(owning: &mut Owning) -> Ended {
    let ports = Arc::clone(&owning.ports);
    let mut ownership = join(&ports).await;
    let (mut hands, mut left, mut ended) = (Hands::default(), false, Ended::ForGood);
    let (mut stall, mut looks) = (Stall::default(), tokio::time::interval(LOOK_EVERY));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let leaving = owning.leaving.clone();
    loop {
        tokio::select! {
            // In this order, so that a simulation runs the same way each time.
            biased;
            event = ownership.next() => match event {
                Some(OwnershipEvent::Assigned(partition)) => {
                    let logins = owning.logins.take();
                    hands.take(partition, owning, logins);
                }
                Some(OwnershipEvent::Revoked(partition)) => {
                    if stall.stands_still(partition, Instant::now()) {
                        // It would not come to an end in time; as after a crash, the fence decides what of it counts.
                        hands.drop(partition, owning);
                    }
                    if !hands.stop(partition) {
                        ownership.release(partition).await;
                    }
                }
                Some(OwnershipEvent::Lost(partition)) => hands.drop(partition, owning),
                None => return ended,
            },
            Some(done) = hands.tasks.join_next_with_id() => match done {
                // An owner that was dropped meanwhile has no say: the partition may be in new hands.
                Ok((id, (partition, _))) if !hands.holds(partition, id) => {}
                Ok((_, (partition, why))) => {
                    owning.note(partition, false);
                    hands.held.remove(&partition);
                    ownership.release(partition).await;
                    match hands.verdict(partition, &why, owning) {
                        Verdict::Unfit if !left => {
                            (left, ended) = (true, Ended::Unfit);
                            ownership.leave().await;
                        }
                        Verdict::Broken if !matches!(ended, Ended::Unfit) => return Ended::ForGood,
                        _ => {}
                    }
                }
                Err(error) if error.is_cancelled() => {}
                // Nobody knows what it had done: the node ends, and another run takes over from the store.
                Err(error) => {
                    tracing::error!(%error, "an owner panicked");
                    return Ended::ForGood;
                }
            },
            () = leaving.cancelled(), if !left => {
                left = true;
                ownership.leave().await;
            }
            _ = looks.tick(), if !left => {
                let owned = &ports.owned;
                let held = hands.held.keys().map(|it| (*it, owned.progress_of(*it), owned.is_at_log(*it)));
                if let Some(partition) = stall.look(held, ports.peers.seen().standings(), Instant::now()) {
                    tracing::error!(partition, "nothing is archived here for 10 s while other nodes archive: they get the partitions");
                    owning.metrics.given_up.increment(1);
                    (left, ended) = (true, Ended::ForNow);
                    ownership.leave().await;
                }
            }
        }
    }
}

impl Hands {
    fn take(
        &mut self,
        partition: u32,
        owning: &Owning,
        logins: Option<mpsc::Receiver<Vec<(ConnKey, Route)>>>,
    ) {
        self.drop(partition, owning);
        let (stop, lost) = (CancellationToken::new(), CancellationToken::new());
        let (stopping, losing) = (stop.clone(), lost.clone());
        let (ports, settings) = (Arc::clone(&owning.ports), owning.settings.clone());
        let answered = owning.answered.clone();
        let (metrics, note, mut out) = (owning.metrics.clone(), owning.noter(), (owning.outbound)());
        let mut logins = logins;
        let owns = async move {
            loop {
                let take_over =
                    Owner::take_over(partition, &ports, answered.as_ref(), settings.clone(), &metrics);
                let taken = tokio::select! {
                    biased;
                    // It has decided nothing, so nothing is to be waited for.
                    () = losing.cancelled() => Err(GivenUp::Asked),
                    () = stopping.cancelled() => Err(GivenUp::Asked),
                    taken = take_over => taken,
                };
                let why = match taken {
                    Ok(owner) => {
                        note(partition, true);
                        Box::pin(owner.run(&mut logins, &mut out, &stopping, &losing)).await
                    }
                    Err(error) => error,
                };
                let pause = match &why {
                    // Its fence is another's, but the partition was not taken away: a former owner came late, or this
                    // node is one and has not heard of it yet. The group says which, within a heartbeat.
                    GivenUp::Store(StoreError::Fenced) => GROUP_HEARTBEAT,
                    // Postgres failed over to a copy that lags, or was set back: what it lost the log still has, and the
                    // same seqs come of it. A log that does not fit is refused by the take-over.
                    GivenUp::Store(StoreError::PositionMismatch(_)) | GivenUp::Ledger(Stop::NotMine) => RETRY,
                    GivenUp::Log(ReadError::Unavailable(_)) | GivenUp::TooMuch(_) => RETRY,
                    _ => return (partition, why),
                };
                tracing::warn!(error = %why, partition, "taking over again");
                tokio::select! {
                    biased;
                    () = losing.cancelled() => return (partition, GivenUp::Asked),
                    () = stopping.cancelled() => return (partition, GivenUp::Asked),
                    () = tokio::time::sleep(pause) => {}
                }
            }
        };
        let ends = lost.clone();
        let task = self.tasks.spawn(async move {
            let at_last = async {
                ends.cancelled().await;
                tokio::time::sleep(LAST_WORDS).await;
            };
            tokio::select! {
                biased;
                ended = owns => ended,
                () = at_last => (partition, GivenUp::Asked),
            }
        });
        self.held.insert(partition, Held { stop, lost, task });
    }

    fn verdict(&self, partition: u32, why: &GivenUp, owning: &Owning) -> Verdict {
        if matches!(why, GivenUp::Asked | GivenUp::Log(ReadError::NotOwner)) {
            return Verdict::Goes;
        }
        tracing::error!(error = %why, partition, "a partition was given up: its conversations take no messages");
        if let GivenUp::Ledger(Stop::UnknownRules(version)) = why {
            owning.metrics.rules_unknown.set(f64::from(*version));
            // There are other nodes, and clients that this one goes on serving.
            if owning.answered.is_some() {
                tracing::error!(
                    "this node owns nothing until it is replaced; the other nodes get its partitions"
                );
                return Verdict::Unfit;
            }
        }
        if self.held.is_empty() || matches!(why, GivenUp::Store(StoreError::Broken(_))) {
            return Verdict::Broken;
        }
        Verdict::Goes
    }

    fn holds(&self, partition: u32, task: Id) -> bool {
        self.held.get(&partition).is_some_and(|held| held.task.id() == task)
    }

    /// Asks the owner to end between two batches; false if there is none.
    fn stop(&self, partition: u32) -> bool {
        let held = self.held.get(&partition);
        held.inspect(|held| held.stop.cancel()).is_some()
    }

    /// Ends the owner where it stands: what it was about to archive the fence decides, and it answers nothing more, but what is
    /// archived then.
    fn drop(&mut self, partition: u32, owning: &Owning) {
        if let Some(held) = self.held.remove(&partition) {
            match owning.settings.answers_first {
                Some(_) => held.lost.cancel(),
                None => held.task.abort(),
            }
            owning.note(partition, false);
            tracing::warn!(partition, "an owner was ended where it stood: the partition is another node's");
        }
    }
}

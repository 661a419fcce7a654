//! The task behind `Crowds`: one thing after the other.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use prost::Message as _;
use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, UserId},
    pb,
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{self, Instant, MissedTickBehavior},
};

use super::{
    Groups, Login, Order, Shared, Source,
    index::{Index, Step},
    members::Here,
};
use crate::{
    bus::{NodeEvent, NodeFeed, ReadError},
    delivery::{local::Outbound, trace_steps},
    directory::Directory,
    mail::{Audience, ConnKey, Delivery},
    metrics::Metrics,
    ports::Ports,
    routes::RoutesError,
    store::StoreError,
};

/// Between two looks at what is owed and undeclared.
const TICK: Duration = Duration::from_secs(1);

pub(super) struct Keeper {
    ports: Arc<Ports>,
    directory: Arc<Directory>,
    shared: Arc<Shared>,
    small_max: u64,
    out: Outbound,
    metrics: Metrics,
    groups: Groups<State>,
    /// Large groups that were heard of while they had no member here.
    recent: Groups<Instant>,
    /// Groups with members here of which something may have been missed that would have said that they are large.
    strange: HashSet<ConversationId>,
    jobs: JoinSet<Done>,
    /// Where all groups stand is being read; with a store that is slow that may take longer than a round.
    looking: bool,
    renewed: Instant,
    losses: u64,
}

/// A large group that has members here.
#[derive(Default)]
struct State {
    index: Index,
    /// Whether the other nodes know that it has members here.
    declared: bool,
    declaring: bool,
    /// Its head in the store is to be read: something may have been missed.
    look: bool,
    /// Where it stood at the last round; behind that at the next one means that something was missed.
    stood: u64,
    /// Members here are told that there is something up to this seq, unless it is told by then.
    check: u64,
    /// Up to here they were told so.
    hinted: u64,
    /// So many rounds in a row found it small.
    small: u32,
    /// Its members are read, beside everything else: until then nothing of it is told but that there is something.
    reading: Option<Reading>,
}

/// What was done beside.
enum Done {
    Declared(Vec<ConversationId>, Result<(), RoutesError>),
    Heads(Vec<Head>, bool),
    Strange(Vec<(ConversationId, Option<Head>)>),
    Members(ConversationId, Result<Here, StoreError>),
    Feed(Result<Box<dyn NodeFeed>, ReadError>),
}

/// Where a group stands.
struct Head {
    group: ConversationId,
    seq: u64,
    is_large: bool,
}

/// All members of a group are read.
struct Reading {
    /// The index is right up to there afterwards.
    to: u64,
    /// Who logged in meanwhile.
    came: Vec<UserId>,
}

/// A record for which the store has to be asked, and did not answer.
struct Unread;

impl From<StoreError> for Unread {
    fn from(error: StoreError) -> Self {
        tracing::debug!(%error, "who the members of a large group are can't be read: they hear Behind");
        Self
    }
}

impl Keeper {
    pub(super) fn new(
        ports: Arc<Ports>,
        directory: Arc<Directory>,
        shared: Arc<Shared>,
        small_max: u64,
        out: Outbound,
        metrics: Metrics,
    ) -> Self {
        Self {
            ports,
            directory,
            shared,
            small_max,
            out,
            metrics,
            groups: Groups::default(),
            recent: Groups::default(),
            strange: HashSet::new(),
            jobs: JoinSet::new(),
            looking: false,
            renewed: Instant::now(),
            losses: 0,
        }
    }

    /// Until nobody calls any more.
    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>, feed: Box<dyn NodeFeed>) {
        let mut feed = Some(feed);
        let mut tick = time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.losses = self.ports.peers.seen().losses;
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.carry_out(order).await,
                    None => return,
                },
                event = next(&mut feed) => match event {
                    Some(NodeEvent::Records(records)) => {
                        for record in records {
                            self.record(record, Source::Peer).await;
                        }
                    }
                    Some(NodeEvent::Gap) => self.gap(),
                    None => {
                        feed = None;
                        self.open_feed();
                    }
                },
                Some(done) = self.jobs.join_next() => match done {
                    Ok(Done::Declared(groups, result)) => self.declared(groups, &result),
                    Ok(Done::Heads(heads, soon)) => {
                        self.looking &= soon;
                        self.stand(heads, soon);
                    }
                    Ok(Done::Strange(found)) => self.adopt(found).await,
                    Ok(Done::Members(group, here)) => self.read(&group, here),
                    Ok(Done::Feed(Ok(opened))) => {
                        feed = Some(opened);
                        self.gap();
                    }
                    Ok(Done::Feed(Err(error))) => {
                        tracing::debug!(%error, "the node's topic is not read");
                        self.open_feed();
                    }
                    Err(error) => {
                        self.looking = false;
                        tracing::error!(%error, "a job for large groups ended");
                    }
                },
                _ = tick.tick() => self.tick().await,
            }
            self.out.flush().await;
        }
    }

    async fn carry_out(&mut self, order: Order) {
        match order {
            Order::Record(record, from) => {
                self.shared.waiting.fetch_sub(record.len(), Ordering::Relaxed);
                self.record(record, from).await;
            }
            Order::Login(login) => self.login(*login).await,
            Order::OfPeer(it, told) => {
                let (mut push, delivery) = *it;
                // The way over the link is another than that of the group's records: what is known is not undone.
                let known = self.groups.get(&delivery.conversation).map_or(0, |state| state.index.known());
                if push.seq <= known {
                    push.event = None;
                }
                self.out.push_of_peer(&push, delivery);
                self.out.flush().await;
                // Nobody waits for ever.
                told.send(()).ok();
            }
        }
    }

    async fn login(&mut self, login: Login) {
        let Login { key, user, groups, placed } = login;
        let mut all = Vec::with_capacity(groups.len());
        for it in groups {
            let large = it.members > self.small_max
                || self.groups.contains_key(&it.group)
                || self.recent.contains_key(&it.group);
            if large {
                let there = self.found(&it.group, it.as_of, 0).await;
                let state = self.groups.get_mut(&it.group).filter(|_| there.is_ok());
                if !state.is_some_and(|state| state.login(&user, it.as_of)) {
                    // Nobody waits any more: the connection is gone.
                    placed.send(false).ok();
                    return;
                }
            }
            all.push(it.group);
        }
        self.out.memberships(key, all).await;
        placed.send(true).ok();
    }

    async fn record(&mut self, record: Bytes, from: Source) {
        let Ok(it) = pb::FanOut::decode(record) else {
            tracing::error!("a record of a node topic can't be decoded");
            return;
        };
        if it.conversation.is_empty() {
            return self.gap();
        }
        let Ok(group) = ConversationId::parse(&it.conversation) else { return };
        if it.push.is_empty() {
            return self.owe(&group, it.seq);
        }
        if self.tell(&group, &it, from).await.is_err() {
            self.metrics.fan_outs_lost.increment(1);
            self.owe(&group, it.seq);
        }
    }

    /// Members here lack what is up to there, unless it is told soon.
    fn owe(&mut self, group: &ConversationId, seq: u64) {
        match self.groups.get_mut(group) {
            Some(state) => state.check = state.check.max(seq),
            None if self.directory.conversation(group).is_empty() => {}
            None => {
                self.strange.insert(group.clone());
            }
        }
    }

    async fn tell(&mut self, group: &ConversationId, it: &pb::FanOut, from: Source) -> Result<(), Unread> {
        let event = it.change.then(|| pb::Push::decode(it.push.clone()).ok()?.event).flatten();
        let kind = event.as_ref().and_then(|event| pb::MemberChange::try_from(event.change).ok());
        let users = || event.iter().flat_map(|event| &event.users).filter_map(|id| UserId::new(id).ok());
        let comes = matches!(kind, Some(pb::MemberChange::Created | pb::MemberChange::Joined));
        let comer_here = comes && users().any(|user| !self.directory.user(&user).is_empty());
        if !comer_here && self.directory.conversation(group).is_empty() {
            if from == Source::Peer {
                self.metrics.fan_outs_idle.increment(1);
            }
            self.recent.insert(group.clone(), Instant::now());
            if let Some(state) = self.groups.get_mut(group) {
                // Nobody here missed anything.
                state.index.pass(it.seq);
            }
            return Ok(());
        }
        self.found(group, before(it), it.seq.saturating_sub(1)).await?;
        if self.groups.get(group).is_some_and(|state| state.reading.is_some()) {
            return Err(Unread);
        }
        // What comes before the change that makes a small group large was told another way.
        let small_to = it.large_from.saturating_sub(1);
        let seen = self.groups.get(group).map_or(u64::MAX, |state| state.index.seen().max(small_to));
        let hole = seen < it.seq.saturating_sub(1);
        let mut step = self.step(group, it);
        if let Step::Read { from, to } = step {
            self.read_on(group, from, to).await?;
            step = self.step(group, it);
        }
        let (Step::Tell(ahead), Some(state)) = (step, self.groups.get_mut(group)) else { return Ok(()) };
        let news = |users: &mut dyn Iterator<Item = UserId>| -> Arc<[UserId]> {
            users.filter(|user| state.index.is_news(user, it.seq)).collect()
        };
        let moved = if it.change { news(&mut users()) } else { Arc::default() };
        if it.change {
            state.index.is_known(it.seq);
        }
        let ahead: Arc<[UserId]> = ahead.into();
        self.out.go(group, Arc::clone(&ahead));
        if comes {
            self.out.come(group, Arc::clone(&moved));
        }
        self.out.crowd(self.delivery(group, it));
        if hole {
            // Behind the push, which else would be left out with it.
            self.out.behind(group, it.seq - 1, Audience::Members);
        }
        match kind {
            Some(pb::MemberChange::Left | pb::MemberChange::Kicked) => self.out.go(group, moved),
            Some(pb::MemberChange::Deleted) => self.out.keep(group, Arc::default()),
            _ => {}
        }
        if !ahead.is_empty() {
            // They have read further than this, on the connection that is new; another of theirs may not have.
            self.out.come(group, Arc::clone(&ahead));
            self.out.behind(group, it.seq, Audience::Users(ahead));
        }
        Ok(())
    }

    fn step(&mut self, group: &ConversationId, it: &pb::FanOut) -> Step {
        self.groups.get_mut(group).map_or(Step::Late, |state| state.index.record(it.seq, before(it)))
    }

    fn delivery(&self, group: &ConversationId, it: &pb::FanOut) -> Delivery {
        let me = &self.ports.me;
        let mine = it.node == me.node.as_str() && it.boot == me.boot;
        Delivery {
            conversation: group.clone(),
            seq: it.seq,
            audience: Audience::Members,
            frame: Arc::new(PushFrame::from_push(&it.push).traced(trace_steps::of_peer(&it.traceparent))),
            origin: mine.then(|| ConnKey::unpack(it.conn)),
            tracked: false,
        }
    }
}

/// Up to where changes of members count for a record: not its own, and none behind it.
fn before(it: &pb::FanOut) -> u64 {
    it.member_seq.min(it.seq.saturating_sub(1))
}

/// The next event of the feed; none comes while it is closed.
async fn next(feed: &mut Option<Box<dyn NodeFeed>>) -> Option<NodeEvent> {
    match feed {
        Some(feed) => feed.next().await,
        None => std::future::pending().await,
    }
}

mod catch_up;
mod maintenance;
#[cfg(test)]
mod tests;
mod undiscovered;

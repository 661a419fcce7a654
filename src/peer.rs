//! Receiving end of the link: passes the answers, pushes and best-effort messages of peers to local connections, and
//! stops sessions that moved.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use prost::Message as _;
use tidegate_protocol::{codec::PushFrame, id::ConversationId, id::UserId, pb};
use tokio::{sync::oneshot, time};

use crate::{
    cluster::Cluster,
    connections::Connections,
    delivery::{
        answer_cache::{self, AnswerCache},
        local::LocalDispatcher,
        pending::Pending,
        trace_steps,
    },
    directory::Directory,
    figures::{Figures, FiguresPage, FiguresQuery},
    large_group::subscriber::GroupSubscriber,
    link::{
        AckQuery, Answer, AnswerStatus, ArchiveStatus, ArchivedUpTo, Ask, BestEffortMessage, CloseOrder,
        ConnectionPage, ConnectionQuery, DeviceAck, Landing, LeaseStatus, Link, LinkError, PeerPush,
        PublishedMark, RoomRemoval, RoomsPage, RoomsQuery, RoutedSession, Target,
    },
    log_limit::log_limited,
    mail::{self, Audience, ConnKey, Mail, ShardHandles},
    metrics::Metrics,
    revocation::Revocation,
    room_tallies::RoomTallies,
    routes::NodeBoot,
    storms::{StormsPage, StormsQuery},
    trace::{TraceEvent, TraceFilter, Tracer},
};

/// Time for the shards to confirm that they stopped a session; shorter than the caller waits (1 s).
const STOP_TIMEOUT: Duration = Duration::from_millis(800);

/// Receiving end of the link.
pub struct Peer {
    me: NodeBoot,
    directory: Arc<Directory>,
    shards: ShardHandles,
    pending: Arc<Pending>,
    metrics: Metrics,
    missed: best_effort::RoomLosses,
    tracer: Arc<Tracer>,
    figures: Arc<Figures>,
    /// Connections of this node; `None` if it has none.
    connections: Option<Arc<Connections>>,
    /// Members and reactions of live rooms; `None` if those of peers are not of use.
    tallies: Option<Arc<RoomTallies>>,
    /// Subscriber of large groups; `None` if this node takes no part in them.
    subscriber: Option<Arc<GroupSubscriber>>,
    /// Recent outcomes of local owners; `None` if this node owns no partitions.
    cache: Option<(Arc<AnswerCache>, Arc<Cluster>)>,
}

impl Peer {
    /// Creates the receiving end for the node of these shards.
    pub fn new(
        me: NodeBoot,
        directory: Arc<Directory>,
        shards: ShardHandles,
        pending: Arc<Pending>,
        metrics: Metrics,
    ) -> Self {
        Self {
            me,
            directory,
            shards,
            pending,
            metrics,
            missed: best_effort::RoomLosses::default(),
            tracer: Arc::default(),
            figures: Arc::default(),
            connections: None,
            tallies: None,
            subscriber: None,
            cache: None,
        }
    }

    /// Records the steps of traced messages with `tracer`.
    #[must_use]
    pub fn tracing(self, tracer: Arc<Tracer>) -> Self {
        Self { tracer, ..self }
    }

    /// Returns `figures` to peers.
    #[must_use]
    pub fn with_figures(self, figures: Arc<Figures>) -> Self {
        Self { figures, ..self }
    }

    /// Lets peers list and close `connections`.
    #[must_use]
    pub fn with_connections(self, connections: Arc<Connections>) -> Self {
        Self { connections: Some(connections), ..self }
    }

    /// Passes the members and reactions of live rooms on other nodes to `tallies`.
    #[must_use]
    pub fn with_tallies(self, tallies: Arc<RoomTallies>) -> Self {
        Self { tallies: Some(tallies), ..self }
    }

    /// Passes the records of large groups to `subscriber`.
    #[must_use]
    pub fn with_group_subscriber(self, subscriber: Arc<GroupSubscriber>) -> Self {
        Self { subscriber: Some(subscriber), ..self }
    }

    /// Lets peers query the outcomes of this node's owners again.
    #[must_use]
    pub fn with_answer_cache(self, cache: Arc<AnswerCache>, cluster: Arc<Cluster>) -> Self {
        Self { cache: Some((cache, cluster)), ..self }
    }

    /// Notifies local members of these rooms that an unknown number of messages may be missing. Also retries
    /// notifications that a full shard did not take before.
    pub fn report_possible_loss(&self, rooms: Vec<ConversationId>) {
        self.deliver_best_effort(
            rooms.into_iter().map(|room| BestEffortMessage::RoomLoss { room, count: 0 }).collect(),
        );
    }

    fn outbound(&self) -> LocalDispatcher {
        let (directory, shards) = (Arc::clone(&self.directory), Arc::clone(&self.shards));
        LocalDispatcher::new(self.me.clone(), directory, shards, Arc::clone(&self.pending))
    }

    /// Fails unless the call is for this run of the node: nothing is for an earlier one.
    fn check_run(&self, to: &NodeBoot) -> Result<(), LinkError> {
        if *to == self.me { Ok(()) } else { Err(LinkError::NotHere) }
    }

    /// Returns the connections for a call to this run of the node.
    fn connections_of(&self, to: &NodeBoot) -> Result<&Arc<Connections>, LinkError> {
        self.check_run(to)?;
        let none = || LinkError::Unavailable("the node has no connections".to_owned());
        self.connections.as_ref().ok_or_else(none)
    }

    fn landing(&self, target: &Target) -> Landing {
        let user = match target {
            Target::Conn(session) => &session.user,
            Target::Anywhere(user) => user,
        };
        if self.directory.user(user).is_empty() { Landing::NotHere } else { Landing::Delivered }
    }

    /// Stops the session, and older ones of its device, on the shards that have the user.
    async fn stop_session(&self, session: &RoutedSession) -> bool {
        let handles = self.shards.get().map(Vec::as_slice).unwrap_or_default();
        let handles_of_user =
            self.directory.user(&session.user).iter().filter_map(|shard| handles.get(shard));
        let mut stopped = false;
        for handle in handles_of_user {
            let (reply, is_stopped) = oneshot::channel();
            let (user, device) = (session.user.clone(), session.device.clone());
            let mail = Mail::Replaced(user, device, session.epoch.saturating_add(1), Some(reply));
            if handle.post(mail).await.is_ok() {
                // A shard that ends has no session left.
                stopped |= is_stopped.await.unwrap_or(false);
            }
        }
        stopped
    }
}

#[async_trait]
impl Link for Peer {
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        self.check_run(to)?;
        let mut out = self.outbound();
        for answer in answers {
            trace_steps::note_peer_answer(&self.tracer, &answer.traceparent, answer.outcome);
            out.answer_here(answer.conn, answer.request, answer.outcome);
        }
        out.flush().await;
        Ok(())
    }

    async fn deliver(
        &self,
        to: &NodeBoot,
        deliveries: Vec<PeerPush>,
    ) -> Result<Vec<Vec<Landing>>, LinkError> {
        self.check_run(to)?;
        let landings =
            deliveries.iter().map(|push| push.to.iter().map(|it| self.landing(it)).collect()).collect();
        let mut out = self.outbound();
        for delivery in deliveries.into_iter().filter(|it| !it.push.is_empty()) {
            match decode(&delivery, &self.me) {
                Some((push, deliveries)) => {
                    if let Some(trace) = deliveries.iter().find_map(|it| it.frame.trace()) {
                        trace_steps::note_peer_push(&self.tracer, trace, &push, delivery.to.len());
                    }
                    match self.subscriber.as_ref().filter(|_| push.event.is_some()) {
                        // Only the subscriber decides which users are local members.
                        Some(subscriber) => {
                            out.flush().await;
                            for it in deliveries {
                                subscriber.apply_peer_push(push.clone(), it).await;
                            }
                        }
                        None => deliveries.into_iter().for_each(|it| out.push_from_peer(&push, it)),
                    }
                }
                None => log_limited!(error, "undecodable push from a peer; skipped"),
            }
        }
        out.flush().await;
        Ok(landings)
    }

    async fn stop_sessions(
        &self,
        to: &NodeBoot,
        sessions: Vec<RoutedSession>,
    ) -> Result<Vec<bool>, LinkError> {
        self.check_run(to)?;
        let all = async {
            let mut stopped = Vec::with_capacity(sessions.len());
            for session in &sessions {
                stopped.push(self.stop_session(session).await);
            }
            stopped
        };
        time::timeout(STOP_TIMEOUT, all)
            .await
            .map_err(|_| LinkError::Unknown("shards did not confirm in time".to_owned()))
    }

    async fn archive_status(
        &self,
        to: &NodeBoot,
        published: Vec<PublishedMark>,
        within: Duration,
    ) -> Result<ArchiveStatus, LinkError> {
        self.check_run(to)?;
        Ok(match &self.cache {
            Some((_, cluster)) => cluster.owned.unarchived().answer(published, within).await,
            None => ArchiveStatus::ArchivedUpTo(ArchivedUpTo::default()),
        })
    }

    async fn answers_again(
        &self,
        from: &NodeBoot,
        to: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError> {
        self.check_run(to)?;
        Ok(match &self.cache {
            Some((cache, cluster)) => answer_cache::words(cache, cluster, from, &asks).await,
            None => vec![AnswerStatus::NotOwner; asks.len()],
        })
    }

    async fn lease_status(&self, from: &NodeBoot, to: &NodeBoot) -> Result<LeaseStatus, LinkError> {
        self.check_run(to)?;
        let nodes = self.cache.as_ref().map(|(_, cluster)| cluster.peers.lease_status(from));
        nodes.ok_or_else(|| LinkError::Unavailable("the node keeps no list of nodes".to_owned()))
    }

    async fn send_best_effort(
        &self,
        to: &NodeBoot,
        messages: Vec<BestEffortMessage>,
    ) -> Result<(), LinkError> {
        self.check_run(to)?;
        self.deliver_best_effort(messages);
        Ok(())
    }

    async fn traces(&self, to: &NodeBoot, query: TraceFilter) -> Result<Vec<TraceEvent>, LinkError> {
        self.check_run(to)?;
        Ok(self.tracer.find_and_watch(&query))
    }

    async fn figures(&self, to: &NodeBoot, query: FiguresQuery) -> Result<FiguresPage, LinkError> {
        self.check_run(to)?;
        Ok(self.figures.page(query))
    }

    async fn storms(&self, to: &NodeBoot, query: StormsQuery) -> Result<StormsPage, LinkError> {
        self.check_run(to)?;
        let none = || LinkError::Unavailable("the node owns no partitions".to_owned());
        let (_, cluster) = self.cache.as_ref().ok_or_else(none)?;
        Ok(cluster.storms.page(&query))
    }

    async fn connections(&self, to: &NodeBoot, query: ConnectionQuery) -> Result<ConnectionPage, LinkError> {
        self.connections_of(to)?.list_here(&query).await
    }

    async fn acks(&self, to: &NodeBoot, queries: Vec<AckQuery>) -> Result<Vec<Vec<DeviceAck>>, LinkError> {
        self.connections_of(to)?.acks_here(queries).await
    }

    async fn rooms(&self, to: &NodeBoot, query: RoomsQuery) -> Result<RoomsPage, LinkError> {
        self.connections_of(to)?.rooms_here(&query).await
    }

    async fn close_connections(&self, to: &NodeBoot, order: CloseOrder) -> Result<u64, LinkError> {
        self.connections_of(to)?.close_here(order).await
    }

    async fn remove_from_room(&self, to: &NodeBoot, removal: RoomRemoval) -> Result<u64, LinkError> {
        self.connections_of(to)?.remove_from_room_here(removal).await
    }

    async fn revoke(&self, to: &NodeBoot, revocation: Revocation) -> Result<u64, LinkError> {
        self.connections_of(to)?.revoke_here(revocation).await
    }
}

/// Decodes a push into local deliveries: one for its named sessions, one for users addressed on all connections.
fn decode(delivery: &PeerPush, me: &NodeBoot) -> Option<(pb::Push, Vec<mail::Delivery>)> {
    let push = pb::Push::decode(&delivery.push[..]).ok()?;
    let conversation = ConversationId::parse(&push.conversation).ok()?;
    let frame = PushFrame::from_push(&delivery.push).traced(trace_steps::parse_trace(&delivery.traceparent));
    let frame = Arc::new(frame);
    let (mut sessions, mut users): (Vec<RoutedSession>, Vec<UserId>) = (Vec::new(), Vec::new());
    for target in &delivery.to {
        match target {
            Target::Conn(session) => sessions.push(session.clone()),
            Target::Anywhere(user) => users.push(user.clone()),
        }
    }
    let audiences = [
        (!sessions.is_empty()).then(|| Audience::Sessions(sessions.into())),
        (!users.is_empty()).then(|| Audience::Users(users.into())),
    ];
    let seq = push.seq;
    let origin = delivery.sent_by.as_ref().filter(|it| it.at == *me).map(|it| ConnKey::unpack(it.conn));
    let deliveries = audiences.into_iter().flatten().map(|audience| mail::Delivery {
        conversation: conversation.clone(),
        seq,
        audience,
        frame: Arc::clone(&frame),
        origin,
        tracked: delivery.tracked,
        class: 0,
    });
    Some((push, deliveries.collect()))
}

mod best_effort;
#[cfg(test)]
mod tests;

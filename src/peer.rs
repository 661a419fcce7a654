//! What a node does for its peers: hands their answers, pushes and strays to its own connections, and stops sessions that
//! moved.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use prost::Message as _;
use tidegate_protocol::{codec::PushFrame, id::ConversationId, id::UserId, pb};
use tokio::{sync::oneshot, time};

use crate::{
    delivery::{
        answer_cache::{self, Answered},
        local::Outbound,
        trace_steps,
    },
    directory::Directory,
    ingest::admin::Pending,
    large_group::subscriber::Crowds,
    link::{
        Answer, Ask, Delivery, Landing, Level, Link, LinkError, Session, Settled, Stray, Target, Told, Word,
    },
    mail::{self, Audience, ConnKey, Mail, ShardHandles},
    metrics::Metrics,
    ports::Ports,
    routes::NodeBoot,
    trace::{Event, Query, Tracer},
};

/// How long a shard may take to say that it stopped a session; within what the caller waits (1 s, DESIGN 6.3).
const STOP: Duration = Duration::from_millis(800);

/// The receiving end of the link.
pub struct Peer {
    me: NodeBoot,
    directory: Arc<Directory>,
    shards: ShardHandles,
    pending: Arc<Pending>,
    metrics: Metrics,
    missed: best_effort::Missed,
    tracer: Arc<Tracer>,
    /// None = there are no large groups here.
    crowds: Option<Arc<Crowds>>,
    /// What the owners here have said; none = nobody owns anything here.
    answered: Option<(Arc<Answered>, Arc<Ports>)>,
}

impl Peer {
    /// Serves the node of these shards.
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
            missed: best_effort::Missed::default(),
            tracer: Arc::default(),
            crowds: None,
            answered: None,
        }
    }

    /// The same, noting the steps of traced messages there.
    #[must_use]
    pub fn tracing(self, tracer: Arc<Tracer>) -> Self {
        Self { tracer, ..self }
    }

    /// The same, for a node that takes part in large groups.
    #[must_use]
    pub fn with_crowds(self, crowds: Arc<Crowds>) -> Self {
        Self { crowds: Some(crowds), ..self }
    }

    /// The same, for a node whose owners may be asked again what they said.
    #[must_use]
    pub fn answering(self, answered: Arc<Answered>, ports: Arc<Ports>) -> Self {
        Self { answered: Some((answered, ports)), ..self }
    }

    /// Has the members here of those rooms hear that they may lack something, and nobody knows how much; and those whose shard
    /// was full before.
    pub fn may_lack(&self, rooms: Vec<ConversationId>) {
        self.take_strays(rooms.into_iter().map(|room| Stray::Missed { room, count: 0 }).collect());
    }

    fn outbound(&self) -> Outbound {
        let (directory, shards) = (Arc::clone(&self.directory), Arc::clone(&self.shards));
        Outbound::new(self.me.clone(), directory, shards, Arc::clone(&self.pending))
    }

    /// Nothing is for an earlier run of this node.
    fn is_me(&self, to: &NodeBoot) -> Result<(), LinkError> {
        if *to == self.me { Ok(()) } else { Err(LinkError::NotHere) }
    }

    fn landing(&self, target: &Target) -> Landing {
        let user = match target {
            Target::Conn(session) => &session.user,
            Target::Anywhere(user) => user,
        };
        if self.directory.user(user).is_empty() { Landing::NotHere } else { Landing::Delivered }
    }

    /// Asks the shards that have the user to stop the session, and those in its place before.
    async fn stop(&self, session: &Session) -> bool {
        let handles = self.shards.get().map(Vec::as_slice).unwrap_or_default();
        let here = self.directory.user(&session.user).iter().filter_map(|shard| handles.get(shard));
        let mut stopped = false;
        for handle in here {
            let (asker, said) = oneshot::channel();
            let (user, device) = (session.user.clone(), session.device.clone());
            let mail = Mail::Replaced(user, device, session.epoch.saturating_add(1), Some(asker));
            if handle.post(mail).await.is_ok() {
                // A shard that ends has no session left.
                stopped |= said.await.unwrap_or(false);
            }
        }
        stopped
    }
}

#[async_trait]
impl Link for Peer {
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        self.is_me(to)?;
        let mut out = self.outbound();
        for answer in answers {
            trace_steps::note_answer_of_peer(&self.tracer, &answer.traceparent, answer.outcome);
            out.answer_here(answer.conn, answer.request, answer.outcome);
        }
        out.flush().await;
        Ok(())
    }

    async fn deliver(
        &self,
        to: &NodeBoot,
        deliveries: Vec<Delivery>,
    ) -> Result<Vec<Vec<Landing>>, LinkError> {
        self.is_me(to)?;
        let landings =
            deliveries.iter().map(|push| push.to.iter().map(|it| self.landing(it)).collect()).collect();
        let mut out = self.outbound();
        for delivery in deliveries.into_iter().filter(|it| !it.push.is_empty()) {
            match decode(&delivery, &self.me) {
                Some((push, each)) => {
                    if let Some(trace) = each.iter().find_map(|it| it.frame.trace()) {
                        trace_steps::note_push_of_peer(&self.tracer, trace, &push, delivery.to.len());
                    }
                    match self.crowds.as_ref().filter(|_| push.event.is_some()) {
                        // Who is a member here is decided in one place.
                        Some(crowds) => {
                            out.flush().await;
                            for it in each {
                                crowds.of_peer(push.clone(), it).await;
                            }
                        }
                        None => each.into_iter().for_each(|it| out.push_of_peer(&push, it)),
                    }
                }
                None => tracing::error!("a peer sent a push that can't be decoded"),
            }
        }
        out.flush().await;
        Ok(landings)
    }

    async fn stop_sessions(&self, to: &NodeBoot, sessions: Vec<Session>) -> Result<Vec<bool>, LinkError> {
        self.is_me(to)?;
        let all = async {
            let mut stopped = Vec::with_capacity(sessions.len());
            for session in &sessions {
                stopped.push(self.stop(session).await);
            }
            stopped
        };
        time::timeout(STOP, all).await.map_err(|_| LinkError::Unknown("the shards are busy".to_owned()))
    }

    async fn settled(
        &self,
        to: &NodeBoot,
        told: Vec<Told>,
        patience: Duration,
    ) -> Result<Settled, LinkError> {
        self.is_me(to)?;
        Ok(match &self.answered {
            Some((_, ports)) => ports.owned.ahead().answer(told, patience).await,
            None => Settled::Level(Level::default()),
        })
    }

    async fn answers_again(
        &self,
        from: &NodeBoot,
        to: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<Word>, LinkError> {
        self.is_me(to)?;
        Ok(match &self.answered {
            Some((answered, ports)) => answer_cache::words(answered, ports, from, &asks).await,
            None => vec![Word::NotOwner; asks.len()],
        })
    }

    async fn strays(&self, to: &NodeBoot, strays: Vec<Stray>) -> Result<(), LinkError> {
        self.is_me(to)?;
        self.take_strays(strays);
        Ok(())
    }

    async fn traces(&self, to: &NodeBoot, query: Query) -> Result<Vec<Event>, LinkError> {
        self.is_me(to)?;
        Ok(self.tracer.ask(&query))
    }
}

/// The push, and what the shards are given of it: once for its sessions, once for the users that are asked for anywhere.
fn decode(delivery: &Delivery, me: &NodeBoot) -> Option<(pb::Push, Vec<mail::Delivery>)> {
    let push = pb::Push::decode(&delivery.push[..]).ok()?;
    let conversation = ConversationId::parse(&push.conversation).ok()?;
    let frame = PushFrame::from_push(&delivery.push).traced(trace_steps::of_peer(&delivery.traceparent));
    let frame = Arc::new(frame);
    let (mut sessions, mut users): (Vec<Session>, Vec<UserId>) = (Vec::new(), Vec::new());
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
    let each = audiences.into_iter().flatten().map(|audience| mail::Delivery {
        conversation: conversation.clone(),
        seq,
        audience,
        frame: Arc::clone(&frame),
        origin,
        tracked: delivery.tracked,
    });
    Some((push, each.collect()))
}

mod best_effort;
#[cfg(test)]
mod tests;

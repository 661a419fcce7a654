//! `Link` adapter between nodes of one process, for simulations and tests: each call is a direct function call.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync, task::unconstrained};

use super::{
    AckQuery, Answer, AnswerStatus, ArchiveStatus, Ask, BestEffortMessage, CloseOrder, ConnectionPage,
    ConnectionQuery, DeviceAck, Landing, LeaseStatus, Link, LinkError, PeerPush, PublishedMark, RoomRemoval,
    RoomsPage, RoomsQuery, RoutedSession,
};
use crate::{
    figures::{FiguresPage, FiguresQuery},
    revocation::Revocation,
    routes::NodeBoot,
    storms::{StormsPage, StormsQuery},
    trace::{TraceEvent, TraceFilter},
};

/// Link between the nodes that were added to it; others are [`LinkError::NotHere`]. Clones share the nodes.
#[derive(Clone, Default)]
pub struct MemoryLink {
    nodes: Arc<Mutex<HashMap<NodeBoot, Arc<LinkedNode>>>>,
}

struct LinkedNode {
    handler: Arc<dyn Link>,
    /// Lock held during an answers or deliveries call, which keeps their order. It is fair, and `unconstrained` makes a
    /// caller queue at its first poll, even if its task has used up its budget.
    ordered: sync::Mutex<()>,
    /// Lock held during a call with best-effort messages, for the same reason.
    best_effort: sync::Mutex<()>,
}

impl MemoryLink {
    /// Adds a node, whose calls `handler` serves.
    pub fn add(&self, node: NodeBoot, handler: Arc<dyn Link>) {
        let (ordered, best_effort) = (sync::Mutex::default(), sync::Mutex::default());
        self.lock().insert(node, Arc::new(LinkedNode { handler, ordered, best_effort }));
    }

    /// Removes a node; later calls to it are [`LinkError::NotHere`].
    pub fn remove(&self, node: &NodeBoot) {
        self.lock().remove(node);
    }

    fn node(&self, to: &NodeBoot) -> Result<Arc<LinkedNode>, LinkError> {
        self.lock().get(to).map(Arc::clone).ok_or(LinkError::NotHere)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeBoot, Arc<LinkedNode>>> {
        self.nodes.lock()
    }
}

#[async_trait]
impl Link for MemoryLink {
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        if answers.is_empty() {
            return Ok(());
        }
        let node = self.node(to)?;
        let _guard = unconstrained(node.ordered.lock()).await;
        node.handler.answers(to, answers).await
    }

    async fn deliver(
        &self,
        to: &NodeBoot,
        deliveries: Vec<PeerPush>,
    ) -> Result<Vec<Vec<Landing>>, LinkError> {
        if deliveries.is_empty() {
            return Ok(Vec::new());
        }
        let node = self.node(to)?;
        let _guard = unconstrained(node.ordered.lock()).await;
        node.handler.deliver(to, deliveries).await
    }

    async fn stop_sessions(
        &self,
        to: &NodeBoot,
        sessions: Vec<RoutedSession>,
    ) -> Result<Vec<bool>, LinkError> {
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        self.node(to)?.handler.stop_sessions(to, sessions).await
    }

    async fn archive_status(
        &self,
        to: &NodeBoot,
        marks: Vec<PublishedMark>,
        within: Duration,
    ) -> Result<ArchiveStatus, LinkError> {
        self.node(to)?.handler.archive_status(to, marks, within).await
    }

    async fn answers_again(
        &self,
        from: &NodeBoot,
        to: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        self.node(to)?.handler.answers_again(from, to, asks).await
    }

    async fn lease_status(&self, from: &NodeBoot, to: &NodeBoot) -> Result<LeaseStatus, LinkError> {
        self.node(to)?.handler.lease_status(from, to).await
    }

    async fn send_best_effort(
        &self,
        to: &NodeBoot,
        messages: Vec<BestEffortMessage>,
    ) -> Result<(), LinkError> {
        if messages.is_empty() {
            return Ok(());
        }
        let node = self.node(to)?;
        let _guard = unconstrained(node.best_effort.lock()).await;
        node.handler.send_best_effort(to, messages).await
    }

    async fn traces(&self, to: &NodeBoot, query: TraceFilter) -> Result<Vec<TraceEvent>, LinkError> {
        self.node(to)?.handler.traces(to, query).await
    }

    async fn figures(&self, to: &NodeBoot, query: FiguresQuery) -> Result<FiguresPage, LinkError> {
        self.node(to)?.handler.figures(to, query).await
    }

    async fn storms(&self, to: &NodeBoot, query: StormsQuery) -> Result<StormsPage, LinkError> {
        self.node(to)?.handler.storms(to, query).await
    }

    async fn connections(&self, to: &NodeBoot, query: ConnectionQuery) -> Result<ConnectionPage, LinkError> {
        self.node(to)?.handler.connections(to, query).await
    }

    async fn acks(&self, to: &NodeBoot, queries: Vec<AckQuery>) -> Result<Vec<Vec<DeviceAck>>, LinkError> {
        self.node(to)?.handler.acks(to, queries).await
    }

    async fn rooms(&self, to: &NodeBoot, query: RoomsQuery) -> Result<RoomsPage, LinkError> {
        self.node(to)?.handler.rooms(to, query).await
    }

    async fn close_connections(&self, to: &NodeBoot, order: CloseOrder) -> Result<u64, LinkError> {
        self.node(to)?.handler.close_connections(to, order).await
    }

    async fn remove_from_room(&self, to: &NodeBoot, removal: RoomRemoval) -> Result<u64, LinkError> {
        self.node(to)?.handler.remove_from_room(to, removal).await
    }

    async fn revoke(&self, to: &NodeBoot, revocation: Revocation) -> Result<u64, LinkError> {
        self.node(to)?.handler.revoke(to, revocation).await
    }
}

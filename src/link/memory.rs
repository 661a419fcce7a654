//! `Link` between nodes of one process, for simulations and tests: a call is a call.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{sync, task::unconstrained};

use super::{Answer, Ask, Delivery, Landing, Link, LinkError, Session, Settled, Stray, Told, Word};
use crate::{
    routes::NodeBoot,
    trace::{Event, Query},
};

/// Finds the nodes that were added; others are [`LinkError::NotHere`]. Clones share the nodes.
#[derive(Clone, Default)]
pub struct MemoryLink {
    nodes: Arc<Mutex<HashMap<NodeBoot, Arc<Place>>>>,
}

struct Place {
    end: Arc<dyn Link>,
    /// Held by the answers or deliveries under way: they come one after the other. The lock is fair, and who comes to it
    /// waits in line from the first poll, whatever else the task has done: that keeps their order.
    turn: sync::Mutex<()>,
    /// The same for strays.
    strays: sync::Mutex<()>,
}

impl MemoryLink {
    /// From here on calls to that node reach its end.
    pub fn add(&self, node: NodeBoot, end: Arc<dyn Link>) {
        self.lock().insert(
            node,
            Arc::new(Place { end, turn: sync::Mutex::default(), strays: sync::Mutex::default() }),
        );
    }

    /// From here on that node is not there.
    pub fn remove(&self, node: &NodeBoot) {
        self.lock().remove(node);
    }

    fn place(&self, to: &NodeBoot) -> Result<Arc<Place>, LinkError> {
        self.lock().get(to).map(Arc::clone).ok_or(LinkError::NotHere)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeBoot, Arc<Place>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Link for MemoryLink {
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        if answers.is_empty() {
            return Ok(());
        }
        let place = self.place(to)?;
        let _turn = unconstrained(place.turn.lock()).await;
        place.end.answers(to, answers).await
    }

    async fn deliver(
        &self,
        to: &NodeBoot,
        deliveries: Vec<Delivery>,
    ) -> Result<Vec<Vec<Landing>>, LinkError> {
        if deliveries.is_empty() {
            return Ok(Vec::new());
        }
        let place = self.place(to)?;
        let _turn = unconstrained(place.turn.lock()).await;
        place.end.deliver(to, deliveries).await
    }

    async fn stop_sessions(&self, to: &NodeBoot, sessions: Vec<Session>) -> Result<Vec<bool>, LinkError> {
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        self.place(to)?.end.stop_sessions(to, sessions).await
    }

    async fn settled(
        &self,
        to: &NodeBoot,
        told: Vec<Told>,
        patience: Duration,
    ) -> Result<Settled, LinkError> {
        self.place(to)?.end.settled(to, told, patience).await
    }

    async fn answers_again(
        &self,
        from: &NodeBoot,
        to: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<Word>, LinkError> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        self.place(to)?.end.answers_again(from, to, asks).await
    }

    async fn strays(&self, to: &NodeBoot, strays: Vec<Stray>) -> Result<(), LinkError> {
        if strays.is_empty() {
            return Ok(());
        }
        let place = self.place(to)?;
        let _turn = unconstrained(place.strays.lock()).await;
        place.end.strays(to, strays).await
    }

    async fn traces(&self, to: &NodeBoot, query: Query) -> Result<Vec<Event>, LinkError> {
        self.place(to)?.end.traces(to, query).await
    }
}

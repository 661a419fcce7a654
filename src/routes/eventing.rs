//! `Routes` that note who comes and goes: whoever registers a row notes an online, whoever deletes one an offline.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tidegate_protocol::id::{ConversationId, DeviceId, UserId};

use super::{
    Interest, NodeBoot, NodeInfo, NodeRow, Registered, Registration, Retire, Route, Routes, RoutesError,
    Token,
};
use crate::events::Events;

/// When what was in doubt is looked up again.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Routes of one node, with its events.
pub struct AnnouncedRoutes {
    inner: Arc<dyn Routes>,
    events: Arc<Events>,
    me: NodeBoot,
}

impl AnnouncedRoutes {
    /// The routes of that run of a node; all of the node's calls go through here.
    pub fn new(inner: Arc<dyn Routes>, events: Arc<Events>, me: NodeBoot) -> Self {
        Self { inner, events, me }
    }
}

/// Rows of connections that are over, by what became of their devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sorted {
    /// The row stands, and is to be removed.
    pub standing: Vec<Route>,
    /// A newer connection of the device has the row, wherever that is.
    pub moved: Vec<Route>,
    /// The device has no row: it left.
    pub gone: Vec<Route>,
}

/// Looks up what became of the devices of these rows.
///
/// # Errors
/// Those of the routes.
pub async fn sort(routes: &dyn Routes, rows: Vec<Route>) -> Result<Sorted, RoutesError> {
    let users: Vec<UserId> = rows.iter().map(|row| row.user.clone()).collect();
    let found = routes.lookup(&users).await?;
    let mut sorted = Sorted::default();
    for (row, devices) in rows.into_iter().zip(found) {
        match devices.into_iter().find(|(device, _)| *device == row.device) {
            Some((_, token)) if token == row.token => sorted.standing.push(row),
            Some((_, token)) if token.epoch > row.token.epoch => sorted.moved.push(row),
            // An older row came back with a roll-back; its connection is over as well.
            Some(_) | None => sorted.gone.push(row),
        }
    }
    Ok(sorted)
}

#[async_trait]
impl Routes for AnnouncedRoutes {
    async fn register(&self, wish: Registration) -> Result<Registered, RoutesError> {
        let (user, device) = (wish.user.clone(), wish.device.clone());
        let done = self.inner.register(wish).await?;
        let route = Route { user, device, token: done.token.clone() };
        self.events.online(&route, done.replaced.as_ref());
        Ok(done)
    }

    async fn remove(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError> {
        let gone = match self.inner.remove(rows).await {
            Ok(gone) => gone,
            Err(error) => {
                // Deleted or not, the connections of this node are over. What others have is not for this node to say.
                let mine = rows.iter().filter(|row| row.token.at == self.me);
                mine.for_each(|row| self.events.look(row, LOOK_AGAIN));
                return Err(error);
            }
        };
        for (row, gone) in rows.iter().zip(&gone) {
            let mine = row.token.at == self.me;
            match (gone, mine) {
                (true, true) => self.events.left(row),
                (true, false) => self.events.offline(row),
                // A newer connection has it; or the routes lost it before its own end.
                (false, true) if !self.events.was_replaced(&row.token) => {
                    self.events.look(row, Duration::ZERO);
                }
                (false, _) => {}
            }
        }
        Ok(gone)
    }

    async fn lookup(&self, users: &[UserId]) -> Result<Vec<Vec<(DeviceId, Token)>>, RoutesError> {
        self.inner.lookup(users).await
    }

    async fn reassert(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError> {
        self.inner.reassert(rows).await
    }

    async fn renew(&self, info: &NodeInfo) -> Result<u64, RoutesError> {
        self.inner.renew(info).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, RoutesError> {
        self.inner.nodes().await
    }

    async fn retire(&self, of: &NodeBoot, ground: Retire) -> Result<bool, RoutesError> {
        self.inner.retire(of, ground).await
    }

    async fn rows_of(
        &self,
        of: &NodeBoot,
        after: Option<(UserId, DeviceId)>,
        limit: usize,
    ) -> Result<Vec<Route>, RoutesError> {
        self.inner.rows_of(of, after, limit).await
    }

    async fn declare(&self, by: &NodeBoot, interests: &[(ConversationId, u64)]) -> Result<(), RoutesError> {
        self.inner.declare(by, interests).await
    }

    async fn interested(&self, conversations: &[ConversationId]) -> Result<Vec<Vec<Interest>>, RoutesError> {
        self.inner.interested(conversations).await
    }
}

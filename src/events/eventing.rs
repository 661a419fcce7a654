//! `Routes` wrapper that emits events: online for each registered row, offline for each deleted row
//! (`docs/internals/adr/0014-departures-are-owed.md`).

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tidegate_protocol::id::{ConversationId, DeviceId, UserId};

use crate::{
    events::Events,
    figures::Figures,
    routes::{
        Interest, NodeBoot, NodeInfo, NodeRow, Registered, Registration, Retire, Route, Routes, RoutesError,
        Token,
    },
};

/// Delay before a device in doubt is looked up again.
pub const DEPARTURE_RECHECK_DELAY: Duration = Duration::from_secs(1);

/// Routes of one node that emit its online and offline events.
pub struct AnnouncedRoutes {
    inner: Arc<dyn Routes>,
    events: Arc<Events>,
    figures: Arc<Figures>,
    me: NodeBoot,
}

impl AnnouncedRoutes {
    /// Wraps the routes of the run `me`; all of the node's calls must go through the wrapper.
    pub fn new(inner: Arc<dyn Routes>, events: Arc<Events>, me: NodeBoot) -> Self {
        Self { inner, events, figures: Arc::default(), me }
    }

    /// Counts the devices that come and leave in `figures`.
    #[must_use]
    pub fn counting(self, figures: Arc<Figures>) -> Self {
        Self { figures, ..self }
    }
}

/// Rows of closed connections, grouped by the present state of their devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sorted {
    /// Rows that still exist and are to be removed.
    pub registered: Vec<Route>,
    /// Rows whose device has a newer connection, on any node.
    pub moved: Vec<Route>,
    /// Rows whose device has left, and has no row.
    pub gone: Vec<Route>,
}

/// Looks up the present state of the devices of these rows.
///
/// # Errors
/// Returns the error of the lookup.
pub async fn sort(routes: &dyn Routes, rows: Vec<Route>) -> Result<Sorted, RoutesError> {
    let users: Vec<UserId> = rows.iter().map(|row| row.user.clone()).collect();
    let found = routes.lookup(&users).await?;
    let mut sorted = Sorted::default();
    for (row, devices) in rows.into_iter().zip(found) {
        match devices.into_iter().find(|(device, _)| *device == row.device) {
            Some((_, token)) if token == row.token => sorted.registered.push(row),
            Some((_, token)) if token.epoch > row.token.epoch => sorted.moved.push(row),
            // An older row was restored by a rollback; its connection has closed as well.
            Some(_) | None => sorted.gone.push(row),
        }
    }
    Ok(sorted)
}

#[async_trait]
impl Routes for AnnouncedRoutes {
    async fn register(&self, registration: Registration) -> Result<Registered, RoutesError> {
        let (user, device) = (registration.user.clone(), registration.device.clone());
        let registered = self.inner.register(registration).await?;
        let route = Route { user, device, token: registered.token.clone() };
        self.events.online(&route, registered.replaced.as_ref());
        self.figures.flows.came(registered.replaced.as_ref().map(|old| &old.at.node), &route.token.at.node);
        Ok(registered)
    }

    async fn remove(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError> {
        let deleted = match self.inner.remove(rows).await {
            Ok(deleted) => deleted,
            Err(error) => {
                // Deleted or not, this node's connections have closed. Rows of other nodes are checked by those.
                let own = rows.iter().filter(|row| row.token.at == self.me);
                own.for_each(|row| self.events.look(row, DEPARTURE_RECHECK_DELAY));
                return Err(error);
            }
        };
        for (row, is_deleted) in rows.iter().zip(&deleted) {
            let is_own = row.token.at == self.me;
            if *is_deleted {
                self.figures.flows.left(&row.token.at.node);
            }
            match (is_deleted, is_own) {
                (true, true) => self.events.left(row),
                (true, false) => self.events.offline(row),
                // A newer connection has the row, or the routes lost it while the connection was open.
                (false, true) if !self.events.was_replaced(&row.token) => {
                    self.events.look(row, Duration::ZERO);
                }
                (false, _) => {}
            }
        }
        Ok(deleted)
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

    async fn request_recheck(&self, of: &NodeBoot) -> Result<(), RoutesError> {
        self.inner.request_recheck(of).await
    }

    async fn recheck_requested(&self, of: &NodeBoot) -> Result<Option<u64>, RoutesError> {
        self.inner.recheck_requested(of).await
    }

    async fn declare(
        &self,
        by: &NodeBoot,
        interests: &[(ConversationId, u64)],
    ) -> Result<Vec<bool>, RoutesError> {
        self.inner.declare(by, interests).await
    }

    async fn interested(&self, conversations: &[ConversationId]) -> Result<Vec<Vec<Interest>>, RoutesError> {
        self.inner.interested(conversations).await
    }
}

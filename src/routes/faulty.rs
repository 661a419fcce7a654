//! Fault-injecting wrapper of `Routes`.

use async_trait::async_trait;
use tidegate_protocol::id::{ConversationId, DeviceId, UserId};

use super::{
    Interest, NodeBoot, NodeInfo, NodeRow, Registered, Registration, Retire, Route, Routes, RoutesError,
    Token,
};
use crate::fault::{Breaks, Faulty};

impl Breaks for RoutesError {
    fn unavailable(why: String) -> Self {
        Self::Unavailable(why)
    }
    fn unknown(why: String) -> Self {
        Self::Unknown(why)
    }
}

#[async_trait]
impl Routes for Faulty<dyn Routes> {
    async fn register(&self, registration: Registration) -> Result<Registered, RoutesError> {
        let mut token = None;
        let call = async {
            let result = self.inner.register(registration).await;
            token = result.as_ref().ok().map(|registered| registered.token.clone());
            result
        };
        match (self.call("register", call).await, token) {
            (Err(RoutesError::Unknown(why)), Some(token)) => Err(RoutesError::InDoubt { why, token }),
            (other, _) => other,
        }
    }

    async fn remove(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError> {
        self.call("remove", self.inner.remove(rows)).await
    }

    async fn lookup(&self, users: &[UserId]) -> Result<Vec<Vec<(DeviceId, Token)>>, RoutesError> {
        self.call("lookup", self.inner.lookup(users)).await
    }

    async fn reassert(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError> {
        self.call("reassert", self.inner.reassert(rows)).await
    }

    async fn renew(&self, info: &NodeInfo) -> Result<u64, RoutesError> {
        self.call("renew", self.inner.renew(info)).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, RoutesError> {
        self.call("nodes", self.inner.nodes()).await
    }

    async fn retire(&self, of: &NodeBoot, ground: Retire) -> Result<bool, RoutesError> {
        self.call("retire", self.inner.retire(of, ground)).await
    }

    async fn rows_of(
        &self,
        of: &NodeBoot,
        after: Option<(UserId, DeviceId)>,
        limit: usize,
    ) -> Result<Vec<Route>, RoutesError> {
        self.call("rows_of", self.inner.rows_of(of, after, limit)).await
    }

    async fn request_recheck(&self, of: &NodeBoot) -> Result<(), RoutesError> {
        self.call("request_recheck", self.inner.request_recheck(of)).await
    }

    async fn recheck_requested(&self, of: &NodeBoot) -> Result<Option<u64>, RoutesError> {
        self.call("recheck_requested", self.inner.recheck_requested(of)).await
    }

    async fn declare(
        &self,
        by: &NodeBoot,
        interests: &[(ConversationId, u64)],
    ) -> Result<Vec<bool>, RoutesError> {
        self.call("declare", self.inner.declare(by, interests)).await
    }

    async fn interested(&self, conversations: &[ConversationId]) -> Result<Vec<Vec<Interest>>, RoutesError> {
        self.call("interested", self.inner.interested(conversations)).await
    }
}

//! `Link` with planned faults.

use async_trait::async_trait;
use tidegate_protocol::id::{DeviceId, UserId};

use super::{Answer, Delivery, Landing, Link, LinkError, Tail, TailQuery};
use crate::{
    fault::{Breaks, Faulty},
    routes::{NodeBoot, Token},
};

impl Breaks for LinkError {
    fn unavailable(why: String) -> Self {
        Self::Unavailable(why)
    }
    fn unknown(why: String) -> Self {
        Self::Unknown(why)
    }
}

#[async_trait]
impl Link for Faulty<dyn Link> {
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        self.call("answers", self.inner.answers(to, answers)).await
    }

    async fn deliver(
        &self,
        to: &NodeBoot,
        deliveries: Vec<Delivery>,
    ) -> Result<Vec<Vec<Landing>>, LinkError> {
        self.call("deliver", self.inner.deliver(to, deliveries)).await
    }

    async fn stop_session(&self, user: &UserId, device: &DeviceId, token: &Token) -> Result<bool, LinkError> {
        self.call("stop_session", self.inner.stop_session(user, device, token)).await
    }

    async fn tails(&self, to: &NodeBoot, queries: Vec<TailQuery>) -> Result<Vec<Option<Tail>>, LinkError> {
        self.call("tails", self.inner.tails(to, queries)).await
    }
}

//! `Link` with planned faults.

use async_trait::async_trait;

use super::{Answer, Ask, Delivery, Landing, Link, LinkError, Session, Stray, Tail, TailQuery, Word};
use crate::{
    fault::{Breaks, Faulty},
    routes::NodeBoot,
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

    async fn stop_sessions(&self, to: &NodeBoot, sessions: Vec<Session>) -> Result<Vec<bool>, LinkError> {
        self.call("stop_sessions", self.inner.stop_sessions(to, sessions)).await
    }

    async fn tails(&self, to: &NodeBoot, queries: Vec<TailQuery>) -> Result<Vec<Option<Tail>>, LinkError> {
        self.call("tails", self.inner.tails(to, queries)).await
    }

    async fn answers_again(
        &self,
        from: &NodeBoot,
        to: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<Word>, LinkError> {
        self.call("answers_again", self.inner.answers_again(from, to, asks)).await
    }

    async fn strays(&self, to: &NodeBoot, strays: Vec<Stray>) -> Result<(), LinkError> {
        self.call("strays", self.inner.strays(to, strays)).await
    }
}

//! `Link` of a node without peers: nobody is there.

use std::time::Duration;

use async_trait::async_trait;

use super::{Answer, Ask, Delivery, Landing, Link, LinkError, Session, Settled, Stray, Told, Word};
use crate::{
    routes::NodeBoot,
    trace::{Event, Query},
};

/// The link of profile `single`. What concerns the node itself never goes through a link.
#[derive(Debug, Default)]
pub struct LocalLink;

/// Nobody is there; to ask nobody for nothing succeeds.
fn nobody<T>(asked: &[T]) -> Result<(), LinkError> {
    if asked.is_empty() { Ok(()) } else { Err(LinkError::NotHere) }
}

#[async_trait]
impl Link for LocalLink {
    async fn answers(&self, _: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        nobody(&answers)
    }

    async fn deliver(&self, _: &NodeBoot, deliveries: Vec<Delivery>) -> Result<Vec<Vec<Landing>>, LinkError> {
        nobody(&deliveries).map(|()| Vec::new())
    }

    async fn stop_sessions(&self, _: &NodeBoot, sessions: Vec<Session>) -> Result<Vec<bool>, LinkError> {
        nobody(&sessions).map(|()| Vec::new())
    }

    async fn settled(&self, _: &NodeBoot, _: Vec<Told>, _: Duration) -> Result<Settled, LinkError> {
        Err(LinkError::NotHere)
    }

    async fn answers_again(
        &self,
        _: &NodeBoot,
        _: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<Word>, LinkError> {
        nobody(&asks).map(|()| Vec::new())
    }

    async fn strays(&self, _: &NodeBoot, strays: Vec<Stray>) -> Result<(), LinkError> {
        nobody(&strays)
    }

    async fn traces(&self, _: &NodeBoot, _: Query) -> Result<Vec<Event>, LinkError> {
        Err(LinkError::NotHere)
    }
}

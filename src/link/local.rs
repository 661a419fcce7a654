//! `Link` of a node without peers: nobody is there.

use async_trait::async_trait;
use tidegate_protocol::id::{DeviceId, UserId};

use super::{Answer, Delivery, Landing, Link, LinkError, Tail, TailQuery};
use crate::routes::{NodeBoot, Token};

/// The link of profile `single`. What concerns the node itself never goes through a link.
#[derive(Debug, Default)]
pub struct LocalLink;

#[async_trait]
impl Link for LocalLink {
    async fn answers(&self, _: &NodeBoot, _: Vec<Answer>) -> Result<(), LinkError> {
        Err(LinkError::NotHere)
    }

    async fn deliver(&self, _: &NodeBoot, _: Vec<Delivery>) -> Result<Vec<Vec<Landing>>, LinkError> {
        Err(LinkError::NotHere)
    }

    async fn stop_session(&self, _: &UserId, _: &DeviceId, _: &Token) -> Result<bool, LinkError> {
        Err(LinkError::NotHere)
    }

    async fn tails(&self, _: &NodeBoot, _: Vec<TailQuery>) -> Result<Vec<Option<Tail>>, LinkError> {
        Err(LinkError::NotHere)
    }
}

//! Cutting connections of a user, as a network that fails does; for development only.

use futures_util::future::join_all;
use tidegate_protocol::id::{DeviceId, UserId};
use tokio::sync::oneshot;

use super::{Broker, local::LocalDelivery};
use crate::mail::Mail;

/// Handle that cuts connections to this node.
#[derive(Clone)]
pub struct ConnectionCutter(LocalDelivery);

impl Broker {
    /// Returns a handle that cuts connections.
    pub fn cutter(&self) -> ConnectionCutter {
        ConnectionCutter(self.local.clone())
    }
}

impl ConnectionCutter {
    /// Resets the sockets of the user's device, or of all its devices, without a final frame. Returns their number once
    /// they are closed.
    pub async fn cut(&self, user: &UserId, device: Option<&DeviceId>) -> usize {
        let LocalDelivery { directory, handles, .. } = &self.0;
        let shards = directory.user(user).iter().filter_map(|shard| handles.get()?.get(shard));
        let cut = shards.map(async |shard| {
            let (reply, count) = oneshot::channel();
            shard.post(Mail::Cut(user.clone(), device.cloned(), reply)).await.ok()?;
            count.await.ok()
        });
        join_all(cut).await.into_iter().flatten().sum()
    }
}

//! Task that renews the lease of the node's run.

use std::sync::Arc;

use tokio::{sync::watch, task::JoinHandle};

use super::{
    ids::IdClaim,
    ports::{FailureWatch, leases},
};
use crate::{broker::NodeAnnouncement, link::GrpcLink, supervised};

/// Announces the node, then renews its lease in the background and passes the peers to `link`.
///
/// Returns the renewing task, and the reason once the node must end. After the announcement the lease holds the node's
/// id, so the claim is confirmed.
///
/// # Errors
/// This run of the node is already retired.
pub(super) async fn hold(
    announcement: NodeAnnouncement,
    link: Option<Arc<GrpcLink>>,
    claim: Option<&IdClaim>,
) -> anyhow::Result<(JoinHandle<()>, FailureWatch)> {
    let me = announcement.broker.cluster.me.clone();
    let mut member = announcement.into_member(leases().node, move |peers| {
        if let Some(link) = &link {
            link.set_peers(peers);
        }
    });
    member.announce().await.map_err(anyhow::Error::msg)?;
    if let Some(claim) = claim {
        claim.confirm(&me).await;
    }
    let (failed, failure) = watch::channel(None);
    let task = supervised::spawn("the lease", async move {
        let why = Box::pin(member.run()).await;
        tracing::error!(why, "run of this node has ended; shutting down");
        failed.send_replace(Some(why));
        // Stays until the shutdown, which aborts this task.
        failed.closed().await;
    });
    Ok((task, failure))
}

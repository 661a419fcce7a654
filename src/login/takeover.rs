//! Takeover of a device: stops the sessions that a registration replaced, also after a registration in doubt.

use std::{sync::Arc, time::Duration};

use tokio::time;

use super::current_token;
use crate::{
    cluster::Cluster,
    link::{LinkError, RoutedSession},
    log_limit::log_limited,
    mail::{Mail, ShardHandles},
    routes::{NodeBoot, Route},
    supervised,
};

/// Delay between attempts to stop a replaced session.
pub(super) const STOP_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Attempts to stop a replaced session while the new login waits.
pub(super) const STOP_ATTEMPTS: u32 = 3;

/// Attempts to stop a replaced session after the new login has proceeded.
const STOP_ATTEMPTS_BACKGROUND: u32 = 60;

/// How long the new login waits for the replaced session to stop; a frozen node uses up the time of each attempt.
const STOP_MAX: Duration = Duration::from_secs(1);

/// How long a registration whose reply was lost may still take effect once the routes answer again: as long as its
/// connection may resend it.
const LATE_EFFECT_MAX: Duration = Duration::from_secs(15);

/// Stops the replaced session on its node, even if that node is not discovered yet. Continues in the background after
/// [`STOP_MAX`], and requests through the routes that the node rechecks its sessions. Until the session is stopped the
/// ledger voids its sends, if the new login is of the same device.
pub(super) async fn stop_elsewhere(cluster: &Arc<Cluster>, at: NodeBoot, session: RoutedSession) {
    if matches!(time::timeout(STOP_MAX, try_stop(cluster, &at, &session, STOP_ATTEMPTS)).await, Ok(true)) {
        return;
    }
    let cluster = Arc::clone(cluster);
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        supervised::spawn_on(&runtime, "the stop of a replaced session", async move {
            if !keep_stopping(&cluster, &at, &session).await {
                log_limited!(warn, peer = %at, "replaced session not stopped; giving up");
            }
        });
    }
}

/// Tries to stop the session in the background; true once it is stopped or its node's run has ended.
async fn keep_stopping(cluster: &Cluster, at: &NodeBoot, session: &RoutedSession) -> bool {
    let mut is_requested = false;
    for _ in 0..STOP_ATTEMPTS_BACKGROUND {
        if !is_requested {
            is_requested = cluster.ports.routes.request_recheck(at).await.is_ok();
        }
        if try_stop(cluster, at, session, 1).await {
            return true;
        }
    }
    false
}

/// Resolves a registration whose reply was lost. It may have replaced a session that no later login can find, because
/// that login finds this registration's route. So all nodes stop sessions older than the current route. If the current
/// route is still this registration's, which has no connection, it is removed (flaws S1, S2).
pub(super) fn resolve_doubt(cluster: &Arc<Cluster>, lost: Route, shards: ShardHandles) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let cluster = Arc::clone(cluster);
    supervised::spawn_on(&runtime, "the check of a doubtful login", async move {
        // Counted from when the routes answer again: a stuck call may take effect that long afterwards.
        let (mut since, mut stopped) = (None, None);
        loop {
            match current_token(&cluster, &lost).await {
                Ok(Some(token)) if token.epoch >= lost.token.epoch => {
                    if stopped.replace(token.epoch) != Some(token.epoch) {
                        stop_older(&cluster, &lost, token.epoch, &shards).await;
                    }
                    // By the full token, so that a newer route stays.
                    if token != lost.token
                        || cluster.ports.routes.remove(std::slice::from_ref(&lost)).await.is_ok()
                    {
                        return;
                    }
                }
                // The row has an older token, or is lost and will be re-asserted: our registration has not landed yet.
                Ok(_) if since.get_or_insert_with(time::Instant::now).elapsed() >= LATE_EFFECT_MAX => return,
                Ok(_) => {}
                Err(_) => since = None,
            }
            time::sleep(STOP_RETRY_INTERVAL).await;
        }
    });
}

/// Stops sessions of the device with an epoch below `than`, on this node and all others.
async fn stop_older(cluster: &Arc<Cluster>, lost: &Route, than: u64, shards: &ShardHandles) {
    for shard in shards.get().into_iter().flatten() {
        shard.post(Mail::Replaced(lost.user.clone(), lost.device.clone(), than, None)).await.ok();
    }
    let Some(epoch) = than.checked_sub(1) else { return };
    for peer in cluster.peers.others().iter() {
        let session = RoutedSession { user: lost.user.clone(), device: lost.device.clone(), epoch };
        stop_elsewhere(cluster, peer.info.boot.clone(), session).await;
    }
}

/// Tries to stop the session; true once it is stopped or its node's run has ended.
async fn try_stop(cluster: &Cluster, at: &NodeBoot, session: &RoutedSession, attempts: u32) -> bool {
    for _ in 0..attempts {
        match cluster.ports.link.stop_sessions(at, vec![session.clone()]).await {
            Ok(_) | Err(LinkError::NotHere) => return true,
            Err(error) => tracing::debug!(%error, peer = %at, "replaced session not stopped yet"),
        }
        if !cluster.peers.is_live(at) {
            cluster.peers.request_refresh();
        }
        time::sleep(STOP_RETRY_INTERVAL).await;
    }
    false
}

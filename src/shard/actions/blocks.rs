//! Block lists: what the node knows of them, and lookups of the rest.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
};
use tokio::time::{Instant, timeout_at};

use crate::{
    cluster::BlockVerdict,
    net::io::Io,
    shard::{Context, Shard, conn::Conn},
};

/// Longest time for a lookup with the wait for its turn; less than a client waits for the answer to a send.
const LOOKUP_MAX: Duration = Duration::from_secs(3);

/// Refusal of a blocked sender, which does not tell the reason.
pub(in crate::shard) const BLOCKED: (Code, &str) = (Code::Forbidden, "");

impl<I: Io> Shard<I> {
    /// Returns the verdict on what the connection's user writes to the conversation, as far as the node knows it.
    pub(in crate::shard) fn block_verdict(&self, conn: &Conn, conversation: &ConversationId) -> BlockVerdict {
        let Some(login) = &conn.login else { return BlockVerdict::Allowed };
        self.context.cluster.block_verdict(&login.route.user, conversation)
    }

    /// Looks up the verdict for later signals of the connection's user; the present one is dropped.
    pub(in crate::shard) fn prepare_block_verdict(&self, conn: &Conn, conversation: &ConversationId) {
        let Some(login) = &conn.login else { return };
        let lookup = look_up_block(&self.context, login.route.user.clone(), conversation.clone());
        self.context.run_detached(async move {
            // Remembered for the next signal.
            lookup.await.ok();
        });
    }
}

/// Returns the lookup of a verdict, with its share of the reads of the store.
pub(in crate::shard) fn look_up_block(
    context: &Context,
    user: UserId,
    conversation: ConversationId,
) -> impl Future<Output = Result<BlockVerdict, Code>> + use<> {
    let (cluster, reads) = (Arc::clone(&context.cluster), Arc::clone(&context.reads));
    let metrics = context.metrics.clone();
    metrics.block_lookups.increment(1);
    async move {
        let until = Instant::now() + LOOKUP_MAX;
        let turn = timeout_at(until, reads.turn(&user)).await.map_err(|_| Code::Overloaded)?;
        let _turn = turn.map_err(|(code, _)| code)?;
        cluster.look_up_block(&user, &conversation, until).await.map_err(|error| {
            metrics.block_lookups_failed.increment(1);
            tracing::debug!(%error, "failed to look up a block; its send is refused for now");
            Code::StoreUnavailable
        })
    }
}

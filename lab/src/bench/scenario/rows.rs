//! Messages in the store of a node that has ended, counted without the node.

use anyhow::{Result, ensure};
use std::{fs, os::unix::fs::MetadataExt as _, path::Path};
use tidegate::{
    embedded::EmbeddedStore,
    store::{Direction, PageQuery, Store},
};
use tidegate_protocol::id::{ConversationId, UserId};

use crate::node_store;

/// Rows or conversations of one read.
const PAGE: usize = 1_000;

/// Returns the number of messages in the conversations of users `u0`… below this data directory, and checks that their
/// seqs have no holes. A conversation of two of these users counts for the first.
pub(super) fn count(data: &Path, users: usize) -> Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let store = node_store::open(data)?;
        let mut rows = 0;
        for user in 0..users {
            let user = UserId::new(&format!("u{user}"))?;
            let mut after: Option<ConversationId> = None;
            loop {
                let page = store.memberships(&user, after.as_ref(), PAGE).await?;
                let Some(last) = page.last() else { break };
                after = Some(last.conversation.clone());
                for membership in &page {
                    if membership.conversation.as_str().starts_with(&format!("d:{user}:")) {
                        rows += rows_of(&store, &membership.conversation, membership.head.last_seq).await?;
                    }
                }
            }
        }
        Ok(rows)
    })
}

async fn rows_of(store: &EmbeddedStore, conversation: &ConversationId, last_seq: u64) -> Result<u64> {
    let mut cursor = 0;
    loop {
        let query = PageQuery { cursor, direction: Direction::Forward, limit: PAGE, max_bytes: usize::MAX };
        let page = store.page(conversation, query).await?;
        if page.rows.is_empty() {
            break;
        }
        for stored in &page.rows {
            ensure!(stored.row.seq == cursor + 1, "{conversation}: seq {} after {cursor}", stored.row.seq);
            cursor = stored.row.seq;
        }
    }
    ensure!(cursor == last_seq, "{conversation}: {cursor} rows, but the head says {last_seq}");
    Ok(cursor)
}

/// Returns the bytes that the files below `path` take on the disk.
pub(super) fn disk_bytes(path: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let it = entry.metadata()?;
        sum += if it.is_dir() { disk_bytes(&entry.path())? } else { it.blocks() * 512 };
    }
    Ok(sum)
}

/// Returns whether `path` is in memory, where a sync costs nothing.
pub(super) fn is_memory(path: &Path) -> Result<bool> {
    /// `TMPFS_MAGIC` of statfs(2).
    const TMPFS: u64 = 0x0102_1994;
    Ok(rustix::fs::statfs(path)?.f_type as u64 == TMPFS)
}

//! Edits of messages by clients: checked as their sends are, then appended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidegate_protocol::{
    Code,
    id::{DeviceId, UserId},
    machine::{ledger::MODES_RULES, session::Query},
    record::{Edit, body_hash},
};
use tokio::time::Instant;

use super::{
    rulings::{EditDenial, rule_edit},
    token::RECIPIENT_NOT_GRANTED,
};
use crate::{
    clock::wall_ms,
    cluster::Cluster,
    config::AllowAction,
    conversation::{consistent::ConsistentReads, read_position::OwnConversation},
    hooks::HookVerdict,
    ingest::intake,
    mail::{QueryResult, Refusal},
    net::io::Io,
    shard::{Shard, conn::Conn, query::Work},
};

/// Longest time for a lookup of a block.
const BLOCK_LOOKUP_MAX: Duration = Duration::from_secs(3);

impl<I: Io> Shard<I> {
    /// Returns the work that edits a message, or refuses that.
    pub(in crate::shard) fn edit(
        &self,
        conn: &Conn,
        user: UserId,
        query: Query,
        appends: Arc<AtomicBool>,
    ) -> Work {
        let edit = conn.login.as_deref().and_then(|login| edit_of(&user, &login.route.device, query));
        let is_granted = edit.as_ref().is_some_and(|edit| Self::may_write(conn, &edit.conversation));
        let (cluster, recaller) = (Arc::clone(&self.context.cluster), self.context.recaller.clone());
        let (reads, hook) = (Arc::clone(&self.context.reads), self.context.hooks.allow());
        let before = edit.as_ref().and_then(|edit| self.context.hooks.before(&edit.conversation));
        Box::pin(async move {
            let Some(mut edit) = edit else { return Err((Code::BadState, "")) };
            if !is_granted {
                return Err(RECIPIENT_NOT_GRANTED);
            }
            check_suspension(&cluster, &user, &edit)?;
            check_node(&cluster, &edit)?;
            let until = Instant::now() + BLOCK_LOOKUP_MAX;
            let is_blocked = cluster.is_blocked(&user, &edit.conversation, until).await;
            let is_blocked = is_blocked.map_err(|_| (Code::StoreUnavailable, ""))?;
            // The application is not asked about a sender whom the recipient blocks.
            if let Some(hook) = hook.filter(|_| !is_blocked) {
                match hook.decide_edit(&user, &edit.conversation).await {
                    HookVerdict::Allowed => {}
                    HookVerdict::Denied(reason) => {
                        return Ok(QueryResult::Denied(AllowAction::Write, reason));
                    }
                    HookVerdict::Unavailable => return Err((Code::HookUnavailable, "")),
                }
                // The sender may have been suspended meanwhile.
                check_suspension(&cluster, &user, &edit)?;
            }
            let ruling = match before.filter(|_| !is_blocked) {
                Some(before) => {
                    let ruling = rule_edit(&before, &cluster.peers, &mut edit).await?;
                    check_suspension(&cluster, &user, &edit)?;
                    ruling
                }
                None => None,
            };
            let reads = ConsistentReads::new(&cluster, &reads, &user);
            let store = &*cluster.ports.store;
            let check = |above| {
                let own = OwnConversation::new(store, &user, &edit.conversation, above);
                recaller.edit_denial(own, edit.seq, wall_ms())
            };
            let denied = reads.checked(&edit.conversation, check).await?;
            edit.denied = match denied {
                None if is_blocked => Some(Code::Forbidden),
                None => ruling.as_ref().map(|ruling| ruling.code),
                denied => denied,
            };
            appends.store(true, Ordering::Relaxed);
            Ok(match recaller.edit(edit, wall_ms()).await {
                Ok(ack) => QueryResult::Accepted(Box::new(ack)),
                Err((code, words)) => match ruling.filter(|ruling| ruling.is(code)) {
                    Some(EditDenial { reason, .. }) => QueryResult::Ruled(code, reason),
                    None => QueryResult::Refused(code, words),
                },
            })
        })
    }
}

/// Returns the edit that a query asks for.
fn edit_of(user: &UserId, device: &DeviceId, query: Query) -> Option<Edit> {
    let Query::Edit { conversation, seq, content, msg_id } = query else { return None };
    let (by, device, body_hash) = (Some(user.clone()), device.clone(), body_hash(&content));
    Some(Edit { conversation, seq, by, device, msg_id, content, body_hash, denied: None })
}

/// Refuses an edit of a suspended device.
fn check_suspension(cluster: &Cluster, user: &UserId, edit: &Edit) -> Result<(), Refusal> {
    match cluster.suspensions.left(user, &edit.device, || cluster.guard.now_ms()) {
        Some(_) => Err((Code::Suspended, "")),
        None => Ok(()),
    }
}

/// Refuses an edit while the log does not take it, or nodes of a former version would skip it.
fn check_node(cluster: &Cluster, edit: &Edit) -> Result<(), Refusal> {
    match intake::refusal(cluster, &edit.conversation) {
        Some(code) => Err((code, "")),
        None if !cluster.peers.all_follow(MODES_RULES) => Err((Code::NotYet, "not all nodes know edits yet")),
        None => Ok(()),
    }
}

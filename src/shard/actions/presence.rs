//! Watches of who of a conversation is online: begins and ends them, and writes their reports to connections with nothing else
//! waiting, as signals are. What is not written is replaced by a complete report later.

use std::{future, sync::Arc, time::Duration};

use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    machine::presence::{WATCH_MEMBERS_MAX, WatchRefusal},
};

use crate::{
    conversation::consistent::ConsistentReads,
    mail::{PresenceFrame, QueryResult},
    net::io::Io,
    shard::{Shard, conn::Conn, query::Work},
};

/// Most reports that wait for the end of a turn.
const REPORTS_WAITING_MAX: usize = 256;

/// Most watchers that reports are written to in one turn.
const WATCHERS_BUDGET: usize = 1_024;

/// Refusal of a watch of a large group.
const GROUP_TOO_LARGE: &str = "groups of more than 500 members do not report who is online";
const _: () = assert!(WATCH_MEMBERS_MAX == 500, "the refusal names it");

/// Refusal of a watch that is one too many for the node.
const NODE_FULL: &str = "the node watches as many conversations as it may: try again later";

/// Time after which such a watch may be tried again.
const NODE_FULL_WAIT: Duration = Duration::from_secs(10);

/// Refusal of a watch that is one too many for the user.
const USER_FULL: &str = "all connections of the user to this node watch as many conversations as they may";

/// Refusal of a watch by a node without them.
const OFF: &str = "this node does not report who is online";

/// Refusal of a watch of a direct conversation by a node that reports groups alone.
const DIRECT_OFF: &str = "this node does not report who is online in direct conversations";

impl<I: Io> Shard<I> {
    /// Returns the check whether the user is a member of the conversation, and how many it has. Of a conversation that the node
    /// lets no user watch, nothing is read.
    pub(in crate::shard) fn check_watch(&self, user: UserId, conversation: ConversationId) -> Work {
        if self.context.watches.refusal_of(&conversation).is_some() {
            return Box::pin(future::ready(Ok(QueryResult::Watch(conversation, 0))));
        }
        let (cluster, reads) = (Arc::clone(&self.context.cluster), Arc::clone(&self.context.reads));
        Box::pin(async move {
            let reads = ConsistentReads::new(&cluster, &reads, &user);
            let members = reads.members(&user, &conversation).await?;
            Ok(QueryResult::Watch(conversation, usize::try_from(members).unwrap_or(usize::MAX)))
        })
    }

    /// Begins a watch of a member, and answers it. A refusal does not count as an error of the client, which can't know what
    /// others watch and how large a group is.
    pub(in crate::shard) fn begin_watch(
        &mut self,
        conn: &mut Conn,
        id: u64,
        conversation: ConversationId,
        members: usize,
    ) {
        let is_open = conn.is_open();
        let Some(login) = conn.login.as_mut().filter(|_| is_open) else { return };
        login.is_watching = true;
        let refusal = match self.context.watches.watch(conn.key, &login.route.user, conversation, members) {
            Ok(()) => return conn.session.query_done(id, &mut self.buffers.actions),
            Err(WatchRefusal::GroupTooLarge) => Code::Forbidden.error(GROUP_TOO_LARGE),
            Err(WatchRefusal::Off) => Code::Unsupported.error(OFF),
            Err(WatchRefusal::DirectOff) => Code::Unsupported.error(DIRECT_OFF),
            Err(WatchRefusal::ConnectionFull) => Code::TooManyWatches.error(""),
            Err(WatchRefusal::UserFull) => Code::TooManyWatches.error(USER_FULL),
            Err(WatchRefusal::NodeFull) => Code::Overloaded.error_after(NODE_FULL, NODE_FULL_WAIT),
        };
        conn.session.query_deferred(id, refusal, &mut self.buffers.actions);
    }

    /// Ends a watch, and answers that.
    pub(in crate::shard) fn end_watch(&mut self, conn: &mut Conn, id: u64, conversation: &ConversationId) {
        if conn.login.as_deref().is_some_and(|login| login.is_watching) {
            self.context.watches.unwatch(conn.key, conversation);
        }
        conn.session.query_done(id, &mut self.buffers.actions);
    }

    /// Queues a report for the end of the turn, or drops it if the queue is full.
    pub(in crate::shard) fn take_presence(&mut self, report: PresenceFrame) {
        if self.presence.len() < REPORTS_WAITING_MAX {
            return self.presence.push_back(report);
        }
        self.context.watches.note_no_room(&report.watchers, &report.conversation, report.is_last);
    }

    /// Writes the waiting reports, unless fan-out work waits.
    pub(in crate::shard) fn write_presence(&mut self) {
        let mut left = WATCHERS_BUDGET;
        while left > 0 && !self.hub.has_work() {
            let Some(report) = self.presence.pop_front() else { return };
            left = left.saturating_sub(report.watchers.len().max(1));
            for watcher in &report.watchers {
                let Some(slot) = self.conns.find(*watcher) else { continue };
                // A later watch has begun meanwhile, which the report does not end.
                if report.is_last && self.context.watches.has_watch(*watcher, &report.conversation) {
                    continue;
                }
                if !self.write_volatile(slot, &report.frame) {
                    self.context.watches.note_dropped(*watcher, &report.conversation, report.is_last);
                }
            }
        }
    }
}

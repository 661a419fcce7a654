//! Client queries: run outside the shard loop, answered one part at a time, so that answers never pile up in an outbox.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    machine::session::Query,
    pb::{self, server_frame::Body as FrameBody},
};

use super::{
    Shard,
    actions::{
        decisions::{log_denial, mark_reason, refusal},
        limits::{CountedRequest, mark_limit},
    },
    conn::{AskingRequest, Conn, OpenQuery},
};
use crate::{
    clock::wall_ms,
    config::AllowAction,
    conversation::{
        consistent::ConsistentReads, mark_read, read_position::OwnConversation, reader::Reader,
        recall::RecallOutcome, sync,
    },
    hooks::HookVerdict,
    limits::LimitRefusal,
    mail::{Decision, Mail, QueryResult},
    net::io::Io,
    storms::SlowMessage,
    supervised,
};

/// Time after which the store counts as unavailable for a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) type Work = Pin<Box<dyn Future<Output = Result<QueryResult, (Code, &'static str)>> + Send>>;

/// Returns the state of a query that is answered at once.
fn answered(id: u64) -> Box<OpenQuery> {
    Box::new(OpenQuery { is_sent: true, ..OpenQuery::new(id, Arc::default()) })
}

impl<I: Io> Shard<I> {
    /// Starts a query; its result arrives at once or as mail.
    pub(super) fn start_query(&mut self, conn: &mut Conn, id: u64, query: Query) {
        let Some(reader) = self.reader(conn) else { return };
        let user = reader.user.clone();
        if let Query::Watch { conversation, stop: true } = &query {
            // It ends work, so no limit holds it up.
            conn.open_query = Some(answered(id));
            return self.end_watch(conn, id, conversation);
        }
        let Some(is_gated) = self.enter_query(conn, id, &query) else {
            conn.open_query = Some(answered(id));
            return;
        };
        let request = CountedRequest::of_query(&query);
        let device = conn.login.as_deref().map(|login| login.route.device.clone());
        let limiter = || match (&query, &device) {
            // An edit goes to the log and to all members, as a message does.
            (Query::Edit { conversation, msg_id, .. }, Some(device)) => {
                let slow = self.context.cluster.storms.entries().slow();
                let asked = SlowMessage { group: conversation, user: &user, device, msg_id };
                let admission = slow.admit(asked, || !self.hub.is_in(conversation, conn.key.slot))?;
                let limited = self.context.limiter.send(&user, conversation, self.now);
                limited.inspect_err(|_| admission.withdraw())
            }
            _ => self.context.limiter.query(&user, self.now),
        };
        if let Err(refusal) = self.admit_request(conn, &request, limiter) {
            if is_gated {
                self.gates.leave_read(None);
            }
            return self.limit_query(conn, id, query, &refusal);
        }
        let appends = Arc::new(AtomicBool::new(matches!(query, Query::Leave(_))));
        let mut open_query = OpenQuery::new(id, Arc::clone(&appends));
        open_query.conversation = request.conversation.cloned();
        open_query.gated_since = is_gated.then_some(self.now);
        let (cluster, reads) = (Arc::clone(&self.context.cluster), Arc::clone(&self.context.reads));
        let work: Work = match query {
            Query::Pull(pull) => Box::pin(async move {
                let page = ConsistentReads::new(&cluster, &reads, &user).page(&reader, &pull).await?;
                Ok(QueryResult::Page(Box::new(page)))
            }),
            Query::Positions(positions) => {
                let after = conn.login.as_mut().and_then(|login| login.positions_after.take());
                Box::pin(async move {
                    cluster.barrier().await;
                    let _turn = reads.turn(&user).await?;
                    let (store, positions) = (&*cluster.ports.store, positions.into_iter().collect());
                    let found = sync::changed(store, &user, &positions, after.as_deref()).await?;
                    Ok(QueryResult::Positions(found.positions, found.next))
                })
            }
            Query::Read { ref conversation, .. }
            | Query::Clear { ref conversation, .. }
            | Query::Hide { ref conversation, .. } => {
                let conversation = conversation.clone();
                self.change_personal(conn, user, conversation, query)
            }
            Query::Recall { conversation, seq } => self.recall(user, conversation, seq, appends),
            Query::Edit { .. } => self.edit(conn, user, query, appends),
            Query::Leave(conversation) => self.leave_group(user, conversation),
            Query::Watch { conversation, .. } => self.check_watch(user, conversation),
            Query::Sync(positions) => {
                open_query.positions = Arc::new(positions.into_iter().collect());
                self.states(reader, &open_query)
            }
        };
        conn.open_query = Some(Box::new(open_query));
        self.run_query(conn, work);
    }

    /// Refuses a query that a limit does not admit, or lets it wait for permits.
    fn limit_query(&mut self, conn: &mut Conn, id: u64, query: Query, refusal: &LimitRefusal) {
        if let Some(asking) = refusal.asking.as_ref().filter(|_| conn.held.is_none()) {
            let request = AskingRequest::Query { id, query: Box::new(query) };
            return self.await_permits(conn, request, asking);
        }
        conn.open_query = Some(answered(id));
        let out = &mut self.buffers.actions;
        if refusal.asking.is_some() {
            // A send waits for the block list of its recipient, and a connection keeps one request.
            return conn.session.query_deferred(id, Code::Busy.error_after("", refusal.wait), out);
        }
        let before = out.len();
        conn.session.query_limited(id, refusal.wait, out);
        mark_limit(&mut out[before..], refusal);
    }

    fn reader(&self, conn: &Conn) -> Option<Reader> {
        let user = conn.login.as_ref()?.route.user.clone();
        Some(Reader { user, viewing: conn.session.viewing(), now_ms: self.wall_ms })
    }

    fn states(&self, reader: Reader, open_query: &OpenQuery) -> Work {
        let (cluster, reads) = (Arc::clone(&self.context.cluster), Arc::clone(&self.context.reads));
        let (positions, after) = (Arc::clone(&open_query.positions), open_query.next.clone());
        let limit = open_query.limit;
        Box::pin(async move {
            cluster.barrier().await;
            let _turn = reads.turn(&reader.user).await?;
            let found =
                sync::states(&*cluster.ports.store, &reader, &positions, after.as_ref(), limit).await?;
            Ok(QueryResult::States(found.states, found.next))
        })
    }

    fn leave_group(&self, user: UserId, conversation: ConversationId) -> Work {
        let (admin, wall_ms) = (self.context.recaller.admin.clone(), self.wall_ms);
        Box::pin(async move {
            admin.leave(conversation, user, wall_ms).await?;
            Ok(QueryResult::Done)
        })
    }

    fn recall(&self, user: UserId, conversation: ConversationId, seq: u64, appends: Arc<AtomicBool>) -> Work {
        let (cluster, recaller) = (Arc::clone(&self.context.cluster), self.context.recaller.clone());
        let (reads, hook) = (Arc::clone(&self.context.reads), self.context.hooks.allow());
        // The barrier may take seconds, so each step reads the clock, not the turn.
        Box::pin(async move {
            if let Some(hook) = hook {
                match hook.decide_recall(&user, &conversation).await {
                    HookVerdict::Allowed => {}
                    HookVerdict::Denied(reason) => {
                        return Ok(QueryResult::Denied(AllowAction::Recall, reason));
                    }
                    HookVerdict::Unavailable => return Err((Code::HookUnavailable, "")),
                }
            }
            let reads = ConsistentReads::new(&cluster, &reads, &user);
            let store = &*cluster.ports.store;
            let check = |above| {
                let own = OwnConversation::new(store, &user, &conversation, above);
                recaller.check(own, seq, wall_ms())
            };
            let ack = match reads.checked(&conversation, check).await? {
                RecallOutcome::Done(ack) => ack,
                RecallOutcome::Allowed(recall) => {
                    appends.store(true, Ordering::Relaxed);
                    recaller.recall(recall, wall_ms()).await?
                }
            };
            Ok(QueryResult::Accepted(Box::new(ack)))
        })
    }

    /// Changes the user's own state of a conversation, and notifies the user's other devices.
    fn change_personal(&self, conn: &Conn, user: UserId, conversation: ConversationId, query: Query) -> Work {
        let (cluster, reads) = (Arc::clone(&self.context.cluster), Arc::clone(&self.context.reads));
        let devices = mark_read::Devices {
            directory: Arc::clone(&self.context.directory),
            shards: Arc::clone(&self.context.handles),
            best_effort: self.context.best_effort.clone(),
        };
        let actor = conn.key;
        Box::pin(async move {
            let reads = ConsistentReads::new(&cluster, &reads, &user);
            if let Some((seq, body)) = reads.change(&user, &conversation, &query).await? {
                devices.notify(&user, &conversation, seq, body, Some(actor));
            }
            Ok(QueryResult::Done)
        })
    }

    fn run_query(&mut self, conn: &mut Conn, work: Work) {
        let key = conn.key;
        let appends =
            conn.open_query.as_ref().map(|open_query| Arc::clone(&open_query.appends)).unwrap_or_default();
        let metrics = self.context.metrics.clone();
        let with_timeout = async move {
            let panicked = |_| {
                metrics.panics.increment(1);
                match appends.load(Ordering::Relaxed) {
                    true => Err((Code::Unknown, "")),
                    false => {
                        Err((Code::Internal, "an internal error while answering; others are unaffected"))
                    }
                }
            };
            let work = async { supervised::contained(work).await.unwrap_or_else(panicked) };
            let timed_out = |_| match appends.load(Ordering::Relaxed) {
                true => Err((Code::Unknown, "")),
                false => Err((Code::StoreUnavailable, "the store did not answer in time")),
            };
            tokio::time::timeout(QUERY_TIMEOUT, work).await.unwrap_or_else(timed_out)
        };
        if let Some(found) = self.context.ask(with_timeout, move |found| Mail::QueryDone(key, found)) {
            self.on_query_result(conn, found);
        }
    }

    /// Passes the result of a query to the session; the caller applies the actions and flushes.
    pub(super) fn on_query_result(
        &mut self,
        conn: &mut Conn,
        found: Result<QueryResult, (Code, &'static str)>,
    ) {
        let is_open = |open_query: &&mut Box<OpenQuery>| !open_query.is_sent;
        let refused = match &found {
            Err((code, _)) => Some(*code),
            Ok(QueryResult::Refused(code, _) | QueryResult::Ruled(code, _)) => Some(*code),
            Ok(_) => None,
        };
        if let Some(code) = refused
            && let Some(conversation) =
                conn.open_query.as_mut().filter(is_open).and_then(|open_query| open_query.conversation.take())
        {
            self.note_probe(conn, code, &conversation);
        }
        let Some(open_query) = conn.open_query.as_mut().filter(|open_query| !open_query.is_sent) else {
            return;
        };
        let (session, out, id) = (&mut conn.session, &mut self.buffers.actions, open_query.id);
        open_query.is_sent = true;
        open_query.next = None;
        match found {
            Ok(QueryResult::Page(page)) => session.query_told(id, vec![FrameBody::Page(*page)], out),
            Ok(QueryResult::States(states, next)) => {
                open_query.limit = sync::next_limit(states.len());
                open_query.unread += states.iter().map(|state| state.unread).sum::<u64>();
                let end =
                    next.is_none().then(|| FrameBody::SyncEnd(pb::SyncEnd { unread: open_query.unread }));
                let frames = states.into_iter().map(FrameBody::ConversationState).chain(end).collect();
                session.query_told(id, frames, out);
                open_query.next = next;
            }
            Ok(QueryResult::Positions(positions, next)) => {
                if let Some(login) = &mut conn.login {
                    login.positions_after = next.map(Box::new);
                }
                session.query_pong(id, positions, self.now, out);
            }
            Ok(QueryResult::Accepted(ack)) => session.query_told(id, vec![FrameBody::SendAck(*ack)], out),
            Ok(QueryResult::Done) => session.query_done(id, out),
            Ok(QueryResult::Watch(conversation, members)) => {
                self.begin_watch(conn, id, conversation, members);
            }
            Ok(QueryResult::Refused(code, words)) => {
                session.query_refused(id, code, &words, &conn.settings.limits, out);
            }
            Ok(QueryResult::Ruled(code, reason)) => {
                let before = out.len();
                session.query_refused(id, code, &reason.message, &conn.settings.limits, out);
                mark_reason(&mut out[before..], &reason);
            }
            Ok(QueryResult::Denied(action, reason)) => {
                let decision = Decision::Denied(reason);
                let (code, words) = refusal(&decision).unwrap_or((Code::Forbidden, ""));
                let before = out.len();
                session.query_refused(id, code, words, &conn.settings.limits, out);
                if let Decision::Denied(reason) = &decision {
                    log_denial(conn, action, reason.as_deref());
                    if let Some(reason) = reason {
                        mark_reason(&mut out[before..], reason);
                    }
                }
            }
            Err((code, words)) => session.query_refused(id, code, words, &conn.settings.limits, out),
        }
    }

    /// Returns whether the query can continue: the client has taken the part of the answer that was sent.
    pub(super) fn is_answer_taken(conn: &Conn) -> bool {
        conn.is_open()
            && conn.outbox.is_none()
            && conn.open_query.as_ref().is_some_and(|open_query| open_query.is_sent)
    }

    /// Continues with the next part of the answer, or ends the query; the caller reads on.
    pub(super) fn continue_query(&mut self, conn: &mut Conn) {
        if !Self::is_answer_taken(conn) {
            return;
        }
        let Some(mut open_query) = conn.open_query.take() else { return };
        if let Some(reader) = self.reader(conn).filter(|_| open_query.next.is_some()) {
            open_query.is_sent = false;
            open_query.gated_since = Some(self.now);
            self.gates.continue_read();
            let work = self.states(reader, &open_query);
            conn.open_query = Some(open_query);
            self.run_query(conn, work);
            return self.act(conn);
        }
        conn.session.query_over(&conn.settings.limits, self.now);
    }
}

//! Decisions about sends, joins and signals: the block list of the recipient first, then the hooks. A request for
//! which an answer has to be fetched is held, and what the connection sends after it keeps its order.

use std::sync::Arc;

use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, RoomId},
    machine::session::{Action, Submit, SubmitRefusal},
    pb::{self, server_frame::Body as FrameBody},
};

use crate::{
    cluster::BlockVerdict,
    config::AllowAction,
    hooks::{AppReason, BeforeQuestion, HookVerdict, StartedRead},
    limits::LimitWaits,
    log_limit::log_limited,
    mail::{ConnKey, Decision, Mail},
    net::io::Io,
    shard::{
        Shard,
        actions::blocks::look_up_block,
        conn::{AskingLogin, AskingRequest, Conn, DecidedRequest, Held, HeldRequest, LoginState},
    },
    store::Store,
};

/// Text of a refusal by the hook that gives no reason.
const NOT_ALLOWED: &str = "the application does not allow this";

/// Key in `Error.detail` of the application's own code; with it the message is the application's.
const APP_DETAIL: &str = "app";

impl<I: Io> Shard<I> {
    /// Passes a send on, refuses it, or holds it until the store or the hook has answered. The hook is not asked about a
    /// send to a user who blocks the sender.
    pub(in crate::shard) fn decide_send(&mut self, conn: &mut Conn, submit: Submit) {
        let blocked = match submit.conversation.kind() {
            ConversationKind::Room(_) => BlockVerdict::Allowed,
            _ => self.block_verdict(conn, &submit.conversation),
        };
        let Some(login) = &conn.login else { return self.submit_allowed(conn, submit, true) };
        let (user, conversation) = (&login.route.user, &submit.conversation);
        let hook = self.context.hooks.allow();
        let is_room = matches!(conversation.kind(), ConversationKind::Room(_));
        // One to a room that its sender is not in is refused for that later.
        let before = self.context.hooks.before(conversation);
        let before = before.filter(|_| !is_room || self.hub.is_in(conversation, conn.key.slot));
        let decided = match (blocked, &hook) {
            (BlockVerdict::Blocked, _) => Some(Decision::Blocked),
            (BlockVerdict::Allowed, None) => Some(Decision::Allowed),
            (BlockVerdict::Allowed, Some(hook)) => hook.may_write(user, conversation).map(Decision::from),
            (BlockVerdict::Unknown, _) => None,
        };
        let is_allowed = matches!(decided, Some(Decision::Allowed));
        if let Some(decision) = decided.filter(|_| !is_allowed || before.is_none()) {
            return self.carry_out(conn, DecidedRequest::Send(submit), &decision);
        }
        let pauses = hook.is_some() || before.is_some();
        // Before a hook is asked, which would cost a call for nothing; the rules count the message once it is allowed.
        if pauses && let Some(refusal) = self.refuses_send(conn, &submit) {
            return self.turn_away(conn, submit, &refusal.into());
        }
        let (user, conversation) = (user.clone(), conversation.clone());
        let lookup = (blocked == BlockVerdict::Unknown)
            .then(|| look_up_block(&self.context, user.clone(), conversation.clone()));
        let ruling = before.zip(conn.login.as_deref().map(|login| question(login, &submit)));
        let store = Arc::clone(&self.context.cluster.ports.store);
        // A message that was answered may not be archived yet.
        let may_lag = self.context.cluster.owned.unarchived().is_allowed();
        let decision = async move {
            if let Some(lookup) = lookup {
                match lookup.await {
                    Ok(BlockVerdict::Allowed) => {}
                    Ok(BlockVerdict::Blocked | BlockVerdict::Unknown) => return Decision::Blocked,
                    Err(code) => return Decision::Unavailable(code),
                }
            }
            let hook = hook.filter(|_| !is_allowed);
            let hooks = usize::from(hook.is_some()) + usize::from(ruling.is_some());
            // One read for both hooks. If the store is unavailable, the stricter question is asked.
            let has_messages = StartedRead::new(has_messages(&*store, &conversation, may_lag), hooks);
            if let Some(hook) = hook {
                let verdict = hook.decide_write(&user, &conversation, has_messages.get());
                match Box::pin(has_messages.during(verdict)).await {
                    HookVerdict::Allowed => {}
                    refused => return refused.into(),
                }
            }
            let Some((before, question)) = ruling else { return Decision::Allowed };
            Decision::Ruled(before.decide(question, has_messages.get()).await)
        };
        self.hold(conn, DecidedRequest::Send(submit).into(), pauses, decision);
    }

    /// Joins a room, refuses the join, or holds it until the hook has answered. The hook is not asked about a closed room.
    pub(in crate::shard) fn decide_join(&mut self, conn: &mut Conn, id: u64, room: RoomId) {
        let (hook, login) = (self.context.hooks.allow(), conn.login.as_ref());
        let closed_rooms = &self.context.cluster.closed_rooms;
        let hook = hook.filter(|_| !closed_rooms.contains(&ConversationId::room(&room)));
        let (Some(hook), Some(login)) = (hook, login) else { return self.join_allowed(conn, id, &room) };
        let user = login.route.user.clone();
        let decided = hook.may_join(&user, &room).map(Decision::from);
        let decided = decided.or_else(|| conn.held.is_some().then_some(Decision::Unavailable(Code::Busy)));
        if let Some(decision) = decided {
            return self.carry_out(conn, DecidedRequest::Join { id, room }, &decision);
        }
        let asked = room.clone();
        let decision = async move { hook.decide_join(&user, &asked).await.into() };
        self.hold(conn, DecidedRequest::Join { id, room }.into(), true, decision);
    }

    /// Broadcasts a signal, refuses it, or holds it until the hook has answered.
    pub(in crate::shard) fn decide_signal(
        &mut self,
        conn: &mut Conn,
        id: u64,
        conversation: ConversationId,
        signal: Box<pb::Signal>,
    ) {
        let (hook, login) = (self.context.hooks.allow(), conn.login.as_ref());
        let (Some(hook), Some(login)) = (hook, login) else {
            return self.signal_allowed(conn, id, conversation, *signal);
        };
        let user = login.route.user.clone();
        let decided = hook.may_signal(&user, &conversation).map(Decision::from);
        let decided = decided.or_else(|| conn.held.is_some().then_some(Decision::Unavailable(Code::Busy)));
        let asked = conversation.clone();
        let request = DecidedRequest::Signal { id, conversation, signal };
        match decided {
            Some(decision) => self.carry_out(conn, request, &decision),
            None => {
                let decision = async move { hook.decide_signal(&user, &asked).await.into() };
                self.hold(conn, request.into(), true, decision);
            }
        }
    }

    /// Keeps a request until its decision. If `pauses`, nothing further of the connection is handled meanwhile.
    pub(in crate::shard) fn hold(
        &mut self,
        conn: &mut Conn,
        request: HeldRequest,
        pauses: bool,
        decision: impl Future<Output = Decision> + Send + 'static,
    ) {
        conn.held = Some(Box::new(Held { request, pauses }));
        let key = conn.key;
        let mail = move |decision| Mail::Decided(key, decision);
        if pauses {
            // Neither a question to the hook nor a wait is ready at once.
            self.context.run_later(decision, mail);
        } else if let Some(decision) = self.context.ask(decision, mail) {
            self.on_decision(conn, &decision);
        }
    }

    /// Handles the decision that the request of a connection waits for.
    pub(in crate::shard) fn take_decision(&mut self, key: ConnKey, decision: Decision) {
        let Some(slot) = self.conns.find(key) else { return };
        self.with_conn(slot, |shard, conn| {
            if conn.is_open() {
                shard.on_decision(conn, &decision);
                shard.act(conn);
                shard.resume(conn);
                shard.flush(conn);
            }
        });
    }

    /// Continues the request that waits; the caller applies the actions.
    fn on_decision(&mut self, conn: &mut Conn, decision: &Decision) {
        let Some(held) = conn.held.take() else { return };
        match held.request {
            // The sender may have been suspended meanwhile.
            HeldRequest::Deciding(DecidedRequest::Send(submit)) if self.refuse_suspended(conn, &submit) => {}
            HeldRequest::Deciding(DecidedRequest::Signal { id, .. }) if self.drop_suspended(conn, id) => {}
            HeldRequest::Deciding(request) => self.carry_out(conn, request, decision),
            HeldRequest::Asking(request, waits) => self.ask_again(conn, request, waits),
        }
    }

    pub(super) fn carry_out(&mut self, conn: &mut Conn, request: DecidedRequest, decision: &Decision) {
        let request = match (request, decision) {
            (DecidedRequest::Send(submit), Decision::Ruled(verdict)) => {
                return self.carry_out_verdict(conn, submit, verdict);
            }
            (request, _) => request,
        };
        let Some((code, message)) = refusal(decision) else {
            return match request {
                DecidedRequest::Send(submit) => self.submit_allowed(conn, submit, true),
                // It waits once, so that no wait is longer than its limit says.
                DecidedRequest::Delayed(submit) => self.submit_allowed(conn, submit, false),
                DecidedRequest::Join { id, room } => self.join_allowed(conn, id, &room),
                DecidedRequest::Signal { id, conversation, signal } => {
                    self.signal_allowed(conn, id, conversation, *signal);
                }
            };
        };
        if *decision == Decision::Blocked {
            self.context.metrics.blocked.increment(1);
        }
        let (limits, out) = (&conn.settings.limits, &mut self.buffers.actions);
        let (before, action) = (out.len(), request.action());
        match request {
            DecidedRequest::Send(submit) | DecidedRequest::Delayed(submit) => {
                // After a temporary refusal the chain goes back to the client, which sends the message again.
                let refusal = SubmitRefusal { message, ..code.into() };
                conn.session.submit_refused(submit.ticket, refusal, limits, self.now, out);
            }
            DecidedRequest::Join { id, room } => {
                conn.session.joined(id, &room, Err((code, message)), limits, self.now, out);
            }
            DecidedRequest::Signal { id, .. } => {
                conn.session.signalled(id, Err((code, message)), limits, out);
            }
        }
        if let Decision::Denied(reason) = decision {
            log_denial(conn, action, reason.as_deref());
            if let Some(reason) = reason {
                mark_reason(&mut out[before..], reason);
            }
        }
    }

    /// Decides again about a request whose ask for permits has ended.
    fn ask_again(&mut self, conn: &mut Conn, request: AskingRequest, waits: LimitWaits) {
        self.asking_since = waits.asking_since;
        match request {
            AskingRequest::Send(submit) => self.submit_allowed(conn, submit, waits.for_space),
            AskingRequest::Login(login) => {
                let AskingLogin { device, asked_at, identity } = *login;
                self.log_in(conn, &device, asked_at, Ok(identity));
            }
            AskingRequest::Query { id, query } => self.start_query(conn, id, *query),
            AskingRequest::Join { id, room } => self.join_room(conn, id, &room),
        }
        self.asking_since = None;
    }
}

/// Returns whether the conversation has messages; `None` if the store is unavailable, or may lack those that were answered.
async fn has_messages(store: &dyn Store, conversation: &ConversationId, may_lag: bool) -> Option<bool> {
    let summary = store.summary(conversation, None).await.ok()?;
    Some(summary.is_some()).filter(|it| *it || !may_lag)
}

/// Returns the question about a send.
fn question(login: &LoginState, submit: &Submit) -> BeforeQuestion {
    BeforeQuestion {
        conversation: submit.conversation.clone(),
        sender: login.route.user.clone(),
        device: login.route.device.clone(),
        msg_id: submit.msg_id.clone(),
        attempt: submit.attempt,
        content: submit.content.clone(),
        flags: submit.flags,
        of: None,
    }
}

/// Returns the code and the text of a refusal; `None` if the request is allowed.
pub(in crate::shard) fn refusal(decision: &Decision) -> Option<(Code, &str)> {
    match decision {
        // A verdict about the content is carried out apart.
        Decision::Allowed | Decision::Ruled(_) => None,
        // The text does not tell the reason.
        Decision::Blocked => Some((Code::Forbidden, "")),
        Decision::Denied(reason) => {
            let message = reason.as_deref().map(|reason| &*reason.message).filter(|it| !it.is_empty());
            Some((Code::Forbidden, message.unwrap_or(NOT_ALLOWED)))
        }
        Decision::Unavailable(code) => Some((*code, "")),
    }
}

/// Logs a refusal by the hook `allow`. The target and the application's text are left out: both may name people.
pub(in crate::shard) fn log_denial(conn: &Conn, action: AllowAction, reason: Option<&AppReason>) {
    let connection = format_args!("{:x}", conn.key.pack());
    let user = conn.login.as_ref().map(|login| login.route.user.as_str());
    let (action, code) = (action.name(), reason.map(|it| &*it.code).filter(|it| !it.is_empty()));
    log_limited!(info, %connection, user, action, code, "hook `allow` refused a request");
}

/// Marks the lasting refusals among the actions as the application's, with its own code.
pub(in crate::shard) fn mark_reason(actions: &mut [Action], reason: &AppReason) {
    for action in actions {
        if let Action::Reply(frame) = action
            && let Some(FrameBody::Error(error)) = &mut frame.body
            && !error.temporary
        {
            error.detail.insert(APP_DETAIL.to_owned(), reason.code.to_string());
        }
    }
}

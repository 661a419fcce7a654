//! Session actions: carries out the logins, sends, room joins, acks, replies and closes that a session machine emits.

use std::{
    cell::OnceCell,
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tidegate_protocol::{
    Code, Time, codec,
    id::{ConversationId, MsgId, UserId},
    machine::session::{Action, Alarm, ChainSaved, LoggedIn, SubmitAnswer},
    pb::{self, server_frame::Body as FrameBody},
};
use tokio::time;

pub(super) mod bans;
pub(super) mod blocks;
pub(super) mod closed_rooms;
mod connections;
pub(super) mod decisions;
mod edit;
pub(super) mod evidence;
mod expiry;
pub(super) mod limits;
pub(super) mod overload;
mod presence;
pub(super) mod priorities;
mod room_lists;
mod rulings;
pub(super) mod token;

use super::{
    Shard,
    conn::{Conn, LIVE, LoginState},
};
use crate::{
    evidence::EvidenceKind,
    link::RoutedSession,
    log_limit::log_limited,
    login,
    mail::{ConnKey, Item, LoginDone, LoginError, Mail, TokenUse},
    net::io::Io,
    routes::{DevicePolicy, Route},
    scratch::{ChainChange, ChainSaver, ChainState},
    supervised,
};

impl<I: Io> Shard<I> {
    /// Applies the actions in the shared buffer, then submits the sends that they release, until none are left.
    pub(super) fn act(&mut self, conn: &mut Conn) {
        loop {
            let mut actions = std::mem::take(&mut self.buffers.actions);
            for action in actions.drain(..) {
                self.apply(conn, action);
            }
            if self.buffers.actions.is_empty() {
                self.buffers.actions = actions;
            }
            let limits = &conn.settings.limits;
            let submit = if conn.is_paused_by_request() {
                None
            } else if Self::may_submit(conn) {
                conn.session.poll_submit(limits, self.now, &mut self.buffers.actions)
            } else {
                self.hold_sends(conn);
                None
            };
            match submit {
                Some(submit) => self.submit(conn, *submit),
                None if self.buffers.actions.is_empty() => return,
                None => {}
            }
        }
    }

    fn apply(&mut self, conn: &mut Conn, action: Action) {
        match action {
            Action::Login(hello) if !self.enter_login(conn, &hello) => {}
            Action::Login(hello) => {
                conn.hello_at_ms = self.now.as_millis() as u32;
                let pb::Hello { token, device, .. } = *hello;
                self.check_token(conn, token, TokenUse::Login { device, asked_at: time::Instant::now() });
            }
            Action::Refresh { id, token } => self.refresh(conn, id, token),
            Action::Join { id, room } => self.join_room(conn, id, &room),
            Action::Signal { id, conversation, signal } => self.signal(conn, id, conversation, signal),
            Action::React { id, room, kind } => self.react(conn, id, &room, kind),
            Action::SignalDropped => self.context.metrics.signals_dropped.increment(1),
            Action::Leave { room } => self.leave_room(conn, &room),
            Action::Acked { conversation, seq } => {
                if !self.unacked_traces.is_empty() {
                    self.trace_ack(conn, &conversation, seq);
                }
                if self.context.cluster.notes_acks.load(Ordering::Relaxed)
                    && let Some(login) = &mut conn.login
                {
                    login.acks.get_or_insert_default().note(&conversation, seq);
                }
                if let Some(window) = &mut conn.window {
                    let before = window.len();
                    if let Some(sent_at) = window.ack(&conversation, seq) {
                        self.context.metrics.push_times.record(self.now.since(sent_at));
                    }
                    if window.len() < before {
                        conn.session.ack_was_due(&conn.settings.limits);
                    }
                    if window.is_empty() {
                        conn.window = None;
                    }
                }
            }
            Action::SaveChain { done, expected } => self.save_chain(conn, ChainChange::Done(done), expected),
            Action::SaveSkip { skipped, expected } => {
                self.save_chain(conn, ChainChange::Skipped(skipped), expected);
            }
            Action::Alarm(alarm) => self.alarm(conn, &alarm),
            Action::Reply(frame) => {
                if let Some(FrameBody::Error(error)) = &frame.body {
                    self.context.metrics.unknowns.increment(u64::from(error.code == UNKNOWN));
                    self.note_refusal(conn, error);
                }
                self.reply(conn, &frame);
            }
            Action::Query { id, query } => self.start_query(conn, id, *query),
            Action::Answer(frame) => {
                let frame = codec::encode_frame(&frame, self.conns.hot[conn.key.slot as usize].wire);
                conn.outbox.get_or_insert_with(Box::default).push_answer(frame);
            }
            Action::Close { code, reason } => self.begin_close(conn, code, &reason),
        }
    }

    fn limit_login(&mut self, conn: &mut Conn, reason: &'static str, wait: Duration) {
        self.context.metrics.login_refusals.increment(1);
        self.buffers.close_after = Some(wait);
        conn.session.login_limited(reason, wait, &mut self.buffers.actions);
    }

    /// Indexes the user of a registered route, then requests the user's memberships.
    ///
    /// The user is indexed before the memberships are read, so a message accepted in between reaches
    /// the connection by one of the two ways.
    pub(super) fn on_login(&mut self, conn: &mut Conn, done: Result<LoginDone, LoginError>) {
        if !conn.is_open() {
            return self.forget_login(done);
        }
        let done = match done {
            Ok(done) => done,
            Err(LoginError { code, reason }) => {
                self.context.metrics.login_refusals.increment(1);
                conn.session.login_refused(code, reason, &mut self.buffers.actions);
                return self.act(conn);
            }
        };
        conn.session.set_settings(done.settings);
        self.hub.add_user(&done.route.user, conn.key.slot);
        self.replace_others(&done);
        self.check_replaced(&done.route);
        self.logins.push((conn.key, done.route.clone()));
        let chain = done.chain.map(|state| Arc::new(saver(&done.route, Some(state))));
        conn.login = Some(Box::new(LoginState {
            sends: self.context.user_sends.connect(&done.route.user),
            route: done.route,
            grants: done.grants,
            term: done.term,
            limit_keys: OnceCell::new(),
            since_ms: self.wall_ms,
            next_refresh: Time::ZERO,
            chain,
            announced: None,
            next_probe: Time::ZERO,
            probed: None,
            denials: Vec::new(),
            gated_sends: 0,
            outdated: Vec::new(),
            positions_after: None,
            acks: None,
            is_watching: false,
        }));
        self.prioritize(conn);
        self.close_if_revoked(conn);
        self.refuse_if_banned(conn);
    }

    /// Adds the connection to its user's groups, then lets the session send Welcome.
    ///
    /// In a group with queued pushes the join is queued after them, so that the connection gets none from before its
    /// join. Such groups are removed from `groups`: their reference is released when the join is applied.
    pub(super) fn on_memberships(&mut self, conn: &mut Conn, groups: &mut Vec<ConversationId>) {
        let Some(login) = conn.login.as_ref().filter(|_| conn.is_open()) else { return };
        let user: Arc<[UserId]> = [login.route.user.clone()].into();
        groups.retain(|group| {
            let is_applied = self.hub.queue_change(Item::Join(group.clone(), Arc::clone(&user))).is_some();
            if is_applied {
                self.hub.join(group, conn.key.slot);
            }
            is_applied
        });
        let logged_in = LoggedIn {
            user: login.route.user.clone(),
            device: login.route.device.clone(),
            epoch: login.route.token.epoch,
            session: format!("{}-{:x}", login.route.token.at.node, login.route.token.epoch),
            node: self.context.node.clone(),
            chain_saved: login
                .chain
                .as_ref()
                .and_then(|chain| chain.state())
                .map(|ChainState { expected, done, skipped, .. }| ChainSaved { expected, done, skipped }),
            resumed: false,
            server_time_ms: self.wall_ms,
            fresh_next_id: fresh_id(),
        };
        self.leave_login(conn);
        conn.session.logged_in(logged_in, &conn.settings.limits, self.now, &mut self.buffers.actions);
        self.conns.hot[conn.key.slot as usize].flags |= LIVE;
        self.context.metrics.logins.increment(1);
        let login_ms = (self.now.as_millis() as u32).wrapping_sub(conn.hello_at_ms);
        self.context.metrics.login_times.record(Duration::from_millis(login_ms.into()));
        self.act(conn);
        self.notify_late_login(conn);
        self.resume(conn);
        self.flush(conn);
    }

    /// Removes the route of a login whose connection closed meanwhile. A connection that it replaced has lost its
    /// route, or its place, and is closed as well.
    pub(super) fn forget_login(&mut self, done: Result<LoginDone, LoginError>) {
        let Ok(done) = done else { return };
        self.replace_others(&done);
        self.unregister(done.route);
    }

    fn replace_others(&mut self, done: &LoginDone) {
        let route = &done.route;
        for old in &done.replaced {
            // Of its own device, also those that were replaced in between.
            let is_own = old.device == route.device;
            let below = if is_own { route.token.epoch } else { old.epoch.saturating_add(1) };
            self.replace(old, below);
        }
    }

    /// Closes the sessions of the device below an epoch, on all shards.
    fn replace(&mut self, old: &RoutedSession, below: u64) {
        let mail = || Mail::Replaced(old.user.clone(), old.device.clone(), below, None);
        // All shards, not those of the directory: the old connection may be registered but not indexed yet. Its shard
        // reads this mail after it has indexed the connection.
        for (shard, handle) in self.context.shards().iter().enumerate() {
            if shard == self.context.index {
                self.own_mail.push(mail());
            } else {
                let handle = handle.clone();
                let mail = mail();
                let post = async move { handle.post(mail).await.ok() };
                supervised::spawn_on(&self.context.runtime, "mail to a shard", post);
            }
        }
    }

    /// Closes the new connection if a newer login replaced it before it was indexed. On a cluster its answer does this.
    fn check_replaced(&mut self, route: &Route) {
        if self.context.best_effort.is_some() || self.context.devices == DevicePolicy::default() {
            return;
        }
        let (cluster, policy) = (Arc::clone(&self.context.cluster), self.context.devices);
        let (checked, below) = (route.clone(), route.token.epoch.saturating_add(1));
        let work = async move { login::is_replaced(&cluster, policy, &checked).await.unwrap_or(false) };
        let Route { user, device, .. } = route.clone();
        // No epoch is below 0.
        let mail = move |is_replaced| Mail::Replaced(user, device, if is_replaced { below } else { 0 }, None);
        if let Some(is_replaced) = self.context.ask(work, mail.clone()) {
            self.own_mail.push(mail(is_replaced));
        }
    }

    /// Saves one change of the chain, before the ack of its message is written.
    fn save_chain(&mut self, conn: &mut Conn, change: ChainChange, expected: MsgId) {
        let Some(login) = conn.login.as_deref_mut() else { return };
        let chain = login.chain.get_or_insert_with(|| Arc::new(saver(&login.route, None)));
        let Some(step) = chain.advance(change, expected) else { return };
        let (cluster, chain) = (Arc::clone(&self.context.cluster), Arc::clone(chain));
        let in_steps = cluster.peers.all_follow(CHAIN_STEPS_RULES);
        let work = async move {
            let scratch = &*cluster.ports.scratch;
            let saved = if in_steps {
                chain.save(scratch, step).await
            } else {
                chain.save_whole(scratch, step.number).await
            };
            if let Err(error) = saved {
                tracing::debug!(%error, "failed to save the state of a chain");
            }
        };
        // A lost save costs the client a resend, which the ledger answers as a duplicate.
        self.context.run_detached(work);
    }

    fn alarm(&self, conn: &Conn, alarm: &Alarm) {
        let user = conn.login.as_ref().map(|login| login.route.user.as_str());
        let connection = format_args!("{:x}", conn.key.pack());
        match alarm {
            Alarm::OrderBlocked { expected } => {
                self.context.metrics.order_blocked.increment(1);
                self.note_evidence(conn, EvidenceKind::OrderBlocked);
                if let Some(login) = &conn.login {
                    self.context.cluster.events.order_blocked(&login.route, expected);
                }
                log_limited!(info, %connection, user, msg = expected.as_str(), "chain blocked: expected id is overdue");
            }
            Alarm::OrderSkipped { expected, .. } => {
                self.context.metrics.order_skipped.increment(1);
                log_limited!(info, %connection, user, msg = expected.as_str(), "chain continued; missing id skipped");
            }
            Alarm::OrderWindowFull { expected } => {
                log_limited!(info, %connection, user, msg = expected.as_str(), "chain hold full; reading paused");
            }
        }
    }

    /// Passes the owner's answers at the front of the queue to this connection's session.
    pub(super) fn on_answers(
        &mut self,
        conn: &mut Conn,
        answers: &mut VecDeque<(ConnKey, u64, SubmitAnswer)>,
    ) {
        while let Some((_, ticket, answer)) = answers.pop_front_if(|(key, ..)| *key == conn.key) {
            let is_acked = matches!(answer, SubmitAnswer::Accepted { .. } | SubmitAnswer::Duplicate { .. });
            if let Some(time) = self.context.ack_times.end(conn.key, ticket, is_acked) {
                self.context.metrics.send_times.record(time);
            }
            self.note_answered(conn, ticket, &answer);
            if let SubmitAnswer::Refused { code, .. } = &answer
                && let Some(conversation) = conn.session.conversation_of(ticket).cloned()
            {
                self.note_probe(conn, *code, &conversation);
            }
            let (answer, reason) = rulings::with_reason(conn, ticket, answer);
            let (limits, before) = (&conn.settings.limits, self.buffers.actions.len());
            conn.session.answered(ticket, answer, limits, self.now, &mut self.buffers.actions);
            if let Some(reason) = reason {
                decisions::mark_reason(&mut self.buffers.actions[before..], &reason);
            }
        }
        self.act(conn);
        self.resume(conn);
        self.flush(conn);
    }
}

/// Lowest version of the ledger's rules whose nodes can all read chains that were saved in steps. Nodes of version 0.1.0
/// announce a lower one; while one of them is live, chains are saved whole.
const CHAIN_STEPS_RULES: u32 = 4;

/// Code of a send that was not answered in time.
const UNKNOWN: u32 = Code::Unknown.number() as u32;

fn saver(route: &Route, loaded: Option<ChainState>) -> ChainSaver {
    ChainSaver::new(route.user.clone(), route.device.clone(), route.token.epoch, loaded)
}

fn fresh_id() -> MsgId {
    MsgId::new(&uuid::Uuid::new_v4().simple().to_string()).expect("32 hex digits are an id")
}

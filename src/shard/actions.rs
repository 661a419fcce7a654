//! Carries out what a session says: login, sends, rooms, acks, replies, close.

use std::{collections::VecDeque, sync::Arc, time::SystemTime};

use tidegate_protocol::{
    Code, codec,
    id::{ConversationId, ConversationKind, DeviceId, MsgId, UserId},
    machine::session::{Action, Alarm, Answer, ChainSaved, LoggedIn, Submit},
    pb::{self, server_frame::Body as Said},
    record::{Body, Message, Origin, Record, SenderOrder, body_hash},
};

use super::{
    Shard,
    conn::{Conn, LIVE, Who},
};
use crate::{
    ingest::intake,
    inline, login,
    mail::{ConnKey, Item, LoginDone, LoginError, Mail},
    scratch::{ChainSave, ChainState, DONE_IDS_MAX},
};

impl Shard {
    /// Applies the actions in the shared buffer, then the sends they set free, until there are none.
    pub(super) fn act(&mut self, conn: &mut Conn) {
        loop {
            let mut actions = std::mem::take(&mut self.scratch.actions);
            for action in actions.drain(..) {
                self.apply(conn, action);
            }
            if self.scratch.actions.is_empty() {
                self.scratch.actions = actions;
            }
            let limits = &self.context.limits;
            let submit = conn.session.poll_submit(limits, self.now, &mut self.scratch.actions);
            match submit {
                Some(submit) => self.submit(conn, *submit),
                None if self.scratch.actions.is_empty() => return,
                None => {}
            }
        }
    }

    fn apply(&mut self, conn: &mut Conn, action: Action) {
        match action {
            Action::Login(hello) => self.login(conn, &hello),
            Action::Join { id, room } => self.join_room(conn, id, &room),
            Action::Signal { id, conversation, signal } => self.signal(conn, id, conversation, *signal),
            Action::SignalDropped => self.context.metrics.signals_dropped.increment(1),
            Action::Leave { room } => {
                self.hub.leave(&ConversationId::room(&room), conn.key.slot);
            }
            Action::Acked { conversation, seq } => {
                if !self.awaited.is_empty() {
                    self.note_ack(conn, &conversation, seq);
                }
                if let Some(window) = &mut conn.window {
                    window.ack(&conversation, seq);
                    if window.is_empty() {
                        conn.window = None;
                    }
                }
            }
            Action::SaveChain { done, expected } => self.save_chain(conn, expected, |it| &mut it.done, done),
            Action::SaveSkip { skipped, expected } => {
                self.save_chain(conn, expected, |it| &mut it.skipped, skipped);
            }
            Action::Alarm(alarm) => self.alarm(conn, &alarm),
            Action::Reply(frame) => {
                if matches!(&frame.body, Some(Said::Error(error)) if error.code == UNKNOWN) {
                    self.context.metrics.unknowns.increment(1);
                }
                self.reply(conn, &frame);
            }
            Action::Query { id, query } => self.ask(conn, id, *query),
            Action::Answer(frame) => {
                let frame = codec::encode_frame(&frame, self.conns.hot[conn.key.slot as usize].wire);
                conn.outbox.get_or_insert_with(Box::default).push_answer(frame);
            }
            Action::Close { code, reason } => self.begin_close(conn, code, &reason),
        }
    }

    fn login(&mut self, conn: &mut Conn, hello: &pb::Hello) {
        let refused = |shard: &mut Self, conn: &mut Conn, code: Code, reason: &'static str| {
            shard.context.metrics.login_refusals.increment(1);
            conn.session.login_refused(code, reason, &mut shard.scratch.actions);
        };
        let identity = match self.context.verifier.verify(&hello.token) {
            Ok(identity) => identity,
            Err((code, reason)) => return refused(self, conn, code, reason),
        };
        let Ok(device) = DeviceId::new(&hello.device) else {
            return refused(self, conn, Code::BadId, "device: name the device, [A-Za-z0-9_.-]{1,64}");
        };
        if identity.device.as_ref().is_some_and(|only| *only != device) {
            return refused(self, conn, Code::DeviceMismatch, "");
        }
        let key = conn.key;
        let wish = conn.session.wished();
        let (ports, shards) = (Arc::clone(&self.context.ports), Arc::clone(&self.context.handles));
        let work = login::login(ports, identity.user, device, wish, shards);
        let home = self.context.own_handle();
        let done = inline::run(&self.context.runtime, work, move |done| {
            Box::pin(async move {
                if let Some(home) = home {
                    // The shard is gone only when the node stops.
                    home.post(Mail::LoginDone(key, done)).await.ok();
                }
            })
        });
        if let Some(done) = done {
            self.on_login(conn, done);
        }
    }

    /// The route stands: index the user, then ask for the groups (DESIGN 6.4, reader at login).
    pub(super) fn on_login(&mut self, conn: &mut Conn, done: Result<LoginDone, LoginError>) {
        if !conn.is_open() {
            return self.forget_login(done);
        }
        let done = match done {
            Ok(done) => done,
            Err(LoginError { code, reason }) => {
                self.context.metrics.login_refusals.increment(1);
                conn.session.login_refused(code, reason, &mut self.scratch.actions);
                return self.act(conn);
            }
        };
        conn.session.wishes_are(done.wishes);
        self.hub.add_user(&done.route.user, conn.key.slot);
        if done.replaced {
            self.replace_others(&done);
        }
        self.joining.push((conn.key, done.route.clone()));
        conn.who = Some(Box::new(Who { route: done.route, chain: done.chain, outdated: Vec::new() }));
    }

    /// The groups are indexed: the session may say Welcome. What was said before stays before: a group with pushes in
    /// hand lets the connection in behind them, so that a newcomer gets none from before its join. These groups are
    /// taken off the list, for their hold is released by then.
    pub(super) fn on_memberships(&mut self, conn: &mut Conn, groups: &mut Vec<ConversationId>) {
        let Some(who) = conn.who.as_ref().filter(|_| conn.is_open()) else { return };
        let user: Arc<[UserId]> = [who.route.user.clone()].into();
        groups.retain(|group| {
            let now = self.hub.change(Item::Join(group.clone(), Arc::clone(&user))).is_some();
            if now {
                self.hub.join(group, conn.key.slot);
            }
            now
        });
        let login = LoggedIn {
            user: who.route.user.clone(),
            device: who.route.device.clone(),
            epoch: who.route.token.epoch,
            session: format!("{}-{:x}", who.route.token.at.node, who.route.token.epoch),
            node: self.context.node.clone(),
            chain_saved: who.chain.clone().map(|ChainState { expected, done, skipped, .. }| ChainSaved {
                expected,
                done,
                skipped,
            }),
            resumed: false,
            server_time_ms: wall_ms(),
            fresh_next_id: fresh_id(),
        };
        conn.session.logged_in(login, &self.context.limits, self.now, &mut self.scratch.actions);
        self.conns.hot[conn.key.slot as usize].flags |= LIVE;
        self.context.metrics.logins.increment(1);
        self.act(conn);
        self.tell_late(conn);
        self.resume(conn);
        self.flush(conn);
    }

    /// The connection went away before its route stood. What that replaced has no route any more, and hears so.
    pub(super) fn forget_login(&mut self, done: Result<LoginDone, LoginError>) {
        let Ok(done) = done else { return };
        if done.replaced {
            self.replace_others(&done);
        }
        self.unregister(done.route);
    }

    fn replace_others(&mut self, done: &LoginDone) {
        let route = &done.route;
        let mail = || Mail::Replaced(route.user.clone(), route.device.clone(), route.token.epoch, None);
        // All shards: one where the old connection has its route, but is not indexed yet, is in no directory. It
        // reads its mail after it has indexed it.
        for (shard, handle) in self.context.shards().iter().enumerate() {
            if shard == self.context.index {
                self.own.push(mail());
            } else {
                let handle = handle.clone();
                let mail = mail();
                // A shard is gone only when the node stops, and then its clients are told so.
                self.context.runtime.spawn(async move { handle.post(mail).await.ok() });
            }
        }
    }

    fn submit(&mut self, conn: &mut Conn, submit: Submit) {
        self.context.metrics.sends.increment(1);
        let planned = !self.context.panic_in_shard && submit.msg_id.as_str() == self.context.panic_on_msg_id;
        if cfg!(debug_assertions) && planned {
            panic!("a fault injected by fault.panic_on_msg_id");
        }
        if matches!(submit.conversation.kind(), ConversationKind::Room(_)) {
            return self.publish(conn, submit);
        }
        let Some(who) = &conn.who else { return };
        let (ticket, order) = (submit.ticket, submit.order);
        let message = Message {
            conversation: submit.conversation,
            sender: who.route.user.clone(),
            device: who.route.device.clone(),
            msg_id: submit.msg_id,
            attempt: submit.attempt,
            body_hash: body_hash(&submit.content),
            content: submit.content,
            order: SenderOrder { epoch: order.epoch, n: order.n, chained: order.chained },
            flags: submit.flags,
        };
        let origin = Origin {
            node: self.context.node.clone(),
            boot: self.context.boot,
            conn: conn.key.pack(),
            request: ticket,
        };
        // Refused here, a chain waits for its client; refused by the log, it would end the connection.
        let refusal = intake::refusal(&self.context.ports, &message.conversation);
        let received_at = wall_ms();
        let trace = self.trace(submit.trace, &message, received_at);
        let record = Record { origin, received_at, body: Body::Message(message), trace };
        let room = match refusal {
            Some(code) => Err(code),
            None => self.context.intake.reserve(intake::weight(&record)),
        };
        match room {
            Ok(()) => self.batch.push(record),
            Err(code) => {
                let limits = &self.context.limits;
                conn.session.submit_refused(ticket, code, "", limits, self.now, &mut self.scratch.actions);
            }
        }
    }

    /// Saves where the chain stands, and one more id that is done, or skipped.
    fn save_chain(
        &mut self,
        conn: &mut Conn,
        expected: MsgId,
        list: fn(&mut ChainState) -> &mut Vec<MsgId>,
        id: MsgId,
    ) {
        let Some(who) = &mut conn.who else { return };
        let epoch = who.route.token.epoch;
        let chain = who.chain.get_or_insert_with(|| ChainState {
            epoch,
            expected: expected.clone(),
            done: Vec::new(),
            skipped: Vec::new(),
        });
        chain.epoch = epoch;
        chain.expected = expected;
        let ids = list(chain);
        // A client that insists on a skipped id has it saved once.
        if ids.last() != Some(&id) {
            ids.push(id);
        }
        if ids.len() > DONE_IDS_MAX {
            ids.remove(0);
        }
        let save = ChainSave {
            user: who.route.user.clone(),
            device: who.route.device.clone(),
            state: chain.clone(),
        };
        let ports = Arc::clone(&self.context.ports);
        let work = async move {
            if let Err(error) = ports.scratch.save_chains(vec![save]).await {
                tracing::debug!(%error, "the state of a chain was not saved");
            }
        };
        // Lost scratch costs the client a resend, which the ledger answers as a duplicate.
        inline::run(&self.context.runtime, work, |()| Box::pin(std::future::ready(())));
    }

    fn alarm(&self, conn: &Conn, alarm: &Alarm) {
        let user = conn.who.as_ref().map(|who| who.route.user.as_str());
        match alarm {
            Alarm::OrderBlocked { expected } => {
                self.context.metrics.order_blocked.increment(1);
                if let Some(who) = &conn.who {
                    self.context.ports.events.order_blocked(&who.route, expected);
                }
                tracing::info!(user, "a chain waits too long for its next id");
            }
            Alarm::OrderSkipped { .. } => {
                self.context.metrics.order_skipped.increment(1);
                tracing::info!(user, "a chain goes on without an id that never came");
            }
            Alarm::OrderWindowFull { .. } => tracing::info!(user, "a chain's hold is full; reading stops"),
        }
    }

    /// Answers from the owner for some of this connection's sends.
    pub(super) fn on_answers(&mut self, conn: &mut Conn, answers: &mut VecDeque<(ConnKey, u64, Answer)>) {
        while let Some((_, ticket, answer)) = answers.pop_front_if(|(key, ..)| *key == conn.key) {
            let limits = &self.context.limits;
            conn.session.answered(ticket, answer, limits, self.now, &mut self.scratch.actions);
        }
        self.act(conn);
        self.resume(conn);
        self.flush(conn);
    }
}

/// The code of a send whose answer came too late.
const UNKNOWN: u32 = Code::Unknown as u32;

fn fresh_id() -> MsgId {
    MsgId::new(&uuid::Uuid::new_v4().simple().to_string()).expect("32 hex digits are an id")
}

/// The wall clock in ms since 1970: shown to people, never used to decide.
pub(super) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

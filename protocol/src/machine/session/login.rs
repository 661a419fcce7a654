//! From Hello to Welcome, and whose word counts on where the chain stands.

use super::{Action, ChainSaved, Identity, Limits, LoggedIn, Session, State, send::Ordered, types::Wishes};
use crate::{
    Code, Time,
    id::{DeviceId, MsgId},
    machine::chain::Chain,
    pb::{self, server_frame::Body as Said},
    settings::UserSettings,
};
use std::borrow::Cow;

/// The only protocol version.
const VERSION: u32 = 1;

/// What Hello said that Welcome needs.
#[derive(Debug)]
pub(super) struct Hello {
    id: u64,
    next_id: Option<MsgId>,
    chain: bool,
    wish: UserSettings,
}

impl Session {
    /// The conn has a newer epoch from here on: what is submitted next carries it. Not for a session with a chain, whose
    /// numbers belong to an epoch.
    pub fn epoch_is(&mut self, epoch: u64) {
        if let Some(identity) = &mut self.identity {
            identity.epoch = identity.epoch.max(epoch);
        }
    }

    /// Whether the device declared a chain.
    pub fn has_chain(&self) -> bool {
        self.ordered.is_some()
    }

    /// What the client of an undecided login wishes; nothing at any other time.
    pub fn wished(&self) -> UserSettings {
        match &self.state {
            State::LoggingIn { hello, .. } => hello.wish,
            _ => UserSettings::default(),
        }
    }

    /// What the user wishes in all, with what was wished before. Ignored unless a login is undecided.
    pub fn wishes_are(&mut self, wishes: UserSettings) {
        if let State::LoggingIn { hello, .. } = &mut self.state {
            hello.wish = wishes;
        }
    }

    /// The login holds: says Welcome. Ignored unless a login was asked for and is undecided.
    ///
    /// The chain starts at the declared id, if there is one, unless that is saved as done or skipped: then the client has
    /// missed acks or a notice, Welcome tells the saved id, and the client sends again what has no ack. Without a declared id it starts at
    /// the saved one, else at a fresh one. See [`Chain::adopt`] for a declared id that the saved state does not know.
    pub fn logged_in(&mut self, login: LoggedIn, limits: &Limits, now: Time, out: &mut Vec<Action>) {
        let hello = match std::mem::replace(&mut self.state, State::Live) {
            State::LoggingIn { hello, .. } => hello,
            other => {
                self.state = other;
                return;
            }
        };
        let Hello { id, next_id, chain, wish } = *hello;
        self.wishes = Wishes::of(&wish, limits);
        let chained = chain || next_id.is_some();
        let chain = match (login.chain_saved, next_id) {
            (None, declared) => Chain::new(declared.unwrap_or(login.fresh_next_id), limits.chain),
            (Some(saved), declared) => go_on(saved, declared, limits),
        };
        let next_id = chain.expected().clone();
        if chained {
            self.ordered = Some(Box::new(Ordered::new(chain)));
        }
        self.identity = Some(Identity { user: login.user, device: login.device, epoch: login.epoch });
        self.wall_zero = login.server_time_ms.saturating_sub(now.as_millis());
        self.handle_heard(now);
        let welcome = pb::Welcome {
            session: login.session,
            node: login.node.to_string(),
            heartbeat_ms: self.wishes.heartbeat_ms,
            limits: Some(limits.told()),
            server_time: login.server_time_ms,
            next_id: next_id.to_string(),
            resumed: Some(login.resumed),
            settings: Some(self.wishes.told(chained)),
        };
        self.say(id, Said::Welcome(welcome), out);
    }

    /// The login does not hold: says so and closes. Ignored unless a login was asked for and is undecided.
    pub fn login_refused(&mut self, code: Code, reason: impl Into<Cow<'static, str>>, out: &mut Vec<Action>) {
        if let State::LoggingIn { hello, .. } = &self.state {
            let id = hello.id;
            self.turn_away(id, code, reason.into(), out);
        }
    }

    pub(super) fn greet(&mut self, id: u64, hello: pb::Hello, now: Time, out: &mut Vec<Action>) {
        if hello.version != VERSION {
            return self.turn_away(id, Code::BadVersion, "".into(), out);
        }
        if let Err(why) = DeviceId::new(&hello.device) {
            return self.turn_away(id, Code::BadId, format!("device: {why}").into(), out);
        }
        let next_id = match hello.next_id.as_str() {
            "" => None,
            text => match MsgId::new(text) {
                Ok(id) => Some(id),
                Err(why) => return self.turn_away(id, Code::BadId, format!("nextId: {why}").into(), out),
            },
        };
        let unsaid = pb::Settings::default();
        let settings = hello.settings.as_ref().unwrap_or(&unsaid);
        let wish = match UserSettings::of(settings) {
            Ok(wish) => wish,
            Err(why) => return self.turn_away(id, Code::BadSetting, why.to_string().into(), out),
        };
        let wanted = Hello { id, next_id, chain: settings.chain, wish };
        self.state = State::LoggingIn { since: now, hello: Box::new(wanted) };
        out.push(Action::Login(Box::new(hello)));
    }

    fn turn_away(&mut self, id: u64, code: Code, reason: Cow<'static, str>, out: &mut Vec<Action>) {
        self.say(id, Said::Error(code.error(&reason)), out);
        self.close(code, reason, out);
    }
}

fn go_on<T>(saved: ChainSaved, declared: Option<MsgId>, limits: &Limits) -> Chain<T> {
    let ChainSaved { expected, done, skipped } = saved;
    let unknown = |id: &MsgId| *id != expected && !done.contains(id) && !skipped.contains(id);
    let mut chain = match declared.filter(unknown) {
        Some(declared) => Chain::adopt(declared, expected, done, limits.chain),
        None => Chain::resume(expected, done, limits.chain),
    };
    chain.note_skipped(skipped);
    chain
}

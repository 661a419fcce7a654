//! Login: from Hello to Welcome, and the choice between the client's and the saved chain position.

use super::{
    Action, ChainSaved, Identity, LoggedIn, Session, SessionLimits, State, send::Ordered,
    types::EffectiveSettings,
};
use crate::{
    Code, Time,
    id::{DeviceId, MsgId},
    machine::chain::Chain,
    pb::{self, server_frame::Body as ServerBody},
    settings::UserSettings,
};
use std::{borrow::Cow, time::Duration};

/// Supported protocol version.
const PROTOCOL_VERSION: u32 = 1;

/// Optional parts of the protocol that this version has. Welcome names those that Hello names and the node offers.
const FEATURES: [&str; 3] = ["refresh", "react", WATCH];

/// Part that a node may lack by its limits.
const WATCH: &str = "watch";

/// Fields of a Hello that Welcome needs.
#[derive(Debug)]
pub(super) struct Hello {
    id: u64,
    next_id: Option<MsgId>,
    chain: bool,
    settings: UserSettings,
    /// Those of [`FEATURES`] that the client uses.
    features: Vec<&'static str>,
}

impl Session {
    /// Raises the epoch of the connection for all later submissions.
    ///
    /// Not for a session with a chain, whose numbers belong to an epoch.
    pub fn epoch_is(&mut self, epoch: u64) {
        if let Some(identity) = &mut self.identity {
            identity.epoch = identity.epoch.max(epoch);
        }
    }

    /// Returns whether the device declared a chain.
    pub fn has_chain(&self) -> bool {
        self.ordered.is_some()
    }

    /// Returns when the login in progress began.
    pub fn logging_in_since(&self) -> Option<Time> {
        match self.state {
            State::LoggingIn { since, .. } => Some(since),
            _ => None,
        }
    }

    /// Returns the user settings of a pending login, else the defaults.
    pub fn requested_settings(&self) -> UserSettings {
        match &self.state {
            State::LoggingIn { hello, .. } => hello.settings,
            _ => UserSettings::default(),
        }
    }

    /// Sets the user settings of a pending login, merged with the stored ones. Ignored unless a login is pending.
    pub fn set_settings(&mut self, settings: UserSettings) {
        if let State::LoggingIn { hello, .. } = &mut self.state {
            hello.settings = settings;
        }
    }

    /// Completes a successful login and sends Welcome. Ignored unless a login is pending.
    ///
    /// The chain starts at the declared id, if there is one, unless it is saved as done or skipped. In that case the
    /// client has missed acks or a notice: Welcome reports the saved id, and the client resends its unacked messages.
    /// Without a declared id the chain starts at the saved id, else at a fresh one. [`Chain::adopt`] handles a declared
    /// id that is not in the saved state.
    pub fn logged_in(&mut self, login: LoggedIn, limits: &SessionLimits, now: Time, out: &mut Vec<Action>) {
        let hello = match std::mem::replace(&mut self.state, State::Live) {
            State::LoggingIn { hello, .. } => hello,
            other => {
                self.state = other;
                return;
            }
        };
        let Hello { id, next_id, chain, settings, features } = *hello;
        self.settings = EffectiveSettings::of(&settings, limits);
        let chained = chain || next_id.is_some();
        let chain = match (login.chain_saved, next_id) {
            (None, declared) => Chain::new(declared.unwrap_or(login.fresh_next_id), limits.chain),
            (Some(saved), declared) => restore_chain(saved, declared, limits),
        };
        let next_id = chain.expected().clone();
        if chained {
            self.ordered = Some(Box::new(Ordered::new(chain)));
        }
        self.identity = Some(Identity { user: login.user, device: login.device, epoch: login.epoch });
        self.wall_zero = login.server_time_ms.saturating_sub(now.as_millis());
        self.handle_heard(now);
        let is_offered = |feature: &&str| limits.has_watches || *feature != WATCH;
        let welcome = pb::Welcome {
            session: login.session,
            node: login.node.to_string(),
            heartbeat_ms: self.settings.heartbeat_ms,
            limits: Some(limits.for_welcome()),
            server_time: login.server_time_ms,
            next_id: next_id.to_string(),
            resumed: Some(login.resumed),
            settings: Some(self.settings.for_welcome(chained, &settings)),
            features: features.into_iter().filter(is_offered).map(str::to_owned).collect(),
        };
        self.push_frame(id, ServerBody::Welcome(welcome), out);
    }

    /// Refuses the login and closes. Ignored unless a login is pending.
    pub fn login_refused(&mut self, code: Code, reason: impl Into<Cow<'static, str>>, out: &mut Vec<Action>) {
        if let State::LoggingIn { hello, .. } = &self.state {
            let id = hello.id;
            self.reject(id, code, reason.into(), out);
        }
    }

    /// Refuses the login because a rate limit is reached, and closes. Ignored unless a login is pending.
    pub fn login_limited(&mut self, reason: &'static str, wait: Duration, out: &mut Vec<Action>) {
        self.login_deferred(Code::RateLimited, reason, wait, out);
    }

    /// Refuses the login for a time, and closes. Ignored unless a login is pending.
    pub fn login_deferred(
        &mut self,
        code: Code,
        reason: &'static str,
        wait: Duration,
        out: &mut Vec<Action>,
    ) {
        if let State::LoggingIn { hello, .. } = &self.state {
            let error = code.error_after(reason, wait);
            self.push_frame(hello.id, ServerBody::Error(error), out);
            self.close(code, reason, out);
        }
    }

    pub(super) fn handle_hello(&mut self, id: u64, hello: pb::Hello, now: Time, out: &mut Vec<Action>) {
        if hello.version != PROTOCOL_VERSION {
            return self.reject(id, Code::BadVersion, "".into(), out);
        }
        if let Err(error) = DeviceId::new(&hello.device) {
            return self.reject(id, Code::BadId, format!("device: {error}").into(), out);
        }
        let next_id = match hello.next_id.as_str() {
            "" => None,
            text => match MsgId::new(text) {
                Ok(id) => Some(id),
                Err(error) => return self.reject(id, Code::BadId, format!("nextId: {error}").into(), out),
            },
        };
        let none = pb::Settings::default();
        let settings = hello.settings.as_ref().unwrap_or(&none);
        let user_settings = match UserSettings::of(settings) {
            Ok(user_settings) => user_settings,
            Err(error) => return self.reject(id, Code::BadSetting, error.to_string().into(), out),
        };
        let is_used = |feature: &&str| hello.features.iter().any(|used| used == feature);
        let features = FEATURES.into_iter().filter(is_used).collect();
        let pending = Hello { id, next_id, chain: settings.chain, settings: user_settings, features };
        self.state = State::LoggingIn { since: now, hello: Box::new(pending) };
        out.push(Action::Login(Box::new(hello)));
    }

    fn reject(&mut self, id: u64, code: Code, reason: Cow<'static, str>, out: &mut Vec<Action>) {
        self.push_frame(id, ServerBody::Error(code.error(&reason)), out);
        self.close(code, reason, out);
    }
}

fn restore_chain<T>(saved: ChainSaved, declared: Option<MsgId>, limits: &SessionLimits) -> Chain<T> {
    let ChainSaved { expected, done, skipped } = saved;
    let unknown = |id: &MsgId| *id != expected && !done.contains(id) && !skipped.contains(id);
    let mut chain = match declared.filter(unknown) {
        Some(declared) => Chain::adopt(declared, expected, done, limits.chain),
        None => Chain::resume(expected, done, limits.chain),
    };
    chain.add_skipped(skipped);
    chain
}

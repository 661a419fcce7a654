//! Tokens: checks those of logins and assign requests, and refuses requests that a token does not grant.

use std::{borrow::Cow, cell::OnceCell, sync::Arc, time::Duration};

use tidegate_protocol::{
    Code,
    id::{ConversationId, DeviceId, RoomId, UserId},
};
use tokio::time;

use crate::{
    assign,
    auth::{TokenFault, TokenIdentity, TokenRefusal},
    evidence::EvidenceKind,
    hooks::{LoginFault, LoginOrigin},
    login,
    mail::{LoginDone, Mail, TokenUse},
    net::io::Io,
    revocation::UsedToken,
    shard::{
        Shard,
        actions::{decisions::mark_reason, limits::mark_limit},
        conn::{AskingLogin, AskingRequest, Conn},
    },
};

/// Shortest interval between two refreshes of one connection, refused ones included.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// Wait of a login that was not checked because of its address, if the limit has become free meanwhile.
const LIMITED_WAIT_MIN: Duration = Duration::from_millis(100);

/// Refusal of a join that the token does not grant.
pub(in crate::shard) const ROOM_NOT_GRANTED: (Code, &str) =
    (Code::Forbidden, "the token's `rooms` do not allow this room");

/// Refusal of a message or signal that the token does not grant.
pub(in crate::shard) const RECIPIENT_NOT_GRANTED: (Code, &str) =
    (Code::Forbidden, "the token's `to` does not allow this recipient");

/// Reason of a refusal because token and certificate are of different users.
const OTHER_USER: &str = "the client certificate names another user than the token; use a certificate and a token of the same user";

/// Reason of a refusal of a name that only the node itself uses as a sender.
const RESERVED_DEVICE: &str =
    "device: names that begin with a dot are reserved for the node; name it differently";

/// Reason of a refusal of a user whose id no URL can name.
const DOT_USER: &str = "user: programs rewrite `.` and `..` in URLs; log in with a token for another id";

/// Reason of a refusal of the user that the admin API sends as.
const RESERVED_USER: &str =
    "this user is reserved for messages of the admin API (api.system_user); log in as another one";

impl<I: Io> Shard<I> {
    /// Checks a token, and continues with what it is for: at once if the check is cheap, else when its result returns
    /// as mail.
    pub(in crate::shard) fn check_token(&mut self, conn: &mut Conn, token: String, purpose: TokenUse) {
        let device = match &purpose {
            TokenUse::Login { device, .. } => Some(device.clone()),
            TokenUse::Refresh(_) => conn.login.as_ref().map(|login| login.route.device.to_string()),
            TokenUse::Assign(_) => None,
        };
        // Used once: no refresh and no later login has the cookies.
        let page = conn.page.take();
        let (origin, cookies) = page.map(|page| (page.origin, page.cookies)).unwrap_or_default();
        let (hooks, verifier) = (Arc::clone(&self.context.hooks), Arc::clone(&self.context.verifier));
        let is_limited =
            hooks.has_login() && self.context.limiter.refused_token_wait(conn.address, self.now).is_some();
        let from = LoginOrigin { device, address: conn.address, origin, cookies, is_limited };
        let work = hooks.identify(verifier, token, from, self.wall_ms);
        let (key, waiting) = (conn.key, Box::new(purpose));
        let later = waiting.clone();
        if let Some(checked) = self.context.ask(work, move |checked| Mail::TokenChecked(key, later, checked))
        {
            self.on_token(conn, *waiting, checked);
        }
    }

    /// Continues a login or an assign request whose token is checked.
    pub(in crate::shard) fn on_token(
        &mut self,
        conn: &mut Conn,
        purpose: TokenUse,
        checked: Result<TokenIdentity, LoginFault>,
    ) {
        if !conn.is_open() {
            return;
        }
        let checked = checked.and_then(|identity| match self.is_revoked(conn, &purpose, &identity) {
            true => Err(TokenFault::Revoked.into()),
            false => Ok(identity),
        });
        let reason = checked.as_ref().err().and_then(|refused| refused.reason.clone());
        let checked = checked.map_err(|refused| self.refusal(conn, &refused));
        let before = self.buffers.actions.len();
        match purpose {
            TokenUse::Login { device, asked_at } => self.log_in(conn, &device, asked_at, checked),
            TokenUse::Refresh(id) => self.on_refresh(conn, id, checked),
            TokenUse::Assign(request) => {
                let banned = checked.as_ref().ok().and_then(|identity| {
                    let bans = &self.context.cluster.bans;
                    let of_user = bans.refusal_of_user(&identity.user, identity.device.as_ref());
                    of_user.or_else(|| bans.refusal_of_address(conn.address))
                });
                let checked = match banned {
                    Some(refusal) => {
                        self.context.metrics.ban_refusals.increment(1);
                        Err(TokenRefusal { code: Code::Banned, reason: "".into(), wait: refusal.left })
                    }
                    None => checked,
                };
                let response = match checked {
                    Ok(identity) => self.context.assigner.answer(&request, &identity.user),
                    Err(refusal) => {
                        self.context.metrics.codes.count(refusal.code);
                        assign::refusal_response(&request, &refusal)
                    }
                };
                self.buffers.reply.extend_from_slice(&response);
                self.finish(conn, Code::Bye);
            }
        }
        if let (Some(reason), Some(actions)) = (reason, self.buffers.actions.get_mut(before..)) {
            mark_reason(actions, &reason);
        }
    }

    /// Returns whether a token that is valid otherwise is revoked.
    fn is_revoked(&self, conn: &Conn, purpose: &TokenUse, identity: &TokenIdentity) -> bool {
        let device = match purpose {
            TokenUse::Login { device, .. } => DeviceId::new(device).ok(),
            TokenUse::Refresh(_) => conn.login.as_ref().map(|login| login.route.device.clone()),
            TokenUse::Assign(_) => identity.device.clone(),
        };
        self.context.cluster.revocations.names(&UsedToken {
            user: &identity.user,
            device: device.as_ref(),
            term: identity.term,
            grants: identity.grants.as_deref(),
        })
    }

    /// Returns the refusal for a fault, which counts against the address of the connection. A token that has expired or
    /// is revoked does not: a client behind a busy address has to learn that it needs a new one. Neither does a fault of
    /// the node.
    fn refusal(&self, conn: &Conn, refused: &LoginFault) -> TokenRefusal {
        let fault = refused.fault;
        fault.count(&self.context.metrics);
        if let Some(kind) = EvidenceKind::of_token(fault) {
            self.note_evidence(conn, kind);
        }
        let message = refused.reason.as_ref().map(|reason| &reason.message).filter(|it| !it.is_empty());
        let reason = message.map_or(Cow::Borrowed(fault.text()), |message| Cow::Owned(message.to_string()));
        let refusal = TokenRefusal { code: fault.code(), reason, wait: None };
        if fault == TokenFault::AddressLimited {
            self.context.metrics.rate_limited.increment(1);
            let wait = self.context.limiter.refused_token_wait(conn.address, self.now);
            return TokenRefusal { wait: Some(wait.unwrap_or(LIMITED_WAIT_MIN)), ..refusal };
        }
        if fault.was_valid() || fault.is_temporary() {
            return refusal;
        }
        match self.context.limiter.refused_token_from(conn.address, self.now) {
            Ok(()) => refusal,
            Err(wait) => TokenRefusal {
                code: TokenFault::AddressLimited.code(),
                reason: TokenFault::AddressLimited.text().into(),
                wait: Some(wait),
            },
        }
    }

    /// Logs in with a token that is checked, or refuses the login.
    pub(in crate::shard) fn log_in(
        &mut self,
        conn: &mut Conn,
        device: &str,
        asked_at: time::Instant,
        checked: Result<TokenIdentity, TokenRefusal>,
    ) {
        let refused = |shard: &mut Self, conn: &mut Conn, code: Code, reason: Cow<'static, str>| {
            shard.context.metrics.login_refusals.increment(1);
            conn.session.login_refused(code, reason, &mut shard.buffers.actions);
        };
        let identity = match checked {
            Ok(identity) => identity,
            Err(TokenRefusal { wait: Some(wait), .. }) => {
                return self.limit_login(conn, TokenFault::AddressLimited.text(), wait);
            }
            Err(TokenRefusal { code, reason, wait: None }) => return refused(self, conn, code, reason),
        };
        if conn.certified_user.as_ref().is_some_and(|user| *user.0 != *identity.user.as_str()) {
            return refused(self, conn, Code::TokenInvalid, OTHER_USER.into());
        }
        let Ok(device) = DeviceId::new(device) else {
            let reason = "device: name the device, [A-Za-z0-9_.-]{1,64}";
            return refused(self, conn, Code::BadId, reason.into());
        };
        if device.as_str().starts_with('.') {
            return refused(self, conn, Code::BadId, RESERVED_DEVICE.into());
        }
        if UserId::addressable(identity.user.as_str()).is_err() {
            return refused(self, conn, Code::BadId, DOT_USER.into());
        }
        if identity.user == self.context.system_user {
            return refused(self, conn, Code::Forbidden, RESERVED_USER.into());
        }
        let bans = &self.context.cluster.bans;
        if let Some(refusal) = bans.refusal_of_login(conn.address, &identity.user, &device) {
            return self.refuse_banned(conn, refusal);
        }
        if identity.device.as_ref().is_some_and(|only| *only != device) {
            return refused(self, conn, Code::DeviceMismatch, "".into());
        }
        let limiter = || self.context.limiter.login(&identity.user, self.now);
        if let Err(refusal) = self.admit_login(conn, &identity, device.as_str(), limiter) {
            if let Some(asking) = &refusal.asking {
                let login = AskingLogin { device: device.to_string(), asked_at, identity };
                return self.await_permits(conn, AskingRequest::Login(Box::new(login)), asking);
            }
            let before = self.buffers.actions.len();
            let reason =
                if refusal.rule.is_some() { "too many logins" } else { "too many logins of this user" };
            self.limit_login(conn, reason, refusal.wait);
            return mark_limit(&mut self.buffers.actions[before..], &refusal);
        }
        if self.was_given_up(conn) {
            return refused(self, conn, Code::Overloaded, login::TOO_LATE.into());
        }
        let key = conn.key;
        let settings = conn.session.requested_settings();
        let (cluster, shards) = (Arc::clone(&self.context.cluster), Arc::clone(&self.context.handles));
        let policy = self.context.devices;
        let TokenIdentity { user, grants, term, .. } = identity;
        let hello = login::ReceivedHello { connection: key, at: asked_at };
        let work = async move {
            let done = login::login(cluster, user, device, settings, policy, shards, hello).await;
            done.map(|done| LoginDone { grants, term, ..done })
        };
        if let Some(done) = self.context.ask(work, move |done| Mail::LoginDone(key, done)) {
            self.on_login(conn, done);
        }
    }

    /// Returns whether the client has probably given the login up: it ended the connection, perhaps while this node was
    /// frozen, and may be logged in elsewhere by now. A late registration would replace that newer login.
    fn was_given_up(&self, conn: &Conn) -> bool {
        (conn.peer_ended || conn.half_closed) && self.now < self.caught_up_at
    }

    /// Checks the token of a refresh, unless the last one of the connection is too near.
    pub(in crate::shard) fn refresh(&mut self, conn: &mut Conn, id: u64, token: String) {
        let Some(login) = conn.login.as_mut() else { return };
        if self.now < login.next_refresh {
            let wait = login.next_refresh.since(self.now);
            self.context.metrics.refresh_refusals.increment(1);
            return conn.session.refresh_limited(id, "", wait, &mut self.buffers.actions);
        }
        login.next_refresh = self.now + REFRESH_INTERVAL;
        self.check_token(conn, token, TokenUse::Refresh(id));
    }

    /// Replaces the token of a connection by a newer one of the same user and device.
    fn on_refresh(&mut self, conn: &mut Conn, id: u64, checked: Result<TokenIdentity, TokenRefusal>) {
        let Some(login) = conn.login.as_mut() else { return };
        let outcome: Result<(), (Code, Cow<'static, str>)> = match checked {
            Err(TokenRefusal { reason, wait: Some(wait), .. }) => {
                self.context.metrics.refresh_refusals.increment(1);
                return conn.session.refresh_limited(id, &reason, wait, &mut self.buffers.actions);
            }
            Err(TokenRefusal { code, reason, wait: None }) => Err((code, reason)),
            Ok(identity) if identity.user != login.route.user => {
                Err((Code::TokenInvalid, "the token is of another user than the connection".into()))
            }
            Ok(identity) if identity.device.as_ref().is_some_and(|only| *only != login.route.device) => {
                Err((Code::DeviceMismatch, "".into()))
            }
            Ok(identity) if identity.term.expires_ms <= login.term.expires_ms => {
                Err((Code::TokenNotNewer, "".into()))
            }
            Ok(TokenIdentity { grants, term, .. }) => {
                (login.grants, login.term, login.limit_keys) = (grants, term, OnceCell::new());
                self.prioritize(conn);
                Ok(())
            }
        };
        let metrics = &self.context.metrics;
        match &outcome {
            Ok(()) => metrics.refreshes.increment(1),
            Err(_) => metrics.refresh_refusals.increment(1),
        }
        let outcome = outcome.as_ref().copied().map_err(|(code, reason)| (*code, &**reason));
        conn.session.refreshed(id, outcome, &conn.settings.limits, &mut self.buffers.actions);
    }

    /// Returns whether the connection's token lets it join the room.
    pub(in crate::shard) fn may_join(conn: &Conn, room: &RoomId) -> bool {
        let grants = conn.login.as_ref().and_then(|login| login.grants.as_deref());
        grants.is_none_or(|grants| grants.may_join(room))
    }

    /// Returns whether the connection's token lets it write to the conversation.
    pub(in crate::shard) fn may_write(conn: &Conn, conversation: &ConversationId) -> bool {
        let Some(login) = &conn.login else { return true };
        login.grants.as_deref().is_none_or(|grants| grants.may_write(&login.route.user, conversation))
    }
}

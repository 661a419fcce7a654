//! Tokens: checks those of logins and assign requests, and refuses requests that a token does not grant.

use std::sync::Arc;

use tidegate_protocol::{
    Code,
    id::{ConversationId, DeviceId, RoomId},
};

use crate::{
    assign,
    auth::{TokenFault, TokenIdentity, TokenRefusal, Verifier},
    login,
    mail::{LoginDone, Mail, TokenUse},
    net::io::Io,
    shard::{Shard, conn::Conn},
};

/// Refusal of a join that the token does not grant.
pub(in crate::shard) const ROOM_NOT_GRANTED: (Code, &str) =
    (Code::Forbidden, "the token's `rooms` do not allow this room");

/// Refusal of a message or signal that the token does not grant.
pub(in crate::shard) const RECIPIENT_NOT_GRANTED: (Code, &str) =
    (Code::Forbidden, "the token's `to` does not allow this recipient");

impl<I: Io> Shard<I> {
    /// Checks a token, and continues with what it is for: at once if the check is cheap, else when its result returns
    /// as mail.
    pub(in crate::shard) fn check_token(&mut self, conn: &mut Conn, token: String, purpose: TokenUse) {
        let work = Verifier::check(Arc::clone(&self.context.verifier), token, self.wall_ms);
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
        checked: Result<TokenIdentity, TokenFault>,
    ) {
        if !conn.is_open() {
            return;
        }
        let checked = checked.map_err(|fault| self.refusal(conn, fault));
        match purpose {
            TokenUse::Login(device) => self.log_in(conn, &device, checked),
            TokenUse::Assign(request) => {
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
    }

    /// Returns the refusal for a fault, which counts against the address of the connection. An expired token does not: a
    /// client behind a busy address has to learn that it needs a new one. Neither does a fault of the node.
    fn refusal(&self, conn: &Conn, fault: TokenFault) -> TokenRefusal {
        fault.count(&self.context.metrics);
        let refusal = TokenRefusal { code: fault.code(), reason: fault.text(), wait: None };
        if fault == TokenFault::Expired || fault.is_temporary() {
            return refusal;
        }
        match self.context.limiter.refused_token_from(conn.address, self.now) {
            Ok(()) => refusal,
            Err(wait) => TokenRefusal {
                code: Code::RateLimited,
                reason: "too many refused tokens from this address",
                wait: Some(wait),
            },
        }
    }

    fn log_in(&mut self, conn: &mut Conn, device: &str, checked: Result<TokenIdentity, TokenRefusal>) {
        let refused = |shard: &mut Self, conn: &mut Conn, code: Code, reason: &'static str| {
            shard.context.metrics.login_refusals.increment(1);
            conn.session.login_refused(code, reason, &mut shard.buffers.actions);
        };
        let identity = match checked {
            Ok(identity) => identity,
            Err(TokenRefusal { reason, wait: Some(wait), .. }) => {
                return self.limit_login(conn, reason, wait);
            }
            Err(TokenRefusal { code, reason, wait: None }) => return refused(self, conn, code, reason),
        };
        if let Err(wait) = self.context.limiter.login(&identity.user, self.now) {
            return self.limit_login(conn, "too many logins of this user", wait);
        }
        let Ok(device) = DeviceId::new(device) else {
            return refused(self, conn, Code::BadId, "device: name the device, [A-Za-z0-9_.-]{1,64}");
        };
        if identity.device.as_ref().is_some_and(|only| *only != device) {
            return refused(self, conn, Code::DeviceMismatch, "");
        }
        let key = conn.key;
        let settings = conn.session.requested_settings();
        let (cluster, shards) = (Arc::clone(&self.context.cluster), Arc::clone(&self.context.handles));
        let devices_max = self.context.devices_per_user;
        let TokenIdentity { user, grants, .. } = identity;
        let work = async move {
            let done = login::login(cluster, user, device, settings, devices_max, shards).await;
            done.map(|done| LoginDone { grants, ..done })
        };
        if let Some(done) = self.context.ask(work, move |done| Mail::LoginDone(key, done)) {
            self.on_login(conn, done);
        }
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

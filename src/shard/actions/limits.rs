//! Limits by rules at the edges of a shard: the subjects of a request, and what its refusal says.

use std::time::Duration;

use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind},
    machine::session::{Action, Query, Submit, SubmitRefusal},
    pb::server_frame::Body as FrameBody,
};

use crate::{
    auth::TokenIdentity,
    limits::{AnswerWait, LimitCall, LimitContent, LimitRefusal, LimitSubjects, LimitWaits, RuleGuard},
    load::OverloadWait,
    mail::Decision,
    net::io::Io,
    shard::{
        Shard,
        conn::{AskingRequest, Conn, DecidedRequest, HeldRequest},
    },
};

/// Text of a refusal by a gate.
pub(in crate::shard) const OVERLOADED: &str = "the node is overloaded: send it again after retryAfterMs";

/// Reason for which a send does not reach the log or its room.
pub(in crate::shard) enum SendFault {
    /// State of the node, or of its log.
    Node(Code),
    /// Limit of the sender.
    Limit(LimitRefusal),
    /// Gate of the shard.
    Overload(OverloadWait),
}

impl From<Code> for SendFault {
    fn from(code: Code) -> Self {
        Self::Node(code)
    }
}

impl From<OverloadWait> for SendFault {
    fn from(wait: OverloadWait) -> Self {
        Self::Overload(wait)
    }
}

impl From<LimitRefusal> for SendFault {
    fn from(refusal: LimitRefusal) -> Self {
        Self::Limit(refusal)
    }
}

impl SendFault {
    /// Returns what the session answers.
    pub(in crate::shard) fn refusal(&self) -> SubmitRefusal<'static> {
        match self {
            Self::Node(code) => (*code).into(),
            Self::Overload(wait) => {
                SubmitRefusal { code: Code::Busy, message: OVERLOADED, retry_after: wait.0 }
            }
            Self::Limit(refusal) => SubmitRefusal { retry_after: refusal.wait, ..Code::RateLimited.into() },
        }
    }
}

/// Returns the subjects of the requests of a connection.
fn subjects_of<'a>(conn: &'a Conn, rules: &RuleGuard) -> LimitSubjects<'a> {
    let login = conn.login.as_deref();
    let grants = login.and_then(|login| login.grants.as_deref());
    let subjects = LimitSubjects {
        organisation: grants.and_then(|grants| grants.organisation.as_deref()),
        channel: grants.and_then(|grants| grants.channel.as_deref()),
        user: login.map(|login| login.route.user.as_str()),
        device: login.map(|login| login.route.device.as_str()),
        address: Some(conn.address),
        ..LimitSubjects::default()
    };
    let keys = || Box::new(rules.connection_keys(&subjects));
    LimitSubjects { connection: login.map(|login| &**login.limit_keys.get_or_init(keys)), ..subjects }
}

/// Request other than a send, a login and a connection, as the rules count it.
pub(in crate::shard) struct CountedRequest<'a> {
    /// Kind of the request.
    pub(in crate::shard) call: LimitCall,
    /// Conversation, if it has one.
    pub(in crate::shard) conversation: Option<&'a ConversationId>,
    /// Content of an edit.
    content: Option<&'a [u8]>,
}

impl<'a> CountedRequest<'a> {
    /// Creates a request without content.
    pub(in crate::shard) const fn new(call: LimitCall, conversation: Option<&'a ConversationId>) -> Self {
        Self { call, conversation, content: None }
    }

    /// Returns the request that a query is.
    pub(in crate::shard) fn of_query(query: &'a Query) -> Self {
        match query {
            Query::Pull(pull) => Self::new(LimitCall::Pull, Some(&pull.conversation)),
            // Who of a conversation is online is a part of it that only members read.
            Query::Watch { conversation, .. } => Self::new(LimitCall::Pull, Some(conversation)),
            Query::Sync(_) | Query::Positions(_) => Self::new(LimitCall::Sync, None),
            Query::Recall { conversation, .. } => Self::new(LimitCall::Recall, Some(conversation)),
            // An edit goes to the log and to all members, as a message does.
            Query::Edit { conversation, content, .. } => {
                Self { content: Some(content), ..Self::new(LimitCall::Send, Some(conversation)) }
            }
            Query::Read { conversation, .. }
            | Query::Clear { conversation, .. }
            | Query::Hide { conversation, .. }
            | Query::Leave(conversation) => Self::new(LimitCall::Change, Some(conversation)),
        }
    }
}

/// Describes the limit in the first error among the actions; later ones are of messages behind the refused one.
pub(in crate::shard) fn mark_limit(actions: &mut [Action], refusal: &LimitRefusal) {
    let error = actions.iter_mut().find_map(|action| match action {
        Action::Reply(frame) => match &mut frame.body {
            Some(FrameBody::Error(error)) => Some(error),
            _ => None,
        },
        _ => None,
    });
    if let Some(error) = error {
        refusal.describe(error);
    }
}

impl<I: Io> Shard<I> {
    /// Returns whether a request concerns a group of which the connection's user is not known to be a member. That of a
    /// member is known soon after its login.
    fn is_stranger(&self, conn: &Conn, call: LimitCall, conversation: Option<&ConversationId>) -> bool {
        self.context.rules.counts(call)
            && conversation.is_some_and(|it| {
                matches!(it.kind(), ConversationKind::Group(_)) && !self.hub.is_in(it, conn.key.slot)
            })
    }

    /// Counts a send in the limits of its sender and in all rules, or in none.
    pub(in crate::shard) fn admit_send(
        &self,
        conn: &Conn,
        conversation: &ConversationId,
        content: &[u8],
        can_wait: bool,
        limiter: impl FnOnce() -> Result<(), Duration>,
    ) -> Result<(), SendFault> {
        let limiter = || limiter().map_err(|wait| SendFault::Limit(wait.into()));
        if !self.context.rules.counts(LimitCall::Send) {
            return limiter();
        }
        let subjects = self.subjects_of_send(conn, conversation, content);
        let waits = LimitWaits { for_space: can_wait, asking_since: self.asking_since };
        self.context.rules.admit(LimitCall::Send, &subjects, self.now, waits, limiter)
    }

    fn subjects_of_send<'a>(
        &self,
        conn: &'a Conn,
        conversation: &'a ConversationId,
        content: &'a [u8],
    ) -> LimitSubjects<'a> {
        LimitSubjects {
            conversation: Some(conversation.as_str()),
            is_stranger: self.is_stranger(conn, LimitCall::Send, Some(conversation)),
            content: Some(LimitContent::Encoded(content)),
            ..subjects_of(conn, &self.context.rules)
        }
    }

    /// Returns the refusal by a rule that a send would get now, if it would not even wait; counts an admitted one nowhere.
    /// One to a room that its sender is not in is refused for that later.
    pub(in crate::shard) fn refuses_send(&self, conn: &Conn, submit: &Submit) -> Option<LimitRefusal> {
        if !self.context.rules.counts(LimitCall::Send) {
            return None;
        }
        let is_room = matches!(submit.conversation.kind(), ConversationKind::Room(_));
        if is_room && !self.hub.is_in(&submit.conversation, conn.key.slot) {
            return None;
        }
        let subjects = self.subjects_of_send(conn, &submit.conversation, &submit.content);
        self.context.rules.refuses(LimitCall::Send, &subjects, self.now)
    }

    /// Counts a request other than a send, a login and a connection.
    pub(in crate::shard) fn admit_request(
        &self,
        conn: &Conn,
        request: &CountedRequest<'_>,
        limiter: impl FnOnce() -> Result<(), Duration>,
    ) -> Result<(), LimitRefusal> {
        let CountedRequest { call, conversation, content } = *request;
        let limiter = || limiter().map_err(LimitRefusal::from);
        if !self.context.rules.counts(call) {
            return limiter();
        }
        let is_stranger = self.is_stranger(conn, call, conversation);
        let subjects = LimitSubjects {
            conversation: conversation.map(ConversationId::as_str),
            is_stranger,
            content: content.map(LimitContent::Encoded),
            ..subjects_of(conn, &self.context.rules)
        };
        let waits = LimitWaits { for_space: false, asking_since: self.asking_since };
        self.context.rules.admit(call, &subjects, self.now, waits, limiter)
    }

    /// Counts a login with a valid token.
    pub(in crate::shard) fn admit_login(
        &self,
        conn: &Conn,
        identity: &TokenIdentity,
        device: &str,
        limiter: impl FnOnce() -> Result<(), Duration>,
    ) -> Result<(), LimitRefusal> {
        let grants = identity.grants.as_deref();
        let subjects = LimitSubjects {
            organisation: grants.and_then(|grants| grants.organisation.as_deref()),
            channel: grants.and_then(|grants| grants.channel.as_deref()),
            user: Some(identity.user.as_str()),
            device: Some(device),
            address: Some(conn.address),
            ..LimitSubjects::default()
        };
        let limiter = || limiter().map_err(LimitRefusal::from);
        let waits = LimitWaits { for_space: false, asking_since: self.asking_since };
        self.context.rules.admit(LimitCall::Login, &subjects, self.now, waits, limiter)
    }

    /// Closes a new connection if a rule of its address refuses it.
    pub(in crate::shard) fn admit_connection(&mut self, slot: u32) {
        let Some(address) = self.conns.peek(slot).map(|conn| conn.address) else { return };
        // The connections of a proxy are those of many clients, whose addresses follow in a header.
        if self.context.upgrade.get().forwarders.contains(address) {
            return;
        }
        let subjects = LimitSubjects { address: Some(address), ..LimitSubjects::default() };
        let admitted: Result<(), LimitRefusal> =
            self.context.rules.admit(LimitCall::Connect, &subjects, self.now, false, || Ok(()));
        let Err(refusal) = admitted else { return };
        self.with_conn(slot, |shard, conn| {
            shard.buffers.close_after = Some(refusal.wait);
            conn.session.close(Code::RateLimited, "", &mut shard.buffers.actions);
            shard.act(conn);
            shard.flush(conn);
        });
    }

    /// Keeps a request until an answer of Redis decides about it, or until it has waited for long enough.
    pub(in crate::shard) fn await_permits(
        &mut self,
        conn: &mut Conn,
        request: AskingRequest,
        asking: &AnswerWait,
    ) {
        let (waits, asking) = (asking.waits, asking.clone());
        let due = async move {
            asking.answered().await;
            Decision::Allowed
        };
        self.hold(conn, HeldRequest::Asking(request, waits), true, due);
    }

    /// Refuses a send before it reached the log or its room, or lets it wait if its limit says so.
    pub(in crate::shard) fn turn_away(&mut self, conn: &mut Conn, submit: Submit, fault: &SendFault) {
        if let SendFault::Limit(LimitRefusal { asking: Some(asking), .. }) = fault {
            return self.await_permits(conn, AskingRequest::Send(submit), asking);
        }
        if let SendFault::Limit(LimitRefusal { is_delay: true, wait, .. }) = *fault {
            let due = async move {
                tokio::time::sleep(wait).await;
                Decision::Allowed
            };
            return self.hold(conn, DecidedRequest::Delayed(submit).into(), true, due);
        }
        let (limits, out) = (&conn.settings.limits, &mut self.buffers.actions);
        let before = out.len();
        conn.session.submit_refused(submit.ticket, fault.refusal(), limits, self.now, out);
        if let SendFault::Limit(refusal) = fault {
            mark_limit(&mut out[before..], refusal);
        }
    }
}

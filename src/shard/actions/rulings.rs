//! Verdicts of the hook `message.before` about sends and edits: what is appended, and what their senders get.

use std::{future, sync::Arc};

use tidegate_protocol::{
    Code,
    code::AppCode,
    id::ConversationKind,
    machine::{
        ledger::{APP_DENIALS_RULES, MODES_RULES},
        session::{Ruling, Submit, SubmitAnswer, SubmitRefusal},
    },
    record::{Edit, body_hash},
};

use super::decisions::mark_reason;
use crate::{
    cluster::Peers,
    hooks::{AppDenial, AppReason, BeforeHook, BeforeQuestion, BeforeVerdict},
    mail::{Decision, Refusal},
    net::io::Io,
    shard::{
        Shard,
        conn::{Conn, DecidedRequest, RecordedDenial},
    },
};

impl<I: Io> Shard<I> {
    /// Submits a send as the hook `message.before` has decided, or gives it back.
    pub(super) fn carry_out_verdict(&mut self, conn: &mut Conn, mut submit: Submit, verdict: &BeforeVerdict) {
        submit.flags = verdict.flags(submit.flags);
        match verdict {
            BeforeVerdict::Allowed | BeforeVerdict::Unchecked => {}
            BeforeVerdict::Replaced(content) => {
                // A retry has the content of the client.
                submit.ruling.sent_hash = Some(body_hash(&submit.content));
                submit.ruling.sent = Some(std::mem::replace(&mut submit.content, content.clone()));
            }
            BeforeVerdict::Denied(denial) => return self.deny_send(conn, submit, denial),
            BeforeVerdict::Unavailable => {
                let unavailable = Decision::Unavailable(Code::HookUnavailable);
                return self.carry_out(conn, DecidedRequest::Send(submit), &unavailable);
            }
        }
        self.submit_allowed(conn, submit, true);
    }

    /// Appends a send as a denied one, so that a retry gets the same refusal. A room, which has no log, refuses it once it is
    /// counted; owners of a version that knows no denials would skip the record: then it is refused here.
    fn deny_send(&mut self, conn: &mut Conn, mut submit: Submit, denial: &AppDenial) {
        let is_room = matches!(submit.conversation.kind(), ConversationKind::Room(_));
        let code = match is_room {
            true => Some(Code::Application(denial.code)),
            false => recorded_code(&self.context.cluster.peers, denial.code),
        };
        let Some(code) = code else {
            return self.refuse_submit(conn, submit.ticket, Code::Forbidden, Some(&denial.reason));
        };
        submit.ruling = Ruling { denied: Some(code), ..submit.ruling };
        let Conn { login, session, .. } = conn;
        if let Some(login) = login {
            // Of sends that a limit has given back there is no answer.
            login.denials.retain(|it| session.conversation_of(it.ticket).is_some());
            let reason = Arc::clone(&denial.reason);
            login.denials.push(RecordedDenial { ticket: submit.ticket, code, reason });
        }
        self.submit_allowed(conn, submit, true);
    }

    /// Refuses a denied send to a room.
    pub(in crate::shard) fn refuse_denied(&mut self, conn: &mut Conn, ticket: u64, code: Code) {
        let reason = take_denial(conn, ticket).map(|it| it.reason);
        self.refuse_submit(conn, ticket, code, reason.as_deref());
    }

    fn refuse_submit(&mut self, conn: &mut Conn, ticket: u64, code: Code, reason: Option<&AppReason>) {
        let message = reason.map_or("", |reason| &*reason.message);
        let (limits, out) = (&conn.settings.limits, &mut self.buffers.actions);
        let (refusal, before) = (SubmitRefusal { message, ..code.into() }, out.len());
        conn.session.submit_refused(ticket, refusal, limits, self.now, out);
        if let Some(reason) = reason {
            mark_reason(&mut out[before..], reason);
        }
    }
}

/// Returns whether an answer with this code is that of a denial: the ledger refuses with FORBIDDEN for reasons of its own,
/// which must not get the text of the application.
const fn is_denial(code: Code) -> bool {
    matches!(code, Code::Application(_))
}

/// Returns the code that a denial is appended with: the application's own, if all nodes can read it; `None` if some can't read
/// denials at all.
fn recorded_code(peers: &Peers, code: AppCode) -> Option<Code> {
    if peers.all_follow(APP_DENIALS_RULES) {
        return Some(Code::Application(code));
    }
    peers.all_follow(MODES_RULES).then_some(Code::Forbidden)
}

/// Removes the denial of a send from those of the connection, and returns it.
fn take_denial(conn: &mut Conn, ticket: u64) -> Option<RecordedDenial> {
    let denials = &mut conn.login.as_deref_mut()?.denials;
    let at = denials.iter().position(|it| it.ticket == ticket)?;
    Some(denials.swap_remove(at))
}

/// Adds the text of the application to the answer about a denied send, and returns the reason to mark it with. An older answer
/// to the same message has no text.
pub(super) fn with_reason(
    conn: &mut Conn,
    ticket: u64,
    answer: SubmitAnswer,
) -> (SubmitAnswer, Option<Arc<AppReason>>) {
    let Some(RecordedDenial { code: recorded, reason, .. }) = take_denial(conn, ticket) else {
        return (answer, None);
    };
    match answer {
        SubmitAnswer::Refused { code, .. } if code == recorded && is_denial(code) => {
            let message = reason.message.to_string().into();
            (SubmitAnswer::Refused { code, message }, Some(reason))
        }
        other => (other, None),
    }
}

/// Denial of an edit.
pub(super) struct EditDenial {
    /// Code that the edit is appended with.
    pub(super) code: Code,
    /// Code and text of the application.
    pub(super) reason: Arc<AppReason>,
}

impl EditDenial {
    /// Returns whether an answer with this code is that of the denial.
    pub(super) fn is(&self, code: Code) -> bool {
        self.code == code && is_denial(code)
    }
}

/// Asks the hook about an edit, and replaces its content if the hook does. Returns the denial, if it denies the edit.
///
/// # Errors
/// There is no answer, and the hook fails closed.
pub(super) async fn rule_edit(
    hook: &BeforeHook,
    peers: &Peers,
    edit: &mut Edit,
) -> Result<Option<EditDenial>, Refusal> {
    let Some(sender) = edit.by.clone() else { return Ok(None) };
    let question = BeforeQuestion {
        conversation: edit.conversation.clone(),
        sender,
        device: edit.device.clone(),
        msg_id: edit.msg_id.clone(),
        attempt: 0,
        content: edit.content.clone(),
        flags: 0,
        of: Some(edit.seq),
    };
    match hook.decide(question, future::ready(Some(true))).await {
        // The record of an edit has no flags.
        BeforeVerdict::Allowed | BeforeVerdict::Unchecked => Ok(None),
        BeforeVerdict::Replaced(content) => {
            edit.content = content;
            Ok(None)
        }
        BeforeVerdict::Denied(AppDenial { code, reason }) => {
            let code = recorded_code(peers, code).unwrap_or(Code::Forbidden);
            Ok(Some(EditDenial { code, reason }))
        }
        BeforeVerdict::Unavailable => Err((Code::HookUnavailable, "")),
    }
}

//! Ledger rules for edits, since version 5; checks duplicate, membership, message and rights, in this order.

use super::{
    Ledger,
    group::{append, refused},
    message::may_post,
    mutation::Mutation,
    rows::{Edited, Head, Key, Member, Outcome, RowHead, Stop, edit_key},
};
use crate::{
    code::Code,
    id::{ConversationKind, UserId},
    record::{Body, Edit, Role},
};

/// Input of a decision on an edit.
struct Facts<'a> {
    edit: &'a Edit,
    head: Option<&'a Head>,
    /// Requesting user with its row if it is a member, `None` for the admin API.
    by: Option<(&'a UserId, Option<Member>)>,
    /// Edited row, if retention keeps it.
    row: Option<RowHead>,
}

/// Applies an edit. The rights are those of a recall; a user must also be allowed to post, since an edit is read as a message is.
/// Refusals are remembered, as those of messages: a copy may follow in the log, after a change that would allow it.
pub(super) fn edit(ledger: &mut Ledger, offset: u64, time: u64, edit: &Edit) -> Result<Outcome, Stop> {
    let (id, hash, body_hash) = (&edit.conversation, edit_key(edit), edit.key_hash());
    let key = ledger.cache.key(&hash)?.copied();
    let head = ledger.cache.head(id)?.cloned();
    let pruned_to = head.as_ref().map_or(0, |head| head.pruned_to);
    let row = ledger.cache.row(id, edit.seq)?.filter(|_| edit.seq > pruned_to).cloned();
    let by = match &edit.by {
        Some(by) => Some((by, ledger.cache.member(id, by)?.copied().filter(Member::is_in))),
        None => None,
    };
    if let Some(key) = key.filter(|key| key.offset >= ledger.rules.keys_from) {
        return Ok(match key.refused {
            _ if key.body_hash != body_hash => refused(Code::Conflict),
            Some(code) => Outcome::RefusedBefore { code },
            None => Outcome::Duplicate { seq: key.seq, time: key.time },
        });
    }
    let facts = Facts { edit, head: head.as_ref(), by, row };
    let sender = match facts.decide() {
        Ok(sender) => sender,
        Err(code) => {
            if ledger.mutation != Some(Mutation::EditRefusalForgotten) {
                ledger.cache.set_key(hash, Key { seq: 0, time, body_hash, offset, refused: Some(code) });
            }
            return Ok(refused(code));
        }
    };
    let head = head.unwrap_or_default();
    let at = (head.last_seq + 1, time);
    let row = RowHead { sender: Some(sender), recalled: None, is_transient: false };
    ledger.cache.set_row(id, edit.seq, row);
    let (conversation, content) = (id.clone(), edit.content.clone());
    ledger.cache.fresh.edited.push(Edited { conversation, seq: edit.seq, at, content });
    ledger.cache.set_key(hash, Key { seq: at.0, time, body_hash, offset, refused: None });
    let body = Body::Edit(Edit { content: Default::default(), ..edit.clone() });
    Ok(append(ledger, offset, time, head, body, id))
}

impl Facts<'_> {
    /// Returns the sender of the message, which stays the same.
    fn decide(self) -> Result<UserId, Code> {
        let Self { edit, head, by, row } = self;
        let is_stranger = matches!(by, Some((_, None)));
        let is_direct = by.is_some_and(|(by, _)| edit.conversation.is_direct_of(by));
        let Some(head) = head.filter(|head| head.deleted_seq == 0) else {
            return Err(if is_stranger && !is_direct { Code::NotAMember } else { Code::NotFound });
        };
        if is_stranger {
            return Err(Code::NotAMember);
        }
        let row = row.filter(|row| row.recalled.is_none() && !row.is_transient).ok_or(Code::NotFound)?;
        let sender = row.sender.ok_or(Code::NotFound)?;
        if let Some((by, Some(member))) = by {
            let is_group = matches!(edit.conversation.kind(), ConversationKind::Group(_));
            if *by != sender && !(is_group && member.role >= Role::Admin) {
                return Err(Code::Forbidden);
            }
            may_post(head, &member)?;
        }
        edit.denied.map_or(Ok(sender), Err)
    }
}

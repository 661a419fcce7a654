//! Ledger rules for membership changes, recalls and retention.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Ledger,
    mutation::Mutation,
    rows::{Head, Key, Member, Outcome, Pruned, Recalled, Row, RowHead, Stop, request_key},
};
use crate::{
    code::Code,
    id::{ConversationId, ConversationKind, UserId},
    record::{Body, MemberAction, MemberChange, Prune, Recall, Role, SETTINGS_MAX},
    settings::{GroupSettings, History},
};

const fn refused(code: Code) -> Outcome {
    Outcome::Refused { code }
}

/// Input of a decision on a membership change.
struct Facts<'a> {
    change: &'a MemberChange,
    head: Option<Head>,
    /// Role of the requesting user, `None` if that user is not a member.
    by: Option<Role>,
    users: Vec<(&'a UserId, Option<Member>)>,
    seq: u64,
    /// Whether requesters who are not in the group must not learn whether it exists.
    hides: bool,
}

/// Effect of a membership change: the new rows of users, and the new head.
struct Change {
    members: Vec<(UserId, Member)>,
    head: Head,
}

pub(super) fn member(
    ledger: &mut Ledger,
    offset: u64,
    time: u64,
    change: &MemberChange,
) -> Result<Outcome, Stop> {
    let (id, hash, body_hash) = (&change.conversation, request_key(change), change.body_hash());
    let key = ledger.cache.key(&hash)?.copied();
    if let Some(key) = key.filter(|key| key.offset >= ledger.rules.keys_from) {
        return Ok(match key.refused {
            _ if key.body_hash != body_hash => refused(Code::Conflict),
            Some(code) => Outcome::RefusedBefore { code },
            None => Outcome::Duplicate { seq: key.seq, time: key.time },
        });
    }
    let head = ledger.cache.head(id)?.cloned();
    let by = match &change.by {
        Some(by) => ledger.cache.member(id, by)?.filter(|it| it.is_in()).map(|it| it.role),
        None => None,
    };
    let mut users = Vec::with_capacity(change.users.len());
    for user in &change.users {
        users.push((user, ledger.cache.member(id, user)?.copied()));
    }
    let seq = head.as_ref().map_or(0, |head| head.last_seq) + 1;
    let hides = ledger.rules.hides_groups();
    let decided = match (Facts { change, head, by, users, seq, hides }).decide() {
        Ok(decided) => decided,
        Err(code) => {
            // A copy of the request may follow in the log, after a change that would allow it.
            if ledger.remembers_requests() {
                ledger.cache.set_key(hash, Key { seq: 0, time, body_hash, offset, refused: Some(code) });
            }
            return Ok(refused(code));
        }
    };
    for (user, row) in decided.members {
        if let Some(stay) = ledger.cache.member(id, &user)?.filter(|_| row.is_in()).and_then(Member::stay) {
            ledger.cache.fresh.stays.push((id.clone(), user.clone(), stay));
        }
        ledger.cache.set_member(id, &user, row);
    }
    ledger.cache.set_key(hash, Key { seq, time, body_hash, offset, refused: None });
    Ok(append(ledger, offset, time, decided.head, Body::Member(change.clone()), id))
}

/// Appends a row that is not a message, with the next seq.
fn append(
    ledger: &mut Ledger,
    offset: u64,
    time: u64,
    mut head: Head,
    body: Body,
    id: &ConversationId,
) -> Outcome {
    head.last_seq += 1;
    let (seq, ordinal) = (head.last_seq, head.messages);
    ledger.cache.set_head(id, head);
    ledger.cache.set_row(id, seq, RowHead { sender: None, recalled: None });
    ledger.cache.fresh.rows.push(Row { seq, ordinal, own: 0, time, offset, body });
    Outcome::Accepted { seq, ordinal, time }
}

impl Facts<'_> {
    fn decide(mut self) -> Result<Change, Code> {
        let action = self.change.action;
        if action == MemberAction::Create {
            return if self.head.is_some() { Err(Code::AlreadyExists) } else { self.create() };
        }
        let by_request = self.change.by.is_some();
        let is_stranger = by_request && self.by.is_none();
        let absent = if is_stranger && self.hides { Code::NotAMember } else { Code::NotFound };
        let mut head = self.head.take().filter(|head| head.deleted_seq == 0).ok_or(absent)?;
        if is_stranger {
            return Err(Code::NotAMember);
        }
        if by_request && action != MemberAction::Leave && self.by < Some(Role::Admin) {
            return Err(Code::Forbidden);
        }
        let members = match action {
            MemberAction::Create | MemberAction::Join => self.join(&head)?,
            MemberAction::Leave => self.leave(head.messages)?,
            MemberAction::Kick => self.kick(head.messages)?,
            MemberAction::Role => self.role()?,
            MemberAction::Mute => self.mute(true)?,
            MemberAction::Unmute => self.mute(false)?,
            MemberAction::Settings => {
                head.settings = merged(&head.settings, &self.change.settings)?;
                Vec::new()
            }
            MemberAction::Delete => {
                if by_request && self.by < Some(Role::Owner) {
                    return Err(Code::Forbidden);
                }
                head.deleted_seq = self.seq;
                Vec::new()
            }
        };
        Ok(Change { members, head })
    }

    fn create(self) -> Result<Change, Code> {
        let settings = merged(&BTreeMap::new(), &self.change.settings)?;
        let role = match self.change.by {
            // A user may create a group only with plain members.
            Some(_) => Role::Member,
            None => self.change.role.unwrap_or(Role::Member),
        };
        let row = |role| Member::new(role, self.seq, 0);
        let mut members: Vec<_> = self.users.iter().map(|(user, _)| ((*user).clone(), row(role))).collect();
        if let Some(by) = &self.change.by {
            members.retain(|(user, _)| user != by);
            members.push((by.clone(), row(Role::Owner)));
        }
        Ok(Change { members, head: Head { settings, ..Head::default() } })
    }

    fn join(&self, head: &Head) -> Result<Vec<(UserId, Member)>, Code> {
        let role = self.change.role.unwrap_or(Role::Member);
        if self.by.is_some_and(|by| role > by) {
            return Err(Code::Forbidden);
        }
        // The setting at the join applies for the whole membership.
        let first = match GroupSettings::of(&head.settings).history {
            History::Join => self.seq,
            History::All => 1,
        };
        let new_members = self.users.iter().filter(|(_, row)| row.is_none_or(|row| !row.is_in()));
        Ok(new_members
            .map(|(user, row)| {
                let new = Member::new(role, first, head.messages);
                let again =
                    |row: Member| Member { sent: row.sent, stays: row.stays.saturating_add(1), ..new };
                ((*user).clone(), row.map_or(new, again))
            })
            .collect())
    }

    /// Returns the named users who are members, with their rows; an error if there are none.
    fn present(&self) -> Result<Vec<(UserId, Member)>, Code> {
        let present: Vec<_> = self
            .users
            .iter()
            .filter_map(|(user, row)| Some(((*user).clone(), row.filter(Member::is_in)?)))
            .collect();
        if present.is_empty() { Err(Code::NotAMember) } else { Ok(present) }
    }

    fn leave(&self, messages: u64) -> Result<Vec<(UserId, Member)>, Code> {
        if self.change.by.as_ref().is_some_and(|by| self.change.users.iter().any(|user| user != by)) {
            return Err(Code::Forbidden);
        }
        self.remove(messages)
    }

    fn kick(&self, messages: u64) -> Result<Vec<(UserId, Member)>, Code> {
        self.check_rank()?;
        self.remove(messages)
    }

    fn remove(&self, messages: u64) -> Result<Vec<(UserId, Member)>, Code> {
        let mut members = self.present()?;
        members.iter_mut().for_each(|(_, row)| (row.left_seq, row.left_messages) = (self.seq, messages));
        Ok(members)
    }

    fn role(&self) -> Result<Vec<(UserId, Member)>, Code> {
        let role = self.change.role.unwrap_or(Role::Member);
        self.check_rank()?;
        if self.by.is_some_and(|by| role > by) {
            return Err(Code::Forbidden);
        }
        let mut members = self.present()?;
        members.iter_mut().for_each(|(_, row)| row.role = role);
        Ok(members)
    }

    fn mute(&self, muted: bool) -> Result<Vec<(UserId, Member)>, Code> {
        self.check_rank()?;
        let mut members = self.present()?;
        // A muted admin must not be able to lift the mute.
        if !muted && members.iter().any(|(user, row)| row.muted && Some(user) == self.change.by.as_ref()) {
            return Err(Code::Forbidden);
        }
        members.iter_mut().for_each(|(_, row)| row.muted = muted);
        Ok(members)
    }

    /// Checks that the requester may act on the users: on lower roles and on itself; owners and the admin API on all.
    fn check_rank(&self) -> Result<(), Code> {
        let Some(by) = self.by.filter(|by| *by < Role::Owner) else { return Ok(()) };
        let above = |user: &UserId, row: &Member| row.role >= by && Some(user) != self.change.by.as_ref();
        let blocked = self.present()?.iter().any(|(user, row)| above(user, row));
        if blocked { Err(Code::Forbidden) } else { Ok(()) }
    }
}

fn merged(
    present: &BTreeMap<String, String>,
    change: &BTreeMap<String, String>,
) -> Result<Arc<BTreeMap<String, String>>, Code> {
    GroupSettings::check(change).map_err(|_| Code::BadSetting)?;
    let mut settings = present.clone();
    for (name, value) in change {
        if value.is_empty() {
            settings.remove(name);
        } else {
            settings.insert(name.clone(), value.clone());
        }
    }
    if settings.len() > SETTINGS_MAX { Err(Code::ContentTooLarge) } else { Ok(settings.into()) }
}

/// Applies a recall: checks for a duplicate first (a message is recalled once), then the rights (sender or admin).
///
/// A pruned row counts as absent even while it is cached: the store has deleted it, so another owner can't see it.
pub(super) fn recall(ledger: &mut Ledger, offset: u64, time: u64, recall: &Recall) -> Result<Outcome, Stop> {
    let id = &recall.conversation;
    let head = ledger.cache.head(id)?.cloned();
    let pruned_to = head.as_ref().map_or(0, |head| head.pruned_to);
    let stays = recall.seq > pruned_to || ledger.mutation == Some(Mutation::PrunedRowAnswers);
    let row = ledger.cache.row(id, recall.seq)?.filter(|_| stays).cloned();
    let by = match &recall.by {
        Some(by) => Some((by, ledger.cache.member(id, by)?.copied().filter(Member::is_in))),
        None => None,
    };
    if let Some((seq, time)) = row.as_ref().and_then(|row| row.recalled) {
        return Ok(Outcome::Duplicate { seq, time });
    }
    let is_stranger = matches!(by, Some((_, None)));
    let Some(head) = head.filter(|head| head.deleted_seq == 0) else {
        let direct = recall.by.as_ref().is_some_and(|by| id.is_direct_of(by));
        let hides = is_stranger && !direct && ledger.rules.hides_groups();
        return Ok(refused(if hides { Code::NotAMember } else { Code::NotFound }));
    };
    if is_stranger {
        return Ok(refused(Code::NotAMember));
    }
    let Some(sender) = row.and_then(|row| row.sender).filter(|_| recall.seq > pruned_to) else {
        return Ok(refused(Code::NotFound));
    };
    let group = matches!(id.kind(), ConversationKind::Group(_));
    let allowed =
        by.is_none_or(|(by, row)| *by == sender || group && row.is_some_and(|row| row.role >= Role::Admin));
    if !allowed {
        return Ok(refused(Code::Forbidden));
    }
    let by = (head.last_seq + 1, time);
    ledger.cache.set_row(id, recall.seq, RowHead { sender: Some(sender), recalled: Some(by) });
    ledger.cache.fresh.recalled.push(Recalled { conversation: id.clone(), seq: recall.seq, by });
    Ok(append(ledger, offset, time, head, Body::Recall(recall.clone()), id))
}

/// Applies a prune. It is no event of the conversation and has no seq or row; readers get removed seqs as expired.
pub(super) fn prune(ledger: &mut Ledger, offset: u64, time: u64, prune: &Prune) -> Result<Outcome, Stop> {
    let Some(head) = ledger.cache.head(&prune.conversation)? else { return Ok(refused(Code::NotFound)) };
    let up_to = prune.up_to.min(head.last_seq);
    if up_to > head.pruned_to {
        let head = Head { pruned_to: up_to, ..head.clone() };
        ledger.cache.set_head(&prune.conversation, head);
        let conversation = prune.conversation.clone();
        ledger.cache.fresh.pruned.push(Pruned { conversation, up_to, offset, time });
    }
    Ok(Outcome::Noted)
}

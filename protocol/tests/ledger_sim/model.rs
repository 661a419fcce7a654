//! Naive ledger: plain maps, nothing evicted, written from the rules (ADR 3, SPEC sections 5 and 6), not from the code.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, DeviceId, MsgId, UserId},
    machine::ledger::{Device, Head, Member, Outcome, Row},
    record::{
        Body, Edit, Hash16, MemberAction, MemberChange, Message, MessageMode, Recall, Record, Role, Rules,
    },
};

pub(crate) type Id = (ConversationId, UserId, DeviceId, MsgId);

/// Id of an edit; without a user it is one of the admin API.
pub(crate) type EditId = (ConversationId, Option<UserId>, DeviceId, MsgId);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) seq: u64,
    pub(crate) time: u64,
    pub(crate) hash: Hash16,
    pub(crate) offset: u64,
    pub(crate) refused: Option<Code>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) rules: Rules,
    pub(crate) heads: BTreeMap<ConversationId, Head>,
    pub(crate) members: BTreeMap<(ConversationId, UserId), Member>,
    pub(crate) devices: BTreeMap<(ConversationId, UserId, DeviceId), Device>,
    pub(crate) ids: BTreeMap<Id, Decision>,
    pub(crate) requests: BTreeMap<(ConversationId, Option<UserId>, MsgId), (Decision, MemberChange)>,
    /// Rows that retention keeps.
    pub(crate) rows: BTreeMap<(ConversationId, u64), Row>,
    /// All rows, also those that retention removed.
    pub(crate) history: BTreeMap<(ConversationId, u64), Row>,
    pub(crate) recalled: BTreeMap<(ConversationId, u64), (u64, u64)>,
    /// Newest edit of each message: its seq, time and content.
    pub(crate) edited: BTreeMap<(ConversationId, u64), (u64, u64, Bytes)>,
    pub(crate) edits: BTreeMap<EditId, (Decision, Edit)>,
    /// Outcome at each offset, `None` for records that can't be decoded.
    pub(crate) answers: Vec<Option<Outcome>>,
}

fn refused(code: Code) -> Outcome {
    Outcome::Refused { code }
}

impl Model {
    /// Applies the next record of the log.
    pub(crate) fn push(&mut self, record: Option<&Record>) -> Option<Outcome> {
        let offset = self.answers.len() as u64;
        let answer = record.map(|record| self.answer(offset, record));
        self.answers.push(answer);
        answer
    }

    fn answer(&mut self, offset: u64, record: &Record) -> Outcome {
        let time = record.received_at;
        match &record.body {
            Body::Message(it) if !it.mode.is_ordinary() && self.rules.ledger_version < 5 => {
                refused(Code::NotYet)
            }
            Body::Edit(_) if self.rules.ledger_version < 5 => refused(Code::NotYet),
            Body::Message(Message {
                mode: MessageMode { denied: Some(Code::Application(_)), .. }, ..
            })
            | Body::Edit(Edit { denied: Some(Code::Application(_)), .. })
                if self.rules.ledger_version < 6 =>
            {
                refused(Code::NotYet)
            }
            Body::Edit(it) => self.edit(offset, time, it),
            Body::Message(it) => self.message(offset, time, it),
            Body::Member(it) => self.member(offset, time, it),
            Body::Recall(it) => self.recall(offset, time, it),
            Body::Prune(it) => match self.heads.get_mut(&it.conversation) {
                Some(head) => {
                    head.pruned_to = head.pruned_to.max(it.up_to.min(head.last_seq));
                    let up_to = head.pruned_to;
                    self.rows.retain(|(id, seq), _| *id != it.conversation || *seq > up_to);
                    self.recalled.retain(|(id, seq), _| *id != it.conversation || *seq > up_to);
                    self.edited.retain(|(id, seq), _| *id != it.conversation || *seq > up_to);
                    Outcome::Noted
                }
                None => refused(Code::NotFound),
            },
            Body::Rules(it) => {
                if it.ledger_version > self.rules.ledger_version {
                    self.rules.ledger_version = it.ledger_version;
                }
                match it.dedup_window {
                    Some(window) => self.rules.dedup_window = window,
                    None if self.rules.ledger_version == 1 => self.rules.dedup_window = 0,
                    None => {}
                }
                self.rules.keys_from = self.rules.keys_from.max(it.keys_from.min(offset));
                Outcome::Noted
            }
        }
    }

    fn append(&mut self, offset: u64, time: u64, body: Body, own: u64) -> Outcome {
        let id = body.conversation().unwrap().clone();
        let head = self.heads.entry(id.clone()).or_default();
        head.last_seq += 1;
        head.messages += u64::from(matches!(&body, Body::Message(it) if !it.mode.is_silent));
        let (seq, ordinal) = (head.last_seq, head.messages);
        let row = Row { seq, ordinal, own, time, offset, body };
        assert!(self.history.insert((id.clone(), seq), row.clone()).is_none());
        self.rows.insert((id, seq), row);
        Outcome::Accepted { seq, ordinal, time }
    }

    fn message(&mut self, offset: u64, time: u64, it: &Message) -> Outcome {
        let row_key = (it.conversation.clone(), it.sender.clone(), it.device.clone());
        let before = self.devices.get(&row_key).copied();
        let mut device = before.unwrap_or(Device { epoch: it.order.epoch, next_n: 0 });
        let replaced = it.order.epoch < device.epoch;
        if it.order.epoch > device.epoch {
            device = Device { epoch: it.order.epoch, next_n: 0 };
        }
        let in_order = !it.order.chained || (!replaced && it.order.n == device.next_n);
        let takes = it.order.chained && in_order;
        device.next_n += u64::from(takes);
        let answer = self.decide(offset, time, it, replaced.then_some(device.epoch), in_order);
        let refused = matches!(answer, Outcome::Refused { .. } | Outcome::RefusedBefore { .. });
        // A refusal leaves no row for a device that is new in the conversation.
        if before.is_some() || takes || !refused {
            self.devices.insert(row_key, device);
        }
        answer
    }

    fn decide(
        &mut self,
        offset: u64,
        time: u64,
        it: &Message,
        replaced: Option<u64>,
        in_order: bool,
    ) -> Outcome {
        let id = (it.conversation.clone(), it.sender.clone(), it.device.clone(), it.msg_id.clone());
        if let Some(decision) = self.ids.get(&id) {
            let window = if it.attempt == 0 { self.rules.dedup_window } else { 0 };
            let near = window == 0 || decision.offset + window >= offset;
            if near && decision.offset >= self.rules.keys_from {
                return match (decision.hash == it.body_hash, decision.refused) {
                    (true, None) => Outcome::Duplicate { seq: decision.seq, time: decision.time },
                    (true, Some(code)) => Outcome::RefusedBefore { code },
                    (false, _) => refused(Code::Conflict),
                };
            }
        }
        if let Some(newest) = replaced {
            return Outcome::Void { newest };
        }
        if !in_order {
            return refused(Code::OrderBroken);
        }
        let allowed = self.may_post(it).and(it.mode.denied.map_or(Ok(()), Err));
        if let Err(code) = allowed {
            if it.order.chained || self.rules.ledger_version >= 3 {
                let hash = it.body_hash;
                self.ids.insert(id, Decision { seq: 0, time, hash, offset, refused: Some(code) });
            }
            return refused(code);
        }
        if let ConversationKind::Direct(a, b) = it.conversation.kind() {
            for user in [a, b] {
                let key = (it.conversation.clone(), UserId::new(user).unwrap());
                let row = member(Role::Member, 1);
                self.members.entry(key).or_insert(row);
            }
        }
        let own = match self.members.get_mut(&(it.conversation.clone(), it.sender.clone())) {
            Some(member) => {
                let is_own = !it.mode.is_operator || it.conversation.is_direct_of(&it.sender);
                member.sent += u64::from(is_own && !it.mode.is_silent);
                member.sent
            }
            None => 0,
        };
        let content = if it.mode.is_transient { Bytes::new() } else { it.content.clone() };
        let stored = Message { content, ..it.clone() };
        let answer = self.append(offset, time, Body::Message(stored), own);
        let Outcome::Accepted { seq, .. } = answer else { unreachable!() };
        self.ids.insert(id, Decision { seq, time, hash: it.body_hash, offset, refused: None });
        answer
    }

    fn role_of(&self, conversation: &ConversationId, user: &UserId) -> Option<Role> {
        let row = self.members.get(&(conversation.clone(), user.clone()))?;
        row.is_in().then_some(row.role)
    }

    fn may_post(&self, it: &Message) -> Result<(), Code> {
        if it.mode.is_operator {
            let exists = self.heads.get(&it.conversation).is_some_and(|head| head.deleted_seq == 0);
            let is_group = matches!(it.conversation.kind(), ConversationKind::Group(_));
            return if exists || !is_group { Ok(()) } else { Err(Code::NotFound) };
        }
        if let ConversationKind::Direct(a, b) = it.conversation.kind() {
            let user = it.sender.as_str();
            return if user == a || user == b { Ok(()) } else { Err(Code::NotAMember) };
        }
        match self.heads.get(&it.conversation) {
            Some(head) if head.deleted_seq == 0 => {
                let role = self.role_of(&it.conversation, &it.sender).ok_or(Code::NotAMember)?;
                let admins = head.settings.get("post").is_some_and(|value| value == "admins");
                match self.members[&(it.conversation.clone(), it.sender.clone())].muted {
                    true => Err(Code::Muted),
                    false if admins && role == Role::Member => Err(Code::Forbidden),
                    false => Ok(()),
                }
            }
            _ => Err(self.absent(&it.conversation, &it.sender)),
        }
    }

    /// Returns what a user learns of a conversation that does not exist, or not any more.
    fn absent(&self, conversation: &ConversationId, user: &UserId) -> Code {
        let knows = conversation.is_direct_of(user) || self.role_of(conversation, user).is_some();
        if knows || self.rules.ledger_version < 4 { Code::NotFound } else { Code::NotAMember }
    }

    fn member(&mut self, offset: u64, time: u64, it: &MemberChange) -> Outcome {
        let request = (it.conversation.clone(), it.by.clone(), it.request_id.clone());
        if let Some((decision, change)) = self.requests.get(&request)
            && decision.offset >= self.rules.keys_from
        {
            return match (change == it, decision.refused) {
                (true, None) => Outcome::Duplicate { seq: decision.seq, time: decision.time },
                (true, Some(code)) => Outcome::RefusedBefore { code },
                (false, _) => refused(Code::Conflict),
            };
        }
        if let Err(code) = self.change(it) {
            if self.rules.ledger_version >= 4 {
                let hash = it.body_hash();
                let decision = Decision { seq: 0, time, hash, offset, refused: Some(code) };
                self.requests.insert(request, (decision, it.clone()));
            }
            return refused(code);
        }
        let answer = self.append(offset, time, Body::Member(it.clone()), 0);
        let Outcome::Accepted { seq, .. } = answer else { unreachable!() };
        let decision = Decision { seq, time, hash: it.body_hash(), offset, refused: None };
        self.requests.insert(request, (decision, it.clone()));
        answer
    }

    /// Applies a change to the members and the head, completely or not at all.
    fn change(&mut self, it: &MemberChange) -> Result<(), Code> {
        let id = &it.conversation;
        if it.action == MemberAction::Create {
            return self.create(it);
        }
        let absent = match &it.by {
            Some(by) => self.absent(id, by),
            None => Code::NotFound,
        };
        let mut head = self.heads.get(id).filter(|head| head.deleted_seq == 0).cloned().ok_or(absent)?;
        let seq = head.last_seq + 1;
        let mut rows: Vec<(UserId, Option<Member>)> = Vec::new();
        for user in &it.users {
            rows.push((user.clone(), self.members.get(&(id.clone(), user.clone())).copied()));
        }
        let present: Vec<_> =
            rows.iter().filter_map(|(user, row)| Some((user.clone(), row.filter(Member::is_in)?))).collect();
        self.may_change(it, &present)?;
        let gives = it.role.unwrap_or(Role::Member);
        match it.action {
            MemberAction::Join => {
                rows.retain(|(_, row)| !row.is_some_and(|row| row.is_in()));
                for (user, row) in rows {
                    let all = head.settings.get("history").is_some_and(|value| value == "all");
                    let first = if all { 1 } else { seq };
                    let new = Member { joined_messages: head.messages, ..member(gives, first) };
                    let back = |row: Member| Member { sent: row.sent, stays: row.stays + 1, ..new };
                    let row = row.map_or(new, back);
                    self.members.insert((id.clone(), user), row);
                }
            }
            MemberAction::Leave | MemberAction::Kick => {
                for (user, row) in present {
                    self.members.insert(
                        (id.clone(), user),
                        Member { left_seq: seq, left_messages: head.messages, ..row },
                    );
                }
            }
            MemberAction::Role => {
                for (user, row) in present {
                    self.members.insert((id.clone(), user), Member { role: gives, ..row });
                }
            }
            MemberAction::Mute | MemberAction::Unmute => {
                for (user, row) in present {
                    let muted = it.action == MemberAction::Mute;
                    self.members.insert((id.clone(), user), Member { muted, ..row });
                }
            }
            MemberAction::Delete => head.deleted_seq = seq,
            MemberAction::Settings => {
                check_values(&it.settings)?;
                let mut settings = (*head.settings).clone();
                settings.extend(it.settings.clone());
                settings.retain(|_, value| !value.is_empty());
                head.settings = settings.into();
            }
            MemberAction::Create => unreachable!(),
        }
        self.heads.insert(id.clone(), head);
        Ok(())
    }

    fn create(&mut self, it: &MemberChange) -> Result<(), Code> {
        let id = &it.conversation;
        if self.heads.contains_key(id) {
            return Err(Code::AlreadyExists);
        }
        check_values(&it.settings)?;
        let role = if it.by.is_some() { None } else { it.role }.unwrap_or(Role::Member);
        let mut new: BTreeMap<UserId, Role> = it.users.iter().map(|user| (user.clone(), role)).collect();
        new.extend(it.by.clone().map(|by| (by, Role::Owner)));
        for (user, role) in new {
            let row = member(role, 1);
            self.members.insert((id.clone(), user), row);
        }
        let mut settings = it.settings.clone();
        settings.retain(|_, value| !value.is_empty());
        self.heads.insert(id.clone(), Head { settings: settings.into(), ..Head::default() });
        Ok(())
    }

    fn may_change(&self, it: &MemberChange, present: &[(UserId, Member)]) -> Result<(), Code> {
        // The admin API ranks above every owner.
        let power = match &it.by {
            Some(by) => self.role_of(&it.conversation, by).map(|role| role as u8).ok_or(Code::NotAMember)?,
            None => u8::MAX,
        };
        if it.action != MemberAction::Leave && power < Role::Admin as u8 {
            return Err(Code::Forbidden);
        }
        let gives = it.role.unwrap_or(Role::Member) as u8;
        let mine = |user: &UserId| it.by.as_ref() == Some(user);
        let others = |(user, row): &(UserId, Member)| {
            !mine(user) && power < Role::Owner as u8 && row.role as u8 >= power
        };
        match it.action {
            MemberAction::Join if gives > power => Err(Code::Forbidden),
            MemberAction::Leave
                if it.by.is_some() && it.users.iter().any(|user| Some(user) != it.by.as_ref()) =>
            {
                Err(Code::Forbidden)
            }
            MemberAction::Kick | MemberAction::Role | MemberAction::Mute | MemberAction::Unmute
                if present.iter().any(others) =>
            {
                Err(Code::Forbidden)
            }
            MemberAction::Leave
            | MemberAction::Kick
            | MemberAction::Role
            | MemberAction::Mute
            | MemberAction::Unmute
                if present.is_empty() =>
            {
                Err(Code::NotAMember)
            }
            MemberAction::Unmute if present.iter().any(|(user, row)| mine(user) && row.muted) => {
                Err(Code::Forbidden)
            }
            MemberAction::Role if gives > power => Err(Code::Forbidden),
            MemberAction::Delete if power < Role::Owner as u8 => Err(Code::Forbidden),
            _ => Ok(()),
        }
    }

    fn recall(&mut self, offset: u64, time: u64, it: &Recall) -> Outcome {
        let row_key = (it.conversation.clone(), it.seq);
        if let Some((seq, time)) = self.recalled.get(&row_key) {
            return Outcome::Duplicate { seq: *seq, time: *time };
        }
        if self.heads.get(&it.conversation).is_none_or(|head| head.deleted_seq > 0) {
            return refused(it.by.as_ref().map_or(Code::NotFound, |by| self.absent(&it.conversation, by)));
        }
        let role = it.by.as_ref().map(|by| self.role_of(&it.conversation, by));
        if role == Some(None) {
            return refused(Code::NotAMember);
        }
        let sender = match self.rows.get(&row_key).map(|row| &row.body) {
            Some(Body::Message(message)) => message.sender.clone(),
            _ => return refused(Code::NotFound),
        };
        let group = matches!(it.conversation.kind(), ConversationKind::Group(_));
        let admin = group && role.flatten() >= Some(Role::Admin);
        if it.by.as_ref().is_some_and(|by| *by != sender) && !admin {
            return refused(Code::Forbidden);
        }
        let answer = self.append(offset, time, Body::Recall(it.clone()), 0);
        let Outcome::Accepted { seq, .. } = answer else { unreachable!() };
        self.recalled.insert(row_key, (seq, time));
        answer
    }
}

impl Model {
    fn edit(&mut self, offset: u64, time: u64, it: &Edit) -> Outcome {
        let id = (it.conversation.clone(), it.by.clone(), it.device.clone(), it.msg_id.clone());
        if let Some((decision, before)) = self.edits.get(&id)
            && decision.offset >= self.rules.keys_from
        {
            return match ((before.seq, before.body_hash) == (it.seq, it.body_hash), decision.refused) {
                (true, None) => Outcome::Duplicate { seq: decision.seq, time: decision.time },
                (true, Some(code)) => Outcome::RefusedBefore { code },
                (false, _) => refused(Code::Conflict),
            };
        }
        let decision = |seq, refused| Decision { seq, time, hash: it.key_hash(), offset, refused };
        if let Err(code) = self.may_edit(it) {
            self.edits.insert(id, (decision(0, Some(code)), it.clone()));
            return refused(code);
        }
        let body = Body::Edit(Edit { content: Bytes::new(), ..it.clone() });
        let answer = self.append(offset, time, body, 0);
        let Outcome::Accepted { seq, .. } = answer else { unreachable!() };
        self.edits.insert(id, (decision(seq, None), it.clone()));
        self.edited.insert((it.conversation.clone(), it.seq), (seq, time, it.content.clone()));
        answer
    }

    fn may_edit(&self, it: &Edit) -> Result<(), Code> {
        let head = self.heads.get(&it.conversation).filter(|head| head.deleted_seq == 0);
        let head = head.ok_or_else(|| match &it.by {
            Some(by) => self.absent(&it.conversation, by),
            None => Code::NotFound,
        })?;
        let role = match &it.by {
            Some(by) => Some(self.role_of(&it.conversation, by).ok_or(Code::NotAMember)?),
            None => None,
        };
        let of = (it.conversation.clone(), it.seq);
        let sender = match self.rows.get(&of).map(|row| &row.body) {
            Some(Body::Message(sent)) if !sent.mode.is_transient && !self.recalled.contains_key(&of) => {
                &sent.sender
            }
            _ => return Err(Code::NotFound),
        };
        if let (Some(by), Some(role)) = (&it.by, role) {
            let group = matches!(it.conversation.kind(), ConversationKind::Group(_));
            if by != sender && !(group && role >= Role::Admin) {
                return Err(Code::Forbidden);
            }
            if self.members[&(it.conversation.clone(), by.clone())].muted {
                return Err(Code::Muted);
            }
            if role < Role::Admin && head.settings.get("post").is_some_and(|value| value == "admins") {
                return Err(Code::Forbidden);
            }
        }
        it.denied.map_or(Ok(()), Err)
    }
}

/// Returns the row of a user who joins a conversation without messages.
fn member(role: Role, joined_seq: u64) -> Member {
    Member {
        role,
        joined_seq,
        left_seq: 0,
        sent: 0,
        joined_messages: 0,
        left_messages: 0,
        stays: 0,
        muted: false,
    }
}

fn check_values(change: &BTreeMap<String, String>) -> Result<(), Code> {
    let valid = |name: &str, value: &str| match name {
        "history" => ["", "join", "all"].contains(&value),
        "post" => ["", "all", "admins"].contains(&value),
        _ => true,
    };
    if change.iter().all(|(name, value)| valid(name, value)) { Ok(()) } else { Err(Code::BadSetting) }
}

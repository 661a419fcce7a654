//! Ledger rules for messages; checks duplicate or conflict, epoch, chain and membership, in this order.

use bytes::Bytes;

use super::{
    Ledger,
    mutation::Mutation,
    rows::{Device, Head, Key, Member, Outcome, Row, RowHead, Stop, message_key},
};
use crate::{
    code::Code,
    id::{ConversationKind, UserId},
    record::{Body, Hash16, Message, Record, Role, Rules},
    settings::{GroupSettings, Post},
};

/// Input of a decision on a message.
struct Facts<'a> {
    message: &'a Message,
    offset: u64,
    time: u64,
    rules: &'a Rules,
    key: Option<Key>,
    device: Option<Device>,
    member: Option<Member>,
    /// Whether the conversation exists and is not deleted.
    open: bool,
    /// Whether only admins may post.
    admins_only: bool,
    mutation: Option<Mutation>,
}

type Check = fn(&Facts<'_>) -> Option<Outcome>;

pub(super) fn apply(
    ledger: &mut Ledger,
    offset: u64,
    record: &Record,
    message: &Message,
) -> Result<Outcome, Stop> {
    let hash = message_key(message);
    let key = match ledger.cache.key(&hash) {
        Ok(key) => key.copied(),
        Err(_) if !ledger.key_matters(message.attempt, offset) => None,
        Err(stop) => return Err(stop),
    };
    let id = &message.conversation;
    let (head, member, device) = ledger.cache.sender(id, &message.sender, &message.device)?;
    let head = head.cloned();
    let facts = Facts {
        message,
        offset,
        time: record.received_at,
        rules: &ledger.rules,
        key,
        device,
        member,
        open: head.as_ref().is_some_and(|head| head.deleted_seq == 0),
        admins_only: head.as_ref().is_some_and(admins_only),
        mutation: ledger.mutation,
    };
    let refusal = CHECKS.iter().find_map(|check| check(&facts));
    let lasting = facts.lasting(refusal.as_ref());
    if let Some(next) = facts.device_after(refusal.as_ref()).filter(|next| Some(*next) != device) {
        ledger.cache.set_device(id, &message.sender, &message.device, next);
    }
    if let Some(code) = lasting {
        let (time, body_hash) = (record.received_at, message.body_hash);
        ledger.cache.set_key(hash, Key { seq: 0, time, body_hash, offset, refused: Some(code) });
    }
    Ok(refusal.unwrap_or_else(|| accept(ledger, offset, record.received_at, message, hash, head, member)))
}

/// Checks of a message. The order matters: the inputs of all but the first may have changed since the first attempt.
const CHECKS: [Check; 5] = [duplicate, epoch, chain, membership, denied];

/// Recognises a retry. Checked first, so that a retry gets the same outcome whatever changed since (flaws S21, S22).
fn duplicate(facts: &Facts<'_>) -> Option<Outcome> {
    let key = facts.key.filter(|key| facts.compares_with(key))?;
    let early: Option<Check> = match facts.mutation {
        Some(Mutation::ChainBeforeDuplicate) => Some(chain),
        Some(Mutation::MembershipBeforeDuplicate) => Some(membership),
        _ => None,
    };
    if let Some(refusal) = early.and_then(|check| check(facts)) {
        return Some(refusal);
    }
    Some(match key.refused {
        _ if key.body_hash != facts.message.body_hash => Outcome::Refused { code: Code::Conflict },
        Some(code) => Outcome::RefusedBefore { code },
        None => Outcome::Duplicate { seq: key.seq, time: key.time },
    })
}

fn epoch(facts: &Facts<'_>) -> Option<Outcome> {
    if facts.breaks(Mutation::NoEpochCheck) {
        return None;
    }
    facts.newer_epoch().map(|newest| Outcome::Void { newest })
}

fn chain(facts: &Facts<'_>) -> Option<Outcome> {
    if !facts.message.order.chained || facts.is_next() || facts.breaks(Mutation::NoChainCheck) {
        return None;
    }
    Some(Outcome::Refused { code: Code::OrderBroken })
}

fn membership(facts: &Facts<'_>) -> Option<Outcome> {
    if facts.message.mode.is_operator && !facts.breaks(Mutation::OperatorNeedsMembership) {
        let is_group = matches!(facts.message.conversation.kind(), ConversationKind::Group(_));
        return (is_group && !facts.open).then_some(Outcome::Refused { code: Code::NotFound });
    }
    // The common case, without parsing the conversation key. Users of a direct conversation have rows and never leave.
    if let Some(member) = facts.member.filter(|member| facts.open && member.is_in()) {
        return facts.posting_refusal(&member).map(|code| Outcome::Refused { code });
    }
    let code = match facts.message.conversation.kind() {
        ConversationKind::Direct(a, b) => {
            let sender = facts.message.sender.as_str();
            (sender != a && sender != b).then_some(Code::NotAMember)
        }
        _ if !facts.open && facts.may_know_group() => Some(Code::NotFound),
        _ => facts.member.is_none_or(|member| !member.is_in()).then_some(Code::NotAMember),
    };
    code.map(|code| Outcome::Refused { code })
}

/// Refuses a message that the application or a block list has refused. Checked last, so that a stranger gets the same answer
/// whatever they say.
fn denied(facts: &Facts<'_>) -> Option<Outcome> {
    facts.message.mode.denied.map(|code| Outcome::Refused { code })
}

impl Facts<'_> {
    /// Returns whether the sender may learn that the group does not exist: since version 4 only if it was in it until
    /// the group was deleted. Ids of groups are chosen by applications and may say something about them.
    fn may_know_group(&self) -> bool {
        !self.rules.hides_groups() || self.member.is_some_and(|member| member.is_in())
    }

    /// Returns why a member may not post, `None` if allowed. The users of a direct conversation always may.
    fn posting_refusal(&self, member: &Member) -> Option<Code> {
        let barred = self.admins_only && member.role < Role::Admin;
        if member.muted { Some(Code::Muted) } else { barred.then_some(Code::Forbidden) }
    }

    fn breaks(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Returns whether the attempt is compared with this key.
    ///
    /// A retry is compared with all remembered keys, a first attempt only with those of the dedup window.
    fn compares_with(&self, key: &Key) -> bool {
        let window = self.rules.dedup_window;
        let near = if self.breaks(Mutation::WindowByTime) {
            self.time.saturating_sub(key.time) <= window
        } else {
            self.offset.saturating_sub(key.offset) <= window
        };
        let retry = self.message.attempt > 0 && !self.breaks(Mutation::AttemptIgnored);
        let future = self.breaks(Mutation::ClockDecides) && key.time > self.time;
        key.offset >= self.rules.keys_from && (window == 0 || retry || near) && !future
    }

    fn newer_epoch(&self) -> Option<u64> {
        self.device.map(|device| device.epoch).filter(|epoch| *epoch > self.message.order.epoch)
    }

    /// Returns the device's row; one at chain number 0 if the record begins a new epoch.
    fn current_device(&self) -> Device {
        let epoch = self.message.order.epoch;
        self.device.filter(|device| device.epoch >= epoch).unwrap_or(Device { epoch, next_n: 0 })
    }

    fn is_next(&self) -> bool {
        let current = self.current_device();
        current.epoch == self.message.order.epoch && current.next_n == self.message.order.n
    }

    /// Returns the code of a refusal to remember: a permanent one, by the sender's present rights.
    ///
    /// The chain continues after a refused chained message, so that message must never be accepted later. After any
    /// message, the log may contain copies that were resent before the answer arrived; a join in between would accept
    /// them although the sender got a refusal. A conflict already has a key. Refusals by chain or epoch are temporary.
    fn lasting(&self, refusal: Option<&Outcome>) -> Option<Code> {
        match refusal {
            Some(Outcome::Refused { code }) if Some(*code) == self.message.mode.denied => {
                (!self.breaks(Mutation::DenialForgotten)).then_some(*code)
            }
            Some(Outcome::Refused {
                code: code @ (Code::NotAMember | Code::NotFound | Code::Muted | Code::Forbidden),
            }) => (self.message.order.chained || self.remembers_unchained()).then_some(*code),
            _ => None,
        }
    }

    /// Returns whether refusals of unchained messages are remembered, as they are since version 3.
    fn remembers_unchained(&self) -> bool {
        self.rules.ledger_version >= 3 && !self.breaks(Mutation::UnchainedRefusalForgotten)
    }

    /// Returns the device's row after this record, `None` if the record must not change it.
    ///
    /// A chained record that is the next of its chain takes its number whatever the outcome, because a lasting refusal
    /// must not break its successors; and a newer epoch excludes older ones. A refusal that takes no number creates no
    /// row; otherwise anyone could fill the store with rows of refused messages.
    fn device_after(&self, refusal: Option<&Outcome>) -> Option<Device> {
        if self.newer_epoch().is_some() {
            return None;
        }
        let current = self.current_device();
        let refused = matches!(refusal, Some(Outcome::Refused { .. } | Outcome::RefusedBefore { .. }));
        let keeps = refused && self.breaks(Mutation::RefusedKeepsNumber);
        let takes = self.message.order.chained && self.is_next() && !keeps;
        if refused && !takes && self.device.is_none() {
            return None;
        }
        Some(Device { next_n: current.next_n.saturating_add(u64::from(takes)), ..current })
    }
}

/// Refuses a user who may not post, as a message of the user would be refused.
pub(super) fn may_post(head: &Head, member: &Member) -> Result<(), Code> {
    match member.muted {
        true => Err(Code::Muted),
        false if admins_only(head) && member.role < Role::Admin => Err(Code::Forbidden),
        false => Ok(()),
    }
}

fn admins_only(head: &Head) -> bool {
    !head.settings.is_empty() && GroupSettings::of(&head.settings).post == Post::Admins
}

fn accept(
    ledger: &mut Ledger,
    offset: u64,
    time: u64,
    message: &Message,
    hash: Hash16,
    head: Option<Head>,
    member: Option<Member>,
) -> Outcome {
    let id = &message.conversation;
    let begins = head.is_none();
    let mut head = head.unwrap_or_default();
    let counts = message.counts() || ledger.mutation == Some(Mutation::SilentCounts);
    head.last_seq += 1;
    head.messages += u64::from(counts);
    let (seq, ordinal) = (head.last_seq, head.messages);
    if begins {
        // Only a direct conversation begins with a message; both users are members from the start.
        if let ConversationKind::Direct(a, b) = id.kind() {
            for user in [a, b].into_iter().filter_map(|user| UserId::new(user).ok()) {
                ledger.cache.set_member(id, &user, DIRECT_MEMBER);
            }
        }
    }
    let mut own = member.map_or(0, |member| member.sent);
    // An operator that is no member gets no row: it must not be counted as one, nor read anything.
    if message.is_own() || ledger.mutation == Some(Mutation::SilentCounts) {
        let mut member = member.unwrap_or(DIRECT_MEMBER);
        member.sent += 1;
        own = member.sent;
        ledger.cache.set_member(id, &message.sender, member);
    }
    ledger.cache.set_head(id, head);
    let key = Key { seq, time, body_hash: message.body_hash, offset, refused: None };
    ledger.cache.set_key(hash, key);
    let mut stored = message.clone();
    let is_transient = message.mode.is_transient;
    if is_transient && ledger.mutation != Some(Mutation::TransientStored) {
        stored.content = Bytes::new();
    }
    let row = RowHead { sender: Some(message.sender.clone()), recalled: None, is_transient };
    ledger.cache.set_row(id, seq, row);
    ledger.cache.fresh.rows.push(Row { seq, ordinal, own, time, offset, body: Body::Message(stored) });
    Outcome::Accepted { seq, ordinal, time }
}

/// First row of a user in a direct conversation.
const DIRECT_MEMBER: Member = Member::new(Role::Member, 1, 0);

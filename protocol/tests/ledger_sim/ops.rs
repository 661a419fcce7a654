//! Random administration records: creates, joins, kicks, roles, recalls, retention, rules.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidegate_protocol::{
    Code,
    code::AppCode,
    id::{ConversationId, DeviceId, MsgId, UserId},
    machine::ledger::LEDGER_NEWEST,
    record::{
        Body, Edit, MemberAction, MemberChange, Message, MessageMode, Prune, Recall, Role, RuleChange,
        SenderOrder, body_hash,
    },
};

use crate::rng::Rng;

pub(crate) const USERS: [&str; 4] = ["ann", "bob", "cy", "dee"];
pub(crate) const GROUPS: [&str; 3] = ["g:a", "g:b", "g:c"];

pub(crate) fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

fn name(rng: &mut Rng, from: &[&'static str]) -> &'static str {
    from[rng.below(from.len())]
}

fn group(rng: &mut Rng) -> ConversationId {
    let name = if rng.percent(60) { GROUPS[0] } else { name(rng, &GROUPS) };
    ConversationId::parse(name).unwrap()
}

/// Picks a target conversation, mostly one that the sender may post in.
pub(crate) fn conversation(rng: &mut Rng, by: &str) -> ConversationId {
    if rng.percent(60) {
        return group(rng);
    }
    let one = if rng.percent(95) { by } else { name(rng, &USERS) };
    ConversationId::direct(&user(one), &user(name(rng, &USERS)))
}

/// Returns the record that creates the initial group.
pub(crate) fn first_group() -> Body {
    Body::Member(MemberChange {
        conversation: ConversationId::parse(GROUPS[0]).unwrap(),
        action: MemberAction::Create,
        users: USERS.map(user).to_vec(),
        role: None,
        by: Some(user(USERS[0])),
        settings: BTreeMap::new(),
        request_id: MsgId::new("first").unwrap(),
    })
}

/// Administration records that were submitted so far, which may be repeated.
#[derive(Default)]
pub(crate) struct Past {
    pub(crate) changes: Vec<MemberChange>,
    pub(crate) recalls: Vec<Recall>,
    pub(crate) edits: Vec<Edit>,
    /// Messages with a mode, by a back end.
    pub(crate) moded: Vec<Message>,
}

impl Past {
    pub(crate) fn note(&mut self, body: &Body) {
        match body {
            Body::Member(change) => self.changes.push(change.clone()),
            Body::Recall(recall) => self.recalls.push(recall.clone()),
            Body::Edit(edit) => self.edits.push(edit.clone()),
            Body::Message(message) if message.device.as_str() == DEVICE => self.moded.push(message.clone()),
            _ => {}
        }
    }
}

fn recall(rng: &mut Rng, past: &[Recall]) -> Recall {
    if !past.is_empty() && rng.percent(50) {
        return rng.pick(past).clone();
    }
    Recall {
        conversation: conversation(rng, USERS[0]),
        seq: rng.below(8) as u64,
        by: if rng.percent(60) { None } else { Some(user(name(rng, &USERS))) },
    }
}

/// Device of messages and edits by a back end.
const DEVICE: &str = ".api";

/// Returns an edit, often one that was submitted before, or of the newest entries.
fn edit(rng: &mut Rng, past: &[Edit]) -> Edit {
    if !past.is_empty() && rng.percent(30) {
        let mut again = rng.pick(past).clone();
        if rng.percent(20) {
            again.seq += 1;
        }
        return again;
    }
    let number = rng.below(1_000_000);
    let content = Bytes::from(format!("e{number}"));
    Edit {
        conversation: conversation(rng, USERS[0]),
        seq: rng.below(8) as u64,
        by: if rng.percent(40) { None } else { Some(user(name(rng, &USERS))) },
        device: DeviceId::new(DEVICE).unwrap(),
        msg_id: MsgId::new(&format!("e{number}")).unwrap(),
        body_hash: body_hash(&content),
        content,
        denied: denial(rng, 10),
    }
}

/// Returns a code to deny with: at times the application's own, which needs newer rules.
fn denial(rng: &mut Rng, percent: usize) -> Option<Code> {
    let application = AppCode::new(5_001).map(Code::Application);
    if !rng.percent(percent) {
        None
    } else if rng.percent(50) {
        application
    } else {
        Some(Code::Banned)
    }
}

/// Returns a message of a back end: by a user, or by the operator, who is sometimes a member as well.
fn moded(rng: &mut Rng, past: &[Message]) -> Message {
    if !past.is_empty() && rng.percent(30) {
        return Message { attempt: 1, ..rng.pick(past).clone() };
    }
    let (number, flags) = (rng.below(1_000_000), rng.below(8) as u32);
    let content = Bytes::from(format!("c{number}"));
    let is_operator = rng.percent(50);
    let sender = if is_operator && rng.percent(50) { "system" } else { name(rng, &USERS) };
    let denied = denial(rng, 25);
    Message {
        conversation: conversation(rng, sender),
        sender: user(sender),
        device: DeviceId::new(DEVICE).unwrap(),
        msg_id: MsgId::new(&format!("b{number}")).unwrap(),
        attempt: 0,
        body_hash: body_hash(&content),
        content: if denied.is_some() { Bytes::new() } else { content },
        order: SenderOrder::WITHOUT_SESSION,
        flags,
        mode: MessageMode { is_operator, denied, ..MessageMode::of_flags(flags) },
    }
}

/// Returns a prune, often up to a message that was recalled.
fn prune(rng: &mut Rng, recalls: &[Recall]) -> Prune {
    if !recalls.is_empty() && rng.percent(60) {
        let recall = rng.pick(recalls);
        return Prune { conversation: recall.conversation.clone(), up_to: recall.seq };
    }
    Prune { conversation: conversation(rng, USERS[0]), up_to: rng.below(6) as u64 }
}

fn member(rng: &mut Rng, past: &[MemberChange]) -> MemberChange {
    if !past.is_empty() && rng.percent(25) {
        let mut again = rng.pick(past).clone();
        if rng.percent(20) {
            again.settings.insert("name".to_owned(), "other".to_owned());
        }
        return again;
    }
    let action = match rng.below(20) {
        0..3 => MemberAction::Create,
        3..9 => MemberAction::Join,
        9..11 => MemberAction::Leave,
        11..16 => MemberAction::Kick,
        16..18 => MemberAction::Role,
        18 => *rng.pick(&[MemberAction::Mute, MemberAction::Unmute]),
        _ if rng.percent(10) => MemberAction::Delete,
        _ => MemberAction::Settings,
    };
    let by = if rng.percent(50) { None } else { Some(user(name(rng, &USERS))) };
    let mut users: Vec<_> = USERS.iter().filter(|_| rng.percent(40)).map(|name| user(name)).collect();
    if users.is_empty() || action == MemberAction::Leave {
        users = vec![by.clone().unwrap_or_else(|| user(USERS[1]))];
    }
    let roles = [None, Some(Role::Member), Some(Role::Admin), Some(Role::Owner)];
    let role = if action == MemberAction::Role { *rng.pick(&roles[1..]) } else { *rng.pick(&roles) };
    let setting = [
        ("name", ""),
        ("name", "x"),
        ("history", "all"),
        ("history", "join"),
        ("history", "some"),
        ("post", "admins"),
        ("post", ""),
    ];
    let (setting, value) = *rng.pick(&setting);
    MemberChange {
        conversation: group(rng),
        action,
        users,
        role,
        by,
        settings: BTreeMap::from([(setting.to_owned(), value.to_owned())]),
        request_id: MsgId::new(&format!("q{}", rng.below(1_000_000))).unwrap(),
    }
}

/// Returns a random administration record, for a log of `length` records.
pub(crate) fn random(rng: &mut Rng, past: &Past, length: usize) -> Body {
    match rng.below(34) {
        0..14 => Body::Member(member(rng, &past.changes)),
        14..21 => Body::Recall(recall(rng, &past.recalls)),
        28..31 => Body::Edit(edit(rng, &past.edits)),
        31..34 => Body::Message(moded(rng, &past.moded)),
        21..24 => Body::Prune(prune(rng, &past.recalls)),
        _ => Body::Rules(RuleChange {
            ledger_version: if rng.percent(30) {
                *rng.pick(&[2, 3, 4, 5, LEDGER_NEWEST, LEDGER_NEWEST])
            } else {
                1
            },
            dedup_window: [None, None, Some(0), Some(4), Some(12), Some(1_000)][rng.below(6)],
            keys_from: if rng.percent(30) { length.saturating_sub(40 + rng.below(40)) as u64 } else { 0 },
        }),
    }
}

//! Decoder of log records; validates, once, everything that the ledger relies on.

use bytes::Bytes;
use prost::Message as _;

use super::{
    Body, CONTENT_BYTES_MAX, Edit, Hash16, MemberAction, MemberChange, Message, MessageMode, Origin, Prune,
    RECORD_VERSION, Recall, Record, Role, RuleChange, SETTING_BYTES_MAX, SETTINGS_MAX, SenderOrder,
    USERS_MAX, mode,
};
use crate::{
    code::Code,
    id::{ConversationId, ConversationKind, DeviceId, IdError, MsgId, NodeId, UserId},
    pb,
    trace::TraceContext,
};

/// Reason why bytes are not a valid record. The owner skips, counts and reports the record; others are unaffected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes are not protobuf of the schema.
    #[error("not a record: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// The schema version is unsupported.
    #[error("record version {0} is unsupported")]
    Version(u32),
    /// A required part is missing.
    #[error("record has no {0}")]
    Missing(&'static str),
    /// An id or a conversation key is malformed.
    #[error("{field}: {source}")]
    Id {
        /// Name of the field.
        field: &'static str,
        /// Error of the id.
        source: IdError,
    },
    /// The kind of conversation is not allowed: a room, or a direct conversation in a membership change.
    #[error("{0} is not allowed in this kind of record")]
    Kind(ConversationId),
    /// A length or count is over its limit.
    #[error("{field}: {got} is over the limit")]
    TooMany {
        /// Name of the field.
        field: &'static str,
        /// Length or count in the record.
        got: usize,
    },
    /// A change names a user twice.
    #[error("user {0} is named twice")]
    Twice(UserId),
    /// A number is out of range.
    #[error("{field}: {got} is out of range")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// Number in the record.
        got: u64,
    },
}

impl Record {
    /// Decodes and validates a record of the log.
    ///
    /// The content is a slice of `bytes`, not a copy; the node that accepted it has checked that it is a valid
    /// [`crate::content::Content`].
    pub fn decode(bytes: Bytes) -> Result<Self, RecordError> {
        let record = pb::Record::decode(bytes)?;
        if record.version != RECORD_VERSION {
            return Err(RecordError::Version(record.version));
        }
        let trace = TraceContext::from_bytes(&record.trace);
        let origin = record.origin.ok_or(RecordError::Missing("origin"))?;
        let origin = Origin {
            node: NodeId::new(&origin.node).map_err(at("origin.node"))?,
            boot: origin.boot,
            conn: origin.conn,
            request: origin.request,
        };
        let body = match record.body.ok_or(RecordError::Missing("body"))? {
            pb::record::Body::Message(it) => Body::Message(message(it)?),
            pb::record::Body::ModedMessage(it) => Body::Message(moded_message(it)?),
            pb::record::Body::Edit(it) => Body::Edit(edit(it)?),
            pb::record::Body::Member(it) => Body::Member(member(it)?),
            pb::record::Body::Recall(it) => Body::Recall(Recall {
                conversation: conversation(&it.conversation)?,
                seq: it.seq,
                by: by(&it.by)?,
            }),
            pb::record::Body::Prune(it) => {
                Body::Prune(Prune { conversation: conversation(&it.conversation)?, up_to: it.up_to })
            }
            pb::record::Body::Rules(it) => Body::Rules(rules(&it)?),
        };
        Ok(Self { origin, received_at: record.received_at, body, trace })
    }
}

fn at(field: &'static str) -> impl Fn(IdError) -> RecordError {
    move |source| RecordError::Id { field, source }
}

fn conversation(text: &str) -> Result<ConversationId, RecordError> {
    let id = ConversationId::parse(text).map_err(at("conversation"))?;
    if matches!(id.kind(), ConversationKind::Room(_)) { Err(RecordError::Kind(id)) } else { Ok(id) }
}

fn by(text: &str) -> Result<Option<UserId>, RecordError> {
    if text.is_empty() { Ok(None) } else { UserId::new(text).map(Some).map_err(at("by")) }
}

fn at_most(field: &'static str, max: usize, got: usize) -> Result<(), RecordError> {
    if got > max { Err(RecordError::TooMany { field, got }) } else { Ok(()) }
}

fn message(record: pb::MessageRecord) -> Result<Message, RecordError> {
    let order = record.order.ok_or(RecordError::Missing("order"))?;
    at_most("content", CONTENT_BYTES_MAX, record.content.len())?;
    Ok(Message {
        conversation: conversation(&record.conversation)?,
        sender: UserId::new(&record.sender).map_err(at("sender"))?,
        device: DeviceId::new(&record.device).map_err(at("device"))?,
        msg_id: MsgId::new(&record.msg_id).map_err(at("msg_id"))?,
        attempt: record.attempt,
        content: record.content,
        order: SenderOrder { epoch: order.epoch, n: order.n, chained: order.chained },
        flags: record.flags,
        mode: MessageMode::default(),
        body_hash: body_hash(&record.body_hash)?,
    })
}

/// Decodes a message with a mode. One without is refused: it has another form, in which all versions know it.
fn moded_message(record: pb::MessageRecord) -> Result<Message, RecordError> {
    let (flags, is_operator, denied) = (record.flags, record.operator, denial(record.denied)?);
    let mode = MessageMode { is_operator, denied, ..MessageMode::of_flags(flags) };
    if mode.is_ordinary() || !mode::are_known(flags) {
        return Err(RecordError::Range { field: "flags", got: flags.into() });
    }
    Ok(Message { mode, ..message(record)? })
}

fn edit(record: pb::EditRecord) -> Result<Edit, RecordError> {
    at_most("content", CONTENT_BYTES_MAX, record.content.len())?;
    Ok(Edit {
        conversation: conversation(&record.conversation)?,
        seq: record.seq,
        by: by(&record.by)?,
        device: DeviceId::new(&record.device).map_err(at("device"))?,
        msg_id: MsgId::new(&record.msg_id).map_err(at("msg_id"))?,
        content: record.content,
        body_hash: body_hash(&record.body_hash)?,
        denied: denial(record.denied)?,
    })
}

fn body_hash(bytes: &Bytes) -> Result<Hash16, RecordError> {
    let wrong = |_| RecordError::Range { field: "body_hash", got: bytes.len() as u64 };
    bytes.as_ref().try_into().map_err(wrong)
}

fn denial(number: u32) -> Result<Option<Code>, RecordError> {
    mode::denial(number).map_err(|got| RecordError::Range { field: "denied", got: got.into() })
}

fn member(record: pb::MemberRecord) -> Result<MemberChange, RecordError> {
    let conversation = conversation(&record.conversation)?;
    if !matches!(conversation.kind(), ConversationKind::Group(_)) {
        return Err(RecordError::Kind(conversation));
    }
    let action = action(record.action)?;
    let role = role(record.role)?;
    let by = by(&record.by)?;
    at_most("users", USERS_MAX, record.users.len())?;
    let mut users = Vec::with_capacity(record.users.len());
    for user in &record.users {
        users.push(UserId::new(user).map_err(at("users"))?);
    }
    if action == MemberAction::Leave && users.is_empty() {
        users.extend(by.clone());
    }
    check_users(action, role, &users)?;
    at_most("settings", SETTINGS_MAX, record.settings.len())?;
    for (name, value) in &record.settings {
        crate::id::check_id(name).map_err(at("settings"))?;
        at_most("settings", SETTING_BYTES_MAX, value.len())?;
    }
    let request_id = MsgId::new(&record.request_id).map_err(at("request_id"))?;
    Ok(MemberChange { conversation, action, users, role, by, settings: record.settings, request_id })
}

fn check_users(action: MemberAction, role: Option<Role>, users: &[UserId]) -> Result<(), RecordError> {
    use MemberAction::{Join, Kick, Leave, Mute, Role, Unmute};
    let mut sorted: Vec<&UserId> = users.iter().collect();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(RecordError::Twice(pair[0].clone()));
    }
    if users.is_empty() && matches!(action, Join | Leave | Kick | Role | Mute | Unmute) {
        return Err(RecordError::Missing("users"));
    }
    if role.is_none() && action == Role {
        return Err(RecordError::Missing("role"));
    }
    Ok(())
}

fn action(number: i32) -> Result<MemberAction, RecordError> {
    match pb::MemberAction::try_from(number) {
        Ok(pb::MemberAction::Create) => Ok(MemberAction::Create),
        Ok(pb::MemberAction::Join) => Ok(MemberAction::Join),
        Ok(pb::MemberAction::Leave) => Ok(MemberAction::Leave),
        Ok(pb::MemberAction::Kick) => Ok(MemberAction::Kick),
        Ok(pb::MemberAction::Role) => Ok(MemberAction::Role),
        Ok(pb::MemberAction::Settings) => Ok(MemberAction::Settings),
        Ok(pb::MemberAction::Delete) => Ok(MemberAction::Delete),
        Ok(pb::MemberAction::Mute) => Ok(MemberAction::Mute),
        Ok(pb::MemberAction::Unmute) => Ok(MemberAction::Unmute),
        _ => Err(RecordError::Range { field: "action", got: u64::from(number.unsigned_abs()) }),
    }
}

fn role(number: i32) -> Result<Option<Role>, RecordError> {
    match pb::Role::try_from(number) {
        Ok(pb::Role::Unspecified) => Ok(None),
        Ok(pb::Role::Member) => Ok(Some(Role::Member)),
        Ok(pb::Role::Admin) => Ok(Some(Role::Admin)),
        Ok(pb::Role::Owner) => Ok(Some(Role::Owner)),
        Err(_) => Err(RecordError::Range { field: "role", got: u64::from(number.unsigned_abs()) }),
    }
}

fn rules(record: &pb::RulesRecord) -> Result<RuleChange, RecordError> {
    if record.ledger_version == 0 {
        return Err(RecordError::Missing("ledger_version"));
    }
    Ok(RuleChange {
        ledger_version: record.ledger_version,
        dedup_window: record.dedup_window,
        keys_from: record.keys_from,
    })
}

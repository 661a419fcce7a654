//! Conversion between the port's types and the messages of `link.proto`. Validates each item that a peer sends.

use tidegate_protocol::{
    Code,
    id::{ConversationId, DeviceId, NodeId, UserId},
    machine::{
        ledger::Outcome,
        reactions::{REACTION_KINDS_MAX, ReactionCount, ReactionExchange, ReactionKind},
    },
    pb::{
        self, link_outcome::Body as OutcomeBody, link_stray::Body as StrayBody, link_word::Body as WordBody,
    },
    record::Hash16,
};

use crate::{
    link::{
        Answer, AnswerStatus, ArchiveStatus, ArchivedUpTo, Ask, AskKey, BestEffortMessage, Landing,
        PartitionOffset, PeerPush, PublishedMark, RoomTallyReport, RoutedSession, SentBy, Target,
    },
    priorities::CLASS_MAX,
    routes::NodeBoot,
};

/// Limit on the characters of a trace context: version 00 of the W3C format has 55, later versions may have more.
const TRACEPARENT_CHARS_MAX: usize = 128;

/// Error for an item that can't be decoded; the text names its kind, and never contains the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub(super) struct Malformed(pub(super) &'static str);

type Read<T> = Result<T, Malformed>;

/// Decodes every item, or returns the first error.
pub(super) fn all<A, B>(items: Vec<A>, read: impl Fn(A) -> Read<B>) -> Read<Vec<B>> {
    items.into_iter().map(read).collect()
}

pub(super) fn user(text: &str) -> Read<UserId> {
    UserId::new(text).map_err(|_| Malformed("user id"))
}

pub(super) fn device(text: &str) -> Read<DeviceId> {
    DeviceId::new(text).map_err(|_| Malformed("device id"))
}

/// Returns the text of a device; empty for all devices.
pub(super) fn put_any_device(device: Option<&DeviceId>) -> String {
    device.map(ToString::to_string).unwrap_or_default()
}

pub(super) fn any_device(text: &str) -> Read<Option<DeviceId>> {
    if text.is_empty() { Ok(None) } else { device(text).map(Some) }
}

pub(super) fn conversation(text: &str) -> Read<ConversationId> {
    ConversationId::parse(text).map_err(|_| Malformed("conversation id"))
}

fn traceparent(text: String) -> String {
    let is_valid =
        text.len() <= TRACEPARENT_CHARS_MAX && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    if is_valid { text } else { String::new() }
}

pub(super) fn put_answer(answer: Answer) -> pb::LinkAnswer {
    let Answer { conn, request, outcome, traceparent } = answer;
    pb::LinkAnswer { conn, request, outcome: Some(put_outcome(outcome)), traceparent }
}

pub(super) fn answer(sent: pb::LinkAnswer) -> Read<Answer> {
    let outcome = outcome(sent.outcome)?;
    let traceparent = traceparent(sent.traceparent);
    Ok(Answer { conn: sent.conn, request: sent.request, outcome, traceparent })
}

fn put_outcome(outcome: Outcome) -> pb::LinkOutcome {
    let body = match outcome {
        Outcome::Accepted { seq, ordinal, time } => {
            OutcomeBody::Accepted(pb::LinkAccepted { seq, ordinal, time })
        }
        Outcome::Duplicate { seq, time } => OutcomeBody::Duplicate(pb::LinkDuplicate { seq, time }),
        Outcome::Refused { code } => OutcomeBody::Refused(code.number().into()),
        Outcome::RefusedBefore { code } => OutcomeBody::RefusedBefore(code.number().into()),
        Outcome::Void { newest } => OutcomeBody::VoidBefore(newest),
        Outcome::Noted => OutcomeBody::Noted(pb::LinkReady {}),
    };
    pb::LinkOutcome { body: Some(body) }
}

fn outcome(sent: Option<pb::LinkOutcome>) -> Read<Outcome> {
    Ok(match sent.and_then(|sent| sent.body).ok_or(Malformed("outcome"))? {
        OutcomeBody::Accepted(pb::LinkAccepted { seq, ordinal, time }) => {
            Outcome::Accepted { seq, ordinal, time }
        }
        OutcomeBody::Duplicate(pb::LinkDuplicate { seq, time }) => Outcome::Duplicate { seq, time },
        OutcomeBody::Refused(number) => Outcome::Refused { code: code(number)? },
        OutcomeBody::RefusedBefore(number) => Outcome::RefusedBefore { code: code(number)? },
        OutcomeBody::VoidBefore(newest) => Outcome::Void { newest },
        OutcomeBody::Noted(_) => Outcome::Noted,
    })
}

fn code(number: u32) -> Read<Code> {
    u16::try_from(number)
        .ok()
        .and_then(Code::from_number)
        .ok_or(Malformed("code, perhaps of a newer version"))
}

pub(super) fn put_delivery(delivery: PeerPush) -> pb::LinkDelivery {
    let PeerPush { push, to, tracked, sent_by, traceparent } = delivery;
    let to = to.into_iter().map(put_target).collect();
    let (origin_node, origin_boot, origin_conn) =
        sent_by.map(|it| (it.at.node.to_string(), it.at.boot, it.conn)).unwrap_or_default();
    pb::LinkDelivery { push, to, tracked, traceparent, origin_node, origin_boot, origin_conn }
}

pub(super) fn delivery(sent: pb::LinkDelivery) -> Read<PeerPush> {
    let to = all(sent.to, target)?;
    let sent_by = NodeId::new(&sent.origin_node)
        .ok()
        .map(|node| SentBy { at: NodeBoot { node, boot: sent.origin_boot }, conn: sent.origin_conn });
    Ok(PeerPush {
        push: sent.push,
        to,
        tracked: sent.tracked,
        sent_by,
        traceparent: traceparent(sent.traceparent),
    })
}

fn put_target(target: Target) -> pb::LinkTarget {
    match target {
        Target::Conn(session) => put_session(session),
        Target::Anywhere(user) => pb::LinkTarget { user: user.to_string(), device: String::new(), epoch: 0 },
    }
}

fn target(sent: pb::LinkTarget) -> Read<Target> {
    if sent.device.is_empty() {
        return Ok(Target::Anywhere(user(&sent.user)?));
    }
    session(sent).map(Target::Conn)
}

pub(super) fn put_published_mark(mark: PublishedMark) -> pb::LinkPlace {
    pb::LinkPlace { owner: mark.owner, to: mark.to }
}

pub(super) fn published_mark(sent: pb::LinkPlace) -> PublishedMark {
    PublishedMark { owner: sent.owner, to: sent.to }
}

pub(super) fn put_archive_status(status: ArchiveStatus) -> pb::LinkSettled {
    let put = |it: PartitionOffset| pb::LinkUpTo { partition: it.partition, offset: it.offset };
    match status {
        ArchiveStatus::ArchivedUpTo(ArchivedUpTo { archived, unarchived }) => pb::LinkSettled {
            not_yet: Vec::new(),
            archived: archived.into_iter().map(put).collect(),
            owed: unarchived.into_iter().map(put).collect(),
        },
        ArchiveStatus::NotYet(marks) => pb::LinkSettled {
            not_yet: marks.into_iter().map(put_published_mark).collect(),
            ..pb::LinkSettled::default()
        },
    }
}

pub(super) fn archive_status(sent: pb::LinkSettled) -> ArchiveStatus {
    if !sent.not_yet.is_empty() {
        return ArchiveStatus::NotYet(sent.not_yet.into_iter().map(published_mark).collect());
    }
    let up_to = |it: pb::LinkUpTo| PartitionOffset { partition: it.partition, offset: it.offset };
    let all = |sent: Vec<pb::LinkUpTo>| sent.into_iter().map(up_to).collect();
    ArchiveStatus::ArchivedUpTo(ArchivedUpTo { archived: all(sent.archived), unarchived: all(sent.owed) })
}

pub(super) fn put_session(session: RoutedSession) -> pb::LinkTarget {
    let RoutedSession { user, device, epoch } = session;
    pb::LinkTarget { user: user.to_string(), device: device.to_string(), epoch }
}

pub(super) fn session(sent: pb::LinkTarget) -> Read<RoutedSession> {
    let device = device(&sent.device)?;
    Ok(RoutedSession { user: user(&sent.user)?, device, epoch: sent.epoch })
}

pub(super) fn put_landings(landings: Vec<Landing>) -> pb::LinkLanding {
    pb::LinkLanding { delivered: landings.into_iter().map(|it| it == Landing::Delivered).collect() }
}

pub(super) fn landings(sent: pb::LinkLanding) -> Vec<Landing> {
    let landing = |delivered| if delivered { Landing::Delivered } else { Landing::NotHere };
    sent.delivered.into_iter().map(landing).collect()
}

pub(super) fn put_ask(ask: Ask) -> pb::LinkAsk {
    let Ask { partition, offset, conn, request, key } = ask;
    let bytes = |of: fn(&AskKey) -> &Hash16| -> bytes::Bytes {
        key.as_ref().map(|key| of(key).to_vec().into()).unwrap_or_default()
    };
    let (key, body_hash) = (bytes(|key| &key.hash), bytes(|key| &key.body_hash));
    pb::LinkAsk { partition, offset, conn, request, key, body_hash }
}

pub(super) fn ask(sent: pb::LinkAsk) -> Read<Ask> {
    let pb::LinkAsk { partition, offset, conn, request, key, body_hash } = sent;
    // Callers of earlier versions send no key.
    let key = match (key.is_empty(), body_hash.is_empty()) {
        (true, true) => None,
        _ => Some(AskKey { hash: hash(&key)?, body_hash: hash(&body_hash)? }),
    };
    Ok(Ask { partition, offset, conn, request, key })
}

fn hash(bytes: &[u8]) -> Read<Hash16> {
    bytes.try_into().map_err(|_| Malformed("hash"))
}

pub(super) fn put_answer_status(status: AnswerStatus) -> pb::LinkWord {
    let body = match status {
        AnswerStatus::Answered(outcome) => WordBody::Outcome(put_outcome(outcome)),
        AnswerStatus::NotYet => WordBody::NotYet(pb::LinkReady {}),
        AnswerStatus::Forgotten => WordBody::Forgotten(pb::LinkReady {}),
        AnswerStatus::NotOwner => WordBody::NotOwner(pb::LinkReady {}),
    };
    pb::LinkWord { body: Some(body) }
}

pub(super) fn answer_status(sent: pb::LinkWord) -> Read<AnswerStatus> {
    Ok(match sent.body.ok_or(Malformed("answer status, perhaps of a newer version"))? {
        WordBody::Outcome(sent) => AnswerStatus::Answered(outcome(Some(sent))?),
        WordBody::NotYet(_) => AnswerStatus::NotYet,
        WordBody::Forgotten(_) => AnswerStatus::Forgotten,
        WordBody::NotOwner(_) => AnswerStatus::NotOwner,
    })
}

pub(super) fn put_best_effort(message: BestEffortMessage) -> pb::LinkStray {
    let (conversation, body) = match message {
        BestEffortMessage::GuardChanged => {
            let body = Some(StrayBody::GuardChanged(pb::LinkReady {}));
            return pb::LinkStray { body, ..Default::default() };
        }
        BestEffortMessage::RoomMessage { room, push, class, left_out } => {
            let (conversation, body) = (room.to_string(), Some(StrayBody::Talk(push)));
            return pb::LinkStray { conversation, room_class: class.into(), room_left_out: left_out, body };
        }
        BestEffortMessage::RoomLoss { room, count } => (room, StrayBody::Missed(count)),
        BestEffortMessage::RoomTally { room, tally } => (room, StrayBody::RoomTally(put_tally(&tally))),
        BestEffortMessage::Signal { conversation, users, frame } => {
            let users = users.iter().map(ToString::to_string).collect();
            (conversation, StrayBody::Signal(pb::LinkSignal { frame, users }))
        }
        BestEffortMessage::Notice { conversation, users, frame } => {
            let users = users.iter().map(ToString::to_string).collect();
            (conversation, StrayBody::Notice(pb::LinkSignal { frame, users }))
        }
        BestEffortMessage::Mark { conversation, user, seq, frame } => {
            (conversation, StrayBody::Mark(pb::LinkMark { frame, user: user.to_string(), seq }))
        }
        BestEffortMessage::FanOut { group, record } => (group, StrayBody::FanOut(record)),
        BestEffortMessage::BlocksChanged { conversation } => {
            (conversation, StrayBody::BlocksChanged(pb::LinkReady {}))
        }
    };
    pb::LinkStray { conversation: conversation.to_string(), body: Some(body), ..Default::default() }
}

fn put_tally(tally: &RoomTallyReport) -> pb::LinkRoomTally {
    let reaction =
        |it: &ReactionCount| pb::LinkReaction { kind: it.kind.as_str().to_owned(), count: it.count };
    let ReactionExchange { counts, is_first, is_last } = &tally.reactions;
    let (reactions, is_first, is_last) = (counts.iter().map(reaction).collect(), *is_first, *is_last);
    pb::LinkRoomTally { run: tally.run, members: tally.members, reactions, is_first, is_last }
}

/// Reads the numbers of a room; kinds that this version does not accept are left out.
fn tally(sent: pb::LinkRoomTally) -> RoomTallyReport {
    let reaction =
        |it: pb::LinkReaction| Some(ReactionCount { kind: ReactionKind::new(&it.kind)?, count: it.count });
    let counts = sent.reactions.into_iter().filter_map(reaction).take(REACTION_KINDS_MAX).collect();
    let reactions = ReactionExchange { counts, is_first: sent.is_first, is_last: sent.is_last };
    RoomTallyReport { run: sent.run, members: sent.members, reactions }
}

pub(super) fn best_effort(sent: pb::LinkStray) -> Read<BestEffortMessage> {
    let conversation = conversation(&sent.conversation);
    Ok(match sent.body.ok_or(Malformed("best-effort message, perhaps of a newer version"))? {
        StrayBody::Talk(push) => {
            let left_out = sent.room_left_out;
            let class = u8::try_from(sent.room_class).unwrap_or(CLASS_MAX).min(CLASS_MAX);
            BestEffortMessage::RoomMessage { room: conversation?, push, class, left_out }
        }
        StrayBody::RoomTally(sent) => {
            BestEffortMessage::RoomTally { room: conversation?, tally: Box::new(tally(sent)) }
        }
        StrayBody::Missed(count) => BestEffortMessage::RoomLoss { room: conversation?, count },
        StrayBody::Signal(pb::LinkSignal { frame, users }) => {
            let (conversation, users) = (conversation?, all(users, |name| user(&name))?);
            BestEffortMessage::Signal { conversation, users, frame }
        }
        StrayBody::Notice(pb::LinkSignal { frame, users }) => {
            let (conversation, users) = (conversation?, all(users, |name| user(&name))?);
            BestEffortMessage::Notice { conversation, users, frame }
        }
        StrayBody::Mark(pb::LinkMark { frame, user: owner, seq }) => {
            BestEffortMessage::Mark { conversation: conversation?, user: user(&owner)?, seq, frame }
        }
        StrayBody::FanOut(record) => BestEffortMessage::FanOut { group: conversation?, record },
        StrayBody::BlocksChanged(_) => BestEffortMessage::BlocksChanged { conversation: conversation? },
        StrayBody::GuardChanged(_) => BestEffortMessage::GuardChanged,
    })
}

//! Send: validates it, passes it through the chain, and releases one submission at a time.

use super::{
    Action, Alarm, Identity, Order, Ruling, Session, SessionLimits, State, Submit, SubmitRefusal,
    flights::Flight, notice,
};
use crate::{
    Code, Time,
    id::{ConversationId, ConversationKind, IdError, MsgId, UserId},
    machine::chain::{Chain, Offer, REMEMBERED_MAX},
    pb,
    record::mode::FLAGS_TO_SEND,
};
use bytes::Bytes;
use foldhash::{HashMap, HashMapExt};
use prost::Message;
use std::collections::VecDeque;

/// Estimated bytes of a held message besides its content.
const HELD_OVERHEAD_BYTES: usize = 512;

/// Estimated bytes of one conversation's count.
const COUNT_BYTES: usize = 200;

/// State of a session with a chain.
#[derive(Debug)]
pub(super) struct Ordered {
    pub(super) chain: Chain<Box<Submit>>,
    /// Send that found the hold full, with its `next_id`.
    pub(super) parked: Option<(MsgId, Box<Submit>)>,
    /// Next n of each conversation.
    counts: HashMap<ConversationId, u64>,
    /// Set after a temporary refusal: early messages are refused as well instead of being held.
    giving_back: Option<GivingBack>,
    /// Answered messages that are not saved; empty, or begins with an *unknown* one.
    unsaved: VecDeque<Unsaved>,
}

/// Temporary refusal of the expected message, which its successors share until it arrives again.
#[derive(Clone, Copy, Debug)]
struct GivingBack {
    code: Code,
    /// Time from which the client may send the refused message again.
    retry_at: Time,
    /// Time from which early messages are held again, so that a client that gives the message up is not stuck.
    until: Time,
}

/// Chained message that got *unknown*, or an answered one after it.
#[derive(Debug)]
struct Unsaved {
    done: MsgId,
    expected: MsgId,
    unknown: bool,
}

impl Ordered {
    /// Returns the bytes that the chain makes the node hold, with estimates for what is around the contents.
    pub(super) fn held_bytes(&self) -> usize {
        let parked = self.parked.as_ref().map_or(0, |(_, submit)| submit.content.len() + HELD_OVERHEAD_BYTES);
        let held = self.chain.held_bytes() + self.chain.held() * HELD_OVERHEAD_BYTES;
        held + parked + self.counts.capacity() * COUNT_BYTES
    }

    pub(super) fn new(chain: Chain<Box<Submit>>) -> Self {
        Self { chain, parked: None, counts: HashMap::new(), giving_back: None, unsaved: VecDeque::new() }
    }

    /// Takes the next n of a conversation, `None` if there are too many conversations.
    fn count(&mut self, conversation: &ConversationId, conversations_max: usize) -> Option<u64> {
        if let Some(next) = self.counts.get_mut(conversation) {
            *next += 1;
            return Some(*next - 1);
        }
        if self.counts.len() >= conversations_max {
            return None;
        }
        self.counts.insert(conversation.clone(), 1);
        Some(0)
    }

    /// Adds an answered message and saves the end of the answered prefix.
    ///
    /// *Unknown* does not count as an answer: the message may never have reached the log, and a later connection must
    /// send it before its successors.
    pub(super) fn add_answered(
        &mut self,
        done: MsgId,
        expected: MsgId,
        unknown: bool,
        out: &mut Vec<Action>,
    ) {
        self.unsaved.push_back(Unsaved { done, expected, unknown });
        self.save(out);
    }

    /// Marks an *unknown* message as answered, because the client has resent it.
    pub(super) fn resolve_unknown(&mut self, id: &MsgId, out: &mut Vec<Action>) {
        if let Some(unsaved) = self.unsaved.iter_mut().find(|it| it.done == *id) {
            unsaved.unknown = false;
            self.save(out);
        }
    }

    fn save(&mut self, out: &mut Vec<Action>) {
        while let Some(Unsaved { done, expected, .. }) = self.unsaved.pop_front_if(|it| !it.unknown) {
            out.push(Action::SaveChain { done, expected });
        }
        if self.unsaved.is_empty() {
            self.unsaved = VecDeque::new();
        }
    }

    /// Returns whether an *unknown* message prevents later ones from being saved.
    pub(super) fn is_stuck(&self) -> bool {
        !self.unsaved.is_empty()
    }

    /// Returns whether so many messages follow an *unknown* one that the client will not resend it.
    pub(super) fn is_stale(&self) -> bool {
        self.unsaved.len() > REMEMBERED_MAX
    }

    /// Replaces the successor `skipped` by `resumed_at`, where the chain continues.
    pub(super) fn relink(&mut self, skipped: &MsgId, resumed_at: &MsgId) {
        for it in self.unsaved.iter_mut().filter(|it| it.expected == *skipped) {
            it.expected = resumed_at.clone();
        }
    }

    /// Returns the last n of a conversation, so that the next message takes it.
    pub(super) fn uncount(&mut self, conversation: &ConversationId) {
        if let Some(next) = self.counts.get_mut(conversation) {
            *next = next.saturating_sub(1);
        }
    }
}

pub(super) type Refusal = (Code, String);

pub(super) fn bad_id(field: &str, error: &IdError) -> Refusal {
    (Code::BadId, format!("{field}: {error}"))
}

impl Session {
    /// Returns the next numbered submission. Poll until there is none, after every input; see the module documentation.
    pub fn poll_submit(
        &mut self,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) -> Option<Box<Submit>> {
        let submit = self.next_submit(limits, now, out);
        self.update_reading(limits, now);
        submit
    }

    /// Returns whether a submission waits to be polled. A driver that polls it later reads nothing meanwhile.
    pub fn has_submit(&self) -> bool {
        let is_ready = |it: &Ordered| it.chain.is_ready() || it.parked.is_some();
        matches!(self.state, State::Live)
            && (self.pending.is_some() || self.ordered.as_deref().is_some_and(is_ready))
    }

    fn next_submit(
        &mut self,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) -> Option<Box<Submit>> {
        while matches!(self.state, State::Live) && self.flights.len() < limits.in_flight_max {
            if let Some(submit) = self.pending.take() {
                return Some(self.launch(submit, None, limits, now));
            }
            let ordered = self.ordered.as_mut()?;
            if let Some(mut submit) = ordered.chain.poll_release(now) {
                let Some(n) = ordered.count(&submit.conversation, limits.chained_conversations_max) else {
                    self.close(Code::Resync, "too many conversations for one chain", out);
                    return None;
                };
                submit.order.n = n;
                submit.order.chained = true;
                let next_id = ordered.chain.expected().clone();
                return Some(self.launch(submit, Some(next_id), limits, now));
            }
            let (next_id, submit) = ordered.parked.take()?;
            if !self.offer(next_id, submit, true, limits, now, out) {
                return None;
            }
        }
        None
    }

    pub(super) fn handle_send(
        &mut self,
        id: u64,
        send: pb::Send,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        if !self.wants_read(limits) {
            return self.refuse(id, Code::Busy, "", limits, out);
        }
        match self.to_submit(id, send, limits) {
            Err((code, message)) => self.refuse(id, code, &message, limits, out),
            Ok((submit, None)) => self.pending = Some(submit),
            Ok((submit, Some(next_id))) => {
                self.offer(next_id, submit, false, limits, now, out);
            }
        }
    }

    /// Offers a Send to the chain. Returns false if the hold was full and the Send was parked.
    fn offer(
        &mut self,
        next_id: MsgId,
        submit: Box<Submit>,
        was_parked: bool,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(ordered) = self.ordered.as_mut() else { return true };
        let (id, msg_id, bytes) = (submit.id, submit.msg_id.clone(), submit.content.len());
        match ordered.chain.offer(msg_id.clone(), next_id.clone(), submit, bytes, now) {
            Offer::Ready => ordered.giving_back = None,
            Offer::Held => match ordered.giving_back {
                Some(refusal) if now < refusal.until => self.give_back(None, refusal, limits, now, out),
                _ => ordered.giving_back = None,
            },
            Offer::Done(mut submit) => {
                // A retry for certain, whatever `attempt` the client gave: compare it with all keys.
                submit.attempt = submit.attempt.max(1);
                self.pending = Some(submit);
            }
            Offer::Skipped(_) => {
                if ordered.chain.is_skipped(&msg_id) {
                    self.save_skip(msg_id, out);
                }
                self.refuse(id, Code::OrderSkipped, "", limits, out);
            }
            Offer::BadLink(_) => self.refuse(id, Code::BadLink, "", limits, out),
            Offer::Waiting(_) => {
                self.refuse(id, Code::NotYet, "this id is held until its predecessor arrives", limits, out);
            }
            Offer::Full { item, expected } => {
                ordered.parked = Some((next_id, item));
                if !was_parked {
                    let notice = notice(pb::NoticeKind::OrderWindowFull, expected.to_string(), String::new());
                    out.push(Action::Alarm(Alarm::OrderWindowFull { expected }));
                    self.push_frame(0, notice, out);
                }
                return false;
            }
        }
        true
    }

    /// Refuses everything behind a chained message that was refused with `code` before the log, in chain order, and
    /// goes on so until the message arrives again.
    ///
    /// Holding the successors instead would start the order timer, which skips an id that the broker itself asked the
    /// client to send later; and a full hold would stop reading before the message can arrive.
    pub(super) fn start_giving_back(
        &mut self,
        next_id: &MsgId,
        refusal: &SubmitRefusal<'_>,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        let retry_at = now + refusal.retry_after;
        let refusal =
            GivingBack { code: refusal.code, retry_at, until: retry_at + limits.chain.order_timeout };
        if let Some(ordered) = &mut self.ordered {
            ordered.giving_back = Some(refusal);
        }
        self.give_back(Some(next_id), refusal, limits, now, out);
    }

    fn give_back(
        &mut self,
        first: Option<&MsgId>,
        refusal: GivingBack,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        let Some(ordered) = &mut self.ordered else { return };
        let mut items = ordered.chain.give_back(first);
        items.extend(ordered.parked.take().map(|(_, item)| item));
        let refusal = SubmitRefusal {
            code: refusal.code,
            message: "an earlier message of the chain was refused: send that one first",
            retry_after: refusal.retry_at.since(now),
        };
        for item in items {
            self.refuse_submit(item.id, &refusal, limits, out);
        }
    }

    /// Saves the id as skipped, together with the first id that has no saved answer.
    pub(super) fn save_skip(&self, skipped: MsgId, out: &mut Vec<Action>) {
        let Some(ordered) = &self.ordered else { return };
        let first = ordered.unsaved.front().map(|it| &it.done).or(self.flights.first_chained());
        let expected = first.unwrap_or(ordered.chain.expected()).clone();
        out.push(Action::SaveSkip { skipped, expected });
    }

    fn launch(
        &mut self,
        mut submit: Box<Submit>,
        next_id: Option<MsgId>,
        limits: &SessionLimits,
        now: Time,
    ) -> Box<Submit> {
        if is_exempt(&submit.conversation) {
            self.frames.give_back(limits.frames_per_second);
        }
        let (conversation, msg_id) = (submit.conversation.clone(), submit.msg_id.clone());
        submit.ticket = self.flights.push(Flight {
            id: submit.id,
            conversation,
            msg_id,
            next_id,
            unknown: false,
            sent: now,
            gated: false,
            admitted: now,
        });
        submit
    }

    /// Validates a Send and builds its submission, with the successor if it is chained.
    fn to_submit(
        &self,
        id: u64,
        send: pb::Send,
        limits: &SessionLimits,
    ) -> Result<(Box<Submit>, Option<MsgId>), Refusal> {
        let identity = self.identity.as_ref().ok_or((Code::BadState, String::new()))?;
        let conversation = target(&send.conversation, &send.to_user, identity)?;
        let msg_id = MsgId::new(&send.msg_id).map_err(|error| bad_id("msgId", &error))?;
        let next_id = match send.next_id.as_str() {
            "" => None,
            text => Some(MsgId::new(text).map_err(|error| bad_id("nextId", &error))?),
        };
        if next_id.is_some() {
            if matches!(conversation.kind(), ConversationKind::Room(_)) {
                return Err((Code::BadLink, "a message to a room can't be chained: omit nextId".to_owned()));
            }
            if self.ordered.is_none() {
                let cure = "this session has no chain: set nextId or settings.chain in Hello";
                return Err((Code::BadLink, cure.to_owned()));
            }
        }
        check_flags(send.flags, &conversation)?;
        let content = encode(send.content, limits)?;
        let order = Order { epoch: identity.epoch, n: 0, chained: false };
        let (attempt, flags) = (send.attempt, send.flags);
        // A malformed one is ignored (SPEC section 5).
        let trace = if send.traceparent.is_empty() { None } else { send.traceparent.parse().ok() };
        let ruling = Ruling::default();
        let submit =
            Submit { ticket: 0, id, conversation, msg_id, attempt, content, order, flags, trace, ruling };
        Ok((Box::new(submit), next_id))
    }
}

/// Returns whether accepted sends to the conversation are exempt from the budget of frames. A message to a live room is
/// not: no log slows it down, and each is written to all members.
pub(super) fn is_exempt(conversation: &ConversationId) -> bool {
    !matches!(conversation.kind(), ConversationKind::Room(_))
}

/// Returns the conversation of a Send or Signal. The ledger and the driver check membership of groups and rooms.
pub(super) fn target(conversation: &str, to_user: &str, me: &Identity) -> Result<ConversationId, Refusal> {
    match (conversation, to_user) {
        ("", "") => Err((Code::BadContent, String::new())),
        ("", user) => {
            let user = UserId::addressable(user).map_err(|error| bad_id("toUser", &error))?;
            Ok(ConversationId::direct(&me.user, &user))
        }
        (key, "") => {
            let conversation = ConversationId::parse(key).map_err(|error| bad_id("conversation", &error))?;
            let direct = matches!(conversation.kind(), ConversationKind::Direct(..));
            // Those of an id that URLs can't name can be read, and get no more messages.
            if direct {
                ConversationId::addressable(key).map_err(|error| bad_id("conversation", &error))?;
            }
            if direct && !conversation.is_direct_of(&me.user) {
                return Err((Code::Forbidden, "this is a direct conversation of other users".to_owned()));
            }
            Ok(conversation)
        }
        _ => Err((Code::BadContent, "set either conversation or toUser, not both".to_owned())),
    }
}

/// Refuses flags that mean nothing, so that a later version can give them a meaning.
fn check_flags(flags: u32, conversation: &ConversationId) -> Result<(), Refusal> {
    let why = match conversation.kind() {
        _ if flags == 0 => return Ok(()),
        ConversationKind::Room(_) => "flags: a live room stores and counts nothing; omit them".to_owned(),
        _ if flags & !FLAGS_TO_SEND == 0 => return Ok(()),
        _ => format!("flags: {flags} has unknown bits; use a sum of 1 transient, 2 silent, 4 no notice"),
    };
    Err((Code::BadContent, why))
}

/// Checks a content and encodes it as it is stored.
pub(super) fn encode(
    content: Option<crate::content::Content>,
    limits: &SessionLimits,
) -> Result<Bytes, Refusal> {
    let content = content.ok_or((Code::BadContent, String::new()))?;
    let content = content.checked().map_err(|error| (Code::BadContent, format!("content: {error}")))?;
    match content.encoded_len() {
        n if n > limits.content_bytes_max as usize => Err((Code::ContentTooLarge, String::new())),
        _ => Ok(content.encode_to_vec().into()),
    }
}

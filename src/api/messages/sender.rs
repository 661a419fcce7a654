//! Sender of messages of the API: checks each as a client's send is checked, appends it, and waits for the ledger's answer.
//!
//! **Bounds.** [`IN_FLIGHT_MAX`] messages of the API are in flight on a node, [`BATCH_IN_FLIGHT_MAX`] of them from batches.
//! Others wait for their turn, in the order in which they came, and are refused `BUSY` when their time to begin is over. That
//! time ends when a message is queued for the log: whatever it waits for before, nothing of it was sent.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, DeviceId, MsgId, UserId},
    machine::{
        gate::{GateClass, LoadLevel},
        session::SubmitAnswer,
    },
    record::{Message, MessageMode, SenderOrder, body_hash},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

use super::{
    SendSource,
    form::{ContentForm, SendMessage, flags, message_id, target},
    recall::user_in,
};
use crate::{
    api::{Problem, ProblemDetails, now_ms},
    cluster::{BlockVerdict, Cluster},
    conversation::recall::Recaller,
    delivery::trace_steps,
    directory::Directory,
    ingest::{
        admin::{Admin, AwaitedAnswer},
        intake::{self, IntakeSlot},
    },
    limiter::Limiter,
    limits::RuleGuard,
    live::Live,
    load::LoadFigures,
    mail::ShardHandles,
    metrics::Metrics,
    room::Rooms,
    shard::ConnSettings,
    storms::SlowAdmission,
};

/// Device of messages of the API. No client can have it, because its name begins with a dot.
const API_DEVICE: &str = ".api";

/// Messages of the API that are in flight on a node.
const IN_FLIGHT_MAX: usize = 128;

/// Those of them that belong to batches, so that batches leave places for single messages.
const BATCH_IN_FLIGHT_MAX: usize = 96;

/// Longest time for a lookup of a block.
const BLOCK_LOOKUP_MAX: Duration = Duration::from_secs(3);

/// Longest time for the number of a message to a live room.
const ROOM_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest wait that a refusal names to a suspended sender, whose suspension may be lifted before its end.
const SUSPENDED_WAIT_MAX: Duration = Duration::from_secs(60);

/// Attempt number of an id that the caller gave: it may have been sent before, so it is compared with all remembered ids.
const MAY_BE_RETRY: u32 = 1;

/// Parts of a node that messages of the API pass.
pub struct SenderParts {
    /// Appender of records.
    pub admin: Admin,
    /// Ports of the node, bans, suspensions and block lists.
    pub cluster: Arc<Cluster>,
    /// Rules of limits.
    pub rules: Arc<RuleGuard>,
    /// Load of the node.
    pub load: Arc<LoadFigures>,
    /// Limits of contents, which are those of clients.
    pub conn_settings: Arc<Live<ConnSettings>>,
    /// Checker of recalls by users.
    pub recaller: Recaller,
    /// Live rooms.
    pub rooms: Arc<Rooms>,
    /// Directory of the shards that have members of a room.
    pub directory: Arc<Directory>,
    /// Mailbox handles of all shards.
    pub shards: ShardHandles,
    /// Metrics of the node.
    pub metrics: Metrics,
    /// Sender of messages without `from`.
    pub system_user: UserId,
    /// Limits of users, which signals of the API count in.
    pub limiter: Arc<Limiter>,
    /// Most members of a group that takes signals.
    pub small_group_max: usize,
    /// Whether an overloaded node refuses messages of the API.
    pub is_gated: bool,
}

/// Sender of messages of the API on a node.
pub struct MessageSender {
    pub(super) parts: SenderParts,
    pub(super) device: DeviceId,
    places: Semaphore,
    batch_places: Semaphore,
}

/// What the messages of one request have in common.
#[derive(Clone)]
pub(super) struct MessageDraft {
    sender: UserId,
    msg_id: MsgId,
    attempt: u32,
    content: Bytes,
    pub(super) flags: u32,
}

/// Message that has the right form.
pub(super) struct OutgoingMessage {
    pub(super) conversation: ConversationId,
    pub(super) sender: UserId,
    pub(super) msg_id: MsgId,
    pub(super) attempt: u32,
    pub(super) content: Bytes,
    /// Flags, as on the wire.
    pub(super) flags: u32,
    /// Whether the message is one of a batch.
    pub(super) is_of_batch: bool,
}

/// Message that was accepted, now or before.
pub(super) struct SentMessage {
    pub(super) conversation: ConversationId,
    pub(super) msg_id: MsgId,
    pub(super) seq: u64,
    pub(super) time: u64,
    pub(super) is_duplicate: bool,
    /// Whether it is in the log; messages to live rooms are not.
    pub(super) is_stored: bool,
}

/// Message whose answer is missing, or that has one already.
pub(super) enum BegunMessage<'a> {
    /// Outcome without the log.
    Done(Result<SentMessage, ProblemDetails>),
    /// Message in the log, or on its way there.
    InFlight(InFlightMessage<'a>),
}

/// Message in flight, which has a place until it is answered.
pub(super) struct InFlightMessage<'a> {
    conversation: ConversationId,
    msg_id: MsgId,
    answer: AwaitedAnswer<'a>,
    _places: TakenPlaces<'a>,
}

/// Places of a message among those in flight.
struct TakenPlaces<'a> {
    _of_node: SemaphorePermit<'a>,
    _of_batches: Option<SemaphorePermit<'a>>,
}

/// What a message has taken before it is queued.
struct AdmittedMessage<'a> {
    places: TakenPlaces<'a>,
    /// Capacity in the log; `None` for a live room.
    slot: Option<IntakeSlot<'a>>,
    /// Its entry in the slow mode of its group.
    slowed: Option<SlowAdmission>,
}

impl MessageDraft {
    /// Returns the message to a target.
    pub(super) fn addressed(self, to: &str) -> Result<OutgoingMessage, Problem> {
        let Self { sender, msg_id, attempt, content, flags } = self;
        let conversation = target(to, &sender)?;
        if flags != 0 && matches!(conversation.kind(), ConversationKind::Room(_)) {
            let why = "flags: a live room stores and counts nothing; omit them".to_owned();
            return Err(Problem(Code::BadContent, why));
        }
        Ok(OutgoingMessage { conversation, sender, msg_id, attempt, content, flags, is_of_batch: false })
    }
}

impl MessageSender {
    /// Creates the sender of a node.
    pub fn new(parts: SenderParts) -> Self {
        Self {
            parts,
            device: DeviceId::new(API_DEVICE).expect("a dot and letters are an id"),
            places: Semaphore::new(IN_FLIGHT_MAX),
            batch_places: Semaphore::new(BATCH_IN_FLIGHT_MAX),
        }
    }

    /// Returns whether the user is the sender of messages without `from`, as whom nobody can log in.
    pub fn is_system(&self, user: &UserId) -> bool {
        self.parts.system_user == *user
    }

    /// Checks the form of a message, whose id is `fresh` or a new one if the caller gave none.
    pub(super) fn prepare(
        &self,
        form: SendMessage,
        fresh: Option<MsgId>,
    ) -> Result<OutgoingMessage, Problem> {
        let draft = self.draft(form.from.as_deref(), form.content, form.request_id.as_deref(), fresh)?;
        MessageDraft { flags: flags(&form.flags), ..draft }.addressed(&form.to)
    }

    /// Checks the sender, the content and the id of messages. The sender is the system if none is named.
    pub(super) fn draft(
        &self,
        from: Option<&str>,
        content: ContentForm,
        request_id: Option<&str>,
        fresh: Option<MsgId>,
    ) -> Result<MessageDraft, Problem> {
        let sender = match from {
            Some(id) => user_in("from", id)?,
            None => self.parts.system_user.clone(),
        };
        let given = request_id.map(message_id).transpose()?;
        let attempt = if given.is_some() { MAY_BE_RETRY } else { 0 };
        let msg_id = given.or(fresh).unwrap_or_else(Admin::fresh_request_id);
        let bytes_max = self.parts.conn_settings.get().limits.content_bytes_max as usize;
        Ok(MessageDraft { sender, msg_id, attempt, content: content.encoded(bytes_max)?, flags: 0 })
    }

    /// Sends a message, which begins before `until`, and waits for its outcome.
    pub(super) async fn send(
        &self,
        message: OutgoingMessage,
        source: &SendSource,
        until: Instant,
    ) -> Result<SentMessage, ProblemDetails> {
        let begun = self.begin(message, source, until).await;
        self.finish(begun).await
    }

    /// Checks a message and appends it. Messages of one conversation are appended in the order of the calls, if each is made
    /// after the former one has returned.
    pub(super) async fn begin(
        &self,
        message: OutgoingMessage,
        source: &SendSource,
        until: Instant,
    ) -> BegunMessage<'_> {
        let msg_id = message.msg_id.clone();
        match self.append(message, source, until).await {
            Ok(begun) => begun,
            Err(refusal) => BegunMessage::Done(Err(refusal.with("msgId", msg_id.as_str()))),
        }
    }

    /// Waits for the outcome of a message.
    pub(super) async fn finish(&self, begun: BegunMessage<'_>) -> Result<SentMessage, ProblemDetails> {
        let outcome = match begun {
            BegunMessage::Done(outcome) => outcome,
            BegunMessage::InFlight(InFlightMessage { conversation, msg_id, answer, _places }) => {
                outcome(conversation, msg_id, answer.answer().await)
            }
        };
        let metrics = &self.parts.metrics;
        let counter = match &outcome {
            Ok(SentMessage { is_duplicate: false, .. }) => &metrics.api_messages_accepted,
            Ok(_) => &metrics.api_messages_duplicate,
            Err(refusal) if refusal.code() == Code::Unknown => &metrics.api_messages_unknown,
            Err(_) => &metrics.api_messages_refused,
        };
        counter.increment(1);
        outcome
    }

    /// Counts a message that was refused by its form, or because of one before it.
    pub(super) fn count_refused(&self) {
        self.parts.metrics.api_messages_refused.increment(1);
    }

    async fn append(
        &self,
        message: OutgoingMessage,
        source: &SendSource,
        until: Instant,
    ) -> Result<BegunMessage<'_>, ProblemDetails> {
        self.check_now(&message, source)?;
        let admitted = timeout_at(until, self.admit(&message, source)).await;
        let late = |_| Problem(Code::Busy, "too many messages of the API wait; it was not sent".to_owned());
        let AdmittedMessage { places, slot, slowed } = admitted.map_err(late)??;
        // The node, its log and the sender's rights may have changed meanwhile. Nothing waits from here to the queue.
        if let Err(refusal) = self.check_now(&message, source) {
            slowed.into_iter().for_each(SlowAdmission::withdraw);
            return Err(refusal);
        }
        self.parts.metrics.sends.increment(1);
        let Some(slot) = slot else {
            let published = timeout_at(until + ROOM_TIMEOUT, self.publish(message)).await;
            return Ok(BegunMessage::Done(published.map_err(late)?));
        };
        let (mode, is_single) = (self.mode(&message), !message.is_of_batch);
        let OutgoingMessage { conversation, sender, msg_id, attempt, content, flags, .. } = message;
        let record = Message {
            conversation: conversation.clone(),
            sender,
            device: self.device.clone(),
            msg_id: msg_id.clone(),
            attempt,
            body_hash: body_hash(&content),
            content,
            order: SenderOrder::WITHOUT_SESSION,
            flags,
            mode,
        };
        let (now, tracer) = (now_ms(), &self.parts.cluster.trace);
        let trace = trace_steps::note_received(tracer, source.trace.filter(|_| is_single), &record, now);
        let answer = self.parts.admin.enqueue(record, slot, trace, now);
        Ok(BegunMessage::InFlight(InFlightMessage { conversation, msg_id, answer, _places: places }))
    }

    /// Waits for everything that a message needs before it is queued. The rules come last, so that no refusal by anything
    /// else counts in them.
    async fn admit(
        &self,
        message: &OutgoingMessage,
        source: &SendSource,
    ) -> Result<AdmittedMessage<'_>, ProblemDetails> {
        let places = self.places(message.is_of_batch).await?;
        self.check_block(message).await?;
        let is_stored = !matches!(message.conversation.kind(), ConversationKind::Room(_));
        let slot = if is_stored { Some(self.parts.admin.slot(message.content.len()).await) } else { None };
        let slot = slot.transpose().map_err(|code| Problem(code, String::new()))?;
        let slowed = self.check_limits(message.counted(), source).await?;
        Ok(AdmittedMessage { places, slot, slowed })
    }

    /// Refuses a message that the node does not take now, or not from its sender.
    fn check_now(&self, message: &OutgoingMessage, source: &SendSource) -> Result<(), ProblemDetails> {
        if !MessageMode::of_flags(message.flags).is_ordinary() {
            self.check_rules()?;
        }
        self.check_sender(&message.sender)?;
        self.check_node(&message.conversation, source)
    }

    /// Refuses a sender that is banned or suspended, as a client would be.
    pub(super) fn check_sender(&self, sender: &UserId) -> Result<(), ProblemDetails> {
        let cluster = &self.parts.cluster;
        if cluster.bans.refusal_of_user(sender, Some(&self.device)).is_some() {
            return Err(Problem(Code::Banned, String::new()).into());
        }
        let left = cluster.suspensions.left(sender, &self.device, || cluster.guard.now_ms());
        match left {
            Some(left) => {
                let refusal = ProblemDetails::from(Problem(Code::Suspended, String::new()));
                Err(refusal.after(left.min(SUSPENDED_WAIT_MAX)))
            }
            None => Ok(()),
        }
    }

    /// Refuses messages while the node or its log can't take them.
    pub(super) fn check_node(
        &self,
        conversation: &ConversationId,
        source: &SendSource,
    ) -> Result<(), ProblemDetails> {
        self.check_load(source, GateClass::New)?;
        let cluster = &self.parts.cluster;
        if matches!(conversation.kind(), ConversationKind::Room(_)) {
            let Some(closed) = cluster.closed_rooms.get(conversation) else { return Ok(()) };
            self.parts.metrics.room_closed_refusals.increment(1);
            return Err(Problem(Code::RoomClosed, closed.record.reason).into());
        }
        match intake::refusal(cluster, conversation) {
            Some(code) => Err(Problem(code, String::new()).into()),
            None => Ok(()),
        }
    }

    /// Refuses a request of this class while the node drains or is overloaded.
    pub(in crate::api) fn check_load(
        &self,
        source: &SendSource,
        class: GateClass,
    ) -> Result<(), ProblemDetails> {
        if source.drainer.is_closing() {
            return Err(Problem(Code::Draining, "the node drains: send it to another one".to_owned()).into());
        }
        let SenderParts { load, is_gated, metrics, .. } = &self.parts;
        if *is_gated && !LoadLevel::admits_at(load.level(), class) {
            metrics.gate_sends_refused.increment(1);
            return Err(Problem(Code::Busy, "the node is overloaded: send it again later".to_owned()).into());
        }
        Ok(())
    }

    /// Waits for the turn of a message.
    async fn places(&self, is_of_batch: bool) -> Result<TakenPlaces<'_>, Problem> {
        let closed = |_| Problem(Code::Draining, String::new());
        let of_batches =
            if is_of_batch { Some(self.batch_places.acquire().await.map_err(closed)?) } else { None };
        let of_node = self.places.acquire().await.map_err(closed)?;
        Ok(TakenPlaces { _of_node: of_node, _of_batches: of_batches })
    }

    /// Refuses a message to a user who blocks its sender. Nobody blocks the system.
    async fn check_block(&self, message: &OutgoingMessage) -> Result<(), ProblemDetails> {
        if !self.is_blocked(&message.sender, &message.conversation).await? {
            return Ok(());
        }
        self.parts.metrics.blocked.increment(1);
        Err(Problem(Code::Forbidden, String::new()).into())
    }

    /// Returns whether the other user of a direct conversation blocks the sender.
    pub(super) async fn is_blocked(
        &self,
        sender: &UserId,
        conversation: &ConversationId,
    ) -> Result<bool, ProblemDetails> {
        let SenderParts { cluster, metrics, system_user, .. } = &self.parts;
        if sender == system_user || matches!(conversation.kind(), ConversationKind::Room(_)) {
            return Ok(false);
        }
        let mut verdict = cluster.block_verdict(sender, conversation);
        if verdict == BlockVerdict::Unknown {
            metrics.block_lookups.increment(1);
            let until = Instant::now() + BLOCK_LOOKUP_MAX;
            let found = cluster.look_up_block(sender, conversation, until).await;
            verdict = found.map_err(|error| {
                metrics.block_lookups_failed.increment(1);
                Problem(Code::StoreUnavailable, format!("the block list can't be read: {error}"))
            })?;
        }
        Ok(verdict != BlockVerdict::Allowed)
    }
}

/// Returns the outcome of a message by the ledger's answer.
fn outcome(
    conversation: ConversationId,
    msg_id: MsgId,
    answer: SubmitAnswer,
) -> Result<SentMessage, ProblemDetails> {
    let (seq, time, is_duplicate) = match answer {
        SubmitAnswer::Accepted { seq, time } => (seq, time, false),
        SubmitAnswer::Duplicate { seq, time } => (seq, time, true),
        SubmitAnswer::Refused { code, message } => {
            let refusal = ProblemDetails::from(Problem(code, message.into_owned()));
            return Err(refusal.with("msgId", msg_id.as_str()));
        }
        SubmitAnswer::Unknown | SubmitAnswer::AppendFailed => {
            let why = format!(
                "it is not known whether the message was accepted; send it again with requestId {msg_id}"
            );
            return Err(ProblemDetails::from(Problem(Code::Unknown, why)).with("msgId", msg_id.as_str()));
        }
    };
    Ok(SentMessage { conversation, msg_id, seq, time, is_duplicate, is_stored: true })
}

//! Best-effort messages from peers: passed to the shards without waiting. Losses of a room are reported to its members.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use prost::Message as _;
use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, ConversationKind, UserId},
    pb::{self, server_frame::Body},
};

use super::Peer;
use crate::{
    delivery::notices::post_notice,
    directory::ShardSet,
    large_group::subscriber::RecordSource,
    link::BestEffortMessage,
    log_limit::log_limited,
    mail::{Audience, Delivery, Item, Mail, Volatile},
    priorities::CLASS_MAX,
};

/// Unreported losses that are tracked, one per shard and room; further ones count only in the metrics.
const ROOM_LOSSES_MAX: usize = 4_096;

/// Messages that did not fit a shard's mailbox and are not reported yet, by kind.
pub(super) type RoomLosses = Mutex<BTreeMap<(usize, ConversationId, LossKind), u64>>;

/// Kind of a loss; each is reported separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LossKind {
    /// Messages in unknown number.
    Uncounted,
    /// Messages.
    Messages,
    /// Messages left out of the room, of which the report did not fit.
    LeftOut,
}

impl Peer {
    /// Passes messages, in order, to the shards with recipients; messages without local recipients are dropped.
    pub(super) fn deliver_best_effort(&self, messages: Vec<BestEffortMessage>) {
        self.report_missed();
        let mut marks: BTreeMap<usize, Vec<Delivery>> = BTreeMap::new();
        let mut frames: BTreeMap<usize, Vec<Delivery>> = BTreeMap::new();
        for message in messages {
            match message {
                BestEffortMessage::RoomMessage { room, push, class, left_out } => {
                    let to = self.members_of_room(&room);
                    // Decode only if there are recipients.
                    let push = (!to.is_empty() && !push.is_empty())
                        .then(|| room_push(&room, &push, class))
                        .flatten();
                    if left_out > 0 && !to.is_empty() {
                        add(&mut frames, to, Some(Delivery::left_out(&room, left_out)));
                    }
                    add(&mut frames, to, push);
                }
                BestEffortMessage::RoomTally { room, tally } => {
                    let has_members = !self.members_of_room(&room).is_empty();
                    if let Some(tallies) = self.tallies.as_ref().filter(|_| has_members) {
                        let refused = tallies.handle_report(&room, &tally, tallies.now());
                        self.metrics.room_tallies_refused.increment(refused as u64);
                    }
                }
                BestEffortMessage::RoomLoss { room, count } => {
                    let kind = if count > 0 { LossKind::Messages } else { LossKind::Uncounted };
                    self.members_of_room(&room)
                        .iter()
                        .for_each(|shard| self.note_missed(shard, &room, kind, count));
                }
                BestEffortMessage::Signal { conversation, users, frame } => {
                    self.signal(conversation, users, &frame)
                }
                BestEffortMessage::Notice { conversation, users, frame } => {
                    self.notice(conversation, users, &frame)
                }
                BestEffortMessage::FanOut { record, .. } => {
                    if let Some(subscriber) = &self.subscriber {
                        subscriber.records(RecordSource::Peer, [record]);
                    }
                }
                BestEffortMessage::BlocksChanged { .. } => {
                    if let Some((_, cluster)) = &self.cache {
                        cluster.blocks.request_refresh();
                    }
                }
                BestEffortMessage::GuardChanged => {
                    if let Some((_, cluster)) = &self.cache {
                        cluster.guard.ring();
                    }
                }
                BestEffortMessage::Mark { conversation, user, seq, frame } => {
                    let to = self.directory.user(&user);
                    add(&mut marks, to, marker_push(conversation, user, seq, &frame));
                }
            }
        }
        for (shard, marks) in marks {
            self.post_marks(shard, marks);
        }
        for (shard, frames) in frames {
            self.post_frames(shard, frames);
        }
        self.report_missed();
    }

    fn members_of_room(&self, room: &ConversationId) -> ShardSet {
        match room.kind() {
            ConversationKind::Room(_) => self.directory.conversation(room),
            ConversationKind::Direct(..) | ConversationKind::Group(_) => ShardSet::default(),
        }
    }

    fn signal(&self, conversation: ConversationId, users: Vec<UserId>, frame: &[u8]) {
        let Some(frame) = self::frame(frame, |body| matches!(body, Body::Signal(_))) else { return };
        let (to, audience, only) = match conversation.kind() {
            ConversationKind::Direct(..) => {
                let mut to = ShardSet::default();
                users.iter().for_each(|user| to.extend(self.directory.user(user)));
                (to, Audience::Users(users.into()), None)
            }
            // Recipients are in the sender's list and in this node's index; either may lag (ADR 12).
            ConversationKind::Group(_) => {
                let to = self.directory.conversation(&conversation);
                (to, Audience::Members, Some(Arc::new(users.into_iter().collect())))
            }
            ConversationKind::Room(_) => return,
        };
        let signal = Volatile { conversation, audience, only, frame, origin: None };
        for shard in to.iter() {
            let posted = self.handle(shard).is_none_or(|it| it.try_post(Mail::Signal(signal.clone())));
            self.metrics.signals_dropped.increment(u64::from(!posted));
        }
    }

    fn notice(&self, conversation: ConversationId, users: Vec<UserId>, frame: &[u8]) {
        let Some(frame) = self::frame(frame, |body| matches!(body, Body::Notice(_))) else { return };
        if let Some(shards) = self.shards.get() {
            let dropped = post_notice(&self.directory, shards, conversation, &users, frame);
            self.metrics.storm_notices_dropped.increment(dropped);
        }
    }

    fn handle(&self, shard: usize) -> Option<&crate::mail::ShardHandle> {
        self.shards.get().and_then(|shards| shards.get(shard))
    }

    fn post_marks(&self, shard: usize, marks: Vec<Delivery>) {
        let Some(handle) = self.handle(shard) else { return };
        let count = marks.len() as u64;
        if !handle.try_post(Mail::Deliver(marks.into_iter().map(Item::Push).collect())) {
            self.metrics.peer_marks_lost.increment(count);
        }
    }

    fn post_frames(&self, shard: usize, frames: Vec<Delivery>) {
        let Some(handle) = self.handle(shard) else { return };
        // Without capacity for all of them, those of the highest classes may fit.
        let is_posted = |lowest: &u8| {
            let part: Vec<Delivery> = frames.iter().filter(|it| it.class >= *lowest).cloned().collect();
            part.is_empty() || handle.try_post(Mail::RoomFrames(part))
        };
        let lowest = (0..=CLASS_MAX).find(is_posted).unwrap_or(CLASS_MAX + 1);
        for frame in frames.iter().filter(|it| it.class < lowest) {
            if frame.is_message() {
                self.metrics.count_shed(frame.class, 1);
                self.note_missed(shard, &frame.conversation, LossKind::Messages, 1);
            } else {
                self.note_missed(shard, &frame.conversation, LossKind::LeftOut, frame.left_out_count());
            }
        }
    }

    fn note_missed(&self, shard: usize, room: &ConversationId, kind: LossKind, count: u64) {
        let mut missed = self.missed.lock();
        let key = (shard, room.clone(), kind);
        if missed.len() < ROOM_LOSSES_MAX || missed.contains_key(&key) {
            *missed.entry(key).or_default() += count;
        }
    }

    /// Reports losses to the shards; a shard with a full mailbox gets the report with the next messages.
    fn report_missed(&self) {
        let mut missed = self.missed.lock();
        missed.retain(|(shard, room, kind), count| {
            let mail = || match kind {
                LossKind::Uncounted | LossKind::Messages => Mail::RoomLoss(room.clone(), *count),
                LossKind::LeftOut => Mail::RoomFrames(vec![Delivery::left_out(room, *count)]),
            };
            self.handle(*shard).is_some_and(|it| !it.try_post(mail()))
        });
    }
}

fn add(pushes: &mut BTreeMap<usize, Vec<Delivery>>, to: ShardSet, push: Option<Delivery>) {
    for shard in to.iter() {
        if let Some(push) = &push {
            pushes.entry(shard).or_default().push(push.clone());
        }
    }
}

fn room_push(room: &ConversationId, push: &[u8], class: u8) -> Option<Delivery> {
    let decoded = pb::Push::decode(push).ok().filter(|decoded| decoded.conversation == room.as_str());
    let Some(decoded) = decoded else {
        log_limited!(error, "undecodable room message from a peer; skipped");
        return None;
    };
    Some(Delivery {
        conversation: room.clone(),
        seq: decoded.seq,
        audience: Audience::Members,
        frame: Arc::new(PushFrame::from_push(push)),
        origin: None,
        tracked: false,
        class,
    })
}

fn marker_push(conversation: ConversationId, user: UserId, seq: u64, frame: &[u8]) -> Option<Delivery> {
    let is_mark = |body: &Body| matches!(body, Body::Receipt(_) | Body::Cleared(_) | Body::Hidden(_));
    let frame = self::frame(frame, is_mark)?;
    let audience = Audience::Users([user].into());
    Some(Delivery { conversation, seq, audience, frame, origin: None, tracked: false, class: 0 })
}

/// Decodes a frame, if it is of the expected kind.
fn frame(bytes: &[u8], is_expected: impl Fn(&Body) -> bool) -> Option<Arc<PushFrame>> {
    let frame = pb::ServerFrame::decode(bytes).ok().filter(|frame| frame.id == 0);
    let frame = frame.filter(|frame| frame.body.as_ref().is_some_and(is_expected));
    if frame.is_none() {
        log_limited!(error, "unexpected or undecodable frame from a peer; skipped");
    }
    frame.map(|frame| Arc::new(PushFrame::new(&frame)))
}

//! What may be lost, from a peer to this node's shards: never waits, and what a room loses here is told to its members.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use prost::Message as _;
use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, ConversationKind, UserId},
    pb::{self, server_frame::Body as Said},
};

use super::Peer;
use crate::{
    directory::ShardSet,
    large_group::subscriber::Source,
    link::Stray,
    mail::{Audience, Delivery, Item, Mail, Volatile},
};

/// Rooms whose losses are remembered; those of others are only counted.
const MISSED_MAX: usize = 4_096;

/// What the shards had no room for, and were not told of yet; apart from that what nobody has counted.
pub(super) type Missed = Mutex<HashMap<(usize, ConversationId, Counted), u64>>;

/// Whether it is known how much it is.
type Counted = bool;

impl Peer {
    /// Hands them to the shards that have somebody they are for, in order; nobody here → dropped.
    pub(super) fn take_strays(&self, strays: Vec<Stray>) {
        self.tell_missed();
        let mut items: BTreeMap<usize, Vec<Item>> = BTreeMap::new();
        for stray in strays {
            match stray {
                Stray::Talk { room, push } => {
                    let to = self.members_of_room(&room);
                    // Decoded where it is for somebody only.
                    let push = (!to.is_empty()).then(|| talk(&room, &push)).flatten();
                    add(&mut items, to, push);
                }
                Stray::Missed { room, count } => {
                    self.members_of_room(&room)
                        .iter()
                        .for_each(|shard| self.note_missed(shard, &room, count));
                }
                Stray::Signal { conversation, users, frame } => self.signal(conversation, users, &frame),
                Stray::FanOut { record, .. } => {
                    if let Some(crowds) = &self.crowds {
                        crowds.records(Source::Peer, [record]);
                    }
                }
                Stray::Mark { conversation, user, seq, frame } => {
                    let to = self.directory.user(&user);
                    add(&mut items, to, mark(conversation, user, seq, &frame));
                }
            }
        }
        for (shard, items) in items {
            self.post(shard, items);
        }
        self.tell_missed();
    }

    fn members_of_room(&self, room: &ConversationId) -> ShardSet {
        match room.kind() {
            ConversationKind::Room(_) => self.directory.conversation(room),
            ConversationKind::Direct(..) | ConversationKind::Group(_) => ShardSet::default(),
        }
    }

    fn signal(&self, conversation: ConversationId, users: Vec<UserId>, frame: &[u8]) {
        let Some(frame) = self::frame(frame, |said| matches!(said, Said::Signal(_))) else { return };
        let (to, audience, only) = match conversation.kind() {
            ConversationKind::Direct(..) => {
                let mut to = ShardSet::default();
                users.iter().for_each(|user| to.extend(self.directory.user(user)));
                (to, Audience::Users(users.into()), None)
            }
            // A member by the sender's word and by the index of this node, which may be behind each (DESIGN 6.4).
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

    fn handle(&self, shard: usize) -> Option<&crate::mail::ShardHandle> {
        self.shards.get().and_then(|shards| shards.get(shard))
    }

    fn post(&self, shard: usize, items: Vec<Item>) {
        let Some(handle) = self.handle(shard) else { return };
        if handle.has_room(items.iter().map(Item::weight).sum())
            && handle.try_post(Mail::Deliver(items.clone()))
        {
            return;
        }
        for item in items {
            let Item::Push(push) = item else { continue };
            if push.audience == Audience::Members {
                self.metrics.shed.increment(1);
                self.note_missed(shard, &push.conversation, 1);
            } else {
                self.metrics.peer_marks_lost.increment(1);
            }
        }
    }

    fn note_missed(&self, shard: usize, room: &ConversationId, count: u64) {
        let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (shard, room.clone(), count > 0);
        if missed.len() < MISSED_MAX || missed.contains_key(&key) {
            *missed.entry(key).or_default() += count;
        }
    }

    /// Has the shards tell what was lost; one that can't hear it now is told with the next strays.
    fn tell_missed(&self) {
        let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        missed.retain(|(shard, room, _), count| {
            self.handle(*shard).is_some_and(|it| !it.try_post(Mail::Missed(room.clone(), *count)))
        });
    }
}

fn add(items: &mut BTreeMap<usize, Vec<Item>>, to: ShardSet, push: Option<Delivery>) {
    for shard in to.iter() {
        if let Some(push) = &push {
            items.entry(shard).or_default().push(Item::Push(push.clone()));
        }
    }
}

fn talk(room: &ConversationId, push: &[u8]) -> Option<Delivery> {
    let said = pb::Push::decode(push).ok().filter(|said| said.conversation == room.as_str());
    let Some(said) = said else {
        tracing::error!("a peer sent a room message that can't be decoded");
        return None;
    };
    Some(Delivery {
        conversation: room.clone(),
        seq: said.seq,
        audience: Audience::Members,
        frame: Arc::new(PushFrame::from_push(push)),
        origin: None,
        tracked: false,
    })
}

fn mark(conversation: ConversationId, user: UserId, seq: u64, frame: &[u8]) -> Option<Delivery> {
    let is_mark = |said: &Said| matches!(said, Said::Receipt(_) | Said::Cleared(_) | Said::Hidden(_));
    let frame = self::frame(frame, is_mark)?;
    let audience = Audience::Users([user].into());
    Some(Delivery { conversation, seq, audience, frame, origin: None, tracked: false })
}

/// The frame, if it is one of the kind.
fn frame(bytes: &[u8], is_it: impl Fn(&Said) -> bool) -> Option<Arc<PushFrame>> {
    let frame = pb::ServerFrame::decode(bytes).ok().filter(|frame| frame.id == 0);
    let frame = frame.filter(|frame| frame.body.as_ref().is_some_and(is_it));
    if frame.is_none() {
        tracing::error!("a peer sent a frame that is not of its kind");
    }
    frame.map(|frame| Arc::new(PushFrame::new(&frame)))
}

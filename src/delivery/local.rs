//! Delivering what the ledger accepted: who is where, one encoded frame, one mail a shard, in log order.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, ConversationKind, DeviceId, UserId},
    machine::{ledger::Outcome, session::Answer},
    pb::{self, server_frame::Body as Frame},
    record::{MemberAction, MemberChange, Message, Recall, Record, Role},
    trace::TraceContext,
};

use self::holds::Held;
use super::{
    in_flight::Unanswered,
    router::{Parting, Reach},
};
use crate::{
    directory::{Directory, ShardSet},
    ingest::admin::{ADMIN_CONN, Pending},
    large_group::publisher::{Fan, Spread},
    link::{self, SentBy},
    mail::{Audience, ConnKey, Delivery, Item, Lag, Mail, Outdated, ShardHandle, ShardHandles},
    routes::NodeBoot,
};

mod holds;
mod large_group;

/// Said with the refusal of an id that was refused before, though it might be allowed now.
const REFUSED_BEFORE: &str = "this id was refused before: send the content under a new id";

/// Gathers what is to be told to the shards and sends it, one mail of a kind for each shard and batch; what is for other
/// nodes goes to their lanes.
pub struct Outbound {
    me: NodeBoot,
    directory: Arc<Directory>,
    shards: ShardHandles,
    pending: Arc<Pending>,
    /// None = there are no other nodes.
    reach: Option<Reach>,
    /// None = there are no other nodes, or nobody here owns a large group.
    spread: Option<Arc<Spread>>,
    fans: Vec<Fan>,
    far_answers: BTreeMap<NodeBoot, Vec<link::Answer>>,
    partings: Vec<Parting>,
    answers: Vec<Vec<(ConnKey, u64, Answer)>>,
    outdated: Vec<Vec<Outdated>>,
    items: Vec<Vec<Item>>,
}

impl Outbound {
    /// Nothing gathered yet. `shards` must be filled before the first [`Self::flush`].
    pub fn new(me: NodeBoot, directory: Arc<Directory>, shards: ShardHandles, pending: Arc<Pending>) -> Self {
        let (answers, outdated, items, partings) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (far_answers, fans, reach, spread) = (BTreeMap::new(), Vec::new(), None, None);
        Self {
            me,
            directory,
            shards,
            pending,
            reach,
            spread,
            fans,
            far_answers,
            partings,
            answers,
            outdated,
            items,
        }
    }

    /// The same, for a node among others.
    #[must_use]
    pub fn with_reach(mut self, reach: Reach) -> Self {
        self.reach = Some(reach);
        self
    }

    /// Whether there are other nodes: then who is told is to be named, because no node has everybody in its indexes.
    pub fn has_reach(&self) -> bool {
        self.reach.is_some()
    }

    /// The ledger's word on a record, for whoever appended it.
    pub fn outcome(&mut self, record: &Record, outcome: Outcome) {
        if self.is_mine(record) {
            self.answer_here(record.origin.conn, record.origin.request, outcome);
        } else if self.reach.is_some() {
            let to = NodeBoot { node: record.origin.node.clone(), boot: record.origin.boot };
            let (conn, request) = (record.origin.conn, record.origin.request);
            let answer = link::Answer { conn, request, outcome, traceparent: traceparent(record.trace) };
            self.far_answers.entry(to).or_default().push(answer);
        }
        // Otherwise an earlier run of this node: its clients are gone and retry by id.
    }

    /// The ledger's word on a record that this node appended, as its origin says.
    pub(crate) fn answer_here(&mut self, conn: u64, request: u64, outcome: Outcome) {
        if let Outcome::Void { newest } = outcome
            && conn != ADMIN_CONN
        {
            self.pending.unanswered().answered(conn, request);
            let key = ConnKey::unpack(conn);
            slot(&mut self.outdated, usize::from(key.shard)).push(Outdated { key, ticket: request, newest });
        } else if let Some(answer) = in_words(outcome) {
            self.answer(conn, request, answer);
        }
    }

    /// The answer to a record that this node appended and that has no outcome.
    pub fn answer_failed(&mut self, record: &Record, answer: Answer) {
        self.answer(record.origin.conn, record.origin.request, answer);
    }

    pub(crate) fn answer(&mut self, conn: u64, request: u64, answer: Answer) {
        self.pending.unanswered().answered(conn, request);
        if conn == ADMIN_CONN {
            self.pending.complete(request, answer);
            return;
        }
        let key = ConnKey::unpack(conn);
        slot(&mut self.answers, usize::from(key.shard)).push((key, request, answer));
    }

    /// The records of this node that wait for an answer.
    pub(crate) fn unanswered(&self) -> &Unanswered {
        self.pending.unanswered()
    }

    fn is_mine(&self, record: &Record) -> bool {
        record.origin.node == self.me.node && record.origin.boot == self.me.boot
    }

    /// A message that has its seq, for everybody in its conversation but the connection that sent it; `members` are those
    /// of a group, none = the indexes of this node know them.
    pub fn message(
        &mut self,
        record: &Record,
        message: &Message,
        seq: u64,
        tracked: bool,
        members: Named<'_>,
    ) {
        let frame = PushFrame::from_parts(
            message.conversation.as_str(),
            seq,
            message.sender.as_str(),
            message.msg_id.as_str(),
            record.received_at,
            &message.content,
        )
        .traced(record.trace);
        let mine = self.is_mine(record);
        let (audience, shards) = self.everybody(&message.conversation, members);
        let delivery = Delivery {
            conversation: message.conversation.clone(),
            seq,
            audience,
            frame: Arc::new(frame),
            origin: mine.then(|| ConnKey::unpack(record.origin.conn)),
            tracked,
        };
        let sender = || (message.sender.clone(), message.device.clone(), message.order.epoch);
        let at = || NodeBoot { node: record.origin.node.clone(), boot: record.origin.boot };
        let sent_by = || SentBy { at: at(), conn: record.origin.conn };
        self.part_with(&delivery, || Some((sender(), sent_by())));
        self.item(shards, Item::Push(delivery));
    }

    /// A recall that has its seq, for everybody in the conversation; who asked for it, too.
    pub fn recall(&mut self, record: &Record, recall: &Recall, seq: u64, tracked: bool, members: Named<'_>) {
        let (audience, shards) = self.everybody(&recall.conversation, members);
        let push = recall_push(record.received_at, recall, seq);
        let delivery = Delivery {
            conversation: recall.conversation.clone(),
            seq,
            audience,
            frame: Arc::new(PushFrame::new(&pb::ServerFrame { id: 0, body: Some(Frame::Push(push)) })),
            origin: None,
            tracked,
        };
        self.part_with(&delivery, || None);
        self.item(shards, Item::Push(delivery));
    }

    /// A change of members that has its seq: the index changes and everybody concerned is told, in order. `members` are
    /// those after it and those whom it removes.
    pub fn change(
        &mut self,
        record: &Record,
        change: &MemberChange,
        seq: u64,
        tracked: bool,
        members: Named<'_>,
    ) {
        let conversation = &change.conversation;
        let users: Arc<[UserId]> = change.users.clone().into();
        let shards = self.shards_of(&users);
        if matches!(change.action, MemberAction::Create | MemberAction::Join) {
            self.come_in(conversation, shards, &users);
        }
        let (audience, all) = self.everybody(conversation, members);
        let push = Delivery {
            conversation: conversation.clone(),
            seq,
            audience,
            frame: Arc::new(PushFrame::new(&pb::ServerFrame {
                id: 0,
                body: Some(Frame::Push(event_push(record.received_at, change, seq))),
            })),
            origin: None,
            tracked,
        };
        self.part_with(&push, || None);
        self.item(all, Item::Push(push));
        if matches!(change.action, MemberAction::Leave | MemberAction::Kick) {
            self.item(shards, Item::Part(conversation.clone(), users));
        }
    }

    /// A push that the owner of its partition, another node, has for sessions or users here. What it says of members moves
    /// the indexes here, too.
    pub(crate) fn push_of_peer(&mut self, push: &pb::Push, delivery: Delivery) {
        let event = push.event.as_ref();
        let kind = event.and_then(|event| pb::MemberChange::try_from(event.change).ok());
        let users: Arc<[UserId]> =
            event.into_iter().flat_map(|event| &event.users).filter_map(|id| UserId::new(id).ok()).collect();
        let shards = self.shards_of(&users);
        let conversation = delivery.conversation.clone();
        if matches!(kind, Some(pb::MemberChange::Created | pb::MemberChange::Joined)) {
            self.come_in(&conversation, shards, &users);
        }
        let told: Arc<[UserId]> = match &delivery.audience {
            Audience::Users(users) => Arc::clone(users),
            Audience::Sessions(sessions) => sessions.iter().map(|session| session.user.clone()).collect(),
            Audience::Members => Arc::default(),
        };
        let to = self.shards_of(&told);
        self.item(to, Item::Push(delivery));
        match kind {
            Some(pb::MemberChange::Left | pb::MemberChange::Kicked) => {
                self.item(shards, Item::Part(conversation, users));
            }
            Some(pb::MemberChange::Deleted) => self.item(to, Item::Part(conversation, told)),
            _ => {}
        }
    }

    /// Users come in: the conversation is held open until their shards know.
    fn come_in(&mut self, conversation: &ConversationId, shards: ShardSet, users: &Arc<[UserId]>) {
        for shard in shards.iter() {
            self.directory.hold_conversation(conversation, shard);
        }
        self.item(shards, Item::Join(conversation.clone(), Arc::clone(users)));
    }

    /// These users are in the conversation no more.
    pub fn part(&mut self, conversation: &ConversationId, users: Arc<[UserId]>) {
        let shards = self.directory.conversation(conversation);
        self.item(shards, Item::Part(conversation.clone(), users));
    }

    /// The groups of a user, for a connection that waits for them; holds them open until the shard has them.
    pub async fn memberships(&mut self, key: ConnKey, groups: Vec<ConversationId>) {
        self.flush().await;
        let shard = usize::from(key.shard);
        for group in &groups {
            self.directory.hold_conversation(group, shard);
        }
        let held = Held { directory: &self.directory, shard, groups: groups.clone() };
        self.post(shard, Mail::Memberships(key, groups)).await;
        held.are_the_shards();
    }

    /// Tells the shard of a connection something of its own.
    pub(crate) async fn tell(&mut self, key: ConnKey, mail: Mail) {
        self.post(usize::from(key.shard), mail).await;
    }

    /// Sends what was gathered.
    pub async fn flush(&mut self) {
        for shard in 0..self.items.len() {
            let items = std::mem::take(&mut self.items[shard]);
            if !items.is_empty() {
                self.deliver(shard, items).await;
            }
        }
        for shard in 0..self.answers.len() {
            let answers = std::mem::take(&mut self.answers[shard]);
            if !answers.is_empty() {
                self.post(shard, Mail::Answers(answers)).await;
            }
        }
        for shard in 0..self.outdated.len() {
            let outdated = std::mem::take(&mut self.outdated[shard]);
            if !outdated.is_empty() {
                self.post(shard, Mail::Outdated(outdated)).await;
            }
        }
        // Behind what the shards were told of the same groups when they were small.
        if let Some(spread) = self.spread.as_ref().filter(|_| !self.fans.is_empty()) {
            spread.hand(std::mem::take(&mut self.fans));
        }
        let Some(reach) = &self.reach else { return };
        for (to, answers) in std::mem::take(&mut self.far_answers) {
            reach.answers(&to, answers);
        }
        reach.pushes(std::mem::take(&mut self.partings)).await;
    }

    /// Who is in the conversation, and the shards that have some of them.
    fn everybody(&self, conversation: &ConversationId, members: Named<'_>) -> (Audience, ShardSet) {
        let users: Arc<[UserId]> = match (conversation.kind(), members) {
            (ConversationKind::Direct(a, b), _) => {
                let both = [a, b].into_iter().take(if a == b { 1 } else { 2 });
                both.filter_map(|id| UserId::new(id).ok()).collect()
            }
            (_, Some(members)) => Arc::clone(members),
            (_, None) => return (Audience::Members, self.directory.conversation(conversation)),
        };
        let shards = self.shards_of(&users);
        (Audience::Users(users), shards)
    }

    fn shards_of(&self, users: &[UserId]) -> ShardSet {
        let mut shards = ShardSet::default();
        users.iter().for_each(|user| shards.extend(self.directory.user(user)));
        shards
    }

    /// The same push for users on other nodes.
    fn part_with(&mut self, delivery: &Delivery, sender: impl FnOnce() -> Option<(Sender, SentBy)>) {
        let Audience::Users(users) = &delivery.audience else { return };
        if self.reach.is_some()
            && let Some(push) = delivery.frame.push()
        {
            let (users, tracked) = (Arc::clone(users), delivery.tracked);
            let trace = delivery.frame.trace().copied();
            let (except, sent_by) = sender().unzip();
            self.partings.push(Parting { push, users, tracked, except, sent_by, trace });
        }
    }

    fn item(&mut self, shards: ShardSet, item: Item) {
        for shard in shards.iter() {
            slot(&mut self.items, shard).push(item.clone());
        }
    }

    /// A shard that has no room left gets hints in place of pushes: it holds up neither the log nor the other shards.
    async fn deliver(&self, shard: usize, items: Vec<Item>) {
        let Some(handle) = self.handle(shard) else { return };
        let has_room = handle.has_room(items.iter().map(Item::weight).sum());
        let items = if has_room { items } else { hints(items) };
        let held = Held::new(&self.directory, shard, &items);
        self.post(shard, Mail::Deliver(items)).await;
        held.are_the_shards();
    }

    fn handle(&self, shard: usize) -> Option<&ShardHandle> {
        self.shards.get().and_then(|shards| shards.get(shard))
    }

    async fn post(&self, shard: usize, mail: Mail) {
        let Some(handle) = self.handle(shard) else { return };
        if handle.post(mail).await.is_err() {
            tracing::debug!(shard, "a shard has stopped; its clients will come back elsewhere");
        }
    }
}

/// How a trace goes to peers; empty for none.
pub(crate) fn traceparent(trace: Option<TraceContext>) -> String {
    trace.map(|trace| trace.to_string()).unwrap_or_default()
}

impl Drop for Outbound {
    fn drop(&mut self) {
        for (shard, items) in self.items.iter().enumerate() {
            drop(Held::new(&self.directory, shard, items));
        }
    }
}

/// The members of a group, where they have to be named.
pub type Named<'a> = Option<&'a Arc<[UserId]>>;

/// A session that sent something: user, device, conn epoch.
type Sender = (UserId, DeviceId, u64);

/// What a client hears of an outcome; nothing of what no client asked for.
fn in_words(outcome: Outcome) -> Option<Answer> {
    Some(match outcome {
        Outcome::Accepted { seq, time, .. } => Answer::Accepted { seq, time },
        Outcome::Duplicate { seq, time } => Answer::Duplicate { seq, time },
        Outcome::Refused { code } => Answer::Refused { code, message: "".into() },
        Outcome::RefusedBefore { code } => Answer::Refused { code, message: REFUSED_BEFORE.into() },
        // Only messages are, and those of connections are no answer but [`Mail::Outdated`].
        Outcome::Void { .. } => Answer::AppendFailed,
        Outcome::Noted => return None,
    })
}

fn slot<T>(lists: &mut Vec<Vec<T>>, index: usize) -> &mut Vec<T> {
    if lists.len() <= index {
        lists.resize_with(index + 1, Vec::new);
    }
    &mut lists[index]
}

/// What is left of items without their pushes: for each conversation up to where it goes on, between the changes of its
/// members, which stay.
fn hints(items: Vec<Item>) -> Vec<Item> {
    let mut kept: Vec<Item> = Vec::new();
    let mut open: HashMap<ConversationId, Vec<usize>> = HashMap::new();
    for item in items {
        let lag = match item {
            Item::Push(delivery) => Lag {
                conversation: delivery.conversation,
                max_seq: delivery.seq,
                audience: delivery.audience,
            },
            Item::Behind(lag) => lag,
            Item::Join(ref conversation, _)
            | Item::Part(ref conversation, _)
            | Item::Keep(ref conversation, _) => {
                open.remove(conversation);
                kept.push(item);
                continue;
            }
        };
        let places = open.entry(lag.conversation.clone()).or_default();
        // What is for others is another hint.
        let same = places.iter().copied().find(
            |at| matches!(kept.get(*at), Some(Item::Behind(earlier)) if earlier.audience == lag.audience),
        );
        match same.and_then(|at| kept.get_mut(at)) {
            Some(Item::Behind(earlier)) => earlier.max_seq = earlier.max_seq.max(lag.max_seq),
            _ => {
                places.push(kept.len());
                kept.push(Item::Behind(lag));
            }
        }
    }
    kept
}

/// A recall as everybody in the conversation sees it.
pub(crate) fn recall_push(time: u64, recall: &Recall, seq: u64) -> pb::Push {
    pb::Push {
        conversation: recall.conversation.to_string(),
        seq,
        sender: recall.by.as_ref().map(ToString::to_string).unwrap_or_default(),
        time,
        recall: Some(pb::RecallEvent { seq: recall.seq }),
        ..Default::default()
    }
}

/// A change of members as the members see it.
pub(crate) fn event_push(time: u64, change: &MemberChange, seq: u64) -> pb::Push {
    let kind = match change.action {
        MemberAction::Create => pb::MemberChange::Created,
        MemberAction::Join => pb::MemberChange::Joined,
        MemberAction::Leave => pb::MemberChange::Left,
        MemberAction::Kick => pb::MemberChange::Kicked,
        MemberAction::Role => pb::MemberChange::Role,
        MemberAction::Settings => pb::MemberChange::Settings,
        MemberAction::Delete => pb::MemberChange::Deleted,
        MemberAction::Mute => pb::MemberChange::Muted,
        MemberAction::Unmute => pb::MemberChange::Unmuted,
    };
    let event = pb::MemberEvent {
        change: kind as i32,
        users: change.users.iter().map(ToString::to_string).collect(),
        role: change.role.map(Role::word).unwrap_or_default().to_owned(),
        settings: change.settings.clone(),
    };
    pb::Push {
        conversation: change.conversation.to_string(),
        seq,
        sender: change.by.as_ref().map(ToString::to_string).unwrap_or_default(),
        time,
        event: Some(event),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests;

//! Validation of the entries of an export: their order, completeness, and agreement with heads and counts.

use std::collections::{BTreeMap, HashMap};

use tidegate_protocol::{
    id::{ConversationId, UserId},
    record::{Hash16, Position, Record},
};

use super::{
    ConversationLine, Entry, GuardLine, KeyLine, LogLine, MarkLine, MemberLine, PartitionLine, RowLine,
    body::{BodyLine, MessageLine},
};
use crate::store::UserState;

/// Users of one conversation whose messages are counted; the counts of further users are not checked.
const COUNTED_MAX: usize = 100_000;

/// Validator of a sequence of entries; it reports faults and continues after each.
#[derive(Default)]
pub struct DumpValidator {
    entries: u64,
    stage: usize,
    partitions: BTreeMap<u32, Partition>,
    conversation: Option<Conversation>,
    last_id: Option<ConversationId>,
    mark: Option<(UserId, ConversationId)>,
    settings: Option<UserId>,
    block: Option<(UserId, UserId)>,
    guard: Option<(u8, String)>,
    key: Option<(u32, Hash16)>,
    complete: bool,
}

struct Partition {
    position: Position,
    /// Offset after the last log record read.
    next: Option<u64>,
    /// Whether the record that identifies the position was read.
    is_identified: bool,
}

/// Conversation whose lines are being read.
struct Conversation {
    line: ConversationLine,
    stage: usize,
    user: Option<UserId>,
    device: Option<(UserId, String)>,
    members: u64,
    seq: u64,
    ordinal: u64,
    rows: bool,
    /// Messages sent by each user: as counted in the member's line, and as found in the rows so far.
    sent: HashMap<UserId, (u64, u64)>,
}

type FaultSink<'a> = &'a mut dyn FnMut(String);

impl Entry {
    /// Returns the section of the export that the entry belongs to; a conversation's lines are one section.
    const fn stage(&self) -> usize {
        match self {
            Self::TidegateExport(_) => 0,
            Self::Partition(_) => 1,
            Self::Log(_) => 2,
            Self::Conversation(_) | Self::Member(_) | Self::Device(_) | Self::Row(_) => 3,
            Self::Mark(_) => 4,
            Self::Settings(_) => 5,
            Self::Revocation(_) => 6,
            Self::Block(_) | Self::Guard(_) | Self::Key(_) => 7,
            Self::End(_) => 8,
        }
    }
}

impl DumpValidator {
    /// Returns whether the last line was read.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Reports the faults of the next entry, and of the section before it if that ended too early.
    pub fn next(&mut self, entry: &Entry, fault: FaultSink<'_>) {
        let stage = entry.stage();
        if self.complete {
            fault("there are more lines after the last one (`end`)".into());
        }
        if stage < self.stage || (self.entries == 0) != (stage == 0) {
            fault("the line is out of place".into());
        }
        if stage > 3 || matches!(entry, Entry::Conversation(_)) {
            self.end_conversation(fault);
        }
        if stage > 2 && self.stage <= 2 {
            self.end_log(fault);
        }
        self.stage = stage.max(self.stage);
        match entry {
            Entry::TidegateExport(_) => {}
            Entry::Partition(it) => self.partition(it, fault),
            Entry::Log(it) => self.log(it, fault),
            Entry::Conversation(it) => self.begin(it, fault),
            Entry::Member(_) | Entry::Device(_) | Entry::Row(_) => match &mut self.conversation {
                Some(conversation) => conversation.next(entry, fault),
                None => fault("the line belongs to no conversation".into()),
            },
            Entry::Mark(it) => self.mark(it, fault),
            Entry::Settings(it) => {
                if self.settings.as_ref().is_some_and(|last| *last >= it.user) {
                    fault(format!("the line with the settings of {} is out of order", it.user));
                }
                if let Err(error) = it.settings() {
                    fault(format!("a setting of {} is invalid ({error})", it.user));
                }
                self.settings = Some(it.user.clone());
            }
            Entry::Revocation(it) => {
                if let Err(why) = it.revocation() {
                    fault(format!("a revocation of {} is invalid: {why}", it.user));
                }
            }
            Entry::Block(it) => {
                let block = (it.user.clone(), it.other.clone());
                if self.block.as_ref().is_some_and(|last| *last >= block) {
                    fault(format!("the line with the block of {} by {} is out of order", it.other, it.user));
                }
                self.block = Some(block);
            }
            Entry::Guard(it) => self.guard(it, fault),
            Entry::Key(it) => self.key(it, fault),
            Entry::End(lines) => {
                if *lines != self.entries {
                    fault(format!("there are {} lines, the last one says {lines}", self.entries));
                }
                self.complete = true;
            }
        }
        self.entries += 1;
    }

    fn partition(&mut self, it: &PartitionLine, fault: FaultSink<'_>) {
        let (position, rules) = it.parts();
        if rules.keys_from > position.offset {
            fault(format!("partition {}: its rules belong to a later position", it.number));
        }
        let partition = Partition { position, next: None, is_identified: position == Position::START };
        if self.partitions.insert(it.number, partition).is_some() {
            fault(format!("partition {} appears twice", it.number));
        }
    }

    fn log(&mut self, it: &LogLine, fault: FaultSink<'_>) {
        let LogLine { partition: number, offset, record } = it;
        if Record::decode(record.clone().into()).is_err() {
            fault(format!("record {offset} of partition {number} can't be decoded: a node skips it"));
        }
        let Some(partition) = self.partitions.get_mut(number) else {
            // No owner has taken this partition over yet.
            let next = offset.checked_add(1);
            let partition = Partition { position: Position::START, next, is_identified: *offset == 0 };
            self.partitions.insert(*number, partition);
            return;
        };
        if partition.next.is_some_and(|next| next != *offset) {
            fault(format!("the log of partition {number} has a hole before record {offset}"));
        }
        if partition.position.offset == offset.saturating_add(1) {
            partition.is_identified = partition.position.matches(Some(record));
        }
        partition.next = offset.checked_add(1);
    }

    fn end_log(&mut self, fault: FaultSink<'_>) {
        for (number, partition) in &self.partitions {
            let from_start =
                partition.position != Position::START || partition.next.is_none_or(|next| next > 0);
            if !partition.is_identified || !from_start {
                fault(format!(
                    "the log of partition {number} lacks the record that identifies position {:?}",
                    partition.position
                ));
            }
        }
    }

    fn begin(&mut self, it: &ConversationLine, fault: FaultSink<'_>) {
        let ConversationLine { id, last_seq, messages, pruned_to, deleted_seq, .. } = it;
        if self.last_id.as_ref().is_some_and(|last| last >= id) {
            fault(format!("{id} is out of order"));
        }
        if messages.max(pruned_to).max(deleted_seq) > last_seq {
            fault(format!("{id} has more messages or more removed rows than assigned seqs"));
        }
        self.last_id = Some(id.clone());
        self.conversation = Some(Conversation {
            stage: 0,
            user: None,
            device: None,
            members: 0,
            seq: *pruned_to,
            ordinal: 0,
            rows: false,
            sent: HashMap::new(),
            line: it.clone(),
        });
    }

    fn end_conversation(&mut self, fault: FaultSink<'_>) {
        if let Some(conversation) = self.conversation.take() {
            conversation.end(fault);
        }
    }

    fn mark(&mut self, it: &MarkLine, fault: FaultSink<'_>) {
        let name = (it.user.clone(), it.conversation.clone());
        if self.mark.as_ref().is_some_and(|last| *last >= name) {
            fault(format!("the mark of {} in {} is out of order", it.user, it.conversation));
        }
        let UserState { mark, cleared, hidden, push, bound } = it.state();
        if push.is_none() && !it.push.is_empty() {
            fault(format!("the push preference of {} in {} is unknown", it.user, it.conversation));
        }
        let marks = [mark, cleared, bound.unwrap_or_default()];
        if marks.iter().any(|it| it.own > it.messages || it.messages > it.seq) {
            fault(format!("the mark of {} in {} has impossible counts", it.user, it.conversation));
        }
        let is_cleared = hidden.first().is_some_and(|it| it.seq <= cleared.seq);
        if is_cleared || !hidden.is_sorted_by(|a, b| a.seq < b.seq) {
            fault(format!(
                "the list of entries that {} has hidden in {} is out of order",
                it.user, it.conversation
            ));
        }
        self.mark = Some(name);
    }

    fn guard(&mut self, it: &GuardLine, fault: FaultSink<'_>) {
        let name = (it.kind, it.name.clone());
        if self.guard.as_ref().is_some_and(|last| *last >= name) {
            fault(format!("the entry {:?} of the guard is out of order", it.name));
        }
        if let Err(why) = it.entry() {
            fault(format!("the entry {:?} of the guard is invalid: {why}", it.name));
        }
        self.guard = Some(name);
    }

    fn key(&mut self, it: &KeyLine, fault: FaultSink<'_>) {
        if it.refused.is_some() != (it.seq == 0) {
            fault(format!("a key of record {} has a seq and a refusal, or neither", it.offset));
        }
        let name = (it.partition, it.key);
        if self.key.is_some_and(|last| last >= name) {
            fault(format!("a key of partition {} is out of order", it.partition));
        }
        let position = self.partitions.get(&it.partition).map_or(0, |partition| partition.position.offset);
        if it.offset >= position {
            fault(format!(
                "a key belongs to record {}, which partition {} has not archived",
                it.offset, it.partition
            ));
        }
        self.key = Some(name);
    }
}

impl Conversation {
    fn next(&mut self, entry: &Entry, fault: FaultSink<'_>) {
        let id = &self.line.id;
        let stage = match entry {
            Entry::Member(_) => 1,
            Entry::Device(_) => 2,
            _ => 3,
        };
        if stage < self.stage {
            fault(format!("{id}: the line is out of place"));
        }
        self.stage = stage;
        match entry {
            Entry::Member(it) => self.member(it, fault),
            Entry::Device(it) => {
                let name = Some((it.user.clone(), it.device.to_string()));
                if self.device >= name {
                    fault(format!("{id}: device {} of {} is out of order", it.device, it.user));
                }
                self.device = name;
            }
            Entry::Row(it) => self.row(it, fault),
            _ => {}
        }
    }

    fn member(&mut self, it: &MemberLine, fault: FaultSink<'_>) {
        let (id, user) = (&self.line.id, &it.user);
        if self.user.as_ref().is_some_and(|last| last >= user) {
            fault(format!("{id}: member {user} is out of order"));
        }
        if it.joined_seq.max(it.left_seq) > self.line.last_seq || it.sent > self.line.messages {
            fault(format!("{id}: member {user} is beyond the last seq, {}", self.line.last_seq));
        }
        let mut end = 0;
        let now = (it.joined_seq, if it.member().is_in() { u64::MAX } else { it.left_seq });
        let times = it.stays().map(|stay| (stay.joined_seq, stay.left_seq)).chain([now]);
        for (joined, left) in times {
            // A user who gets the whole history joins at seq 1, also when rejoining.
            if (joined <= end && joined != 1) || left <= end || left < joined {
                fault(format!("{id}: the stays of {user} overlap"));
            }
            end = left;
        }
        self.members += u64::from(it.member().is_in());
        self.user = Some(user.clone());
        if self.sent.len() < COUNTED_MAX {
            self.sent.insert(user.clone(), (it.sent, 0));
        }
    }

    fn row(&mut self, it: &RowLine, fault: FaultSink<'_>) {
        let id = &self.line.id;
        if it.seq != self.seq + 1 {
            let (seq, after) = (it.seq, self.seq);
            fault(match seq.cmp(&after) {
                std::cmp::Ordering::Greater => format!("{id}: rows {} to {} are missing", after + 1, seq - 1),
                std::cmp::Ordering::Equal => format!("{id}: row {seq} appears twice"),
                std::cmp::Ordering::Less => format!("{id}: row {seq} is out of order, after {after}"),
            });
        }
        // The ordinal of the first row after those that retention removed can't be checked: the earlier count is gone.
        let step = u64::from(it.body.is_message());
        if self.rows && it.ordinal != self.ordinal + step || it.ordinal > it.seq {
            fault(format!("{id}: row {} is message {}, after message {}", it.seq, it.ordinal, self.ordinal));
        }
        if let Err(error) = it.stored(id) {
            fault(format!("{id}: row {} contains an invalid id ({error})", it.seq));
        }
        match &it.body {
            // A message that is none of its sender's own has the count of those before it, if any.
            BodyLine::Message(message) if message.is_own(id) => self.own(it, message, fault),
            BodyLine::Message(_) => {}
            BodyLine::Recall(recall) if recall.seq >= it.seq => {
                fault(format!("{id}: row {} recalls row {}, which is not before it", it.seq, recall.seq));
            }
            BodyLine::Edit(edit) if edit.seq >= it.seq => {
                fault(format!("{id}: row {} edits row {}, which is not before it", it.seq, edit.seq));
            }
            BodyLine::Recall(_) | BodyLine::Edit(_) | BodyLine::Change(_) => {}
        }
        (self.seq, self.ordinal, self.rows) = (it.seq.max(self.seq), it.ordinal, true);
    }

    fn own(&mut self, it: &RowLine, message: &MessageLine, fault: FaultSink<'_>) {
        let (id, sender) = (&self.line.id, &message.sender);
        let all_counted = self.sent.len() < COUNTED_MAX;
        match self.sent.get_mut(sender) {
            Some((_, seen)) if *seen != 0 && it.own != *seen + 1 => {
                fault(format!("{id}: row {} is message {} of {sender}, after {seen}", it.seq, it.own));
                *seen = it.own;
            }
            Some((_, seen)) => *seen = it.own,
            None if all_counted => {
                fault(format!("{id}: row {} is from {sender}, who was never a member", it.seq));
            }
            None => {}
        }
    }

    fn end(self, fault: FaultSink<'_>) {
        let ConversationLine { id, last_seq, messages, members, .. } = self.line;
        if self.seq < last_seq {
            fault(format!("{id}: rows {} to {last_seq} are missing", self.seq + 1));
        }
        if self.seq > last_seq {
            fault(format!("{id}: there is a row {}, but seq {last_seq} is the last", self.seq));
        }
        if self.rows && self.ordinal != messages {
            fault(format!("{id}: its rows end at message {}, its head at {messages}", self.ordinal));
        }
        if self.members != members {
            fault(format!("{id}: it has {} members, its head says {members}", self.members));
        }
        let mut wrong: Vec<_> =
            self.sent.into_iter().filter(|(_, (stored, seen))| *seen != 0 && seen != stored).collect();
        wrong.sort_unstable();
        for (user, (stored, seen)) in wrong {
            fault(format!("{id}: {user} has sent {seen} messages, the member's row says {stored}"));
        }
    }
}

//! `Store` in memory: grows with every message, and is lost with the process.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ops::Bound,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tidegate_protocol::{
    id::{ConversationId, DeviceId, UserId},
    machine::ledger::{Delta, Device, Head, Key, Loaded, Member, Need, Pruned, Stay},
    record::{Body, Hash16, Position, Rules},
    settings::UserSettings,
};

mod blocks;
mod conversation_lists;
mod erasure;
mod feed;
mod group_lists;
mod guard;

use super::{
    ConversationSeq, Direction, Fence, GroupMembers, MemberView, Membership, Page, PageQuery, Personal,
    ReadClass, Scan, Snapshot, Store, StoreError, StoredRow, Summary, Takeover, UserState,
};
use crate::{bus::TopicId, clock::wall_ms, revocation::Revocation};

mod message_times;
mod revocations;

/// Store for tests and for nodes that keep messages in memory only.
pub struct MemoryStore {
    state: Mutex<State>,
    /// Clock of the store, for tests; `None` if it has none of its own.
    now_ms: Mutex<Option<u64>>,
    /// Wall clock, by which entries of the guard end.
    wall_ms: fn() -> u64,
    /// Whether archives write the feed.
    writes_feed: bool,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::with_clock(wall_ms)
    }
}

/// Copy of all that a store holds, as a backup or a lagging standby has it.
pub struct SavedStore(State);

#[derive(Clone, Default)]
struct State {
    partitions: HashMap<u32, Partition>,
    conversations: HashMap<ConversationId, Conversation>,
    /// Index of the conversations in which each user is or was a member.
    of_user: HashMap<UserId, BTreeSet<ConversationId>>,
    settings: HashMap<UserId, UserSettings>,
    /// Revocations by their numbers.
    revocations: BTreeMap<u64, Revocation>,
    /// Number of the newest revocation.
    newest_revocation: u64,
    blocks: blocks::AllBlocks,
    guard: guard::GuardRows,
    feed: feed::Feeds,
}

#[derive(Clone)]
struct Partition {
    topic: TopicId,
    fence: Fence,
    position: Position,
    rules: Rules,
    keys: HashMap<Hash16, Key>,
}

#[derive(Clone, Default)]
struct Conversation {
    /// `None` while only devices of refused senders have rows.
    head: Option<Head>,
    /// Partition of the log; `None` until the head is written.
    partition: Option<u32>,
    rows: BTreeMap<u64, StoredRow>,
    members: BTreeMap<UserId, Member>,
    /// Number of current members among `members`.
    members_in: u64,
    /// Earlier stays of users who rejoined, oldest first.
    stays: HashMap<UserId, Vec<Stay>>,
    user_states: HashMap<UserId, UserState>,
    devices: HashMap<(UserId, DeviceId), Device>,
}

impl MemoryStore {
    /// Creates an empty store with another wall clock, as a simulation has.
    pub fn with_clock(wall_ms: fn() -> u64) -> Self {
        Self { state: Mutex::default(), now_ms: Mutex::default(), wall_ms, writes_feed: true }
    }

    /// Makes archives count the entries of the feed, and write none.
    #[must_use]
    pub fn without_feed(mut self) -> Self {
        self.writes_feed = false;
        self
    }

    /// Gives the store a clock of its own, which stands still.
    pub fn set_now_ms(&self, now_ms: u64) {
        *self.now_ms.lock() = Some(now_ms);
    }

    /// Copies the state.
    pub fn save(&self) -> SavedStore {
        SavedStore(self.lock().clone())
    }

    /// Falls back to an earlier state, as after the promotion of a lagging standby.
    pub fn restore(&self, saved: SavedStore) {
        *self.lock() = saved.0;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Conversation {
    fn view(&self, user: &UserId) -> Option<MemberView> {
        Some(MemberView {
            member: *self.members.get(user)?,
            stays: self.stays.get(user).cloned().unwrap_or_default(),
            level: self.user_states.get(user).cloned().unwrap_or_default(),
        })
    }
}

impl State {
    fn owned(&self, partition: u32, fence: Fence) -> Result<&Partition, StoreError> {
        self.partitions.get(&partition).filter(|it| it.fence == fence).ok_or(StoreError::Fenced)
    }

    /// Returns the first row of the delta that already exists or is in the delta twice.
    fn conflict(&self, delta: &Delta) -> Option<(ConversationId, u64)> {
        let mut seen = HashSet::new();
        let taken = |(conversation, seq): &(&ConversationId, u64)| {
            let kept = self.conversations.get(*conversation);
            // Rows that retention removed count as existing, or their seqs would be assigned again.
            kept.is_some_and(|it| {
                it.rows.contains_key(seq) || it.head.as_ref().is_some_and(|head| *seq <= head.pruned_to)
            })
        };
        let mut rows = delta.rows.iter().filter_map(|row| Some((row.body.conversation()?, row.seq)));
        let (conversation, seq) = rows.find(|row| taken(row) || !seen.insert(*row))?;
        Some((conversation.clone(), seq))
    }

    fn conversation(&mut self, conversation: &ConversationId) -> &mut Conversation {
        self.conversations.entry(conversation.clone()).or_default()
    }

    fn apply(&mut self, partition: u32, delta: &Delta) {
        for row in &delta.rows {
            if let Some(conversation) = row.body.conversation() {
                let stored = StoredRow::new(row.clone());
                self.conversation(conversation).rows.insert(row.seq, stored);
            }
        }
        for edited in &delta.edited {
            if let Some(stored) = self.conversation(&edited.conversation).rows.get_mut(&edited.seq) {
                stored.edit(edited);
            }
        }
        for recalled in &delta.recalled {
            if let Some(stored) = self.conversation(&recalled.conversation).rows.get_mut(&recalled.seq) {
                stored.recalled = Some(recalled.by);
                if let Body::Message(message) = &mut stored.row.body {
                    message.content = Bytes::new();
                }
            }
        }
        for Pruned { conversation, up_to, .. } in &delta.pruned {
            let rows = &mut self.conversation(conversation).rows;
            *rows = rows.split_off(&up_to.saturating_add(1));
        }
        for (conversation, head) in &delta.heads {
            let kept = self.conversation(conversation);
            (kept.head, kept.partition) = (Some(head.clone()), Some(partition));
        }
        for (conversation, user, member) in &delta.members {
            let kept = self.conversation(conversation);
            let before = kept.members.insert(user.clone(), *member);
            kept.members_in -= u64::from(before.is_some_and(|it| it.is_in()));
            kept.members_in += u64::from(member.is_in());
            self.of_user.entry(user.clone()).or_default().insert(conversation.clone());
        }
        for (conversation, user, stay) in &delta.stays {
            self.conversation(conversation).stays.entry(user.clone()).or_default().push(*stay);
        }
        for (conversation, user, device, row) in &delta.devices {
            self.conversation(conversation).devices.insert((user.clone(), device.clone()), *row);
        }
    }

    fn summary(&self, conversation: &ConversationId, of: Option<&UserId>) -> Option<Summary> {
        let kept = self.conversations.get(conversation)?;
        let member_view = of.and_then(|user| kept.view(user));
        let archived = kept.partition.and_then(|it| self.partitions.get(&it)).map(|it| it.position.offset);
        kept.head.clone().map(|head| Summary { head, members: kept.members_in, member_view, archived })
    }

    fn look_up(&self, partition: &Partition, need: &Need) -> Loaded {
        let kept = |conversation| self.conversations.get(conversation);
        match need {
            Need::Head(id) => Loaded::Head(id.clone(), kept(id).and_then(|it| it.head.clone())),
            Need::Member(id, user) => {
                let member = kept(id).and_then(|it| it.members.get(user)).copied();
                Loaded::Member(id.clone(), user.clone(), member)
            }
            Need::Device(id, user, device) => {
                let row = kept(id).and_then(|it| it.devices.get(&(user.clone(), device.clone())));
                Loaded::Device(id.clone(), user.clone(), device.clone(), row.copied())
            }
            Need::Key(key) => Loaded::Key(*key, partition.keys.get(key).copied()),
            Need::Row(id, seq) => {
                let row = kept(id).and_then(|it| it.rows.get(seq)).map(StoredRow::head);
                Loaded::Row(id.clone(), *seq, row)
            }
        }
    }
}

fn content_bytes(stored: &StoredRow) -> usize {
    match &stored.row.body {
        Body::Message(message) => message.content.len(),
        _ => 0,
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn now_ms(&self) -> Result<Option<u64>, StoreError> {
        Ok(*self.now_ms.lock())
    }

    async fn take_over(&self, partition: u32, fence: Fence, topic: TopicId) -> Result<Takeover, StoreError> {
        let mut state = self.lock();
        let new = || Partition {
            topic,
            fence,
            position: Position::START,
            rules: Rules::default(),
            keys: HashMap::new(),
        };
        let kept = state.partitions.entry(partition).or_insert_with(new);
        if kept.position == Position::START {
            kept.topic = topic;
        }
        if kept.topic != topic {
            return Err(StoreError::LogReplaced(kept.topic));
        }
        kept.fence = fence;
        Ok(Takeover { position: kept.position, rules: kept.rules })
    }

    async fn archive(&self, partition: u32, fence: Fence, delta: &Delta) -> Result<(), StoreError> {
        let mut state = self.lock();
        let position = state.owned(partition, fence)?.position;
        if position == delta.to && delta.from != delta.to {
            return Ok(());
        }
        if position != delta.from {
            return Err(StoreError::PositionMismatch(position));
        }
        if let Some((conversation, seq)) = state.conflict(delta) {
            return Err(StoreError::Conflict(conversation, seq));
        }
        state.apply(partition, delta);
        state.feed.append(partition, delta, self.writes_feed);
        let kept = state.partitions.get_mut(&partition).expect("its fence was just read");
        kept.position = delta.to;
        kept.keys.extend(delta.keys.iter().copied());
        if kept.rules.keys_from != delta.rules.keys_from {
            kept.keys.retain(|_, key| key.offset >= delta.rules.keys_from);
        }
        kept.rules = delta.rules;
        Ok(())
    }

    async fn load(
        &self,
        partition: u32,
        fence: Fence,
        needs: &[Need],
    ) -> Result<Snapshot<Loaded>, StoreError> {
        let state = self.lock();
        let kept = state.owned(partition, fence)?;
        let rows = needs.iter().map(|need| state.look_up(kept, need)).collect();
        Ok(Snapshot { position: kept.position, rows })
    }

    async fn scan(&self, partition: u32, fence: Fence, scan: &Scan) -> Result<Snapshot<Loaded>, StoreError> {
        let state = self.lock();
        let kept = state.owned(partition, fence)?;
        let rows = match scan {
            Scan::Keys { from, after, limit } => {
                let here = |(hash, key): &(&Hash16, &Key)| {
                    key.offset >= *from && after.as_ref().is_none_or(|after| *hash > after)
                };
                let mut keys: Vec<_> = kept.keys.iter().filter(here).collect();
                keys.sort_unstable_by_key(|(hash, _)| **hash);
                let keys = keys.into_iter().take(*limit);
                keys.map(|(hash, key)| Loaded::Key(*hash, Some(*key))).collect()
            }
            Scan::Heads { after, limit, with_settings } => {
                let here = |id: &&ConversationId| after.as_ref().is_none_or(|after| *id > after);
                let mut ids: Vec<_> = state.conversations.keys().filter(here).collect();
                ids.sort_unstable();
                let heads =
                    ids.into_iter().filter_map(|id| Some((id, state.conversations[id].head.clone()?)));
                let heads = heads.filter(|(_, head)| !with_settings || !head.settings.is_empty());
                heads.take(*limit).map(|(id, head)| Loaded::Head(id.clone(), Some(head))).collect()
            }
        };
        Ok(Snapshot { position: kept.position, rows })
    }

    async fn memberships(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<Membership>, StoreError> {
        Ok(self.lock().memberships(user, after, limit))
    }

    async fn members(
        &self,
        conversation: &ConversationId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>, StoreError> {
        let state = self.lock();
        let Some(kept) = state.conversations.get(conversation) else { return Ok(Vec::new()) };
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let page = kept.members.range::<UserId, _>(range).filter(|(_, member)| member.is_in());
        Ok(page.take(limit).map(|(user, member)| (user.clone(), *member)).collect())
    }

    async fn summary(
        &self,
        conversation: &ConversationId,
        of: Option<&UserId>,
    ) -> Result<Option<Summary>, StoreError> {
        Ok(self.lock().summary(conversation, of))
    }

    async fn archived_without(
        &self,
        partition: u32,
        conversation: &ConversationId,
    ) -> Result<Option<u64>, StoreError> {
        let state = self.lock();
        if state.conversations.get(conversation).is_some_and(|it| it.head.is_some()) {
            return Ok(None);
        }
        Ok(Some(state.partitions.get(&partition).map_or(0, |it| it.position.offset)))
    }

    async fn save_marks(&self, changes: &[(UserId, ConversationId, Personal)]) -> Result<(), StoreError> {
        let mut state = self.lock();
        for (user, conversation, change) in changes {
            state.conversation(conversation).user_states.entry(user.clone()).or_default().apply(change);
        }
        Ok(())
    }

    async fn merge_settings(&self, user: &UserId, now: UserSettings) -> Result<UserSettings, StoreError> {
        let mut state = self.lock();
        let before = state.settings.get(user).copied().unwrap_or_default();
        let settings = now.over(before);
        if settings != before {
            state.settings.insert(user.clone(), settings);
        }
        Ok(settings)
    }

    async fn page(&self, conversation: &ConversationId, query: PageQuery) -> Result<Page, StoreError> {
        let state = self.lock();
        let Some(kept) = state.conversations.get(conversation) else {
            return Ok(Page { head: None, rows: Vec::new() });
        };
        let above = (Bound::Excluded(query.cursor), Bound::Unbounded);
        let mut rows: Box<dyn Iterator<Item = &StoredRow> + Send> = match query.direction {
            Direction::Forward => Box::new(kept.rows.range(above).map(|(_, row)| row)),
            Direction::Backward => Box::new(kept.rows.range(..query.cursor).rev().map(|(_, row)| row)),
        };
        let mut page = Page { head: kept.head.clone(), rows: Vec::new() };
        let mut bytes = 0;
        while page.rows.len() < query.limit {
            let Some(row) = rows.next() else { break };
            bytes += content_bytes(row);
            if !page.rows.is_empty() && bytes > query.max_bytes {
                break;
            }
            page.rows.push(row.clone());
        }
        Ok(page)
    }

    async fn rows_at(
        &self,
        conversation: &ConversationId,
        seqs: &[u64],
        max_bytes: usize,
    ) -> Result<Page, StoreError> {
        let state = self.lock();
        let Some(kept) = state.conversations.get(conversation) else {
            return Ok(Page { head: None, rows: Vec::new() });
        };
        let mut page = Page { head: kept.head.clone(), rows: Vec::new() };
        let mut bytes = 0;
        for row in seqs.iter().filter_map(|seq| kept.rows.get(seq)) {
            bytes += content_bytes(row);
            if !page.rows.is_empty() && bytes > max_bytes {
                break;
            }
            page.rows.push(row.clone());
        }
        Ok(page)
    }

    async fn newest(
        &self,
        ends: &[ConversationSeq],
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<Vec<StoredRow>>, StoreError> {
        let state = self.lock();
        let before = |end: &ConversationSeq| {
            let kept = state.conversations.get(&end.conversation);
            let newest = kept.into_iter().flat_map(|it| it.rows.range(..end.seq).rev().map(|(_, row)| row));
            let mut bytes = 0;
            let fits = |row: &&StoredRow| {
                bytes += content_bytes(row);
                bytes <= max_bytes
            };
            newest.take(limit).take_while(fits).cloned().collect()
        };
        Ok(ends.iter().map(before).collect())
    }

    async fn times(&self, rows: &[ConversationSeq]) -> Result<Vec<Option<u64>>, StoreError> {
        let state = self.lock();
        let row = |it: &ConversationSeq| state.conversations.get(&it.conversation)?.rows.get(&it.seq);
        Ok(rows.iter().map(|it| row(it).map(|stored| stored.row.time)).collect())
    }

    async fn summaries(
        &self,
        conversations: &[ConversationId],
        of: &UserId,
    ) -> Result<Vec<Option<Summary>>, StoreError> {
        let state = self.lock();
        Ok(conversations.iter().map(|id| state.summary(id, Some(of))).collect())
    }

    async fn group_members(
        &self,
        groups: &[ConversationId],
        listed_max: usize,
        _: ReadClass,
    ) -> Result<Vec<Option<GroupMembers>>, StoreError> {
        let state = self.lock();
        let members = |id: &ConversationId| {
            let kept = state.conversations.get(id)?;
            let head = kept.head.as_ref()?;
            let is_listed = kept.members_in <= listed_max as u64;
            let users = kept.members.iter().filter(|(_, member)| is_listed && member.is_in());
            let users = users.map(|(user, _)| user.clone()).collect();
            Some(GroupMembers { members: kept.members_in, last_seq: head.last_seq, users })
        };
        Ok(groups.iter().map(members).collect())
    }
}

//! `Store` over the embedded engine. The writer thread archives; reads use snapshots on threads that may block.
//!
//! Nothing is loaded at the start, so a restart takes as long as fjall needs to replay its newest journals.

use std::{ops::Bound, sync::Arc};

use async_trait::async_trait;
use fjall::{Readable as _, Snapshot as View};
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Delta, Head, Loaded, Member, Need},
    record::{Body, Hash16, Position},
    settings::UserSettings,
};

mod conversation_lists;
mod feed;
mod group_lists;
mod guard;
mod message_times;
mod revocations;

use crate::{
    bus::TopicId,
    embedded::{self, Database, DatabaseError, Engine, Pair},
    store::{
        ConversationSeq, Direction, Fence, GroupMembers, MemberView, Membership, Page, PageQuery, Personal,
        ReadClass, Scan, Snapshot, Store, StoreError, StoredRow, Summary, Takeover,
    },
};

/// Store of a single machine, in the same database as its log.
pub struct EmbeddedStore(pub(super) Arc<Engine>);

impl EmbeddedStore {
    /// Creates the store of an engine.
    pub fn new(engine: Arc<Engine>) -> Self {
        Self(engine)
    }
}

/// Reader of one snapshot of the database.
struct SnapshotReader<'a> {
    database: &'a Database,
    view: View,
}

impl<'a> SnapshotReader<'a> {
    fn new(database: &'a Database) -> Self {
        Self { database, view: database.snapshot() }
    }

    /// Returns the partition's position, or [`StoreError::Fenced`] if `fence` is not its fence.
    fn owned(&self, partition: u32, fence: Fence) -> Result<Position, StoreError> {
        let state = self.database.partition_state_in(&self.view, partition)?;
        let state = state.filter(|it| it.fence == fence).ok_or(StoreError::Fenced)?;
        Ok(state.position)
    }

    fn head(&self, id: &ConversationId) -> Result<Option<(Head, u64)>, DatabaseError> {
        let value = self.view.get(&self.database.state, embedded::head_key(id))?;
        value.map(|value| embedded::head(&value)).transpose()
    }

    fn member(&self, id: &ConversationId, user: &UserId) -> Result<Option<Member>, DatabaseError> {
        let value =
            self.view.get(&self.database.state, embedded::pair(Pair::Member, id.as_str(), user.as_str()))?;
        value.map(|value| embedded::member(&value)).transpose()
    }

    fn member_view(&self, id: &ConversationId, user: &UserId) -> Result<Option<MemberView>, DatabaseError> {
        let Some(member) = self.member(id, user)? else { return Ok(None) };
        let mut stays = Vec::new();
        if member.stays > 0 {
            for entry in self.view.prefix(&self.database.state, embedded::stays_prefix(id, user)) {
                stays.push(embedded::stay(&entry.value()?)?);
            }
        }
        let value = self.view.get(&self.database.state, embedded::mark_key(id, user))?;
        let level = value.map(|value| embedded::user_state(&value)).transpose()?.unwrap_or_default();
        Ok(Some(MemberView { member, stays, level }))
    }

    fn row(&self, id: &ConversationId, seq: u64) -> Result<Option<StoredRow>, DatabaseError> {
        let value = self.view.get(&self.database.rows, embedded::row_key(id, seq))?;
        value.map(|value| embedded::row(seq, &value)).transpose()
    }

    fn look_up(&self, partition: u32, need: Need) -> Result<Loaded, DatabaseError> {
        Ok(match need {
            Need::Head(id) => {
                let head = self.head(&id)?.map(|(head, _)| head);
                Loaded::Head(id, head)
            }
            Need::Member(id, user) => {
                let member = self.member(&id, &user)?;
                Loaded::Member(id, user, member)
            }
            Need::Device(id, user, device) => {
                let key = embedded::device_key(id.as_str(), user.as_str(), device.as_str());
                let value = self.view.get(&self.database.state, key)?;
                let row = value.map(|value| embedded::device(&value)).transpose()?;
                Loaded::Device(id, user, device, row)
            }
            Need::Key(hash) => {
                let value = self.view.get(&self.database.keys, embedded::key_key(partition, &hash))?;
                Loaded::Key(hash, value.map(|value| embedded::key(&value)).transpose()?)
            }
            Need::Row(id, seq) => {
                let row = self.row(&id, seq)?.map(|stored| stored.head());
                Loaded::Row(id, seq, row)
            }
        })
    }

    fn keys(
        &self,
        partition: u32,
        from: u64,
        after: Option<Hash16>,
        limit: usize,
    ) -> Result<Vec<Loaded>, DatabaseError> {
        let mut keys = Vec::new();
        let first = embedded::key_key(partition, &after.unwrap_or_default());
        let last = embedded::key_key(partition, &[u8::MAX; 16]);
        for entry in self.view.range(&self.database.keys, first..=last) {
            if keys.len() == limit {
                break;
            }
            let (hash, value) = entry.into_inner()?;
            let (hash, key) = (embedded::key_hash(&hash)?, embedded::key(&value)?);
            if key.offset >= from && after.is_none_or(|after| hash > after) {
                keys.push(Loaded::Key(hash, Some(key)));
            }
        }
        Ok(keys)
    }

    fn heads(
        &self,
        after: Option<&ConversationId>,
        limit: usize,
        with_settings: bool,
    ) -> Result<Vec<Loaded>, DatabaseError> {
        let mut heads = Vec::new();
        let start = after.map_or_else(|| b"h".to_vec(), embedded::head_key);
        for entry in self.view.range(&self.database.state, (Bound::Excluded(start), Bound::Unbounded)) {
            let (key, value) = entry.into_inner()?;
            let Some(id) = key.strip_prefix(b"h") else { break };
            if heads.len() == limit {
                break;
            }
            let id = std::str::from_utf8(id).map_err(|_| embedded::damaged())?;
            let head = embedded::head(&value)?.0;
            if !with_settings || !head.settings.is_empty() {
                heads.push(Loaded::Head(embedded::conversation_id(id)?, Some(head)));
            }
        }
        Ok(heads)
    }

    fn memberships(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<Membership>, DatabaseError> {
        let mut found = Vec::new();
        let start = embedded::pair(Pair::OfUser, user.as_str(), after.map_or("", |id| id.as_str()));
        for entry in self.view.range(&self.database.state, (Bound::Excluded(start), Bound::Unbounded)) {
            let key = entry.key()?;
            let Some(id) = embedded::second(&key, Pair::OfUser, user.as_str())? else { break };
            if found.len() == limit {
                break;
            }
            let id = embedded::conversation_id(id)?;
            if let (Some(member_view), Some((head, members))) =
                (self.member_view(&id, user)?, self.head(&id)?)
            {
                found.push(Membership { conversation: id, member_view, head, members });
            }
        }
        Ok(found)
    }

    fn members(
        &self,
        id: &ConversationId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>, DatabaseError> {
        let mut found = Vec::new();
        let start = embedded::pair(Pair::Member, id.as_str(), after.map_or("", UserId::as_str));
        for entry in self.view.range(&self.database.state, (Bound::Excluded(start), Bound::Unbounded)) {
            let (key, value) = entry.into_inner()?;
            let Some(user) = embedded::second(&key, Pair::Member, id.as_str())? else { break };
            if found.len() == limit {
                break;
            }
            let member = embedded::member(&value)?;
            if member.is_in() {
                found.push((embedded::user_id(user)?, member));
            }
        }
        Ok(found)
    }

    fn summary(&self, id: &ConversationId, of: Option<&UserId>) -> Result<Option<Summary>, DatabaseError> {
        let Some((head, members)) = self.head(id)? else { return Ok(None) };
        let member_view = of.map(|user| self.member_view(id, user)).transpose()?.flatten();
        Ok(Some(Summary { head, members, member_view, archived: None }))
    }

    fn archived_without(&self, partition: u32, id: &ConversationId) -> Result<Option<u64>, DatabaseError> {
        if self.head(id)?.is_some() {
            return Ok(None);
        }
        let state = self.database.partition_state_in(&self.view, partition)?;
        Ok(Some(state.map_or(0, |it| it.position.offset)))
    }

    fn settings(&self, user: &UserId) -> Result<UserSettings, DatabaseError> {
        let value = self.view.get(&self.database.state, embedded::user_settings_key(user))?;
        Ok(value.map(|value| embedded::user_settings(&value)).transpose()?.unwrap_or_default())
    }

    fn page(&self, id: &ConversationId, query: PageQuery) -> Result<Page, DatabaseError> {
        let rows = &self.database.rows;
        let head = self.head(id)?.map(|(head, _)| head);
        // Start above the pruned rows: a scan visits the tombstones of removed rows one by one.
        let first = head.as_ref().map_or(0, |head| head.pruned_to) + 1;
        let key = |seq: u64| embedded::row_key(id, seq.max(first));
        let mut entries: Box<dyn Iterator<Item = fjall::Guard>> = match query.direction {
            Direction::Forward => {
                Box::new(self.view.range(rows, key(query.cursor.saturating_add(1))..=key(u64::MAX)))
            }
            Direction::Backward => Box::new(self.view.range(rows, key(0)..key(query.cursor)).rev()),
        };
        let mut page = Page { head, rows: Vec::new() };
        let mut bytes = 0;
        while page.rows.len() < query.limit {
            let Some(entry) = entries.next() else { break };
            let (key, value) = entry.into_inner()?;
            let row = embedded::row(embedded::row_seq(&key)?, &value)?;
            bytes += content_bytes(&row);
            if !page.rows.is_empty() && bytes > query.max_bytes {
                break;
            }
            page.rows.push(row);
        }
        Ok(page)
    }

    fn rows_at(&self, id: &ConversationId, seqs: &[u64], max_bytes: usize) -> Result<Page, DatabaseError> {
        let mut page = Page { head: self.head(id)?.map(|(head, _)| head), rows: Vec::new() };
        let mut bytes = 0;
        for seq in seqs {
            let Some(row) = self.row(id, *seq)? else { continue };
            bytes += content_bytes(&row);
            if !page.rows.is_empty() && bytes > max_bytes {
                break;
            }
            page.rows.push(row);
        }
        Ok(page)
    }

    fn newest(
        &self,
        end: &ConversationSeq,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredRow>, DatabaseError> {
        let query = PageQuery { cursor: end.seq, direction: Direction::Backward, limit, max_bytes };
        let mut rows = self.page(&end.conversation, query)?.rows;
        // A page has its first row whatever its size.
        rows.retain(|row| content_bytes(row) <= max_bytes);
        Ok(rows)
    }

    fn group_members(
        &self,
        id: &ConversationId,
        listed_max: usize,
    ) -> Result<Option<GroupMembers>, DatabaseError> {
        let Some((head, members)) = self.head(id)? else { return Ok(None) };
        let listed = if members <= listed_max as u64 { listed_max } else { 0 };
        let users = self.members(id, None, listed)?.into_iter().map(|(user, _)| user).collect();
        Ok(Some(GroupMembers { members, last_seq: head.last_seq, users }))
    }
}

fn content_bytes(stored: &StoredRow) -> usize {
    match &stored.row.body {
        Body::Message(message) => message.content.len(),
        _ => 0,
    }
}

/// Returns the result for a dedup key that is not stored; `None` for other needs.
fn absent(need: Need) -> Option<Loaded> {
    if let Need::Key(hash) = need { Some(Loaded::Key(hash, None)) } else { None }
}

#[async_trait]
impl Store for EmbeddedStore {
    /// The store has the log itself.
    fn may_fall_back(&self) -> bool {
        false
    }

    async fn take_over(&self, partition: u32, fence: Fence, topic: TopicId) -> Result<Takeover, StoreError> {
        self.0.take_over(partition, fence, topic).await
    }

    async fn archive(&self, partition: u32, fence: Fence, delta: &Delta) -> Result<(), StoreError> {
        self.0.archive(partition, fence, delta.clone()).await
    }

    async fn load(
        &self,
        partition: u32,
        fence: Fence,
        needs: &[Need],
    ) -> Result<Snapshot<Loaded>, StoreError> {
        let needs = needs.to_vec();
        // Only the owner archives: a key that is new now is new in the snapshot too, if the fence is still the
        // caller's.
        let (position, new) = match self.0.surely_new(partition, fence, &needs) {
            Some((position, new)) => (Some(position), new),
            None => (None, vec![false; needs.len()]),
        };
        if let Some(position) = position.filter(|_| !new.contains(&false)) {
            return Ok(Snapshot { position, rows: needs.into_iter().filter_map(absent).collect() });
        }
        let load = move |database: &Database| {
            let reader = SnapshotReader::new(database);
            let position = reader.owned(partition, fence)?;
            let rows: Result<_, DatabaseError> = needs
                .into_iter()
                .zip(new)
                .map(|(need, new)| match absent(need.clone()).filter(|_| new) {
                    Some(row) => Ok(row),
                    None => reader.look_up(partition, need),
                })
                .collect();
            Ok(Snapshot { position, rows: rows? })
        };
        self.0.read(load).await
    }

    async fn scan(&self, partition: u32, fence: Fence, scan: &Scan) -> Result<Snapshot<Loaded>, StoreError> {
        let scan = scan.clone();
        let load = move |database: &Database| {
            let reader = SnapshotReader::new(database);
            let position = reader.owned(partition, fence)?;
            let rows = match scan {
                Scan::Keys { from, after, limit } => reader.keys(partition, from, after, limit)?,
                Scan::Heads { after, limit, with_settings } => {
                    reader.heads(after.as_ref(), limit, with_settings)?
                }
            };
            Ok(Snapshot { position, rows })
        };
        self.0.read(load).await
    }

    async fn memberships(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<Membership>, StoreError> {
        let (user, after) = (user.clone(), after.cloned());
        self.0.read(move |it| Ok(SnapshotReader::new(it).memberships(&user, after.as_ref(), limit)?)).await
    }

    async fn members(
        &self,
        conversation: &ConversationId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>, StoreError> {
        let (id, after) = (conversation.clone(), after.cloned());
        self.0.read(move |it| Ok(SnapshotReader::new(it).members(&id, after.as_ref(), limit)?)).await
    }

    async fn summary(
        &self,
        conversation: &ConversationId,
        of: Option<&UserId>,
    ) -> Result<Option<Summary>, StoreError> {
        let (id, of) = (conversation.clone(), of.cloned());
        self.0.read(move |it| Ok(SnapshotReader::new(it).summary(&id, of.as_ref())?)).await
    }

    async fn archived_without(
        &self,
        partition: u32,
        conversation: &ConversationId,
    ) -> Result<Option<u64>, StoreError> {
        let id = conversation.clone();
        self.0.read(move |it| Ok(SnapshotReader::new(it).archived_without(partition, &id)?)).await
    }

    async fn save_marks(&self, changes: &[(UserId, ConversationId, Personal)]) -> Result<(), StoreError> {
        self.0.save_marks(changes.to_vec()).await
    }

    /// Most logins change nothing, and only read. What others rely on is compared by the writer, because a read does not see
    /// a change that is being committed.
    async fn merge_settings(&self, user: &UserId, now: UserSettings) -> Result<UserSettings, StoreError> {
        if now.push.is_none() && now.presence.is_none() {
            let of = user.clone();
            let before = self.0.read(move |it| Ok(SnapshotReader::new(it).settings(&of)?)).await?;
            if now.over(before) == before {
                return Ok(before);
            }
        }
        self.0.save_settings(user.clone(), now).await
    }

    async fn page(&self, conversation: &ConversationId, query: PageQuery) -> Result<Page, StoreError> {
        let id = conversation.clone();
        self.0.read(move |it| Ok(SnapshotReader::new(it).page(&id, query)?)).await
    }

    async fn rows_at(
        &self,
        conversation: &ConversationId,
        seqs: &[u64],
        max_bytes: usize,
    ) -> Result<Page, StoreError> {
        let (id, seqs) = (conversation.clone(), seqs.to_vec());
        self.0.read(move |it| Ok(SnapshotReader::new(it).rows_at(&id, &seqs, max_bytes)?)).await
    }

    async fn newest(
        &self,
        ends: &[ConversationSeq],
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<Vec<StoredRow>>, StoreError> {
        let ends = ends.to_vec();
        let read = move |database: &Database| {
            let reader = SnapshotReader::new(database);
            let rows: Result<_, DatabaseError> =
                ends.iter().map(|end| reader.newest(end, limit, max_bytes)).collect();
            Ok(rows?)
        };
        self.0.read(read).await
    }

    async fn times(&self, rows: &[ConversationSeq]) -> Result<Vec<Option<u64>>, StoreError> {
        let rows = rows.to_vec();
        let read = move |database: &Database| {
            let reader = SnapshotReader::new(database);
            let time = |it: &ConversationSeq| Ok(reader.row(&it.conversation, it.seq)?.map(|it| it.row.time));
            let times: Result<_, DatabaseError> = rows.iter().map(time).collect();
            Ok(times?)
        };
        self.0.read(read).await
    }

    async fn summaries(
        &self,
        conversations: &[ConversationId],
        of: &UserId,
    ) -> Result<Vec<Option<Summary>>, StoreError> {
        let (ids, of) = (conversations.to_vec(), of.clone());
        let read = move |database: &Database| {
            let reader = SnapshotReader::new(database);
            let all: Result<_, DatabaseError> = ids.iter().map(|id| reader.summary(id, Some(&of))).collect();
            Ok(all?)
        };
        self.0.read(read).await
    }

    async fn group_members(
        &self,
        groups: &[ConversationId],
        listed_max: usize,
        _: ReadClass,
    ) -> Result<Vec<Option<GroupMembers>>, StoreError> {
        let groups = groups.to_vec();
        let read = move |database: &Database| {
            let reader = SnapshotReader::new(database);
            let all: Result<_, DatabaseError> =
                groups.iter().map(|id| reader.group_members(id, listed_max)).collect();
            Ok(all?)
        };
        self.0.read(read).await
    }
}

//! Row cache of the ledger, over the store; rows that are not archived yet are pinned.
//!
//! A row is cached (with a value, or as absent) or not cached. Invariant: an uncached row has not changed since the
//! archived position, so its value in any snapshot at or above that position is current.

mod evict;
mod weight;

use std::collections::{HashMap, VecDeque, hash_map::Entry};

use foldhash::fast::FixedState;

use super::rows::{Device, Head, Key, Loaded, Member, Need, Pruned, Recalled, Row, RowHead, Stay, Stop};
use crate::{
    id::{ConversationId, DeviceId, UserId},
    record::Hash16,
};

/// Number of archived row heads that a conversation keeps cached for recalls.
const ROW_HEADS_CACHED: usize = 64;

/// Cached row, `None` if the store has none.
#[derive(Clone, Debug)]
pub(super) struct Slot<T> {
    value: Option<T>,
    /// Offset after the record that changed the row; 0: unchanged since it was loaded.
    changed: u64,
}

impl<T> Slot<T> {
    const fn loaded(value: Option<T>) -> Self {
        Self { value, changed: 0 }
    }
}

#[derive(Debug)]
struct Conversation {
    head: Option<Slot<Head>>,
    users: HashMap<UserId, User, FixedState>,
    /// Row heads in ascending order of their seqs.
    rows: VecDeque<(u64, Slot<RowHead>)>,
    /// Offset of the last record that used the conversation.
    touched: u64,
}

#[derive(Debug, Default)]
struct User {
    member: Option<Slot<Member>>,
    /// Devices sorted by id; nearly always one or two.
    devices: Vec<(DeviceId, Slot<Device>)>,
    touched: u64,
}

/// Changes since the last delta was taken; of heads, members, devices and keys only the names.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    pub(super) rows: Vec<Row>,
    pub(super) recalled: Vec<Recalled>,
    pub(super) pruned: Vec<Pruned>,
    pub(super) stays: Vec<(ConversationId, UserId, Stay)>,
    heads: Vec<ConversationId>,
    members: Vec<(ConversationId, UserId)>,
    devices: Vec<(ConversationId, UserId, DeviceId)>,
    keys: Vec<Hash16>,
}

/// Changes of one delta, with the values of all rows.
pub(super) struct Changed {
    pub(super) fresh: Fresh,
    pub(super) heads: Vec<(ConversationId, Head)>,
    pub(super) members: Vec<(ConversationId, UserId, Member)>,
    pub(super) devices: Vec<(ConversationId, UserId, DeviceId, Device)>,
    pub(super) keys: Vec<(Hash16, Key)>,
}

#[derive(Debug)]
pub(super) struct Cache {
    seed: u64,
    conversations: HashMap<ConversationId, Conversation, FixedState>,
    /// Each conversation once, with the offset at which it was queued, in ascending order of the offsets. Eviction
    /// queues a conversation again that was used since, so that a use costs the hot path nothing.
    queue: VecDeque<(ConversationId, u64)>,
    keys: HashMap<Hash16, Slot<Key>, FixedState>,
    /// Each change or load of a key with its offset, in ascending order; only the last one of a key counts.
    key_queue: VecDeque<(Hash16, u64)>,
    /// Estimated heap of all of it.
    bytes: usize,
    /// Offset at the last eviction.
    evicted_at: u64,
    /// Offset from which the keys of all records are cached.
    pub(super) keys_complete_from: u64,
    pub(super) fresh: Fresh,
    /// Next offset when the last delta was taken.
    base: u64,
    /// Offset of the current record.
    pub(super) now: u64,
}

/// Result of a row lookup: an error if the row is not cached, `None` if there is no such row.
pub(super) type Lookup<'a, T> = Result<Option<&'a T>, Stop>;

/// Rows of a message's conversation, sender and device.
pub(super) type Sender<'a> = (Option<&'a Head>, Option<Member>, Option<Device>);

fn value<T>(slot: Option<&Slot<T>>) -> Lookup<'_, T> {
    slot.map(|slot| slot.value.as_ref()).ok_or(Stop::Missing)
}

impl Cache {
    pub(super) fn new(next: u64, seed: u64) -> Self {
        Self {
            seed,
            conversations: HashMap::with_hasher(FixedState::with_seed(seed)),
            queue: VecDeque::new(),
            keys: HashMap::with_hasher(FixedState::with_seed(seed)),
            key_queue: VecDeque::new(),
            bytes: 0,
            evicted_at: next,
            keys_complete_from: next,
            fresh: Fresh::default(),
            base: next,
            now: next,
        }
    }

    pub(super) fn head(&self, conversation: &ConversationId) -> Lookup<'_, Head> {
        value(self.conversations.get(conversation).and_then(|it| it.head.as_ref()))
    }

    pub(super) fn member(&self, conversation: &ConversationId, user: &UserId) -> Lookup<'_, Member> {
        let user = self.conversations.get(conversation).and_then(|it| it.users.get(user));
        value(user.and_then(|it| it.member.as_ref()))
    }

    pub(super) fn device(
        &self,
        conversation: &ConversationId,
        user: &UserId,
        device: &DeviceId,
    ) -> Lookup<'_, Device> {
        let user = self.conversations.get(conversation).and_then(|it| it.users.get(user));
        value(user.and_then(|it| it.device(device)))
    }

    pub(super) fn key(&self, key: &Hash16) -> Lookup<'_, Key> {
        value(self.keys.get(key))
    }

    pub(super) fn row(&self, conversation: &ConversationId, seq: u64) -> Lookup<'_, RowHead> {
        value(self.conversations.get(conversation).and_then(|it| it.row(seq)))
    }

    /// Looks up all rows that a message needs in one access, and marks them as used.
    pub(super) fn sender(
        &mut self,
        conversation: &ConversationId,
        user: &UserId,
        device: &DeviceId,
    ) -> Result<Sender<'_>, Stop> {
        let conversation = self.conversations.get_mut(conversation).ok_or(Stop::Missing)?;
        conversation.touched = self.now;
        let user = conversation.users.get_mut(user).ok_or(Stop::Missing)?;
        user.touched = self.now;
        let member = value(user.member.as_ref())?.copied();
        let device = value(user.device(device))?.copied();
        Ok((value(conversation.head.as_ref())?, member, device))
    }

    pub(super) fn set_head(&mut self, id: &ConversationId, head: Head) {
        let (changed, base) = (self.now + 1, self.base);
        let slot = &mut self.conversation(id).head;
        let weighs = weight::settings_change(slot.as_ref().and_then(|slot| slot.value.as_ref()), &head);
        let is_first = put(slot, head, changed, base);
        self.bytes = self.bytes.saturating_add_signed(weighs);
        if is_first {
            self.fresh.heads.push(id.clone());
        }
    }

    pub(super) fn set_member(&mut self, id: &ConversationId, user: &UserId, member: Member) {
        let (changed, base) = (self.now + 1, self.base);
        let slot = &mut self.user(id, user).member;
        if put(slot, member, changed, base) {
            self.fresh.members.push((id.clone(), user.clone()));
        }
    }

    pub(super) fn set_device(&mut self, id: &ConversationId, user: &UserId, device: &DeviceId, row: Device) {
        let (changed, base) = (self.now + 1, self.base);
        let (slot, is_new) = self.user(id, user).device_mut(device);
        let first = slot.changed <= base;
        *slot = Slot { value: Some(row), changed };
        if is_new {
            self.bytes += weight::device(device);
        }
        if first {
            self.fresh.devices.push((id.clone(), user.clone(), device.clone()));
        }
    }

    pub(super) fn set_key(&mut self, hash: Hash16, key: Key) {
        let changed = self.now + 1;
        let before = self.keys.insert(hash, Slot { value: Some(key), changed });
        self.bytes += weight::QUEUED_KEY + if before.is_none() { weight::KEY } else { 0 };
        if before.is_none_or(|slot| slot.changed <= self.base) {
            self.fresh.keys.push(hash);
        }
        self.key_queue.push_back((hash, changed));
    }

    pub(super) fn set_row(&mut self, id: &ConversationId, seq: u64, row: RowHead) {
        let changed = self.now + 1;
        if self.conversation(id).put_row(seq, Slot { value: Some(row), changed }) {
            self.bytes += weight::ROW;
        }
    }

    fn conversation(&mut self, id: &ConversationId) -> &mut Conversation {
        let Self { conversations, queue, bytes, seed, now, .. } = self;
        // `entry` would clone the id on every call, although only the first one needs it.
        if !conversations.contains_key(id) {
            *bytes += weight::conversation(id);
            queue.push_back((id.clone(), *now));
            conversations.insert(id.clone(), Conversation::new(*seed, *now));
        }
        conversations.get_mut(id).expect("the conversation exists or was just inserted")
    }

    fn user(&mut self, id: &ConversationId, user: &UserId) -> &mut User {
        let now = self.now;
        if self.conversation(id).users.contains_key(user) {
            return self.known_user(id, user);
        }
        self.bytes += weight::user(user);
        let new = User { touched: now, ..User::default() };
        self.conversation(id).users.insert(user.clone(), new);
        self.known_user(id, user)
    }

    fn known_user(&mut self, id: &ConversationId, user: &UserId) -> &mut User {
        let conversation = self.conversations.get_mut(id);
        conversation.and_then(|it| it.users.get_mut(user)).expect("the user exists or was just inserted")
    }

    /// Returns whether this row is cached, with a value or as absent.
    pub(super) fn contains(&self, need: &Need) -> bool {
        match need {
            Need::Head(id) => self.head(id).is_ok(),
            Need::Member(id, user) => self.member(id, user).is_ok(),
            Need::Device(id, user, device) => self.device(id, user, device).is_ok(),
            Need::Key(hash) => self.key(hash).is_ok(),
            Need::Row(id, seq) => self.row(id, *seq).is_ok(),
        }
    }

    /// Caches a row of the store. A row that is already cached stays unchanged, because it may be newer.
    pub(super) fn load(&mut self, row: Loaded) {
        match row {
            Loaded::Head(id, row) => {
                let head = &mut self.conversation(&id).head;
                if head.is_none() {
                    let weighs = row.as_ref().map_or(0, weight::settings);
                    *head = Some(Slot::loaded(row));
                    self.bytes += weighs;
                }
            }
            Loaded::Member(id, user, row) => {
                self.user(&id, &user).member.get_or_insert(Slot::loaded(row));
            }
            Loaded::Device(id, user, device, row) => {
                let (slot, is_new) = self.user(&id, &user).device_mut(&device);
                if is_new {
                    *slot = Slot::loaded(row);
                    self.bytes += weight::device(&device);
                }
            }
            Loaded::Key(hash, row) => {
                if let Entry::Vacant(entry) = self.keys.entry(hash) {
                    entry.insert(Slot::loaded(row));
                    self.bytes += weight::KEY + weight::QUEUED_KEY;
                    self.key_queue.push_back((hash, self.now));
                }
            }
            Loaded::Row(id, seq, row) => {
                let conversation = self.conversation(&id);
                if conversation.row(seq).is_none() && conversation.put_row(seq, Slot::loaded(row)) {
                    self.bytes += weight::ROW;
                }
            }
        }
    }

    pub(super) fn take(&mut self, next: u64, archived: u64) -> Changed {
        let mut fresh = std::mem::take(&mut self.fresh);
        self.base = next;
        let heads: Vec<_> = std::mem::take(&mut fresh.heads)
            .into_iter()
            .filter_map(|id| self.head(&id).ok().flatten().cloned().map(|row| (id, row)))
            .collect();
        let members = std::mem::take(&mut fresh.members)
            .into_iter()
            .filter_map(|(id, user)| {
                self.member(&id, &user).ok().flatten().copied().map(|row| (id, user, row))
            })
            .collect();
        let devices = std::mem::take(&mut fresh.devices)
            .into_iter()
            .filter_map(|(id, user, device)| {
                let row = self.device(&id, &user, &device).ok().flatten().copied();
                row.map(|row| (id, user, device, row))
            })
            .collect();
        let keys = std::mem::take(&mut fresh.keys)
            .into_iter()
            .filter_map(|hash| self.key(&hash).ok().flatten().copied().map(|row| (hash, row)))
            .collect();
        for (id, _) in &heads {
            if let Some(it) = self.conversations.get_mut(id) {
                self.bytes -= weight::ROW * it.trim_rows(archived);
            }
        }
        Changed { fresh, heads, members, devices, keys }
    }

    /// Returns the estimated heap of the cache.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the numbers of cached conversations and keys.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.conversations.len(), self.keys.len())
    }
}

/// Sets a row, and returns whether this is its first change since the last delta.
fn put<T>(slot: &mut Option<Slot<T>>, value: T, changed: u64, base: u64) -> bool {
    let first = slot.as_ref().is_none_or(|slot| slot.changed <= base);
    *slot = Some(Slot { value: Some(value), changed });
    first
}

impl User {
    fn device(&self, device: &DeviceId) -> Option<&Slot<Device>> {
        let index = self.devices.binary_search_by(|(it, _)| it.cmp(device)).ok()?;
        self.devices.get(index).map(|(_, slot)| slot)
    }

    /// Returns the slot of a device, and whether it is new.
    fn device_mut(&mut self, device: &DeviceId) -> (&mut Slot<Device>, bool) {
        let found = self.devices.binary_search_by(|(it, _)| it.cmp(device));
        let (Ok(index) | Err(index)) = found;
        if found.is_err() {
            if self.devices.is_empty() {
                // Most users have one device; a list grows to four at once.
                self.devices.reserve_exact(1);
            }
            self.devices.insert(index, (device.clone(), Slot::loaded(None)));
        }
        (&mut self.devices[index].1, found.is_err())
    }
}

impl Conversation {
    fn new(seed: u64, touched: u64) -> Self {
        let users = HashMap::with_hasher(FixedState::with_seed(seed));
        Self { head: None, users, rows: VecDeque::new(), touched }
    }

    fn row(&self, seq: u64) -> Option<&Slot<RowHead>> {
        let index = self.rows.binary_search_by_key(&seq, |(it, _)| *it).ok()?;
        self.rows.get(index).map(|(_, slot)| slot)
    }

    /// Sets a row, and returns whether it is a new one.
    fn put_row(&mut self, seq: u64, slot: Slot<RowHead>) -> bool {
        if self.rows.back().is_none_or(|(last, _)| *last < seq) {
            if self.rows.is_empty() {
                // Many conversations have one row; a list grows to four at once.
                self.rows.reserve_exact(1);
            }
            self.rows.push_back((seq, slot));
            return true;
        }
        let found = self.rows.binary_search_by_key(&seq, |(it, _)| *it);
        match found {
            Ok(index) => self.rows[index].1 = slot,
            Err(index) => self.rows.insert(index, (seq, slot)),
        }
        found.is_err()
    }
}

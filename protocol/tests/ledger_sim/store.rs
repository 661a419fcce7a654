//! Simulated store: rows, fence and position in one transaction, and older versions for stale reads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_protocol::{
    id::{ConversationId, DeviceId, UserId},
    machine::ledger::{Delta, Device, Head, Key, Loaded, Member, Need, Pruned, Row, RowHead},
    record::{Body, Hash16, Position, Rules},
};

#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub(crate) fence: u64,
    pub(crate) position: Position,
    pub(crate) rules: Rules,
    pub(crate) heads: BTreeMap<ConversationId, Head>,
    pub(crate) members: BTreeMap<(ConversationId, UserId), Member>,
    pub(crate) devices: BTreeMap<(ConversationId, UserId, DeviceId), Device>,
    pub(crate) keys: BTreeMap<Hash16, Key>,
    pub(crate) rows: BTreeMap<(ConversationId, u64), Row>,
    pub(crate) recalled: BTreeMap<(ConversationId, u64), (u64, u64)>,
}

/// Result of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    Done,
    /// The same delta has already been committed.
    Already,
    /// Fence or position do not match the writer's.
    Refused,
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) now: Tables,
    /// Topic id of the log that the position refers to.
    pub(crate) topic_id: u64,
    older: VecDeque<Tables>,
    pub(crate) check_fence: bool,
    pub(crate) check_position: bool,
}

impl Store {
    pub(crate) fn new(check_fence: bool, check_position: bool) -> Self {
        Self { check_fence, check_position, ..Self::default() }
    }

    pub(crate) fn older(&self, back: usize) -> &Tables {
        self.older.get(back).unwrap_or(&self.now)
    }

    /// Restores a backup, without an owner: the next owner replays the log from there.
    pub(crate) fn restore(&mut self, fence: u64) {
        if let Some(older) = self.older.pop_back() {
            self.now = Tables { fence, ..older };
            self.older.clear();
        }
    }

    /// `UPDATE … WHERE fence = mine AND position = from`, with all rows. An error is a broken promise.
    pub(crate) fn commit(&mut self, fence: u64, delta: &Delta) -> Result<Commit, String> {
        if self.check_fence && self.now.fence != fence {
            return Ok(Commit::Refused);
        }
        if self.check_position && self.now.position != delta.from {
            return Ok(if self.now.position == delta.to { Commit::Already } else { Commit::Refused });
        }
        self.older.push_front(self.now.clone());
        self.older.truncate(3);
        let tables = &mut self.now;
        for row in &delta.rows {
            let id = row.body.conversation().unwrap().clone();
            if tables.heads.get(&id).is_some_and(|head| row.seq <= head.pruned_to) {
                return Err(format!("{id} seq {} is below the pruned ones: {row:?}", row.seq));
            }
            if let Some(before) = tables.rows.insert((id.clone(), row.seq), row.clone()) {
                return Err(format!("{id} seq {} is in the store twice: {before:?} and {row:?}", row.seq));
            }
        }
        tables.recalled.extend(delta.recalled.iter().map(|it| ((it.conversation.clone(), it.seq), it.by)));
        for Pruned { conversation: id, up_to, .. } in &delta.pruned {
            tables.rows.retain(|(conversation, seq), _| conversation != id || seq > up_to);
            tables.recalled.retain(|(conversation, seq), _| conversation != id || seq > up_to);
        }
        tables.heads.extend(delta.heads.iter().cloned());
        tables.members.extend(delta.members.iter().map(|(id, user, row)| ((id.clone(), user.clone()), *row)));
        let devices = delta.devices.iter().cloned();
        tables.devices.extend(devices.map(|(id, user, device, row)| ((id, user, device), row)));
        tables.keys.extend(delta.keys.iter().copied());
        tables.rules = delta.rules;
        tables.position = delta.to;
        Ok(Commit::Done)
    }

    /// Drops keys below `keys_from` of the stored rules, which a store may do at any time.
    pub(crate) fn drop_old_keys(&mut self, by_itself: bool) {
        let from = if by_itself { self.now.position.offset / 2 } else { self.now.rules.keys_from };
        self.now.keys.retain(|_, key| key.offset >= from);
    }
}

impl Tables {
    pub(crate) fn read(&self, needs: &BTreeSet<Need>) -> Vec<Loaded> {
        needs.iter().cloned().map(|need| self.row(need)).collect()
    }

    fn row(&self, need: Need) -> Loaded {
        match need {
            Need::Head(id) => Loaded::Head(id.clone(), self.heads.get(&id).cloned()),
            Need::Member(id, user) => {
                let row = self.members.get(&(id.clone(), user.clone())).copied();
                Loaded::Member(id, user, row)
            }
            Need::Device(id, user, device) => {
                let row = self.devices.get(&(id.clone(), user.clone(), device.clone())).copied();
                Loaded::Device(id, user, device, row)
            }
            Need::Key(hash) => Loaded::Key(hash, self.keys.get(&hash).copied()),
            Need::Row(id, seq) => {
                let key = (id.clone(), seq);
                let recalled = self.recalled.get(&key).copied();
                let row = self.rows.get(&key).map(|row| RowHead { sender: sender(&row.body), recalled });
                Loaded::Row(id, seq, row)
            }
        }
    }
}

fn sender(body: &Body) -> Option<UserId> {
    match body {
        Body::Message(it) => Some(it.sender.clone()),
        _ => None,
    }
}

/// Reports that there is no such row, even if there is one.
pub(crate) fn absent(need: Need) -> Loaded {
    match need {
        Need::Head(id) => Loaded::Head(id, None),
        Need::Member(id, user) => Loaded::Member(id, user, None),
        Need::Device(id, user, device) => Loaded::Device(id, user, device, None),
        Need::Key(hash) => Loaded::Key(hash, None),
        Need::Row(id, seq) => Loaded::Row(id, seq, None),
    }
}

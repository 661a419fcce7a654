//! Check of a store: reads every row, and compares all values that are stored twice.

mod feed;
mod guard;

use std::collections::BTreeMap;

use fjall::Readable as _;
use tidegate_protocol::{
    id::ConversationId,
    machine::ledger::{Key, edit_key, message_key, request_key},
    record::{Body, Hash16},
};

use super::{DatabaseError, Entry, Offline, StateKey, text_of};
use crate::{
    embedded::codec::{self, Pair},
    store::dump::{DumpValidator, RowLine},
};

/// Keys that are looked up together, sorted as on the disk.
const LOOKUP_BATCH_KEYS: usize = 1 << 18;

/// Result of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Number of rows of all kinds that were checked.
    pub looked_at: u64,
    /// Number of faults reported.
    pub faults: u64,
    /// Number of dedup keys whose messages retention has removed.
    pub keys_alone: u64,
}

/// Dedup key that a row must have.
struct ExpectedKey {
    hash: Hash16,
    key: Key,
    conversation: ConversationId,
}

struct Checker<'a> {
    store: &'a Offline,
    fault: &'a mut dyn FnMut(String),
    findings: Findings,
    conversation: Option<ConversationId>,
    /// Per partition, the offset below which keys have expired.
    keys_from: BTreeMap<u32, u64>,
    expected: Vec<ExpectedKey>,
    /// Number of keys found by their row.
    matched: u64,
    /// Number of unexpired keys of accepted records.
    keys: u64,
    is_pruned: bool,
}

impl Offline {
    /// Reads everything and passes a description of each fault to `fault`.
    pub fn check(&self, fault: &mut dyn FnMut(String)) -> Findings {
        let mut checker = Checker {
            store: self,
            fault,
            findings: Findings::default(),
            conversation: None,
            keys_from: BTreeMap::new(),
            expected: Vec::new(),
            matched: 0,
            keys: 0,
            is_pruned: false,
        };
        let mut order = DumpValidator::default();
        let walked = self.walk(&mut |entry| {
            match entry {
                Ok(entry) => {
                    checker.findings.looked_at += 1;
                    order.next(&entry, &mut |what| checker.report(what));
                    checker.entry(entry);
                }
                Err(what) => checker.report(what),
            }
            Ok(())
        });
        if let Err(error) = walked {
            checker.report(error.to_string());
        }
        checker.look_up();
        checker.report_orphans();
        feed::check(self, &mut |what| checker.report(what));
        guard::check(self, &mut |what| checker.report(what));
        let alone = checker.keys.saturating_sub(checker.matched);
        if alone > 0 && !checker.is_pruned {
            checker.report(format!("{alone} dedup keys belong to no row, and retention removed none"));
        } else {
            checker.findings.keys_alone = alone;
        }
        checker.findings
    }
}

impl Checker<'_> {
    fn report(&mut self, what: String) {
        self.findings.faults += 1;
        (self.fault)(what);
    }

    fn entry(&mut self, entry: Entry) {
        match entry {
            Entry::Partition(it) => {
                self.keys_from.insert(it.number, it.keys_from);
            }
            Entry::Conversation(it) => {
                self.is_pruned |= it.pruned_to > 0;
                self.conversation = Some(it.id);
            }
            Entry::Row(it) => self.row(&it),
            Entry::Member(it) => {
                let Some(id) = &self.conversation else { return };
                let side = codec::pair(Pair::OfUser, it.user.as_str(), id.as_str());
                if !matches!(self.store.view.get(&self.store.database.state, side), Ok(Some(_))) {
                    let what = format!("{id}: {} is a member, but would not find it at login", it.user);
                    self.report(what);
                }
            }
            // Expired keys may be removed already.
            Entry::Key(it) => {
                let from = self.keys_from.get(&it.partition).copied().unwrap_or(0);
                self.keys += u64::from(it.seq > 0 && it.offset >= from);
            }
            _ => {}
        }
    }

    fn row(&mut self, it: &RowLine) {
        let Some(conversation) = self.conversation.clone() else { return };
        let (hash, body_hash) = match it.body.body(&conversation) {
            Ok(Body::Message(message)) => (message_key(&message), message.body_hash),
            Ok(Body::Edit(edit)) => (edit_key(&edit), edit.key_hash()),
            Ok(Body::Member(change)) => (request_key(&change), change.body_hash()),
            Ok(_) | Err(_) => return,
        };
        let key = Key { seq: it.seq, time: it.time, body_hash, offset: it.offset, refused: None };
        if self.keys_from.values().all(|from| it.offset >= *from) {
            self.expected.push(ExpectedKey { hash, key, conversation });
        }
        if self.expected.len() >= LOOKUP_BATCH_KEYS {
            self.look_up();
        }
    }

    /// Looks up the expected keys collected so far, in their order on the disk.
    fn look_up(&mut self) {
        let mut expected = std::mem::take(&mut self.expected);
        expected.sort_unstable_by_key(|it| it.hash);
        for ExpectedKey { hash, key, conversation } in expected {
            let seq = key.seq;
            match self.find(&hash) {
                Ok(Some(found)) if found == key => self.matched += 1,
                // An id reused beyond the dedup window: its key now belongs to the newer row.
                Ok(Some(found)) if found.offset > key.offset => {}
                Ok(Some(found)) if found.body_hash != key.body_hash => {
                    self.report(format!(
                        "{conversation}: the dedup key of row {seq} has another content's hash"
                    ));
                }
                Ok(Some(found)) => {
                    self.report(format!("{conversation}: the dedup key of row {seq} says seq {}", found.seq));
                }
                Ok(None) => self.report(format!(
                    "{conversation}: row {seq} has no dedup key: a retry would be sent twice"
                )),
                Err(error) => {
                    self.report(format!("{conversation}: the key of row {seq}: {}", text_of(error)))
                }
            }
        }
    }

    /// Returns the stored key with the hash, from any partition.
    fn find(&self, hash: &Hash16) -> Result<Option<Key>, DatabaseError> {
        for partition in self.keys_from.keys() {
            let name = codec::key_key(*partition, hash);
            if let Some(value) = self.store.view.get(&self.store.database.keys, name)? {
                return codec::key(&value).map(Some);
            }
        }
        Ok(None)
    }

    /// Reports rows that no head leads to and that an export would therefore miss.
    fn report_orphans(&mut self) {
        let store = self.store;
        let database = &store.database;
        let mut last: Option<(ConversationId, bool)> = None;
        for entry in store.view.iter(&database.state) {
            let state_key = entry.key().map_err(DatabaseError::from).and_then(|key| StateKey::of(&key));
            let (id, user) = match state_key {
                Ok(StateKey::Topic | StateKey::Partition(_) | StateKey::Log(..) | StateKey::Swept(_)) => {
                    continue;
                }
                // Refused senders leave device rows without a head, which an export may miss.
                Ok(
                    StateKey::Head(_)
                    | StateKey::Mark(..)
                    | StateKey::UserSettings(_)
                    | StateKey::Revocation(_)
                    | StateKey::NewestRevocation
                    | StateKey::Device(..),
                ) => continue,
                Ok(
                    StateKey::Block(..)
                    | StateKey::BlockAt(_)
                    | StateKey::BlockVersion
                    | StateKey::BlockCount(_),
                ) => continue,
                // Checked by themselves.
                Ok(
                    StateKey::Guard(..)
                    | StateKey::GuardAt(_)
                    | StateKey::GuardVersion
                    | StateKey::GuardEnd(..)
                    | StateKey::GuardCount(_),
                ) => continue,
                Ok(StateKey::Member(id, _)) => (id, None),
                Ok(StateKey::OfUser(user, id) | StateKey::Stay(id, user, _)) => (id, Some(user)),
                Err(error) => {
                    self.report(text_of(error));
                    continue;
                }
            };
            let is_there = self.has_head(&id, &mut last);
            let member = user.is_none_or(|user| {
                let key = codec::pair(Pair::Member, id.as_str(), user.as_str());
                matches!(store.view.get(&database.state, key), Ok(Some(_)))
            });
            if !is_there || !member {
                self.report(format!("{id}: there are rows of a user who was never a member"));
            }
        }
        let mut from = Vec::new();
        while let Some(entry) = store.view.range(&database.rows, from.clone()..).next() {
            let key = match entry.key() {
                Ok(key) => key,
                Err(error) => return self.report(text_of(error.into())),
            };
            let end = key.iter().position(|byte| *byte == 0).unwrap_or(key.len());
            let id = std::str::from_utf8(&key[..end]).ok().and_then(|text| ConversationId::parse(text).ok());
            match id {
                Some(id) if self.has_head(&id, &mut last) => {}
                Some(id) => self.report(format!("{id}: it has rows, but no head")),
                None => self.report("there are rows of an invalid conversation id".into()),
            }
            from = [&key[..end], b"\x01"].concat();
        }
    }

    fn has_head(&self, id: &ConversationId, last: &mut Option<(ConversationId, bool)>) -> bool {
        match last {
            Some((last_id, found)) if last_id == id => *found,
            _ => {
                let head = self.store.view.get(&self.store.database.state, codec::head_key(id));
                let found = matches!(head, Ok(Some(_)));
                *last = Some((id.clone(), found));
                found
            }
        }
    }
}

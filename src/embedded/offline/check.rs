//! Whether a store is sound: every row is read, and everything that is said twice must agree.

use std::collections::BTreeMap;

use fjall::Readable as _;
use tidegate_protocol::{
    id::ConversationId,
    machine::ledger::{Key, message_key, request_key},
    record::{Body, Hash16},
};

use super::{Entry, Offline, Place, Trouble, words};
use crate::{
    embedded::codec::{self, Pair},
    store::dump::{Order, RowLine},
};

/// Keys that are looked up together, in their order on the disk.
const LOOKUPS: usize = 1 << 18;

/// What a check came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What was looked at: rows of all kinds.
    pub looked_at: u64,
    /// How many faults were told.
    pub faults: u64,
    /// Dedup keys whose message retention has taken.
    pub keys_alone: u64,
}

/// The key that a row must have.
struct Wanted {
    hash: Hash16,
    key: Key,
    conversation: ConversationId,
}

struct Checking<'a> {
    store: &'a Offline,
    fault: &'a mut dyn FnMut(String),
    findings: Findings,
    conversation: Option<ConversationId>,
    /// Of each partition, what its rules forget.
    keys_from: BTreeMap<u32, u64>,
    wanted: Vec<Wanted>,
    /// Keys that belong to a row, and keys in all that should.
    matched: u64,
    keys: u64,
    pruned: bool,
}

impl Offline {
    /// Reads everything and tells each fault, in words.
    pub fn check(&self, fault: &mut dyn FnMut(String)) -> Findings {
        let mut checking = Checking {
            store: self,
            fault,
            findings: Findings::default(),
            conversation: None,
            keys_from: BTreeMap::new(),
            wanted: Vec::new(),
            matched: 0,
            keys: 0,
            pruned: false,
        };
        let mut order = Order::default();
        let walked = self.walk(&mut |entry| {
            match entry {
                Ok(entry) => {
                    checking.findings.looked_at += 1;
                    order.next(&entry, &mut |what| checking.tell(what));
                    checking.entry(entry);
                }
                Err(what) => checking.tell(what),
            }
            Ok(())
        });
        if let Err(error) = walked {
            checking.tell(error.to_string());
        }
        checking.look_up();
        checking.strays();
        let alone = checking.keys.saturating_sub(checking.matched);
        if alone > 0 && !checking.pruned {
            checking.tell(format!("{alone} dedup keys belong to no row, and retention took none"));
        } else {
            checking.findings.keys_alone = alone;
        }
        checking.findings
    }
}

impl Checking<'_> {
    fn tell(&mut self, what: String) {
        self.findings.faults += 1;
        (self.fault)(what);
    }

    fn entry(&mut self, entry: Entry) {
        match entry {
            Entry::Partition(it) => {
                self.keys_from.insert(it.number, it.keys_from);
            }
            Entry::Conversation(it) => {
                self.pruned |= it.pruned_to > 0;
                self.conversation = Some(it.id);
            }
            Entry::Row(it) => self.row(&it),
            Entry::Member(it) => {
                let Some(id) = &self.conversation else { return };
                let side = codec::pair(Pair::OfUser, it.user.as_str(), id.as_str());
                if !matches!(self.store.view.get(&self.store.database.state, side), Ok(Some(_))) {
                    let what = format!("{id}: {} is in it, but would not find it at login", it.user);
                    self.tell(what);
                }
            }
            // What the rules forget may be there or not.
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
            Ok(Body::Member(change)) => (request_key(&change), change.body_hash()),
            Ok(_) | Err(_) => return,
        };
        let key = Key { seq: it.seq, time: it.time, body_hash, offset: it.offset, refused: None };
        if self.keys_from.values().all(|from| it.offset >= *from) {
            self.wanted.push(Wanted { hash, key, conversation });
        }
        if self.wanted.len() >= LOOKUPS {
            self.look_up();
        }
    }

    /// Looks for the keys of the rows so far, in the order of the disk.
    fn look_up(&mut self) {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.sort_unstable_by_key(|it| it.hash);
        for Wanted { hash, key, conversation } in wanted {
            let seq = key.seq;
            match self.find(&hash) {
                Ok(Some(found)) if found == key => self.matched += 1,
                // An id that was used again past the window: its key went to the newer row.
                Ok(Some(found)) if found.offset > key.offset => {}
                Ok(Some(found)) if found.body_hash != key.body_hash => {
                    self.tell(format!(
                        "{conversation}: the dedup key of row {seq} has another content's hash"
                    ));
                }
                Ok(Some(found)) => {
                    self.tell(format!("{conversation}: the dedup key of row {seq} says seq {}", found.seq));
                }
                Ok(None) => self
                    .tell(format!("{conversation}: row {seq} has no dedup key: a retry would be sent twice")),
                Err(trouble) => {
                    self.tell(format!("{conversation}: the key of row {seq}: {}", words(trouble)))
                }
            }
        }
    }

    /// The key of that name, in whichever partition it is.
    fn find(&self, hash: &Hash16) -> Result<Option<Key>, Trouble> {
        for partition in self.keys_from.keys() {
            let name = codec::key_key(*partition, hash);
            if let Some(value) = self.store.view.get(&self.store.database.keys, name)? {
                return codec::key(&value).map(Some);
            }
        }
        Ok(None)
    }

    /// What the heads do not lead to: no export would have it.
    fn strays(&mut self) {
        let store = self.store;
        let database = &store.database;
        let mut last: Option<(ConversationId, bool)> = None;
        for entry in store.view.iter(&database.state) {
            let place = entry.key().map_err(Trouble::from).and_then(|key| Place::of(&key));
            let (id, user) = match place {
                Ok(Place::Topic | Place::Standing(_) | Place::Log(..) | Place::Swept(_)) => continue,
                // A device is known as soon as its user was refused somewhere, in vain: no loss.
                Ok(Place::Head(_) | Place::Mark(..) | Place::Wishes(_) | Place::Device(..)) => continue,
                Ok(Place::Member(id, _)) => (id, None),
                Ok(Place::OfUser(user, id) | Place::Stay(id, user, _)) => (id, Some(user)),
                Err(trouble) => {
                    self.tell(words(trouble));
                    continue;
                }
            };
            let is_there = self.has_head(&id, &mut last);
            let member = user.is_none_or(|user| {
                let key = codec::pair(Pair::Member, id.as_str(), user.as_str());
                matches!(store.view.get(&database.state, key), Ok(Some(_)))
            });
            if !is_there || !member {
                self.tell(format!("{id}: something is kept of a user who never was in it"));
            }
        }
        let mut from = Vec::new();
        while let Some(entry) = store.view.range(&database.rows, from.clone()..).next() {
            let key = match entry.key() {
                Ok(key) => key,
                Err(error) => return self.tell(words(error.into())),
            };
            let end = key.iter().position(|byte| *byte == 0).unwrap_or(key.len());
            let id = std::str::from_utf8(&key[..end]).ok().and_then(|text| ConversationId::parse(text).ok());
            match id {
                Some(id) if self.has_head(&id, &mut last) => {}
                Some(id) => self.tell(format!("{id}: it has rows, but no head")),
                None => self.tell("rows of something that is no conversation".into()),
            }
            from = [&key[..end], b"\x01"].concat();
        }
    }

    fn has_head(&self, id: &ConversationId, last: &mut Option<(ConversationId, bool)>) -> bool {
        match last {
            Some((known, found)) if known == id => *found,
            _ => {
                let head = self.store.view.get(&self.store.database.state, codec::head_key(id));
                let found = matches!(head, Ok(Some(_)));
                *last = Some((id.clone(), found));
                found
            }
        }
    }
}

//! Members of groups and rooms: their arrays, and the numbers of members of rooms that are counted.

use std::{collections::VecDeque, mem};

use tidegate_protocol::{
    Time,
    id::{ConversationId, ConversationKind},
};

use super::{Group, Hub, Link, VACANT};

impl Group {
    /// Returns the number of members without those that left during a fan-out.
    pub(super) fn members_now(&self) -> usize {
        self.members.len().saturating_sub(self.vacant as usize)
    }
}

impl Hub {
    /// Returns all members of a conversation on this shard.
    pub(in crate::shard) fn members_of(&self, conversation: &ConversationId) -> Vec<u32> {
        self.some_members_of(conversation, usize::MAX)
    }

    /// Returns some members of a conversation on this shard, at most `limit`; none only if it has none.
    pub(in crate::shard) fn some_members_of(&self, conversation: &ConversationId, limit: usize) -> Vec<u32> {
        let group = self.ids.get(conversation).map(|group| &self.groups[*group as usize]);
        let slots = group.into_iter().flat_map(|group| &group.members).copied();
        slots.filter(|slot| *slot != VACANT).take(limit).collect()
    }

    pub(super) fn open(&mut self, conversation: &ConversationId) -> u32 {
        let group = Group {
            id: conversation.clone(),
            is_room: matches!(conversation.kind(), ConversationKind::Room(_)),
            waiting_bytes: 0,
            members: Vec::new(),
            pending: VecDeque::new(),
            job: None,
            queued: false,
            vacant: 0,
            is_changed: false,
            next_pass: Time::ZERO,
            thinning: None,
            recent: None,
            size: None,
        };
        if group.is_room {
            self.rooms.insert(conversation.clone());
        }
        let index = self.groups.insert(group) as u32;
        self.ids.insert(conversation.clone(), index);
        self.directory.hold_conversation(conversation, self.shard);
        index
    }

    pub(super) fn unlink(&mut self, link: Link, slot: u32) {
        self.links[slot as usize].retain(|other| other.group != link.group);
        self.note_member_change(link.group);
        let group = &mut self.groups[link.group as usize];
        if group.job.is_some() {
            group.members[link.position as usize] = VACANT;
            group.vacant += 1;
            return;
        }
        group.members.swap_remove(link.position as usize);
        let moved = group.members.get(link.position as usize).copied();
        self.relink(link.group, moved, link.position);
        self.close_if_empty(link.group);
    }

    pub(super) fn relink(&mut self, group: u32, slot: Option<u32>, position: u32) {
        let links = slot.filter(|slot| *slot != VACANT).and_then(|slot| self.links.get_mut(slot as usize));
        if let Some(link) = links.and_then(|links| links.iter_mut().find(|link| link.group == group)) {
            link.position = position;
        }
    }

    pub(super) fn close_if_empty(&mut self, index: u32) {
        let group = &self.groups[index as usize];
        if group.members.is_empty() && !group.queued && group.job.is_none() {
            let mut group = self.groups.remove(index as usize);
            self.forget_recent(&mut group);
            if group.thinning.is_some() {
                self.forget_thinning(index);
            }
            self.ids.remove(&group.id);
            if group.is_room {
                self.rooms.remove(&group.id);
            }
            self.directory.release_conversation(&group.id, self.shard);
        }
    }

    /// Notes that the number of a room's members has changed, if members of any room are counted.
    pub(super) fn note_member_change(&mut self, index: u32) {
        let group = &mut self.groups[index as usize];
        if group.is_room && self.room_rules.counts_members() && !mem::replace(&mut group.is_changed, true) {
            self.changed.push(group.id.clone());
        }
    }

    /// Notes a change of all rooms, because the rules of rooms have changed.
    pub(super) fn note_all_members(&mut self) {
        for (_, group) in &mut self.groups {
            if group.is_room && !mem::replace(&mut group.is_changed, true) {
                self.changed.push(group.id.clone());
            }
        }
    }

    /// Notes that the members of a room could not be counted, so that they are taken again.
    pub(in crate::shard) fn note_uncounted(&mut self, room: &ConversationId) {
        if let Some(index) = self.ids.get(room).copied() {
            self.note_member_change(index);
        }
    }

    /// Takes the numbers of members of the rooms where they have changed; `None` where they are not to be counted.
    pub(in crate::shard) fn take_member_changes(&mut self) -> Vec<(ConversationId, Option<u64>)> {
        let changed = mem::take(&mut self.changed);
        let count = |room: ConversationId| {
            let members = match self.ids.get(&room) {
                Some(index) => {
                    let group = &mut self.groups[*index as usize];
                    group.is_changed = false;
                    group.members_now()
                }
                None => 0,
            };
            let is_counted = self.room_rules.of_room(&room).members;
            (room, is_counted.then_some(members as u64))
        };
        changed.into_iter().map(count).collect()
    }
}

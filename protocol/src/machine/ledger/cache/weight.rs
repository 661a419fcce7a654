//! Estimated heap of cached rows, in bytes. The same row weighs the same when it is added and when it is evicted.

use std::mem::size_of;

use super::{Conversation, Slot, User};
use crate::{
    id::{ConversationId, DeviceId, UserId},
    machine::ledger::rows::{Device, Head, Key, RowHead},
    record::Hash16,
};

/// Heap of an id besides its text: counters of its pointer, and rounding by the allocator.
const ID: usize = 24;

/// Heap of an entry of a hash table or a queue; these are half to completely full.
const fn entry<T>() -> usize {
    size_of::<T>() * 3 / 2
}

/// Heap of a cached key, without its entries in the queue.
pub(super) const KEY: usize = entry::<(Hash16, Slot<Key>)>();

/// Heap of one entry of the queue of keys.
pub(super) const QUEUED_KEY: usize = entry::<(Hash16, u64)>();

/// Heap of a cached row head. Its sender has an id of its own.
pub(super) const ROW: usize = entry::<(u64, Slot<RowHead>)>() + ID + 16;

/// Heap of a conversation without users, settings and rows. Its head has an empty map of settings of its own.
pub(super) fn conversation(id: &ConversationId) -> usize {
    entry::<(ConversationId, Conversation)>() + entry::<(ConversationId, u64)>() + ID + id.as_str().len() + 48
}

/// Heap of a user of a conversation, without devices.
pub(super) fn user(user: &UserId) -> usize {
    2 * size_of::<(UserId, User)>() + ID + user.as_str().len()
}

/// Heap of a device of a user.
pub(super) fn device(device: &DeviceId) -> usize {
    size_of::<(DeviceId, Slot<Device>)>() + ID + device.as_str().len()
}

/// Heap of the settings of a head.
pub(super) fn settings(head: &Head) -> usize {
    head.settings
        .iter()
        .map(|(name, value)| name.len() + value.len() + 2 * ID + 2 * size_of::<String>())
        .sum()
}

/// Returns by how much the heap of the settings changes. They are compared by address, so that a message costs nothing.
pub(super) fn settings_change(before: Option<&Head>, after: &Head) -> isize {
    if before.is_some_and(|before| std::sync::Arc::ptr_eq(&before.settings, &after.settings)) {
        return 0;
    }
    let signed = |bytes| isize::try_from(bytes).unwrap_or(isize::MAX);
    signed(settings(after)) - before.map_or(0, |before| signed(settings(before)))
}

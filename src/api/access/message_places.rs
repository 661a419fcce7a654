//! Places of requests that send messages: apart from those of other changes, with a share for each key.
//!
//! A request with a list of messages takes seconds, and goes on after its caller has left. Operators have places of their own,
//! so that the key of such a caller can be revoked.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

/// Most requests for messages at a time, and of one key. Fewer than the connections of the port.
const REQUESTS_MAX: usize = 48;
const REQUESTS_OF_KEY_MAX: usize = 32;

/// Those of them that have lists of messages, and of one key.
const LISTS_MAX: usize = 8;
const LISTS_OF_KEY_MAX: usize = 4;

/// Paths of requests that take as long as those with lists of messages: these, and one that removes many.
const LIST_PATHS: [&str; 3] =
    ["/v1/messages/batch", "/v1/messages/broadcast", "/v1/conversations/{conversation}/prune"];

/// Returns whether requests of this path have a place among those for messages.
pub(super) fn has_place(path: &str) -> bool {
    path.starts_with("/v1/messages") || path == "/v1/signals" || LIST_PATHS.contains(&path)
}

/// Counts of requests.
#[derive(Clone, Copy, Default)]
struct PlaceCounts {
    requests: usize,
    lists: usize,
}

/// Counts of all requests, and of those of each key that has any.
#[derive(Default)]
struct TakenCounts {
    all: PlaceCounts,
    by_key: HashMap<String, PlaceCounts>,
}

/// Places of requests that send messages.
#[derive(Default)]
pub(super) struct MessagePlaces(Mutex<TakenCounts>);

/// Place of a request; it is free again when this is dropped.
pub(super) struct MessagePlace {
    places: Arc<MessagePlaces>,
    key: Option<String>,
    is_list: bool,
}

impl PlaceCounts {
    fn fits(self, is_list: bool, requests_max: usize, lists_max: usize) -> bool {
        self.requests < requests_max && (!is_list || self.lists < lists_max)
    }

    fn add(&mut self, is_list: bool) {
        self.requests += 1;
        self.lists += usize::from(is_list);
    }

    fn remove(&mut self, is_list: bool) {
        self.requests = self.requests.saturating_sub(1);
        self.lists = self.lists.saturating_sub(usize::from(is_list));
    }
}

impl MessagePlaces {
    /// Takes a place for a request of a key; `None` if all are taken, or the share of the key is.
    pub(super) fn take(self: &Arc<Self>, path: &str, key: Option<&str>) -> Option<MessagePlace> {
        let is_list = LIST_PATHS.contains(&path);
        let mut taken = self.0.lock();
        let of_key = key.and_then(|key| taken.by_key.get(key)).copied().unwrap_or_default();
        // Without keys all callers are one.
        let has_share = key.is_none() || of_key.fits(is_list, REQUESTS_OF_KEY_MAX, LISTS_OF_KEY_MAX);
        if !has_share || !taken.all.fits(is_list, REQUESTS_MAX, LISTS_MAX) {
            return None;
        }
        taken.all.add(is_list);
        if let Some(key) = key {
            taken.by_key.entry(key.to_owned()).or_default().add(is_list);
        }
        Some(MessagePlace { places: Arc::clone(self), key: key.map(str::to_owned), is_list })
    }
}

impl Drop for MessagePlace {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock();
        taken.all.remove(self.is_list);
        if let Some(key) = &self.key
            && let Some(of_key) = taken.by_key.get_mut(key)
        {
            of_key.remove(self.is_list);
            if of_key.requests == 0 {
                taken.by_key.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_has_a_share_and_leaves_places_to_others() {
        let places = Arc::new(MessagePlaces::default());
        let take = |path, key, most| {
            let taken: Vec<_> = (0..100).map_while(|_| places.take(path, key)).collect();
            assert_eq!(taken.len(), most, "{path} {key:?}");
            taken
        };
        let (one, batch) = ("/v1/messages", "/v1/messages/batch");
        let lists = take(batch, Some("a"), LISTS_OF_KEY_MAX);
        let others = take(batch, Some("b"), LISTS_OF_KEY_MAX);
        take(batch, Some("c"), 0);
        let singles = take(one, Some("a"), REQUESTS_OF_KEY_MAX - LISTS_OF_KEY_MAX);
        take(one, Some("c"), REQUESTS_MAX - REQUESTS_OF_KEY_MAX - LISTS_OF_KEY_MAX);
        drop((lists, others, singles));
        let none = PlaceCounts::default();
        let taken = places.0.lock();
        assert_eq!((taken.all.requests, taken.all.lists, taken.by_key.len()), (none.requests, none.lists, 0));
        drop(taken);
        take(one, None, REQUESTS_MAX);
    }
}

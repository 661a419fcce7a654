//! Check of the feed: its batches can be read, follow each other, and are within the counters.

use fjall::Readable as _;

use super::super::{DatabaseError, Offline, codec, text_of};
use crate::store::feed::{FeedState, first_number};

/// Reports each fault of the keyspace.
pub(super) fn check(store: &Offline, report: &mut dyn FnMut(String)) {
    let mut progress = Progress { partition: None, state: FeedState::default(), last: 0 };
    for entry in store.view.iter(&store.database.feed) {
        let checked = entry
            .into_inner()
            .map_err(DatabaseError::from)
            .and_then(|(key, value)| progress.next(&key, &value));
        if let Err(error) = checked {
            report(format!("the feed: {}", text_of(error)));
        }
    }
}

/// Partition whose batches are being read, and the end of the last one.
struct Progress {
    partition: Option<[u8; 4]>,
    state: FeedState,
    last: u64,
}

impl Progress {
    fn next(&mut self, key: &[u8], value: &[u8]) -> Result<(), DatabaseError> {
        if key.first() == Some(&codec::CURSOR_PREFIX) {
            return codec::cursor_parts(key).map(drop);
        }
        let last = codec::feed_last(key)?;
        let partition = key.first_chunk::<4>().copied();
        if self.partition != partition {
            *self = Self { partition, state: FeedState::default(), last: 0 };
        }
        if last == 0 {
            self.state = codec::feed_state(value)?;
            return Ok(());
        }
        let batch = codec::feed_value(value)?;
        let first = first_number(last, &batch.entries)?;
        let before = std::mem::replace(&mut self.last, last);
        let (newest, bytes) = (self.state.newest, self.state.bytes);
        if first <= before || last > newest || batch.bytes_end > bytes {
            return Err(DatabaseError::Damaged(format!(
                "its batch of {first} to {last} is not between {before} and {newest}"
            )));
        }
        Ok(())
    }
}

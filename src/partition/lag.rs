//! How far an owner is: what it tells of its position, the end of its log, and since when what lies between them waits.

use std::{sync::Arc, time::Duration};

use tokio::time::{self, Instant};

use crate::{
    bus::{Bounds, ReadError},
    cluster::{Owned, Progress},
    ports::Ports,
};

/// What a record takes in the log besides its bytes, about.
const RECORD_OVERHEAD: u64 = 70;

/// Between two looks at the end of a log whose archive stands still.
const END_EVERY: Duration = Duration::from_secs(3);

/// Tells of the progress of one owner.
pub(crate) struct Tracker {
    partition: u32,
    owned: Arc<Owned>,
}

/// What one batch says of the log.
pub(crate) struct Heard {
    end: u64,
    bytes: u64,
    records: u64,
    /// When the broker received the first and the last record that could be read, in ms since 1970.
    times: Option<(u64, u64)>,
}

impl Heard {
    pub(crate) fn of(bounds: Bounds) -> Self {
        Self { end: bounds.next, bytes: 0, records: 0, times: None }
    }

    /// What it takes in the log, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The same with what was read behind it.
    pub(crate) fn and(self, next: Self) -> Self {
        let times = match (self.times, next.times) {
            (Some((first, _)), Some((_, last))) => Some((first, last)),
            (one, other) => one.or(other),
        };
        let (bytes, records) = (self.bytes + next.bytes, self.records + next.records);
        Self { end: self.end.max(next.end), bytes, records, times }
    }

    pub(crate) fn record(&mut self, bytes: usize, received_at: Option<u64>) {
        self.bytes += bytes as u64 + RECORD_OVERHEAD;
        self.records += 1;
        if let Some(time) = received_at {
            self.times = Some((self.times.map_or(time, |(first, _)| first), time));
        }
    }
}

impl Tracker {
    /// Of an owner that has taken over at `position`, in a log that goes up to `end`.
    pub(crate) fn begin(partition: u32, owned: &Arc<Owned>, position: u64, end: u64) -> Self {
        // How old it is, the first batch says.
        let waits = (position < end).then(|| (Instant::now(), Duration::ZERO));
        owned.begin(partition, Progress { position, end, record_bytes: 0, waits });
        Self { partition, owned: Arc::clone(owned) }
    }

    /// A batch was read, and waits for its archive from here on; `is_next`: nothing else does.
    pub(crate) fn read(&self, heard: &Heard, is_next: bool, wall_ms: u64) {
        let first = heard.times.map(|(first, _)| first);
        self.owned.update(self.partition, |it| {
            it.end = it.end.max(heard.end);
            let mean = heard.bytes / heard.records.max(1);
            // Up at once and down slowly: what waits behind a batch is taken for as large as that.
            it.record_bytes = mean.max((it.record_bytes * 7 + mean) / 8);
            if is_next || it.waits.is_none() {
                it.waits = Some(waits_since(first, wall_ms));
            }
        });
    }

    /// That batch is archived; `next` is what was read and is not.
    pub(crate) fn archived(&self, position: u64, heard: &Heard, next: Option<&Heard>, wall_ms: u64) {
        let last = heard.times.map(|(_, last)| last);
        let oldest = next.and_then(|next| next.times).map(|(first, _)| first).or(last);
        self.owned.update(self.partition, |it| {
            // A successor here may be further on already.
            it.position = it.position.max(position);
            // What comes next is about as old as the last of this batch, and says so itself when it is read.
            it.waits = (position < it.end).then(|| waits_since(oldest, wall_ms));
        });
    }
}

/// From now on, and that old already; a time to come is a clock that is wrong.
fn waits_since(received_at: Option<u64>, wall_ms: u64) -> (Instant, Duration) {
    let age = received_at.map_or(0, |time| wall_ms.saturating_sub(time));
    (Instant::now(), Duration::from_millis(age))
}

/// A call of the log by the owner of a partition: who waits for it does not wait for the store, until one succeeds.
pub(crate) async fn from_log<T>(
    owned: &Owned,
    partition: u32,
    call: impl Future<Output = Result<T, ReadError>>,
) -> Result<T, ReadError> {
    owned.set_at_log(partition, true);
    let said = call.await;
    owned.set_at_log(partition, said.is_err());
    said
}

/// Keeps asking how far the log goes while the archive stands still, for as long as the owner lives.
pub(crate) async fn watch_end(partition: u32, ports: Arc<Ports>) {
    let mut tick = time::interval(END_EVERY);
    tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let mut before = None;
    loop {
        tick.tick().await;
        let waiting = ports.owned.progress_of(partition).filter(|it| it.waits.is_some());
        let position = waiting.map(|it| it.position);
        if position.is_some()
            && position == before
            && let Ok(bounds) = ports.bus.bounds(partition).await
        {
            ports.owned.update(partition, |it| it.end = it.end.max(bounds.next));
        }
        before = position;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bus::TopicId, routes::Standing};

    fn heard(end: u64, records: &[(usize, Option<u64>)]) -> Heard {
        let mut heard = Heard::of(Bounds { topic: TopicId(1), first: 0, next: end });
        records.iter().for_each(|(bytes, time)| heard.record(*bytes, *time));
        heard
    }

    fn standing(owned: &Owned) -> Standing {
        owned.standings()[0]
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_behind_by_what_it_has_not_archived_and_by_the_age_of_the_oldest_of_it() {
        let owned = Arc::new(Owned::default());
        owned.set(3, true);
        let tracker = Tracker::begin(3, &owned, 10, 10);
        assert_eq!(standing(&owned), Standing { partition: 3, position: 10, end: 10, ..Standing::default() });
        // Two of four were read, the first a minute old; what could not be read says nothing of time.
        let batch = heard(14, &[(930, None), (930, Some(1_000)), (930, Some(31_000))]);
        tracker.read(&batch, true, 61_000);
        time::advance(Duration::from_secs(5)).await;
        let it = standing(&owned);
        assert_eq!((it.position, it.end, it.behind(), it.behind_ms), (10, 14, 4, 65_000));
        assert_eq!(it.behind_bytes, 4 * 1_000);
        tracker.archived(13, &batch, None, 61_000);
        assert_eq!((standing(&owned).behind(), standing(&owned).behind_ms), (1, 30_000));
        // From a clock that is ahead.
        let last = heard(14, &[(130, Some(99_000))]);
        tracker.read(&last, true, 61_000);
        assert_eq!((standing(&owned).behind_ms, standing(&owned).behind_bytes), (0, 900));
        tracker.archived(14, &last, None, 61_000);
        time::advance(Duration::from_secs(60)).await;
        let it = standing(&owned);
        assert_eq!((it.behind(), it.behind_ms, it.behind_bytes), (0, 0, 0), "nothing waits");
    }
}

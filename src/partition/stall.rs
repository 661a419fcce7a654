//! Whether this node's archive stands still while those of other nodes go on: then it gives its partitions up.
//!
//! One node that can't reach the store, or only a part of it, would keep its partitions' clients waiting as long as that
//! lasts. Where nobody's archive goes on, or nobody has anything to archive, giving up would help nobody; nor would it where
//! the log is what can't be read: it would go from node to node, and take all that each of them has with it.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::{cluster::Progress, routes::Standing};

/// How long an archive may stand still while others go on (DESIGN 6.1).
pub(crate) const STANDS_STILL: Duration = Duration::from_secs(10);

/// What was seen of the archives; a pure machine, time is an argument.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    mine: HashMap<u32, Stand>,
    others: HashMap<u32, u64>,
    others_moved: Option<Instant>,
}

#[derive(Debug)]
struct Stand {
    position: Option<u64>,
    /// Since when nothing is archived though something waits.
    since: Instant,
}

impl Stall {
    /// What is held, with how far it is (none = not taken over yet) and whether its owner waits for the log, and what the other
    /// nodes say of theirs. Gives the partition that stands still for too long, if one does while others go on.
    pub(crate) fn look(
        &mut self,
        held: impl IntoIterator<Item = (u32, Option<Progress>, bool)>,
        others: impl IntoIterator<Item = Standing>,
        now: Instant,
    ) -> Option<u32> {
        let mut before = std::mem::take(&mut self.mine);
        for (partition, progress, at_log) in held {
            let position = progress.map(|it| it.position);
            let waits = !at_log && progress.is_none_or(|it| it.waits.is_some());
            let stood = before.remove(&partition).filter(|it| waits && it.position == position);
            let since = stood.map_or(now, |it| it.since);
            self.mine.insert(partition, Stand { position, since });
        }
        for it in others {
            if self.others.insert(it.partition, it.position).is_some_and(|before| it.position > before) {
                self.others_moved = Some(now);
            }
        }
        let moved =
            self.others_moved.filter(|moved| now.saturating_duration_since(*moved) < STANDS_STILL / 2)?;
        let stuck = |it: &Stand| now.saturating_duration_since(it.since) >= STANDS_STILL && moved > it.since;
        self.mine.iter().filter(|(_, it)| stuck(it)).map(|(partition, _)| *partition).min()
    }

    /// Whether that one stands still, so that nothing is gained by waiting for it.
    pub(crate) fn stands_still(&self, partition: u32, now: Instant) -> bool {
        let half = |it: &Stand| now.saturating_duration_since(it.since) >= STANDS_STILL / 2;
        self.mine.get(&partition).is_some_and(half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn progress(position: u64, now: Instant, waits: bool) -> Option<Progress> {
        let waits = waits.then_some((now, Duration::ZERO));
        Some(Progress { position, end: position + 1, record_bytes: 1, waits })
    }

    fn other(position: u64) -> Standing {
        Standing { partition: 9, position, end: position, ..Standing::default() }
    }

    /// Looks each second for so long; the first partition that was to be given up, and when.
    fn watch(
        stall: &mut Stall,
        seconds: u64,
        mine: impl Fn(u64, Instant) -> Option<Progress>,
        others: impl Fn(u64) -> u64,
    ) -> Option<(u32, u64)> {
        let begun = Instant::now();
        (0..seconds).find_map(|n| {
            let now = begun + SECOND * n as u32;
            let idle = progress(4, now, false);
            let held = [(1, idle, true), (2, mine(n, now), false)];
            stall.look(held, [other(others(n))], now).map(|it| (it, n))
        })
    }

    #[test]
    fn who_stands_still_for_ten_seconds_while_others_go_on_gives_up() {
        let stuck = |_, now| progress(7, now, true);
        assert_eq!(watch(&mut Stall::default(), 60, stuck, |n| n), Some((2, 10)));
        assert_eq!(
            watch(&mut Stall::default(), 60, |_, _| None, |n| n),
            Some((2, 10)),
            "it can't take it over"
        );
        // They began to go on later.
        assert_eq!(watch(&mut Stall::default(), 60, stuck, |n| n.saturating_sub(30)), Some((2, 31)));
    }

    #[test]
    fn who_goes_on_or_has_nothing_to_do_or_is_one_of_many_stays() {
        let (mut it, stuck) = (Stall::default(), |_: u64, now| progress(7, now, true));
        assert_eq!(watch(&mut it, 60, |_, now| progress(7, now, false), |n| n), None, "nothing waits");
        assert_eq!(
            watch(&mut it, 60, |n, now| progress(7 + n / 9, now, true), |n| n),
            None,
            "slow, but it goes on"
        );
        let mut it = Stall::default();
        assert_eq!(watch(&mut it, 60, stuck, |_| 5), None, "nobody goes on");
        let mut it = Stall::default();
        assert_eq!(watch(&mut it, 60, stuck, |n| n.min(2)), None, "they stopped with it");
    }

    #[test]
    fn who_waits_for_the_log_stays_and_its_time_at_the_store_counts_from_then_on() {
        for taken in [true, false] {
            let (mut it, begun) = (Stall::default(), Instant::now());
            let mut look = |n: u32, at_log| {
                let now = begun + SECOND * n;
                let mine = if taken { progress(7, now, true) } else { None };
                it.look([(2, mine, at_log)], [other(n.into())], now)
            };
            assert_eq!((0..60).find_map(|n| look(n, true)), None);
            assert_eq!((60..80).find(|n| look(*n, false).is_some()), Some(69));
        }
    }

    #[test]
    fn a_partition_that_comes_anew_has_its_time_anew() {
        let (mut it, begun) = (Stall::default(), Instant::now());
        for n in 0..40 {
            let now = begun + SECOND * n;
            let held = (n % 9 != 0).then(|| (2, progress(7, now, true), false));
            assert_eq!(it.look(held, [other(n.into())], now), None);
        }
        assert!(!it.stands_still(2, begun + SECOND * 40) && it.stands_still(2, begun + SECOND * 44));
    }
}

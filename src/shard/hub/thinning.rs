//! Thinning of passes over the members of live rooms while the node is overloaded: members of low priority get fewer.
//!
//! **Promise.** At load level 2 members of priority 0 get every second pass with messages, from level 3 on those of 0 and 1 every
//! fourth; all get passes that only have numbers of the room. What
//! they miss is in a `Shed` before their next pass, or after [`REPORT_AFTER`] without one. The number is that of a member that
//! was in the room with that priority all the time; one that came meanwhile may get a number that is too large.

use std::time::Duration;

use tidegate_protocol::{Time, id::ConversationId};

use super::Hub;
use crate::mail::Delivery;

/// Number of classes whose passes may be thinned, from the lowest one on.
pub(in crate::shard) const THINNED_CLASSES: usize = 2;

/// Time since the last pass after which missed messages are reported without one.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// State of one room, from its first pass that is thinned on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoomThinning {
    passes: u8,
    /// Messages that the members of each class missed and that are not reported yet.
    missed: [u64; THINNED_CLASSES],
    passed_at: Time,
}

/// What the members of low classes get of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::shard) struct ThinnedPass {
    /// Whether messages are skipped.
    pub(in crate::shard) skips: [bool; THINNED_CLASSES],
    /// Messages missed before, which are reported with this pass.
    pub(in crate::shard) missed: [u64; THINNED_CLASSES],
}

impl RoomThinning {
    /// Decides about a pass with so many messages. One without any is not thinned, and takes no turn of those that are.
    fn handle_pass(&mut self, level: u8, messages: u64, now: Time) -> ThinnedPass {
        if messages == 0 {
            return ThinnedPass::default();
        }
        let (classes, every) = match level {
            0 | 1 => (0, 1),
            2 => (1, 2),
            _ => (THINNED_CLASSES, 4),
        };
        self.passes = self.passes.wrapping_add(1);
        self.passed_at = now;
        let mut pass = ThinnedPass::default();
        for class in 0..THINNED_CLASSES {
            if class < classes && !self.passes.is_multiple_of(every) {
                pass.skips[class] = true;
                self.missed[class] += messages;
            } else {
                pass.missed[class] = std::mem::take(&mut self.missed[class]);
            }
        }
        pass
    }

    /// Returns what is to be reported without a pass.
    fn poll_report(&mut self, now: Time) -> Option<[u64; THINNED_CLASSES]> {
        let is_due = self.has_missed() && now >= self.passed_at + REPORT_AFTER;
        is_due.then(|| std::mem::take(&mut self.missed))
    }

    fn has_missed(&self) -> bool {
        self.missed.iter().any(|missed| *missed > 0)
    }
}

impl Hub {
    /// Sets the load level of the node.
    pub(in crate::shard) fn set_load_level(&mut self, level: u8) {
        self.load_level = level;
    }

    /// Returns what the members of low classes get of a pass over a room; `None` if they get all.
    pub(super) fn thin(&mut self, index: u32, batch: &[Delivery]) -> Option<ThinnedPass> {
        let group = &mut self.groups[index as usize];
        if self.load_level < 2 && group.thinning.is_none() {
            return None;
        }
        if group.thinning.is_none() {
            self.thinned.insert(index);
        }
        let messages = batch.iter().filter(|delivery| delivery.is_message()).count() as u64;
        let pass = group.thinning.get_or_insert_default().handle_pass(self.load_level, messages, self.now);
        (pass != ThinnedPass::default()).then_some(pass)
    }

    /// Forgets what a room that is closed would have reported.
    pub(super) fn forget_thinning(&mut self, index: u32) {
        self.thinned.remove(&index);
    }

    /// Takes the rooms in which members missed messages that no pass has reported, with the numbers for each class.
    pub(in crate::shard) fn take_missed(&mut self) -> Vec<(ConversationId, [u64; THINNED_CLASSES])> {
        let (groups, level, now) = (&mut self.groups, self.load_level, self.now);
        let mut due = Vec::new();
        self.thinned.retain(|index| {
            let group = &mut groups[*index as usize];
            let Some(thinning) = &mut group.thinning else { return false };
            due.extend(thinning.poll_report(now).map(|missed| (group.id.clone(), missed)));
            let is_kept = level >= 2 || thinning.has_missed();
            if !is_kept {
                group.thinning = None;
            }
            is_kept
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn low_classes_get_every_second_and_every_fourth_pass() {
        let served = |level, class: usize| {
            let mut room = RoomThinning::default();
            (0..8).filter(|n| !room.handle_pass(level, 1, at(*n)).skips[class]).count()
        };
        let of_level = |level| [served(level, 0), served(level, 1)];
        assert_eq!([of_level(1), of_level(2), of_level(3), of_level(4)], [[8, 8], [4, 8], [2, 2], [2, 2]]);
    }

    #[test]
    fn missed_messages_are_reported_after_a_second_without_a_pass() {
        let mut room = RoomThinning::default();
        assert_eq!(room.handle_pass(3, 5, at(0)), ThinnedPass { skips: [true; 2], missed: [0; 2] });
        assert_eq!(room.poll_report(at(999)), None);
        assert_eq!(room.poll_report(at(1_000)), Some([5, 5]));
        assert_eq!(room.poll_report(at(2_000)), None, "once");
    }

    proptest! {
        /// Passes without messages between the others change nothing in the share that is served.
        #[test]
        fn low_classes_get_their_share_of_messages(
            level in 2_u8..5, gaps in prop::collection::vec(0_usize..4, 40),
        ) {
            let (mut room, mut served) = (RoomThinning::default(), 0);
            for gap in gaps {
                served += usize::from(!room.handle_pass(level, 1, at(0)).skips[0]);
                (0..gap).for_each(|_| assert_eq!(room.handle_pass(level, 0, at(0)), ThinnedPass::default()));
            }
            prop_assert_eq!(served, if level == 2 { 20 } else { 10 });
        }

        /// What each class is served and what is reported to it as missed add up to all messages, whatever the levels.
        #[test]
        fn thinned_passes_lose_nothing_uncounted(
            steps in prop::collection::vec((0_u8..5, 0_u64..20, 0_u64..1_500, any::<bool>()), 1..100),
        ) {
            let (mut room, mut now) = (RoomThinning::default(), 0);
            let (mut sent, mut accounted) = (0, [0; THINNED_CLASSES]);
            let mut in_row = [0; THINNED_CLASSES];
            for (level, messages, pause, polls) in steps {
                now += pause;
                if polls && let Some(missed) = room.poll_report(at(now)) {
                    (0..THINNED_CLASSES).for_each(|class| accounted[class] += missed[class]);
                }
                let pass = room.handle_pass(level, messages, at(now));
                sent += messages;
                for class in 0..THINNED_CLASSES {
                    accounted[class] += pass.missed[class];
                    in_row[class] = if pass.skips[class] { in_row[class] + 1 } else { 0 };
                    prop_assert!(in_row[class] < 4);
                    if !pass.skips[class] {
                        accounted[class] += messages;
                        prop_assert!(messages == 0 || accounted[class] == sent, "all is known with a pass");
                    }
                    prop_assert!(level >= 2 + (class as u8) || !pass.skips[class]);
                }
            }
            let rest = room.poll_report(at(now + 1_000)).unwrap_or_default();
            prop_assert_eq!([0, 1].map(|class| accounted[class] + rest[class]), [sent; THINNED_CLASSES]);
        }
    }
}

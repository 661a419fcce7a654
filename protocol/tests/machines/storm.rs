//! Tests of message storms: by example, and against a naive list.

mod model;
mod property;
mod take_over;

use std::time::Duration;
use tidegate_protocol::{
    Time,
    id::ConversationId,
    machine::storm::{
        HELD_MAX, PROFILE_PARTS_MAX, PastMessage, STORM_RUNS_MAX, StormEvent, StormId, StormMessage,
        StormPhase, StormReport, StormRule, StormWatch,
    },
};

/// Wall clock time minus owner's time of most tests.
const WALL: u64 = 1_700_000_000_000;

fn rule() -> StormRule {
    StormRule::new(100, Duration::from_secs(60))
}

fn message(seq: u64, received_ms: u64, decided_ms: u64) -> StormMessage {
    StormMessage { seq, received_ms, decided_at: Time::from_millis(decided_ms) }
}

/// Watch with the next position of its group.
struct Group {
    watch: StormWatch,
    rule: StormRule,
    seq: u64,
}

impl Group {
    fn new() -> Self {
        Self { watch: StormWatch::default(), rule: rule(), seq: 0 }
    }

    /// Accepts a message that was received at `ms` of the owner's time plus an error of the wall clock.
    fn hit(&mut self, ms: u64, error: i64) -> Option<StormEvent> {
        self.seq += 1;
        let received = (WALL + ms).saturating_add_signed(error);
        self.watch.handle_message(&self.rule, message(self.seq, received, ms))
    }

    fn tick(&mut self, ms: u64) -> Option<StormEvent> {
        self.watch.handle_tick(&self.rule, Time::from_millis(ms), WALL + ms)
    }
}

fn started(event: Option<StormEvent>) -> Option<StormReport> {
    match event? {
        StormEvent::Started(report) => Some(report),
        StormEvent::Ended(..) => None,
    }
}

#[test]
fn storm_starts_with_the_101st_message_of_100() {
    let mut group = Group::new();
    for n in 0..100 {
        assert_eq!(group.hit(n * 599, 0), None);
    }
    assert_eq!(group.watch.phase(), StormPhase::Quiet);
    let report = started(group.hit(59_999, 0)).expect("a storm");
    assert_eq!(report, StormReport { seq: 101, since_ms: WALL + 59_999, count: 101, peak: 101 });
    assert_eq!(group.hit(60_000, 0), None, "it starts once");

    let mut group = Group::new();
    (0..100).for_each(|n| assert_eq!(group.hit(n * 599, 0), None));
    assert_eq!(group.hit(60_000, 0), None, "the first has left the window");
}

#[test]
fn storm_cools_at_half_of_the_threshold_and_ends_one_window_later() {
    let mut group = Group::new();
    (0..101).for_each(|n| drop(group.hit(n * 100, 0)));
    let mut phases = vec![(0, group.watch.phase())];
    let mut ended = None;
    for second in 11..200 {
        if second == 90 {
            // 99 more within the window of the storm do not exceed it.
            (0..99).for_each(|n| drop(group.hit(90_000 + n, 0)));
        }
        ended = ended.or(group.tick(second * 1_000).map(|event| (second, event)));
        if group.watch.phase() != phases.last().unwrap().1 {
            phases.push((second, group.watch.phase()));
        }
    }
    // 51 of the 101 are left at 64.9 s.
    assert_eq!(phases, [(0, StormPhase::Storm), (65, StormPhase::Cooling), (125, StormPhase::Quiet)]);
    let Some((125, StormEvent::Ended(report, profile))) = ended else { panic!("{ended:?}") };
    assert_eq!((report.seq, report.peak, report.count), (101, 101, 99));
    assert_eq!(profile.counts().iter().sum::<u32>(), 200);
    assert_eq!(profile.start_ms(), (WALL + 10_000 - 60_000) / 1_000 * 1_000);
    assert_eq!(profile.counts()[50], 10, "ten in the first second");
}

#[test]
fn storm_that_grows_again_while_it_cools_is_the_same() {
    let mut group = Group::new();
    (0..101).for_each(|_| drop(group.hit(0, 0)));
    group.tick(60_000);
    assert_eq!(group.watch.phase(), StormPhase::Cooling);
    (0..150).for_each(|_| assert_eq!(group.hit(61_000, 0), None));
    assert_eq!(group.watch.phase(), StormPhase::Storm);
    group.tick(62_000);
    assert_eq!(group.watch.report().map(|it| (it.seq, it.count, it.peak)), Some((101, 150, 150)));
    assert_eq!(group.tick(121_000), None);
    assert_eq!(group.tick(180_999), None, "it cools from the start again");
    assert!(matches!(group.tick(181_000), Some(StormEvent::Ended(it, _)) if it.seq == 101));
}

#[test]
fn storm_counts_ten_thousand_messages_of_one_millisecond() {
    let mut group = Group::new();
    (0..10_000).for_each(|_| drop(group.hit(5, 0)));
    group.tick(6);
    assert_eq!(group.watch.report().map(|it| (it.count, it.peak)), Some((10_000, 10_000)));
    assert!(group.watch.heap_bytes() < 1_000, "{} bytes", group.watch.heap_bytes());
}

#[test]
fn storm_is_not_a_backlog_that_is_decided_at_once() {
    let mut group = Group::new();
    // 10,000 messages of 101 minutes are 99 per minute.
    for n in 0..10_000 {
        let event = group.watch.handle_message(&rule(), message(n, WALL + n * 606, 10_000_000 + n / 50));
        assert_eq!(event, None, "message {n}");
    }
    // Of messages that are far from each other, the oldest are forgotten.
    for n in 0..20_000 {
        let received = WALL + 10_000 * 606 + n * 7_000;
        assert_eq!(group.watch.handle_message(&rule(), message(n, received, 10_000_200 + n / 50)), None);
    }
    assert!(group.watch.heap_bytes() <= 2 * STORM_RUNS_MAX * 16, "{} bytes", group.watch.heap_bytes());
    // A backlog with a storm in it has that storm.
    let mut group = Group::new();
    let start = (0..10_000).find_map(|n| {
        let received = if n < 5_000 { n * 606 } else { 5_000 * 606 + n };
        started(group.watch.handle_message(&rule(), message(n, WALL + received, 10_000_000)))
    });
    let seq = start.expect("a storm").seq;
    assert!((5_001..5_020).contains(&seq), "{seq}");
}

#[test]
fn storm_is_not_made_by_clocks_that_jump() {
    let mut group = Group::new();
    let mut errors = [0_i64; 3];
    for n in 0..20_000_u64 {
        // Three nodes; 98 messages per minute.
        if n % 37 == 0 {
            errors[n as usize % 3] = [0, 3_600_000, -3_600_000, 59_000, -59_000, 4_000][n as usize / 37 % 6];
        }
        assert_eq!(group.hit(n * 612, errors[n as usize % 3]), None, "message {n}");
    }
}

#[test]
fn storm_of_nodes_whose_clocks_differ_by_little_is_exact() {
    let mut group = Group::new();
    (0..100).for_each(|n| assert_eq!(group.hit(n, [0, 4_000, -900][n as usize % 3]), None));
    assert!(started(group.hit(100, 0)).is_some());
    // One that is an hour ahead does not hide the storm of the others.
    let mut group = Group::new();
    let start = (0..500).find_map(|n| started(group.hit(n * 10, if n % 4 == 0 { 3_600_000 } else { 0 })));
    assert_eq!(start.expect("a storm").count, 101);
}

/// The owner's wall clock is off by an hour in both directions, or a quarter of the messages are an hour ahead.
#[test]
fn storm_is_not_ended_by_a_clock_that_jumps() {
    for (jump, ahead) in [(3_600_000_i64, 0), (-3_600_000, 0), (0, 3_600_000)] {
        let mut group = Group::new();
        for n in 0..3_000_u64 {
            let error = if n % 4 == 0 { ahead } else { 0 };
            let event = group.hit(n * 100, error);
            assert_eq!(event.is_some(), started(event).is_some());
            if n % 10 == 9 {
                let wall = (WALL + n * 100).saturating_add_signed(if n > 1_000 { jump } else { 0 });
                assert_eq!(group.watch.handle_tick(&group.rule, Time::from_millis(n * 100), wall), None);
            }
        }
        assert_eq!(group.watch.phase(), StormPhase::Storm);
    }
}

#[test]
fn storm_profile_has_a_bound_however_long_it_lasts() {
    let mut group = Group::new();
    let mut total = 0_u64;
    for ms in (0..5_000_000_u64).step_by(100) {
        // One clock jumps far ahead: the parts do not grow with it.
        group.hit(ms, if ms % 1_700 == 0 { 1 << 40 } else { 0 });
        total += 1;
        if ms % 1_000 == 0 {
            assert_eq!(group.tick(ms), None);
        }
        assert!(group.watch.profile().is_none_or(|profile| profile.counts().len() <= PROFILE_PARTS_MAX));
        assert!(group.watch.heap_bytes() < 100_000);
    }
    let profile = group.watch.profile().expect("a storm");
    assert_eq!(profile.part_ms(), 16_000);
    let counted: u64 = profile.counts().iter().map(|count| u64::from(*count)).sum();
    assert!((total - 20..=total).contains(&counted), "{counted} of {total}");
    assert_eq!(group.watch.report().map(|it| it.count), Some(565), "without those that are ahead");
}

#[test]
fn storm_watch_holds_what_arrives_before_the_past() {
    let mut watch = StormWatch::unknown();
    for n in 0..60 {
        assert_eq!(watch.handle_message(&rule(), message(100 + n, WALL + 1_000 + n, 1_000 + n)), None);
    }
    assert_eq!(watch.phase(), StormPhase::Unknown);
    assert_eq!(watch.known(&rule(), Time::from_millis(2_000)), 60, "at least");
    // The archive has some of those that are held, too.
    let past: Vec<_> = (50..110).map(|seq| PastMessage { seq, received_ms: WALL - 30_000 + seq }).collect();
    let event = watch.restore(&rule(), &past, None, WALL + 2_000, Time::from_millis(2_000));
    assert_eq!(started(event).map(|it| (it.seq, it.count)), Some((150, 101)));
    assert_eq!(watch.restore(&rule(), &past, None, WALL + 2_000, Time::from_millis(2_000)), None, "late");
    assert_eq!(watch.known(&rule(), Time::from_millis(2_000)), 110);

    // Without the past, the count is a lower bound.
    let mut watch = StormWatch::unknown();
    for n in 0..5_000 {
        assert_eq!(watch.handle_message(&rule(), message(n, WALL + n, n)), None);
    }
    assert!(watch.heap_bytes() <= HELD_MAX * 24);
    let event = watch.restore(&rule(), &[], None, WALL + 5_000, Time::from_millis(5_000));
    assert_eq!(started(event).map(|it| it.seq), Some(5_000 - HELD_MAX as u64 + 100));
}

#[test]
fn storm_that_ended_before_a_take_over_does_not_start_again() {
    let past: Vec<_> = (0..150).map(|seq| PastMessage { seq, received_ms: WALL - 90_000 + seq }).collect();
    let mut watch = StormWatch::unknown();
    assert_eq!(watch.handle_message(&rule(), message(150, WALL, 1_000)), None);
    assert_eq!(watch.restore(&rule(), &past, None, WALL, Time::from_millis(1_000)), None);
    assert_eq!((watch.phase(), watch.known(&rule(), Time::from_millis(1_000))), (StormPhase::Quiet, 1));
}

#[test]
fn storm_counts_receive_times_at_both_ends_of_their_range() {
    for received in [0, u64::MAX] {
        let mut watch = StormWatch::default();
        let starts = (0..200).filter_map(|n| started(watch.handle_message(&rule(), message(n, received, n))));
        assert_eq!(starts.map(|it| it.seq).collect::<Vec<_>>(), [100], "received at {received}");
        assert_eq!(watch.handle_tick(&rule(), Time::from_millis(300), WALL), None);
        assert_eq!(watch.report().map(|it| it.count), Some(200));
    }
}

/// Without messages that share a run the precision is the lowest; a 64th of 1.5 s is 23 ms.
#[test]
fn storm_window_is_shorter_by_a_64th_of_it_at_most() {
    let rule = StormRule::new(u32::MAX, Duration::from_millis(1_500));
    let mut watch = StormWatch::default();
    let messages = 2 * STORM_RUNS_MAX as u64;
    for n in 0..messages {
        watch.handle_message(&rule, message(n, WALL + n * 10_000, 0));
    }
    for n in 0..64 {
        let received = WALL + messages * 10_000 + n * 10_001;
        watch.handle_message(&rule, message(messages + 2 * n, received, 0));
        watch.handle_message(&rule, message(messages + 2 * n + 1, received + 1_476, 0));
        assert_eq!(watch.known(&rule, Time::ZERO), 2, "the first was received at {received}");
    }
}

#[test]
fn storm_watch_is_idle_after_two_windows_without_a_message() {
    let mut group = Group::new();
    assert!(group.watch.is_idle(&rule(), Time::ZERO));
    group.hit(1_000, 0);
    assert!(!group.watch.is_idle(&rule(), Time::from_millis(120_999)));
    assert!(group.watch.is_idle(&rule(), Time::from_millis(121_000)));
    // A window whose times would wrap around is empty.
    assert_eq!(group.watch.known(&rule(), Time::from_millis(1_000 + (1 << 32))), 0);
}

#[test]
fn storm_id_is_its_group_and_position() {
    let id = StormId { conversation: ConversationId::parse("g:ops").unwrap(), seq: 101 };
    assert_eq!(id.to_string(), "g:ops/101");
    assert_eq!(StormId::parse("g:ops/101"), Some(id));
    for text in ["", "g:ops", "g:ops/", "g:ops/+1", "g:ops/01", "ops/1", "g:ops/1/2"] {
        assert_eq!(StormId::parse(text), None, "{text}");
    }
}

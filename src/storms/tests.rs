//! Tables of watches in isolation: bounds, what is forgotten and read again, and pages.

use futures_util::FutureExt as _;
use tidegate_protocol::machine::storm::PastMessage;
use tokio::time;

mod property;

use super::*;
use crate::{events::What, metrics};

const WINDOW: Duration = Duration::from_secs(60);

struct World {
    board: StormBoard,
    events: Arc<Events>,
    table: Arc<StormTable>,
}

fn group(n: usize) -> ConversationId {
    ConversationId::parse(&format!("g:x{n}")).unwrap()
}

impl World {
    /// Starts a board of 1 MiB, whose owner is new.
    fn start(threshold: u32) -> Self {
        let board = StormBoard::new(StormRule::new(threshold, WINDOW), 1 << 20);
        let events = Arc::new(Events::new("", 1, 0));
        let table = board.open(0, &events, &metrics::install().0);
        Self { board, events, table }
    }

    /// Starts a board whose owner has accepted messages for so long that it knows the past of all groups.
    async fn settled(threshold: u32) -> Self {
        let world = Self::start(threshold);
        time::advance(WINDOW * 2).await;
        world
    }

    fn count(&self, group: &ConversationId, seqs: std::ops::RangeInclusive<u64>) {
        self.table.count(seqs.map(|seq| (group, seq, 1_000_000)));
    }

    fn view(&self, group: &ConversationId) -> Option<StormView> {
        self.board.page(&StormsQuery { group: Some(group.clone()) }).storms.pop()
    }

    fn reported(&self) -> Vec<(String, bool)> {
        let page = self.events.ring().page(None, 100);
        let notice = |what: &What| match what {
            What::Storm(notice) => Some((notice.id.to_string(), notice.profile.is_some())),
            _ => None,
        };
        page.events.iter().filter_map(|event| notice(&event.what)).collect()
    }

    /// Answers the request for the past of a group before `end`.
    fn restore(&self, group: &ConversationId, end: u64, messages: &[PastMessage]) {
        self.table.restore(group, GroupPast { end, messages, store_now_ms: 1_000_000 });
    }

    fn unread(&self) -> Vec<(ConversationId, u64)> {
        self.table.next_unread(1_000).now_or_never().unwrap_or_default()
    }
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_and_a_storm_is_not_forgotten_for_quiet_groups() {
    let world = World::settled(100).await;
    world.count(&group(0), 1..=101);
    for n in 1..20_000 {
        world.count(&group(n), 1..=1);
        assert!(world.board.bytes() <= 1 << 20, "{} bytes with {n} groups", world.board.bytes());
    }
    assert!(world.board.bytes() > 1 << 19, "{} bytes are used", world.board.bytes());
    assert_eq!(world.view(&group(0)).unwrap().phase, StormPhase::Storm);
    let watched = (1..20_000).filter(|n| world.view(&group(*n)).is_some()).count();
    assert!((1_000..10_000).contains(&watched), "{watched} groups are watched");
}

#[tokio::test(start_paused = true)]
async fn groups_without_messages_need_no_memory() {
    let world = World::settled(100).await;
    for n in 0..1_000 {
        world.count(&group(n), 1..=1);
    }
    world.count(&group(0), 2..=102);
    time::advance(WINDOW).await;
    world.table.tick(1);
    assert!(world.view(&group(1)).is_some());
    // The storm cools for one more window.
    for _ in 0..100 {
        time::advance(Duration::from_secs(2)).await;
        world.table.tick(1);
    }
    assert_eq!(world.reported(), [("g:x0/101".to_owned(), false), ("g:x0/101".to_owned(), true)]);
    assert_eq!((world.view(&group(0)), world.board.bytes()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn forgotten_group_is_read_again_at_half_of_the_threshold() {
    let world = World::settled(100).await;
    world.count(&group(0), 1..=60);
    let mut n = 0;
    while world.view(&group(0)).is_some() {
        n += 1;
        assert!(n < 10_000, "the group is not forgotten");
        world.count(&group(n), 1..=100);
    }
    // The groups of the flood may be forgotten ones, too.
    world.unread();
    world.count(&group(0), 61..=110);
    assert_eq!((world.unread(), world.view(&group(0)).unwrap().count), (vec![], 50));
    world.count(&group(0), 111..=111);
    assert_eq!(world.unread(), [(group(0), 111)]);
    assert_eq!(world.view(&group(0)).unwrap().phase, StormPhase::Unknown);
    let past: Vec<PastMessage> = (1..=110).map(|seq| PastMessage { seq, received_ms: 1_000_000 }).collect();
    world.restore(&group(0), 111, &past);
    let view = world.view(&group(0)).unwrap();
    assert_eq!((view.phase, view.count), (StormPhase::Storm, 111));
    assert_eq!(world.reported(), [("g:x0/101".to_owned(), false)]);
}

#[tokio::test(start_paused = true)]
async fn groups_of_a_new_owner_wait_for_their_past_up_to_a_limit() {
    let world = World::start(100);
    for n in 0..5_000 {
        world.count(&group(n), 7..=7);
    }
    let mut waiting = Vec::new();
    loop {
        let unread = world.unread();
        if unread.is_empty() {
            break;
        }
        waiting.extend(unread);
    }
    // Some of the first 4,096 were forgotten for the others.
    assert!(waiting.len() <= 4_096 && waiting.len() > 1_000, "{} groups wait", waiting.len());
    assert!(waiting.iter().all(|(_, seq)| *seq == 7));
    let (first, _) = &waiting[0];
    assert_eq!(world.view(first).unwrap().phase, StormPhase::Unknown);
    // The past could not be read.
    world.restore(first, 7, &[]);
    let view = world.view(first).unwrap();
    assert_eq!((view.phase, view.count), (StormPhase::Quiet, 1));
}

#[tokio::test(start_paused = true)]
async fn storms_start_and_end_by_their_messages_while_no_tick_comes() {
    let world = World::settled(100).await;
    let burst = async |first: u64, received_ms: u64| {
        let (group, seqs) = (group(0), first..first + 101);
        world.table.count(seqs.map(|seq| (&group, seq, received_ms)));
    };
    burst(1, 1_000_000).await;
    // Ten minutes of a starved task: the next messages belong to another storm.
    time::advance(WINDOW * 10).await;
    burst(102, 1_600_000).await;
    let two = [("g:x0/101".to_owned(), false), ("g:x0/101".to_owned(), true), ("g:x0/202".to_owned(), false)];
    assert_eq!(world.reported(), two);
    time::advance(WINDOW * 2).await;
    world.table.tick(1_720_000);
    assert_eq!(world.reported().last(), Some(&("g:x0/202".to_owned(), true)), "the first tick finds the end");
    assert_eq!(world.reported().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn late_past_of_a_forgotten_group_is_ignored_and_read_again() {
    let world = World::start(100);
    world.count(&group(0), 61..=61);
    assert_eq!(world.unread(), [(group(0), 61)]);
    // The group is forgotten while its past is read, and gets 49 messages until it is watched again.
    let mut n = 0;
    while world.view(&group(0)).is_some() {
        n += 1;
        assert!(n < 10_000, "the group is not forgotten");
        world.count(&group(n), 1..=1);
    }
    while !world.unread().is_empty() {}
    world.count(&group(0), 111..=111);
    let past = |end: u64| (1..end).map(|seq| PastMessage { seq, received_ms: 1_000_000 }).collect::<Vec<_>>();
    world.restore(&group(0), 61, &past(61));
    assert_eq!(world.view(&group(0)).unwrap().phase, StormPhase::Unknown, "it lacks 50 messages");
    assert_eq!(world.unread(), [(group(0), 111)]);
    world.restore(&group(0), 61, &past(61));
    assert_eq!(world.view(&group(0)).unwrap().phase, StormPhase::Unknown);
    world.restore(&group(0), 111, &past(111));
    assert_eq!(world.view(&group(0)).unwrap().count, 111);
    assert_eq!(world.reported(), [("g:x0/101".to_owned(), false)]);
}

#[tokio::test(start_paused = true)]
async fn page_has_the_storms_of_all_owners_with_the_largest_first() {
    let world = World::settled(10).await;
    let other = world.board.open(1, &world.events, &metrics::install().0);
    time::advance(WINDOW * 2).await;
    world.count(&group(1), 1..=11);
    world.count(&group(2), 1..=10);
    let third = group(3);
    other.count((1..=20).map(|seq| (&third, seq, 1_000_000)));
    other.tick(1);
    let page = world.board.page(&StormsQuery::default());
    let shown: Vec<(&str, u32)> = page.storms.iter().map(|it| (it.conversation.as_str(), it.count)).collect();
    assert_eq!((shown, page.total), (vec![("g:x3", 20), ("g:x1", 11)], 2));
    assert!(page.storms.iter().all(|it| it.storm.as_ref().is_some_and(|storm| storm.profile.is_none())));
    let storm = world.view(&group(3)).unwrap().storm.unwrap();
    assert_eq!(storm.profile.unwrap().counts.iter().sum::<u32>(), 20);
    drop(other);
    assert_eq!(world.board.page(&StormsQuery::default()).total, 1, "an owner that ends has no storms");
}

#[tokio::test(start_paused = true)]
async fn changed_rule_holds_from_the_next_message_on() {
    let world = World::settled(100).await;
    world.count(&group(1), 1..=50);
    world.board.set_rule(StormRule::new(50, WINDOW), None);
    assert!(world.reported().is_empty());
    world.count(&group(1), 51..=51);
    assert_eq!(world.reported(), [("g:x1/51".to_owned(), false)]);
    assert_eq!(world.view(&group(1)).unwrap().threshold, 50);
}

mod rooms;

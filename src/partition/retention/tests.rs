//! Records that a round of retention appends, and the store after the owner has applied them.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_protocol::{
    id::{DeviceId, GroupId, MsgId, UserId},
    machine::ledger::Ledger,
    record::{MemberAction, MemberChange, Message, Position, Role, SenderOrder, body_hash},
};

use super::*;
use crate::{
    bus::{LocalBus, LocalBusConfig, TopicId},
    routes::NodeBoot,
    store::{FeedStore as _, MemoryStore},
};

const DAY: u64 = 24 * HOUR_MS;
const NOW: u64 = 1_000 * DAY;

/// Round in which the owner of [`World`] checks the keys.
const KEYS_ROUND: u64 = 1;

/// A partition with its owner.
struct World {
    bus: LocalBus,
    store: MemoryStore,
    ledger: Ledger,
    _ownership: Box<dyn crate::bus::Ownership>,
}

impl World {
    async fn new() -> Self {
        let bus = LocalBus::new(LocalBusConfig {
            partitions: 1,
            topic: TopicId(1),
            max_records: 10_000,
            max_bytes: 1 << 24,
            node_max_records: 1,
            node_max_bytes: 1,
        });
        let store = MemoryStore::default();
        let me = NodeBoot { node: NodeId::new("n").unwrap(), boot: 1 };
        let mut ownership = bus.join(&me).await.unwrap();
        ownership.next().await.unwrap();
        let taken = store.take_over(0, Fence(1), TopicId(1)).await.unwrap();
        let ledger = Ledger::resume(taken.position, taken.rules, 1);
        Self { bus, store, ledger, _ownership: ownership }
    }

    async fn append(&mut self, time: u64, body: Body) {
        let origin = Origin { node: NodeId::new("n").unwrap(), boot: 1, conn: 1, request: 1 };
        self.bus
            .append(0, vec![Record { origin, received_at: time, body, trace: None }.encode()])
            .await
            .unwrap();
        self.own().await;
    }

    /// Decides and archives the appended records, and returns them.
    async fn own(&mut self) -> Vec<Body> {
        let mut bodies = Vec::new();
        while self.ledger.next_offset() < self.bus.bounds(0).await.unwrap().next {
            let batch = self.bus.read(0, self.ledger.next_offset(), 1, 1).await.unwrap();
            let at = &batch.records[0];
            let record = Record::decode(at.bytes.clone()).unwrap();
            let mut needs = BTreeSet::new();
            self.ledger.needs(&record, &mut needs);
            let needs: Vec<_> = needs.into_iter().collect();
            let rows = self.store.load(0, Fence(1), &needs).await.unwrap();
            self.ledger.load(rows.position, rows.rows).unwrap();
            self.ledger.apply(at.offset, &record).unwrap();
            let to = Position::behind(at.offset, &at.bytes);
            let delta = self.ledger.take_delta(to).unwrap();
            self.store.archive(0, Fence(1), &delta).await.unwrap();
            self.ledger.archived(to).unwrap();
            bodies.push(record.body);
        }
        bodies
    }

    /// Runs one round at the time `NOW` and returns what it appended.
    async fn round(&mut self, round: u64, node: Keep) -> Vec<Body> {
        self.round_at(round, node, || NOW).await
    }

    /// Runs one round with this clock and returns what it appended.
    async fn round_at(&mut self, round: u64, node: Keep, wall_ms: fn() -> u64) -> Vec<Body> {
        self.sweeper(1, settings(node, wall_ms)).round(round).await.unwrap();
        self.own().await
    }

    fn sweeper(&self, fence: u128, settings: Settings) -> Sweeper<'_> {
        Sweeper {
            partition: 0,
            fence: Fence(fence),
            bus: &self.bus,
            store: &self.store,
            settings,
            rules: watch::channel(self.ledger.rules()).1,
            keys_from: 0,
            metrics: None,
            clock: ClockCheck::default(),
            is_distrust_logged: false,
        }
    }

    /// Returns the range of the feed after a round.
    async fn feed_after(&self, settings: Settings) -> (u64, u64) {
        self.sweeper(1, settings).round(0).await.unwrap();
        let it = self.store.feed_positions().await.unwrap()[0];
        (it.oldest, it.newest)
    }

    async fn seqs(&self, id: &ConversationId) -> Vec<u64> {
        let query = PageQuery { cursor: 0, direction: Direction::Forward, limit: 10_000, max_bytes: 1 << 30 };
        self.store.page(id, query).await.unwrap().rows.iter().map(|stored| stored.row.seq).collect()
    }
}

fn settings(node: Keep, wall_ms: fn() -> u64) -> Settings {
    let feed = FeedRetention { keep: Duration::from_millis(2 * DAY), bytes_max: 1 << 30 };
    Settings { node, every: Duration::from_secs(60), keys: Duration::from_millis(8 * DAY), feed, wall_ms }
}

fn direct() -> ConversationId {
    ConversationId::direct(&UserId::new("ann").unwrap(), &UserId::new("bob").unwrap())
}

fn message(to: &ConversationId, id: u64) -> Body {
    Body::Message(Message {
        conversation: to.clone(),
        sender: UserId::new("ann").unwrap(),
        device: DeviceId::new("phone").unwrap(),
        msg_id: MsgId::new(&format!("m{id}")).unwrap(),
        attempt: 0,
        content: Bytes::new(),
        order: SenderOrder::default(),
        flags: 0,
        mode: Default::default(),
        body_hash: body_hash(b""),
    })
}

fn group(name: &str, keep: &str) -> (ConversationId, Body) {
    let id = ConversationId::group(&GroupId::new(name).unwrap());
    let change = MemberChange {
        conversation: id.clone(),
        action: MemberAction::Create,
        users: vec![UserId::new("ann").unwrap()],
        role: Some(Role::Member),
        by: None,
        settings: [(RETENTION_SETTING.to_owned(), keep.to_owned())].into(),
        request_id: MsgId::new("r1").unwrap(),
    };
    (id, Body::Member(change))
}

fn pruned(id: &ConversationId, up_to: u64) -> Body {
    Body::Prune(Prune { conversation: id.clone(), up_to })
}

#[tokio::test]
async fn retention_follows_the_group_setting_or_the_node() {
    let mut world = World::new().await;
    let age = [40 * DAY, 8 * DAY, 2 * DAY, 2 * HOUR_MS, HOUR_MS / 2];
    let mut all = vec![(direct(), [1, 2, 3].as_slice())];
    for (name, keep, left) in [
        ("a", "none", &[6][..]),
        ("b", "1d", &[5, 6]),
        ("c", "30d", &[3, 4, 5, 6]),
        ("d", "forever", &[1, 2, 3, 4, 5, 6]),
        ("e", "", &[4, 5, 6]),
    ] {
        let (id, create) = group(name, keep);
        world.append(NOW - 50 * DAY, create).await;
        all.push((id, left));
    }
    for (number, age) in (0..).zip(age) {
        for (id, _) in &all {
            world.append(NOW - age, message(id, number)).await;
        }
    }
    all[0].1 = &[3, 4, 5];
    let appended = world.round(0, Keep::Days(7)).await;
    assert!(appended.contains(&pruned(&direct(), 2)), "{appended:?}");
    for (id, left) in &all {
        assert_eq!(world.seqs(id).await, *left, "{id}");
    }
    let again = world.round(0, Keep::Days(7)).await;
    assert_eq!(again, [], "nothing expires twice");
    assert_eq!(world.ledger.head(&direct()).unwrap().unwrap().last_seq, 5, "no seq is handed out again");
}

#[test]
fn invalid_group_setting_falls_back_to_the_node() {
    let (id, _) = group("a", "");
    let head = |keep: &str| Head {
        settings: BTreeMap::from([(RETENTION_SETTING.to_owned(), keep.to_owned())]).into(),
        ..Head::default()
    };
    assert_eq!(Keep::of(&id, &head("a while"), Keep::Days(7)), Keep::Days(7));
    assert_eq!(Keep::of(&id, &head("1d"), Keep::Days(7)), Keep::Days(1));
}

#[tokio::test]
async fn old_rows_go_in_parts_and_a_young_row_protects_later_ones() {
    let mut world = World::new().await;
    for number in 0..2_500 {
        // The clock was set back for the last hundred.
        let time = if number == 2_399 { NOW } else { NOW - 10 * DAY };
        world.append(time, message(&direct(), number)).await;
    }
    let appended = world.round(0, Keep::Days(1)).await;
    let prunes: Vec<_> = appended.into_iter().filter(|body| matches!(body, Body::Prune(_))).collect();
    assert_eq!(prunes, [pruned(&direct(), 1_000), pruned(&direct(), 2_000), pruned(&direct(), 2_399)]);
    assert_eq!(world.seqs(&direct()).await.len(), 101);
}

#[tokio::test]
async fn s22_a_key_lives_for_eight_days_and_then_goes() {
    let mut world = World::new().await;
    for (number, age) in (0..).zip([10 * DAY, 9 * DAY, 7 * DAY, 9 * DAY, DAY]) {
        world.append(NOW - age, message(&direct(), number)).await;
    }
    let appended = world.round(KEYS_ROUND, Keep::Forever).await;
    // Record 3 is old too, but younger ones precede it: a clock that was set back expires no key early.
    assert_eq!(
        appended,
        [Body::Rules(RuleChange { dedup_window: Some(0), keys_from: 2, ..RuleChange::default() })]
    );
    let scan = Scan::Keys { from: 0, after: None, limit: 100 };
    assert_eq!(world.store.scan(0, Fence(1), &scan).await.unwrap().rows.len(), 3);
    assert_eq!(world.round(KEYS_ROUND, Keep::Forever).await, [], "the second round appends nothing");
    assert_eq!(world.seqs(&direct()).await.len(), 5, "the messages stay");
}

/// One node with a wrong clock would expire data permanently for all.
#[tokio::test]
async fn k1_clock_that_differs_from_the_store_expires_nothing() {
    let mut world = World::new().await;
    for (number, age) in (0..).zip([5 * DAY, DAY]) {
        world.append(NOW - age, message(&direct(), number)).await;
    }
    world.store.set_now_ms(NOW);
    for wall_ms in [|| NOW + 40 * DAY, || NOW + HOUR_MS, || NOW - HOUR_MS] {
        assert_eq!(world.round_at(KEYS_ROUND, Keep::Days(30), wall_ms).await, []);
    }
    assert_eq!(world.seqs(&direct()).await, [1, 2]);
    let scan = Scan::Keys { from: 0, after: None, limit: 100 };
    assert_eq!(world.store.scan(0, Fence(1), &scan).await.unwrap().rows.len(), 2);
    // The clocks agree, and the earlier one counts.
    let appended = world.round_at(0, Keep::Days(5), || NOW + 60_000).await;
    assert_eq!(appended, [], "it is five days old by one clock only");
    world.store.set_now_ms(NOW + 60_000);
    assert_eq!(world.round_at(0, Keep::Days(5), || NOW + 60_000).await, [pruned(&direct(), 1)]);
}

#[tokio::test]
async fn feed_expires_by_a_trusted_clock_and_by_its_size() {
    let mut world = World::new().await;
    for (number, age) in (0..).zip([5 * DAY, 3 * DAY, DAY, DAY]) {
        world.append(NOW - age, message(&direct(), number)).await;
    }
    world.store.set_now_ms(NOW);
    assert_eq!(
        world.feed_after(settings(Keep::Forever, || NOW + 40 * DAY)).await,
        (1, 4),
        "the clocks differ"
    );
    assert_eq!(world.feed_after(settings(Keep::Forever, || NOW)).await, (3, 4));
    assert_eq!(world.seqs(&direct()).await, [1, 2, 3, 4], "the messages stay");
    let bytes = world.store.feed_positions().await.unwrap()[0].bytes;
    let of_size = |bytes_max| Settings {
        feed: FeedRetention { bytes_max, ..settings(Keep::Forever, || NOW).feed },
        ..settings(Keep::Forever, || NOW + 40 * DAY)
    };
    assert_eq!(world.feed_after(of_size(bytes)).await, (3, 4));
    assert_eq!(world.feed_after(of_size(bytes - 1)).await, (4, 4), "whatever the clock is");
    assert_eq!(world.feed_after(of_size(0)).await, (5, 4));
}

#[tokio::test]
async fn keys_are_checked_once_a_day_in_a_round_drawn_by_the_fence() {
    let world = World::new().await;
    let due = |fence: u128| -> Vec<u64> {
        let it = world.sweeper(fence, settings(Keep::Forever, || NOW));
        (0..3 * 1_440).filter(|round| it.keys_are_due(*round)).collect()
    };
    assert_eq!(due(1), [KEYS_ROUND, KEYS_ROUND + 1_440, KEYS_ROUND + 2 * 1_440]);
    // 64 partitions are taken over together, and again within an hour.
    let fences = (0..64).map(|_| rand::random::<u128>());
    let soon = fences.filter(|fence| due(*fence).first() < Some(&60)).count();
    assert!(soon < 20, "{soon} of 64 within an hour");
}

#[tokio::test]
async fn long_retention_is_checked_rarely_and_former_owner_stops() {
    let every = Duration::from_secs(60);
    let due = |keep: Keep| (1..=2 * 720).filter(|round| keep.is_due(*round, every)).count();
    assert_eq!([Keep::Hour, Keep::Days(1), Keep::Days(7), Keep::Days(30)].map(due), [1_440, 60, 8, 2]);
    let world = World::new().await;
    world.store.take_over(0, Fence(2), TopicId(1)).await.unwrap();
    let settings = Settings { every: Duration::from_millis(1), ..settings(Keep::Days(1), || NOW) };
    world.sweeper(1, settings).run().await;
}

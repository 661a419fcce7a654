//! Storms of a group whose messages the owner accepts: start, end, backlog, and take-over in the middle.

mod actions;

use tidegate_protocol::{
    machine::{ledger::LEDGER_NEWEST, storm::StormPhase},
    record::{Edit, RuleChange},
};

use super::*;
use crate::{
    events::What,
    fault::Fault,
    storms::{StormView, StormsQuery},
};

/// Receive time of messages, in ms.
const RECEIVED: u64 = 1_763_712_000_000;

/// Returns what was reported: the id of each storm, with whether it is over.
fn reported(cluster: &Cluster) -> Vec<(String, bool)> {
    let notice = |what: &What| match what {
        What::Storm(notice) => Some((notice.id.to_string(), notice.profile.is_some())),
        _ => None,
    };
    let page = cluster.events.ring().page(None, 1_000);
    page.events.iter().filter_map(|event| notice(&event.what)).collect()
}

fn started(id: &str) -> (String, bool) {
    (id.to_owned(), false)
}

fn view(cluster: &Cluster) -> Option<StormView> {
    cluster.storms.page(&StormsQuery { group: Some(group()) }).storms.pop()
}

impl World {
    /// Starts with a group of one member.
    async fn with_group() -> Self {
        let mut world = Self::start().await;
        world.publish(vec![change(MemberAction::Create, &[0])]).await;
        world
    }

    async fn publish_messages(&mut self, received_at: u64, count: usize) {
        self.publish_at(received_at, (0..count).map(|_| message()).collect()).await;
    }

    /// Runs the task that reads the past, until there is nothing to read.
    async fn read_past(&self) {
        let task = tokio::spawn(self.owner.read_past());
        for _ in 0..1_000 {
            if view(&self.cluster).is_none_or(|it| it.phase != StormPhase::Unknown) {
                break;
            }
            let_pass(Duration::from_millis(10)).await;
        }
        task.abort();
        assert_ne!(view(&self.cluster).map(|it| it.phase), Some(StormPhase::Unknown), "the past is not read");
    }

    /// Replaces the owner by a new one, as after a crash.
    async fn take_over_again(&mut self) {
        let settings = self.owner.settings.clone();
        let metrics = self.owner.metrics.clone();
        self.owner = Owner::take_over(0, &self.cluster, None, settings, &metrics).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn storm_starts_above_the_threshold_and_ends_two_windows_later() {
    let World { owner, mut out, cluster, mailbox: _mailbox, _ownership, .. } = World::with_group().await;
    let (stopping, lost) = (CancellationToken::new(), CancellationToken::new());
    let append = async |count: usize| {
        let records = (0..count).map(|_| record(RECEIVED, message()).encode()).collect();
        cluster.ports.bus.append(0, records).await.unwrap();
    };
    let story = async {
        append(100).await;
        let_pass(Duration::from_secs(2)).await;
        let quiet = view(&cluster).unwrap();
        assert_eq!((quiet.phase, quiet.count, reported(&cluster)), (StormPhase::Quiet, 100, Vec::new()));
        append(1).await;
        let_pass(Duration::from_millis(1)).await;
        // The group's creation has seq 1.
        assert_eq!(reported(&cluster), [started("g:tea/102")]);
        append(50).await;
        let_pass(Duration::from_secs(57)).await;
        let storm = view(&cluster).unwrap();
        assert_eq!((storm.phase, storm.count), (StormPhase::Storm, 151));
        assert_eq!(storm.storm.map(|it| (it.peak, it.since_ms)), Some((151, RECEIVED)));
        let_pass(Duration::from_secs(6)).await;
        assert_eq!(view(&cluster).unwrap().phase, StormPhase::Cooling);
        let_pass(Duration::from_secs(55)).await;
        assert_eq!(reported(&cluster), [started("g:tea/102")]);
        let_pass(Duration::from_secs(6)).await;
        assert_eq!(reported(&cluster), [started("g:tea/102"), ("g:tea/102".to_owned(), true)]);
        stopping.cancel();
    };
    let mut logins = None;
    let (exit, ()) = tokio::join!(owner.run(&mut logins, &mut out, &stopping, &lost), story);
    assert!(matches!(exit, OwnerExit::Revoked), "{exit:?}");
    assert_eq!(view(&cluster), None, "an owner that ends watches no group");
}

#[tokio::test(start_paused = true)]
async fn edits_count_as_messages_do() {
    let mut world = World::with_group().await;
    let newest = RuleChange { ledger_version: LEDGER_NEWEST, ..RuleChange::default() };
    world.publish(vec![Body::Rules(newest)]).await;
    world.publish_messages(RECEIVED, 60).await;
    world.read_past().await;
    let edit = |by: usize| {
        let content = Bytes::from_static(b"hello there");
        Body::Edit(Edit {
            conversation: group(),
            seq: 2,
            by: Some(user(by)),
            device: DeviceId::new("phone").unwrap(),
            msg_id: MsgId::new(&rand::random::<u64>().to_string()).unwrap(),
            body_hash: body_hash(&content),
            content,
            denied: None,
        })
    };
    world.publish_at(RECEIVED, (0..40).map(|_| edit(0)).collect()).await;
    // Those of a stranger are refused, and count no more than refused messages.
    world.publish_at(RECEIVED, (0..40).map(|_| edit(7)).collect()).await;
    assert_eq!((view(&world.cluster).map(|it| it.count), reported(&world.cluster)), (Some(100), Vec::new()));
    world.publish_at(RECEIVED, vec![edit(0)]).await;
    assert_eq!(reported(&world.cluster), [started("g:tea/102")]);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_messages_of_one_millisecond_count_as_many() {
    let mut world = World::with_group().await;
    world.publish_messages(RECEIVED, 1).await;
    world.read_past().await;
    for _ in 0..10 {
        world.publish_messages(RECEIVED, 1_000).await;
    }
    assert_eq!(view(&world.cluster).unwrap().count, 10_001);
    assert_eq!(reported(&world.cluster), [started("g:tea/102")]);
}

#[tokio::test(start_paused = true)]
async fn only_accepted_messages_of_groups_count() {
    let mut world = World::with_group().await;
    world.publish_messages(RECEIVED, 1).await;
    world.read_past().await;
    let retried = message();
    let stranger = match message() {
        Body::Message(it) => Body::Message(Message { sender: user(7), ..it }),
        other => other,
    };
    let bodies = vec![retried.clone(), retried.clone(), retried, stranger, change(MemberAction::Join, &[3])];
    world.publish_at(RECEIVED, bodies).await;
    world.publish(to_strangers(0, 5)).await;
    assert_eq!(view(&world.cluster).unwrap().count, 2);
    assert_eq!(world.cluster.storms.page(&StormsQuery::default()).total, 0);
}

#[tokio::test(start_paused = true)]
async fn backlog_after_an_outage_is_no_storm() {
    let mut world = World::with_group().await;
    world.publish_messages(RECEIVED, 1).await;
    world.read_past().await;
    // Received over ten minutes, 100 in each, and decided at once.
    let spread: Vec<(u64, Body)> = (1..=1_000).map(|n| (RECEIVED + n * 600, message())).collect();
    world.publish_each(spread).await;
    assert!(reported(&world.cluster).is_empty());
    // The same number within one minute is one, however late it is decided.
    world.publish_messages(RECEIVED + 700_000, 101).await;
    assert_eq!(reported(&world.cluster), [started("g:tea/1103")]);
}

#[tokio::test(start_paused = true)]
async fn new_owner_continues_a_storm_under_its_id() {
    let mut world = World::with_group().await;
    world.publish_messages(RECEIVED, 1).await;
    world.read_past().await;
    world.publish_messages(RECEIVED, 149).await;
    assert_eq!(reported(&world.cluster), [started("g:tea/102")]);
    world.take_over_again().await;
    assert_eq!(view(&world.cluster), None);
    world.publish_messages(RECEIVED + 1_000, 1).await;
    assert_eq!(view(&world.cluster).unwrap().phase, StormPhase::Unknown);
    world.read_past().await;
    let storm = view(&world.cluster).unwrap();
    assert_eq!((storm.phase, storm.count), (StormPhase::Storm, 151));
    assert_eq!(reported(&world.cluster), [started("g:tea/102"), started("g:tea/102")]);
}

#[tokio::test(start_paused = true)]
async fn new_owner_whose_past_is_unreadable_counts_from_its_start() {
    let mut world = World::with_group().await;
    world.publish_messages(RECEIVED, 90).await;
    world.take_over_again().await;
    (0..100).for_each(|_| world.plan.plan("message_times", Fault::Fail));
    world.publish_messages(RECEIVED, 90).await;
    world.read_past().await;
    let quiet = view(&world.cluster).unwrap();
    assert_eq!((quiet.phase, quiet.count), (StormPhase::Quiet, 90));
    world.publish_messages(RECEIVED, 11).await;
    assert_eq!(reported(&world.cluster).len(), 1, "101 messages of its own are a storm");
}

#[tokio::test(start_paused = true)]
async fn new_owner_finds_the_first_message_of_a_heavy_storm() {
    let mut world = World::with_group().await;
    world.publish_messages(RECEIVED, 1).await;
    world.read_past().await;
    world.publish_messages(RECEIVED, 999).await;
    world.take_over_again().await;
    world.plan.plan("message_times", Fault::Fail);
    world.publish_messages(RECEIVED, 1).await;
    world.read_past().await;
    assert_eq!(view(&world.cluster).unwrap().count, 1_001);
    assert_eq!(reported(&world.cluster), [started("g:tea/102"), started("g:tea/102")]);
}

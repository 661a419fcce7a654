//! Owners that publish before they archive (ADR 16): whom readers wait for, and what happens to published records.

use std::rc::Rc;

use bytes::Bytes;
use tidegate::{
    bus::partition_of,
    fault::{Fault, Gate},
    routes::{Lease, Registration, Routes as _},
    store::Store as _,
};
use tidegate_protocol::{
    id::{ConversationId, DeviceId, MsgId, UserId},
    machine::session::SubmitAnswer,
    record::{Body, MemberAction, MemberChange, Message, SenderOrder, body_hash},
};
use tokio::time::{Duration, Instant};

use super::{
    PARTITIONS, SimNode, World,
    owners::{Nodes, archived, import_all, in_one_thread, two_nodes, with},
    pass, seq_of,
};

fn user(name: &str) -> UserId {
    UserId::new(name).expect("a valid value")
}

/// Returns a conversation of ann in a partition: the first node owns 0 and 2, the second 1.
fn conversation_in(partition: u32) -> ConversationId {
    let all = (0..).map(|n| ConversationId::direct(&user("ann"), &user(&format!("u{n}"))));
    let mut there = all.filter(|it| partition_of(it, PARTITIONS as u32) == partition);
    there.next().expect("an endless range")
}

/// Returns two nodes after the switch of the rules, which is archived first.
async fn nodes() -> (Rc<World>, Nodes) {
    let (world, nodes) = two_nodes().await;
    pass(5_000).await;
    (world, nodes)
}

/// Sends through a node; returns the acked seq.
async fn say(nodes: &Nodes, nth: usize, place: &ConversationId, id: &str, bytes: usize) -> Option<u64> {
    let content = Bytes::from(vec![b'x'; bytes]);
    let message = Message {
        conversation: place.clone(),
        sender: user("ann"),
        device: DeviceId::new("d").expect("a valid value"),
        msg_id: MsgId::new(id).expect("a valid value"),
        attempt: 0,
        body_hash: body_hash(&content),
        content,
        order: SenderOrder::default(),
        flags: 0,
        mode: Default::default(),
    };
    let way = with(nodes, nth, SimNode::way);
    seq_of(&way.append(Body::Message(message)).await)
}

async fn last_seq(world: &World, place: &ConversationId) -> u64 {
    world.store.summary(place, None).await.expect("a valid value").map_or(0, |it| it.head.last_seq)
}

/// Returns how long a reader on the second node waits.
async fn wait(nodes: &Nodes) -> Duration {
    let (cluster, began) = (with(nodes, 1, SimNode::cluster), Instant::now());
    tokio::time::timeout(Duration::from_secs(60), cluster.barrier()).await.expect("the wait is bounded");
    began.elapsed()
}

/// Returns whether the store shows a reader everything published in a partition, and how long it waited.
async fn barrier_shows_all(nodes: &Nodes, partition: u32) -> (bool, Duration) {
    let (cluster, began) = (with(nodes, 1, SimNode::cluster), Instant::now());
    (cluster.barrier_of(partition).await.is_some(), began.elapsed())
}

const PROMPT_TIME_MAX: Duration = Duration::from_millis(100);

#[test]
fn readers_wait_for_a_slow_peer_but_not_for_a_silent_one() {
    in_one_thread(async {
        let (_world, nodes) = nodes().await;
        let (there, slow) = (conversation_in(0), with(&nodes, 0, SimNode::hold_archive));
        assert_eq!(
            say(&nodes, 1, &there, "m1", 9).await,
            Some(1),
            "the message is published, and not archived"
        );
        let reader = tokio::task::spawn_local({
            let nodes = Rc::clone(&nodes);
            async move { wait(&nodes).await }
        });
        pass(4_000).await;
        assert!(!reader.is_finished());
        // A reader of another partition is not delayed.
        let cluster = with(&nodes, 1, SimNode::cluster);
        assert!(tokio::time::timeout(PROMPT_TIME_MAX, cluster.barrier_in(1)).await.is_ok());
        let of_it = tokio::time::timeout(Duration::from_secs(3), cluster.barrier_in(0));
        assert!(of_it.await.is_err());
        slow.open();
        assert!(reader.await.expect("the task ends") < Duration::from_millis(7_100));
        assert!(wait(&nodes).await < PROMPT_TIME_MAX);

        let frozen = Gate::new();
        let plan =
            || with(&nodes, 0, |it| it.end_faults().plan("archive_status", Fault::Hold(frozen.clone())));
        (0..10).for_each(|_| plan());
        let first = wait(&nodes).await;
        assert!((Duration::from_secs(1)..Duration::from_millis(1_100)).contains(&first), "{first:?}");
        assert!(wait(&nodes).await < PROMPT_TIME_MAX, "the peer is known to be silent");
        assert!(!barrier_shows_all(&nodes, 0).await.0);
        frozen.open();
        // The peer is back, and slow, which does not count as silence.
        let slow = with(&nodes, 0, SimNode::hold_archive);
        assert_eq!(say(&nodes, 1, &there, "m2", 9).await, Some(2));
        let reader = tokio::task::spawn_local({
            let nodes = Rc::clone(&nodes);
            async move { barrier_shows_all(&nodes, 0).await }
        });
        pass(3_000).await;
        assert!(!reader.is_finished());
        slow.open();
        assert!(reader.await.expect("the task ends").0);
    });
}

#[test]
fn reader_waits_only_for_records_published_before_its_query() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        world.slow.set_archive_ms(1_500);
        let talk = tokio::task::spawn_local({
            let nodes = Rc::clone(&nodes);
            async move {
                for n in 0.. {
                    assert!(say(&nodes, 0, &conversation_in(0), &format!("m{n}"), 9).await.is_some());
                    pass(300).await;
                }
            }
        });
        pass(5_000).await;
        // At most two transactions: the one in flight, and the next.
        let mut longest = Duration::ZERO;
        for _ in 0..5 {
            longest = longest.max(wait(&nodes).await);
        }
        assert!(longest > Duration::from_secs(1), "{longest:?}");
        assert!(longest < Duration::from_millis(3_200), "{longest:?}");
        talk.abort();
    });
}

#[test]
fn barrier_opens_when_a_successor_has_archived_the_log() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        let there = conversation_in(0);
        assert_eq!(say(&nodes, 1, &there, "m1", 9).await, Some(1));
        // As an owner does right after a takeover, the second node archives first.
        with(&nodes, 1, |node| node.set_lease(Lease::Lapsed));
        pass(5_000).await;
        assert!(barrier_shows_all(&nodes, 0).await.0);
        let never = with(&nodes, 0, SimNode::hold_archive);
        assert_eq!(
            say(&nodes, 1, &there, "m2", 9).await,
            Some(2),
            "the message is published, and not archived"
        );
        let later = with(&nodes, 1, SimNode::hold_archive);
        let killed = nodes.borrow_mut()[0]
            .take()
            .expect("the node runs")
            .kill(&world)
            .expect("the node is a member of the group");
        // First its lease is valid, then the partition has no owner. No reader waits for that.
        for _ in 0..8 {
            let (shows, took) = barrier_shows_all(&nodes, 0).await;
            assert!(!shows && took < PROMPT_TIME_MAX, "{took:?}");
            pass(250).await;
        }
        assert!(barrier_shows_all(&nodes, 1).await.0, "other partitions continue");
        world.log.evict(killed);
        pass(2_000).await;
        assert_eq!(with(&nodes, 1, SimNode::owns), [0, 1, 2]);
        assert_eq!(later.reached(), 1, "the successor publishes it again after its archive");
        let (shows, took) = barrier_shows_all(&nodes, 0).await;
        assert!(!shows && took < PROMPT_TIME_MAX, "not caught up yet: {took:?}");
        assert_eq!(last_seq(&world, &there).await, 1);
        later.open();
        pass(500).await;
        assert!(barrier_shows_all(&nodes, 0).await.0);
        assert_eq!(last_seq(&world, &there).await, 2);
        never.open();
    });
}

#[test]
fn silent_former_owner_may_have_published_more_than_archived() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        assert_eq!(say(&nodes, 1, &conversation_in(0), "m1", 9).await, Some(1));
        let frozen = Gate::new();
        let plan =
            || with(&nodes, 0, |it| it.end_faults().plan("archive_status", Fault::Hold(frozen.clone())));
        (0..10).for_each(|_| plan());
        let former = with(&nodes, 0, SimNode::member).expect("the node is a member of the group");
        world.log.evict(former);
        pass(1_000).await;
        let owns = [0, 1].map(|nth| with(&nodes, nth, |node| node.owns().contains(&0)));
        assert_eq!(owns, [true, true], "the former owner does not know yet");
        assert!(!barrier_shows_all(&nodes, 0).await.0);
        frozen.open();
        assert!(barrier_shows_all(&nodes, 0).await.0, "the former owner reports that all is archived");
    });
}

/// Creates a group with that member through a node.
async fn make_group(nodes: &Nodes, nth: usize, group: ConversationId, member: UserId) -> SubmitAnswer {
    let change = MemberChange {
        conversation: group,
        action: MemberAction::Create,
        users: vec![member],
        role: None,
        by: None,
        settings: Default::default(),
        request_id: MsgId::new("create").expect("a valid value"),
    };
    with(nodes, nth, SimNode::way).append(Body::Member(change)).await
}

#[test]
fn owner_evicted_during_a_commit_publishes_it() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        let (me, member) = with(&nodes, 1, |node| (node.cluster().me.clone(), user("bob")));
        let device = DeviceId::new("d").expect("a valid value");
        let wish = Registration {
            user: member.clone(),
            device,
            at: me,
            above: 0,
            only_if: None,
            policy: tidegate::routes::DevicePolicy::default(),
        };
        world.routes.register(wish).await.expect("the routes in memory work");
        let groups = (0..).map(|n| ConversationId::parse(&format!("g:{n}")).expect("a valid value"));
        let mut there = groups.filter(|it| partition_of(it, PARTITIONS as u32) == 0);
        let group = there.next().expect("an endless range");
        let commit = with(&nodes, 0, SimNode::hold_commit);
        let made = tokio::task::spawn_local({
            let (nodes, group) = (Rc::clone(&nodes), group.clone());
            async move { make_group(&nodes, 1, group, member).await }
        });
        pass(500).await;
        assert_eq!((commit.reached(), last_seq(&world, &group).await), (1, 1), "the change is archived");
        let deliveries = || with(&nodes, 1, |node| node.end_faults().calls("deliver"));
        assert_eq!(deliveries(), 0, "the change is not published");
        let former = with(&nodes, 0, SimNode::member).expect("the node is a member of the group");
        world.log.evict(former);
        pass(1_000).await;
        assert_eq!(with(&nodes, 1, SimNode::owns), [0, 1, 2]);
        world.log.notify_eviction(former);
        pass(1_000).await;
        assert_eq!(deliveries(), 0, "its successor starts after it");
        commit.open();
        pass(1_000).await;
        assert!(deliveries() > 0, "the change is published to the member");
        assert!(seq_of(&made.await.expect("the task ends")).is_some());
    });
}

/// Evicts the owner of the first partition while its commit is held: readers wait for the commit.
async fn evict_before_its_commit(world: &World, nodes: &Nodes, commit: &Gate) {
    let former = with(nodes, 0, SimNode::member).expect("the node is a member of the group");
    let successors = [0, 1].map(|nth| with(nodes, nth, SimNode::hold_take_over));
    world.log.evict(former);
    world.log.notify_eviction(former);
    pass(500).await;
    assert!(!with(nodes, 0, SimNode::owns).contains(&0), "the former owner knows of its eviction");
    // Its successor would start after that record, and publish nothing of it.
    let reader = tokio::task::spawn_local({
        let nodes = Rc::clone(nodes);
        async move { wait(&nodes).await }
    });
    pass(500).await;
    assert!(!reader.is_finished());
    commit.open();
    reader.await.expect("the task ends");
    successors.iter().for_each(Gate::open);
}

#[test]
fn reader_waits_for_the_commit_of_an_evicted_owner() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        let (there, commit) = (conversation_in(0), with(&nodes, 0, SimNode::hold_archive));
        assert_eq!(
            say(&nodes, 1, &there, "m1", 9).await,
            Some(1),
            "the message is published, and not archived"
        );
        evict_before_its_commit(&world, &nodes, &commit).await;
        assert_eq!(last_seq(&world, &there).await, 1);
    });
}

#[test]
fn owner_evicted_while_stopping_waits_for_its_commit() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        let there = conversation_in(0);
        let (archive, commit) = with(&nodes, 0, |node| (node.hold_archive(), node.hold_commit()));
        for seq in 1..=2 {
            assert_eq!(
                say(&nodes, 1, &there, &format!("m{seq}"), 9).await,
                Some(seq),
                "the message is published"
            );
        }
        world.log.revoke(0);
        pass(500).await;
        archive.open();
        pass(500).await;
        assert_eq!(
            (commit.reached(), last_seq(&world, &there).await),
            (1, 2),
            "its last records are archived"
        );
        evict_before_its_commit(&world, &nodes, &commit).await;
    });
}

/// Sends large messages until one is not acked; returns the number of acked ones.
async fn fill(nodes: &Nodes, there: &ConversationId, bytes: usize) -> u64 {
    for n in 1..40 {
        if say(nodes, 0, there, &format!("m{n}"), bytes).await.is_none() {
            return n - 1;
        }
    }
    panic!("all messages were acked");
}

#[test]
fn unarchived_messages_are_bounded_in_bytes() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        let (there, gate) = (conversation_in(0), with(&nodes, 0, SimNode::hold_archive));
        // One is being written, and six of 600 KiB are less than 4 MiB.
        assert_eq!(fill(&nodes, &there, 600 * 1024).await, 7);
        assert_eq!(last_seq(&world, &there).await, 0);
        gate.open();
        pass(1_000).await;
        assert_eq!(last_seq(&world, &there).await, 8, "no message is lost");
        assert_eq!(say(&nodes, 1, &there, "after", 9).await, Some(9));
    });
}

#[test]
fn partition_is_handed_over_after_its_published_is_archived() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        let (there, gate) = (conversation_in(0), with(&nodes, 0, SimNode::hold_archive));
        let full = tokio::task::spawn_local({
            let (nodes, there) = (Rc::clone(&nodes), there.clone());
            async move { fill(&nodes, &there, 600 * 1024).await }
        });
        // After a longer time it would be stalled, and the handover would not wait for it.
        pass(1_000).await;
        let leaving = nodes.borrow_mut()[0].take().expect("the node runs");
        let left = tokio::task::spawn_local({
            let world = Rc::clone(&world);
            async move { leaving.leave(&world).await }
        });
        pass(3_000).await;
        assert!(!left.is_finished());
        assert!(!with(&nodes, 1, SimNode::owns).contains(&0));
        let successor = with(&nodes, 1, SimNode::hold_archive);
        gate.open();
        left.await.expect("the task ends");
        let stored = last_seq(&world, &there).await;
        assert!(stored >= 7, "the former owner archives before its successor");
        successor.open();
        pass(1_000).await;
        assert_eq!(with(&nodes, 1, SimNode::owns), [0, 1, 2]);
        full.abort();
        assert_eq!(say(&nodes, 1, &there, "after", 9).await, Some(9));
    });
}

#[test]
fn owner_invisible_to_its_peers_archives_first() {
    in_one_thread(async {
        let (_world, nodes) = nodes().await;
        let there = conversation_in(0);
        for (lease, seq) in [(Lease::Lapsed, None), (Lease::Live, Some(2))] {
            with(&nodes, 0, |node| node.set_lease(lease));
            pass(1_000).await;
            let gate = with(&nodes, 0, SimNode::hold_archive);
            assert_eq!(say(&nodes, 0, &there, &format!("{seq:?}").replace(['(', ')'], ""), 9).await, seq);
            gate.open();
            pass(1_000).await;
        }
    });
}

#[test]
fn archive_waiting_for_a_connection_is_not_split() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        for n in 0..10 {
            archived(&world, &import_all(&nodes, &format!("quick-{n}"), 10)).await;
        }
        let gates = [0, 1].map(|nth| with(&nodes, nth, SimNode::hold_archive));
        let groups = import_all(&nodes, "many", 90);
        pass(2_000).await;
        let taken = || [0, 1].map(|nth| with(&nodes, nth, |node| node.store_faults().calls("take_over")));
        let before = taken();
        world.slow.fill(6);
        gates.iter().for_each(|gate| gate.open());
        archived(&world, &groups).await;
        assert_eq!((world.slow.full(), taken()), (0, before), "the same owners continue");
    });
}

//! Owners that tell before they archive (ADR 16): for whom readers wait, and what becomes of what was told.

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
    UserId::new(name).expect("it is sound")
}

/// A conversation of ann's in a partition: 0 and 2 are the first node's, 1 the second's.
fn place(partition: u32) -> ConversationId {
    let all = (0..).map(|n| ConversationId::direct(&user("ann"), &user(&format!("u{n}"))));
    let mut there = all.filter(|it| partition_of(it, PARTITIONS as u32) == partition);
    there.next().expect("there are many")
}

/// Two nodes that have switched the rules by now, which is archived first.
async fn nodes() -> (Rc<World>, Nodes) {
    let (world, nodes) = two_nodes().await;
    pass(5_000).await;
    (world, nodes)
}

/// Sends through a node; the seq that it is acked with.
async fn say(nodes: &Nodes, nth: usize, place: &ConversationId, id: &str, bytes: usize) -> Option<u64> {
    let content = Bytes::from(vec![b'x'; bytes]);
    let message = Message {
        conversation: place.clone(),
        sender: user("ann"),
        device: DeviceId::new("d").expect("it is sound"),
        msg_id: MsgId::new(id).expect("it is sound"),
        attempt: 0,
        body_hash: body_hash(&content),
        content,
        order: SenderOrder::default(),
        flags: 0,
    };
    let way = with(nodes, nth, SimNode::way);
    seq_of(&way.append(Body::Message(message)).await)
}

async fn last_seq(world: &World, place: &ConversationId) -> u64 {
    world.store.summary(place, None).await.expect("it is sound").map_or(0, |it| it.head.last_seq)
}

/// How long a reader on the second node waits.
async fn wait(nodes: &Nodes) -> Duration {
    let (cluster, began) = (with(nodes, 1, SimNode::cluster), Instant::now());
    tokio::time::timeout(Duration::from_secs(60), cluster.barrier())
        .await
        .expect("it does not wait for ever");
    began.elapsed()
}

/// Whether the store shows that reader all that was told in a partition, and how long it took to know.
async fn shows_all(nodes: &Nodes, partition: u32) -> (bool, Duration) {
    let (cluster, began) = (with(nodes, 1, SimNode::cluster), Instant::now());
    (cluster.barrier_of(partition).await, began.elapsed())
}

const MOMENT: Duration = Duration::from_millis(100);

#[test]
fn a_peer_whose_archive_takes_long_is_waited_for_and_one_that_says_nothing_is_not() {
    in_one_thread(async {
        let (_world, nodes) = nodes().await;
        let (there, slow) = (place(0), with(&nodes, 0, SimNode::hold_archive));
        assert_eq!(say(&nodes, 1, &there, "m1", 9).await, Some(1), "it is told, and not archived");
        let reader = tokio::task::spawn_local({
            let nodes = Rc::clone(&nodes);
            async move { wait(&nodes).await }
        });
        pass(4_000).await;
        assert!(!reader.is_finished());
        // Who reads of another partition is not held up.
        let cluster = with(&nodes, 1, SimNode::cluster);
        assert!(tokio::time::timeout(MOMENT, cluster.barrier_in(1)).await.is_ok());
        let of_it = tokio::time::timeout(Duration::from_secs(3), cluster.barrier_in(0));
        assert!(of_it.await.is_err());
        slow.open();
        assert!(reader.await.expect("it goes on") < Duration::from_millis(7_100));
        assert!(wait(&nodes).await < MOMENT);

        let frozen = Gate::new();
        let plan =
            || with(&nodes, 0, |it| it.end_faults().plan("archive_status", Fault::Hold(frozen.clone())));
        (0..10).for_each(|_| plan());
        let first = wait(&nodes).await;
        assert!((Duration::from_secs(1)..Duration::from_millis(1_100)).contains(&first), "{first:?}");
        assert!(wait(&nodes).await < MOMENT, "it is known to say nothing");
        assert!(!shows_all(&nodes, 0).await.0);
        frozen.open();
        // It is there again, and slow: nobody takes that for silence, whatever it was before.
        let slow = with(&nodes, 0, SimNode::hold_archive);
        assert_eq!(say(&nodes, 1, &there, "m2", 9).await, Some(2));
        let reader = tokio::task::spawn_local({
            let nodes = Rc::clone(&nodes);
            async move { shows_all(&nodes, 0).await }
        });
        pass(3_000).await;
        assert!(!reader.is_finished());
        slow.open();
        assert!(reader.await.expect("it goes on").0);
    });
}

#[test]
fn who_waits_for_a_slow_peer_waits_for_what_was_told_when_it_asked_and_for_nothing_later() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        world.slow.set_archive_ms(1_500);
        let talk = tokio::task::spawn_local({
            let nodes = Rc::clone(&nodes);
            async move {
                for n in 0.. {
                    assert!(say(&nodes, 0, &place(0), &format!("m{n}"), 9).await.is_some());
                    pass(300).await;
                }
            }
        });
        pass(5_000).await;
        // Two transactions at the most: the one that is under way, and the next.
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
fn the_store_counts_as_whole_again_when_a_successor_has_archived_what_the_log_had() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        let there = place(0);
        assert_eq!(say(&nodes, 1, &there, "m1", 9).await, Some(1));
        // As an owner does that has just taken over, the second node archives first.
        with(&nodes, 1, |node| node.set_lease(Lease::Lapsed));
        pass(5_000).await;
        assert!(shows_all(&nodes, 0).await.0);
        let never = with(&nodes, 0, SimNode::hold_archive);
        assert_eq!(say(&nodes, 1, &there, "m2", 9).await, Some(2), "it is told, and not archived");
        let later = with(&nodes, 1, SimNode::hold_archive);
        let killed = nodes.borrow_mut()[0].take().expect("it runs").kill(&world).expect("it has a seat");
        // First its lease lives on, then nobody owns it. Nobody waits for that.
        for _ in 0..8 {
            let (shows, took) = shows_all(&nodes, 0).await;
            assert!(!shows && took < MOMENT, "{took:?}");
            pass(250).await;
        }
        assert!(shows_all(&nodes, 1).await.0, "others go on");
        world.log.put_out(killed);
        pass(2_000).await;
        assert_eq!(with(&nodes, 1, SimNode::owns), [0, 1, 2]);
        assert_eq!(later.reached(), 1, "it tells that again when it has archived it");
        let (shows, took) = shows_all(&nodes, 0).await;
        assert!(!shows && took < MOMENT, "not level yet: {took:?}");
        assert_eq!(last_seq(&world, &there).await, 1);
        later.open();
        pass(500).await;
        assert!(shows_all(&nodes, 0).await.0);
        assert_eq!(last_seq(&world, &there).await, 2);
        never.open();
    });
}

#[test]
fn a_former_owner_that_says_nothing_may_have_told_more_than_its_successor_has_archived() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        assert_eq!(say(&nodes, 1, &place(0), "m1", 9).await, Some(1));
        let frozen = Gate::new();
        let plan =
            || with(&nodes, 0, |it| it.end_faults().plan("archive_status", Fault::Hold(frozen.clone())));
        (0..10).for_each(|_| plan());
        let former = with(&nodes, 0, SimNode::member).expect("it has a seat");
        world.log.put_out(former);
        pass(1_000).await;
        let owns = [0, 1].map(|nth| with(&nodes, nth, |node| node.owns().contains(&0)));
        assert_eq!(owns, [true, true], "one has not heard of it");
        assert!(!shows_all(&nodes, 0).await.0);
        frozen.open();
        assert!(shows_all(&nodes, 0).await.0, "it says that it has archived all");
    });
}

/// A group with that member, made through a node.
async fn make_group(nodes: &Nodes, nth: usize, group: ConversationId, member: UserId) -> SubmitAnswer {
    let change = MemberChange {
        conversation: group,
        action: MemberAction::Create,
        users: vec![member],
        role: None,
        by: None,
        settings: Default::default(),
        request_id: MsgId::new("create").expect("it is sound"),
    };
    with(nodes, nth, SimNode::way).append(Body::Member(change)).await
}

#[test]
fn an_owner_that_is_lost_while_it_commits_tells_what_it_committed() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        let (me, member) = with(&nodes, 1, |node| (node.cluster().me.clone(), user("bob")));
        let device = DeviceId::new("d").expect("it is sound");
        let wish = Registration { user: member.clone(), device, at: me, above: 0, only_if: None };
        world.routes.register(wish).await.expect("memory is there");
        let groups = (0..).map(|n| ConversationId::parse(&format!("g:{n}")).expect("it is sound"));
        let mut there = groups.filter(|it| partition_of(it, PARTITIONS as u32) == 0);
        let group = there.next().expect("there are many");
        let commit = with(&nodes, 0, SimNode::hold_commit);
        let made = tokio::task::spawn_local({
            let (nodes, group) = (Rc::clone(&nodes), group.clone());
            async move { make_group(&nodes, 1, group, member).await }
        });
        pass(500).await;
        assert_eq!((commit.reached(), last_seq(&world, &group).await), (1, 1), "it is archived");
        let told = || with(&nodes, 1, |node| node.end_faults().calls("deliver"));
        assert_eq!(told(), 0, "and nobody knows");
        let former = with(&nodes, 0, SimNode::member).expect("it has a seat");
        world.log.put_out(former);
        pass(1_000).await;
        assert_eq!(with(&nodes, 1, SimNode::owns), [0, 1, 2]);
        world.log.tell(former);
        pass(1_000).await;
        assert_eq!(told(), 0, "its successor goes on behind it");
        commit.open();
        pass(1_000).await;
        assert!(told() > 0, "the member is told");
        assert!(seq_of(&made.await.expect("it goes on")).is_some());
    });
}

/// The owner of the first partition is put out of its group while its commit is held: who reads waits for that.
async fn is_lost_before_its_commit(world: &World, nodes: &Nodes, commit: &Gate) {
    let former = with(nodes, 0, SimNode::member).expect("it has a seat");
    let successors = [0, 1].map(|nth| with(nodes, nth, SimNode::hold_take_over));
    world.log.put_out(former);
    world.log.tell(former);
    pass(500).await;
    assert!(!with(nodes, 0, SimNode::owns).contains(&0), "it has heard of it");
    // Its successor would begin behind that, and tell nobody.
    let reader = tokio::task::spawn_local({
        let nodes = Rc::clone(nodes);
        async move { wait(&nodes).await }
    });
    pass(500).await;
    assert!(!reader.is_finished());
    commit.open();
    reader.await.expect("it goes on");
    successors.iter().for_each(Gate::open);
}

#[test]
fn a_reader_waits_for_what_an_owner_that_is_lost_told_and_commits() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        let (there, commit) = (place(0), with(&nodes, 0, SimNode::hold_archive));
        assert_eq!(say(&nodes, 1, &there, "m1", 9).await, Some(1), "it is told, and not archived");
        is_lost_before_its_commit(&world, &nodes, &commit).await;
        assert_eq!(last_seq(&world, &there).await, 1);
    });
}

#[test]
fn an_owner_that_is_lost_while_it_stops_waits_for_what_it_commits() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        let there = place(0);
        let (archive, commit) = with(&nodes, 0, |node| (node.hold_archive(), node.hold_commit()));
        for seq in 1..=2 {
            assert_eq!(say(&nodes, 1, &there, &format!("m{seq}"), 9).await, Some(seq), "it is told");
        }
        world.log.ask_back(0);
        pass(500).await;
        archive.open();
        pass(500).await;
        assert_eq!((commit.reached(), last_seq(&world, &there).await), (1, 2), "its last words are archived");
        is_lost_before_its_commit(&world, &nodes, &commit).await;
    });
}

/// Sends large messages until one is not acked; how many were.
async fn fill(nodes: &Nodes, there: &ConversationId, bytes: usize) -> u64 {
    for n in 1..40 {
        if say(nodes, 0, there, &format!("m{n}"), bytes).await.is_none() {
            return n - 1;
        }
    }
    panic!("all were acked");
}

#[test]
fn what_is_told_and_not_archived_is_bounded_in_bytes_too() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        let (there, gate) = (place(0), with(&nodes, 0, SimNode::hold_archive));
        // One is being written, and six of 600 KiB make no 4 MiB.
        assert_eq!(fill(&nodes, &there, 600 * 1024).await, 7);
        assert_eq!(last_seq(&world, &there).await, 0);
        gate.open();
        pass(1_000).await;
        assert_eq!(last_seq(&world, &there).await, 8, "nothing was lost");
        assert_eq!(say(&nodes, 1, &there, "after", 9).await, Some(9));
    });
}

#[test]
fn a_partition_is_handed_over_when_everything_that_was_told_in_it_is_archived() {
    in_one_thread(async {
        let (world, nodes) = nodes().await;
        let (there, gate) = (place(0), with(&nodes, 0, SimNode::hold_archive));
        let full = tokio::task::spawn_local({
            let (nodes, there) = (Rc::clone(&nodes), there.clone());
            async move { fill(&nodes, &there, 600 * 1024).await }
        });
        // For longer it would stand still, and nobody would wait for it.
        pass(1_000).await;
        let leaving = nodes.borrow_mut()[0].take().expect("it runs");
        let left = tokio::task::spawn_local({
            let world = Rc::clone(&world);
            async move { leaving.leave(&world).await }
        });
        pass(3_000).await;
        assert!(!left.is_finished());
        assert!(!with(&nodes, 1, SimNode::owns).contains(&0));
        let successor = with(&nodes, 1, SimNode::hold_archive);
        gate.open();
        left.await.expect("it goes on");
        let told = last_seq(&world, &there).await;
        assert!(told >= 7, "before anybody else archives");
        successor.open();
        pass(1_000).await;
        assert_eq!(with(&nodes, 1, SimNode::owns), [0, 1, 2]);
        full.abort();
        assert_eq!(say(&nodes, 1, &there, "after", 9).await, Some(9));
    });
}

#[test]
fn an_owner_that_the_others_do_not_see_archives_first() {
    in_one_thread(async {
        let (_world, nodes) = nodes().await;
        let there = place(0);
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
fn an_archive_that_waits_for_a_connection_is_not_taken_for_one_that_is_too_large() {
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
        assert_eq!((world.slow.full(), taken()), (0, before), "the same owners go on");
    });
}

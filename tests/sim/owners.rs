//! Owners that are cut off, and replies that are lost: on memory ports, without any other fault.

use std::{cell::RefCell, rc::Rc};

use futures_util::future::join_all;
use tidegate::{
    bus::partition_of,
    fault::{Fault, Gate, Rates},
    routes::{Registration, Routes},
    store::Store,
};
use tidegate_protocol::{
    id::{ConversationId, DeviceId, MsgId, UserId},
    machine::ledger::LEDGER_NEWEST,
    machine::session::SubmitAnswer,
    record::{Body, MemberAction, MemberChange},
};
use tokio::{
    task::LocalSet,
    time::{Duration, Instant},
};

use super::{PARTITIONS, SimNode, World, gossip, message, node, pass, seq_of};

pub(crate) type Nodes = Rc<RefCell<Vec<Option<SimNode>>>>;

/// Returns two nodes that see each other and own all partitions.
pub(crate) async fn two_nodes() -> (Rc<World>, Nodes) {
    nodes_of(World::new(true), 2).await
}

async fn nodes_of(world: World, count: usize) -> (Rc<World>, Nodes) {
    let world = Rc::new(world);
    let nodes: Nodes = Rc::default();
    for nth in 0..count {
        let node = SimNode::start(&world, nth, 1, 1, LEDGER_NEWEST);
        node.heal();
        nodes.borrow_mut().push(Some(node));
    }
    tokio::task::spawn_local(gossip(Rc::clone(&nodes)));
    pass(3_000).await;
    (world, nodes)
}

pub(crate) fn with<T>(nodes: &Nodes, nth: usize, look: impl FnOnce(&SimNode) -> T) -> T {
    look(nodes.borrow()[nth].as_ref().expect("it runs"))
}

/// Sends a message to each of many conversations through a node; returns the longest time to an ack, and the number of
/// missing acks.
pub(crate) async fn send_to_many(nodes: &Nodes, nth: usize, id: &str) -> (Duration, usize) {
    let (mut longest, mut failed) = (Duration::ZERO, 0);
    let me = UserId::new("ann").expect("a valid value");
    for n in 0..12 {
        let other = UserId::new(&format!("u{n}")).expect("a valid value");
        let way = with(nodes, nth, SimNode::way);
        let began = Instant::now();
        let answer = way.append(message(&me, &ConversationId::direct(&me, &other), id, 0)).await;
        longest = longest.max(began.elapsed());
        if seq_of(&answer).is_none() {
            assert_eq!(answer, SubmitAnswer::Unknown);
            failed += 1;
        }
    }
    (longest, failed)
}

pub(crate) fn in_one_thread(story: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), story);
}

#[test]
fn answer_lost_on_the_link_is_recovered_in_half_a_second() {
    in_one_thread(async {
        let (_world, nodes) = two_nodes().await;
        assert_eq!(send_to_many(&nodes, 0, "m1").await.1, 0);
        // The owner's answers in its peer queue never arrive; a query does.
        for nth in 0..2 {
            with(&nodes, nth, |node| {
                (0..1_000).for_each(|_| node.link_faults().plan("answers", Fault::Fail))
            });
        }
        for nth in 0..2 {
            let (longest, failed) = send_to_many(&nodes, nth, &format!("m2-{nth}")).await;
            assert_eq!(failed, 0, "through node {nth}");
            assert!(longest > Duration::from_millis(250), "some owner is remote: {longest:?}");
            assert!(longest < Duration::from_millis(500), "{longest:?}");
        }
    });
}

/// Sends a message to each of many conversations at once; returns the time to each ack, `None` for a missing one.
async fn send_all_at_once(way: node::Way, id: String) -> Vec<Option<Duration>> {
    let me = UserId::new("ann").expect("a valid value");
    let (way, me, id) = (&way, &me, id.as_str());
    let sends = (0..12).map(|n| async move {
        let other = UserId::new(&format!("u{n}")).expect("a valid value");
        let began = Instant::now();
        let answer = way.append(message(me, &ConversationId::direct(me, &other), id, 0)).await;
        seq_of(&answer).map(|_| began.elapsed())
    });
    join_all(sends).await
}

#[test]
fn x4_sends_to_unknown_groups_cost_no_read_each() {
    in_one_thread(async {
        let (world, nodes) = two_nodes().await;
        world.slow.set_read_ms(1);
        let me = UserId::new("ann").expect("a valid value");
        let (began, me, nodes) = (Instant::now(), &me, &nodes);
        let sends = (0..4_096).map(|n| async move {
            let group = ConversationId::parse(&format!("g:x{n}")).expect("a valid value");
            with(nodes, 0, SimNode::way).append(message(me, &group, &format!("m{n}"), 0)).await
        });
        let answers = join_all(sends).await;
        let took = began.elapsed();
        let refused = |it: &&SubmitAnswer| matches!(it, SubmitAnswer::Refused { .. });
        assert_eq!(answers.iter().filter(refused).count(), 4_096);
        assert!(took < Duration::from_millis(100), "{took:?}");
    });
}

#[test]
fn silent_owner_delays_no_answer_of_others() {
    in_one_thread(async {
        let (_world, nodes) = nodes_of(World::new(true), 3).await;
        assert_eq!([0, 1, 2].map(|nth| with(&nodes, nth, SimNode::owns).len()), [1; 3]);
        // The owners' answers in their peer queues never arrive, and one of them leaves queries open as well. Node 2
        // asks.
        for (nth, gate) in [(0, None), (1, Some(Gate::new()))] {
            with(&nodes, nth, |node| {
                (0..1_000).for_each(|_| node.link_faults().plan("answers", Fault::Fail));
                let plan = |gate: &Gate| node.end_faults().plan("answers_again", Fault::Hold(gate.clone()));
                gate.iter().for_each(|gate| (0..1_000).for_each(|_| plan(gate)));
            });
        }
        let mut rounds = Vec::new();
        for round in 0..5 {
            let way = with(&nodes, 2, SimNode::way);
            rounds.push(tokio::task::spawn_local(send_all_at_once(way, format!("m{round}"))));
            pass(700).await;
        }
        for round in rounds {
            let took = round.await.expect("the task ends");
            let (asked, lost) = (took.iter().flatten().max(), took.iter().filter(|it| it.is_none()).count());
            assert!(lost > 0 && lost < 12, "some are the silent owner's: {took:?}");
            let asked = asked.expect("some have an ack");
            assert!(*asked > Duration::from_millis(250), "some replies were queried: {took:?}");
            assert!(*asked < Duration::from_millis(500), "{took:?}");
        }
    });
}

#[test]
fn node_that_can_not_archive_releases_its_partitions() {
    in_one_thread(async {
        let (_world, nodes) = two_nodes().await;
        let owns = |nth| with(&nodes, nth, SimNode::owns).len();
        assert!(owns(0) > 0 && owns(1) > 0);
        let cut = |cut| {
            let rates = Rates { fail: if cut { 1_000 } else { 0 }, ..Rates::default() };
            with(&nodes, 0, |node| node.store_faults().set_rates(rates));
        };
        cut(true);
        let began = Instant::now();
        // Node 0 owns some of these conversations, the rest continue.
        let mut n = 0;
        while owns(0) > 0 {
            n += 1;
            send_to_many(&nodes, 1, &format!("m{n}")).await;
            assert!(began.elapsed() < Duration::from_secs(120), "the node kept its partitions");
        }
        pass(2_000).await;
        assert_eq!(owns(1), super::PARTITIONS, "the other node owns all partitions");
        let (longest, failed) = send_to_many(&nodes, 1, "after").await;
        assert_eq!((failed, longest < Duration::from_millis(500)), (0, true), "{longest:?}");
        // The node releases its partitions as long as its store does not answer.
        pass(60_000).await;
        assert_eq!(owns(0), 0);
        cut(false);
        pass(15_000).await;
        assert!(owns(0) > 0, "the node owns partitions again");
        assert_eq!(send_to_many(&nodes, 0, "again").await.1, 0);
    });
}

#[test]
fn unreadable_partition_affects_no_other() {
    in_one_thread(async {
        let world = World::new(true);
        world.log.lose_leader(0);
        let (_world, nodes) = nodes_of(world, 2).await;
        let before = [with(&nodes, 0, SimNode::owns), with(&nodes, 1, SimNode::owns)];
        assert_eq!(before.each_ref().map(Vec::len), [1, 1], "all other partitions are taken over");
        let began = Instant::now();
        for n in 0.. {
            let failed = send_to_many(&nodes, n % 2, &format!("m{n}")).await.1;
            assert!(failed < 12, "other partitions continue");
            assert_eq!([with(&nodes, 0, SimNode::owns), with(&nodes, 1, SimNode::owns)], before);
            if began.elapsed() > Duration::from_secs(60) {
                return;
            }
        }
    });
}

/// Cuts node 0 off from its store until it owns nothing, restores it at once, and returns how long the node then owned
/// nothing.
async fn time_away(nodes: &Nodes, name: &str) -> Duration {
    let owns = || with(nodes, 0, SimNode::owns).len();
    let fails = |fail| with(nodes, 0, |it| it.store_faults().set_rates(Rates { fail, ..Rates::default() }));
    fails(1_000);
    for n in 0.. {
        send_to_many(nodes, 1, &format!("{name}-{n}")).await;
        if owns() == 0 {
            break;
        }
    }
    fails(0);
    let began = Instant::now();
    while owns() == 0 {
        pass(500).await;
    }
    began.elapsed()
}

#[test]
fn back_off_is_reset_after_a_healthy_minute() {
    in_one_thread(async {
        let (_world, nodes) = two_nodes().await;
        let first = time_away(&nodes, "a").await;
        let soon = time_away(&nodes, "b").await;
        assert!(soon > first.mul_f32(1.4), "{first:?}, then {soon:?}");
        pass(61_000).await;
        let late = time_away(&nodes, "c").await;
        assert!(late < first.mul_f32(1.4), "{first:?}, then {late:?}");
    });
}

#[test]
fn waiting_takeover_ends_when_its_partition_is_revoked() {
    in_one_thread(async {
        let (world, nodes) = two_nodes().await;
        let none = Rates { fail: 1_000, ..Rates::default() };
        with(&nodes, 0, |node| node.store_faults().set_rates(none));
        let left = nodes.borrow_mut()[1].take();
        left.expect("it runs").leave(&world).await;
        pass(1_000).await;
        assert_eq!(with(&nodes, 0, SimNode::owns), [0, 2], "the third partition can't be taken over");
        let node = SimNode::start(&world, 1, 2, 1, LEDGER_NEWEST);
        node.heal();
        nodes.borrow_mut()[1] = Some(node);
        pass(1_000).await;
        assert_eq!(with(&nodes, 1, SimNode::owns), [1]);
    });
}

fn import(name: &str) -> MemberChange {
    MemberChange {
        conversation: ConversationId::parse(&format!("g:{name}")).expect("a valid value"),
        action: MemberAction::Create,
        users: (0..1_000).map(|n| UserId::new(&format!("u{n}")).expect("a valid value")).collect(),
        role: None,
        by: None,
        settings: Default::default(),
        request_id: MsgId::new("import").expect("a valid value"),
    }
}

/// Submits groups of a thousand, all at once, without waiting.
pub(crate) fn import_all(nodes: &Nodes, name: &str, count: usize) -> Vec<ConversationId> {
    let changes: Vec<MemberChange> = (0..count).map(|n| import(&format!("{name}-{n}"))).collect();
    let groups = changes.iter().map(|change| change.conversation.clone()).collect();
    for change in changes {
        let way = with(nodes, 1, SimNode::way);
        tokio::task::spawn_local(async move { way.append(Body::Member(change)).await });
    }
    groups
}

/// Returns how long it takes until all of them are archived.
pub(crate) async fn archived(world: &World, groups: &[ConversationId]) -> Duration {
    let began = Instant::now();
    for group in groups {
        while world.store.summary(group, None).await.expect("a valid value").is_none() {
            pass(100).await;
            assert!(began.elapsed() < Duration::from_secs(600), "{group} is never archived");
        }
    }
    began.elapsed()
}

#[test]
fn imports_on_a_slow_store_are_archived_in_smaller_batches() {
    in_one_thread(async {
        let (world, nodes) = two_nodes().await;
        // While the store is fast the batches grow.
        for n in 0..10 {
            archived(&world, &import_all(&nodes, &format!("quick-{n}"), 10)).await;
        }
        let gates = [0, 1].map(|nth| with(&nodes, nth, SimNode::hold_archive));
        let groups = import_all(&nodes, "slow", 90);
        pass(2_000).await;
        // Two seconds for a thousand members: three of them do not end in time.
        world.slow.set_row_us(2_000);
        gates.iter().for_each(|gate| gate.open());
        let took = archived(&world, &groups).await;
        assert!(took < Duration::from_secs(120), "{took:?}");
        let broken_off = world.slow.broken_off();
        assert!((1..=2 * super::PARTITIONS as u64).contains(&broken_off), "{broken_off}");
    });
}

#[test]
fn no_owner_exits_while_no_node_can_archive() {
    in_one_thread(async {
        let (_world, nodes) = two_nodes().await;
        let before = [with(&nodes, 0, SimNode::owns), with(&nodes, 1, SimNode::owns)];
        for nth in 0..2 {
            let none = Rates { fail: 1_000, ..Rates::default() };
            with(&nodes, nth, |node| node.store_faults().set_rates(none));
        }
        assert_eq!(send_to_many(&nodes, 1, "m1").await.1, 12);
        assert_eq!([with(&nodes, 0, SimNode::owns), with(&nodes, 1, SimNode::owns)], before);
        for nth in 0..2 {
            with(&nodes, nth, SimNode::heal);
        }
        pass(1_000).await;
        assert_eq!(send_to_many(&nodes, 1, "m2").await.1, 0);
    });
}

/// Returns a conversation of a partition that node 0 owns; one of its users is connected to node 1. Nothing else is
/// archived afterwards.
async fn chat_with_other_node(world: &World, nodes: &Nodes) -> ConversationId {
    let ann = UserId::new("ann").expect("a valid value");
    let owned = with(nodes, 0, SimNode::owns);
    let (bob, conversation) = (0..)
        .map(|n| UserId::new(&format!("bob{n}")).expect("a valid value"))
        .map(|bob| (bob.clone(), ConversationId::direct(&ann, &bob)))
        .find(|(_, conversation)| owned.contains(&partition_of(conversation, PARTITIONS as u32)))
        .expect("there is one");
    let device = DeviceId::new("d").expect("a valid value");
    let at = with(nodes, 1, |node| node.cluster().me.clone());
    let registration = Registration {
        user: bob,
        device,
        at,
        above: 0,
        only_if: None,
        policy: tidegate::routes::DevicePolicy { max: 32, ..Default::default() },
    };
    world.routes.register(registration).await.expect("memory is there");
    pass(20_000).await;
    conversation
}

fn evict_first(world: &World, nodes: &Nodes) {
    let member = with(nodes, 0, SimNode::member).expect("it has joined");
    world.log.evict(member);
    world.log.notify_eviction(member);
}

fn begin_send(nodes: &Nodes, conversation: &ConversationId) {
    let ann = UserId::new("ann").expect("a valid value");
    let (way, sent) = (with(nodes, 0, SimNode::way), message(&ann, conversation, "m1", 0));
    tokio::task::spawn_local(async move { way.append(sent).await });
}

/// The next owner begins behind what this one archived, and publishes none of it.
#[test]
fn k6_owner_that_lost_its_partition_publishes_what_it_archived() {
    in_one_thread(async {
        let (world, nodes) = nodes_of(World::new(false), 2).await;
        let conversation = chat_with_other_node(&world, &nodes).await;
        let gate = with(&nodes, 0, SimNode::hold_commit);
        begin_send(&nodes, &conversation);
        pass(500).await;
        evict_first(&world, &nodes);
        pass(500).await;
        let delivered = || with(&nodes, 0, |node| node.link_faults().calls("deliver"));
        assert_eq!(delivered(), 0, "the outcome of the archive is not known");
        gate.open();
        pass(500).await;
        assert_eq!(delivered(), 1, "bob gets the push");
    });
}

/// The archive of the lost owner is committed without a reply, and repeated after the next owner's take-over.
#[test]
fn s67_owner_that_lost_its_partition_and_the_reply_publishes_what_it_archived() {
    in_one_thread(async {
        let (world, nodes) = nodes_of(World::new(false), 2).await;
        let conversation = chat_with_other_node(&world, &nodes).await;
        with(&nodes, 0, |node| node.store_faults().plan("archive", Fault::LoseAnswer));
        begin_send(&nodes, &conversation);
        pass(100).await;
        evict_first(&world, &nodes);
        pass(1_000).await;
        let delivered = with(&nodes, 0, |node| node.link_faults().calls("deliver"));
        assert_eq!(delivered, 1, "bob gets the push");
    });
}

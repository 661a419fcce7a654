//! Owners that are cut off, and answers that never come: on memory ports, without any other fault.

use std::{cell::RefCell, rc::Rc};

use futures_util::future::join_all;
use tidegate::{
    fault::{Fault, Gate, Rates},
    store::Store,
};
use tidegate_protocol::{
    id::{ConversationId, MsgId, UserId},
    machine::ledger::LEDGER_NEWEST,
    machine::session::SubmitAnswer,
    record::{Body, MemberAction, MemberChange},
};
use tokio::{
    task::LocalSet,
    time::{Duration, Instant},
};

use super::{SimNode, World, gossip, message, node, pass, seq_of};

pub(crate) type Nodes = Rc<RefCell<Vec<Option<SimNode>>>>;

/// Two nodes that see each other and own what there is.
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

/// Sends a message to each of many conversations through a node; the longest time to an ack, and who got none.
pub(crate) async fn send_to_many(nodes: &Nodes, nth: usize, id: &str) -> (Duration, usize) {
    let (mut longest, mut failed) = (Duration::ZERO, 0);
    let me = UserId::new("ann").expect("it is sound");
    for n in 0..12 {
        let other = UserId::new(&format!("u{n}")).expect("it is sound");
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
fn an_answer_that_the_link_lost_is_asked_for_and_comes_within_half_a_second() {
    in_one_thread(async {
        let (_world, nodes) = two_nodes().await;
        assert_eq!(send_to_many(&nodes, 0, "m1").await.1, 0);
        // What the owner hands to its lane never arrives; a question does.
        for nth in 0..2 {
            with(&nodes, nth, |node| {
                (0..1_000).for_each(|_| node.link_faults().plan("answers", Fault::Fail))
            });
        }
        for nth in 0..2 {
            let (longest, failed) = send_to_many(&nodes, nth, &format!("m2-{nth}")).await;
            assert_eq!(failed, 0, "through node {nth}");
            assert!(longest > Duration::from_millis(250), "some owner is elsewhere: {longest:?}");
            assert!(longest < Duration::from_millis(500), "{longest:?}");
        }
    });
}

/// Sends a message to each of many conversations at once; how long each took to its ack, none for those without.
async fn send_all_at_once(way: node::Way, id: String) -> Vec<Option<Duration>> {
    let me = UserId::new("ann").expect("it is sound");
    let (way, me, id) = (&way, &me, id.as_str());
    let sends = (0..12).map(|n| async move {
        let other = UserId::new(&format!("u{n}")).expect("it is sound");
        let began = Instant::now();
        let answer = way.append(message(me, &ConversationId::direct(me, &other), id, 0)).await;
        seq_of(&answer).map(|_| began.elapsed())
    });
    join_all(sends).await
}

#[test]
fn an_owner_that_answers_no_question_holds_up_no_answer_of_the_others() {
    in_one_thread(async {
        let (_world, nodes) = nodes_of(World::new(true), 3).await;
        assert_eq!([0, 1, 2].map(|nth| with(&nodes, nth, SimNode::owns).len()), [1; 3]);
        // What the owners hand to their lanes never arrives, and one of them leaves questions open as well. Node 2 asks.
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
            let took = round.await.expect("it goes on");
            let (asked, lost) = (took.iter().flatten().max(), took.iter().filter(|it| it.is_none()).count());
            assert!(lost > 0 && lost < 12, "some are the silent owner's: {took:?}");
            let asked = asked.expect("some are not");
            assert!(*asked > Duration::from_millis(250), "some were asked for: {took:?}");
            assert!(*asked < Duration::from_millis(500), "{took:?}");
        }
    });
}

#[test]
fn a_node_that_can_not_archive_while_others_can_gives_its_partitions_up_and_comes_back_later() {
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
        // Some of these are node 0's to archive, some go on.
        let mut n = 0;
        while owns(0) > 0 {
            n += 1;
            send_to_many(&nodes, 1, &format!("m{n}")).await;
            assert!(began.elapsed() < Duration::from_secs(120), "it never gave up");
        }
        pass(2_000).await;
        assert_eq!(owns(1), super::PARTITIONS, "the other has them all");
        let (longest, failed) = send_to_many(&nodes, 1, "after").await;
        assert_eq!((failed, longest < Duration::from_millis(500)), (0, true), "{longest:?}");
        // It stays away as long as its store does not answer.
        pass(60_000).await;
        assert_eq!(owns(0), 0);
        cut(false);
        pass(15_000).await;
        assert!(owns(0) > 0, "it owns again");
        assert_eq!(send_to_many(&nodes, 0, "again").await.1, 0);
    });
}

#[test]
fn a_partition_that_nobody_can_read_takes_no_others_with_it() {
    in_one_thread(async {
        let world = World::new(true);
        world.log.lose_leader(0);
        let (_world, nodes) = nodes_of(world, 2).await;
        let before = [with(&nodes, 0, SimNode::owns), with(&nodes, 1, SimNode::owns)];
        assert_eq!(before.each_ref().map(Vec::len), [1, 1], "all but that one are taken over");
        let began = Instant::now();
        for n in 0.. {
            let failed = send_to_many(&nodes, n % 2, &format!("m{n}")).await.1;
            assert!(failed < 12, "others go on");
            assert_eq!([with(&nodes, 0, SimNode::owns), with(&nodes, 1, SimNode::owns)], before);
            if began.elapsed() > Duration::from_secs(60) {
                return;
            }
        }
    });
}

/// Cuts node 0 from its store until it owns nothing, mends that at once, and says how long it then stayed away.
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
fn who_owned_in_health_for_a_minute_is_away_no_longer_than_the_first_time() {
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
fn a_take_over_that_waits_for_the_store_ends_as_soon_as_the_partition_is_asked_back() {
    in_one_thread(async {
        let (world, nodes) = two_nodes().await;
        let none = Rates { fail: 1_000, ..Rates::default() };
        with(&nodes, 0, |node| node.store_faults().set_rates(none));
        let left = nodes.borrow_mut()[1].take();
        left.expect("it runs").leave(&world).await;
        pass(1_000).await;
        assert_eq!(with(&nodes, 0, SimNode::owns), [0, 2], "the third it can't take over");
        let node = SimNode::start(&world, 1, 2, 1, LEDGER_NEWEST);
        node.heal();
        nodes.borrow_mut()[1] = Some(node);
        pass(1_000).await;
        assert_eq!(with(&nodes, 1, SimNode::owns), [1]);
    });
}

fn import(name: &str) -> MemberChange {
    MemberChange {
        conversation: ConversationId::parse(&format!("g:{name}")).expect("it is sound"),
        action: MemberAction::Create,
        users: (0..1_000).map(|n| UserId::new(&format!("u{n}")).expect("it is sound")).collect(),
        role: None,
        by: None,
        settings: Default::default(),
        request_id: MsgId::new("import").expect("it is sound"),
    }
}

/// Hands groups of a thousand over, all at once; nobody waits.
pub(crate) fn import_all(nodes: &Nodes, name: &str, count: usize) -> Vec<ConversationId> {
    let changes: Vec<MemberChange> = (0..count).map(|n| import(&format!("{name}-{n}"))).collect();
    let groups = changes.iter().map(|change| change.conversation.clone()).collect();
    for change in changes {
        let way = with(nodes, 1, SimNode::way);
        tokio::task::spawn_local(async move { way.append(Body::Member(change)).await });
    }
    groups
}

/// How long it takes until all of them are archived.
pub(crate) async fn archived(world: &World, groups: &[ConversationId]) -> Duration {
    let began = Instant::now();
    for group in groups {
        while world.store.summary(group, None).await.expect("it is sound").is_none() {
            pass(100).await;
            assert!(began.elapsed() < Duration::from_secs(600), "{group} is never archived");
        }
    }
    began.elapsed()
}

#[test]
fn imports_that_piled_up_behind_a_slow_store_are_archived_in_portions_that_it_takes_in_time() {
    in_one_thread(async {
        let (world, nodes) = two_nodes().await;
        // While it is quick the portions grow.
        for n in 0..10 {
            archived(&world, &import_all(&nodes, &format!("quick-{n}"), 10)).await;
        }
        let gates = [0, 1].map(|nth| with(&nodes, nth, SimNode::hold_archive));
        let groups = import_all(&nodes, "slow", 90);
        pass(2_000).await;
        // Two seconds for a thousand members: three of them don't end in time.
        world.slow.set_row_us(2_000);
        gates.iter().for_each(|gate| gate.open());
        let took = archived(&world, &groups).await;
        assert!(took < Duration::from_secs(120), "{took:?}");
        let broken_off = world.slow.broken_off();
        assert!((1..=2 * super::PARTITIONS as u64).contains(&broken_off), "{broken_off}");
    });
}

#[test]
fn nobody_gives_up_while_nobody_can_archive() {
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

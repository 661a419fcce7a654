//! Owners that are cut off, and answers that never come: on memory ports, without any other fault.

use std::{cell::RefCell, rc::Rc};

use tidegate::fault::{Fault, Rates};
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::session::Answer,
};
use tokio::{
    task::LocalSet,
    time::{Duration, Instant},
};

use super::{SimNode, World, gossip, message, pass, seq_of};

type Nodes = Rc<RefCell<Vec<Option<SimNode>>>>;

/// Two nodes that see each other and own what there is.
async fn two_nodes() -> (Rc<World>, Nodes) {
    let world = Rc::new(World::new());
    let nodes: Nodes = Rc::default();
    for nth in 0..2 {
        let node = SimNode::start(&world, nth, 1, 1);
        node.heal();
        nodes.borrow_mut().push(Some(node));
    }
    tokio::task::spawn_local(gossip(Rc::clone(&nodes)));
    pass(3_000).await;
    (world, nodes)
}

fn with<T>(nodes: &Nodes, nth: usize, look: impl FnOnce(&SimNode) -> T) -> T {
    look(nodes.borrow()[nth].as_ref().expect("it runs"))
}

/// Sends a message to each of many conversations through a node; the longest time to an ack, and who got none.
async fn send_to_many(nodes: &Nodes, nth: usize, id: &str) -> (Duration, usize) {
    let (mut longest, mut failed) = (Duration::ZERO, 0);
    let me = UserId::new("ann").expect("it is sound");
    for n in 0..12 {
        let other = UserId::new(&format!("u{n}")).expect("it is sound");
        let way = with(nodes, nth, SimNode::way);
        let began = Instant::now();
        let answer = way.append(message(&me, &ConversationId::direct(&me, &other), id, 0)).await;
        longest = longest.max(began.elapsed());
        if seq_of(&answer).is_none() {
            assert_eq!(answer, Answer::Unknown);
            failed += 1;
        }
    }
    (longest, failed)
}

fn in_one_thread(story: impl Future<Output = ()>) {
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

//! Nodes of two versions over one log: when the rules are switched, and what becomes of the older ones.

use std::{cell::RefCell, rc::Rc};

use tidegate_protocol::{
    machine::ledger::LEDGER_NEWEST,
    record::{Body, Record},
};

use super::{
    PARTITIONS, SimNode, World, gossip,
    owners::{Nodes, in_one_thread, send_to_many, with},
    pass,
};

/// Nodes that see each other, each with the version up to which it knows the rules.
async fn nodes_of(known: &[u32]) -> (Rc<World>, Nodes) {
    let world = Rc::new(World::new(true));
    let nodes: Nodes = Rc::new(RefCell::new(Vec::new()));
    for (nth, known) in known.iter().enumerate() {
        nodes.borrow_mut().push(Some(started(&world, nth, 1, *known)));
    }
    tokio::task::spawn_local(gossip(Rc::clone(&nodes)));
    pass(3_000).await;
    (world, nodes)
}

fn started(world: &Rc<World>, nth: usize, boot: u64, known: u32) -> SimNode {
    let node = SimNode::start(world, nth, boot, 1, known);
    node.heal();
    node
}

/// The partitions whose log has a switch of the rules.
fn switched(world: &World) -> usize {
    let is_switch = |record: &Record| matches!(&record.body, Body::Rules(it) if it.ledger_version > 1);
    let has = |partition| {
        let records = world.log.records(partition).into_iter().filter_map(|bytes| Record::decode(bytes).ok());
        records.into_iter().any(|record| is_switch(&record))
    };
    (0..PARTITIONS).filter(|partition| has(*partition)).count()
}

fn owned(nodes: &Nodes) -> Vec<usize> {
    nodes.borrow().iter().map(|node| node.as_ref().map_or(0, |node| node.owns().len())).collect()
}

#[test]
fn the_rules_are_switched_when_the_last_older_node_was_replaced_and_not_before() {
    in_one_thread(async {
        let (world, nodes) = nodes_of(&[LEDGER_NEWEST, LEDGER_NEWEST, 1]).await;
        pass(60_000).await;
        assert_eq!(switched(&world), 0, "one live node does not know them");
        assert_eq!(send_to_many(&nodes, 2, "before").await.1, 0);
        let older = nodes.borrow_mut()[2].take().expect("it runs");
        older.leave(&world).await;
        nodes.borrow_mut()[2] = Some(started(&world, 2, 2, LEDGER_NEWEST));
        pass(10_000).await;
        assert_eq!(switched(&world), PARTITIONS);
        for nth in 0..3 {
            assert_eq!(send_to_many(&nodes, nth, &format!("after-{nth}")).await.1, 0);
        }
        pass(60_000).await;
        let records: usize = (0..PARTITIONS).map(|partition| world.log.records(partition).len()).sum();
        assert_eq!(records, 4 * 12 + PARTITIONS, "one switch each");
    });
}

#[test]
fn an_older_node_that_comes_after_the_switch_leaves_its_partitions_to_others_and_stays_away() {
    in_one_thread(async {
        let (world, nodes) = nodes_of(&[LEDGER_NEWEST, LEDGER_NEWEST]).await;
        pass(10_000).await;
        assert_eq!(switched(&world), PARTITIONS);
        nodes.borrow_mut().push(Some(started(&world, 2, 1, 1)));
        pass(2_000).await;
        // For good: it neither takes them again nor gives them up again.
        for _ in 0..60 {
            let owned = owned(&nodes);
            assert_eq!((owned.iter().sum::<usize>(), owned[2]), (PARTITIONS, 0), "{owned:?}");
            pass(10_000).await;
        }
        // Its clients are served all the same.
        assert_eq!(send_to_many(&nodes, 2, "through-the-older-one").await.1, 0);
        assert!(with(&nodes, 2, SimNode::owns).is_empty());
    });
}

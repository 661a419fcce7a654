//! Nodes of two versions over one log: when the rules are switched, and what happens to the older nodes.

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

/// Returns nodes that see each other, each with the newest version of the rules it supports.
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

/// Returns the number of partitions whose log has a switch of the rules.
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
fn rules_switch_only_after_the_last_old_node_is_replaced() {
    in_one_thread(async {
        let (world, nodes) = nodes_of(&[LEDGER_NEWEST, LEDGER_NEWEST, 1]).await;
        pass(60_000).await;
        assert_eq!(switched(&world), 0, "one live node does not support the new rules");
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
        assert_eq!(records, 4 * 12 + PARTITIONS, "one switch per partition");
    });
}

#[test]
fn older_node_after_the_switch_owns_no_partition() {
    in_one_thread(async {
        let (world, nodes) = nodes_of(&[LEDGER_NEWEST, LEDGER_NEWEST]).await;
        pass(10_000).await;
        assert_eq!(switched(&world), PARTITIONS);
        nodes.borrow_mut().push(Some(started(&world, 2, 1, 1)));
        pass(2_000).await;
        // Permanently: it neither takes partitions nor releases them again.
        for _ in 0..60 {
            let owned = owned(&nodes);
            assert_eq!((owned.iter().sum::<usize>(), owned[2]), (PARTITIONS, 0), "{owned:?}");
            pass(10_000).await;
        }
        // Its clients are still served.
        assert_eq!(send_to_many(&nodes, 2, "through-the-older-one").await.1, 0);
        assert!(with(&nodes, 2, SimNode::owns).is_empty());
    });
}

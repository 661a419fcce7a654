//! Nodes of two versions over one log: when the rules are switched, and what happens to the older nodes.

use std::{cell::RefCell, rc::Rc};

use tidegate_protocol::{
    Code,
    id::{ConversationId, DeviceId, MsgId, UserId},
    machine::{
        ledger::{LEDGER_NEWEST, MODES_RULES},
        session::SubmitAnswer,
    },
    record::{Body, Edit, Message, MessageMode, Record, body_hash, mode::SILENT},
};

use super::{
    PARTITIONS, SimNode, World, gossip, message,
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

/// Returns the number of partitions whose log has a switch to that version of the rules or a later one.
fn switched(world: &World, to: u32) -> usize {
    let is_switch = |record: &Record| matches!(&record.body, Body::Rules(it) if it.ledger_version >= to);
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
        assert_eq!(switched(&world, 2), 0, "one live node does not support the new rules");
        assert_eq!(send_to_many(&nodes, 2, "before").await.1, 0);
        let older = nodes.borrow_mut()[2].take().expect("it runs");
        older.leave(&world).await;
        nodes.borrow_mut()[2] = Some(started(&world, 2, 2, LEDGER_NEWEST));
        pass(10_000).await;
        assert_eq!(switched(&world, LEDGER_NEWEST), PARTITIONS);
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
        assert_eq!(switched(&world, LEDGER_NEWEST), PARTITIONS);
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

/// Edits the first message of each of the conversations of [`send_to_many`] and sends a silent one to each, through a node;
/// returns the codes of the refusals, or else the number of what was accepted.
async fn edit_and_flag(nodes: &Nodes, nth: usize, id: &str) -> Result<usize, Vec<Code>> {
    let (mut accepted, mut refused) = (0, Vec::new());
    let me = UserId::new("ann").expect("a valid value");
    for n in 0..12 {
        let conversation =
            ConversationId::direct(&me, &UserId::new(&format!("u{n}")).expect("a valid value"));
        let content = bytes::Bytes::from_static(b"better");
        let edit = Body::Edit(Edit {
            conversation: conversation.clone(),
            seq: 1,
            by: Some(me.clone()),
            device: DeviceId::new("d").expect("a valid value"),
            msg_id: MsgId::new(&format!("edit-{id}")).expect("a valid value"),
            body_hash: body_hash(&content),
            content,
            denied: None,
        });
        let silent = match message(&me, &conversation, id, 0) {
            Body::Message(it) => {
                Body::Message(Message { flags: SILENT, mode: MessageMode::of_flags(SILENT), ..it })
            }
            other => other,
        };
        for body in [edit, silent] {
            match with(nodes, nth, SimNode::way).append(body).await {
                SubmitAnswer::Accepted { .. } => accepted += 1,
                SubmitAnswer::Refused { code, .. } => refused.push(code),
                other => panic!("{other:?}"),
            }
        }
    }
    if refused.is_empty() { Ok(accepted) } else { Err(refused) }
}

/// Ends a node as planned, and starts it again with another newest version of the rules.
async fn replace(world: &Rc<World>, nodes: &Nodes, nth: usize, boot: u64, known: u32) {
    let former = nodes.borrow_mut()[nth].take().expect("it runs");
    former.leave(world).await;
    nodes.borrow_mut()[nth] = Some(started(world, nth, boot, known));
    pass(10_000).await;
}

#[test]
fn edits_and_flags_are_accepted_from_the_switch_of_version_4_to_5_on() {
    const BEFORE: u32 = MODES_RULES - 1;
    in_one_thread(async {
        let (world, nodes) = nodes_of(&[MODES_RULES, MODES_RULES, BEFORE]).await;
        pass(10_000).await;
        assert_eq!(switched(&world, BEFORE), PARTITIONS, "what all know is in force");
        assert_eq!(send_to_many(&nodes, 2, "before").await.1, 0);
        pass(60_000).await;
        assert_eq!(switched(&world, MODES_RULES), 0, "one live node knows version {BEFORE} only");
        for nth in 0..3 {
            let refused = edit_and_flag(&nodes, nth, "new").await;
            assert_eq!(refused, Err(vec![Code::NotYet; 24]), "through node {nth}");
        }
        replace(&world, &nodes, 2, 2, MODES_RULES).await;
        assert_eq!(switched(&world, MODES_RULES), PARTITIONS);
        // Under the ids that were refused: nothing remembers a refusal of a kind that older nodes skip.
        assert_eq!(edit_and_flag(&nodes, 0, "new").await, Ok(24));
        for nth in 1..3 {
            assert_eq!(edit_and_flag(&nodes, nth, &format!("new-{nth}")).await, Ok(24), "through node {nth}");
        }
        replace(&world, &nodes, 2, 3, BEFORE).await;
        for _ in 0..60 {
            let owned = owned(&nodes);
            assert_eq!((owned.iter().sum::<usize>(), owned[2]), (PARTITIONS, 0), "{owned:?}");
            pass(10_000).await;
        }
        assert_eq!(send_to_many(&nodes, 2, "through-the-older-one").await.1, 0);
        assert_eq!(edit_and_flag(&nodes, 2, "newer").await, Ok(24), "the owners know what its clients send");
    });
}

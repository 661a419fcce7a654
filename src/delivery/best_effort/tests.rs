//! Users that each node gets with a signal, and the size of a lookup.

use tidegate_protocol::id::{DeviceId, NodeId};

use super::*;
use crate::link::RoutedSession;

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

fn node(name: &str) -> NodeBoot {
    NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 }
}

fn session(name: &str, device: &str) -> RoutedSession {
    RoutedSession { user: user(name), device: DeviceId::new(device).unwrap(), epoch: 1 }
}

fn signal(recipients: Recipients) -> QueuedItem {
    let conversation = ConversationId::parse("g:tea").unwrap();
    let message = BestEffortMessage::Signal { conversation, users: Vec::new(), frame: "frame".into() };
    QueuedItem { message, recipients }
}

fn members(names: impl IntoIterator<Item = String>) -> Recipients {
    Recipients::Members(Arc::new(names.into_iter().map(|name| user(&name)).collect()))
}

#[test]
fn x21_each_node_gets_only_the_members_that_it_has() {
    let places: UserSessions = [
        ("ann", vec![(node("n2"), session("ann", "phone")), (node("n2"), session("ann", "desk"))]),
        ("bob", vec![(node("n3"), session("bob", "phone")), (node("n2"), session("bob", "desk"))]),
        ("eve", vec![(node("n4"), session("eve", "phone"))]),
    ]
    .map(|(name, sessions)| (user(name), sessions))
    .into();
    let names = ["ann", "bob", "cid"].map(str::to_owned);
    for recipients in [members(names.clone()), Recipients::Few(names.map(|name| user(&name)).to_vec())] {
        let mut sent = Vec::new();
        for (node, message) in signal(recipients).by_node(&places) {
            let BestEffortMessage::Signal { users, frame, .. } = message else { panic!("a signal") };
            sent.push((node.clone(), users, frame));
        }
        let expected = [(node("n2"), vec![user("ann"), user("bob")]), (node("n3"), vec![user("bob")])];
        assert_eq!(sent, expected.map(|(node, users)| (node, users, Bytes::from("frame"))));
    }
}

#[test]
fn x21_a_lookup_has_few_recipients_or_one_message() {
    let group = |size: usize| signal(members((0..size).map(|n| format!("u{n}"))));
    let few = || signal(Recipients::Few(vec![user("ann"), user("bob")]));
    assert_eq!(looked_up_together(&[group(LOOKUP_RECIPIENTS_MAX + 1), few()]), 1);
    assert_eq!(looked_up_together(&[few(), group(LOOKUP_RECIPIENTS_MAX - 1), few()]), 1);
    assert_eq!(looked_up_together(&[few(), group(LOOKUP_RECIPIENTS_MAX - 2), few()]), 2);
    let groups: Vec<QueuedItem> = (0..40).map(|_| group(500)).collect();
    assert_eq!(looked_up_together(&groups), LOOKUP_RECIPIENTS_MAX / 500);
}

#[test]
fn members_of_a_signal_are_in_order() {
    let names: Vec<String> = (10..50).map(|n| format!("u{n}")).collect();
    let sessions = |name: &String| (user(name), vec![(node("n2"), session(name, "phone"))]);
    let places: UserSessions = names.iter().map(sessions).collect();
    let signal = signal(members(names.clone()));
    let (_, message) = signal.by_node(&places).next().unwrap();
    let BestEffortMessage::Signal { users, .. } = message else { panic!("a signal") };
    assert_eq!(users, names.iter().map(|name| user(name)).collect::<Vec<_>>());
}

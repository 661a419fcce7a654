//! Whom a push reaches on which node.

use tidegate_protocol::id::NodeId;

use super::*;

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

fn node(name: &str) -> NodeBoot {
    NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 }
}

fn session(name: &str, device: &str, epoch: u64) -> Session {
    Session { user: user(name), device: DeviceId::new(device).unwrap(), epoch }
}

fn parting(push: &'static str, users: &[&str]) -> Parting {
    let users = users.iter().map(|name| user(name)).collect();
    Parting { push: push.into(), users, tracked: true, except: None, sent_by: None, trace: None }
}

/// Pushes, and whom they are for.
type Told = Vec<(Bytes, Vec<Target>)>;

#[test]
fn each_node_gets_its_sessions_in_the_order_of_the_pushes_and_the_sender_is_left_out() {
    let places: Places = [
        (
            user("ann"),
            vec![(node("n2"), session("ann", "phone", 1)), (node("n3"), session("ann", "desk", 4))],
        ),
        (user("bob"), vec![(node("n2"), session("bob", "phone", 2))]),
    ]
    .into();
    let first = Parting {
        except: Some((user("ann"), DeviceId::new("phone").unwrap(), 1)),
        ..parting("1", &["ann", "bob", "cat"])
    };
    let found = apart(&[first, parting("2", &["ann"]), parting("3", &["cat"])], &places);
    let told: Vec<(NodeBoot, Told)> = found
        .into_iter()
        .map(|(to, pushes)| (to, pushes.into_iter().map(|it| (it.push, it.to)).collect()))
        .collect();
    let conn = |name, device, epoch| Target::Conn(session(name, device, epoch));
    let expected = [
        (
            node("n2"),
            vec![
                (Bytes::from("1"), vec![conn("bob", "phone", 2)]),
                (Bytes::from("2"), vec![conn("ann", "phone", 1)]),
            ],
        ),
        (
            node("n3"),
            vec![
                (Bytes::from("1"), vec![conn("ann", "desk", 4)]),
                (Bytes::from("2"), vec![conn("ann", "desk", 4)]),
            ],
        ),
    ];
    assert_eq!(told, expected);
}

#[test]
fn whoever_is_asked_the_conn_that_sent_it_is_named() {
    let sent_by = Some(SentBy { at: node("n2"), conn: 77 });
    let push = Parting { sent_by: sent_by.clone(), ..parting("1", &["ann", "bob"]) };
    // The same conn, under an epoch that it got since.
    let places: Places = [(user("ann"), vec![(node("n2"), session("ann", "phone", 9))])].into();
    let found = apart(&[push], &places);
    assert_eq!(found[&node("n2")][0].sent_by, sent_by);
}

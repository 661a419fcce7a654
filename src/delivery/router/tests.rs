//! Sessions that a push reaches on each node.

use tidegate_protocol::id::NodeId;

use super::*;
use crate::{
    cluster::PeerSnapshot,
    link::{
        RoutedSession,
        recording::{RecordingPeer, RecordingPeers},
    },
    metrics,
    ports::Ports,
    routes::{DevicePolicy, Lease, NodeInfo, Registration},
};

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

fn node(name: &str) -> NodeBoot {
    NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 }
}

fn session(name: &str, device: &str, epoch: u64) -> RoutedSession {
    RoutedSession { user: user(name), device: DeviceId::new(device).unwrap(), epoch }
}

fn remote_push(push: &'static str, users: &[&str]) -> RemotePush {
    let users = users.iter().map(|name| user(name)).collect();
    RemotePush { push: push.into(), users, tracked: true, except: None, sent_by: None, trace: None }
}

/// Pushes with their targets.
type SentPushes = Vec<(Bytes, Vec<Target>)>;

#[test]
fn each_node_gets_its_sessions_in_push_order_without_the_sender() {
    let places: UserSessions = [
        (
            user("ann"),
            vec![(node("n2"), session("ann", "phone", 1)), (node("n3"), session("ann", "desk", 4))],
        ),
        (user("bob"), vec![(node("n2"), session("bob", "phone", 2))]),
    ]
    .into();
    let first = RemotePush {
        except: Some((user("ann"), DeviceId::new("phone").unwrap(), 1)),
        ..remote_push("1", &["ann", "bob", "cat"])
    };
    let found = split_by_node(&[first, remote_push("2", &["ann"]), remote_push("3", &["cat"])], &places);
    let sent: Vec<(NodeBoot, SentPushes)> = found
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
    assert_eq!(sent, expected);
}

#[test]
fn sending_connection_is_named_whatever_its_epoch() {
    let sent_by = Some(SentBy { at: node("n2"), conn: 77 });
    let push = RemotePush { sent_by: sent_by.clone(), ..remote_push("1", &["ann", "bob"]) };
    // The same connection, with a newer epoch.
    let places: UserSessions = [(user("ann"), vec![(node("n2"), session("ann", "phone", 9))])].into();
    let found = split_by_node(&[push], &places);
    assert_eq!(found[&node("n2")][0].sent_by, sent_by);
}

#[tokio::test(start_paused = true)]
async fn s82_incomplete_routes_name_nodes_that_are_not_discovered() {
    let peers = ["n2", "n3"].map(|name| (node(name), Arc::new(RecordingPeer::default())));
    let link = RecordingPeers(peers.iter().cloned().collect());
    let cluster = Arc::new(Cluster::new(node("n1"), Ports::in_memory(Arc::new(link))));
    let discovered = NodeRow::new(NodeInfo::new(node("n2")), Lease::Live);
    let others = Arc::new([discovered]);
    cluster.peers.set(PeerSnapshot { others, may_be_incomplete: true, ..PeerSnapshot::default() });
    for (name, at) in [("ann", "n2"), ("bob", "n3")] {
        let (user, device) = (user(name), DeviceId::new("phone").unwrap());
        let policy = DevicePolicy::default();
        let wish = Registration { user, device, at: node(at), above: 0, only_if: None, policy };
        cluster.ports.routes.register(wish).await.unwrap();
    }
    let router = Router::start(&cluster, PeerQueues::new(&cluster, metrics::install().0));
    router.pushes(vec![remote_push("1", &["ann"]), remote_push("2", &["bob"])]).await;
    router.peer_queues.settle(Duration::from_secs(1)).await;
    let pushed = peers.map(|(_, peer)| peer.pushes.lock().clone());
    assert_eq!(pushed[0], [b"1", b"2"], "a discovered node gets all");
    assert_eq!(pushed[1], [b"2"], "another one what its routes name");
}

//! Calls by which access ends on a peer: connections that are listed and closed, revocations, and notifications of changes.

use std::{net::IpAddr, time::Duration};

use tidegate::{
    link::{
        BestEffortMessage, CloseOrder, ConnectionPage, ConnectionQuery, ConnectionRow, ConnectionSort,
        GrpcLink, Link as _, Selected,
    },
    revocation::{Revocation, RevokedTokens},
    routes::NodeBoot,
};
use tidegate_protocol::{
    codec::Wire,
    id::{ConversationId, DeviceId},
};

use super::end::{answers, user};

/// Connections that the peer closes by each order.
pub(super) const CLOSED: u64 = 300;

fn phone() -> DeviceId {
    DeviceId::new("phone").expect("an id")
}

fn selected() -> [Selected; 3] {
    [Selected::User(user("ann"), None), Selected::User(user("ann"), Some(phone())), Selected::Key(1 << 40)]
}

fn queries() -> Vec<ConnectionQuery> {
    let query = |selected| ConnectionQuery { selected, sort: ConnectionSort::Since, limit: 50 };
    let sorted = |sort| ConnectionQuery { sort, ..query(Selected::All) };
    let all = [ConnectionSort::Outbox, ConnectionSort::KeyFrom(1 << 40)].map(sorted);
    selected().map(query).into_iter().chain(all).collect()
}

fn orders() -> Vec<CloseOrder> {
    let after = [None, Some(Duration::from_secs(5)), None];
    let order = |(selected, reconnect_after)| CloseOrder { selected, reason: "spam".into(), reconnect_after };
    selected().into_iter().zip(after).map(order).collect()
}

fn revocations() -> Vec<Revocation> {
    let tokens = [
        RevokedTokens::Before(1_763_712_000_000),
        RevokedTokens::Id("t1".into()),
        RevokedTokens::Device(phone(), 1),
        RevokedTokens::Cleared,
    ];
    let until = [None, Some(1_763_798_400_000), None, Some(u64::MAX)];
    let revocation =
        |(tokens, until_ms)| Revocation { user: user("ann"), tokens, at_ms: 1_763_712_000_001, until_ms };
    tokens.into_iter().zip(until).map(revocation).collect()
}

/// Returns notifications of changes that the peer finds in the store.
fn changes() -> Vec<BestEffortMessage> {
    let conversation = ConversationId::direct(&user("ann"), &user("bob"));
    vec![BestEffortMessage::BlocksChanged { conversation }, BestEffortMessage::GuardChanged]
}

/// Returns the connections that the peer lists.
pub(super) fn page() -> ConnectionPage {
    let row = |key, address: &str, wire| ConnectionRow {
        key,
        user: user("ann"),
        device: phone(),
        address: address.parse::<IpAddr>().expect("an address"),
        wire,
        since_ms: 1_763_712_000_000,
        outbox_bytes: 300,
        unacked: 2,
        expires_ms: u64::MAX,
        class: 0,
        held: 0,
        blocked_ms: 0,
    };
    let rows = (1..).zip(["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.2", "0.0.0.0"]).zip(Wire::ALL);
    ConnectionPage {
        rows: rows.map(|((key, address), wire)| row(key, address, wire)).collect(),
        total: 1 << 33,
    }
}

/// Returns what the peer records of all calls, in the order of [`call_all`].
pub(super) fn calls() -> Vec<String> {
    let queries = queries().into_iter().map(|it| format!("{it:?}"));
    let orders = orders().into_iter().map(|it| format!("{it:?}"));
    let revocations = revocations().into_iter().map(|it| format!("{it:?}"));
    let others = [format!("{:?}", answers()), format!("{:?}", changes())];
    queries.chain(orders).chain(revocations).chain(others).collect()
}

/// Makes each kind of call once, and checks the results; there is one on each stream.
pub(super) async fn call_all(link: &GrpcLink, to: &NodeBoot) {
    for query in queries() {
        assert_eq!(link.connections(to, query).await, Ok(page()));
    }
    for order in orders() {
        assert_eq!(link.close_connections(to, order).await, Ok(CLOSED));
    }
    for revocation in revocations() {
        assert_eq!(link.revoke(to, revocation).await, Ok(CLOSED));
    }
    assert_eq!(link.answers(to, answers()).await, Ok(()));
    assert_eq!(link.send_best_effort(to, changes()).await, Ok(()));
}

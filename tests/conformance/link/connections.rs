//! Calls about the connections of a peer.

use std::time::Duration;

use tidegate::{
    link::{
        AckQuery, CloseOrder, ConnectionPage, ConnectionQuery, ConnectionRow, ConnectionSort, DeviceAck,
        LinkError, Selected,
    },
    revocation::{Revocation, RevokedTokens},
};
use tidegate_protocol::{codec::Wire, id::ConversationId};

use super::{World, ended_run};
use crate::{device, user};

/// Returns what the called end has.
pub(super) fn page() -> ConnectionPage {
    let row = |key, wire, address: &str| ConnectionRow {
        key,
        user: user("ann"),
        device: device("phone"),
        address: address.parse().unwrap(),
        wire,
        since_ms: 1,
        outbox_bytes: u64::MAX,
        unacked: 3,
        expires_ms: u64::MAX,
        class: 2,
        held: 4,
        blocked_ms: 5,
    };
    let rows = vec![row(u64::MAX, Wire::WsText, "::1"), row(0, Wire::JsonLine, "10.0.0.1")];
    ConnectionPage { rows, total: 5 }
}

/// Returns what the called end has of devices: all are of ann, who has acked up to 7.
pub(super) fn acks(queries: &[AckQuery]) -> Vec<Vec<DeviceAck>> {
    let device = |query: &AckQuery| DeviceAck { device: device("phone"), has_acked: query.seq <= 7 };
    let of_query =
        |query: &AckQuery| (query.user == user("ann")).then(|| device(query)).into_iter().collect();
    queries.iter().map(of_query).collect()
}

pub(super) async fn calls_about_connections_arrive_unchanged(world: &World) {
    let of_ann = |device| Selected::User(user("ann"), device);
    let query = |selected, sort| ConnectionQuery { selected, sort, limit: 2 };
    let queries = [
        query(Selected::All, ConnectionSort::Outbox),
        query(of_ann(Some(device("phone"))), ConnectionSort::Since),
        query(Selected::Key(0), ConnectionSort::Since),
        query(Selected::All, ConnectionSort::KeyFrom(0)),
    ];
    for query in &queries {
        assert_eq!(world.link.connections(&world.there, query.clone()).await, Ok(page()));
    }
    assert_eq!(*world.end.queries.lock().unwrap(), queries);
    let query =
        |name, seq| AckQuery { user: user(name), conversation: ConversationId::parse("g:tea").unwrap(), seq };
    let asked = vec![query("ann", 7), query("bob", u64::MAX), query("ann", 8)];
    assert_eq!(world.link.acks(&world.there, asked.clone()).await, Ok(acks(&asked)));
    let order = |selected, reconnect_after| CloseOrder { selected, reason: "spam".into(), reconnect_after };
    let orders = [order(of_ann(None), None), order(Selected::Key(7), Some(Duration::from_secs(5)))];
    for order in &orders {
        assert_eq!(world.link.close_connections(&world.there, order.clone()).await, Ok(3));
    }
    assert_eq!(*world.end.orders.lock().unwrap(), orders);
    let tokens = RevokedTokens::Device(device("phone"), 9);
    let revocation = Revocation { user: user("ann"), tokens, at_ms: 9, until_ms: Some(10) };
    assert_eq!(world.link.revoke(&world.there, revocation.clone()).await, Ok(4));
    assert_eq!(*world.end.revocations.lock().unwrap(), std::slice::from_ref(&revocation));
    let ended = world.link.revoke(&ended_run(), revocation).await;
    assert!(matches!(ended, Err(LinkError::NotHere | LinkError::Unavailable(_))), "{ended:?}");
}

//! Storm of a small group: notices for members on all nodes, and slow mode on the node that receives a message.

use std::time::Duration;

use tidegate_protocol::{
    Code,
    codec::Wire,
    machine::storm::{StormAction, StormRule},
    pb,
};

use super::{Client, ServerBody, ask, eventually, mesh, send};

/// Sends until a message is refused; returns the refusal.
fn until_refused(client: &mut Client, group: &str, name: &str) -> pb::Error {
    let mut n = 0;
    eventually("a message is refused", || {
        n += 1;
        match client.ask(ask::send(send(group, &format!("{name}{n}"), "more"))) {
            ServerBody::SendAck(_) => None,
            ServerBody::Error(error) => Some(error),
            other => panic!("{other:?}"),
        }
    })
}

#[test]
fn storm_is_notified_and_slowed_on_all_nodes_until_it_is_over() {
    let (mesh, _) = mesh(2);
    let tea = mesh.group("tea", &["ann", "bob"]);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut bob = mesh.login(1, Wire::WsText, "bob", "phone");
    let slow = StormAction::Slow(Duration::from_secs(3));
    mesh.node(0).cluster().storms.set_rule(StormRule::new(5, Duration::from_secs(1)), Some(slow));
    let ids: Vec<u64> = (0..6).map(|n| ann.say(ask::send(send(&tea, &format!("m{n}"), "hi")))).collect();
    ids.into_iter().for_each(|id| drop(ann.expect_ack(id)));
    for client in [&mut ann, &mut bob] {
        let notice = client.expect_notice();
        assert_eq!((notice.kind(), notice.conversation.as_str()), (pb::NoticeKind::Storm, tea.as_str()));
        assert_eq!((notice.threshold, notice.window_ms), (5, 1_000));
        assert_eq!((notice.action.as_str(), notice.interval_ms), ("slow", 3_000));
        assert!(notice.count > 5, "{notice:?}");
    }
    for (client, name) in [(&mut ann, "a"), (&mut bob, "b")] {
        let error = until_refused(client, &tea, name);
        assert_eq!(error.code, u32::from(Code::RateLimited.number()));
        assert!(error.temporary && (1..=3_000).contains(&error.retry_after_ms), "{error:?}");
    }
    for client in [&mut ann, &mut bob] {
        let notice = client.expect_notice();
        assert_eq!((notice.kind(), notice.interval_ms), (pb::NoticeKind::StormOver, 3_000));
    }
    // The other node reads within a second that the storm is over.
    for (client, name) in [(&mut ann, "c"), (&mut bob, "d")] {
        let mut n = 0;
        eventually("two messages at once are accepted", || {
            n += 2;
            let accepts = |client: &mut Client, n: u32| {
                let id = format!("{name}{n}");
                matches!(client.ask(ask::send(send(&tea, &id, "again"))), ServerBody::SendAck(_))
            };
            (accepts(client, n) && accepts(client, n + 1)).then_some(())
        });
    }
}

//! Messages that are published before Postgres has them (ADR 16), over real services.

use tidegate_protocol::{codec::Wire, pb};

use super::{history, send_until_acked};
use crate::support::{Cluster, ServerBody, ask, eventually, send, text_of};

/// Settings under which messages are published before they are archived, from the first one on.
const FIRST: &[&str] = &["log.answer=decided", "log.archive_first_ms=0", "log.allow_one_copy=true"];

/// Returns the node whose owner has published `records` records that are not archived.
fn behind(cluster: &Cluster, records: u64) -> usize {
    eventually("an owner reports its unarchived records", || {
        let said: serde_json::Value =
            serde_json::from_str(&cluster.node(0).http("GET", "/v1/nodes", "")).expect("JSON");
        let nodes = said["nodes"].as_array().expect("a list").clone();
        let is_it = |node: &serde_json::Value| {
            node["stands"].as_array().expect("a list").iter().any(|it| it["behindRecords"] == records)
        };
        let found = nodes.iter().find(|node| is_it(node))?["node"].as_str().expect("a name").to_owned();
        (0..2).find(|nth| found == format!("n{}", nth + 1))
    })
}

#[test]
fn unarchived_acked_messages_survive_their_owner() {
    let mut cluster = Cluster::start(2, FIRST);
    cluster.all_sure();
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::Tcp, "bob"));
    assert_eq!(ann.text("bob", "m1", "m1"), 1);
    assert_eq!(text_of(&bob.expect_push()), "m1");
    let archived = || cluster.number("SELECT count(*) FROM messages");
    eventually("it is archived", || (archived() == 1).then_some(()));
    let held = cluster.hold_archive();
    for n in 2..6 {
        let id = format!("m{n}");
        assert_eq!(ann.text("bob", &id, &id), n, "Kafka has it, and that is enough");
        assert_eq!(text_of(&bob.expect_push()), id);
    }
    assert_eq!(archived(), 1);
    let owner = behind(&cluster, 4);
    cluster.kill(owner);
    drop(held);
    let mut there = cluster.login(1 - owner, Wire::Tcp, if owner == 0 { "ann" } else { "bob" });
    let (user, peer) = if owner == 0 { (&mut there, "bob") } else { (&mut ann, "bob") };
    let (seq, _) = send_until_acked(user, peer, "m6");
    assert_eq!(seq, 6, "no message is lost or stored twice");
    let texts: Vec<(u64, String)> = (1..7).map(|n| (n, format!("m{n}"))).collect();
    assert_eq!(history(user, "d:ann:bob"), texts);
    for n in 2..6 {
        let id = format!("m{n}");
        let again = user.send(pb::Send { attempt: 1, ..send(peer, &id, &id) });
        assert_eq!((again.seq, again.duplicate), (n, true));
    }
}

#[test]
fn reader_on_another_node_waits_for_the_archive() {
    let cluster = Cluster::start(2, FIRST);
    cluster.all_sure();
    cluster.all_linked();
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::Tcp, "bob"));
    assert_eq!(ann.text("bob", "m1", "m1"), 1);
    bob.expect_push();
    let mut sent = 1;
    // Until the reader's node has read that the other one owns the partition, it does not wait; a node that archives
    // its first records, as by default, needs none to wait.
    let page = eventually("a reader waits for the archive", || {
        let held = cluster.hold_archive();
        sent += 1;
        let id = format!("m{sent}");
        assert_eq!(ann.text("bob", &id, &id), sent);
        bob.expect_push();
        let asked = bob.say(ask::after("d:ann:bob", sent - 1, 10));
        drop(held);
        match bob.reply(asked) {
            ServerBody::Page(page) => Some(page),
            ServerBody::Error(error) if error.name == "NOT_YET" => None,
            reply => panic!("no page: {reply:?}"),
        }
    });
    assert_eq!(page.messages.iter().map(text_of).collect::<Vec<_>>(), [format!("m{sent}")]);
    assert_eq!(page.complete_to, sent);
}

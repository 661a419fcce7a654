//! After a crash the users of the dead node are online elsewhere at once or offline soon, and a node that was only
//! frozen ends.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tidegate_protocol::{codec::Wire, pb};

use crate::{
    send_until_acked,
    support::{
        Client, Cluster, ServerBody, Stopwatch, ask, eventually, eventually_within, let_time_pass_since,
        text_of,
    },
};

/// Returns those of the users that a node reports as online.
pub(crate) fn online(cluster: &Cluster, nth: usize, users: &[String]) -> Vec<String> {
    let said = cluster.node(nth).http("POST", "/v1/presence", &json!({"users": users}).to_string());
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let all = said["users"].as_array().unwrap_or_else(|| panic!("{said}"));
    let on = all.iter().filter(|it| it["online"] == true);
    on.map(|it| it["user"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn presence_is_right_within_15_s_of_a_crash_or_freeze() {
    let mut cluster = Cluster::start(3, &[]);
    let names: Vec<String> = (0..24).map(|n| format!("user-{n}")).collect();
    let mut clients: Vec<Client> =
        names.iter().enumerate().map(|(n, name)| cluster.login(n % 2, Wire::Tcp, name)).collect();
    assert_eq!(online(&cluster, 2, &names), names);
    let (crash, watch) = (Instant::now(), Stopwatch::start());
    cluster.node(1).signal(Signal::STOP);
    cluster.kill(0);
    // Half of each node's users connect to the third node, at once and independent of the dead nodes' leases.
    let back: Vec<String> = names.iter().filter(|name| name.len() == 6).cloned().collect();
    let mut there: Vec<Client> = thread::scope(|scope| {
        let cluster = &cluster;
        let logins: Vec<_> =
            back.iter().map(|name| scope.spawn(move || cluster.login(2, Wire::WsText, name))).collect();
        logins.into_iter().map(|login| login.join().expect("the login succeeds")).collect()
    });
    assert!(watch.elapsed() < Duration::from_secs(5), "{:?}", watch.elapsed());
    let_time_pass_since(crash, "no user is reported offline before", Duration::from_secs(8));
    let mut sorted = back.clone();
    sorted.sort();
    eventually("the others are offline", || {
        let mut now = online(&cluster, 2, &names);
        now.sort();
        (now == sorted).then_some(())
    });
    assert!(crash.elapsed() < Duration::from_secs(15), "{:?}", crash.elapsed());

    // Both dead runs are retired, and their rows removed, except for users who came back.
    let_time_pass_since(crash, "both dead runs are retired", Duration::from_secs(17));
    let node = cluster.node(2);
    eventually("the dead runs are swept", || (node.metric("routes_reaped_total") >= 14.0).then_some(()));
    eventually("one node is left", || {
        let said: Value = serde_json::from_str(&node.http("GET", "/v1/nodes", "")).ok()?;
        (said["nodes"].as_array()?.len() == 1).then_some(())
    });
    assert_eq!(online(&cluster, 2, &names).len(), back.len());

    // The frozen node wakes, finds its lease lost, and closes; its clients get a close frame, or are cut.
    cluster.node(1).signal(Signal::CONT);
    let code = cluster.exit(1);
    assert!(code.is_some_and(|code| code != 0), "the node exits with an error: {code:?}");
    for (n, client) in clients.iter_mut().enumerate().filter(|(n, _)| n % 2 == 1) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while client.pump(deadline) {}
        assert!(client.has_ended(), "user-{n} still has a connection");
    }
    assert_eq!(online(&cluster, 2, &names).len(), back.len(), "no user of the third node went offline");
    // Its partitions are moving, which may delay a send.
    assert_eq!(send_until_acked(&mut there[0], &back[1], "m1").0, 1);
    assert_eq!(text_of(&there[1].expect_push()), "m1");
}

#[test]
fn watcher_sees_users_of_other_nodes_until_their_node_crashes() {
    let mut cluster = Cluster::start(3, &[]);
    let names = ["ann", "bob", "cid"].map(str::to_owned);
    let group = cluster.node(0).group("tea", &names);
    let mut ann = cluster.login(0, Wire::Tcp, "ann");
    let _bob = cluster.login(1, Wire::WsText, "bob");
    ann.expect_done(ask::watch(&group));
    let first = ann.expect_presence();
    assert_eq!((first.complete, first.online.as_slice()), (true, &names[..2]));
    let _cid = cluster.login(2, Wire::Tcp, "cid");
    assert_eq!(ann.expect_presence().online, ["cid"]);
    cluster.kill(1);
    let is_report = |frame: &pb::ServerFrame| match &frame.body {
        Some(ServerBody::Presence(report)) => report.offline == ["bob"] && report.online.is_empty(),
        _ => false,
    };
    eventually_within(Duration::from_secs(15), "the user of the crashed node is offline", || {
        ann.settle();
        ann.inbox.iter().any(is_report).then_some(())
    });
}

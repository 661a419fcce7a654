//! Clients ask any node where to connect, and log in there: they spread, draining nodes are not named, and Redis may be
//! unavailable.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::Command,
};

use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use crate::support::{
    Client, Cluster, WAIT_MAX, eventually, free_port, hello, http,
    proxy::{Mode, Proxy},
    service_text, text_of,
};

/// Asks a node which nodes a user should use: names and addresses in order, and whether the reply may be outdated.
fn query(cluster: &Cluster, nth: usize, user: &str) -> (Vec<(String, SocketAddr)>, bool) {
    query_from(cluster, nth, user, "")
}

/// Asks the same for a client in a zone, if the zone is not empty.
fn query_from(cluster: &Cluster, nth: usize, user: &str, zone: &str) -> (Vec<(String, SocketAddr)>, bool) {
    let query = if zone.is_empty() { String::new() } else { format!("?zone={zone}") };
    let node = cluster.node(nth);
    let mut stream = TcpStream::connect(node.address()).expect("a node");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
    let request = format!(
        "GET /v1/assign{query} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {}\r\n\r\n",
        node.token(user)
    );
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP response");
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    let said: Value = serde_json::from_str(body).expect("JSON");
    let text = |it: &Value, key: &str| it[key].as_str().expect("text").to_owned();
    let places = said["addresses"].as_array().expect("a list");
    let place = |it: &Value| (text(it, "node"), text(it, "address").parse().expect("an address"));
    (places.iter().map(place).collect(), said["stale"] == true)
}

/// Returns the names of the named nodes.
pub(crate) fn names(cluster: &Cluster, nth: usize, user: &str) -> Vec<String> {
    let mut names: Vec<String> = query(cluster, nth, user).0.into_iter().map(|(name, _)| name).collect();
    names.sort();
    names
}

#[test]
fn clients_are_shared_by_three_nodes_without_a_draining_one() {
    let cluster = Cluster::start(3, &["drain.lb_delay_ms=20000", "drain.deadline_ms=60000"]);
    let all = ["n1", "n2", "n3"].map(str::to_owned);
    for nth in 0..3 {
        eventually("each node names all", || (names(&cluster, nth, "ann") == all).then_some(()));
    }
    let mut clients = Vec::new();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for number in 0..240 {
        let user = format!("user-{number}");
        let (name, address) = query(&cluster, number % 3, &user).0.remove(0);
        let mut client = Client::connect(address, Wire::Tcp);
        client.login(hello(&cluster.node(0).token(&user), "phone"));
        *counts.entry(name).or_default() += 1;
        clients.push(client);
    }
    // 80 each, with a margin of three and a half standard deviations of a fair draw.
    for (nth, name) in all.iter().enumerate() {
        assert_eq!(
            cluster.node(nth).metric("logins_total"),
            f64::from(counts[name]),
            "the address is that of {name}"
        );
    }
    assert!(counts.len() == 3 && counts.values().all(|count| (54..=106).contains(count)), "{counts:?}");

    cluster.node(1).http("POST", "/v1/drain", "");
    for nth in [0, 2] {
        let rest = ["n1", "n3"].map(str::to_owned);
        eventually("the other nodes no longer name it", || {
            (names(&cluster, nth, "ann") == rest).then_some(())
        });
    }
    // A cordoned node closes no connection.
    clients.iter_mut().take(20).for_each(Client::settle);
    cluster.node(1).http("DELETE", "/v1/drain", "");
    eventually("the node is named again", || (names(&cluster, 0, "ann") == all).then_some(()));
}

#[test]
fn assignment_is_the_last_known_and_marked_in_a_redis_outage() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let redis = service_text("redis7", "address").parse().expect("an address");
    let proxy = runtime.block_on(Proxy::start(redis)).expect("a proxy");
    let cluster = Cluster::start(2, &[&format!("redis.urls=[redis://{}]", proxy.address)]);
    let all = ["n1", "n2"].map(str::to_owned);
    eventually("both nodes are named", || (names(&cluster, 0, "ann") == all).then_some(()));
    assert!(!query(&cluster, 0, "ann").1);
    proxy.set_target(([127, 0, 0, 1], free_port()).into());
    proxy.set(Mode::Reset, || true);
    eventually("the reply is marked as outdated", || query(&cluster, 0, "ann").1.then_some(()));
    assert_eq!(names(&cluster, 0, "ann"), all);
    proxy.set_target(redis);
    eventually("the reply is fresh again", || (!query(&cluster, 0, "ann").1).then_some(()));
}

#[test]
fn node_short_of_memory_is_named_last_and_stays_ready() {
    let mut cluster = Cluster::prepare(2, &[]);
    // Less memory than any process uses.
    cluster.set_for(1, &["limits.memory_bytes=1048576"]);
    cluster.start_nodes(0..2);
    cluster.all_owned();
    let all = ["n1", "n2"].map(str::to_owned);
    eventually("both nodes are named", || (names(&cluster, 0, "ann") == all).then_some(()));
    eventually("n2 is short of memory", || {
        let mut users = (0..40).map(|number| format!("user-{number}"));
        users.all(|user| query(&cluster, 0, &user).0[0].0 == "n1").then_some(())
    });
    let admin = cluster.node(1).addresses.admin;
    let (status, said) = http::ask(admin, "GET", "/readyz?verbose", "");
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((status, &said["state"], &said["memory"]), (200, &json!("full"), &json!("full")), "{said}");
    // n1 has no other node to name.
    let nodes: Value = serde_json::from_str(&cluster.node(0).http("GET", "/v1/nodes", "")).expect("JSON");
    let n2 = nodes["nodes"].as_array().into_iter().flatten().find(|node| node["node"] == "n2");
    assert_eq!(n2.map(|node| &node["accepts"]), Some(&json!(0)), "{nodes}");
}

#[test]
fn send_logs_in_at_the_assigned_node() {
    let cluster = Cluster::start(2, &["drain.lb_delay_ms=60000", "drain.deadline_ms=120000"]);
    let both = ["n1", "n2"].map(str::to_owned);
    eventually("n1 knows both", || (names(&cluster, 0, "ann") == both).then_some(()));
    let mut bob = cluster.login(1, Wire::Tcp, "bob");
    // A client keeps the drain open: without one the node would exit at once.
    let _stays = cluster.login(0, Wire::Tcp, "zoe");
    // A cordoned node still accepts clients, and names only the other one.
    cluster.node(0).http("POST", "/v1/drain", "");
    eventually("n1 names n2", || (names(&cluster, 0, "ann") == both[1..]).then_some(()));
    let before = cluster.node(1).metric("logins_total");
    let sent = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["send", "--user", "ann", "--to", "bob", "--data"])
        .arg(cluster.node(0).data())
        .args(["--assign", "http://127.0.0.1:1", "--assign"])
        .arg(format!("http://{}", cluster.node(0).address()))
        .arg("hello")
        .output()
        .expect("the binary runs");
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    let push = bob.expect_push();
    assert_eq!((push.seq, text_of(&push)), (1, "hello"));
    assert_eq!(cluster.node(1).metric("logins_total"), before + 1.0, "ann logged in on n2");
}

/// Number of users of the test below.
const USERS: usize = 120;

fn user(n: usize) -> String {
    format!("user-{n}")
}

/// Returns the users by the node named first, for clients of a zone, as one node replies.
fn firsts(cluster: &Cluster, nth: usize, zone: &str) -> BTreeMap<String, BTreeSet<usize>> {
    let mut sent: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for n in 0..USERS {
        let (mut places, _) = query_from(cluster, nth, &user(n), zone);
        assert_eq!(places.len(), 3, "all nodes are named");
        sent.entry(places.remove(0).0).or_default().insert(n);
    }
    sent
}

/// Waits until all nodes send the same users to n3, each asked from another zone, and these are `percent` percent,
/// within three and a half standard deviations of a fair draw.
fn sent_to_n3(cluster: &Cluster, percent: usize) -> BTreeSet<usize> {
    let (want, share) = (USERS * percent / 100, percent as f64 / 100.0);
    let near = (3.5 * (USERS as f64 * share * (1.0 - share)).sqrt()) as usize;
    let mut sent = Vec::new();
    eventually(&format!("{percent} % go to the new version"), || {
        let all = [(0, ""), (1, "a"), (2, "b")];
        sent = all.map(|(nth, zone)| firsts(cluster, nth, zone).remove("n3").unwrap_or_default()).into();
        let is_near = sent[0].len().abs_diff(want) <= near;
        (is_near && sent.iter().all(|users| *users == sent[0])).then_some(())
    });
    sent.swap_remove(0)
}

/// Logs the users in where they are sent from that zone; returns the number of clients on each node.
fn log_in(cluster: &Cluster, users: impl Iterator<Item = usize>, zone: &str) -> (Vec<Client>, [f64; 3]) {
    let logins = || [0, 1, 2].map(|nth| cluster.node(nth).metric("logins_total"));
    let before = logins();
    let clients = users.map(|n| {
        let (_, address) = query_from(cluster, n % 3, &user(n), zone).0.remove(0);
        let mut client = Client::connect(address, Wire::ALL[n % 4]);
        client.login(hello(&cluster.node(0).token(&user(n)), "phone"));
        client
    });
    let clients = clients.collect();
    let after = logins();
    (clients, [0, 1, 2].map(|nth| after[nth] - before[nth]))
}

/// Changes a node's share or weight of new clients.
fn weigh(cluster: &Cluster, nth: usize, change: &Value) {
    cluster.node(nth).http("POST", "/v1/weight", &change.to_string());
}

#[test]
fn clients_are_assigned_by_version_share_then_zone_then_weight() {
    let mut cluster = Cluster::prepare(3, &[]);
    for nth in 0..2 {
        cluster.set_for(nth, &["assign.zone=a", "assign.version=1"]);
    }
    cluster.set_for(2, &["assign.zone=b", "assign.version=2", "assign.share=0"]);
    cluster.start_nodes(0..3);
    cluster.all_owned();
    let all = ["n1", "n2", "n3"].map(str::to_owned);
    for nth in 0..3 {
        eventually("each node names all", || (names(&cluster, nth, "ann") == all).then_some(()));
    }
    // A new version gets clients in steps: a larger share keeps the users of a smaller one, and a rollback takes the
    // same steps.
    let mut steps: Vec<BTreeSet<usize>> = Vec::new();
    for percent in [0, 20, 60, 100, 60, 20, 0] {
        weigh(&cluster, 2, &json!({"share": percent}));
        let sent = sent_to_n3(&cluster, percent);
        if let Some(before) = steps.last() {
            assert!(sent.is_subset(before) || before.is_subset(&sent), "others move: {before:?}, {sent:?}");
        }
        if percent == 20 {
            // n3 is the only node in zone b, and still gets no more than its share.
            let (_clients, at) = log_in(&cluster, 0..60, "b");
            let share = sent.iter().filter(|n| **n < 60).count() as f64;
            assert_eq!((at[2], at[0] + at[1]), (share, 60.0 - share));
        }
        steps.push(sent);
    }
    assert_eq!((&steps[1], &steps[2]), (&steps[5], &steps[4]), "always the same users");

    // Without a share, versions are equal, and the zone decides first.
    weigh(&cluster, 2, &json!({"share": -1}));
    for nth in 0..3 {
        eventually("clients of zone b go to its node", || {
            (firsts(&cluster, nth, "b").keys().eq(["n3"])).then_some(())
        });
        assert!(firsts(&cluster, nth, "a").keys().eq(["n1", "n2"]), "as n{} replies", nth + 1);
        assert_eq!(firsts(&cluster, nth, "").len(), 3, "without a zone all nodes are equal");
    }
    let (_here, at) = log_in(&cluster, 0..40, "a");
    assert!(at[2] == 0.0 && at[0] > 0.0 && at[1] > 0.0, "{at:?}");
    let (_there, at) = log_in(&cluster, 40..80, "b");
    assert_eq!(at, [0.0, 0.0, 40.0]);

    // Within a zone the weight decides: three of four, within three and a half standard deviations of a fair draw;
    // weight 0 gets no client.
    weigh(&cluster, 0, &json!({"weight": 300}));
    for nth in 0..3 {
        eventually("n1 gets three of four", || {
            let count = firsts(&cluster, nth, "a")["n1"].len();
            (74..=106).contains(&count).then_some(())
        });
    }
    weigh(&cluster, 0, &json!({"weight": 0}));
    for nth in 0..3 {
        eventually("n1 gets no client", || firsts(&cluster, nth, "a").keys().eq(["n2"]).then_some(()));
        // A node with a weight comes before it, of whatever zone.
        let (places, _) = query_from(&cluster, nth, "ann", "a");
        assert!(places.iter().map(|(name, _)| name.as_str()).eq(["n2", "n3", "n1"]), "{places:?}");
    }
}

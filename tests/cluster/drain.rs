//! A draining node: its clients learn where to go, connect there before they close, and no user goes offline.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tidegate_protocol::{Code, codec::Wire, pb};

use crate::{
    assign::names,
    support::{Client, Cluster, ServerBody, eventually, hello, shown_in_two_runs, text_of},
};

/// Short enough for a test, and long enough to be observed.
const SLOW: [&str; 3] = ["drain.lb_delay_ms=300", "drain.spread_ms=4000", "drain.deadline_ms=20000"];

/// Returns what a client learns of the drain.
fn expect_go_away(client: &mut Client) -> pb::GoAway {
    match client.take("goAway", |frame| matches!(frame.body, Some(ServerBody::GoAway(_)))).body {
        Some(ServerBody::GoAway(away)) => away,
        other => panic!("{other:?}"),
    }
}

fn online(cluster: &Cluster, nth: usize, user: &str) -> bool {
    let said = cluster.node(nth).http("GET", &format!("/v1/users/{user}/presence"), "");
    serde_json::from_str::<Value>(&said).expect("JSON")["online"] == true
}

/// Waits until a node names exactly these nodes to clients.
fn sends_to(cluster: &Cluster, nth: usize, nodes: &[&str]) {
    eventually("the node names these nodes", || (names(cluster, nth, "ann") == nodes).then_some(()));
}

#[test]
fn clients_move_before_they_close_and_no_user_goes_offline() {
    shown_in_two_runs(clients_move);
}

fn clients_move() -> Result<(), String> {
    let mut cluster = Cluster::start(3, &SLOW);
    (0..3).for_each(|nth| sends_to(&cluster, nth, &["n1", "n2", "n3"]));
    let names: Vec<String> = (0..40).map(|n| format!("user-{n}")).collect();
    let mut clients: Vec<Client> =
        names.iter().enumerate().map(|(n, name)| cluster.login(0, Wire::ALL[n % 4], name)).collect();
    assert_eq!(clients[0].text("user-1", "m1", "before"), 1);
    assert_eq!(text_of(&clients[1].expect_push()), "before");
    clients[1].ack("d:user-0:user-1", 1);
    let began = Instant::now();
    cluster.node(0).http("POST", "/v1/drain", "");
    let others = [cluster.node(1).address().to_string(), cluster.node(2).address().to_string()];
    let mut aways: Vec<(usize, pb::GoAway)> = clients.iter_mut().map(expect_go_away).enumerate().collect();
    // The first slot first: a slow test misses few of them.
    aways.sort_by_key(|(_, away)| away.after_ms);
    let (mut firsts, mut moved, mut missed) = (Vec::new(), BTreeMap::new(), 0);
    for (n, away) in aways {
        let stream = matches!(Wire::ALL[n % 4], Wire::Tcp | Wire::JsonLine);
        let scheme = if stream { "tcp://" } else { "ws://" };
        let mut alternates: Vec<&str> = away
            .alternates
            .iter()
            .map(|it| it.strip_prefix(scheme).expect("the alternate uses the client's transport"))
            .collect();
        firsts.push(alternates[0].to_owned());
        // Every second client moves; the others ignore the frame.
        if n % 2 == 0 {
            let mut there = Client::connect(alternates[0].parse().expect("an address"), Wire::ALL[n % 4]);
            there.login(hello(&cluster.node(1).token(&names[n]), "phone"));
            let code = clients[n].expect_close();
            // A late test finds the client closed at the end of its slot.
            let late = began.elapsed()
                >= Duration::from_millis(u64::from(away.after_ms) + u64::from(away.window_ms));
            assert!(code == Code::Replaced || (code == Code::Draining && late), "{code:?}");
            missed += u32::from(code == Code::Draining);
            assert!(online(&cluster, 1, &names[n]));
            moved.insert(n, there);
        }
        alternates.sort_unstable();
        let mut all: Vec<&str> = others.iter().map(String::as_str).collect();
        all.sort_unstable();
        assert_eq!(alternates, all, "the two remaining nodes");
    }
    for (n, client) in clients.iter_mut().enumerate().filter(|(n, _)| n % 2 == 1) {
        assert_eq!(client.expect_close(), Code::Draining, "user-{n} is closed at the end of its slot");
    }
    assert!(
        others.iter().all(|other| firsts.contains(other)),
        "each remaining node is named first for some client: {firsts:?}"
    );
    assert_eq!(cluster.stop(0), Some(0), "the first signal only makes a drain final");
    for (n, name) in names.iter().enumerate() {
        assert_eq!(online(&cluster, 1, name), n % 2 == 0, "{name}");
    }
    eventually("the other nodes own all partitions", || {
        let owned: f64 = [1, 2].map(|nth| cluster.node(nth).metric("partitions_owned")).iter().sum();
        (owned == 4.0).then_some(())
    });
    let [mut first, mut second] = [0, 2].map(|n| moved.remove(&n).expect("the client moved"));
    assert_eq!(first.text("user-2", "m2", "after"), 1);
    assert_eq!(text_of(&second.expect_push()), "after");
    let moved = names.len() / 2;
    if missed <= 5 { Ok(()) } else { Err(format!("{missed} of {moved} came when their slot was over")) }
}

#[test]
fn draining_node_is_no_alternate() {
    let cluster = Cluster::start(3, &SLOW);
    sends_to(&cluster, 0, &["n1", "n2", "n3"]);
    let mut phone = cluster.login(0, Wire::Tcp, "ann");
    let _other = cluster.login(1, Wire::Tcp, "bob");
    cluster.node(1).http("POST", "/v1/drain", "");
    sends_to(&cluster, 0, &["n1", "n3"]);
    cluster.node(0).http("POST", "/v1/drain", "");
    assert_eq!(expect_go_away(&mut phone).alternates, [format!("tcp://{}", cluster.node(2).address())]);
}

#[test]
fn tail_moves_to_another_node_and_shows_each_message_once() {
    let cluster = Cluster::start(2, &SLOW);
    sends_to(&cluster, 0, &["n1", "n2"]);
    let data = cluster.node(0).data().to_owned();
    let (out, err) = (data.join("tail.out"), data.join("tail.err"));
    let mut tail = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["tail", "--user", "bob", "--count", "3", "--server", &cluster.node(0).address().to_string()])
        .arg("--data")
        .arg(&data)
        .stdout(File::create(&out).expect("a file"))
        .stderr(File::create(&err).expect("a file"))
        .stdin(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let said = || fs::read_to_string(&err).unwrap_or_default();
    eventually("the tail is connected", || said().contains("listening as bob on n1").then_some(()));
    let mut ann = cluster.login(1, Wire::Tcp, "ann");
    ann.text("bob", "m1", "one");
    let shown = || fs::read_to_string(&out).unwrap_or_default();
    eventually("the message is shown", || shown().contains("one").then_some(()));
    cluster.node(0).http("POST", "/v1/drain", "");
    // The client moves at its slot, well before the cut at 15 s, which it would report differently.
    eventually("the tail has moved", || said().contains("listening as bob on n2").then_some(()));
    assert!(said().contains("n1: it is draining; moved"), "{}", said());
    ann.text("bob", "m2", "two");
    ann.text("bob", "m3", "three");
    let status = eventually("the tail ends after three messages", || tail.try_wait().expect("a child"));
    assert!(status.success());
    let lines = shown();
    let texts: Vec<&str> = ["one", "two", "three"].into_iter().filter(|it| lines.contains(it)).collect();
    assert_eq!((texts.len(), lines.lines().count()), (3, 3), "{lines}");
}

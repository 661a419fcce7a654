//! Large groups over the real Kafka, Redis and Postgres: Redis commands per message, and which members receive it on
//! which node.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
};

use serde_json::json;
use tidegate_protocol::{codec::Wire, pb};

use crate::support::{
    Client, Cluster, ServerBody, WAIT_MAX, eventually, services::service_text, text_of, unique_name,
};

/// More members than one change may name, and more than one read returns.
const MEMBERS: usize = 2_000;

/// Number of messages whose commands are counted.
const MESSAGES: usize = 20;

fn name(nth: usize) -> String {
    format!("crowd{nth}")
}

/// Creates a group of `MEMBERS` members through the first node.
fn large_group(cluster: &Cluster) {
    let names: Vec<String> = (0..MEMBERS).map(name).collect();
    cluster.node(0).group("big", &names[..1_000]);
    cluster.node(0).change_members("big", &json!({"add": names[1_000..]}));
}

/// Returns the commands that Redis gets from now on, from all its clients, other tests included.
fn monitor() -> BufReader<TcpStream> {
    let url = service_text("redis7", "url");
    let mut stream = TcpStream::connect(url.trim_start_matches("redis://")).expect("Redis is up");
    stream.write_all(b"MONITOR\r\n").expect("Redis accepts a command");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
    let mut lines = BufReader::new(stream);
    assert_eq!(next(&mut lines), "+OK\r\n");
    lines
}

fn next(lines: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    let count = lines.read_line(&mut line).expect("Redis shows the commands of all");
    assert!(count > 0, "Redis has closed the connection");
    line
}

/// Returns the commands so far that name keys of this cluster.
fn lines(mut monitor: BufReader<TcpStream>, cluster: &Cluster) -> Vec<String> {
    let (marker, prefix) = (unique_name(), format!("{}:", cluster.name()));
    let _: String = cluster.redis(&["ECHO", &marker]);
    let mut found = Vec::new();
    loop {
        let line = next(&mut monitor);
        if line.contains(&marker) {
            return found;
        }
        if line.contains(&prefix) {
            found.push(line);
        }
    }
}

fn expect_group_pushes(client: &mut Client, text: &str) -> Vec<pb::Push> {
    let mut all: Vec<pb::Push> = Vec::new();
    while all.last().is_none_or(|push| push.content.is_none() || text_of(push) != text) {
        all.push(client.expect_push());
    }
    all
}

/// Cost of a number of messages.
struct Cost {
    /// Node that owned the group all the time.
    owner: Option<usize>,
    /// Records that the node topics accepted.
    records: f64,
    /// Records on nodes without a member.
    idle: f64,
    asked: Vec<String>,
}

/// Returns the node that archived the messages of the only group.
fn owner(cluster: &Cluster) -> Option<usize> {
    let said: serde_json::Value =
        serde_json::from_str(&cluster.node(0).http("GET", "/v1/nodes", "")).expect("JSON");
    let nodes = said["nodes"].as_array().expect("a list");
    let is_used = |stand: &serde_json::Value| stand["end"].as_u64().is_some_and(|end| end > 0);
    let owns =
        |node: &serde_json::Value| node["stands"].as_array().is_some_and(|all| all.iter().any(is_used));
    let name = nodes.iter().find(|node| owns(node))?["node"].as_str()?.to_owned();
    (0..3).find(|nth| name == format!("n{}", nth + 1))
}

/// Sends `count` messages, receives them, and returns their cost.
fn cost_of(cluster: &Cluster, members: &mut [Client], turn: usize, count: usize) -> Cost {
    let all = |name: &str| -> f64 { (0..3).map(|nth| cluster.node(nth).metric(name)).sum() };
    let before = (owner(cluster), all("fan_outs_total"), all("fan_outs_idle_total"));
    let monitor = monitor();
    for nth in 0..count {
        let text = format!("{nth} of turn {turn}");
        let seq = members[0].text("g:big", &text.replace(' ', "-"), &text);
        for member in &mut members[1..] {
            let push = member.expect_push();
            assert_eq!((push.seq, text_of(&push)), (seq, text.as_str()));
        }
    }
    let asked = lines(monitor, cluster);
    let after = (owner(cluster), all("fan_outs_total"), all("fan_outs_idle_total"));
    Cost {
        owner: after.0.filter(|_| after.0 == before.0),
        records: after.1 - before.1,
        idle: after.2 - before.2,
        asked,
    }
}

#[test]
fn large_group_message_costs_one_record_per_node_with_members() {
    let cluster = Cluster::start(3, &[]);
    cluster.all_linked();
    large_group(&cluster);
    // The other nodes have no member; one of them may own the group.
    let mut members: Vec<Client> =
        (0..20).map(|nth| cluster.login(1, Wire::ALL[nth % 4], &name(nth * 7))).collect();
    let is_looking = |cost: &Cost| cost.asked.iter().any(|line| line.contains(":interest:{g:big}"));
    let mut turn = 0;
    let mut next = |count| {
        turn += 1;
        cost_of(&cluster, &mut members, turn, count)
    };
    // All nodes get the messages for 5 s after an owner has first seen the group as large.
    eventually("the owner asks for the nodes with members", || is_looking(&next(1)).then_some(()));
    // They also get them for a moment whenever Redis answers late.
    eventually("nodes without members get no record", || {
        let cost = next(MESSAGES);
        let of_members: Vec<&String> = cost.asked.iter().filter(|line| line.contains("crowd")).collect();
        assert!(of_members.is_empty(), "members are looked up: {of_members:?}");
        let records = if cost.owner? == 1 { 0 } else { MESSAGES };
        // The commands include renewed leases.
        let is_cheap = cost.asked.len() <= 10 * MESSAGES;
        (is_looking(&cost) && is_cheap && cost.idle == 0.0 && cost.records == records as f64).then_some(())
    });
}

#[test]
fn removed_member_gets_nothing_and_new_member_gets_everything() {
    let cluster = Cluster::start(3, &[]);
    cluster.all_linked();
    large_group(&cluster);
    let mut members: Vec<Client> =
        (0..9).map(|nth| cluster.login(nth % 2, Wire::ALL[nth % 4], &name(nth))).collect();
    let mut late = cluster.login(2, Wire::Tcp, "late");
    members[0].text("g:big", "m0", "first");
    members[1..].iter_mut().for_each(|member| drop(expect_group_pushes(member, "first")));
    let gone: BTreeSet<usize> = [1, 2, 5, 6].into();
    let names: Vec<String> = gone.iter().map(|nth| name(*nth)).collect();
    // Through a node that need not own the group, with messages right before and after.
    let ids: Vec<u64> = (1..=5).map(|nth| members[0].say(say(nth))).collect();
    let removed = cluster.node(1).change_members("big", &json!({"remove": names}));
    let joined = cluster.node(2).change_members("big", &json!({"add": ["late"]}));
    let seqs: BTreeSet<u64> = ids.into_iter().map(|id| members[0].expect_ack(id).seq).collect();
    let last = members[0].text("g:big", "last", "last");
    assert!(removed < joined && joined < last);
    for (nth, member) in members.iter_mut().enumerate().skip(1) {
        if gone.contains(&nth) {
            let mut received: Vec<u64> = Vec::new();
            while received.last() != Some(&removed) {
                received.push(member.expect_push().seq);
            }
            let before: Vec<u64> = seqs.range(..removed).copied().chain([removed]).collect();
            assert_eq!(received, before, "crowd{nth}");
        } else {
            let received: Vec<u64> =
                expect_group_pushes(member, "last").iter().map(|push| push.seq).collect();
            assert!(received.windows(2).all(|pair| pair[0] + 1 == pair[1]), "crowd{nth} got {received:?}");
        }
    }
    let received: Vec<u64> = expect_group_pushes(&mut late, "last").iter().map(|push| push.seq).collect();
    let after: BTreeSet<u64> = seqs.range(joined..).copied().chain([joined, last]).collect();
    assert_eq!(received, after.into_iter().collect::<Vec<u64>>(), "every message from the join on arrives");
    // The remaining members get one more message on each node; a message to the removed ones would have arrived by
    // then.
    members[0].text("g:big", "more", "more");
    for nth in (1..9).filter(|nth| !gone.contains(nth)) {
        expect_group_pushes(&mut members[nth], "more");
    }
    expect_group_pushes(&mut late, "more");
    gone.iter().for_each(|nth| members[*nth].no_push());
}

fn say(nth: usize) -> crate::support::ClientBody {
    crate::support::ask::send(crate::support::send("g:big", &format!("m{nth}"), &format!("text {nth}")))
}

#[test]
fn node_with_a_recreated_topic_reports_behind_to_its_members() {
    let cluster = Cluster::start(2, &[]);
    cluster.all_linked();
    large_group(&cluster);
    let mut there = cluster.login(1, Wire::Tcp, &name(1));
    let mut here = cluster.login(0, Wire::Tcp, &name(2));
    let seq = here.text("g:big", "m1", "first");
    expect_group_pushes(&mut there, "first");
    cluster.replace_topic("node.n2");
    // A record may arrive by the topic, by the link or not at all: the member learns how far the group is, or gets all
    // of it.
    let mut known = seq;
    let mut count = 1;
    eventually("the node reads its topic again", || {
        count += 1;
        let text = format!("again {count}");
        let seq = here.text("g:big", &format!("m{count}"), &text);
        let received = there.take("a push or a hint", |frame| match &frame.body {
            Some(ServerBody::Push(push)) => push.seq >= seq,
            Some(ServerBody::Behind(behind)) => behind.max_seq >= seq,
            _ => false,
        });
        known = known.max(seq);
        let gaps = cluster.node(1).metric("node_topic_gaps_total");
        (gaps >= 1.0 && matches!(received.body, Some(ServerBody::Push(_)))).then_some(())
    });
    assert_eq!(there.page(crate::support::ask::after("g:big", 0, 1_000)).messages.len() as u64, known);
}

//! Large groups over the real Kafka, Redis and Postgres: what goes to Redis for a message, and who hears it on which node.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
};

use serde_json::json;
use tidegate_protocol::{codec::Wire, pb};

use crate::support::{
    Client, Cluster, PATIENCE, Said, eventually, services::service_text, text_of, unique_name,
};

/// More than a change of members may name, and more than are read at a time.
const MEMBERS: usize = 2_000;

/// Messages whose commands are counted.
const MESSAGES: usize = 20;

fn name(nth: usize) -> String {
    format!("crowd{nth}")
}

/// A group of so many, made through the first node.
fn crowd(cluster: &Cluster) {
    let names: Vec<String> = (0..MEMBERS).map(name).collect();
    cluster.node(0).group("big", &names[..1_000]);
    cluster.node(0).change_members("big", &json!({"add": names[1_000..]}));
}

/// The commands that Redis gets from here on, from all its clients: other tests use it, too.
fn monitor() -> BufReader<TcpStream> {
    let url = service_text("redis7", "url");
    let mut stream = TcpStream::connect(url.trim_start_matches("redis://")).expect("Redis is up");
    stream.write_all(b"MONITOR\r\n").expect("it takes a command");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes options");
    let mut lines = BufReader::new(stream);
    assert_eq!(next(&mut lines), "+OK\r\n");
    lines
}

fn next(lines: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    let count = lines.read_line(&mut line).expect("Redis shows the commands of all");
    assert!(count > 0, "Redis shows no more: it has hung up");
    line
}

/// The commands up to now that name keys of this cluster.
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

fn heard(client: &mut Client, text: &str) -> Vec<pb::Push> {
    let mut all: Vec<pb::Push> = Vec::new();
    while all.last().is_none_or(|push| push.content.is_none() || text_of(push) != text) {
        all.push(client.expect_push());
    }
    all
}

/// What a number of messages cost.
struct Cost {
    /// The node that owned the group all the time.
    owner: Option<usize>,
    /// Records that the topics of nodes took.
    records: f64,
    /// Records on nodes without a member.
    idle: f64,
    asked: Vec<String>,
}

/// The node that has what was said in the only group.
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

/// Says so much, and hears it.
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
fn a_message_to_two_thousand_is_a_record_for_each_node_with_members_and_some_commands_in_redis() {
    let cluster = Cluster::start(3, &[]);
    cluster.all_linked();
    crowd(&cluster);
    // Nobody is on the others, of which one may own the group.
    let mut members: Vec<Client> =
        (0..20).map(|nth| cluster.login(1, Wire::ALL[nth % 4], &name(nth * 7))).collect();
    let is_looking = |cost: &Cost| cost.asked.iter().any(|line| line.contains(":interest:{g:big}"));
    let mut turn = 0;
    let mut next = |count| {
        turn += 1;
        cost_of(&cluster, &mut members, turn, count)
    };
    // All nodes are told for 5 s after an owner has first seen the group as large.
    eventually("its owner asks who has members", || is_looking(&next(1)).then_some(()));
    // And so they are for a moment whenever Redis answers late.
    eventually("messages pass the nodes without members by", || {
        let cost = next(MESSAGES);
        let of_members: Vec<&String> = cost.asked.iter().filter(|line| line.contains("crowd")).collect();
        assert!(of_members.is_empty(), "members are looked up: {of_members:?}");
        let records = if cost.owner? == 1 { 0 } else { MESSAGES };
        // Leases that were renewed meanwhile are among the commands.
        let is_cheap = cost.asked.len() <= 10 * MESSAGES;
        (is_looking(&cost) && is_cheap && cost.idle == 0.0 && cost.records == records as f64).then_some(())
    });
}

#[test]
fn who_is_removed_on_any_node_hears_nothing_more_and_who_comes_in_on_an_empty_node_everything() {
    let cluster = Cluster::start(3, &[]);
    cluster.all_linked();
    crowd(&cluster);
    let mut members: Vec<Client> =
        (0..9).map(|nth| cluster.login(nth % 2, Wire::ALL[nth % 4], &name(nth))).collect();
    let mut late = cluster.login(2, Wire::Tcp, "late");
    members[0].text("g:big", "m0", "first");
    members[1..].iter_mut().for_each(|member| drop(heard(member, "first")));
    let gone: BTreeSet<usize> = [1, 2, 5, 6].into();
    let names: Vec<String> = gone.iter().map(|nth| name(*nth)).collect();
    // Through a node that need not own the group, with messages right before and behind.
    let ids: Vec<u64> = (1..=5).map(|nth| members[0].say(say(nth))).collect();
    let removed = cluster.node(1).change_members("big", &json!({"remove": names}));
    let joined = cluster.node(2).change_members("big", &json!({"add": ["late"]}));
    let seqs: BTreeSet<u64> = ids.into_iter().map(|id| members[0].expect_ack(id).seq).collect();
    let last = members[0].text("g:big", "last", "last");
    assert!(removed < joined && joined < last);
    for (nth, member) in members.iter_mut().enumerate().skip(1) {
        if gone.contains(&nth) {
            let mut told: Vec<u64> = Vec::new();
            while told.last() != Some(&removed) {
                told.push(member.expect_push().seq);
            }
            let before: Vec<u64> = seqs.range(..removed).copied().chain([removed]).collect();
            assert_eq!(told, before, "crowd{nth}");
        } else {
            let told: Vec<u64> = heard(member, "last").iter().map(|push| push.seq).collect();
            assert!(told.windows(2).all(|pair| pair[0] + 1 == pair[1]), "crowd{nth} heard {told:?}");
        }
    }
    let told: Vec<u64> = heard(&mut late, "last").iter().map(|push| push.seq).collect();
    let after: BTreeSet<u64> = seqs.range(joined..).copied().chain([joined, last]).collect();
    assert_eq!(told, after.into_iter().collect::<Vec<u64>>(), "from its join on");
    // Those who stay hear one more on each node; so those who went have had their time.
    members[0].text("g:big", "more", "more");
    for nth in (1..9).filter(|nth| !gone.contains(nth)) {
        heard(&mut members[nth], "more");
    }
    heard(&mut late, "more");
    gone.iter().for_each(|nth| members[*nth].no_push());
}

fn say(nth: usize) -> crate::support::Asked {
    crate::support::ask::send(crate::support::send("g:big", &format!("m{nth}"), &format!("text {nth}")))
}

#[test]
fn a_node_whose_topic_is_made_anew_has_its_members_look() {
    let cluster = Cluster::start(2, &[]);
    cluster.all_linked();
    crowd(&cluster);
    let mut there = cluster.login(1, Wire::Tcp, &name(1));
    let mut here = cluster.login(0, Wire::Tcp, &name(2));
    let seq = here.text("g:big", "m1", "first");
    heard(&mut there, "first");
    cluster.replace_topic("node.n2");
    // Whatever of it comes by the topic, by the link or not at all: the member hears how far the group is, or all of it.
    let mut known = seq;
    let mut count = 1;
    eventually("the node reads its topic again", || {
        count += 1;
        let text = format!("again {count}");
        let seq = here.text("g:big", &format!("m{count}"), &text);
        let told = there.take("a push or a hint", |frame| match &frame.body {
            Some(Said::Push(push)) => push.seq >= seq,
            Some(Said::Behind(behind)) => behind.max_seq >= seq,
            _ => false,
        });
        known = known.max(seq);
        let gaps = cluster.node(1).metric("node_topic_gaps_total");
        (gaps >= 1.0 && matches!(told.body, Some(Said::Push(_)))).then_some(())
    });
    assert_eq!(there.page(crate::support::ask::after("g:big", 0, 1_000)).messages.len() as u64, known);
}

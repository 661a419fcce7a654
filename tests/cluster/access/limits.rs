//! Limits of the cluster on nodes as processes, by a load that does not know them: what clients see while Redis answers, is
//! away, and comes back.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tidegate_protocol::{codec::Wire, pb};

use super::call;
use crate::support::{Cluster, ServerBody, ServiceProxy, ask, eventually, let_time_pass, send};

const NODES: usize = 3;
const WINDOW: Duration = Duration::from_secs(2);

/// Times between which an accepted message was decided: before it was sent, and after its ack came.
type Accepted = (Instant, Instant);

/// Sends messages of a user of one node until `stop`, as fast as answers and waits allow; returns those that were accepted.
fn offer(cluster: &Cluster, nth: usize, stop: &AtomicBool) -> Vec<Accepted> {
    let mut client = cluster.login(nth, Wire::Tcp, &format!("load-{nth}"));
    let mut accepted = Vec::new();
    for n in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let began = Instant::now();
        match client.ask(ask::send(send("sink", &format!("m{n}"), "hi"))) {
            ServerBody::SendAck(_) => accepted.push((began, Instant::now())),
            // Not its whole wait: an impatient client, so that the limit is always asked for.
            ServerBody::Error(pb::Error { name, retry_after_ms, .. }) if name == "RATE_LIMITED" => {
                client.back_off(retry_after_ms.min(40));
            }
            other => panic!("{other:?}"),
        }
    }
    accepted
}

/// Offers messages to all nodes while `during` runs; returns what was accepted.
fn load(cluster: &Cluster, during: impl FnOnce()) -> Vec<Accepted> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..NODES)
            .map(|nth| {
                scope.spawn({
                    let stop = &stop;
                    move || offer(cluster, nth, stop)
                })
            })
            .collect();
        during();
        stop.store(true, Ordering::SeqCst);
        clients.into_iter().flat_map(|it| it.join().expect("a client")).collect()
    })
}

/// Returns the most messages that were decided within a window for certain.
fn most(accepted: &[Accepted]) -> usize {
    let within = |from: Instant| {
        accepted.iter().filter(|(began, ended)| *began >= from && *ended <= from + WINDOW).count()
    };
    accepted.iter().map(|(began, _)| within(*began)).max().unwrap_or(0)
}

fn put_limit(cluster: &Cluster, limit: u32) {
    let rule =
        json!({"level": "node", "calls": ["send"], "window": "2s", "limit": limit, "scope": "cluster"});
    let (status, answer) = call(cluster, 0, "PUT", "/v1/rules/all", &rule);
    assert_eq!(status, 200, "{answer}");
    for nth in 0..NODES {
        eventually("the rule is in force", || {
            let rules = call(cluster, nth, "GET", "/v1/limits", &Value::Null).1;
            (rules["rules"][0]["limit"] == limit && rules["rules"][0]["scope"] == "cluster").then_some(())
        });
    }
}

fn by_share(cluster: &Cluster) -> f64 {
    (0..NODES).map(|nth| cluster.node(nth).metric("limit_by_share_total")).sum()
}

#[test]
fn limit_of_the_cluster_holds_on_three_nodes_and_without_redis() {
    let redis = ServiceProxy::to_service("redis7");
    let cluster = Cluster::start(NODES, &[&format!("redis.urls=[redis://{}]", redis.address())]);
    cluster.all_linked();
    for limit in [6, 40] {
        put_limit(&cluster, limit);
        let time = Duration::from_secs(5);
        let accepted = load(&cluster, || let_time_pass("a load of two windows and a half", time));
        // An answer of Redis that was late on a busy machine may let a node use its share.
        let factor = if by_share(&cluster) == 0.0 { 1 } else { 2 };
        let (limit, most) = (limit as usize, most(&accepted));
        assert!(most <= factor * limit, "{most} of {limit} in a window");
        // The first window, and those after it at 0.9 of the limit.
        let least = limit + limit * 9 / 10 * 3 / 4;
        assert!(accepted.len() >= least, "{} of {limit}", accepted.len());
    }
    let limit = 40;
    let source = |nth: usize| {
        let state = call(&cluster, nth, "GET", "/v1/limits/node", &Value::Null).1;
        state["rules"][0]["permits"]["source"].as_str().unwrap_or_default().to_owned()
    };
    let mut outage = None;
    let accepted = load(&cluster, || {
        let_time_pass("some use before", Duration::from_millis(500));
        redis.close();
        (0..NODES).for_each(|nth| cluster.node(nth).metric_becomes("limit_shares", 1.0));
        assert_eq!(source(0), "share");
        let begin = Instant::now();
        let_time_pass("two windows without Redis", 2 * WINDOW);
        outage = Some((begin + Duration::from_millis(100), Instant::now()));
        redis.open();
        (0..NODES).for_each(|nth| cluster.node(nth).metric_becomes("limit_shares", 0.0));
        (0..NODES).for_each(|nth| eventually("permits decide", || (source(nth) == "redis").then_some(())));
        let_time_pass("a window with Redis", WINDOW);
    });
    assert!(most(&accepted) <= 2 * limit, "{} in a window", most(&accepted));
    let (begin, end) = outage.expect("there was one");
    // Permits from before may be used for 1/32 of the window and count in the first one.
    let in_it: Vec<Accepted> =
        accepted.iter().copied().filter(|(began, ended)| *began >= begin && *ended <= end).collect();
    assert!(most(&in_it) <= limit, "{} in a window without Redis", most(&in_it));
    assert!(in_it.len() >= limit, "{} without Redis", in_it.len());
    assert!(by_share(&cluster) > 0.0);
}

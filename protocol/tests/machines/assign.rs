//! Assignment of clients to nodes: shares, stability, and login storms.

use proptest::prelude::*;
use tidegate_protocol::machine::assign::{Candidate, assign};

const fn node(name: &str) -> Candidate<'_> {
    Candidate { node: name, conns: 0, capacity: 10_000, weight: 100, version: "1", share: None, zone: "" }
}

fn user(number: usize) -> String {
    format!("user-{number}")
}

/// Returns the names of the nodes, ranked for a user.
fn order<'a>(user: &str, zone: &str, nodes: &[Candidate<'a>]) -> Vec<&'a str> {
    assign(user, zone, nodes).into_iter().map(|at| nodes[at].node).collect()
}

/// Logs users in one after another. The function gets connection counts that are refreshed every `refresh` logins.
fn log_in(nodes: &[Candidate<'_>], users: usize, refresh: usize) -> Vec<u32> {
    let (mut snapshot, mut conns) = (nodes.to_vec(), vec![0; nodes.len()]);
    for number in 0..users {
        if number % refresh == 0 {
            snapshot.iter_mut().zip(&conns).for_each(|(node, conns)| node.conns = *conns);
        }
        conns[assign(&user(number), "", &snapshot)[0]] += 1;
    }
    conns
}

#[test]
fn three_nodes_are_balanced_with_stale_counts() {
    for refresh in [1, 500, 1_500, 15_000] {
        let conns = log_in(&[node("n1"), node("n2"), node("n3")], 15_000, refresh);
        assert!(conns.iter().all(|conns| (4_500..=5_500).contains(conns)), "{refresh}: {conns:?}");
    }
}

#[test]
fn share_of_a_node_follows_weight_and_headroom() {
    let heavy = Candidate { weight: 300, ..node("n1") };
    let conns = log_in(&[heavy, node("n2")], 8_000, 8_000);
    assert!((5_700..=6_300).contains(&conns[0]), "three of four: {conns:?}");
    let fuller = Candidate { conns: 7_500, ..node("n1") };
    let firsts = (0..10_000).filter(|n| order(&user(*n), "", &[fuller, node("n2")])[0] == "n1").count();
    assert!((1_800..=2_200).contains(&firsts), "a fifth: {firsts}");
}

#[test]
fn full_and_weightless_nodes_are_ranked_last() {
    let (full, light) = (Candidate { conns: 10_000, ..node("n1") }, Candidate { weight: 0, ..node("n2") });
    for number in 0..200 {
        // Free capacity ranks before weight.
        assert_eq!(order(&user(number), "", &[full, light, node("n3")]), ["n3", "n2", "n1"]);
    }
}

#[test]
fn nodes_of_the_users_zone_come_first() {
    let nodes = [Candidate { zone: "a", ..node("n1") }, Candidate { zone: "b", ..node("n2") }];
    for number in 0..200 {
        assert_eq!(order(&user(number), "b", &nodes), ["n2", "n1"]);
    }
    let either = (0..200).filter(|n| order(&user(*n), "", &nodes)[0] == "n1").count();
    assert!((50..150).contains(&either), "{either}");
}

/// Returns for each user whether version 2 comes first when it claims this percentage.
fn moved(share: u8) -> Vec<bool> {
    let new = Candidate { version: "2", share: Some(share), ..node("n3") };
    let nodes = [node("n1"), node("n2"), new];
    (0..10_000).map(|n| order(&user(n), "", &nodes)[0] == "n3").collect()
}

#[test]
fn version_share_always_moves_the_same_users() {
    let mut before = moved(0);
    assert!(!before.contains(&true), "a share of 0 moves no user");
    for share in [1, 10, 50, 90, 100] {
        let now = moved(share);
        let count = now.iter().filter(|it| **it).count();
        let (want, near) = (usize::from(share) * 100, 200);
        assert!(count.abs_diff(want) <= near, "{share} %: {count} of 10000");
        let back = before.iter().zip(&now).filter(|(was, is)| **was && !**is).count();
        assert_eq!(back, 0, "a larger share contains the users of a smaller one");
        before = now;
    }
    assert_eq!(moved(10), moved(10));
}

fn candidates() -> impl Strategy<Value = Vec<(u32, u32, u32, usize, Option<u8>, usize)>> {
    let share = prop::option::weighted(0.4, 0_u8..=120);
    prop::collection::vec((0_u32..300, 0_u32..300, 0_u32..4, 0..3_usize, share, 0..3_usize), 0..7)
}

const NAMES: [&str; 7] = ["n1", "n2", "n3", "n4", "n5", "n6", "n7"];
const WORDS: [&str; 3] = ["", "a", "b"];

proptest! {
    /// Each node is ranked once, nodes with capacity first, independent of the input order. A removed node does not
    /// change the order of the others, unless a version's share disappears with it.
    #[test]
    fn ranking_is_complete_and_independent_of_other_nodes(
        specs in candidates(),
        user in "[a-z]{1,8}",
        zone in 0..3_usize,
    ) {
        let nodes: Vec<Candidate<'_>> = specs
            .iter()
            .zip(NAMES)
            .map(|(&(conns, capacity, weight, version, share, zone), node)| Candidate {
                node, conns, capacity, weight, version: WORDS[version], share, zone: WORDS[zone],
            })
            .collect();
        let all = order(&user, WORDS[zone], &nodes);
        let mut sorted = all.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, &NAMES[..nodes.len()]);
        let has_capacity = |name: &&str| {
            let node = nodes.iter().find(|node| node.node == *name);
            node.is_some_and(|node| node.weight > 0 && node.capacity > node.conns)
        };
        let first_full = all.iter().position(|name| !has_capacity(name)).unwrap_or(all.len());
        prop_assert!(!all[first_full..].iter().any(has_capacity), "{:?}", all);
        let backwards: Vec<Candidate<'_>> = nodes.iter().rev().copied().collect();
        prop_assert_eq!(&order(&user, WORDS[zone], &backwards), &all);
        let alike: Vec<Candidate<'_>> = nodes.iter().map(|node| Candidate { share: None, ..*node }).collect();
        let all = order(&user, WORDS[zone], &alike);
        for gone in NAMES.iter().take(alike.len()) {
            let left: Vec<Candidate<'_>> = alike.iter().filter(|it| it.node != *gone).copied().collect();
            let expected: Vec<&str> = all.iter().filter(|name| *name != gone).copied().collect();
            prop_assert_eq!(order(&user, WORDS[zone], &left), expected);
        }
    }
}

//! Who is sent where: shares, stability, and many logins at once.

use proptest::prelude::*;
use tidegate_protocol::machine::assign::{Candidate, assign};

const fn node(name: &str) -> Candidate<'_> {
    Candidate { node: name, conns: 0, capacity: 10_000, weight: 100, version: "1", share: None, zone: "" }
}

fn user(number: usize) -> String {
    format!("user-{number}")
}

/// Names in the order for a user.
fn order<'a>(user: &str, zone: &str, nodes: &[Candidate<'a>]) -> Vec<&'a str> {
    assign(user, zone, nodes).into_iter().map(|at| nodes[at].node).collect()
}

/// Logs users in one after another; the counts that the function sees are looked at anew after each `look` of them.
fn log_in(nodes: &[Candidate<'_>], users: usize, look: usize) -> Vec<u32> {
    let (mut seen, mut conns) = (nodes.to_vec(), vec![0; nodes.len()]);
    for number in 0..users {
        if number % look == 0 {
            seen.iter_mut().zip(&conns).for_each(|(node, conns)| node.conns = *conns);
        }
        conns[assign(&user(number), "", &seen)[0]] += 1;
    }
    conns
}

#[test]
fn three_nodes_are_within_ten_percent_after_15_000_logins_however_old_the_look_is() {
    for look in [1, 500, 1_500, 15_000] {
        let conns = log_in(&[node("n1"), node("n2"), node("n3")], 15_000, look);
        assert!(conns.iter().all(|conns| (4_500..=5_500).contains(conns)), "{look}: {conns:?}");
    }
}

#[test]
fn a_node_gets_by_weight_and_by_headroom() {
    let heavy = Candidate { weight: 300, ..node("n1") };
    let conns = log_in(&[heavy, node("n2")], 8_000, 8_000);
    assert!((5_700..=6_300).contains(&conns[0]), "three of four: {conns:?}");
    let fuller = Candidate { conns: 7_500, ..node("n1") };
    let firsts = (0..10_000).filter(|n| order(&user(*n), "", &[fuller, node("n2")])[0] == "n1").count();
    assert!((1_800..=2_200).contains(&firsts), "a fifth: {firsts}");
}

#[test]
fn who_has_no_room_or_no_weight_comes_last_and_is_named_all_the_same() {
    let (full, light) = (Candidate { conns: 10_000, ..node("n1") }, Candidate { weight: 0, ..node("n2") });
    for number in 0..200 {
        // Who has room is asked before who has none, wanted or not.
        assert_eq!(order(&user(number), "", &[full, light, node("n3")]), ["n3", "n2", "n1"]);
    }
}

#[test]
fn the_own_zone_comes_first() {
    let nodes = [Candidate { zone: "a", ..node("n1") }, Candidate { zone: "b", ..node("n2") }];
    for number in 0..200 {
        assert_eq!(order(&user(number), "b", &nodes), ["n2", "n1"]);
    }
    let either = (0..200).filter(|n| order(&user(*n), "", &nodes)[0] == "n1").count();
    assert!((50..150).contains(&either), "{either}");
}

/// Who of these users is sent to version 2 first, with such a share for it.
fn moved(share: u8) -> Vec<bool> {
    let new = Candidate { version: "2", share: Some(share), ..node("n3") };
    let nodes = [node("n1"), node("n2"), new];
    (0..10_000).map(|n| order(&user(n), "", &nodes)[0] == "n3").collect()
}

#[test]
fn a_share_of_the_users_goes_to_a_new_version_and_back_the_same_ones_each_time() {
    let mut before = moved(0);
    assert!(!before.contains(&true), "nobody yet");
    for share in [1, 10, 50, 90, 100] {
        let now = moved(share);
        let count = now.iter().filter(|it| **it).count();
        let (want, near) = (usize::from(share) * 100, 200);
        assert!(count.abs_diff(want) <= near, "{share} %: {count} of 10000");
        let back = before.iter().zip(&now).filter(|(was, is)| **was && !**is).count();
        assert_eq!(back, 0, "a larger share keeps whom a smaller one had");
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
    /// All are named once; those with room first; the order of the input is nothing; and a node that leaves changes
    /// nothing in the order of the others, unless it took a version's share along.
    #[test]
    fn the_order_is_whole_and_hangs_on_nothing_else(said in candidates(), who in "[a-z]{1,8}", zone in 0..3_usize) {
        let nodes: Vec<Candidate<'_>> = said
            .iter()
            .zip(NAMES)
            .map(|(&(conns, capacity, weight, version, share, zone), node)| Candidate {
                node, conns, capacity, weight, version: WORDS[version], share, zone: WORDS[zone],
            })
            .collect();
        let all = order(&who, WORDS[zone], &nodes);
        let mut sorted = all.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, &NAMES[..nodes.len()]);
        let has_room = |name: &&str| {
            let node = nodes.iter().find(|node| node.node == *name);
            node.is_some_and(|node| node.weight > 0 && node.capacity > node.conns)
        };
        let first_full = all.iter().position(|name| !has_room(name)).unwrap_or(all.len());
        prop_assert!(!all[first_full..].iter().any(has_room), "{:?}", all);
        let backwards: Vec<Candidate<'_>> = nodes.iter().rev().copied().collect();
        prop_assert_eq!(&order(&who, WORDS[zone], &backwards), &all);
        let alike: Vec<Candidate<'_>> = nodes.iter().map(|node| Candidate { share: None, ..*node }).collect();
        let all = order(&who, WORDS[zone], &alike);
        for gone in NAMES.iter().take(alike.len()) {
            let left: Vec<Candidate<'_>> = alike.iter().filter(|it| it.node != *gone).copied().collect();
            let expected: Vec<&str> = all.iter().filter(|name| *name != gone).copied().collect();
            prop_assert_eq!(order(&who, WORDS[zone], &left), expected);
        }
    }
}

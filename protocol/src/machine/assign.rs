//! Which nodes a client is sent to, best first: a pure function of the user and of what the nodes say of themselves.
//!
//! **Load.** A node is the first of a user's list with a chance that is its weight times its headroom. The choice is a
//! rendezvous hash, so one user gets the same list as long as the nodes stand alike, thousands that ask within one look
//! at the nodes spread as their shares say, and a node that leaves changes the list only of those whom it led.
//!
//! **Versions.** A version may have a share: so many percent of the users, the same ones each time, have its nodes at
//! the head of their list. A larger share keeps whom a smaller one had, so a version is let in and taken back without
//! moving anybody else. Versions without a share have all other users.

use std::{cmp::Ordering, collections::BTreeMap};

/// Users are told apart by this many steps when versions have shares: hundredths of a percent.
const STEPS: u64 = 10_000;

/// A node that takes newcomers, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its name.
    pub node: &'a str,
    /// Open conns.
    pub conns: u32,
    /// How many conns it would hold.
    pub capacity: u32,
    /// How much of the others' load it gets at the same headroom; 0 = only where nobody else can.
    pub weight: u32,
    /// What it runs.
    pub version: &'a str,
    /// The users that its version gets, in percent; none = those whom no other version gets. Where nodes of one version
    /// disagree the largest counts.
    pub share: Option<u8>,
    /// Where it is.
    pub zone: &'a str,
}

/// All candidates by their index, best first, for a user who is in that zone (empty = not known).
///
/// A node with room comes before one without, one with a weight before one with none, then one of the user's version, then
/// one of the user's zone.
pub fn assign(user: &str, zone: &str, nodes: &[Candidate<'_>]) -> Vec<usize> {
    let own_version = of_version(user, nodes);
    let mut ranked: Vec<(Rank, usize)> = nodes
        .iter()
        .enumerate()
        .map(|(at, node)| {
            let share = f64::from(node.weight) * f64::from(node.capacity.saturating_sub(node.conns));
            let rank = Rank {
                full: node.conns >= node.capacity,
                unwanted: node.weight == 0,
                other_version: !own_version[at],
                other_zone: !zone.is_empty() && node.zone != zone,
                late: lateness(user, node.node, share),
            };
            (rank, at)
        })
        .collect();
    ranked.sort_by(|(a, i), (b, j)| a.compare(b).then_with(|| nodes[*i].node.cmp(nodes[*j].node)));
    ranked.into_iter().map(|(_, at)| at).collect()
}

/// Best is least, field by field.
struct Rank {
    full: bool,
    unwanted: bool,
    other_version: bool,
    other_zone: bool,
    late: f64,
}

impl Rank {
    fn compare(&self, other: &Self) -> Ordering {
        let classes = |it: &Self| (it.full, it.unwanted, it.other_version, it.other_zone);
        classes(self).cmp(&classes(other)).then_with(|| self.late.total_cmp(&other.late))
    }
}

/// Of each node, whether it runs what this user is to have; none of them where all nodes are of versions that others get.
fn of_version(user: &str, nodes: &[Candidate<'_>]) -> Vec<bool> {
    let mut shares: BTreeMap<&str, u8> = BTreeMap::new();
    for node in nodes {
        if let Some(share) = node.share {
            let known = shares.entry(node.version).or_default();
            *known = share.max(*known);
        }
    }
    let point = hash(&[b"version", user.as_bytes()]) % STEPS;
    let mut from = 0;
    let own = shares.iter().find(|(_, share)| {
        from += u64::from(**share) * (STEPS / 100);
        point < from
    });
    let of_own = |node: &Candidate<'_>| match own {
        Some((version, _)) => node.version == *version,
        None => !shares.contains_key(node.version),
    };
    nodes.iter().map(of_own).collect()
}

/// Of several nodes the one with the least comes first, each with a chance in proportion to its share: exponential times
/// with these rates, the least of which is the i-th with exactly that chance.
fn lateness(user: &str, node: &str, share: f64) -> f64 {
    let drawn = hash(&[b"node", node.as_bytes(), user.as_bytes()]) >> 11;
    // In (0, 1], of 53 bits.
    let unit = (drawn + 1) as f64 / (1_u64 << 53) as f64;
    if share > 0.0 { -unit.ln() / share } else { -unit.ln() }
}

/// FNV-1a over the parts, each ended by a byte that is in no id, then mixed so that every bit counts (SplitMix64).
fn hash(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in parts.iter().flat_map(|part| part.iter().chain(&[0])) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

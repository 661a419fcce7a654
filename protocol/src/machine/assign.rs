//! Client assignment: ranks the nodes for a user, best first, as a pure function of the user and the nodes' reports.
//!
//! **Load.** The probability that a node comes first is proportional to its weight times its headroom. The choice is a
//! rendezvous hash: a user gets the same list while the nodes' reports are unchanged, thousands of users that ask
//! between two refreshes are distributed in proportion, and a node that leaves changes only the lists that it headed.
//!
//! **Versions.** A version may claim a percentage of the users, always the same ones; its nodes come first in their
//! lists. A larger percentage contains the users of a smaller one, so a version is rolled out and back without moving
//! other users. Versions without a percentage get all remaining users.

use std::{cmp::Ordering, collections::BTreeMap};

/// Number of buckets that users are hashed into for version shares; a bucket is a hundredth of a percent.
const SHARE_BUCKETS: u64 = 10_000;

/// Node that accepts new clients, as reported by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Number of open connections.
    pub conns: u32,
    /// Maximum number of connections.
    pub capacity: u32,
    /// Weight among nodes with equal headroom. 0: gets clients only if no other node can take them.
    pub weight: u32,
    /// Version that the node runs.
    pub version: &'a str,
    /// Percentage of users for its version, `None` for the users that no version claims. If nodes of one version
    /// disagree, the largest percentage applies.
    pub share: Option<u8>,
    /// Zone of the node.
    pub zone: &'a str,
}

/// Returns the indexes of all candidates, best first, for a user in `zone` (empty if unknown).
///
/// A node with capacity precedes a full one, then one with a weight precedes one without, then one of the user's
/// version, then one of the user's zone.
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

/// Sort key of a node; the least is the best, compared field by field.
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

/// Returns for each node whether it runs the user's version. All are false if other users claim every version.
fn of_version(user: &str, nodes: &[Candidate<'_>]) -> Vec<bool> {
    let mut shares: BTreeMap<&str, u8> = BTreeMap::new();
    for node in nodes {
        if let Some(share) = node.share {
            let largest = shares.entry(node.version).or_default();
            *largest = share.max(*largest);
        }
    }
    let bucket = hash(&[b"version", user.as_bytes()]) % SHARE_BUCKETS;
    let mut end = 0;
    let own = shares.iter().find(|(_, share)| {
        end += u64::from(**share) * (SHARE_BUCKETS / 100);
        bucket < end
    });
    let of_own = |node: &Candidate<'_>| match own {
        Some((version, _)) => node.version == *version,
        None => !shares.contains_key(node.version),
    };
    nodes.iter().map(of_own).collect()
}

/// Draws the lateness of a node for a user; the node with the least comes first.
///
/// The values are exponential with the shares as rates, so a node is first with a probability proportional to its
/// share.
fn lateness(user: &str, node: &str, share: f64) -> f64 {
    let drawn = hash(&[b"node", node.as_bytes(), user.as_bytes()]) >> 11;
    // Uniform in (0, 1], with 53 bits.
    let unit = (drawn + 1) as f64 / (1_u64 << 53) as f64;
    if share > 0.0 { -unit.ln() / share } else { -unit.ln() }
}

/// FNV-1a over the parts, each terminated by a byte that is in no id, then mixed by SplitMix64 so that all bits vary.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in parts.iter().flat_map(|part| part.iter().chain(&[0])) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

//! IPv6 networks that are banned as a whole because many of their parts are: one customer often has a /56 or a /48, and so
//! any number of networks, each with its own score.

use std::net::IpAddr;

use super::decisions::AUTHOR;
use crate::{
    bans::{BanBoard, BanSubject},
    networks::Network,
};

/// Prefixes of networks, and those of the wider ones around them.
const WIDER: [(u8, u8); 2] = [(64, 56), (56, 48)];

/// Parts that are banned at the same time, from which on the network around them may be.
const PARTS_MIN: usize = 4;

/// Returns the network around a banned one, if it has enough parts that some node has banned by itself.
pub(super) fn around(bans: &BanBoard, banned: &BanSubject) -> Option<BanSubject> {
    let BanSubject::Network(network) = banned else { return None };
    let (IpAddr::V6(_), prefix) = (network.address(), network.prefix()) else { return None };
    let (_, wide) = WIDER.into_iter().find(|(part, _)| *part == prefix)?;
    let wide = Network::around(network.address(), wide);
    let wide = BanSubject::Network(wide);
    has_banned_parts(bans, &wide).then_some(wide)
}

/// Returns whether a network is one around others, of which enough are banned.
pub(super) fn has_banned_parts(bans: &BanBoard, subject: &BanSubject) -> bool {
    banned_parts(bans, subject).is_some_and(|(_, parts)| parts >= PARTS_MIN)
}

/// Returns the reason of a ban of a network because of its parts; `None` if it has a score of its own.
pub(super) fn reason(bans: &BanBoard, subject: &BanSubject) -> Option<String> {
    let (prefix, parts) = banned_parts(bans, subject)?;
    Some(format!("{parts} networks of /{prefix} in it are banned"))
}

/// Returns the prefix of a network's parts, and how many of them some node has banned by itself; `None` if it has a score
/// of its own.
fn banned_parts(bans: &BanBoard, subject: &BanSubject) -> Option<(u8, usize)> {
    let BanSubject::Network(network) = subject else { return None };
    let (IpAddr::V6(_), wide) = (network.address(), network.prefix()) else { return None };
    let (prefix, _) = WIDER.into_iter().find(|(_, prefix)| *prefix == wide)?;
    Some((prefix, bans.count_within(network, prefix, AUTHOR)))
}

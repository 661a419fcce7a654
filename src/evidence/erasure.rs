//! Requests to erase the evidence of a subject, up to the time of the request.

use std::net::IpAddr;

use super::EvidenceSource;
use crate::{bans::BanSubject, networks::Network};

/// Longest time between an event and the end of its row, in ms: rows are taken each second, on a busy node a bit later.
const ROW_SPAN_MS: u64 = 2_000;

/// Longest prefix of an IPv6 network in evidence.
const PREFIX_V6: u8 = 64;

/// Request to erase the evidence of a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erasure {
    /// Subject.
    pub subject: BanSubject,
    /// Time of the request by the clock of this node, in ms since 1970.
    pub until_ms: u64,
}

impl Erasure {
    /// Returns whether a row that ended at `at_ms` is of the subject, and may have events from before the request.
    pub fn includes(&self, source: &EvidenceSource, at_ms: u64) -> bool {
        at_ms <= self.until_ms.saturating_add(ROW_SPAN_MS) && source.concerns(&self.subject)
    }
}

/// Returns the subject that evidence has of a requested one: of an IPv6 address, the /64 around it.
pub fn erasable(subject: BanSubject) -> BanSubject {
    match subject {
        BanSubject::Network(network)
            if matches!(network.address(), IpAddr::V6(_)) && network.prefix() > PREFIX_V6 =>
        {
            BanSubject::Network(Network::around(network.address(), PREFIX_V6))
        }
        other => other,
    }
}

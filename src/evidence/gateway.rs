//! Requests to a gateway of the kinds that honest clients cause too, by network and minute.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use foldhash::quality::RandomState;
use tokio::time::Instant;

use super::EvidenceKind;
use crate::bans::BanSubject;

/// Requests of a network and kind within [`WINDOW`] that are no evidence: pages with broken images cause some.
const HARMLESS_MAX: u32 = 20;

/// Time after which all networks begin again.
const WINDOW: Duration = Duration::from_secs(60);

/// Most networks and kinds that are counted; requests of further ones are no evidence until the window ends.
const COUNTS_MAX: usize = 16_384;

/// Beginnings of the paths at a gateway to which requests are evidence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayPaths {
    /// Captchas.
    pub captcha: Vec<String>,
    /// Logins, and what else is tried again and again by guessing.
    pub login: Vec<String>,
}

impl GatewayPaths {
    /// Returns what a request to a path with this status is evidence of; `None` if it is none.
    pub fn kind(&self, path: &str, status: Option<u64>) -> Option<EvidenceKind> {
        let is_below = |paths: &[String]| paths.iter().any(|prefix| path.starts_with(prefix.as_str()));
        match status {
            _ if is_below(&self.captcha) => Some(EvidenceKind::GatewayCaptcha),
            Some(401 | 403) => Some(EvidenceKind::GatewayDenied),
            _ if is_below(&self.login) => Some(EvidenceKind::GatewayLogin),
            Some(404) => Some(EvidenceKind::GatewayNotFound),
            _ => None,
        }
    }
}

/// Numbers of requests since the start of the window.
#[derive(Default)]
pub(super) struct GatewayCounts {
    since: Option<Instant>,
    counts: HashMap<(EvidenceKind, IpAddr), u32, RandomState>,
}

impl GatewayCounts {
    /// Counts a request, and returns whether it is evidence.
    pub(super) fn admits(&mut self, kind: EvidenceKind, network: IpAddr, now: Instant) -> bool {
        let is_limited = matches!(
            kind,
            EvidenceKind::GatewayNotFound | EvidenceKind::GatewayCaptcha | EvidenceKind::GatewayLogin
        );
        if !is_limited {
            return true;
        }
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            self.since = Some(now);
            self.counts.clear();
        }
        let key = (kind, network);
        if self.counts.len() >= COUNTS_MAX && !self.counts.contains_key(&key) {
            return false;
        }
        let count = self.counts.entry(key).or_default();
        *count = count.saturating_add(1);
        *count > HARMLESS_MAX
    }

    /// Forgets the counts of a network, and of all within it.
    pub(super) fn forget(&mut self, subject: &BanSubject) {
        if let BanSubject::Network(erased) = subject {
            self.counts.retain(|(_, network), _| !erased.contains(*network));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_images_are_no_evidence_and_a_search_for_paths_is() {
        let (mut counts, now) = (GatewayCounts::default(), Instant::now());
        let mut admits = |kind, host: u8, after: u64| {
            counts.admits(kind, [192, 0, 2, host].into(), now + Duration::from_secs(after))
        };
        let found = (0..30).filter(|_| admits(EvidenceKind::GatewayNotFound, 1, 0)).count();
        assert_eq!(found, 10, "those above the threshold");
        assert!(!admits(EvidenceKind::GatewayCaptcha, 1, 0) && !admits(EvidenceKind::GatewayNotFound, 2, 0));
        assert!(admits(EvidenceKind::GatewayDenied, 2, 0), "a wrong key always counts");
        assert!(admits(EvidenceKind::GatewayNotFound, 1, 59));
        assert!(!admits(EvidenceKind::GatewayNotFound, 1, 60), "another minute");
    }

    #[test]
    fn erased_network_begins_again() {
        let (mut counts, now) = (GatewayCounts::default(), Instant::now());
        let mut admits =
            |host: u8| counts.admits(EvidenceKind::GatewayNotFound, [192, 0, 2, host].into(), now);
        assert_eq!([1, 2].map(|host| (0..21).filter(|_| admits(host)).count()), [1, 1]);
        counts.forget(&"network:192.0.2.1".parse().unwrap());
        let mut admits =
            |host: u8| counts.admits(EvidenceKind::GatewayNotFound, [192, 0, 2, host].into(), now);
        assert_eq!([1, 2].map(&mut admits), [false, true]);
    }

    #[test]
    fn networks_are_bounded_and_further_ones_are_spared() {
        let (mut counts, now) = (GatewayCounts::default(), Instant::now());
        for n in 0..COUNTS_MAX as u32 + 9 {
            counts.admits(EvidenceKind::GatewayNotFound, n.to_be_bytes().into(), now);
        }
        assert_eq!(counts.counts.len(), COUNTS_MAX);
        let further = [255, 0, 0, 1].into();
        assert!((0..50).all(|_| !counts.admits(EvidenceKind::GatewayNotFound, further, now)));
    }
}

//! Bans and allowed networks: what follows from their entries in the store.

use std::{net::IpAddr, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{GuardHandler, Peers};
use crate::{
    bans::{Ban, BanBoard, BanKind, BanRecord, BanSubject},
    evidence::EvidenceBoard,
    log_limit::log_limited,
    metrics::Metrics,
    networks::Networks,
    routes::NodeRow,
    store::{GuardKind, GuardRow},
};

/// Part of the node that puts bans and allowed networks in force.
pub struct BanHandler {
    board: Arc<BanBoard>,
    peers: Arc<Peers>,
    /// Peers whose addresses are exempt.
    exempt: Mutex<Arc<[NodeRow]>>,
    /// Scores, which begin again when a ban is lifted.
    evidence: Arc<EvidenceBoard>,
    metrics: Metrics,
}

impl BanHandler {
    /// Creates the handler of a node with these peers, which are never banned.
    pub fn new(
        board: Arc<BanBoard>,
        peers: Arc<Peers>,
        evidence: Arc<EvidenceBoard>,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Self { board, peers, exempt: Mutex::new(Arc::default()), evidence, metrics })
    }

    fn exempt_peers(&self) {
        let others = self.peers.others();
        let mut exempt = self.exempt.lock();
        if Arc::ptr_eq(&exempt, &others) {
            return;
        }
        let address = |row: &NodeRow| {
            let host = row.info.peer_address.rsplit_once(':').map_or("", |(host, _)| host);
            host.trim_matches(['[', ']']).parse::<IpAddr>().ok().map(|it| it.to_string())
        };
        let addresses: Vec<String> = others.iter().filter_map(address).collect();
        // Addresses are networks of their own.
        self.board.set_peers(Networks::parse(&addresses).unwrap_or_default());
        *exempt = others;
    }

    fn publish(&self, is_last: bool) {
        self.board.publish(is_last);
        self.metrics.bans.set(self.board.count(BanKind::Ban) as f64);
    }
}

#[async_trait]
impl GuardHandler for BanHandler {
    fn handles(&self, kind: GuardKind) -> bool {
        kind_of(kind).is_some()
    }

    async fn restarted(&self) {
        self.board.restart();
    }

    async fn changed(&self, rows: &[GuardRow], now_ms: u64) {
        self.board.note_clock(now_ms);
        for row in rows {
            let Some(kind) = kind_of(row.key.kind()) else { continue };
            let Ok(subject) = row.key.name().parse::<BanSubject>() else {
                log_limited!(
                    warn,
                    name = row.key.name(),
                    "ban of an unknown kind of subject is not in force"
                );
                continue;
            };
            let ban =
                |value: &bytes::Bytes| Ban { record: BanRecord::decoded(value), until_ms: row.until_ms };
            // One that was in force did not end by itself.
            if row.value.is_none() && kind == BanKind::Ban && self.board.get(kind, &subject).is_some() {
                self.evidence.lift(&subject);
            }
            self.board.note(kind, subject, row.value.as_ref().map(ban));
        }
        self.publish(false);
    }

    async fn caught_up(&self, now_ms: u64) {
        self.board.note_clock(now_ms);
        let was_complete = self.board.is_reading();
        self.publish(true);
        if was_complete {
            self.board.look_again();
        }
    }

    async fn time_passed(&self, now_ms: u64) {
        self.board.note_clock(now_ms);
        self.exempt_peers();
    }
}

fn kind_of(kind: GuardKind) -> Option<BanKind> {
    match kind {
        GuardKind::Ban => Some(BanKind::Ban),
        GuardKind::Allow => Some(BanKind::Allow),
        _ => None,
    }
}

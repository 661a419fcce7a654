//! Screen of new connections: the banned networks, and the evidence of refused ones.

use std::{net::IpAddr, sync::Arc};

use tidegate_protocol::Code;

use crate::{
    bans::BanBoard,
    evidence::{EvidenceBoard, EvidenceKind, EvidenceSource},
};

/// Banned networks, and the board that notes connections over the limits of their address.
#[derive(Clone, Default)]
pub struct AcceptScreen {
    /// Banned networks.
    pub bans: Arc<BanBoard>,
    /// Security events.
    pub evidence: Arc<EvidenceBoard>,
}

impl AcceptScreen {
    /// Notes what a refused connection is evidence of.
    pub(super) fn note(&self, code: Code, address: IpAddr) {
        if let Some(kind) = EvidenceKind::of_accept(code) {
            self.evidence.note(kind, EvidenceSource::of_address(address));
        }
    }
}

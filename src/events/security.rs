//! Security events of a second, as one event.

use serde::Serialize;

use crate::evidence::{EvidenceRow, EvidenceView};

/// Most rows of one event; those of the same second with less weight are counted alone.
pub const SECURITY_ROWS_MAX: usize = 256;

/// Security events of a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityNotice {
    /// Node that noted them.
    pub node: String,
    /// Run of the node, and number of the notice in it.
    pub number: (u64, u64),
    /// Events, equal ones together; at most [`SECURITY_ROWS_MAX`].
    pub rows: Vec<EvidenceRow>,
    /// Events of this second that are in no row.
    pub dropped: u64,
}

/// Notice as data of an event.
#[derive(Serialize)]
pub(super) struct SecurityData<'a> {
    node: &'a str,
    events: Vec<EvidenceView<'a>>,
    dropped: u64,
}

impl SecurityNotice {
    /// Returns the id of the event.
    pub(super) fn id(&self) -> String {
        let (boot, number) = self.number;
        format!("security/{}/{boot:x}/{number}", self.node)
    }

    /// Returns the data of the event.
    pub(super) fn data(&self) -> SecurityData<'_> {
        let events = self.rows.iter().map(EvidenceRow::view).collect();
        SecurityData { node: &self.node, events, dropped: self.dropped }
    }

    /// Returns approximately how many bytes the notice has in memory.
    pub(super) fn bytes(&self) -> usize {
        256 + self.rows.iter().map(EvidenceRow::bytes).sum::<usize>()
    }
}

//! Storms of groups, as events.

use tidegate_protocol::machine::storm::{StormId, StormProfile, StormReport, StormRule};

/// Start or end of a storm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StormNotice {
    /// Id of the storm, which names its group.
    pub id: StormId,
    /// Rule that the group exceeds.
    pub rule: StormRule,
    /// Counts of now.
    pub report: StormReport,
    /// Messages by second, at the end of the storm; `None` at its start.
    pub profile: Option<StormProfile>,
}

impl StormNotice {
    /// Returns the state of the storm, as events name it.
    pub(super) fn state(&self) -> &'static str {
        if self.profile.is_some() { "over" } else { "storm" }
    }

    /// Returns approximately how many bytes the notice has in memory.
    pub(super) fn bytes(&self) -> usize {
        256 + self.profile.as_ref().map_or(0, |profile| size_of_val(profile.counts()))
    }
}

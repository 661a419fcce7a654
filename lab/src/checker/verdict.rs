//! Prints a report: a line of counts, then the broken promises.

use anyhow::bail;

use super::CheckReport;

impl CheckReport {
    /// Prints the counts, and the violations that are described.
    ///
    /// # Errors
    /// Fails when a promise was broken.
    pub fn judge(&self) -> anyhow::Result<()> {
        eprintln!(
            "checked: {} rows, {} entries received ({} repeated, {} late, {} pulled), {} refused, {} gaps announced, {} excused, {} faults, longest recovery {} ms; \
             {} marks read, {} states and {} presences reported; webhooks: {} events taken, {} of them again; rooms: {} messages due, {} shed, {} lost and announced without number, {} with their node, {} members judged when they left",
            self.rows,
            self.pushes,
            self.repeated,
            self.late,
            self.pulled,
            self.refused,
            self.told_gaps,
            self.excused,
            self.faults,
            self.longest_recovery_ns / 1_000_000,
            self.reads,
            self.states,
            self.presences,
            self.delivered,
            self.delivered_again,
            self.talks,
            self.shed,
            self.talks_uncounted,
            self.talks_lost,
            self.leavers,
        );
        if self.is_clean() {
            return Ok(());
        }
        for violation in &self.violations {
            eprintln!("  {violation}");
        }
        let first = self.violations.first().map(ToString::to_string).unwrap_or_default();
        bail!("broken promises: {:?}, first {first}", self.broken)
    }
}

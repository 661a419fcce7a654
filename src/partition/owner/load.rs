//! Loads of what the ledger and the publisher need of the store, before and while a batch is decided.

use std::collections::BTreeSet;

use tidegate_protocol::{
    id::{ConversationId, ConversationKind},
    machine::ledger::{Need, Outcome, Stop},
    record::{Record, RecordError},
};

use super::Owner;
use crate::partition::exit::{OwnerExit, retry, wait_for_store};

impl Owner {
    pub(super) async fn apply(&mut self, offset: u64, record: &Record) -> Result<Outcome, OwnerExit> {
        loop {
            match self.ledger.apply(offset, record) {
                Err(Stop::Missing) => {
                    let mut needs = BTreeSet::new();
                    self.ledger.needs(record, &mut needs);
                    self.load(needs).await?;
                }
                other => return Ok(other?),
            }
        }
    }

    pub(super) async fn load(&mut self, needs: BTreeSet<Need>) -> Result<(), OwnerExit> {
        if needs.is_empty() {
            return Ok(());
        }
        let needs: Vec<Need> = needs.into_iter().collect();
        let store = &self.cluster.ports.store;
        let rows = retry(|| store.load(self.partition, self.fence, &needs)).await?;
        Ok(self.ledger.load(rows.position, rows.rows)?)
    }

    /// Reads the members of each group as of before the batch; publishing then applies each change.
    pub(super) async fn read_members(
        &mut self,
        records: &[(u64, Result<Record, RecordError>)],
    ) -> Result<(), OwnerExit> {
        let known = records.iter().filter_map(|(_, record)| record.as_ref().ok());
        let is_group = |id: &&ConversationId| matches!(id.kind(), ConversationKind::Group(_));
        let groups: BTreeSet<&ConversationId> =
            known.filter_map(Record::conversation).filter(is_group).collect();
        while let Err(error) = self.members.read(&*self.cluster.ports.store, &groups).await {
            wait_for_store(error).await?;
        }
        Ok(())
    }
}

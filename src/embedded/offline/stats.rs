//! Statistics of a store: row counts and bytes on the disk.

use std::io;

use serde::Serialize;
use tidegate_protocol::id::ConversationKind;

use super::{DatabaseError, Entry, Offline, OfflineError};

/// Contents and size of a store. Counts are exact; bytes are file sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Store format.
    pub format: u32,
    /// State of each log partition.
    pub partitions: Vec<PartitionStats>,
    /// Conversations, including deleted groups.
    pub conversations: u64,
    /// Direct conversations.
    pub direct: u64,
    /// Deleted groups.
    pub deleted: u64,
    /// Current memberships: pairs of a conversation and a user.
    pub members: u64,
    /// Former memberships: pairs of a conversation and a user.
    pub former_members: u64,
    /// Stored messages, including recalled ones.
    pub messages: u64,
    /// Recalled messages.
    pub recalled: u64,
    /// Stored rows: messages, membership changes, recalls.
    pub rows: u64,
    /// Device rows: pairs of a conversation and a device.
    pub devices: u64,
    /// Pairs of a user and a conversation with a read mark, cleared mark or hidden entries.
    pub marks: u64,
    /// Users with stored settings.
    pub settings: u64,
    /// Revocations of tokens.
    pub revocations: u64,
    /// Entries of block lists.
    pub blocks: u64,
    /// Entries of the guard, without removed ones.
    pub guard: u64,
    /// Dedup keys.
    pub keys: u64,
    /// Table files of heads, members, devices, marks and the log.
    pub state_bytes: u64,
    /// Table files of the history.
    pub rows_bytes: u64,
    /// Table files of the dedup keys.
    pub keys_bytes: u64,
    /// Journals: the latest writes of every kind.
    pub journal_bytes: u64,
    /// Total bytes of the database.
    pub total_bytes: u64,
    /// Total bytes per stored message; 0 without messages.
    pub bytes_per_message: u64,
}

/// State of one log partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartitionStats {
    /// Partition number.
    pub number: u32,
    /// Offset of the next record to archive.
    pub position: u64,
    /// Records in the log on disk.
    pub log_records: u64,
    /// Records among them that are not archived yet; the next start decides them.
    pub log_waiting: u64,
    /// Offset below which the keys of records have expired.
    pub keys_from: u64,
}

impl Offline {
    /// Reads the whole store and counts its contents.
    ///
    /// # Errors
    /// Stored data can't be read.
    pub fn stats(&self) -> Result<Stats, OfflineError> {
        let mut stats = Stats { format: self.directory.format(), ..Stats::default() };
        let mut damage = None;
        let walked = self.walk(&mut |entry| {
            entry.map(|entry| stats.count(&entry)).map_err(|what| {
                damage = Some(what);
                io::ErrorKind::InvalidData.into()
            })
        });
        if let (Err(_), Some(what)) = (walked, damage) {
            return Err(OfflineError::Damaged(what));
        }
        let database = &self.database;
        stats.state_bytes = database.state.disk_space();
        stats.rows_bytes = database.rows.disk_space();
        stats.keys_bytes = database.keys.disk_space();
        stats.journal_bytes = database.fjall.journal_disk_space().map_err(DatabaseError::from)?;
        stats.total_bytes = database.fjall.disk_space().map_err(DatabaseError::from)?;
        stats.bytes_per_message = stats.total_bytes.checked_div(stats.messages).unwrap_or(0);
        Ok(stats)
    }
}

impl Stats {
    fn count(&mut self, entry: &Entry) {
        match entry {
            Entry::Partition(it) => self.partitions.push(PartitionStats {
                number: it.number,
                position: it.offset,
                keys_from: it.keys_from,
                ..PartitionStats::default()
            }),
            Entry::Log(it) => {
                if self.partitions.iter().all(|partition| partition.number != it.partition) {
                    self.partitions
                        .push(PartitionStats { number: it.partition, ..PartitionStats::default() });
                }
                let partition = self.partitions.iter_mut().find(|partition| partition.number == it.partition);
                if let Some(partition) = partition {
                    partition.log_records += 1;
                    partition.log_waiting += u64::from(it.offset >= partition.position);
                }
            }
            Entry::Conversation(it) => {
                self.conversations += 1;
                self.direct += u64::from(matches!(it.id.kind(), ConversationKind::Direct(..)));
                self.deleted += u64::from(it.deleted_seq > 0);
            }
            Entry::Member(it) if it.left_seq == 0 => self.members += 1,
            Entry::Member(_) => self.former_members += 1,
            Entry::Device(_) => self.devices += 1,
            Entry::Row(it) => {
                self.rows += 1;
                self.messages += u64::from(it.body.is_message());
                self.recalled += u64::from(it.recalled.is_some());
            }
            Entry::Mark(_) => self.marks += 1,
            Entry::Settings(_) => self.settings += 1,
            Entry::Revocation(_) => self.revocations += 1,
            Entry::Block(_) => self.blocks += 1,
            Entry::Guard(_) => self.guard += 1,
            Entry::Key(_) => self.keys += 1,
            Entry::TidegateExport(_) | Entry::End(_) => {}
        }
    }
}

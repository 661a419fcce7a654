//! Export format of a store: JSON lines that move a node's conversations elsewhere without new seqs.
//!
//! `docs/store.md` describes the format, which is independent of any adapter. Every import reads the same entries in
//! the same order ([`read`]), validates them by the same rules ([`DumpValidator`]), and can write them as deltas through the
//! port.

mod block_line;
mod body;
mod form;
mod guard_line;
mod mark_line;
mod order;
mod revocation;
mod settings;

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
};

use serde::{Deserialize, Serialize};
use tidegate_protocol::{
    Code,
    id::{ConversationId, DeviceId, UserId},
    machine::ledger::{Device, Head, Key, Member, Stay},
    record::{Hash16, Position, Role, Rules},
};

pub use self::revocation::RevocationLine;
pub use self::{
    block_line::BlockLine,
    body::{BodyLine, RowLine},
    guard_line::GuardLine,
    mark_line::MarkLine,
    order::DumpValidator,
    settings::UserSettingsLine,
};

/// Version of the format that this program writes and reads.
pub const DUMP_VERSION: u32 = 1;

/// Longest line accepted, in bytes. A message of 1 MiB in base64, or a change of 1,000 users, fits with a margin.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// One line of an export. Lines come in the order of the variants; members, devices and rows follow their conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// First line, which identifies the format.
    TidegateExport(Header),
    /// Archived position and rules of a log partition.
    Partition(PartitionLine),
    /// Record in the log: the last archived one, which identifies the position, or a later one.
    Log(LogLine),
    /// Head of a conversation.
    Conversation(ConversationLine),
    /// Current or former member of the conversation.
    Member(MemberLine),
    /// Epoch and chain position of a device in the conversation.
    Device(DeviceLine),
    /// Row of the conversation's history.
    Row(RowLine),
    /// Read mark, cleared mark and hidden entries of a user in a conversation.
    Mark(MarkLine),
    /// Settings of a user, for all devices.
    #[serde(rename = "wishes")]
    Settings(UserSettingsLine),
    /// Revocation of tokens of a user.
    Revocation(RevocationLine),
    /// Entry of a block list.
    Block(BlockLine),
    /// Entry of the guard.
    Guard(GuardLine),
    /// Dedup key of a decided record.
    Key(KeyLine),
    /// Last line: the number of lines before it.
    End(u64),
}

/// Fields of [`Entry::TidegateExport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Format version, [`DUMP_VERSION`].
    pub version: u32,
    /// Topic id of the log.
    #[serde(with = "form::hex")]
    pub topic: Hash16,
}

/// Fields of [`Entry::Partition`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionLine {
    /// Partition number.
    pub number: u32,
    /// Offset of the next record to archive.
    pub offset: u64,
    /// Hash of the last archived record.
    #[serde(with = "form::hex")]
    pub hash: Hash16,
    /// Ledger version in force at the position.
    pub ledger_version: u32,
    /// Dedup window, see [`Rules::dedup_window`].
    pub dedup_window: u64,
    /// Offset below which keys have expired, see [`Rules::keys_from`].
    pub keys_from: u64,
}

/// Fields of [`Entry::Log`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLine {
    /// Partition number.
    pub partition: u32,
    /// Offset of the record.
    pub offset: u64,
    /// Encoded record, see `record.proto`.
    #[serde(with = "form::base64")]
    pub record: Vec<u8>,
}

/// Fields of [`Entry::Conversation`], named as in [`Head`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConversationLine {
    /// Conversation id.
    #[serde(with = "form::text")]
    pub id: ConversationId,
    /// Last seq assigned.
    pub last_seq: u64,
    /// Number of messages among the assigned seqs.
    pub messages: u64,
    /// Last seq removed by retention.
    pub pruned_to: u64,
    /// Seq of the group's deletion; 0 if it exists.
    pub deleted_seq: u64,
    /// Number of current members.
    pub members: u64,
    /// Settings of the group.
    pub settings: BTreeMap<String, String>,
}

/// Fields of [`Entry::Member`], named as in [`Member`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberLine {
    /// User id.
    #[serde(with = "form::text")]
    pub user: UserId,
    /// Role in the group.
    pub role: Role,
    /// Seq of the latest join.
    pub joined_seq: u64,
    /// Seq of the latest departure; 0 if the user is a member.
    pub left_seq: u64,
    /// Number of messages that the user has sent.
    pub sent: u64,
    /// Number of messages before the join.
    pub joined_messages: u64,
    /// Number of messages before the departure.
    pub left_messages: u64,
    /// Whether the user is muted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub muted: bool,
    /// Earlier stays, each as joined_seq, left_seq, joined_messages, left_messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stays: Vec<[u64; 4]>,
}

/// Fields of [`Entry::Device`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceLine {
    /// User id.
    #[serde(with = "form::text")]
    pub user: UserId,
    /// Device id.
    #[serde(with = "form::text")]
    pub device: DeviceId,
    /// Newest connection epoch seen.
    pub epoch: u64,
    /// Next number of the device's chain.
    pub next_n: u64,
}

/// Fields of [`Entry::Key`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyLine {
    /// Partition number.
    pub partition: u32,
    /// Dedup key: a hash over conversation, sender, device and msg_id.
    #[serde(with = "form::hex")]
    pub key: Hash16,
    /// Hash of the content.
    #[serde(with = "form::hex")]
    pub body_hash: Hash16,
    /// Assigned seq; 0 if the record was refused.
    pub seq: u64,
    /// Time in the ack.
    pub time: u64,
    /// Log offset of the record.
    pub offset: u64,
    /// Name of the [`Code`] of a permanent refusal.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "form::code")]
    pub refused: Option<Code>,
}

/// Returns whether a field has its default value and is left out of the line.
fn is_default<T: Default + PartialEq>(it: &T) -> bool {
    *it == T::default()
}

impl PartitionLine {
    /// Creates the line from the values of the store.
    pub fn new(number: u32, position: Position, rules: Rules) -> Self {
        let Rules { ledger_version, dedup_window, keys_from } = rules;
        let Position { offset, hash } = position;
        Self { number, offset, hash, ledger_version, dedup_window, keys_from }
    }

    /// Returns the position and rules of the line.
    pub fn parts(&self) -> (Position, Rules) {
        let Self { ledger_version, dedup_window, keys_from, .. } = *self;
        (Position { offset: self.offset, hash: self.hash }, Rules { ledger_version, dedup_window, keys_from })
    }
}

impl ConversationLine {
    /// Creates the line from the values of the store.
    pub fn new(id: ConversationId, head: &Head, members: u64) -> Self {
        let Head { last_seq, messages, pruned_to, deleted_seq, settings } = head;
        let (last_seq, messages, pruned_to) = (*last_seq, *messages, *pruned_to);
        let (deleted_seq, settings) = (*deleted_seq, BTreeMap::clone(settings));
        Self { id, last_seq, messages, pruned_to, deleted_seq, members, settings }
    }

    /// Returns the head of the line.
    pub fn head(&self) -> Head {
        Head {
            last_seq: self.last_seq,
            messages: self.messages,
            pruned_to: self.pruned_to,
            deleted_seq: self.deleted_seq,
            settings: self.settings.clone().into(),
        }
    }
}

impl MemberLine {
    /// Creates the line from the values of the store.
    pub fn new(user: UserId, member: &Member, stays: &[Stay]) -> Self {
        let Member { role, joined_seq, left_seq, sent, joined_messages, left_messages, stays: _, muted } =
            *member;
        let stay = |it: &Stay| [it.joined_seq, it.left_seq, it.joined_messages, it.left_messages];
        let stays = stays.iter().map(stay).collect();
        Self { user, role, joined_seq, left_seq, sent, joined_messages, left_messages, muted, stays }
    }

    /// Returns the member row of the line.
    pub fn member(&self) -> Member {
        let Self { role, joined_seq, left_seq, sent, joined_messages, left_messages, muted, .. } = *self;
        let stays = u32::try_from(self.stays.len()).unwrap_or(u32::MAX);
        Member { role, joined_seq, left_seq, sent, joined_messages, left_messages, stays, muted }
    }

    /// Iterates over the earlier stays.
    pub fn stays(&self) -> impl Iterator<Item = Stay> {
        self.stays.iter().map(|[joined_seq, left_seq, joined_messages, left_messages]| Stay {
            joined_seq: *joined_seq,
            left_seq: *left_seq,
            joined_messages: *joined_messages,
            left_messages: *left_messages,
        })
    }
}

impl DeviceLine {
    /// Returns the device row of the line.
    pub fn row(&self) -> Device {
        Device { epoch: self.epoch, next_n: self.next_n }
    }
}

impl KeyLine {
    /// Creates the line from the values of the store.
    pub fn new(partition: u32, key: Hash16, row: Key) -> Self {
        let Key { seq, time, body_hash, offset, refused } = row;
        Self { partition, key, body_hash, seq, time, offset, refused }
    }

    /// Returns the dedup row of the line.
    pub fn row(&self) -> Key {
        let Self { body_hash, seq, time, offset, refused, .. } = *self;
        Key { seq, time, body_hash, offset, refused }
    }
}

/// Error of reading an export; each text names the line, and the cure if there is one.
#[derive(Debug, thiserror::Error)]
pub enum ReadDumpError {
    /// Reading the file, or the consumer of its entries, failed.
    #[error("line {line}: {error}")]
    Io {
        /// Line number, from 1.
        line: u64,
        /// Cause of the failure.
        error: io::Error,
    },
    /// The line is not an entry, or contradicts the lines before it.
    #[error("line {line}: {what}")]
    Bad {
        /// Line number, from 1.
        line: u64,
        /// Fault and cure.
        what: String,
    },
}

/// Writes an entry as a line.
///
/// # Errors
/// Writing to `to` failed.
pub fn write(entry: &Entry, to: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *to, entry)?;
    to.write_all(b"\n")
}

/// Reads an export to its end and passes each entry to `take`, in order, after checking it against those before it.
///
/// # Errors
/// Stops at the first invalid line; the caller must discard the entries taken until then.
pub fn read(
    from: &mut dyn BufRead,
    mut take: impl FnMut(Entry) -> io::Result<()>,
) -> Result<u64, ReadDumpError> {
    let (mut order, mut line, mut text) = (DumpValidator::default(), 0, Vec::new());
    loop {
        line += 1;
        text.clear();
        let mut limited = io::Read::take(&mut *from, LINE_BYTES_MAX);
        limited.read_until(b'\n', &mut text).map_err(|error| ReadDumpError::Io { line, error })?;
        let bad = |what: String| ReadDumpError::Bad { line, what };
        if text.is_empty() {
            if order.is_complete() {
                return Ok(line - 1);
            }
            return Err(bad(
                "the file ends before its last line (`end`): export it again, or copy it again".into()
            ));
        }
        if text.last() != Some(&b'\n') {
            return Err(bad("the line is cut off: export it again, or copy it again".into()));
        }
        let entry = parse(&text, line).map_err(bad)?;
        let mut fault = None;
        order.next(&entry, &mut |what| {
            fault.get_or_insert(what);
        });
        if let Some(what) = fault {
            return Err(bad(format!("{what}; the file was edited or merged: export it again")));
        }
        take(entry).map_err(|error| ReadDumpError::Io { line, error })?;
    }
}

fn parse(text: &[u8], line: u64) -> Result<Entry, String> {
    if line > 1 {
        return serde_json::from_slice(text)
            .map_err(|error| format!("not a line of an export ({error}); export it again"));
    }
    // The version field is all that is known of other versions.
    let first: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    match first["tidegate_export"]["version"].as_u64() {
        None => Err("not an export of Tidegate; create one with `tidegate store export`".into()),
        Some(version) if version != u64::from(DUMP_VERSION) => Err(format!(
            "the export has version {version}, this program reads {DUMP_VERSION}; import it with the tidegate that wrote it"
        )),
        Some(_) => {
            serde_json::from_slice(text).map_err(|error| format!("the first line is damaged ({error})"))
        }
    }
}

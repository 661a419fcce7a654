//! The exported form of a store: JSON lines, with which a node's conversations move without being renumbered.
//!
//! `docs/store.md` describes the format. It names no adapter: whoever fills another store reads the same entries in
//! the same order ([`read`]), checked by the same rules ([`Order`]), and can write them as deltas through the port.

mod body;
mod form;
mod order;

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
};

use serde::{Deserialize, Serialize};
use tidegate_protocol::{
    Code,
    id::{ConversationId, DeviceId, UserId},
    machine::ledger::{Device, Head, Key, Member, Stay},
    pb,
    record::{Hash16, Position, Role, Rules},
    settings::{Retention, Search, SettingError, Unread, UserSettings},
};

pub use self::{body::BodyLine, order::Order};
use super::{Hidden, Level, Mark};

/// The version of the format that this program writes and reads.
pub const DUMP_VERSION: u32 = 1;

/// The longest line that is read, in bytes: a message of 1 MiB in base64, or 1,000 users in one change, with room.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// One line. The order of the variants is that of the lines; members, devices and rows follow their conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// The first line: what this is.
    TidegateExport(Header),
    /// Where a partition of the log stands.
    Partition(PartitionLine),
    /// A record that the log holds: the last archived one, by which the position is known again, and what follows it.
    Log(LogLine),
    /// A conversation begins.
    Conversation(ConversationLine),
    /// Who is or was in it.
    Member(MemberLine),
    /// Where a device stands in its own order there.
    Device(DeviceLine),
    /// A row of its history.
    Row(RowLine),
    /// Up to where a user has read and cleared, and what is hidden.
    Mark(MarkLine),
    /// What a user wishes, on all devices.
    Wishes(WishesLine),
    /// An id that was decided.
    Key(KeyLine),
    /// The last line: how many came before it.
    End(u64),
}

/// See [`Entry::TidegateExport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`DUMP_VERSION`].
    pub version: u32,
    /// The name of the log.
    #[serde(with = "form::hex")]
    pub topic: Hash16,
}

/// See [`Entry::Partition`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionLine {
    /// Which.
    pub number: u32,
    /// The offset of the next record to archive.
    pub offset: u64,
    /// The hash of the last archived record.
    #[serde(with = "form::hex")]
    pub hash: Hash16,
    /// The rules in force there.
    pub ledger_version: u32,
    /// See [`Rules::dedup_window`].
    pub dedup_window: u64,
    /// See [`Rules::keys_from`].
    pub keys_from: u64,
}

/// See [`Entry::Log`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLine {
    /// The partition.
    pub partition: u32,
    /// The record's place.
    pub offset: u64,
    /// The record, as `record.proto` has it.
    #[serde(with = "form::base64")]
    pub record: Vec<u8>,
}

/// See [`Entry::Conversation`]; the fields are those of [`Head`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConversationLine {
    /// Its key.
    #[serde(with = "form::text")]
    pub id: ConversationId,
    /// The last seq handed out.
    pub last_seq: u64,
    /// How many of them are messages.
    pub messages: u64,
    /// What retention took.
    pub pruned_to: u64,
    /// Where the group ended; 0 = it lives.
    pub deleted_seq: u64,
    /// How many users are in it now.
    pub members: u64,
    /// The group's settings.
    pub settings: BTreeMap<String, String>,
}

/// See [`Entry::Member`]; the fields are those of [`Member`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberLine {
    /// Who.
    #[serde(with = "form::text")]
    pub user: UserId,
    /// As what.
    pub role: Role,
    /// Since which seq.
    pub joined_seq: u64,
    /// Up to which seq; 0 = is in.
    pub left_seq: u64,
    /// How many messages are the user's own.
    pub sent: u64,
    /// Messages before the joining.
    pub joined_messages: u64,
    /// Messages before the leaving.
    pub left_messages: u64,
    /// Whether the user may not talk.
    #[serde(default, skip_serializing_if = "is_default")]
    pub muted: bool,
    /// The times before: joined_seq, left_seq, joined_messages, left_messages of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stays: Vec<[u64; 4]>,
}

/// See [`Entry::Device`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceLine {
    /// Whose.
    #[serde(with = "form::text")]
    pub user: UserId,
    /// Which.
    #[serde(with = "form::text")]
    pub device: DeviceId,
    /// The newest conn epoch seen.
    pub epoch: u64,
    /// The next number of its chain.
    pub next_n: u64,
}

/// See [`Entry::Row`]; the fields are those of [`tidegate_protocol::machine::ledger::Row`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowLine {
    /// Its seq.
    pub seq: u64,
    /// Messages up to and including it.
    pub ordinal: u64,
    /// The sender's own up to and including it.
    pub own: u64,
    /// The broker's receive time, in ms since 1970.
    pub time: u64,
    /// The record's place in the log.
    pub offset: u64,
    /// The seq and time of its recall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recalled: Option<(u64, u64)>,
    /// What it is.
    pub body: BodyLine,
}

/// See [`Entry::Mark`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MarkLine {
    /// Whose.
    #[serde(with = "form::text")]
    pub user: UserId,
    /// Where.
    #[serde(with = "form::text")]
    pub conversation: ConversationId,
    /// Everything up to here is read.
    pub seq: u64,
    /// Messages up to there.
    pub messages: u64,
    /// How many of them are the user's own.
    pub own: u64,
    /// The same of what is cleared: seq, messages, own.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cleared: [u64; 3],
    /// What is hidden above that: the seq, and whether it would count as unread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<(u64, bool)>,
}

/// See [`Entry::Wishes`]; the fields are those of [`UserSettings`], absent where the user never said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct WishesLine {
    #[serde(with = "form::text")]
    pub user: UserId,
    #[serde(default, skip_serializing_if = "is_default")]
    pub ack_timeout_ms: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub ack_tries: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub heartbeat_ms: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub unread: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub retention: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub search: String,
}

/// See [`Entry::Key`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyLine {
    /// The partition.
    pub partition: u32,
    /// The key: a hash over conversation, sender, device and msg_id.
    #[serde(with = "form::hex")]
    pub key: Hash16,
    /// The hash of the content.
    #[serde(with = "form::hex")]
    pub body_hash: Hash16,
    /// The seq it got; 0 when it was refused.
    pub seq: u64,
    /// The time it was acked with.
    pub time: u64,
    /// The record's place in the log.
    pub offset: u64,
    /// Why it was refused for good: the name of a [`Code`].
    #[serde(default, skip_serializing_if = "Option::is_none", with = "form::code")]
    pub refused: Option<Code>,
}

/// What is left out of a line.
fn is_default<T: Default + PartialEq>(it: &T) -> bool {
    *it == T::default()
}

impl PartitionLine {
    /// As the store says it.
    pub fn new(number: u32, position: Position, rules: Rules) -> Self {
        let Rules { ledger_version, dedup_window, keys_from } = rules;
        let Position { offset, hash } = position;
        Self { number, offset, hash, ledger_version, dedup_window, keys_from }
    }

    /// As the store takes it.
    pub fn parts(&self) -> (Position, Rules) {
        let Self { ledger_version, dedup_window, keys_from, .. } = *self;
        (Position { offset: self.offset, hash: self.hash }, Rules { ledger_version, dedup_window, keys_from })
    }
}

impl ConversationLine {
    /// As the store says it.
    pub fn new(id: ConversationId, head: &Head, members: u64) -> Self {
        let Head { last_seq, messages, pruned_to, deleted_seq, settings } = head;
        let (last_seq, messages, pruned_to) = (*last_seq, *messages, *pruned_to);
        let (deleted_seq, settings) = (*deleted_seq, BTreeMap::clone(settings));
        Self { id, last_seq, messages, pruned_to, deleted_seq, members, settings }
    }

    /// As the store takes it.
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
    /// As the store says it.
    pub fn new(user: UserId, member: &Member, stays: &[Stay]) -> Self {
        let Member { role, joined_seq, left_seq, sent, joined_messages, left_messages, stays: _, muted } =
            *member;
        let stay = |it: &Stay| [it.joined_seq, it.left_seq, it.joined_messages, it.left_messages];
        let stays = stays.iter().map(stay).collect();
        Self { user, role, joined_seq, left_seq, sent, joined_messages, left_messages, muted, stays }
    }

    /// As the store takes it.
    pub fn member(&self) -> Member {
        let Self { role, joined_seq, left_seq, sent, joined_messages, left_messages, muted, .. } = *self;
        let stays = u32::try_from(self.stays.len()).unwrap_or(u32::MAX);
        Member { role, joined_seq, left_seq, sent, joined_messages, left_messages, stays, muted }
    }

    /// The times before.
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
    /// As the store takes it.
    pub fn row(&self) -> Device {
        Device { epoch: self.epoch, next_n: self.next_n }
    }
}

impl MarkLine {
    /// As the store says it; but no place counts more messages than seqs. Marks of former members once did, where
    /// retention had passed them: harmless, as unread looks only at messages of the user's own time.
    pub fn new(user: UserId, conversation: ConversationId, level: &Level) -> Self {
        let Level { mark: Mark { seq, messages, own }, cleared, hidden } = level;
        let (seq, messages, own) = (*seq, *messages.min(seq), *own);
        let cleared = [cleared.seq, cleared.messages.min(cleared.seq), cleared.own];
        let hidden = hidden.iter().map(|it| (it.seq, it.counts)).collect();
        Self { user, conversation, seq, messages, own, cleared, hidden }
    }

    /// As the store takes it.
    pub fn level(&self) -> Level {
        let [seq, messages, own] = self.cleared;
        Level {
            mark: Mark { seq: self.seq, messages: self.messages, own: self.own },
            cleared: Mark { seq, messages, own },
            hidden: self.hidden.iter().map(|(seq, counts)| Hidden { seq: *seq, counts: *counts }).collect(),
        }
    }
}

impl WishesLine {
    /// As the store says it.
    pub fn new(user: UserId, wishes: &UserSettings) -> Self {
        let UserSettings { ack_timeout_ms, ack_tries, heartbeat_ms, unread, retention, search } = *wishes;
        Self {
            user,
            ack_timeout_ms,
            ack_tries,
            heartbeat_ms,
            unread: unread.map(Unread::word).unwrap_or_default().to_owned(),
            retention: retention.map(Retention::word).unwrap_or_default().to_owned(),
            search: search.map(Search::word).unwrap_or_default().to_owned(),
        }
    }

    /// As the store takes it.
    ///
    /// # Errors
    /// Names the wish that has no such value.
    pub fn wishes(&self) -> Result<UserSettings, SettingError> {
        UserSettings::of(&pb::Settings {
            chain: false,
            ack_timeout_ms: self.ack_timeout_ms,
            ack_tries: self.ack_tries,
            heartbeat_ms: self.heartbeat_ms,
            unread: self.unread.clone(),
            retention: self.retention.clone(),
            search: self.search.clone(),
        })
    }
}

impl KeyLine {
    /// As the store says it.
    pub fn new(partition: u32, key: Hash16, row: Key) -> Self {
        let Key { seq, time, body_hash, offset, refused } = row;
        Self { partition, key, body_hash, seq, time, offset, refused }
    }

    /// As the store takes it.
    pub fn row(&self) -> Key {
        let Self { body_hash, seq, time, offset, refused, .. } = *self;
        Key { seq, time, body_hash, offset, refused }
    }
}

/// Why an export could not be read; each text names the line, and the cure where there is one.
#[derive(Debug, thiserror::Error)]
pub enum ReadDumpError {
    /// The file, or what takes the entries, failed.
    #[error("line {line}: {error}")]
    Io {
        /// Where, from 1.
        line: u64,
        /// Why.
        error: io::Error,
    },
    /// The line is no entry, or does not fit those before it.
    #[error("line {line}: {what}")]
    Bad {
        /// Where, from 1.
        line: u64,
        /// What is wrong and what to do.
        what: String,
    },
}

/// Writes an entry as a line.
///
/// # Errors
/// Those of `to`.
pub fn write(entry: &Entry, to: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *to, entry)?;
    to.write_all(b"\n")
}

/// Reads an export to its end and hands over each entry, in order, once it is known to fit those before it.
///
/// # Errors
/// At the first line that is wrong; what was handed over until then must be thrown away.
pub fn read(
    from: &mut dyn BufRead,
    mut take: impl FnMut(Entry) -> io::Result<()>,
) -> Result<u64, ReadDumpError> {
    let (mut order, mut line, mut text) = (Order::default(), 0, Vec::new());
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
                "the file ends before its last line (`end`): export it again, or copy it anew".into()
            ));
        }
        if text.last() != Some(&b'\n') {
            return Err(bad("the line is cut off: export it again, or copy it anew".into()));
        }
        let entry = parse(&text, line).map_err(bad)?;
        let mut fault = None;
        order.next(&entry, &mut |what| {
            fault.get_or_insert(what);
        });
        if let Some(what) = fault {
            return Err(bad(format!("{what}; the file was changed or put together: export it again")));
        }
        take(entry).map_err(|error| ReadDumpError::Io { line, error })?;
    }
}

fn parse(text: &[u8], line: u64) -> Result<Entry, String> {
    if line > 1 {
        return serde_json::from_slice(text)
            .map_err(|error| format!("this is no line of an export ({error}); export it again"));
    }
    // Of another version only this much is known.
    let first: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    match first["tidegate_export"]["version"].as_u64() {
        None => Err("this is no export of Tidegate; make one with `tidegate store export`".into()),
        Some(version) if version != u64::from(DUMP_VERSION) => Err(format!(
            "the export has version {version}, this program reads {DUMP_VERSION}; import it with the tidegate that wrote it"
        )),
        Some(_) => {
            serde_json::from_slice(text).map_err(|error| format!("the first line is damaged ({error})"))
        }
    }
}

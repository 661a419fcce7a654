//! One read of a stream: entries of the feed of a partition, and what they are about, as server-sent events.

use std::{fmt::Write as _, ops::RangeInclusive};

use serde::Deserialize;
use tidegate_protocol::machine::webhook::WebhookEvent;

use crate::{
    events::{Events, EventsPage},
    store::{FeedEntry, FeedLimits, FeedRead, Store, StoreError},
    webhooks::{EventEncoder, FoundEntry, WebhookFilter, event_kind, read_entries},
};

/// Limits of one read of the feed.
const READ: FeedLimits = FeedLimits { entries: 512, bytes: 128 * 1024 };

/// Most events of a batch.
pub(super) const BATCH_EVENTS_MAX: usize = 100;

/// Most entries that are read at once with what they are about, so that a turn holds few rows.
const READ_ENTRIES_MAX: usize = 16;

/// Approximate limit on the bytes of a batch, at which it ends; a single event may exceed it. The server holds some
/// batches of a connection that its client has not taken yet, up to 400 KiB.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// Filter and form of the events of a stream.
#[derive(Clone, Debug)]
pub(super) struct StreamFilter {
    filter: WebhookFilter,
    encoder: EventEncoder,
    /// Types of the wanted changes of the cluster.
    node_types: Vec<&'static str>,
}

impl StreamFilter {
    /// Creates a filter of events whose source is `source`.
    pub(super) fn new(filter: WebhookFilter, source: &str, with_content: bool) -> Self {
        let encoder = EventEncoder { source: source.to_owned(), filter: filter.clone(), with_content };
        Self { filter, encoder, node_types: Vec::new() }
    }

    /// Adds these changes of the cluster.
    pub(super) fn with_nodes(self, node_types: Vec<&'static str>) -> Self {
        Self { node_types, ..self }
    }

    /// Returns whether any changes of the cluster are wanted.
    pub(super) fn wants_nodes(&self) -> bool {
        !self.node_types.is_empty()
    }

    /// Appends the changes of the cluster that are wanted; returns their number.
    pub(super) fn put_nodes(&self, events: &Events, page: &EventsPage, text: &mut String) -> u64 {
        let is_wanted = |kind: &'static str| self.node_types.contains(&kind);
        let wanted = page.events.iter().filter(|event| event.node_kind().is_some_and(is_wanted));
        let mut count = 0;
        for event in wanted {
            put_event(&events.encode(event), text);
            count += 1;
        }
        count
    }

    /// Appends an event if it is wanted.
    fn put(&self, event: &WebhookEvent, found: &FoundEntry, batch: &mut EventBatch) {
        let encoded = self.encoder.encode(event, found);
        if let Some(encoded) = encoded {
            put_event(&encoded.json, &mut batch.text);
            batch.events += 1;
        }
    }
}

/// Outcome of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BatchRead {
    /// Next events.
    Batch(EventBatch),
    /// The feed no longer has these numbers.
    Gap(RangeInclusive<u64>),
    /// The store fell back to an older state, whose newest number is this.
    FellBack(u64),
    /// The store lacks what the feed names: it is falling back.
    Lacking,
}

/// Events of one partition.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct EventBatch {
    /// Events in the form of the stream.
    pub(super) text: String,
    /// Number of events.
    pub(super) events: u64,
    /// Number of the last entry that is read: its event is in the text, or is not wanted.
    pub(super) to: u64,
    /// Newest number of the partition.
    pub(super) newest: u64,
}

/// Reads what follows a number.
pub(super) async fn read(
    store: &dyn Store,
    filter: &StreamFilter,
    partition: u32,
    after: u64,
) -> Result<BatchRead, StoreError> {
    let page = match store.read_feed(partition, after, READ).await? {
        FeedRead::Page(page) => page,
        FeedRead::Missing(numbers) => return Ok(BatchRead::Gap(numbers)),
        FeedRead::Ahead(newest) => return Ok(BatchRead::FellBack(newest)),
    };
    let (wanted, end) = wanted(page.entries, after, &filter.filter);
    let mut batch = EventBatch { to: end, newest: page.newest, ..EventBatch::default() };
    if wanted.is_empty() {
        return Ok(BatchRead::Batch(batch));
    }
    let (numbers, events): (Vec<u64>, Vec<WebhookEvent>) = wanted.into_iter().unzip();
    let mut taken = 0;
    while taken < events.len() && batch.text.len() < BATCH_BYTES_MAX {
        let part = &events[taken..events.len().min(taken + READ_ENTRIES_MAX)];
        let found = read_entries(store, part).await?.unwrap_or_default();
        if found.is_empty() {
            if taken == 0 {
                return Ok(BatchRead::Lacking);
            }
            break;
        }
        for (event, found) in part.iter().zip(&found) {
            if batch.text.len() >= BATCH_BYTES_MAX {
                break;
            }
            taken += 1;
            filter.put(event, found, &mut batch);
        }
    }
    if let Some(next) = numbers.get(taken) {
        batch.to = next - 1;
    }
    Ok(BatchRead::Batch(batch))
}

/// Returns the events of a page that may be wanted, at most [`BATCH_EVENTS_MAX`] of them with their numbers, and the
/// number up to which there is no other.
fn wanted(entries: Vec<FeedEntry>, after: u64, filter: &WebhookFilter) -> (Vec<(u64, WebhookEvent)>, u64) {
    let (mut wanted, mut end) = (Vec::new(), after);
    for FeedEntry { number, conversation, seq, kind, .. } in entries {
        if filter.may_want(&conversation, kind) {
            if wanted.len() == BATCH_EVENTS_MAX {
                break;
            }
            wanted.push((number, WebhookEvent { conversation, seq, kind: event_kind(kind) }));
        }
        end = number;
    }
    (wanted, end)
}

/// Type of an encoded event.
#[derive(Deserialize)]
struct TypeOfEvent<'a> {
    #[serde(rename = "type", borrow)]
    kind: &'a str,
}

/// Appends an event. Its JSON is one line.
fn put_event(json: &[u8], text: &mut String) {
    let kind = serde_json::from_slice::<TypeOfEvent<'_>>(json).map_or("message", |it| it.kind);
    // Writing to a string does not fail.
    write!(text, "event: {kind}\ndata: {}\n\n", String::from_utf8_lossy(json)).ok();
}

/// Appends a gap.
pub(super) fn put_gap(partition: u32, numbers: &RangeInclusive<u64>, text: &mut String) {
    let (first, last) = (numbers.start(), numbers.end());
    let data = format_args!("{{\"partition\":{partition},\"first\":{first},\"last\":{last}}}");
    write!(text, "event: gap\ndata: {data}\n\n").ok();
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::ConversationId;

    use super::*;
    use crate::store::FeedKind;

    fn entry(number: u64, key: &str) -> FeedEntry {
        let conversation = ConversationId::parse(key).unwrap();
        FeedEntry { number, conversation, seq: number, kind: FeedKind::Message, time: 0 }
    }

    fn filter(types: &str, conversations: &[String]) -> WebhookFilter {
        WebhookFilter::new(&[types.to_owned()], conversations, &[]).unwrap()
    }

    #[test]
    fn page_ends_before_the_first_event_that_does_not_fit() {
        // Of each two, one is not wanted.
        let entries: Vec<FeedEntry> =
            (1..=300).map(|number| entry(number, if number % 2 == 0 { "g:a" } else { "g:b" })).collect();
        let only_a = filter("tidegate.*", &["g:a".to_owned()]);
        let (found, end) = wanted(entries.clone(), 0, &only_a);
        assert_eq!((found.len(), found[99].0, end), (BATCH_EVENTS_MAX, 200, 201));
        let (found, end) = wanted(entries[201..].to_vec(), end, &only_a);
        assert_eq!((found.len(), found[0].0, end), (50, 202, 300));
        let (found, end) = wanted(entries, 0, &filter("tidegate.member.*", &[]));
        assert_eq!((found.len(), end), (0, 300), "what is not wanted is passed");
        assert_eq!(wanted(Vec::new(), 7, &only_a), (Vec::new(), 7));
    }

    #[test]
    fn event_is_its_type_and_one_line_of_json() {
        let mut text = String::new();
        put_event(br#"{"data":{"type":"x","text":"a\nb"},"type":"tidegate.message.accepted"}"#, &mut text);
        put_gap(3, &(17..=40), &mut text);
        let expected = "event: tidegate.message.accepted\ndata: {\"data\":{\"type\":\"x\",\"text\":\"a\\nb\"},\"type\":\"tidegate.message.accepted\"}\n\n\
                        event: gap\ndata: {\"partition\":3,\"first\":17,\"last\":40}\n\n";
        assert_eq!(text, expected);
    }
}

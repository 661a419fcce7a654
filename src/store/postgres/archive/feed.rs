//! Writes of the feed: one row for each archived batch, in the transaction of the archive.

use std::collections::HashMap;

use tidegate_protocol::machine::ledger::Delta;
use tokio_postgres::Row as PgRow;

use super::super::{
    codec::{Reader, big},
    error::{PostgresError, damaged},
    session::{Call, call},
};
use crate::store::feed::EncodedBatch;

const INSERT_FEED: &str = "
INSERT INTO feed (partition, last, entries, time, bytes_end, batch)
SELECT * FROM unnest($1::integer[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[])";

/// Encoded batches of the partitions of a transaction, whose numbers are not known yet.
pub(in super::super) struct FeedBatches {
    batches: Vec<Option<EncodedBatch>>,
    /// Number of entries of each partition.
    pub(in super::super) counts: Vec<i64>,
    /// Bytes of each partition's batch.
    pub(in super::super) bytes: Vec<i64>,
}

impl FeedBatches {
    /// Encodes the batches; unless `is_written`, only counts their entries.
    pub(in super::super) fn new(deltas: &[(i32, &Delta)], is_written: bool) -> Self {
        let encode = |(_, delta): &(i32, &Delta)| is_written.then(|| EncodedBatch::of(delta)).flatten();
        let batches: Vec<_> = deltas.iter().map(encode).collect();
        let bytes = |it: &Option<EncodedBatch>| big(it.as_ref().map_or(0, |it| it.bytes.len() as u64));
        Self {
            counts: deltas.iter().map(|(_, delta)| big(EncodedBatch::count(delta))).collect(),
            bytes: batches.iter().map(bytes).collect(),
            batches,
        }
    }

    /// Returns the rows of the batches, by what the move of the positions has returned.
    pub(in super::super) fn rows(
        self,
        deltas: &[(i32, &Delta)],
        moved: &[PgRow],
    ) -> Result<FeedRows, PostgresError> {
        let mut ends = HashMap::with_capacity(moved.len());
        for row in moved {
            let mut reader = Reader::new(row);
            reader.get::<i32>()?;
            ends.insert(reader.get::<i32>()?, (reader.get::<i64>()?, reader.get::<i64>()?));
        }
        let mut rows = FeedRows::default();
        for ((partition, _), batch) in deltas.iter().zip(self.batches) {
            let Some(batch) = batch else { continue };
            let (last, bytes_end) = *ends.get(partition).ok_or_else(damaged)?;
            rows.partition.push(*partition);
            rows.last.push(last);
            rows.entries.push(big(batch.count));
            rows.time.push(big(batch.time));
            rows.bytes_end.push(bytes_end);
            rows.batch.push(batch.bytes);
        }
        Ok(rows)
    }
}

/// Columns of new rows of the feed.
#[derive(Default)]
pub(in super::super) struct FeedRows {
    partition: Vec<i32>,
    last: Vec<i64>,
    entries: Vec<i64>,
    time: Vec<i64>,
    bytes_end: Vec<i64>,
    batch: Vec<Vec<u8>>,
}

impl FeedRows {
    /// Returns the call that writes the rows; `None` if there are none.
    pub(super) fn insert(&self) -> Option<Call<'_>> {
        let Self { partition, last, entries, time, bytes_end, batch } = self;
        (!last.is_empty()).then(|| call(INSERT_FEED, &[partition, last, entries, time, bytes_end, batch]))
    }
}

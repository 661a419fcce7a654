//! Encoding of the rows of a history.

use bytes::Bytes;
use tidegate_protocol::{
    id::NodeId,
    machine::ledger::Row,
    record::{Body, Origin, Record},
};

use super::{Reader, damaged, ints};
use crate::{embedded::DatabaseError, store::StoredRow};

/// Returns the shortest valid origin, for stored rows: the origin of an archived record is no longer needed.
fn empty_origin() -> Result<Origin, DatabaseError> {
    let node = NodeId::new("-").map_err(|_| damaged())?;
    Ok(Origin { node, boot: 0, conn: 0, request: 0 })
}

/// Key of the field, before those of the record, that has seq and time of the newest edit; programs that do not know it skip it.
/// It has the number 15, which no record uses, and a length.
const EDITED_FIELD: u8 = 15 << 3 | 2;

/// Encodes a row of history, without its seq, which is in the key.
pub(crate) fn put_row(stored: &StoredRow) -> Result<Vec<u8>, DatabaseError> {
    let StoredRow { row, recalled, edited } = stored;
    let mut body = row.body.clone();
    if recalled.is_some()
        && let Body::Message(message) = &mut body
    {
        message.content = Bytes::new();
    }
    let record = Record { origin: empty_origin()?, received_at: row.time, body, trace: None }.encode();
    let (seq, time) = (*recalled).unwrap_or_default();
    let mut to = Vec::with_capacity(record.len() + 16);
    ints(&[row.ordinal, row.own, row.offset, seq, time], &mut to);
    if let Some((seq, time)) = edited {
        let mut value = Vec::with_capacity(16);
        ints(&[*seq, *time], &mut value);
        to.push(EDITED_FIELD);
        ints(&[value.len() as u64], &mut to);
        to.append(&mut value);
    }
    to.extend_from_slice(&record);
    Ok(to)
}

pub(crate) fn row(seq: u64, value: &[u8]) -> Result<StoredRow, DatabaseError> {
    let mut from = Reader(Bytes::copy_from_slice(value));
    let (ordinal, own, offset) = (from.int()?, from.int()?, from.int()?);
    let recalled = Some((from.int()?, from.int()?)).filter(|(seq, _)| *seq > 0);
    let mut edited = None;
    if from.0.first() == Some(&EDITED_FIELD) {
        from.take(1)?;
        let count = usize::try_from(from.int()?).map_err(|_| damaged())?;
        let mut value = Reader(from.take(count)?);
        edited = Some((value.int()?, value.int()?));
    }
    let record = Record::decode(from.0).map_err(|_| damaged())?;
    let row = Row { seq, ordinal, own, time: record.received_at, offset, body: record.body };
    Ok(StoredRow { row, recalled, edited })
}

//! Appender: collects the queued sends of all shards into appends to the log, and answers those that fail.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tidegate_protocol::{
    Code,
    machine::session::SubmitAnswer,
    record::{Body, Record},
};
use tokio::sync::mpsc;

use super::intake::{Intake, weight};
use crate::{
    bus::{AppendError, Appended, partition_of},
    cluster::Cluster,
    delivery::local::LocalDispatcher,
    log_limit::log_limited,
    trace::{Facts, Step, Tracer},
};

/// Record count from which an append takes no further batch from the queue.
const APPEND_RECORDS_MAX: usize = 4_096;

/// Limit on the bytes of one append, unless a single record is larger. A log refuses an append that exceeds its buffer,
/// and with it the records of all its senders (`kafka.append_bytes_max`).
const APPEND_BYTES_MAX: usize = 1024 * 1024;

/// Limit on unconfirmed appends, for each partition of the log.
const APPENDS_PER_PARTITION_MAX: usize = 16;

/// Appends records from the queue until it closes. Answers those that could not be appended; owners answer the rest.
pub async fn append_all(
    mut records: mpsc::Receiver<Vec<Record>>,
    intake: Arc<Intake>,
    cluster: Arc<Cluster>,
    mut out: LocalDispatcher,
) {
    // Appends to one partition are confirmed in order, and a stalled partition delays no other.
    let mut appends = FuturesUnordered::new();
    let appends_max = APPENDS_PER_PARTITION_MAX * cluster.ports.bus.partitions() as usize;
    loop {
        tokio::select! {
            // Confirmed appends first, because they free capacity. The order is fixed, so that a simulation seed
            // reproduces a run.
            biased;
            Some((batch, result)) = appends.next() => {
                complete_append(batch, result, &intake, &cluster.trace, &mut out).await;
            }
            batch = records.recv(), if appends.len() < appends_max => {
                let Some(mut batch) = batch else { break };
                while batch.len() < APPEND_RECORDS_MAX
                    && let Ok(more) = records.try_recv()
                {
                    batch.extend(more);
                }
                for (partition, batch) in group_by_partition(batch, cluster.ports.bus.partitions()) {
                    if cluster.peers.lags().is_behind(partition) {
                        refuse(&batch, &SubmitAnswer::Refused { code: Code::ArchiveBehind, message: "".into() }, &mut out);
                        intake.release(batch.iter().map(weight).sum());
                        continue;
                    }
                    for (batch, encoded) in split_by_bytes(batch) {
                        out.in_flight().appending(partition, &batch);
                        let bus = Arc::clone(&cluster.ports.bus);
                        // First polled in the order of these calls, which becomes the order in the log.
                        appends.push(async move { (batch, bus.append(partition, encoded).await) });
                    }
                }
                out.flush().await;
            }
        }
    }
    while let Some((batch, result)) = appends.next().await {
        complete_append(batch, result, &intake, &cluster.trace, &mut out).await;
    }
}

fn group_by_partition(batch: Vec<Record>, partitions: u32) -> BTreeMap<u32, Vec<Record>> {
    let mut by_partition: BTreeMap<u32, Vec<Record>> = BTreeMap::new();
    for record in batch {
        let partition = record.conversation().map_or(0, |id| partition_of(id, partitions));
        by_partition.entry(partition).or_default().push(record);
    }
    by_partition
}

/// Encodes the records, and splits them into appends within the byte limit.
fn split_by_bytes(batch: Vec<Record>) -> Vec<(Vec<Record>, Vec<Bytes>)> {
    let mut parts: Vec<(Vec<Record>, Vec<Bytes>)> = Vec::new();
    let mut bytes_left = 0;
    for record in batch {
        let encoded = record.encode();
        match parts.last_mut().filter(|_| encoded.len() <= bytes_left) {
            Some((records, bytes)) => {
                bytes_left -= encoded.len();
                records.push(record);
                bytes.push(encoded);
            }
            None => {
                bytes_left = APPEND_BYTES_MAX.saturating_sub(encoded.len());
                parts.push((vec![record], vec![encoded]));
            }
        }
    }
    parts
}

async fn complete_append(
    batch: Vec<Record>,
    result: Result<Appended, AppendError>,
    intake: &Intake,
    tracer: &Tracer,
    out: &mut LocalDispatcher,
) {
    trace_append(&batch, &result, tracer);
    let error = match result {
        Ok(appended) => {
            out.in_flight().appended(&batch, appended.last);
            None
        }
        Err(error) => Some(error),
    };
    if let Some(error) = error {
        if matches!(error, AppendError::Unavailable(_)) {
            // Repeated while the log is unavailable; the log itself reports when that begins and ends.
            tracing::debug!(%error, records = batch.len(), "append refused; its records are refused too");
        } else {
            log_limited!(warn, %error, records = batch.len(), "append failed; its records end refused or unknown");
        }
        let answer = match error {
            AppendError::Unavailable(_) | AppendError::Rejected(_) => {
                SubmitAnswer::Refused { code: Code::BusUnavailable, message: "".into() }
            }
            AppendError::Unknown(_) => SubmitAnswer::Unknown,
        };
        refuse(&batch, &answer, out);
        out.flush().await;
    }
    intake.release(batch.iter().map(weight).sum());
}

/// Adds the result of the append to the traces of its records.
fn trace_append(batch: &[Record], result: &Result<Appended, AppendError>, tracer: &Tracer) {
    for trace in batch.iter().filter_map(|record| record.trace) {
        let facts = Facts::default();
        match result {
            Ok(Appended { first, last }) => {
                tracer.note(
                    &trace,
                    Step::Appended,
                    facts,
                    format_args!("between offsets {first} and {last}"),
                );
            }
            Err(error) => tracer.note(&trace, Step::NotAppended, facts, format_args!("{error}")),
        }
    }
}

/// Answers the records of a failed append. A chained message ends its connection, because the log would let its
/// successors pass.
fn refuse(batch: &[Record], answer: &SubmitAnswer, out: &mut LocalDispatcher) {
    for record in batch {
        let chained = matches!(&record.body, Body::Message(message) if message.order.chained);
        out.answer_failed(record, if chained { SubmitAnswer::AppendFailed } else { answer.clone() });
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::{
        id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
        record::{Message, Origin, SenderOrder, body_hash},
    };

    use super::*;

    #[test]
    fn batch_is_split_by_bytes_and_keeps_its_order() {
        let origin = Origin { node: NodeId::new("n1").unwrap(), boot: 1, conn: 1, request: 1 };
        let sized = |size: usize, n: u64| {
            let content = Bytes::from(vec![b'x'; size]);
            let body = Body::Message(Message {
                conversation: ConversationId::parse("d:ann:bob").unwrap(),
                sender: UserId::new("ann").unwrap(),
                device: DeviceId::new("phone").unwrap(),
                msg_id: MsgId::new(&format!("m{n}")).unwrap(),
                attempt: 0,
                body_hash: body_hash(&content),
                content,
                order: SenderOrder::default(),
                flags: 0,
                mode: Default::default(),
            });
            Record { origin: origin.clone(), received_at: 1, body, trace: None }
        };
        let sizes = [600 << 10, 600 << 10, 10, 2 << 20, 10];
        let batch: Vec<Record> = sizes.iter().zip(0..).map(|(size, n)| sized(*size, n)).collect();
        let parts = split_by_bytes(batch.clone());
        let counts: Vec<usize> = parts.iter().map(|(records, _)| records.len()).collect();
        assert_eq!(counts, [1, 2, 1, 1]);
        let bytes: Vec<Bytes> = parts.into_iter().flat_map(|(_, bytes)| bytes).collect();
        assert_eq!(bytes, batch.iter().map(Record::encode).collect::<Vec<_>>());
    }
}

//! A bare producer and consumer of Kafka on the CPUs of the servers: the cost of the log alone.

use super::{host, orders::Outcome};
use anyhow::{Context as _, Result, anyhow, ensure};
use hdrhistogram::Histogram;
use rdkafka::{
    ClientConfig, ClientContext, Message as _, Offset, TopicPartitionList,
    config::{FromClientConfig as _, FromClientConfigAndContext as _},
    consumer::{BaseConsumer, Consumer as _},
    producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext},
};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};
use tidegate::config::KafkaConfig;

/// Time for connecting and the first requests, which does not count.
const WARM_UP_NS: u64 = 1_000_000_000;
/// Time for the last records.
const LAST_RECORDS_TIMEOUT_NS: u64 = 10_000_000_000;
const WATERMARK_TIMEOUT: Duration = Duration::from_secs(10);

/// Topic, CPUs and size of records.
pub(super) struct KafkaBaseline {
    pub(super) kafka: KafkaConfig,
    pub(super) cpus: Vec<usize>,
    /// Bytes of a record, as many as of Tidegate's.
    pub(super) size: usize,
}

/// Numbers of records that Kafka has confirmed and refused.
#[derive(Default)]
struct Counts {
    done: AtomicU64,
    failed: AtomicU64,
}

impl ClientContext for Counts {}

impl ProducerContext for Counts {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        self.failed.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

impl KafkaBaseline {
    /// Measures confirmed records, with a constant number in flight.
    pub(super) fn flat_out(&self, in_flight: usize, seconds: f64) -> Result<Outcome> {
        self.apart(|| self.produce(seconds, Some(in_flight as u64), None))
    }

    /// Measures records at a constant rate, from the send until they are read again.
    pub(super) fn there_and_back(&self, rate: f64, seconds: f64) -> Result<Outcome> {
        let (reads, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        self.apart(|| {
            thread::scope(|scope| {
                let reader = scope.spawn(|| self.consume(&reads, &stop));
                while !reads.load(Ordering::Acquire) && !reader.is_finished() {
                    thread::sleep(Duration::from_millis(10));
                }
                let produced = self.produce(seconds, None, Some(rate));
                stop.store(true, Ordering::Release);
                let times = reader.join().map_err(|_| anyhow!("the reader ended by itself"))??;
                let mut outcome = produced?;
                outcome.p50_us = times.value_at_quantile(0.5);
                outcome.p99_us = times.value_at_quantile(0.99);
                outcome.max_us = times.max();
                Ok(outcome)
            })
        })
    }

    /// Returns the number of records in the topic.
    pub(super) fn records(kafka: &KafkaConfig) -> Result<u64> {
        let consumer = BaseConsumer::from_config(&common(kafka))?;
        let mut all = 0;
        for partition in 0..kafka.partitions {
            let (_, end) = consumer.fetch_watermarks(&kafka.topic, partition as i32, WATERMARK_TIMEOUT)?;
            all += u64::try_from(end)?;
        }
        Ok(all)
    }

    /// Runs `work` on a thread with the servers' CPUs, which the threads of the library inherit.
    fn apart<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let pinned = || {
            host::pin(&self.cpus)?;
            work()
        };
        thread::scope(|scope| {
            scope.spawn(pinned).join().map_err(|_| anyhow!("the bare client ended by itself"))?
        })
    }

    fn produce(&self, seconds: f64, in_flight: Option<u64>, rate: Option<f64>) -> Result<Outcome> {
        let mut config = common(&self.kafka);
        config.set("enable.idempotence", "true").set("acks", "all").set("linger.ms", "0");
        let producer = BaseProducer::from_config_and_context(&config, Counts::default())?;
        let counts = producer.context();
        let mut record = vec![b'x'; self.size];
        let (began, mut sent, mut start) = (host::now_ns(), 0_u64, None);
        let end = loop {
            let now = host::now_ns();
            let done = counts.done.load(Ordering::Relaxed);
            if start.is_none() && now - began >= WARM_UP_NS {
                start = Some((now, done));
            }
            if now - began >= WARM_UP_NS + (seconds * 1e9) as u64 {
                break (now, done);
            }
            let due = match rate {
                Some(rate) => ((now - began) as f64 / 1e9 * rate) as u64,
                None => done + in_flight.unwrap_or(1),
            };
            while sent < due {
                record[..8].copy_from_slice(&host::now_ns().to_le_bytes());
                let partition = (sent % u64::from(self.kafka.partitions)) as i32;
                let to = BaseRecord::<(), [u8], ()>::to(&self.kafka.topic).partition(partition);
                producer.send(to.payload(&record)).map_err(|(error, _)| error)?;
                sent += 1;
            }
            producer.poll(Duration::from_micros(200));
        };
        while counts.done.load(Ordering::Relaxed) < sent {
            producer.poll(Duration::from_millis(1));
            ensure!(host::now_ns() < end.0 + LAST_RECORDS_TIMEOUT_NS, "Kafka does not answer");
        }
        ensure!(counts.failed.load(Ordering::Relaxed) == 0, "Kafka refused records");
        let (from, before) = start.context("too short")?;
        let (count, wall_ns) = (end.1 - before, end.0 - from);
        Ok(Outcome { count, wall_ns, offered: sent, ..Outcome::default() })
    }

    fn consume(&self, reads: &AtomicBool, stop: &AtomicBool) -> Result<Histogram<u64>> {
        let mut config = common(&self.kafka);
        config.set("fetch.wait.max.ms", "100").set("enable.auto.commit", "false");
        let consumer = BaseConsumer::from_config(&config)?;
        let mut list = TopicPartitionList::new();
        for partition in 0..self.kafka.partitions {
            // The end is resolved before anything is sent, so it does not move.
            let (_, end) =
                consumer.fetch_watermarks(&self.kafka.topic, partition as i32, WATERMARK_TIMEOUT)?;
            list.add_partition_offset(&self.kafka.topic, partition as i32, Offset::Offset(end))?;
        }
        consumer.assign(&list)?;
        reads.store(true, Ordering::Release);
        let mut times = Histogram::new_with_bounds(1, 120_000_000, 3)?;
        let began = host::now_ns();
        while !stop.load(Ordering::Acquire) {
            let Some(message) = consumer.poll(Duration::from_millis(10)) else { continue };
            let (message, now) = (message?, host::now_ns());
            let stamp = message.payload().and_then(<[u8]>::first_chunk).context("an empty record")?;
            let sent = u64::from_le_bytes(*stamp);
            if sent > began + WARM_UP_NS {
                times.saturating_record((now.saturating_sub(sent) / 1000).max(1));
            }
        }
        Ok(times)
    }
}

fn common(kafka: &KafkaConfig) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka.brokers.join(",")).set("socket.nagle.disable", "true");
    config.set("group.id", format!("{}.bare", kafka.group));
    config
}

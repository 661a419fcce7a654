//! A log that lost records at its end or at its beginning.

use std::collections::BTreeMap;

use prost::Message as _;
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
    producer::{FutureProducer, FutureRecord},
};
use tidegate::bus::partition_of;
use tidegate_protocol::{
    Code,
    codec::Wire,
    id::{ConversationId, UserId},
    pb,
    record::RECORD_VERSION,
};

use super::{Cluster, ask, eventually, history, send, send_until_acked};

const USERS: usize = 24;

/// Returns the conversations of each partition.
fn conversations() -> BTreeMap<u32, Vec<usize>> {
    let mut found: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for n in 0..USERS {
        let user = |name: &str| UserId::new(&format!("{name}-{n}")).expect("a valid id");
        let id = ConversationId::direct(&user("peer"), &user("user"));
        found.entry(partition_of(&id, 4)).or_default().push(n);
    }
    found
}

struct Kafka {
    config: ClientConfig,
    topic: String,
    runtime: tokio::runtime::Runtime,
}

impl Kafka {
    fn of(cluster: &Cluster) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.brokers());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Self { config, topic: cluster.topic().to_owned(), runtime: runtime.expect("a runtime") }
    }

    /// Deletes all records of a partition.
    fn delete_all(&self, partition: u32) {
        let admin: AdminClient<DefaultClientContext> = self.config.create().expect("Kafka is up");
        let mut upto = TopicPartitionList::new();
        upto.add_partition_offset(&self.topic, partition.cast_signed(), Offset::End).expect("a list");
        let deleted = self.runtime.block_on(admin.delete_records(&upto, &AdminOptions::new()));
        let deleted = deleted.expect("Kafka answers");
        deleted.elements().iter().for_each(|it| it.error().expect("the records are deleted"));
    }

    /// Appends a record of no conversation; no owner archives it while no node runs.
    fn append(&self, partition: u32, bytes: &[u8]) {
        let producer: FutureProducer = self.config.create().expect("Kafka is up");
        let record = FutureRecord::<(), _>::to(&self.topic).partition(partition.cast_signed()).payload(bytes);
        let sent = self.runtime.block_on(producer.send(record, std::time::Duration::from_secs(10)));
        sent.expect("Kafka accepts the record");
    }
}

#[test]
fn log_that_lost_records_stops_only_those_partitions() {
    let mut cluster = Cluster::start(1, &["timing.reply_ms=1500"]);
    let conversations = conversations();
    assert_eq!(conversations.len(), 4, "each partition has a conversation: {conversations:?}");
    let login = |n: usize, cluster: &Cluster| cluster.login(0, Wire::Tcp, &format!("user-{n}"));
    for n in 0..USERS {
        let mut client = login(n, &cluster);
        for nth in 1..=3 {
            assert_eq!(client.text(&format!("peer-{n}"), &format!("m{nth}"), &format!("m{nth}")), nth);
        }
    }
    cluster.kill(0);
    let kafka = Kafka::of(&cluster);
    // Partition 0 loses only archived records; 1 also loses a record that is not archived.
    kafka.delete_all(0);
    kafka.append(1, b"?");
    kafka.delete_all(1);
    // The logs of 2 and 3 end before their archived position: by one record, and by several.
    for (partition, missing) in [(2, 1), (3, 4)] {
        let end = "log_offset = log_offset + ";
        cluster.execute(&format!("UPDATE partitions SET {end}{missing} WHERE partition = {partition}"));
    }
    let stands = |cluster: &Cluster| {
        let offset = |partition| format!("SELECT log_offset FROM partitions WHERE partition = {partition}");
        ([1, 2, 3].map(|it| cluster.number(&offset(it))), cluster.number("SELECT count(*) FROM messages"))
    };
    let before = stands(&cluster);
    for run in 0..2_i64 {
        cluster.restart(0);
        eventually("the damaged partitions stop, and the others continue", || {
            let node = cluster.node(0);
            (node.stderr().matches("LOG_REPLACED").count() >= 3).then_some(())
        });
        cluster.node(0).metric_becomes("partitions_owned", 1.0);
        let said = cluster.node(0).stderr();
        // New sends have made 2 as long as its archive, but it is another log.
        let end = if run == 0 { "ends at" } else { "is not the one that was archived" };
        for (partition, why) in [(1, "were deleted unarchived"), (2, end), (3, "ends at")] {
            let of = format!("partition={partition}");
            let line = said.lines().find(|line| line.contains("LOG_REPLACED") && line.contains(&of));
            assert!(line.is_some_and(|line| line.contains(why)), "{partition}, {why}: {said}");
        }
        // No run resets anything.
        assert_eq!(stands(&cluster), (before.0, before.1 + run * conversations[&0].len() as i64));
        for n in &conversations[&0] {
            let nth = run.cast_unsigned() + 4;
            let mut client = login(*n, &cluster);
            assert_eq!(send_until_acked(&mut client, &format!("peer-{n}"), &format!("m{nth}")).0, nth);
        }
        for partition in 1..4 {
            let n = conversations[&partition][0];
            let mut client = login(n, &cluster);
            let refused = client.refused(ask::send(send(&format!("peer-{n}"), "m4", "m4")));
            assert!(matches!(refused, Code::Unknown | Code::BusUnavailable), "{partition}: {refused:?}");
            assert_eq!(history(&mut client, &format!("d:peer-{n}:user-{n}")).len(), 3);
        }
        cluster.kill(0);
    }
}

#[test]
fn undecodable_records_are_counted_and_skipped() {
    let mut cluster = Cluster::start(1, &[]);
    let kafka = Kafka::of(&cluster);
    let conversations = conversations();
    // Two conversations of one partition.
    let (partition, users) = conversations.iter().find(|(_, users)| users.len() > 1).expect("more than four");
    let mut clients: Vec<_> =
        users[..2].iter().map(|n| (*n, cluster.login(0, Wire::Tcp, &format!("user-{n}")))).collect();
    let future = pb::Record { version: RECORD_VERSION + 1, ..pb::Record::default() }.encode_to_vec();
    // Noise, an empty record, and what a node of a later version may write.
    let poison: [&[u8]; 3] = [&[0xff, 0, 0xfe], b"", &future];
    for nth in 1..=3 {
        for (n, client) in &mut clients {
            assert_eq!(client.text(&format!("peer-{n}"), &format!("m{nth}"), &format!("m{nth}")), nth);
        }
        poison.iter().for_each(|bytes| kafka.append(*partition, bytes));
        cluster.node(0).metric_becomes("records_quarantined_total", 3.0 * nth as f64);
    }
    // The last of them are after the archived end: the next owner may read them again, and is not stuck either.
    cluster.kill(0);
    cluster.restart(0);
    cluster.all_owned();
    let expected: Vec<_> = (1..=4).map(|nth| (nth, format!("m{nth}"))).collect();
    for n in &users[..2] {
        let mut client = cluster.login(0, Wire::Tcp, &format!("user-{n}"));
        assert_eq!(client.text(&format!("peer-{n}"), "m4", "m4"), 4);
        assert_eq!(history(&mut client, &format!("d:peer-{n}:user-{n}")), expected);
    }
}

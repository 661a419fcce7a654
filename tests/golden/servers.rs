//! State of two killed nodes on Kafka, Redis and Postgres: today's nodes continue with it.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate::{
    bus::{Bus as _, KafkaBus},
    config, metrics,
};
use tidegate_protocol::{codec::Wire, machine::ledger::LEDGER_NEWEST, pb};

use crate::{
    convert::lacks,
    folder::{Folder, versions},
    kafka_records, redis_rows,
    redis_rows::Row,
    support::{Client, Cluster, ServerBody, ask, eventually, eventually_within, hello, send, service_text},
    world,
};

/// Plain `pg_dump` of the nodes' database, with rows.
const DUMP: &str = "postgres.sql.gz";

/// Replies of the version's nodes about all of it, after a restart.
const VIEW: &str = "servers-view.json";

/// Sends that were appended and not archived when the nodes were killed.
const UNDECIDED: [(&str, &str); 3] = [("bob", "u1"), ("g:team", "u2"), ("bob", "u3")];

/// Send of a non-member of the team: it stays refused, also after a join.
const REFUSED: (&str, &str, &str) = ("zoe", "z1", "let me in");

/// Content of [`VIEW`].
#[derive(Deserialize, Serialize)]
struct View {
    /// Reply of [`world::view`].
    world: Value,
    /// Acks of [`UNDECIDED`], sent again.
    decided: Vec<Value>,
    /// Next id of a chain.
    chain: String,
    /// Code of [`REFUSED`], sent again.
    refused: String,
}

fn sets() -> Vec<String> {
    let settings = [
        ("limits.small_group_max", world::SMALL_GROUP_MAX.to_string()),
        // Every record has its trace in its headers.
        ("trace.per_second", "10000".to_owned()),
        ("log.rules_settle_ms", "5000".to_owned()),
        ("timing.order_timeout_ms", "1000".to_owned()),
    ];
    settings.into_iter().map(|(key, value)| format!("{key}={value}")).collect()
}

/// Two nodes that see each other and use the newest rules, and users who have exchanged messages.
struct Talk {
    cluster: Cluster,
    /// Connected clients: ann on the first node, bob and fay on the second. Fay's device does not reconnect.
    people: [Client; 3],
}

fn talk() -> Talk {
    let sets = sets();
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let cluster = Cluster::start(2, &sets);
    cluster.all_linked();
    cluster.all_sure();
    eventually_within(Duration::from_secs(30), "the newest rules are in force", || {
        let oldest = cluster.number("SELECT coalesce(min(ledger_version), 0)::bigint FROM partitions");
        (oldest == i64::from(LEDGER_NEWEST)).then_some(())
    });
    world::live(cluster.node(0), cluster.node(1));
    let mut people = [(0, "ann", "phone"), (1, "bob", "phone"), (1, "fay", "watch")]
        .map(|(nth, user, device)| cluster.node(nth).login(Wire::Tcp, user, device));
    for client in &mut people {
        assert!(matches!(client.ask(ask::join("hall")), ServerBody::Done(_)));
    }
    people[0].text("r:hall", "r1", "wave");
    blocked(&cluster);
    refused(&cluster);
    Talk { cluster, people }
}

/// Leaves a chain that waits for an id, which is an event.
fn blocked(cluster: &Cluster) {
    let mut gus = cluster.node(1).login_chained(Wire::JsonLine, "gus", "phone", "w1");
    gus.say(ask::send(pb::Send { next_id: "w3".into(), ..send("g:town", "w2", "held") }));
    gus.expect_notice();
}

/// Leaves an id that its owner has refused, and joins its sender.
fn refused(cluster: &Cluster) {
    let (user, id, text) = REFUSED;
    let refused = || cluster.number("SELECT count(*) FROM keys WHERE refused <> 0");
    let before = refused();
    kafka_records::append_refused(cluster, user, id, text);
    eventually("the send is refused", || (refused() == before + 1).then_some(()));
    cluster.node(0).change_members("team", &json!({"add": [user], "requestId": "r6"}));
}

impl Talk {
    /// Waits until all nodes are idle, and reads the keys in Redis.
    fn rows(&self) -> Vec<Row> {
        let prefix = self.cluster.name();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(redis_rows::more(prefix));
        eventually_within(
            Duration::from_secs(20),
            "chains are saved, and nodes report their positions",
            || {
                let runs = redis_rows::dump(&format!("{prefix}:run"));
                let reports = runs.iter().filter(|row| format!("{row:?}").contains("behind_ms")).count();
                let chains = redis_rows::dump(&format!("{prefix}:chain"));
                let is_saved = chains.iter().any(|row| row.key == "{ann}:tablet");
                (is_saved && reports == 2).then_some(())
            },
        );
        redis_rows::dump(prefix)
    }

    /// Appends messages that are not archived, and kills the nodes.
    fn end(mut self) -> Cluster {
        let before: i64 = kafka_records::ends(&self.cluster, "log").iter().sum();
        let held = self.cluster.hold_archive();
        for (to, id) in UNDECIDED {
            self.people[0].say(ask::send(send(to, id, "undecided")));
        }
        eventually("the messages are in the log", || {
            let now: i64 = kafka_records::ends(&self.cluster, "log").iter().sum();
            (now == before + UNDECIDED.len() as i64).then_some(())
        });
        self.cluster.kill(0);
        self.cluster.kill(1);
        // The last request of a killed node must not run when the lock is released.
        let others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
                      AND query NOT LIKE 'BEGIN; SELECT FROM partitions FOR UPDATE%'";
        self.cluster.execute(&format!("SELECT pg_terminate_backend(pid) {others}"));
        eventually("their sessions end", || {
            (self.cluster.number(&format!("SELECT count(*) {others}")) == 0).then_some(())
        });
        drop(held);
        self.cluster
    }
}

/// Starts both nodes again, and queries everything.
fn go_on(cluster: &mut Cluster) -> View {
    cluster.start_nodes(0..2);
    cluster.all_owned();
    let mut ann = cluster.login(0, Wire::Tcp, "ann");
    let again = |(to, id): (&str, &str)| -> Value {
        let send = pb::Send { attempt: 1, ..send(to, id, "undecided") };
        eventually(&format!("{id} is decided"), || match ann.ask(ask::send(send.clone())) {
            ServerBody::SendAck(ack) => {
                Some(json!({"id": id, "seq": ack.seq, "time": ack.time, "again": ack.duplicate}))
            }
            ServerBody::Error(error) if error.temporary => None,
            other => panic!("{id}: {other:?}"),
        })
    };
    let decided = UNDECIDED.map(again).to_vec();
    let mut tablet = Client::connect(cluster.node(1).address(), Wire::Tcp);
    let settings = Some(pb::Settings { chain: true, ..pb::Settings::default() });
    tablet.login(pb::Hello { settings, ..hello(&cluster.node(1).token("ann"), "tablet") });
    let (user, id, text) = REFUSED;
    let again = ask::send(pb::Send { attempt: 1, ..send("g:team", id, text) });
    let refused = cluster.login(0, Wire::Tcp, user).refused(again).name().to_owned();
    View { world: world::view(cluster.node(1)), decided, chain: tablet.welcome.next_id, refused }
}

fn program(name: &str) -> Command {
    let programs = service_text("postgres", "programs");
    Command::new(PathBuf::from(programs).join(name))
}

fn url(cluster: &Cluster) -> String {
    cluster.setting("postgres.url=").to_owned()
}

fn good(output: Output) -> Vec<u8> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Runs a program with the given input.
fn pipe(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.expect("it runs");
    let (mut to, input) = (child.stdin.take().expect("a pipe"), input.to_vec());
    let writing = std::thread::spawn(move || to.write_all(&input));
    let output = child.wait_with_output().expect("it ends");
    writing.join().expect("no panic").expect("the program reads all input");
    good(output)
}

/// Records the state of two killed nodes, and their replies after a restart.
pub(crate) fn write(folder: &Folder) {
    let talk = talk();
    redis_rows::write(folder, &talk.rows());
    let mut cluster = talk.end();
    folder.write_list(kafka_records::FILE, &kafka_records::dump(&cluster));
    let words = ["--no-owner", "--no-privileges", "--dbname"];
    let dumped = good(program("pg_dump").args(words).arg(url(&cluster)).output().expect("it runs"));
    folder.write(DUMP, &pipe(Command::new("gzip").args(["-9", "--no-name"]), &dumped));
    let view = serde_json::to_value(go_on(&mut cluster)).expect("plain data");
    folder.write(VIEW, format!("{view:#}\n").as_bytes());
}

/// Fills the database of a cluster whose nodes never ran.
fn restore_rows(cluster: &Cluster, folder: &Folder) {
    let dump = pipe(Command::new("gzip").arg("-dc"), &folder.bytes(DUMP));
    pipe(program("psql").args(["--quiet", "--set", "ON_ERROR_STOP=1", "--dbname"]).arg(url(cluster)), &dump);
}

/// Returns the id of the present log.
fn log_id(cluster: &Cluster) -> u128 {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let kafka = config::KafkaConfig {
            brokers: vec![cluster.brokers().to_owned()],
            topic: cluster.topic().to_owned(),
            partitions: 4,
            ..config::KafkaConfig::default()
        };
        let bus = KafkaBus::connect(&kafka, Duration::from_secs(5), &metrics::install().0).await;
        bus.expect("Kafka answers").bounds(0).await.expect("a partition").topic.0
    })
}

#[test]
fn nodes_continue_with_the_state_of_every_version() {
    for folder in versions() {
        let sets = sets();
        let mut cluster = Cluster::prepare(2, &sets.iter().map(String::as_str).collect::<Vec<_>>());
        let records: Vec<kafka_records::Golden> = folder.json(kafka_records::FILE);
        let rows: Vec<Row> = folder.json(redis_rows::FILE);
        kafka_records::restore_log(&cluster, &records);
        restore_rows(&cluster, &folder);
        // Kafka treats a log restored from a backup as another log.
        cluster.execute(&format!("UPDATE partitions SET topic = '{:032x}'", log_id(&cluster)));
        redis_rows::load(cluster.name(), &rows, false);
        let view = serde_json::to_value(go_on(&mut cluster)).expect("plain data");
        assert_eq!(lacks(&folder.json(VIEW), &view), None, "{}: {view:#}", folder.version);
        // The rows of the killed nodes are swept, and their departures published.
        let came = records
            .iter()
            .rev()
            .find(|it| it.means["type"] == "tidegate.online" && it.means["subject"] == "fay");
        let came = came.expect("she came").means["id"].as_str().expect("text").to_owned();
        kafka_records::await_event(&cluster, &came.replace("online/", "offline/"));
    }
}

#[test]
fn nodes_write_state_that_every_version_reads() {
    let talk = talk();
    let rows = talk.rows();
    let records = kafka_records::dump(&talk.cluster);
    let undecided = UNDECIDED.map(|(_, id)| id.to_owned());
    for folder in versions() {
        redis_rows::compare(&folder, &rows);
        kafka_records::compare(&folder, &records, &undecided);
    }
}

/// Undoes the migrations after the first one.
const FIRST_TABLES: &str = "
DROP TABLE import;
DROP TABLE IF EXISTS revocations, revocation_number, blocks, block_version, guard, guard_counts,
    guard_version;
DROP INDEX heads_of_partition, heads_with_settings;
ALTER TABLE heads DROP COLUMN partition;
DELETE FROM refinery_schema_history WHERE version > 1";

/// Fingerprint of all rows that clients can query, without columns that a later version has added to them.
const ROWS: &str = "
SELECT ('x' || substr(md5(string_agg(line, '|' ORDER BY line)), 1, 15))::bit(60)::bigint FROM (
    SELECT 'message ' || (to_jsonb(m) - 'edited_seq' - 'edited_time')::text AS line FROM messages m UNION ALL SELECT 'member ' || m::text FROM members m
    UNION ALL SELECT 'stay ' || s::text FROM stays s UNION ALL SELECT 'device ' || d::text FROM devices d
    UNION ALL SELECT 'membership ' || m::text FROM memberships m UNION ALL SELECT 'mark ' || (to_jsonb(m) - ARRAY['push', 'bound_seq', 'bound_messages', 'bound_own'])::text FROM marks m
    UNION ALL SELECT 'wish ' || (to_jsonb(w) - 'push' - 'presence')::text FROM wishes w UNION ALL SELECT 'key ' || k::text FROM keys k
    UNION ALL SELECT 'floor ' || f::text FROM floors f
    UNION ALL SELECT 'head ' || (conversation, last_seq, messages, pruned_to, deleted_seq, settings, members)::text FROM heads
) AS rows";

#[test]
fn every_migration_keeps_existing_rows() {
    for folder in versions() {
        let sets = sets();
        let cluster = Cluster::prepare(1, &sets.iter().map(String::as_str).collect::<Vec<_>>());
        restore_rows(&cluster, &folder);
        let rows = cluster.number(ROWS);
        cluster.execute(FIRST_TABLES);
        assert_eq!(cluster.number(ROWS), rows, "no row is lost");
        let postgres = config::PostgresConfig { url: url(&cluster), ..config::PostgresConfig::default() };
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime
            .block_on(tidegate::store::PostgresStore::open(&postgres))
            .map(drop)
            .expect("the tables are migrated");
        assert_eq!(cluster.number(ROWS), rows, "{}", folder.version);
        assert!(cluster.number("SELECT max(version)::bigint FROM refinery_schema_history") >= 3);
        assert!(cluster.number("SELECT count(*) FROM messages") > 10, "the dump has rows");
    }
}

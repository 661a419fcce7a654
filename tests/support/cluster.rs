//! Nodes of one cluster as processes, over the real Kafka, Redis and Postgres of the test run.
//!
//! Each cluster has topics, a group, a prefix and a database of its own, so that many can run at the same time.

use std::{
    error::Error,
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use rdkafka::{
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
};
use rustix::process::Signal;
use tidegate::auth;
use tidegate_protocol::codec::Wire;
use tokio_postgres::NoTls;

use super::{
    Begun, Client, Process, WAIT_MAX, becomes, cluster_sets::cluster_sets, command, eventually,
    eventually_within, fresh_data, let_time_pass_since, services::service_text, unique_name,
};

/// Limit until each node owns its share: several join together, on a machine that runs other clusters.
const SHARE_TIMEOUT: Duration = Duration::from_secs(30);

/// Nodes of one cluster, killed when the test ends. Their database is dropped then; their keys in Redis and their
/// topics on Kafka stay until the services are stopped.
pub struct Cluster {
    /// `None` while a node is down.
    nodes: Vec<Option<Process>>,
    folder: PathBuf,
    sets: Vec<String>,
    /// Further settings of each node, by its number.
    own_sets: Vec<Vec<String>>,
    database: String,
    /// Address of the database `postgres`, from which the other one is dropped.
    server: String,
}

impl Cluster {
    /// Starts `count` nodes, `n1` and up, with four partitions and these `--set` values, and waits until each owns its
    /// share.
    pub fn start(count: usize, sets: &[&str]) -> Self {
        let mut cluster = Self::prepare(count, sets);
        cluster.start_nodes(0..count);
        cluster.all_shared();
        cluster
    }

    /// Prepares the services for `count` nodes, and starts none.
    pub fn prepare(count: usize, sets: &[&str]) -> Self {
        let name = format!("cluster_{}", unique_name());
        let folder = fresh_data();
        fs::create_dir_all(&folder).expect("the folder is created");
        let [key, secret] = ["token.key", "link.secret"].map(|file| folder.join(file));
        for file in [&key, &secret] {
            auth::create_key(file).expect("a key");
        }
        execute(&format!("CREATE DATABASE {name}"));
        let mut all = cluster_sets(&name, [&key, &secret], &service_text("kafka", "address"), &url(&name));
        let own = ["link.listen=127.0.0.1:0", "kafka.replication=1", "kafka.partitions=4"];
        all.push(format!("redis.urls=[{}]", service_text("redis7", "url")));
        all.extend(own.iter().chain(sets).map(|set| (*set).to_owned()));
        let (own_sets, server) = (vec![Vec::new(); count], url("postgres"));
        let mut cluster = Self { nodes: Vec::new(), folder, sets: all, own_sets, database: name, server };
        cluster.ensure_topics(count);
        cluster.nodes.resize_with(count, || None);
        cluster
    }

    /// Sets the settings of one node from its next start on, replacing earlier ones.
    pub fn set_for(&mut self, nth: usize, sets: &[&str]) {
        self.own_sets[nth] = sets.iter().map(|set| (*set).to_owned()).collect();
    }

    /// Returns the key file of all tokens.
    pub fn token_key(&self) -> PathBuf {
        self.folder.join("token.key")
    }

    /// Runs a command with the configuration of the nodes, except for settings that it sets itself. Returns whether it
    /// succeeded, and its output.
    pub fn tidegate(&self, words: &[&str]) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(words);
        let key = |set: &str| set.split_once('=').map(|(key, _)| key.to_owned());
        for set in self.sets.iter().filter(|set| !words.iter().any(|word| key(word) == key(set))) {
            command.args(["--set", set]);
        }
        let output = command.output().expect("the binary runs");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    /// Returns the topic of the log.
    pub fn topic(&self) -> &str {
        self.setting("kafka.topic=")
    }

    /// Returns the topic of events.
    pub fn event_topic(&self) -> &str {
        self.setting("kafka.event_topic=")
    }

    /// Returns the prefix of its keys in Redis.
    pub fn name(&self) -> &str {
        &self.database
    }

    /// Returns the address of Kafka.
    pub fn brokers(&self) -> &str {
        self.setting("kafka.brokers=").trim_matches(['[', ']'])
    }

    /// Returns the `postgres.url` of a node that uses another address.
    pub fn postgres_by(&self, address: SocketAddr) -> String {
        let user = service_text("postgres", "user");
        format!("postgres.url=postgres://{user}@{address}/{}", self.database)
    }

    /// Returns the value that all nodes share for a key, which ends with `=`.
    pub fn setting(&self, key: &str) -> &str {
        self.sets.iter().rev().find_map(|set| set.strip_prefix(key)).expect("the key is set")
    }

    /// Executes one statement in the database of the nodes.
    pub fn execute(&self, sql: &str) {
        execute_in(&self.database, sql);
    }

    /// Returns a running node, counted from 0.
    pub fn node(&self, nth: usize) -> &Process {
        self.nodes[nth].as_ref().expect("it runs")
    }

    /// Opens a logged-in connection without a chain.
    pub fn login(&self, nth: usize, wire: Wire, user: &str) -> Client {
        self.node(nth).login(wire, user, "phone")
    }

    /// Kills a node, as a crash does.
    pub fn kill(&mut self, nth: usize) {
        drop(self.nodes[nth].take());
    }

    /// Stops a node as an operator does; returns its exit code.
    pub fn stop(&mut self, nth: usize) -> Option<i32> {
        self.node(nth).signal(Signal::TERM);
        self.exit(nth)
    }

    /// Waits until a node has ended; returns its exit code.
    pub fn exit(&mut self, nth: usize) -> Option<i32> {
        let mut node = self.nodes[nth].take().expect("it runs");
        node.exit().code()
    }

    /// Starts a node, the first time or again.
    pub fn restart(&mut self, nth: usize) {
        self.start_nodes([nth]);
    }

    /// Starts nodes together, so that they join in few rebalances, and waits until all of them serve. Their order is
    /// random.
    pub fn start_nodes(&mut self, nths: impl IntoIterator<Item = usize>) {
        let begun: Vec<(usize, Begun)> = nths.into_iter().map(|nth| (nth, self.begin(nth))).collect();
        for (nth, node) in begun {
            self.nodes[nth] = Some(node.serves());
        }
    }

    /// Starts the nth node without waiting until it serves; [`Self::has`] adds it.
    pub fn begin(&self, nth: usize) -> Begun {
        let data = self.folder.join(format!("n{}", nth + 1));
        fs::create_dir_all(&data).expect("the folder is created");
        fs::copy(self.token_key(), data.join("token.key")).expect("a key");
        let id = format!("node.id=n{}", nth + 1);
        let all = self.sets.iter().chain([&id]).chain(&self.own_sets[nth]);
        let sets: Vec<&str> = all.map(String::as_str).collect();
        Process::begin(&data, command(&data, &sets))
    }

    /// Adds the nth node, which serves.
    pub fn has(&mut self, nth: usize, node: Process) {
        self.nodes[nth] = Some(node);
    }

    /// Returns the positions of all owners as the first node reports them.
    pub fn owners(&self) -> Vec<serde_json::Value> {
        let said: serde_json::Value =
            serde_json::from_str(&self.node(0).http("GET", "/v1/nodes", "")).expect("JSON");
        let nodes = said["nodes"].as_array().expect("a list").iter();
        nodes.flat_map(|node| node["stands"].as_array().expect("a list").clone()).collect()
    }

    /// Keeps all owners from archiving until the result is dropped; everything else can be read. Their statements wait for rows,
    /// inside their transactions: for a locked table they would wait before, while they are prepared.
    pub fn hold_archive(&self) -> Held {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let client = runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&url(&self.database), NoTls).await.expect("Postgres is up");
            tokio::spawn(connection);
            let lock = "BEGIN; SELECT FROM partitions FOR UPDATE";
            client.batch_execute(lock).await.expect("the tables exist");
            client
        });
        Held { _client: client, _runtime: runtime }
    }

    /// Waits until every partition has an owner; the first node may own all of them, and be about to release some.
    pub fn all_owned(&self) {
        self.all_owned_within(WAIT_MAX);
    }

    /// Waits for the same with another limit.
    pub fn all_owned_within(&self, within: Duration) {
        eventually_within(within, "every partition has an owner", || {
            (self.owned().iter().sum::<f64>() >= 4.0).then_some(())
        });
    }

    /// Returns the number of partitions of each running node.
    fn owned(&self) -> Vec<f64> {
        self.nodes.iter().flatten().map(|node| node.metric("partitions_owned")).collect()
    }

    /// Returns one number from its database.
    pub fn number(&self, sql: &str) -> i64 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&url(&self.database), NoTls).await.expect("Postgres is up");
            tokio::spawn(connection);
            client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error}")).get(0)
        })
    }

    /// Sends Redis a command under this cluster's prefix, which replaces `{}` in an argument.
    pub fn redis<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let url = service_text("redis7", "url");
        let client = redis::Client::open(url).expect("a valid address");
        let mut asked = redis::cmd(words[0]);
        for word in &words[1..] {
            asked.arg(word.replace("{}", &self.database));
        }
        let mut connection = client.get_connection().expect("Redis is up");
        asked.query(&mut connection).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Deletes and recreates the topic of the log, which no operator should do.
    pub fn replace_log(&self) {
        self.replace_topic("log");
    }

    /// Deletes and recreates any topic of this cluster: `log`, or `node.n1`.
    pub fn replace_topic(&self, name: &str) {
        self.delete_topic(name);
        self.create_topic(name);
    }

    /// Deletes a topic of this cluster.
    pub fn delete_topic(&self, name: &str) {
        let topic = format!("{}.{name}", self.database);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut config = rdkafka::ClientConfig::new();
        config.set("bootstrap.servers", service_text("kafka", "address"));
        let admin: AdminClient<DefaultClientContext> = config.create().expect("Kafka is up");
        let options = AdminOptions::new();
        let deleted = runtime.block_on(admin.delete_topics(&[&topic], &options)).expect("Kafka answers");
        assert!(deleted[0].is_ok(), "{deleted:?}");
    }

    /// Creates a topic that was deleted.
    pub fn create_topic(&self, name: &str) {
        let topic = format!("{}.{name}", self.database);
        // The broker takes its time to delete a topic.
        eventually("the topic is recreated", || {
            let said = self.try_ensure_topics(self.nodes.len()).ok()?;
            said.contains(&format!("{topic}  created")).then_some(())
        });
    }

    /// Waits until each running node owns its share, so that no partition is about to move.
    pub fn all_shared(&self) {
        self.all_owned_within(SHARE_TIMEOUT);
        let nodes = self.nodes.iter().flatten().count();
        let (least, most) = ((4 / nodes) as f64, 4_usize.div_ceil(nodes) as f64);
        becomes(
            SHARE_TIMEOUT,
            "each node owns its share",
            || self.owned(),
            |owned| {
                let is_share = owned.iter().all(|it| (least..=most).contains(it));
                is_share && owned.iter().sum::<f64>() == 4.0
            },
        );
    }

    /// Waits until every node has a link to each of the others.
    pub fn all_linked(&self) {
        let others = self.nodes.iter().flatten().count() as f64 - 1.0;
        self.nodes.iter().flatten().for_each(|node| node.metric_becomes("link_peers", others));
    }

    /// Waits until no node doubts its peer list. A node that could not reach Redis at first does, for a lease and a
    /// refresh, and its owners archive first meanwhile.
    pub fn all_sure(&self) {
        let began = Instant::now();
        if self.nodes.iter().flatten().any(|node| node.metric("routes_lost_total") > 0.0) {
            let_time_pass_since(began, "a lease and a look, for the doubt to end", Duration::from_secs(15));
        }
    }

    fn ensure_topics(&self, count: usize) {
        if let Err(why) = self.try_ensure_topics(count) {
            panic!("{why}");
        }
    }

    fn try_ensure_topics(&self, count: usize) -> Result<String, String> {
        let names: Vec<String> = (1..=count).map(|nth| format!("n{nth}")).collect();
        let nodes = names.iter().flat_map(|name| ["--node", name]);
        let words: Vec<&str> = ["topics", "ensure"].into_iter().chain(nodes).collect();
        let (fine, said) = self.tidegate(&words);
        if fine { Ok(said) } else { Err(said) }
    }
}

/// A lock that keeps all owners from archiving until it is dropped.
pub struct Held {
    _client: tokio_postgres::Client,
    _runtime: tokio::runtime::Runtime,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        fs::remove_dir_all(&self.folder).ok();
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database);
        // The test may have failed: a second panic would abort it.
        if let Err(error) = try_execute(&self.server, &sql) {
            eprintln!("{sql}: {error}");
        }
    }
}

fn url(database: &str) -> String {
    let text = |field| service_text("postgres", field);
    format!("postgres://{}@{}/{database}", text("user"), text("address"))
}

/// Executes a statement in the database `postgres`.
fn execute(sql: &str) {
    execute_in("postgres", sql);
}

fn execute_in(database: &str, sql: &str) {
    try_execute(&url(database), sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
}

fn try_execute(url: &str, sql: &str) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        Ok(client.batch_execute(sql).await?)
    })
}

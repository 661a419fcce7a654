//! Brokers of Apache Kafka in KRaft mode, from the jars of Maven Central: one that is its own controller, or three that
//! elect one.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::{
    Start, certificate,
    process::{self, Process},
};
use crate::{
    shell::{self, Shell},
    tools::{self, Cached},
};

/// The last version whose tools are published: 4.4.0 lacks them.
const VERSION: &str = "4.3.0";
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Options of a small JVM that starts quickly, at the cost of its peak speed.
const JVM: &[&str] = &["-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];

/// Options with which Kafka's own scripts start a broker (`kafka-server-start.sh`, `kafka-run-class.sh`).
const PRODUCTION_JVM: &[&str] = &[
    "-Xms1g",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
];

pub(super) fn install(shell: &Shell) -> anyhow::Result<PathBuf> {
    tools::ensure_program(shell, "java", "default-jre-headless")?;
    tools::ensure_program(shell, "openssl", "openssl")?;
    let (pom, hashes) = (pom(), include_str!("../../tools/kafka-jars.sha256"));
    let folder = Cached::new("kafka", VERSION, &format!("{pom}{hashes}"))?.ensure(|folder| {
        tools::ensure_program(shell, "mvn", "maven")?;
        fs::write(folder.join("pom.xml"), &pom)?;
        let jars = folder.join("jars");
        let mut maven = shell.command("mvn");
        maven.args(["--quiet", "--batch-mode", "dependency:copy-dependencies", "-DincludeScope=runtime"]);
        maven.arg(format!("-DoutputDirectory={}", jars.display())).current_dir(folder);
        shell::run(&mut maven).with_context(|| {
            format!("getting the jars of Apache Kafka {VERSION} from Maven Central with mvn")
        })?;
        verify(shell, &jars, hashes)
    })?;
    Ok(folder.join("jars"))
}

/// Checks that every jar is one of the list, with its hash.
fn verify(shell: &Shell, jars: &Path, hashes: &str) -> anyhow::Result<()> {
    let list = jars.with_file_name("jars.sha256");
    fs::write(&list, hashes)?;
    let mut check = shell.command("sha256sum");
    check.args(["--check", "--strict", "--quiet"]).arg(&list).current_dir(jars);
    shell::output(&mut check).context("the jars of Kafka are not those of xtask/tools/kafka-jars.sha256")?;
    let (found, listed) = (fs::read_dir(jars)?.count(), hashes.lines().count());
    if found != listed {
        bail!("Maven brought {found} jars, xtask/tools/kafka-jars.sha256 lists {listed}");
    }
    Ok(())
}

fn pom() -> String {
    let dependency = |group, artifact, version| {
        format!(
            "    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
             <version>{version}</version></dependency>\n"
        )
    };
    let dependencies = [
        dependency("org.apache.kafka", "kafka_2.13", VERSION),
        dependency("org.apache.kafka", "kafka-tools", VERSION),
        dependency("org.slf4j", "slf4j-simple", "1.7.36"),
    ];
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\">\n  <modelVersion>4.0.0</modelVersion>\n  \
         <groupId>tidegate</groupId>\n  <artifactId>kafka-for-tests</artifactId>\n  <version>1</version>\n  \
         <packaging>pom</packaging>\n  <dependencies>\n{}  </dependencies>\n</project>\n",
        dependencies.concat()
    )
}

/// File of the first broker that all others read: the ports of the controllers and the id of the cluster.
const CLUSTER: &str = "cluster.json";

/// The file of each broker with its ports.
const BROKER: &str = "broker.json";

/// Starts the first broker.
pub(super) fn start(shell: &Shell, start: &Start<'_>) -> anyhow::Result<Process> {
    let brokers = shell.wanted.iter().filter(|name| name.starts_with("kafka"));
    let controllers = brokers.map(|_| process::free_port()).collect::<anyhow::Result<Vec<u16>>>()?;
    let mut id = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut id)?;
    // An id that begins with `-` would be taken for an option.
    id[0] &= 0x7f;
    let id = base64(id);
    fs::write(start.folder.join(CLUSTER), json!({"controllers": controllers, "id": id}).to_string())?;
    begin(shell, start, &id, controllers)
}

/// Starts a further broker.
pub(super) fn join(shell: &Shell, start: &Start<'_>) -> anyhow::Result<Process> {
    let (id, controllers) = cluster(start)?;
    begin(shell, start, &id, controllers)
}

/// The id of the cluster, and the ports of its controllers.
fn cluster(start: &Start<'_>) -> anyhow::Result<(String, Vec<u16>)> {
    let bytes = fs::read(start.sibling("kafka").join(CLUSTER)).context("there is no first broker")?;
    let ports: Value = serde_json::from_slice(&bytes)?;
    let id = ports["id"].as_str().context("no id")?.to_owned();
    Ok((id, serde_json::from_value(ports["controllers"].clone())?))
}

/// The number of the broker, from 1, as its folder is called.
fn number(start: &Start<'_>) -> usize {
    let name = start.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.trim_start_matches("kafka").parse().unwrap_or(1)
}

fn begin(shell: &Shell, start: &Start<'_>, cluster: &str, controllers: Vec<u16>) -> anyhow::Result<Process> {
    let secure = if controllers.len() == 1 { Some(SecureListeners::new()?) } else { None };
    let ways = (1..=WAYS).map(|_| Way::new()).collect::<anyhow::Result<Vec<_>>>()?;
    let way_ports: Vec<Value> = ways.iter().map(Way::to_json).collect();
    let secure_ports = secure.as_ref().map(SecureListeners::to_json);
    let ports = json!({"port": start.port, "doors": secure_ports, "ways": way_ports});
    fs::write(start.folder.join(BROKER), ports.to_string())?;
    if secure.is_some() {
        certificate::make(start.folder, None)?;
        let store = ["key.pem", "cert.pem"].map(|name| fs::read_to_string(start.folder.join(name)));
        let [key, certificate] = store;
        fs::write(start.folder.join("store.pem"), key? + &certificate?)?;
        fs::write(start.folder.join("password"), PASSWORD)?;
    }
    let folder = start.folder.to_owned();
    let broker = Broker { id: number(start), port: start.port, controllers, secure, ways, folder };
    let settings = start.folder.join("server.properties");
    fs::write(&settings, broker.properties())?;
    let mut format = java(JVM, start.program);
    format.args(["kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config"]);
    format.arg(&settings);
    if broker.secure.is_some() {
        format.arg("--add-scram").arg(format!("SCRAM-SHA-512=[name={USER},password={PASSWORD}]"));
    }
    shell::output(&mut format)?;
    let jvm = if shell.are_measured { PRODUCTION_JVM } else { JVM };
    let mut broker = java(jvm, start.program);
    broker.arg("kafka.Kafka").arg(&settings).current_dir(start.folder);
    Process::start(&mut broker, &start.log())
}

fn java(jvm: &[&str], jars: &Path) -> Command {
    let mut command = Command::new("java");
    command.args(jvm).arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn").arg("-cp").arg(jars.join("*"));
    command
}

/// User of the listeners that authenticate.
const USER: &str = "tidegate";
/// Further user of the listener with passwords: a consumer of the topic of messages, as docs/events.md names it.
const CONSUMER: &str = "search";
const PASSWORD: &str = "tidal-secret";

/// Ports of listeners that authenticate: by a password, by a certificate, by a password over TLS.
struct SecureListeners {
    sasl: u16,
    tls: u16,
    both: u16,
}

impl SecureListeners {
    fn new() -> anyhow::Result<Self> {
        let (sasl, tls, both) = (process::free_port()?, process::free_port()?, process::free_port()?);
        Ok(Self { sasl, tls, both })
    }

    fn to_json(&self) -> Value {
        let Self { sasl, tls, both } = self;
        json!({"sasl": sasl, "tls": tls, "both": both})
    }

    /// The listeners, as the settings want them.
    fn listeners(&self) -> String {
        let Self { sasl, tls, both } = self;
        format!(",SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls},BOTH://127.0.0.1:{both}")
    }

    /// Returns the settings. Clients of the plain listeners may do everything, and others what no list of rights forbids.
    fn properties(&self, folder: &Path) -> String {
        let login = "org.apache.kafka.common.security";
        let [store, trusted] = ["store.pem", "ca.pem"].map(|name| folder.join(name).display().to_string());
        format!(
            "listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config={login}.plain.PlainLoginModule required user_{USER}=\"{PASSWORD}\" user_{CONSUMER}=\"{PASSWORD}\";
listener.name.both.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.both.scram-sha-512.sasl.jaas.config={login}.scram.ScramLoginModule required;
listener.name.tls.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
ssl.keystore.type=PEM
ssl.keystore.location={store}
ssl.truststore.type=PEM
ssl.truststore.location={trusted}
"
        )
    }
}

/// Nodes in a chaos run of a cluster, each of which gets a listener of its own.
const WAYS: usize = 3;

/// Port that is advertised as another one, for a proxy: brokers redirect their clients to the advertised ports, so a proxy
/// before the plain listener would be bypassed at once.
struct Way {
    listens: u16,
    advertised: u16,
}

impl Way {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { listens: process::free_port()?, advertised: process::free_port()? })
    }

    fn to_json(&self) -> Value {
        let [listens, advertised] = [self.listens, self.advertised].map(|port| format!("127.0.0.1:{port}"));
        json!({"listens": listens, "advertised": advertised})
    }
}

/// One of the brokers.
struct Broker {
    /// The number of the broker, from 1.
    id: usize,
    port: u16,
    /// The ports of all controllers: each broker has a vote.
    controllers: Vec<u16>,
    /// Listeners that authenticate clients; only a single broker has them.
    secure: Option<SecureListeners>,
    ways: Vec<Way>,
    folder: PathBuf,
}

impl Broker {
    /// Returns the settings: no automatic topics, no delay when a group forms, little preallocation.
    fn properties(&self) -> String {
        let Self { id, port, controllers, secure, ways, folder } = self;
        let ways = |text: fn(usize, &Way) -> String| -> String {
            (1..).zip(ways).map(|(nth, way)| text(nth, way)).collect()
        };
        let listen = ways(|nth, way| format!(",WAY{nth}://127.0.0.1:{}", way.listens));
        let advertise = ways(|nth, way| format!(",WAY{nth}://127.0.0.1:{}", way.advertised));
        let plain = ways(|nth, _| format!(",WAY{nth}:PLAINTEXT"));
        let guarded = secure.as_ref().map(SecureListeners::listeners).unwrap_or_default();
        let security = secure.as_ref().map(|secure| secure.properties(folder)).unwrap_or_default();
        let (of, controller) = (controllers.len(), controllers[id - 1]);
        let voters = (1..).zip(controllers).map(|(id, port)| format!("{id}@127.0.0.1:{port}"));
        let voters = voters.collect::<Vec<_>>().join(",");
        // A confirmed record is on at least two of three brokers.
        let in_step = if of > 2 { 2 } else { 1 };
        format!(
            "process.roles=broker,controller
node.id={id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{guarded}{listen}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{guarded}{advertise}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,BOTH:SASL_SSL{plain}
{security}log.dirs={}
auto.create.topics.enable=false
default.replication.factor={of}
min.insync.replicas={in_step}
offsets.topic.replication.factor={of}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={of}
transaction.state.log.min.isr={in_step}
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor={of}
share.coordinator.state.topic.min.isr={in_step}
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.index.size.max.bytes=1048576
log.cleaner.dedupe.buffer.size=8388608
num.network.threads=2
num.io.threads=4
",
            folder.join("data").display()
        )
    }
}

/// The bytes in the alphabet of URLs, without padding, as Kafka writes a UUID.
fn base64(bytes: [u8; 16]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let number = u128::from_be_bytes(bytes);
    // 22 digits of 6 bits; the last 4 bits are padding.
    let digit = |at: u32| if at == 21 { (number << 4) as usize } else { (number >> (122 - 6 * at)) as usize };
    (0..22).map(|at| char::from(ALPHABET[digit(at) & 63])).collect()
}

/// Fails unless the broker is ready. The first of several brokers can't be ready alone, because no controller is elected
/// yet: it only has to listen. The last one is ready when all are.
pub(super) fn answers(start: &Start<'_>) -> anyhow::Result<Value> {
    let (_, controllers) = cluster(start)?;
    let (id, last) = (number(start), controllers.len());
    if id < last {
        TcpStream::connect(("127.0.0.1", controllers[id - 1]))?;
    } else {
        let name = |id: usize| if id == 1 { "kafka".to_owned() } else { format!("kafka{id}") };
        for id in 1..=last {
            let ports: Value = serde_json::from_slice(&fs::read(start.sibling(&name(id)).join(BROKER))?)?;
            let port = ports["port"].as_u64().context("no port")?.try_into()?;
            knows_versions(port).with_context(|| name(id))?;
        }
    }
    let ports: Value = serde_json::from_slice(&fs::read(start.folder.join(BROKER))?)?;
    let address = |name: &str| ports["doors"][name].as_u64().map(|port| format!("127.0.0.1:{port}"));
    Ok(json!({
        "version": VERSION,
        "jars": start.program,
        "sasl": address("sasl"),
        "tls": address("tls"),
        "both": address("both"),
        "ways": ports["ways"],
        "user": USER,
        "consumer": CONSUMER,
        "files": start.folder,
    }))
}

/// Asks the broker for the versions of its requests, as every client does first: it answers when it is ready.
fn knows_versions(port: u16) -> anyhow::Result<()> {
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(READ_TIMEOUT))?;
    // Length, api 18, version 0, number 1, no name.
    socket.write_all(&[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff])?;
    let mut answer = [0; 10];
    socket.read_exact(&mut answer)?;
    if answer[4..] != [0, 0, 0, 1, 0, 0] {
        bail!("it answers {answer:?} to the question for its versions");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_what_kafka_reads() {
        assert_eq!(base64([0; 16]), "A".repeat(22));
        assert_eq!(base64([0xff; 16]), format!("{}w", "_".repeat(21)));
        let mut one = [0; 16];
        one[15] = 1;
        assert_eq!(base64(one), format!("{}Q", "A".repeat(21)));
    }
}

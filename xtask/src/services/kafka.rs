//! Brokers of Apache Kafka in KRaft mode, of the jars that Maven Central has: one that is its own controller, and those that
//! join it.

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
    Start,
    process::{self, Process},
};
use crate::{
    shell::{self, Shell},
    tools,
};

/// 4.4.0 lacks the published tools.
const VERSION: &str = "4.3.0";
const PATIENCE: Duration = Duration::from_secs(2);

/// Small, and quick to start rather than quick for long.
const JVM: [&str; 5] = [
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
];

pub(super) fn install(shell: &Shell) -> anyhow::Result<PathBuf> {
    tools::ensure_program(shell, "java", "default-jre-headless")?;
    let folder = shell.target.join("tools").join(format!("kafka-{VERSION}"));
    let stamp = folder.join("tidegate-packages");
    let (pom, jars) = (pom(), folder.join("jars"));
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == pom) {
        return Ok(jars);
    }
    tools::ensure_program(shell, "mvn", "maven")?;
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("pom.xml"), &pom)?;
    let mut maven = shell.command("mvn");
    maven.args(["--quiet", "--batch-mode", "dependency:copy-dependencies", "-DincludeScope=runtime"]);
    maven.arg(format!("-DoutputDirectory={}", jars.display())).current_dir(&folder);
    shell::run(&mut maven)
        .with_context(|| format!("getting the jars of Apache Kafka {VERSION} from Maven Central with mvn"))?;
    fs::write(stamp, pom)?;
    Ok(jars)
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

/// Where the first broker says what others have to know who join it: the port of the controller, the id of the cluster.
const CLUSTER: &str = "cluster.json";

/// The first broker.
pub(super) fn start(shell: &Shell, start: &Start<'_>) -> anyhow::Result<Process> {
    let controller = process::free_port()?;
    let mut id = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut id)?;
    let id = base64(id);
    fs::write(start.folder.join(CLUSTER), json!({"controller": controller, "id": id}).to_string())?;
    begin(shell, start, &id, controller)
}

/// A broker more.
pub(super) fn join(shell: &Shell, start: &Start<'_>) -> anyhow::Result<Process> {
    let said = fs::read(start.beside("kafka").join(CLUSTER)).context("there is no first broker")?;
    let said: Value = serde_json::from_slice(&said)?;
    let controller = said["controller"].as_u64().context("no port")?.try_into()?;
    begin(shell, start, said["id"].as_str().context("no id")?, controller)
}

fn begin(shell: &Shell, start: &Start<'_>, cluster: &str, controller: u16) -> anyhow::Result<Process> {
    let name = start.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let broker = Broker {
        id: name.trim_start_matches("kafka").parse().unwrap_or(1),
        of: shell.wanted.iter().filter(|name| name.starts_with("kafka")).count(),
        port: start.port,
        controller,
        data: start.folder.join("data"),
    };
    let settings = start.folder.join("server.properties");
    fs::write(&settings, broker.properties())?;
    let mut format = java(start.program);
    format.args(["kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config"]);
    shell::output(format.arg(&settings))?;
    let mut broker = java(start.program);
    broker.arg("kafka.Kafka").arg(&settings).current_dir(start.folder);
    Process::start(&mut broker, &start.log())
}

fn java(jars: &Path) -> Command {
    let mut command = Command::new("java");
    command.args(JVM).arg("-cp").arg(jars.join("*"));
    command
}

/// One of the brokers.
struct Broker {
    /// The first one is the controller of all.
    id: usize,
    /// How many brokers there are.
    of: usize,
    port: u16,
    controller: u16,
    data: PathBuf,
}

impl Broker {
    /// Topics are made on purpose only; groups form at once; little is preallocated.
    fn properties(&self) -> String {
        let Self { id, of, port, controller, data } = self;
        let (roles, more) = match id {
            1 => ("broker,controller", format!(",CONTROLLER://127.0.0.1:{controller}")),
            _ => ("broker", String::new()),
        };
        // Of three, two must have what is confirmed.
        let in_step = if *of > 2 { 2 } else { 1 };
        format!(
            "process.roles={roles}
node.id={id}
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port}{more}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={}
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
            data.display()
        )
    }
}

/// In the alphabet of URLs, without padding: what Kafka calls a UUID.
fn base64(bytes: [u8; 16]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let number = u128::from_be_bytes(bytes);
    // 22 digits of 6 bits, of which the last has 4 bits of nothing.
    let digit = |at: u32| if at == 21 { (number << 4) as usize } else { (number >> (122 - 6 * at)) as usize };
    (0..22).map(|at| char::from(ALPHABET[digit(at) & 63])).collect()
}

/// Asks which versions of requests it knows, as every client does first: it answers when it is ready.
pub(super) fn answers(start: &Start<'_>) -> anyhow::Result<Value> {
    let mut socket = TcpStream::connect(("127.0.0.1", start.port))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    // Length, api 18, version 0, number 1, no name.
    socket.write_all(&[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff])?;
    let mut answer = [0; 10];
    socket.read_exact(&mut answer)?;
    if answer[4..] != [0, 0, 0, 1, 0, 0] {
        bail!("it answers {answer:?} to the question for its versions");
    }
    Ok(json!({"version": VERSION, "jars": start.program}))
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

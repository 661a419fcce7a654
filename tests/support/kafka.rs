//! Private broker of a test, which can be frozen.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer as _},
};
use rustix::process::{Pid, Signal, kill_process};

use super::{eventually_within, free_port, services::service_text, unique_name};

/// Limit for the start of a broker, long for busy machines.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Broker that is its own controller; ended with the test.
pub struct OwnKafka {
    folder: PathBuf,
    address: SocketAddr,
    /// `None` until it is started.
    child: Option<Child>,
}

impl OwnKafka {
    /// Starts an empty broker from the programs of the tests' broker, and waits until it answers. It creates each topic
    /// that a client requests, as many brokers do.
    pub fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("tidegate-kafka-{}", unique_name()));
        fs::create_dir_all(&folder).expect("the folder is created");
        let [port, controller] = [(); 2].map(|()| free_port());
        let mut own = Self { folder, address: SocketAddr::from(([127, 0, 0, 1], port)), child: None };
        let settings = own.folder.join("server.properties");
        let data = own.folder.join("data");
        fs::write(&settings, properties(port, controller, &data.display().to_string())).expect("a file");
        let format =
            ["kafka.tools.StorageTool", "format", "--cluster-id", "AAAAAAAAAAAAAAAAAAAAAA", "--config"];
        let formatted = java().args(format).arg(&settings).output().expect("java runs");
        assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
        let log = fs::File::create(own.folder.join("log")).expect("a file");
        let mut broker = java();
        broker.arg("kafka.Kafka").arg(&settings).current_dir(&own.folder);
        broker.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        own.child = Some(broker.spawn().expect("java runs"));
        own.wait();
        own
    }

    /// Returns the value for `kafka.brokers`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Freezes or resumes the broker.
    pub fn freeze(&self, is_frozen: bool) {
        let signal = if is_frozen { Signal::STOP } else { Signal::CONT };
        kill_process(Pid::from_child(self.child()), signal).expect("the process is a child");
        if is_frozen {
            // On a busy machine one of its threads answers a moment longer.
            eventually_within(START_TIMEOUT, "all threads are stopped", || self.is_stopped().then_some(()));
        }
    }

    fn child(&self) -> &Child {
        self.child.as_ref().expect("it runs")
    }

    fn is_stopped(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child().id())).expect("it runs");
        tasks.flatten().all(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // A thread that has ended in the meantime has no state.
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        })
    }

    fn wait(&self) {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.address.to_string()).set("group.id", "none");
        let consumer: BaseConsumer = config.create().expect("a consumer");
        // The call waits for the broker.
        let answered = consumer.fetch_metadata(None, START_TIMEOUT);
        let log = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        assert!(answered.is_ok(), "the broker does not answer: {}", log());
    }
}

impl Drop for OwnKafka {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill().ok();
            child.wait().ok();
        }
        fs::remove_dir_all(&self.folder).ok();
    }
}

fn java() -> Command {
    let jars = service_text("kafka", "jars");
    let mut command = Command::new("java");
    let small = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
    command.args(small).arg("-cp").arg(format!("{jars}/*"));
    command
}

fn properties(port: u16, controller: u16, data: &str) -> String {
    format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=true
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.index.size.max.bytes=1048576
log.cleaner.dedupe.buffer.size=8388608
num.network.threads=2
num.io.threads=2
"
    )
}

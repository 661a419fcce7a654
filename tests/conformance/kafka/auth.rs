//! Brokers that authenticate clients by password or certificate: the settings that work, and those that don't.
//!
//! TLS and SCRAM need a build with `--features tidegate/kafka-tls`, like that of `cargo xtask test` and of the image; without it
//! their tests fail with that cure.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig, Message as _,
    consumer::{BaseConsumer, Consumer as _},
    error::KafkaError,
};
use tidegate::{
    bus::{AppendError, EventRecord, EventSink as _, KafkaEvents, TopicState, ensure_topics, topic_plans},
    config::KafkaConfig,
    metrics, private,
};

use crate::{
    bus::{World, records, texts},
    kafka::{REPLY_TIMEOUT, ensure, eventually, open, settings},
    node,
    services::service_text,
    unique_name,
};

/// Returns settings for one of the authenticated listeners.
fn at(listener: &str, security: &str) -> KafkaConfig {
    KafkaConfig {
        brokers: vec![service_text("kafka", listener)],
        security: security.to_owned(),
        ..settings()
    }
}

/// Returns the path of one of the broker's files.
fn file(name: &str) -> PathBuf {
    PathBuf::from(service_text("kafka", "files")).join(name)
}

fn named(kafka: KafkaConfig, mechanism: &str, password: &Password) -> KafkaConfig {
    KafkaConfig {
        sasl_mechanism: mechanism.to_owned(),
        sasl_username: service_text("kafka", "user"),
        sasl_password_file: password.0.clone(),
        ..kafka
    }
}

/// Asserts that a client of each kind is authenticated: topics are created, a record is read back, and a group forms.
async fn assert_accepted(kafka: &KafkaConfig) {
    assert_eq!(ensure(kafka).await, [TopicState::Made, TopicState::Made]);
    let world = World { bus: Arc::new(open(kafka).await), me: node("me", 1) };
    let _mine = world.own_all().await;
    world.bus.append(0, records(&["a"])).await.unwrap();
    let read = world.bus.read(0, 0, 10, 1 << 20).await.unwrap();
    assert_eq!(texts(&read), [(0, "a".to_owned())]);
}

async fn assert_refused(kafka: &KafkaConfig) {
    let plans = topic_plans(kafka, &[]);
    assert!(ensure_topics(kafka, &plans).await.is_err());
}

/// Password in a file that only this account may read, removed with the test.
struct Password(PathBuf);

impl Password {
    fn new(name: &str, text: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", unique_name()));
        let mut file = private::options().create(true).truncate(true).open(&path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Self(path)
    }

    fn right(name: &str) -> Self {
        Self::new(&format!("{name}-right"), &fs::read_to_string(file("password")).unwrap())
    }

    fn wrong(name: &str) -> Self {
        Self::new(&format!("{name}-wrong"), "nobodys\n")
    }
}

impl Drop for Password {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

/// Fails in a build without TLS to Kafka, so that a test that needs it is not skipped silently.
fn needs_tls() {
    if !cfg!(feature = "kafka-tls") {
        panic!("this build has no TLS for Kafka: run this test with `--features tidegate/kafka-tls`");
    }
}

#[tokio::test]
async fn password_authenticates_and_a_wrong_one_is_refused() {
    let (right, wrong) = (Password::right("plain"), Password::wrong("plain"));
    let kafka = named(at("sasl", "sasl_plaintext"), "PLAIN", &right);
    assert_accepted(&kafka).await;
    let mistaken = KafkaConfig { sasl_password_file: wrong.0.clone(), ..kafka.clone() };
    let nobody = KafkaConfig { brokers: kafka.brokers, ..settings() };
    // The library retries until its timeout.
    tokio::join!(assert_refused(&mistaken), assert_refused(&nobody));
}

#[tokio::test]
async fn certificate_authenticates_and_the_brokers_is_verified() {
    needs_tls();
    let nobody = KafkaConfig { ca_file: file("ca.pem"), ..at("tls", "ssl") };
    let kafka = KafkaConfig { cert_file: file("cert.pem"), key_file: file("key.pem"), ..nobody.clone() };
    assert_accepted(&kafka).await;
    // The system's authorities did not sign the broker's certificate.
    let distrustful = KafkaConfig { ca_file: PathBuf::new(), ..kafka };
    tokio::join!(assert_refused(&nobody), assert_refused(&distrustful));
}

#[tokio::test]
async fn password_authenticates_by_scram_over_tls() {
    needs_tls();
    let (right, wrong) = (Password::right("scram"), Password::wrong("scram"));
    let kafka =
        named(KafkaConfig { ca_file: file("ca.pem"), ..at("both", "sasl_ssl") }, "SCRAM-SHA-512", &right);
    assert_accepted(&kafka).await;
    assert_refused(&KafkaConfig { sasl_password_file: wrong.0.clone(), ..kafka }).await;
}

/// Kinds of resources and operations, by their numbers in Kafka's protocol.
const TOPIC: u8 = 2;
const GROUP: u8 = 3;
const READ: u8 = 3;
const WRITE: u8 = 4;
const DESCRIBE: u8 = 8;

/// What a list of rights lets a user do.
#[derive(Clone)]
struct Right {
    resource: u8,
    name: String,
    principal: String,
    operation: u8,
}

impl Right {
    /// Has the broker put it in force, as `kafka-acls.sh` does.
    fn grant(&self) {
        fn text(request: &mut Vec<u8>, text: &str) {
            request.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
            request.extend(text.as_bytes());
        }
        // Api 30 (CreateAcls), version 1, number 1, no client, one right.
        let mut request = vec![0, 30, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 1, self.resource];
        text(&mut request, &self.name);
        // The name is meant literally.
        request.push(3);
        text(&mut request, &self.principal);
        text(&mut request, "*");
        // Allow.
        request.extend([self.operation, 3]);
        let mut socket = TcpStream::connect(service_text("kafka", "address")).unwrap();
        socket.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
        socket.write_all(&u32::try_from(request.len()).unwrap().to_be_bytes()).unwrap();
        socket.write_all(&request).unwrap();
        let mut answer = [0; 18];
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(
            (&answer[4..8], &answer[12..]),
            (&[0, 0, 0, 1][..], &[0, 0, 0, 1, 0, 0][..]),
            "{answer:?}"
        );
    }
}

/// Returns the rights that the commands of docs/events.md give, for other names of the topic and the group.
fn rights_of_the_page(topic: &str, group: &str) -> Vec<Right> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/events.md")).unwrap();
    let mut rights = Vec::new();
    for command in page.lines().filter(|line| line.starts_with("kafka-acls.sh ")) {
        let words: Vec<&str> = command.split(' ').collect();
        let values = |option: &str| -> Vec<&str> {
            words.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1]).collect()
        };
        assert_eq!(values("--topic"), ["tidegate.messages"], "{command}");
        let principal = values("--allow-principal")[0];
        let mut give = |resource, name: &str, operation| {
            rights.push(Right { resource, name: name.into(), principal: principal.into(), operation });
        };
        for operation in values("--operation") {
            give(TOPIC, topic, if operation == "Write" { WRITE } else { DESCRIBE });
            assert!(["Write", "Describe"].contains(&operation), "{command}");
        }
        // What the option stands for.
        if words.contains(&"--consumer") {
            give(TOPIC, topic, READ);
            give(TOPIC, topic, DESCRIBE);
            give(GROUP, group, READ);
            assert_eq!(values("--group").len(), 1, "{command}");
        }
    }
    rights
}

/// Returns the first record that a user reads of a topic with this group, or the first failure.
async fn first_record(
    topic: &str,
    user: &str,
    group: &str,
    password: &Password,
) -> Result<Vec<u8>, KafkaError> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", service_text("kafka", "sasl"));
    config.set("security.protocol", "sasl_plaintext").set("sasl.mechanisms", "PLAIN");
    config.set("sasl.username", user).set("sasl.password", fs::read_to_string(&password.0).unwrap().trim());
    config.set("group.id", group).set("auto.offset.reset", "earliest");
    let consumer: BaseConsumer = config.create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let until = Instant::now() + REPLY_TIMEOUT * 4;
    tokio::task::spawn_blocking(move || {
        while Instant::now() < until {
            if let Some(polled) = consumer.poll(Duration::from_millis(100)) {
                return polled.map(|record| record.payload().unwrap().to_vec());
            }
        }
        panic!("neither a record nor a failure");
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn topic_of_messages_needs_the_rights_of_its_page_and_no_other() {
    let (password, counted) = (Password::right("rights"), metrics::install().0);
    let operator = settings();
    let topic = format!("{}.messages", operator.topic);
    let operator = KafkaConfig { message_topic: topic.clone(), ..operator };
    let KafkaConfig { brokers, security, .. } = at("sasl", "sasl_plaintext");
    let node = named(KafkaConfig { brokers, security, ..operator.clone() }, "PLAIN", &password);
    assert_eq!(ensure(&operator).await, vec![TopicState::Made; 3]);
    let group = format!("{topic}.search");
    let (of_node, of_consumer): (Vec<Right>, Vec<Right>) =
        rights_of_the_page(&topic, &group).into_iter().partition(|it| it.principal == "User:tidegate");
    assert_eq!((of_node.len(), of_consumer.len()), (2, 3));

    // A topic on which somebody has a right is closed to all others.
    of_consumer.iter().for_each(Right::grant);
    let refused = eventually(async || KafkaEvents::connect_messages(&node, &counted).await.err()).await;
    assert!(refused.is_unavailable && refused.why.contains("may not describe it"), "{refused}");
    let grant = |operation: u8| of_node.iter().find(|it| it.operation == operation).unwrap().grant();
    grant(DESCRIBE);
    let sink = eventually(async || KafkaEvents::connect_messages(&node, &counted).await.ok()?).await;
    let event = || EventRecord { key: "g:a".into(), partition: Some(0), json: b"{}".to_vec() };
    let refused = sink.publish(vec![event()]).await;
    assert!(
        matches!(&refused, Err(AppendError::Unknown(why)) if why.contains("TopicAuthorizationFailed")),
        "{refused:?}"
    );
    grant(WRITE);
    eventually(async || sink.publish(vec![event()]).await.ok()).await;
    let read = first_record(&topic, &service_text("kafka", "consumer"), &group, &password).await;
    assert_eq!(read, Ok(b"{}".to_vec()));
    // The nodes can't read what they have written, and nobody joins the group of another.
    for group in [format!("{topic}.nodes"), group] {
        let read = first_record(&topic, &service_text("kafka", "user"), &group, &password).await;
        assert!(format!("{read:?}").contains("AuthorizationFailed"), "{group}: {read:?}");
    }
}

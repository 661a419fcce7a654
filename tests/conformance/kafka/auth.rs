//! Brokers that authenticate clients by password or certificate: the settings that work, and those that don't.
//!
//! TLS and SCRAM need a build with `--features tidegate/kafka-tls`, like that of `cargo xtask test` and of the image; without it
//! their tests fail with that cure.

use std::{fs, io::Write as _, path::PathBuf, sync::Arc};

use tidegate::{
    bus::{TopicState, ensure_topics, topic_plans},
    config::KafkaConfig,
    private,
};

use crate::{
    bus::{World, records, texts},
    kafka::{ensure, open, settings},
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

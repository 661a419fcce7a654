//! Brokers that want to know who comes, by a password or a certificate: the settings that satisfy them, and those that don't.
//!
//! TLS and SCRAM need a build with `--features tidegate/kafka-tls`, like that of `cargo xtask test` and of the image; without it
//! their tests fail with that cure.

use std::{fs, io::Write as _, path::PathBuf, sync::Arc};

use tidegate::{
    bus::{TopicState, ensure_topics, topic_plans},
    config::Kafka,
    private,
};

use crate::{
    bus::{World, records, texts},
    kafka::{ensure, open, settings},
    node,
    services::service_text,
    unique_name,
};

/// Settings for one of the guarded doors.
fn at(door: &str, security: &str) -> Kafka {
    Kafka { brokers: vec![service_text("kafka", door)], security: security.to_owned(), ..settings() }
}

/// A file that belongs to the broker.
fn file(name: &str) -> PathBuf {
    PathBuf::from(service_text("kafka", "files")).join(name)
}

fn named(kafka: Kafka, mechanism: &str, password: &Password) -> Kafka {
    Kafka {
        sasl_mechanism: mechanism.to_owned(),
        sasl_username: service_text("kafka", "user"),
        sasl_password_file: password.0.clone(),
        ..kafka
    }
}

/// Topics are made, what is appended is read, and a group forms: each kind of client has come through.
async fn is_let_in(kafka: &Kafka) {
    assert_eq!(ensure(kafka).await, [TopicState::Made, TopicState::Made]);
    let world = World { bus: Arc::new(open(kafka).await), me: node("me", 1) };
    let _mine = world.own_all().await;
    world.bus.append(0, records(&["a"])).await.unwrap();
    let read = world.bus.read(0, 0, 10, 1 << 20).await.unwrap();
    assert_eq!(texts(&read), [(0, "a".to_owned())]);
}

async fn is_refused(kafka: &Kafka) {
    let plans = topic_plans(kafka, &[]);
    assert!(ensure_topics(kafka, &plans).await.is_err());
}

/// A password in a file that only this account may read, and that goes with the test.
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
async fn a_name_and_a_password_open_the_door_and_a_wrong_one_does_not() {
    let (right, wrong) = (Password::right("plain"), Password::wrong("plain"));
    let kafka = named(at("sasl", "sasl_plaintext"), "PLAIN", &right);
    is_let_in(&kafka).await;
    let mistaken = Kafka { sasl_password_file: wrong.0.clone(), ..kafka.clone() };
    let nobody = Kafka { brokers: kafka.brokers, ..settings() };
    // The library tries again until its time is up.
    tokio::join!(is_refused(&mistaken), is_refused(&nobody));
}

#[tokio::test]
async fn a_certificate_opens_the_door_and_the_brokers_own_is_checked() {
    needs_tls();
    let nobody = Kafka { ca_file: file("ca.pem"), ..at("tls", "ssl") };
    let kafka = Kafka { cert_file: file("cert.pem"), key_file: file("key.pem"), ..nobody.clone() };
    is_let_in(&kafka).await;
    // By the authorities of the system the broker's is nobody's.
    let distrustful = Kafka { ca_file: PathBuf::new(), ..kafka };
    tokio::join!(is_refused(&nobody), is_refused(&distrustful));
}

#[tokio::test]
async fn a_password_goes_by_scram_over_tls() {
    needs_tls();
    let (right, wrong) = (Password::right("scram"), Password::wrong("scram"));
    let kafka = named(Kafka { ca_file: file("ca.pem"), ..at("both", "sasl_ssl") }, "SCRAM-SHA-512", &right);
    is_let_in(&kafka).await;
    is_refused(&Kafka { sasl_password_file: wrong.0.clone(), ..kafka }).await;
}

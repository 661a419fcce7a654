//! Making topics on purpose, as the settings say; what is there and differs is refused with its cure.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig,
    admin::{
        AdminClient, AdminOptions, NewTopic, OwnedResourceSpecifier, ResourceSpecifier, TopicReplication,
    },
    client::DefaultClientContext,
    config::FromClientConfig as _,
    error::RDKafkaErrorCode,
};

use super::{
    KafkaRefusal,
    client::{self, Cluster},
    read::ANSWER,
};
use crate::config::Kafka;

type Admin = AdminClient<DefaultClientContext>;

/// Between two looks at a topic that was just made.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A topic as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPlan {
    /// Its name.
    pub name: String,
    /// How many partitions it has.
    pub partitions: u32,
    /// How many copies of each.
    pub replication: u32,
    /// What is set for it, with Kafka's names.
    pub settings: Vec<(&'static str, String)>,
    what: Plan,
}

/// What a topic is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Log,
    Node,
    Events,
}

/// What was found or done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicState {
    /// It was made.
    Made,
    /// It was there, and promises all that is planned, or more.
    There,
    /// It is there and differs; how, and what to do about it.
    Differs(String),
}

/// The topics that a cluster with those nodes needs.
pub fn topic_plans(kafka: &Kafka, nodes: &[String]) -> Vec<TopicPlan> {
    let in_step = kafka.replication.saturating_sub(1).max(1).to_string();
    let size = (kafka.record_bytes_max + client::OVERHEAD).to_string();
    let settings = |retention_ms: u64, retention_bytes: u64| {
        let bytes = if retention_bytes == 0 { "-1".to_owned() } else { retention_bytes.to_string() };
        vec![
            ("cleanup.policy", "delete".to_owned()),
            ("retention.ms", retention_ms.to_string()),
            ("retention.bytes", bytes),
            ("min.insync.replicas", in_step.clone()),
            // A copy that is not in step never becomes the log: what was confirmed would be gone.
            ("unclean.leader.election.enable", "false".to_owned()),
            ("max.message.bytes", size.clone()),
        ]
    };
    let plan = |name: String, partitions, settings, what| TopicPlan {
        name,
        partitions,
        replication: kafka.replication,
        settings,
        what,
    };
    let log = settings(kafka.retention_ms, kafka.retention_bytes);
    let mut plans = vec![plan(kafka.topic.clone(), kafka.partitions, log, Plan::Log)];
    for node in nodes {
        plans.push(plan(kafka.topic_of(node), 1, settings(kafka.node_retention_ms, 0), Plan::Node));
    }
    if !kafka.event_topic.is_empty() {
        let mut settings = settings(kafka.event_retention_ms, 0);
        // Events are small, whatever a record of the log may be.
        settings.retain(|(name, _)| *name != "max.message.bytes");
        plans.push(plan(kafka.event_topic.clone(), kafka.event_partitions, settings, Plan::Events));
    }
    plans
}

/// Makes what is missing; changes nothing that is there.
///
/// # Errors
/// A broker that does not answer, or one that refuses to make a topic.
pub async fn ensure_topics(
    kafka: &Kafka,
    plans: &[TopicPlan],
) -> Result<Vec<(String, TopicState)>, KafkaRefusal> {
    let mut states = Vec::new();
    for plan in plans {
        let cluster = if plan.what == Plan::Node { Cluster::Nodes } else { Cluster::Log };
        let mut config = client::common(kafka, cluster)?;
        config.set("statistics.interval.ms", "0").remove("debug");
        states.push((plan.name.clone(), ensure(&config, plan).await?));
    }
    Ok(states)
}

/// How the topic of the log, which is there, differs from what is planned.
///
/// # Errors
/// A broker that does not answer, or one that does not let it be looked at.
pub async fn compare_log(kafka: &Kafka) -> Result<TopicState, KafkaRefusal> {
    let mut config = client::common(kafka, Cluster::Log)?;
    config.set("statistics.interval.ms", "0").remove("debug");
    let admin = Arc::new(Admin::from_config(&config)?);
    match topic_plans(kafka, &[]).into_iter().next() {
        Some(log) => compare(&admin, &options(), &log).await,
        None => Ok(TopicState::There),
    }
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(ANSWER * 2)).operation_timeout(Some(Duration::from_secs(10)))
}

async fn ensure(config: &ClientConfig, plan: &TopicPlan) -> Result<TopicState, KafkaRefusal> {
    let admin = Arc::new(Admin::from_config(config)?);
    let options = options();
    let replication = TopicReplication::Fixed(plan.replication as i32);
    let mut topic = NewTopic::new(&plan.name, plan.partitions as i32, replication);
    for (name, value) in &plan.settings {
        topic = topic.set(name, value);
    }
    let made = admin.create_topics([&topic], &options).await?;
    match made.into_iter().next() {
        Some(Ok(_)) => shape(&admin, &plan.name).await.map(|_| TopicState::Made),
        Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => compare(&admin, &options, plan).await,
        Some(Err((name, RDKafkaErrorCode::InvalidReplicationFactor))) => Err(KafkaRefusal(format!(
            "{name}: there are fewer than {} brokers; start more, or set kafka.replication lower",
            plan.replication
        ))),
        Some(Err((name, code))) => Err(KafkaRefusal(format!("{name} could not be made: {code}"))),
        None => Err(KafkaRefusal(format!("{}: the broker said nothing", plan.name))),
    }
}

async fn compare(
    admin: &Arc<Admin>,
    options: &AdminOptions,
    plan: &TopicPlan,
) -> Result<TopicState, KafkaRefusal> {
    let (found, copies) = shape(admin, &plan.name).await?;
    if found != plan.partitions as usize {
        return Ok(TopicState::Differs(match plan.what {
            Plan::Log | Plan::Node => wrong_count(&plan.name, found, plan.partitions),
            Plan::Events => format!(
                "{} has {found} partitions, kafka.event_partitions says {}: set it to {found}, or change the topic with \
                 kafka-topics.sh --alter --topic {} --partitions N",
                plan.name, plan.partitions, plan.name
            ),
        }));
    }
    if copies < plan.replication as usize {
        return Ok(TopicState::Differs(format!(
            "{} has {copies} copies of each partition, kafka.replication says {}: change it with kafka-reassign-partitions, or the setting",
            plan.name, plan.replication
        )));
    }
    let specifier = ResourceSpecifier::Topic(&plan.name);
    let described = admin.describe_configs([&specifier], options).await?;
    let resource = described.into_iter().find_map(|resource| {
        let resource = resource.ok()?;
        matches!(&resource.specifier, OwnedResourceSpecifier::Topic(name) if *name == plan.name)
            .then_some(resource)
    });
    let resource = resource.ok_or_else(|| KafkaRefusal(format!("{} can't be described", plan.name)))?;
    let differs = plan.settings.iter().filter_map(|(name, wanted)| {
        let is = resource.get(name).and_then(|entry| entry.value.clone()).unwrap_or_default();
        (!is_enough(name, &is, wanted)).then_some((*name, is, wanted))
    });
    let differs: Vec<_> = differs.collect();
    if differs.is_empty() {
        return Ok(TopicState::There);
    }
    let list = differs.iter().map(|(name, is, wanted)| format!("{name} is {is}, not {wanted}"));
    let list: Vec<String> = list.collect();
    let cure = differs.iter().map(|(name, _, wanted)| format!("{name}={wanted}"));
    let cure: Vec<String> = cure.collect();
    Ok(TopicState::Differs(format!(
        "{}: {}; change it with: kafka-configs.sh --alter --entity-type topics --entity-name {} --add-config {}",
        plan.name,
        list.join(", "),
        plan.name,
        cure.join(",")
    )))
}

/// Whether what is set for a topic promises what is wanted. More of it is no reason to keep a node from starting: who raises the
/// retention of a topic while Postgres is away must not have to change every node's settings first.
fn is_enough(name: &str, is: &str, wanted: &str) -> bool {
    let bound = |text: &str| match text.parse::<i64>() {
        Ok(-1) if name.starts_with("retention.") => Some(i64::MAX),
        other => other.ok(),
    };
    match (name, bound(is), bound(wanted)) {
        (
            "retention.ms" | "retention.bytes" | "max.message.bytes" | "min.insync.replicas",
            Some(is),
            Some(wanted),
        ) => is >= wanted,
        _ => is == wanted,
    }
}

/// Partitions, and the copies of the one that has the fewest; waits until the brokers know what the controller made.
async fn shape(admin: &Arc<Admin>, name: &str) -> Result<(usize, usize), KafkaRefusal> {
    let until = Instant::now() + ANSWER;
    while Instant::now() < until {
        let (admin, topic) = (Arc::clone(admin), name.to_owned());
        // The library waits for the broker in this call, and has no other.
        let looked = tokio::task::spawn_blocking(move || look(&admin, &topic)).await;
        if let Some(shape) = looked.unwrap_or_else(|error| Err(KafkaRefusal(error.to_string())))? {
            return Ok(shape);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Err(KafkaRefusal(format!("{name} has partitions without a leader; look at the brokers' logs")))
}

/// None while a leader is missing. All topics are asked for: the library's Rust interface gives up its hold of a single
/// one too early.
fn look(admin: &Admin, name: &str) -> Result<Option<(usize, usize)>, KafkaRefusal> {
    let metadata = admin.inner().fetch_metadata(None, ANSWER)?;
    let topic = metadata.topics().iter().find(|topic| topic.name() == name && topic.error().is_none());
    let led = topic.filter(|topic| topic.partitions().iter().all(|partition| partition.leader() >= 0));
    Ok(led.map(|topic| {
        let copies = topic.partitions().iter().map(|partition| partition.replicas().len()).min();
        (topic.partitions().len(), copies.unwrap_or(0))
    }))
}

/// What to say of a topic with another number of partitions than the settings say.
pub(super) fn wrong_count(topic: &str, found: usize, wanted: u32) -> String {
    format!(
        "{topic} has {found} partitions, the settings say {wanted}: set kafka.partitions = {found}, or name a new topic in \
         kafka.topic and start with an empty store (a log can't be repartitioned: conversations live where their hash says)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_what_is_wanted_is_enough_and_less_is_not() {
        for (name, is, wanted, enough) in [
            ("retention.ms", "60000", "60000", true),
            ("retention.ms", "60001", "60000", true),
            ("retention.ms", "59999", "60000", false),
            ("retention.ms", "-1", "60000", true),
            ("retention.bytes", "60000", "-1", false),
            ("retention.bytes", "-1", "-1", true),
            ("min.insync.replicas", "1", "2", false),
            ("min.insync.replicas", "3", "2", true),
            ("max.message.bytes", "", "2", false),
            ("unclean.leader.election.enable", "true", "false", false),
            ("cleanup.policy", "compact", "delete", false),
        ] {
            assert_eq!(is_enough(name, is, wanted), enough, "{name} {is} {wanted}");
        }
    }

    #[test]
    fn the_plan_says_partitions_copies_and_how_long() {
        let kafka = Kafka { retention_bytes: 1 << 30, ..Kafka::default() };
        let plans = topic_plans(&kafka, &["n1".to_owned()]);
        let names: Vec<_> = plans.iter().map(|plan| (plan.name.as_str(), plan.partitions)).collect();
        assert_eq!(names, [("tidegate.log", 64), ("tidegate.node.n1", 1), ("tidegate.events", 8)]);
        let setting = |at: usize, name| {
            let found = plans[at].settings.iter().find(|(setting, _)| *setting == name);
            found.map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        assert_eq!((setting(0, "retention.ms"), setting(1, "retention.ms")), ("604800000", "600000"));
        assert_eq!((setting(0, "retention.bytes"), setting(1, "retention.bytes")), ("1073741824", "-1"));
        assert_eq!((setting(0, "min.insync.replicas"), plans[0].replication), ("2", 3));
        assert_eq!((setting(2, "retention.ms"), setting(2, "max.message.bytes")), ("604800000", ""));
        let none = Kafka { event_topic: String::new(), ..kafka };
        assert_eq!(topic_plans(&none, &[]).len(), 1, "events go to no topic");
    }
}

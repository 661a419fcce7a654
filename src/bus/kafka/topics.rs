//! Topic management: creates the configured topics on request, and reports existing ones that differ, with the cure.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use rdkafka::{
    admin::{
        AdminClient, AdminOptions, ConfigResource, NewTopic, OwnedResourceSpecifier, ResourceSpecifier,
        TopicReplication,
    },
    client::DefaultClientContext,
    config::FromClientConfig as _,
    error::RDKafkaErrorCode,
};

use super::{
    KafkaRefusal,
    client::{self, BROKER_TIMEOUT, Cluster},
};
use crate::{config::KafkaConfig, supervised};

type Admin = AdminClient<DefaultClientContext>;

/// Number of topics per admin request.
const TOPICS_PER_REQUEST: usize = 100;

/// Time for the election of leaders: that of a broker that has just started follows everything else that waits for it.
const LEADERS_MAX: Duration = Duration::from_secs(30);

/// Delay between checks of a topic that was just created.
const CREATION_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Topic as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPlan {
    /// Topic name.
    pub name: String,
    /// Number of partitions.
    pub partitions: u32,
    /// Number of replicas of each partition.
    pub replication: u32,
    /// Topic settings by Kafka's names.
    pub settings: Vec<(&'static str, String)>,
    purpose: Purpose,
}

/// Purpose of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Log,
    Node,
    Events,
    Messages,
}

impl Purpose {
    fn cluster(self) -> Cluster {
        if self == Self::Node { Cluster::Nodes } else { Cluster::Log }
    }
}

impl TopicPlan {
    fn topic(&self) -> NewTopic<'_> {
        let replication = TopicReplication::Fixed(self.replication as i32);
        let topic = NewTopic::new(&self.name, self.partitions as i32, replication);
        self.settings.iter().fold(topic, |topic, (name, value)| topic.set(name, value))
    }

    /// Compares an existing topic with the plan. A topic that promises less differs, and the result names the cure.
    fn compare(&self, shape: Shape, resource: &ConfigResource) -> TopicState {
        let Shape { partitions, replicas } = shape;
        let wanted = self.partitions as usize;
        if partitions < wanted || (partitions > wanted && self.purpose != Purpose::Messages) {
            return TopicState::Differs(match self.purpose {
                Purpose::Log | Purpose::Node => wrong_count(&self.name, partitions, self.partitions),
                Purpose::Messages => format!(
                    "{} has {partitions} partitions, fewer than the {} of the log: add some with kafka-topics.sh --alter --topic {} \
                     --partitions {}",
                    self.name, self.partitions, self.name, self.partitions
                ),
                Purpose::Events => format!(
                    "{} has {partitions} partitions, kafka.event_partitions says {}: set it to {partitions}, \
                     or change the topic with kafka-topics.sh --alter --topic {} --partitions N",
                    self.name, self.partitions, self.name
                ),
            });
        }
        if replicas < self.replication as usize {
            return TopicState::Differs(format!(
                "{} has {replicas} replicas of each partition, kafka.replication says {}: add replicas with \
                 kafka-reassign-partitions, or lower the setting",
                self.name, self.replication
            ));
        }
        let differing = self.settings.iter().filter_map(|(name, wanted)| {
            let found = resource.get(name).and_then(|entry| entry.value.clone()).unwrap_or_default();
            (!self.is_enough(name, &found, wanted)).then_some((*name, found, wanted))
        });
        let (mut differences, mut cure) = (Vec::new(), Vec::new());
        for (name, found, wanted) in differing {
            differences.push(format!("{name} is {found}, not {wanted}"));
            cure.push(format!("{name}={wanted}"));
        }
        if differences.is_empty() {
            return TopicState::There;
        }
        TopicState::Differs(format!(
            "{}: {}; change it with: kafka-configs.sh --alter --entity-type topics --entity-name {} \
             --add-config {}",
            self.name,
            differences.join(", "),
            self.name,
            cure.join(",")
        ))
    }

    /// Returns whether a setting of the topic promises at least the wanted value. The topic of messages has content that was
    /// recalled, so it must not be kept for longer than `remains` of an erasure says.
    fn is_enough(&self, name: &str, found: &str, wanted: &str) -> bool {
        match (self.purpose, name) {
            (Purpose::Messages, "retention.ms" | "segment.ms") => {
                let (found, wanted) = (found.parse::<u64>(), wanted.parse::<u64>());
                matches!((found, wanted), (Ok(found), Ok(wanted)) if found <= wanted)
            }
            _ => is_enough(name, found, wanted),
        }
    }
}

/// State of a topic after it was created or compared with its plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicState {
    /// Topic was created.
    Made,
    /// Topic existed, and promises at least what is planned.
    There,
    /// Topic exists and promises less; the text names the differences and the cure.
    Differs(String),
}

/// Returns the topics that a cluster of these nodes needs.
pub fn topic_plans(kafka: &KafkaConfig, nodes: &[String]) -> Vec<TopicPlan> {
    let in_sync = kafka.replication.saturating_sub(1).max(1).to_string();
    let size = (kafka.record_bytes_max + client::RECORD_OVERHEAD_BYTES).to_string();
    let settings = |retention_ms: u64, retention_bytes: u64| {
        let bytes = if retention_bytes == 0 { "-1".to_owned() } else { retention_bytes.to_string() };
        vec![
            ("cleanup.policy", "delete".to_owned()),
            ("retention.ms", retention_ms.to_string()),
            ("retention.bytes", bytes),
            ("min.insync.replicas", in_sync.clone()),
            // A leader that was out of sync would lose confirmed records.
            ("unclean.leader.election.enable", "false".to_owned()),
            ("max.message.bytes", size.clone()),
        ]
    };
    let plan = |name: String, partitions, settings, purpose| TopicPlan {
        name,
        partitions,
        replication: kafka.replication,
        settings,
        purpose,
    };
    let log = settings(kafka.retention_ms, kafka.retention_bytes);
    let mut plans = vec![plan(kafka.topic.clone(), kafka.partitions, log, Purpose::Log)];
    // Deduplicated, since a broker rejects a request that names a topic twice.
    for node in BTreeSet::from_iter(nodes) {
        plans.push(plan(kafka.topic_of(node), 1, settings(kafka.node_retention_ms, 0), Purpose::Node));
    }
    if !kafka.event_topic.is_empty() {
        let mut settings = settings(kafka.event_retention_ms, 0);
        // Events are small, so the broker's default size limit suffices.
        settings.retain(|(name, _)| *name != "max.message.bytes");
        plans.push(plan(kafka.event_topic.clone(), kafka.event_partitions, settings, Purpose::Events));
    }
    if !kafka.message_topic.is_empty() {
        let mut settings = settings(kafka.message_retention_ms, 0);
        settings.retain(|(name, _)| *name != "max.message.bytes");
        settings.push(("max.message.bytes", kafka.message_event_bytes_max().to_string()));
        settings.push(("segment.ms", kafka.message_segment_ms().to_string()));
        plans.push(plan(kafka.message_topic.clone(), kafka.partitions, settings, Purpose::Messages));
    }
    plans
}

/// Creates the missing topics and compares the existing ones, which it never changes.
///
/// # Errors
/// A broker does not reply, or refuses to create a topic.
pub async fn ensure_topics(
    kafka: &KafkaConfig,
    plans: &[TopicPlan],
) -> Result<Vec<(String, TopicState)>, KafkaRefusal> {
    let mut states: Vec<Option<TopicState>> = vec![None; plans.len()];
    for cluster in [Cluster::Log, Cluster::Nodes] {
        let own: Vec<usize> = (0..plans.len()).filter(|at| plans[*at].purpose.cluster() == cluster).collect();
        if own.is_empty() {
            continue;
        }
        let admin = admin(kafka, cluster)?;
        // Batched: there is one topic for each leasable node id.
        for part in own.chunks(TOPICS_PER_REQUEST) {
            let batch: Vec<&TopicPlan> = part.iter().map(|at| &plans[*at]).collect();
            for (at, state) in part.iter().zip(ensure(&admin, &batch).await?) {
                states[*at] = Some(state);
            }
        }
    }
    let named = plans.iter().zip(states);
    Ok(named.filter_map(|(plan, state)| Some((plan.name.clone(), state?))).collect())
}

/// Compares the existing log topic with its plan.
///
/// # Errors
/// A broker does not reply, or does not allow the topic to be described.
pub async fn compare_log(kafka: &KafkaConfig) -> Result<TopicState, KafkaRefusal> {
    let admin = admin(kafka, Cluster::Log)?;
    let Some(log) = topic_plans(kafka, &[]).into_iter().next() else { return Ok(TopicState::There) };
    let shape = shapes(&admin, &[&log]).await?;
    let existing: Vec<_> = [&log].into_iter().zip(shape).collect();
    let compared = compare(&admin, &existing).await?;
    Ok(compared.into_iter().next().unwrap_or(TopicState::There))
}

fn admin(kafka: &KafkaConfig, cluster: Cluster) -> Result<Arc<Admin>, KafkaRefusal> {
    let mut config = client::common(kafka, cluster)?;
    config.set("statistics.interval.ms", "0").remove("debug");
    Ok(Arc::new(Admin::from_config(&config)?))
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(BROKER_TIMEOUT * 2))
        .operation_timeout(Some(Duration::from_secs(10)))
}

/// Creates the missing ones of these topics and returns the state of each, in order.
async fn ensure(admin: &Arc<Admin>, plans: &[&TopicPlan]) -> Result<Vec<TopicState>, KafkaRefusal> {
    let topics: Vec<NewTopic<'_>> = plans.iter().map(|plan| plan.topic()).collect();
    let results = admin.create_topics(&topics, &options()).await?;
    let results: HashMap<String, Option<RDKafkaErrorCode>> = results
        .into_iter()
        .map(|one| match one {
            Ok(name) => (name, None),
            Err((name, code)) => (name, Some(code)),
        })
        .collect();
    for plan in plans {
        match results.get(&plan.name) {
            Some(None | Some(RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Some(Some(RDKafkaErrorCode::InvalidReplicationFactor)) => {
                return Err(KafkaRefusal::permanent(format!(
                    "{}: fewer than {} brokers; start more, or lower kafka.replication",
                    plan.name, plan.replication
                )));
            }
            Some(Some(code)) => {
                let why = format!("{}: failed to create the topic: {code}", plan.name);
                return Err(KafkaRefusal::permanent(why));
            }
            None => {
                return Err(KafkaRefusal::permanent(format!(
                    "{}: the broker reported no result; check its log",
                    plan.name
                )));
            }
        }
    }
    // Waits until the new topics are usable, before the caller reports them as created.
    let shapes = shapes(admin, plans).await?;
    let is_new = |plan: &TopicPlan| results.get(&plan.name) == Some(&None);
    let existing: Vec<(&TopicPlan, Shape)> =
        plans.iter().copied().zip(shapes).filter(|(plan, _)| !is_new(plan)).collect();
    let mut compared = compare(admin, &existing).await?.into_iter();
    let state = |plan: &&TopicPlan| if is_new(plan) { Some(TopicState::Made) } else { compared.next() };
    Ok(plans.iter().filter_map(state).collect())
}

/// Compares existing topics with their plans and returns the state of each, in order.
async fn compare(admin: &Admin, existing: &[(&TopicPlan, Shape)]) -> Result<Vec<TopicState>, KafkaRefusal> {
    if existing.is_empty() {
        return Ok(Vec::new());
    }
    let specifiers: Vec<ResourceSpecifier<'_>> =
        existing.iter().map(|(plan, _)| ResourceSpecifier::Topic(&plan.name)).collect();
    let described = admin.describe_configs(&specifiers, &options()).await?;
    let described: HashMap<String, ConfigResource> = described
        .into_iter()
        .filter_map(|resource| {
            let resource = resource.ok()?;
            let OwnedResourceSpecifier::Topic(name) = &resource.specifier else { return None };
            Some((name.clone(), resource))
        })
        .collect();
    let mut states = Vec::with_capacity(existing.len());
    for (plan, shape) in existing {
        let resource = described.get(&plan.name).ok_or_else(|| {
            KafkaRefusal::permanent(format!(
                "{}: the broker did not describe the topic; allow the user to describe its configuration",
                plan.name
            ))
        })?;
        states.push(plan.compare(*shape, resource));
    }
    Ok(states)
}

/// Returns whether a topic's setting promises at least the wanted value. A higher value must not keep a node from
/// starting: an operator who raises the retention while Postgres is unavailable need not change every node's settings.
fn is_enough(name: &str, found: &str, wanted: &str) -> bool {
    let bound = |text: &str| match text.parse::<i64>() {
        Ok(-1) if name.starts_with("retention.") => Some(i64::MAX),
        other => other.ok(),
    };
    match (name, bound(found), bound(wanted)) {
        (
            "retention.ms" | "retention.bytes" | "max.message.bytes" | "min.insync.replicas",
            Some(found),
            Some(wanted),
        ) => found >= wanted,
        _ => found == wanted,
    }
}

/// Number of partitions of a topic, and of replicas of its least replicated partition.
#[derive(Clone, Copy)]
struct Shape {
    partitions: usize,
    replicas: usize,
}

/// Returns the shape of each topic, in order. Waits until the brokers know the topics that the controller created.
async fn shapes(admin: &Arc<Admin>, plans: &[&TopicPlan]) -> Result<Vec<Shape>, KafkaRefusal> {
    let until = Instant::now() + LEADERS_MAX;
    loop {
        let client = Arc::clone(admin);
        // The library offers only a blocking call.
        let fetched = supervised::spawn_blocking("the query of topics", move || fetch_shapes(&client)).await;
        let found = fetched.unwrap_or_else(|error| Err(KafkaRefusal::permanent(error.to_string())))?;
        let missing = plans.iter().find(|plan| !found.contains_key(&plan.name));
        match missing {
            None => return Ok(plans.iter().filter_map(|plan| found.get(&plan.name).copied()).collect()),
            Some(plan) if Instant::now() >= until => {
                return Err(KafkaRefusal::permanent(format!(
                    "{} has partitions without a leader; check the brokers' logs",
                    plan.name
                )));
            }
            Some(_) => tokio::time::sleep(CREATION_POLL_INTERVAL).await,
        }
    }
}

/// Fetches the shapes of the topics whose partitions all have a leader. Queries all topics, because the library's Rust
/// interface frees the handle of a single topic too early.
fn fetch_shapes(admin: &Admin) -> Result<HashMap<String, Shape>, KafkaRefusal> {
    let metadata = admin.inner().fetch_metadata(None, BROKER_TIMEOUT)?;
    let complete = metadata.topics().iter().filter(|topic| {
        topic.error().is_none() && topic.partitions().iter().all(|partition| partition.leader() >= 0)
    });
    Ok(complete
        .map(|topic| {
            let replicas = topic.partitions().iter().map(|partition| partition.replicas().len()).min();
            let shape = Shape { partitions: topic.partitions().len(), replicas: replicas.unwrap_or(0) };
            (topic.name().to_owned(), shape)
        })
        .collect())
}

/// Returns the error text for a topic with another number of partitions than configured.
pub(super) fn wrong_count(topic: &str, found: usize, wanted: u32) -> String {
    format!(
        "{topic} has {found} partitions, the settings say {wanted}: set kafka.partitions = {found}, or name \
         a new topic in kafka.topic and start with an empty store (a log can't be repartitioned, since the \
         hash of a conversation selects its partition)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_above_the_wanted_value_suffices() {
        for (name, found, wanted, enough) in [
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
            assert_eq!(is_enough(name, found, wanted), enough, "{name} {found} {wanted}");
        }
    }

    #[test]
    fn topic_of_messages_keeps_nothing_longer_than_planned() {
        let kafka = KafkaConfig {
            message_topic: "tidegate.messages".to_owned(),
            message_retention_ms: 3_600_000,
            ..KafkaConfig::default()
        };
        let plans = topic_plans(&kafka, &[]);
        let plan = plans.last().unwrap();
        for (name, found, wanted, enough) in [
            ("retention.ms", "3600000", "3600000", true),
            ("retention.ms", "3599999", "3600000", true),
            ("retention.ms", "3600001", "3600000", false),
            ("retention.ms", "-1", "3600000", false),
            ("segment.ms", "900000", "900000", true),
            ("segment.ms", "604800000", "900000", false),
            ("segment.ms", "", "900000", false),
            ("max.message.bytes", "3", "2", true),
        ] {
            assert_eq!(plan.is_enough(name, found, wanted), enough, "{name} {found} {wanted}");
        }
        assert!(plans[0].is_enough("retention.ms", "-1", "3600000"), "only that topic");
        assert!(plan.settings.contains(&("segment.ms", "900000".to_owned())), "{:?}", plan.settings);
        let short = KafkaConfig { message_retention_ms: 60_000, ..kafka };
        assert_eq!(short.message_segment_ms(), 60_000);
    }

    #[test]
    fn plan_sets_partitions_replication_and_retention() {
        let kafka = KafkaConfig { retention_bytes: 1 << 30, ..KafkaConfig::default() };
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
        let none = KafkaConfig { event_topic: String::new(), ..kafka };
        assert_eq!(topic_plans(&none, &[]).len(), 1, "no event topic is planned");
        let messages = KafkaConfig { message_topic: "tidegate.messages".to_owned(), ..none };
        let plans = topic_plans(&messages, &[]);
        let TopicPlan { partitions, settings, .. } = &plans[1];
        let has = |name, value: &str| settings.iter().any(|it| *it == (name, value.to_owned()));
        assert_eq!(*partitions, 64, "those of the log");
        assert!(has("retention.ms", "86400000") && has("max.message.bytes", "12583936"), "{settings:?}");
    }
}

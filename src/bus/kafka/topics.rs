//! Making topics on purpose, as the settings say; what is there and differs is refused with its cure.

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
    client::{self, Cluster},
    read::ANSWER,
};
use crate::config::Kafka;

type Admin = AdminClient<DefaultClientContext>;

/// How many topics one question is about.
const AT_ONCE: usize = 100;

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

impl Plan {
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

    /// Whether a topic of that shape, with what is set for it, promises what is planned; if not, what to do about it.
    fn held_against(&self, (partitions, copies): Shape, resource: &ConfigResource) -> TopicState {
        if partitions != self.partitions as usize {
            return TopicState::Differs(match self.what {
                Plan::Log | Plan::Node => wrong_count(&self.name, partitions, self.partitions),
                Plan::Events => format!(
                    "{} has {partitions} partitions, kafka.event_partitions says {}: set it to {partitions}, or change the topic with \
                     kafka-topics.sh --alter --topic {} --partitions N",
                    self.name, self.partitions, self.name
                ),
            });
        }
        if copies < self.replication as usize {
            return TopicState::Differs(format!(
                "{} has {copies} copies of each partition, kafka.replication says {}: change it with kafka-reassign-partitions, or the setting",
                self.name, self.replication
            ));
        }
        let differs = self.settings.iter().filter_map(|(name, wanted)| {
            let is = resource.get(name).and_then(|entry| entry.value.clone()).unwrap_or_default();
            (!is_enough(name, &is, wanted)).then_some((*name, is, wanted))
        });
        let (mut how, mut cure) = (Vec::new(), Vec::new());
        for (name, is, wanted) in differs {
            how.push(format!("{name} is {is}, not {wanted}"));
            cure.push(format!("{name}={wanted}"));
        }
        if how.is_empty() {
            return TopicState::There;
        }
        TopicState::Differs(format!(
            "{}: {}; change it with: kafka-configs.sh --alter --entity-type topics --entity-name {} --add-config {}",
            self.name,
            how.join(", "),
            self.name,
            cure.join(",")
        ))
    }
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
    // A broker refuses to be asked for one twice at once.
    for node in BTreeSet::from_iter(nodes) {
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
    let mut states: Vec<Option<TopicState>> = vec![None; plans.len()];
    for cluster in [Cluster::Log, Cluster::Nodes] {
        let own: Vec<usize> = (0..plans.len()).filter(|at| plans[*at].what.cluster() == cluster).collect();
        if own.is_empty() {
            continue;
        }
        let admin = admin(kafka, cluster)?;
        // There are as many topics as ids that nodes may lease: each question is asked for many.
        for part in own.chunks(AT_ONCE) {
            let asked: Vec<&TopicPlan> = part.iter().map(|at| &plans[*at]).collect();
            for (at, state) in part.iter().zip(ensure(&admin, &asked).await?) {
                states[*at] = Some(state);
            }
        }
    }
    let named = plans.iter().zip(states);
    Ok(named.filter_map(|(plan, state)| Some((plan.name.clone(), state?))).collect())
}

/// How the topic of the log, which is there, differs from what is planned.
///
/// # Errors
/// A broker that does not answer, or one that does not let it be looked at.
pub async fn compare_log(kafka: &Kafka) -> Result<TopicState, KafkaRefusal> {
    let admin = admin(kafka, Cluster::Log)?;
    let Some(log) = topic_plans(kafka, &[]).into_iter().next() else { return Ok(TopicState::There) };
    let shape = shapes(&admin, &[&log]).await?;
    let there: Vec<_> = [&log].into_iter().zip(shape).collect();
    let compared = compare(&admin, &there).await?;
    Ok(compared.into_iter().next().unwrap_or(TopicState::There))
}

fn admin(kafka: &Kafka, cluster: Cluster) -> Result<Arc<Admin>, KafkaRefusal> {
    let mut config = client::common(kafka, cluster)?;
    config.set("statistics.interval.ms", "0").remove("debug");
    Ok(Arc::new(Admin::from_config(&config)?))
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(ANSWER * 2)).operation_timeout(Some(Duration::from_secs(10)))
}

/// What became of each, in order.
async fn ensure(admin: &Arc<Admin>, plans: &[&TopicPlan]) -> Result<Vec<TopicState>, KafkaRefusal> {
    let topics: Vec<NewTopic<'_>> = plans.iter().map(|plan| plan.topic()).collect();
    let made = admin.create_topics(&topics, &options()).await?;
    let made: HashMap<String, Option<RDKafkaErrorCode>> = made
        .into_iter()
        .map(|one| match one {
            Ok(name) => (name, None),
            Err((name, code)) => (name, Some(code)),
        })
        .collect();
    for plan in plans {
        match made.get(&plan.name) {
            Some(None | Some(RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Some(Some(RDKafkaErrorCode::InvalidReplicationFactor)) => {
                return Err(KafkaRefusal::wrong(format!(
                    "{}: there are fewer than {} brokers; start more, or set kafka.replication lower",
                    plan.name, plan.replication
                )));
            }
            Some(Some(code)) => {
                return Err(KafkaRefusal::wrong(format!("{} could not be made: {code}", plan.name)));
            }
            None => return Err(KafkaRefusal::wrong(format!("{}: the broker said nothing", plan.name))),
        }
    }
    // Who was told that a topic is made can use it.
    let shapes = shapes(admin, plans).await?;
    let is_new = |plan: &TopicPlan| made.get(&plan.name) == Some(&None);
    let there: Vec<(&TopicPlan, Shape)> =
        plans.iter().copied().zip(shapes).filter(|(plan, _)| !is_new(plan)).collect();
    let mut compared = compare(admin, &there).await?.into_iter();
    let state = |plan: &&TopicPlan| if is_new(plan) { Some(TopicState::Made) } else { compared.next() };
    Ok(plans.iter().filter_map(state).collect())
}

/// How each is, in order.
async fn compare(admin: &Admin, there: &[(&TopicPlan, Shape)]) -> Result<Vec<TopicState>, KafkaRefusal> {
    if there.is_empty() {
        return Ok(Vec::new());
    }
    let specifiers: Vec<ResourceSpecifier<'_>> =
        there.iter().map(|(plan, _)| ResourceSpecifier::Topic(&plan.name)).collect();
    let described = admin.describe_configs(&specifiers, &options()).await?;
    let described: HashMap<String, ConfigResource> = described
        .into_iter()
        .filter_map(|resource| {
            let resource = resource.ok()?;
            let OwnedResourceSpecifier::Topic(name) = &resource.specifier else { return None };
            Some((name.clone(), resource))
        })
        .collect();
    let mut states = Vec::with_capacity(there.len());
    for (plan, shape) in there {
        let resource = described
            .get(&plan.name)
            .ok_or_else(|| KafkaRefusal::wrong(format!("{} can't be described", plan.name)))?;
        states.push(plan.held_against(*shape, resource));
    }
    Ok(states)
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

/// Partitions, and the copies of the one that has the fewest.
type Shape = (usize, usize);

/// That of each, in order; waits until the brokers know what the controller made.
async fn shapes(admin: &Arc<Admin>, plans: &[&TopicPlan]) -> Result<Vec<Shape>, KafkaRefusal> {
    let until = Instant::now() + ANSWER;
    loop {
        let asked = Arc::clone(admin);
        // The library waits for the broker in this call, and has no other.
        let looked = tokio::task::spawn_blocking(move || look(&asked)).await;
        let seen = looked.unwrap_or_else(|error| Err(KafkaRefusal::wrong(error.to_string())))?;
        let lacking = plans.iter().find(|plan| !seen.contains_key(&plan.name));
        match lacking {
            None => return Ok(plans.iter().filter_map(|plan| seen.get(&plan.name).copied()).collect()),
            Some(plan) if Instant::now() >= until => {
                return Err(KafkaRefusal::wrong(format!(
                    "{} has partitions without a leader; look at the brokers' logs",
                    plan.name
                )));
            }
            Some(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// Those of which no leader is missing. All topics are asked for: the library's Rust interface gives up its hold of a single
/// one too early.
fn look(admin: &Admin) -> Result<HashMap<String, Shape>, KafkaRefusal> {
    let metadata = admin.inner().fetch_metadata(None, ANSWER)?;
    let whole = metadata.topics().iter().filter(|topic| {
        topic.error().is_none() && topic.partitions().iter().all(|partition| partition.leader() >= 0)
    });
    Ok(whole
        .map(|topic| {
            let copies = topic.partitions().iter().map(|partition| partition.replicas().len()).min();
            (topic.name().to_owned(), (topic.partitions().len(), copies.unwrap_or(0)))
        })
        .collect())
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

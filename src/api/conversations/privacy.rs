//! Admin API for privacy: what is stored of one user, and its removal.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::turns::{Absence, in_turn_of_all};
use crate::{
    api::{Api, Problem, access::Caller},
    config::{Config, KafkaConfig},
    conversation::read_position::NOT_STORED,
    store::Store,
};

pub(in crate::api) mod erase;
pub(in crate::api) mod export;
mod position;

/// Most rows of histories that one request reads, and the time after which it reads no more; one step exceeds either.
const ROWS_READ_MAX: usize = 10_000;
const READ_TIME_MAX: Duration = Duration::from_secs(1);

/// Runs a read in a turn of the caller. It is refused while the store may lack something: a cursor would pass it.
async fn in_turn_of_complete<T, F>(
    api: &Api,
    caller: &Caller,
    work: impl FnOnce(Arc<dyn Store>) -> F + Send + 'static,
) -> Result<T, Problem>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Problem>> + Send + 'static,
{
    let checked = move |store: Arc<dyn Store>, absence: Absence| async move {
        known(absence)?;
        work(store).await
    };
    in_turn_of_all(api, caller, checked).await
}

fn known(absence: Absence) -> Result<(), Problem> {
    match absence {
        Absence::Known => Ok(()),
        Absence::InDoubt => Err(NOT_STORED.into()),
    }
}

/// Times for which things are kept that no request removes, in ms.
#[derive(Clone, Copy, Debug)]
pub struct KeptTimes {
    /// Records of the log on Kafka; `None` for the log of a single node.
    log: Option<u64>,
    /// Keys that recognise repeated messages and requests.
    keys: u64,
    /// References to changes, for webhooks and streams.
    feed: u64,
    /// Events on Kafka; `None` if they go nowhere.
    events: Option<u64>,
    /// Events with content on Kafka; `None` if they go nowhere.
    messages: Option<u64>,
}

impl KeptTimes {
    /// Returns the times that a configuration sets.
    pub fn of(config: &Config) -> Self {
        let kafka = (config.node.profile == "cluster").then_some(&config.kafka);
        Self {
            log: kafka.map(|it| it.retention_ms),
            keys: config.retention.keys_days.saturating_mul(24 * 3_600_000),
            feed: config.events.retention_hours.saturating_mul(3_600_000),
            events: kafka.filter(|it| !it.event_topic.is_empty()).map(|it| it.event_retention_ms),
            messages: kafka.filter(|it| !it.message_topic.is_empty()).map(messages_kept),
        }
    }

    /// Returns what an erasure leaves, and for how long; without a time it is kept until somebody removes it.
    fn remains(&self) -> Value {
        let kept = |what: &str, for_ms: Option<u64>, note: &str| match for_ms {
            Some(ms) => json!({"what": what, "forMs": ms, "note": note}),
            None => json!({"what": what, "note": note}),
        };
        let log = match self.log {
            Some(_) => "records on Kafka, with their content: kafka.retention_ms",
            None => {
                "records of the embedded log, with their content, until they are archived; the newest of each partition stays"
            }
        };
        let mut all = vec![
            kept("log", self.log, log),
            kept("keys", Some(self.keys), "hashes that recognise repeats: retention.keys_days"),
            kept("feed", Some(self.feed), "references without content: events.retention_hours"),
            kept(
                "entries",
                None,
                "recalled messages and edits without content, with sender, device, msgId and time: retention.messages",
            ),
            kept(
                "memberships",
                None,
                "when the user was in which conversation, which names the user if it is direct; changes of groups by the user, or of it",
            ),
            kept(
                "chains",
                None,
                "numbers of the user's devices in conversations; chains on Redis may be written again by what was in flight, and end after 7 days",
            ),
            kept(
                "authored",
                None,
                "content by the user outside of its own messages: edits of messages of others, names and metadata of groups",
            ),
            kept("deletedGroups", None, "messages in groups that were deleted: retention.messages"),
            kept("others", None, "what others wrote, also about the user, and block lists of others"),
            kept(
                "files",
                None,
                "bytes of removed content in files of the store, until it compacts them (Postgres: vacuum and WAL)",
            ),
            kept("access", None, "bans, suspensions and revocations of tokens, until their end"),
            kept("audit", None, "lines of the audit log and of logs, until they are rotated away"),
            kept("copies", None, "exports, backups and what consumers of webhooks and events have stored"),
        ];
        if self.events.is_some() {
            all.push(kept("events", self.events, "events that name the user: kafka.event_retention_ms"));
        }
        if self.messages.is_some() {
            let note = "messages of the user with their content, also recalled ones: kafka.message_retention_ms, and a quarter of it";
            all.push(kept("messageTopic", self.messages, note));
        }
        all.into()
    }
}

/// Returns the time for which the topic of messages keeps an event: its segment ends up to `segment.ms` after it, and is removed
/// as a whole.
fn messages_kept(kafka: &KafkaConfig) -> u64 {
    kafka.message_retention_ms.saturating_add(kafka.message_segment_ms())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_on_kafka_remains_until_the_segment_of_its_event_is_removed() {
        let mut config = Config::default();
        config.node.profile = "cluster".to_owned();
        let of_topic = |config: &Config| {
            let remains = KeptTimes::of(config).remains();
            let all = remains.as_array().unwrap().clone();
            all.into_iter().find(|it| it["what"] == "messageTopic")
        };
        assert!(of_topic(&config).is_none());
        config.kafka.message_topic = "tidegate.messages".to_owned();
        config.kafka.message_retention_ms = 3_600_000;
        assert_eq!(of_topic(&config).unwrap()["forMs"], 4_500_000);
    }

    #[test]
    fn part_is_refused_while_the_store_may_lack_something() {
        assert!(known(Absence::Known).is_ok());
        let Err(Problem(code, _)) = known(Absence::InDoubt) else { panic!("it was read") };
        assert!(code.temporary());
    }
}

//! Endpoint of webhooks: what an operator defines, and what is stored of it for all nodes.

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Map, Value};
use tidegate_protocol::id::ConversationId;

use super::waiting_form::WaitingForm;
use crate::store::{ConsumerName, FeedPosition};

/// Most endpoints.
pub const ENDPOINTS_MAX: usize = 32;

/// Longest id of an endpoint, in bytes.
pub const ENDPOINT_ID_BYTES_MAX: usize = 32;

/// Most orders that owners have not carried out.
pub const ORDERS_MAX: usize = 16;

/// Most partitions whose numbers an endpoint stores.
pub(super) const STARTS_MAX: usize = 64;

/// Time before its creation at which an endpoint of more partitions starts, in ms: clocks of nodes differ.
pub(super) const START_MARGIN_MS: u64 = 60_000;

/// Time for which a former secret signs, too, in ms.
pub const SECRET_OVERLAP_MS: u64 = 24 * 3_600 * 1_000;

/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;

/// Prefix of the names of the consumers of the feed that are endpoints.
pub(super) const CONSUMER_PREFIX: &str = "w.";

/// Prefix of the names of the consumers of the feed that are notices of endpoints.
pub(super) const NOTICE_PREFIX: &str = "n.";

/// Fields of [`EndpointForm`] in JSON.
const FORM_FIELDS: [&str; 12] = [
    "url",
    "types",
    "conversations",
    "users",
    "content",
    "batch",
    "parallel",
    "timeoutMs",
    "asideAfterMs",
    "headers",
    "from",
    "waiting",
];

/// Definition of an endpoint, as the admin API takes it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct EndpointForm {
    /// URL that gets the events.
    pub url: String,
    /// Types of events, or beginnings of them with a `*` at the end.
    pub types: Vec<String>,
    /// Conversations, or beginnings of them with a `*` at the end; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversations: Vec<String>,
    /// Users as senders, recipients or subjects; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// Whether events have the content of messages.
    #[serde(default, skip_serializing_if = "is_false")]
    pub content: bool,
    /// Size of a request.
    #[serde(default)]
    pub batch: BatchForm,
    /// Requests of a node at a time.
    #[serde(default = "parallel")]
    pub parallel: usize,
    /// Longest time of a request.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// Time after which an event that fails while others succeed is set aside.
    #[serde(default = "aside_after_ms")]
    pub aside_after_ms: u64,
    /// Headers that the requests have besides their own; `None` keeps those that are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// Start of a new endpoint.
    #[serde(default)]
    pub from: StartForm,
    /// Notices that messages wait for users; `None` for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingForm>,
}

/// Size of a request, and the wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct BatchForm {
    /// Most events.
    pub max: usize,
    /// Longest wait for more events.
    pub wait_ms: u64,
}

impl Default for BatchForm {
    fn default() -> Self {
        Self { max: 100, wait_ms: 50 }
    }
}

/// Start of an endpoint in the feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum StartForm {
    /// With what is accepted after the endpoint was stored.
    #[default]
    Now,
    /// With the oldest event that the feed has.
    Oldest,
    /// With the first event received at that time or later, in ms since 1970.
    At(u64),
}

impl TryFrom<Value> for StartForm {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        let start = match (value.as_str(), value.as_object()) {
            (Some("now"), _) => Some(Self::Now),
            (Some("oldest"), _) => Some(Self::Oldest),
            (_, Some(fields)) if fields.len() == 1 => {
                fields.get("time").and_then(Value::as_u64).map(Self::At)
            }
            _ => None,
        };
        start.ok_or("from: \"now\", \"oldest\" or {\"time\": ms since 1970}")
    }
}

impl From<StartForm> for Value {
    fn from(start: StartForm) -> Self {
        match start {
            StartForm::Now => "now".into(),
            StartForm::Oldest => "oldest".into(),
            StartForm::At(time) => serde_json::json!({"time": time}),
        }
    }
}

fn is_false(it: &bool) -> bool {
    !*it
}

const fn parallel() -> usize {
    4
}

const fn timeout_ms() -> u64 {
    15_000
}

const fn aside_after_ms() -> u64 {
    24 * 3_600 * 1_000
}

impl fmt::Debug for EndpointForm {
    /// Leaves out the values of headers, and the URL, which may have a secret in its path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointForm").field("types", &self.types).finish_non_exhaustive()
    }
}

impl EndpointForm {
    /// Returns what is wrong with the numbers, each with its field; the rest is checked by what uses it.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut need = |holds: bool, what: &str| {
            if !holds {
                problems.push(what.to_owned());
            }
        };
        need((1..=100).contains(&self.batch.max), "batch.max: between 1 and 100 events");
        need(self.batch.wait_ms <= 10_000, "batch.waitMs: at most 10000");
        need((1..=32).contains(&self.parallel), "parallel: between 1 and 32 requests");
        need((100..=60_000).contains(&self.timeout_ms), "timeoutMs: between 100 and 60000");
        let aside = 60_000..=7 * 24 * 3_600 * 1_000;
        need(aside.contains(&self.aside_after_ms), "asideAfterMs: between one minute and 7 days");
        need(self.users.len() <= 64, "users: at most 64");
        for problem in self.waiting.iter().flat_map(|waiting| waiting.problems(self.content)) {
            need(false, problem);
        }
        problems
    }
}

/// Secret that signs the requests of an endpoint.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSecret {
    /// Id, by which it is deleted.
    pub id: String,
    /// Secret, `whsec_…`.
    pub secret: String,
    /// Time of its creation, in ms since 1970.
    pub created_ms: u64,
    /// End, once there is a newer one, in ms since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_ms: Option<u64>,
}

impl fmt::Debug for EndpointSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointSecret").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Order that each owner carries out once in its partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredOrder {
    /// Number; later orders have higher ones.
    pub number: u64,
    /// Action of each owner.
    #[serde(rename = "do")]
    pub action: StoredAction,
}

/// Action of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StoredAction {
    /// Delivers again from there.
    Replay(StartForm),
    /// Removes an event from those that were set aside.
    Drop(String, u64),
    /// Sends again after the receiver had refused all.
    Resume,
}

impl StoredAction {
    /// Returns the event that the order drops.
    pub fn dropped(&self) -> Option<(ConversationId, u64)> {
        match self {
            Self::Drop(conversation, seq) => Some((ConversationId::parse(conversation).ok()?, *seq)),
            Self::Replay(_) | Self::Resume => None,
        }
    }
}

/// Endpoint as it is stored. Its id is the name of the entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredEndpoint {
    /// Definition, which may have fields of a newer version.
    #[serde(deserialize_with = "known_fields")]
    pub form: EndpointForm,
    /// Secrets that sign, the newest last.
    pub secrets: Vec<EndpointSecret>,
    /// Distinguishes this endpoint from a former one of its id, which may have left cursors.
    pub instance: u32,
    /// Newest feed numbers when it was stored, by partition, if it starts behind them. With more than
    /// [`STARTS_MAX`] partitions they are left out: it starts at its creation then, by time.
    #[serde(default)]
    pub starts: BTreeMap<u32, u64>,
    /// Time of its creation, in ms since 1970.
    pub created_ms: u64,
    /// Time since which it wants notices that messages wait, in ms since 1970; `None` if it wants none, or has always
    /// wanted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since_ms: Option<u64>,
    /// Whether nothing is sent.
    #[serde(default)]
    pub paused: bool,
    /// Orders that some owner may not have carried out.
    #[serde(default)]
    pub orders: Vec<StoredOrder>,
    /// Number of the newest order.
    #[serde(default)]
    pub last_order: u64,
}

impl StoredEndpoint {
    /// Creates an endpoint with a secret. `positions` are those of the feed, read before it is stored.
    pub fn new(form: EndpointForm, positions: &[FeedPosition], now_ms: u64) -> Self {
        let has_starts = form.from == StartForm::Now && positions.len() <= STARTS_MAX;
        let starts = positions.iter().filter(|_| has_starts).map(|it| (it.partition, it.newest)).collect();
        let (secrets, orders) = (vec![new_secret("s1".to_owned(), now_ms)], Vec::new());
        let instance = rand::random();
        Self {
            form,
            secrets,
            instance,
            starts,
            created_ms: now_ms,
            waiting_since_ms: None,
            paused: false,
            orders,
            last_order: 0,
        }
    }

    /// Decodes a stored endpoint, whose form may have fields of a newer version; `None` if this version can't read it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// Encodes the endpoint.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the name under which its cursors are stored.
    pub fn consumer(&self, id: &str) -> Option<ConsumerName> {
        ConsumerName::new(format!("{CONSUMER_PREFIX}{id}.{:08x}", self.instance)).ok()
    }

    /// Returns the name under which the cursors of its notices are stored; `None` if it wants none.
    pub fn notice_consumer(&self, id: &str) -> Option<ConsumerName> {
        self.form.waiting?;
        // Notices that were removed and begin again have cursors of their own; the former ones are swept.
        let since = self.waiting_since_ms.map(|since| format!("-{since:x}")).unwrap_or_default();
        ConsumerName::new(format!("{NOTICE_PREFIX}{id}.{:08x}{since}", self.instance)).ok()
    }

    /// Replaces the definition, and notes since when it wants notices.
    pub fn replace_form(&mut self, form: EndpointForm, now_ms: u64) {
        match (self.form.waiting, form.waiting) {
            (None, Some(_)) => self.waiting_since_ms = Some(now_ms),
            (_, None) => self.waiting_since_ms = None,
            (Some(_), Some(_)) => {}
        }
        self.form = form;
    }

    /// Returns the secrets that sign at a time.
    pub fn signing(&self, now_ms: u64) -> Vec<String> {
        let in_force = self.secrets.iter().filter(|it| it.ends_ms.is_none_or(|ends| now_ms < ends));
        in_force.map(|it| it.secret.clone()).collect()
    }

    /// Returns when the next secret ends after a time.
    pub fn next_end(&self, now_ms: u64) -> Option<u64> {
        self.secrets.iter().filter_map(|it| it.ends_ms).filter(|ends| *ends > now_ms).min()
    }

    /// Adds a secret; the former one signs for another day. Returns `None` if two are in force.
    pub fn add_secret(&mut self, given: Option<String>, now_ms: u64) -> Option<&EndpointSecret> {
        self.secrets.retain(|it| it.ends_ms.is_none_or(|ends| now_ms < ends));
        if self.secrets.len() > 1 {
            return None;
        }
        let last = self.secrets.last().and_then(|it| it.id.strip_prefix('s')?.parse::<u64>().ok());
        let mut added = new_secret(format!("s{}", last.unwrap_or(0) + 1), now_ms);
        if let Some(given) = given {
            added.secret = given;
        }
        for former in &mut self.secrets {
            former.ends_ms = Some(now_ms.saturating_add(SECRET_OVERLAP_MS));
        }
        self.secrets.push(added);
        self.secrets.last()
    }

    /// Removes a secret. Returns `None` if there is none of the id, and false if it is the only one that stays in force.
    pub fn remove_secret(&mut self, id: &str) -> Option<bool> {
        let at = self.secrets.iter().position(|it| it.id == id)?;
        let others = self.secrets.iter().any(|it| it.id != id && it.ends_ms.is_none());
        if others {
            self.secrets.remove(at);
        }
        Some(others)
    }

    /// Returns whether a further order has room, once those up to `done` are forgotten.
    pub fn has_room(&self, done: u64) -> bool {
        self.orders.iter().filter(|it| it.number > done).count() < ORDERS_MAX
    }

    /// Adds an order, and forgets those up to `done`, which all partitions have carried out. Returns false if too many wait.
    pub fn order(&mut self, action: StoredAction, done: u64) -> bool {
        // A further replay takes the place of those before it, as another order of the same kind does.
        let is_replay = matches!(action, StoredAction::Replay(_));
        self.orders.retain(|it| {
            let is_replaced =
                it.action == action || is_replay && matches!(it.action, StoredAction::Replay(_));
            it.number > done && !is_replaced
        });
        if self.orders.len() >= ORDERS_MAX {
            return false;
        }
        self.last_order += 1;
        self.orders.push(StoredOrder { number: self.last_order, action });
        true
    }
}

/// Decodes the known fields of a definition.
fn known_fields<'de, D: Deserializer<'de>>(decoder: D) -> Result<EndpointForm, D::Error> {
    let mut form = Map::deserialize(decoder)?;
    form.retain(|name: &String, _| FORM_FIELDS.contains(&name.as_str()));
    serde_json::from_value(Value::Object(form)).map_err(D::Error::custom)
}

fn new_secret(id: String, created_ms: u64) -> EndpointSecret {
    let bytes: [u8; SECRET_BYTES] = rand::random();
    EndpointSecret { id, secret: format!("whsec_{}", STANDARD.encode(bytes)), created_ms, ends_ms: None }
}

#[cfg(test)]
mod tests;

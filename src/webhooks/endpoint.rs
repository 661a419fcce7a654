//! Endpoint of webhooks: what an operator defines, and what is stored of it for all nodes.

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tidegate_protocol::id::ConversationId;

use crate::store::{ConsumerName, FeedPosition};

/// Most endpoints.
pub const ENDPOINTS_MAX: usize = 32;

/// Longest id of an endpoint, in bytes.
pub const ENDPOINT_ID_BYTES_MAX: usize = 32;

/// Most orders that owners have not carried out.
pub const ORDERS_MAX: usize = 16;

/// Time for which a former secret signs, too, in ms.
pub const SECRET_OVERLAP_MS: u64 = 24 * 3_600 * 1_000;

/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;

/// Prefix of the names of the consumers of the feed that are endpoints.
pub(super) const CONSUMER_PREFIX: &str = "w.";

/// Fields of [`EndpointForm`] in JSON.
const FORM_FIELDS: [&str; 11] = [
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredEndpoint {
    /// Definition.
    pub form: EndpointForm,
    /// Secrets that sign, the newest last.
    pub secrets: Vec<EndpointSecret>,
    /// Distinguishes this endpoint from a former one of its id, which may have left cursors.
    pub instance: u32,
    /// Newest feed numbers when it was stored, by partition; it starts behind them unless the form names another start.
    pub starts: BTreeMap<u32, u64>,
    /// Time of its creation, in ms since 1970.
    pub created_ms: u64,
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

/// [`StoredEndpoint`] as a newer version may have written it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Decoded {
    form: Map<String, Value>,
    secrets: Vec<EndpointSecret>,
    instance: u32,
    starts: BTreeMap<u32, u64>,
    created_ms: u64,
    #[serde(default)]
    paused: bool,
    #[serde(default)]
    orders: Vec<StoredOrder>,
    #[serde(default)]
    last_order: u64,
}

impl StoredEndpoint {
    /// Creates an endpoint with a secret. `positions` are those of the feed, read before it is stored.
    pub fn new(form: EndpointForm, positions: &[FeedPosition], now_ms: u64) -> Self {
        let starts = positions.iter().map(|it| (it.partition, it.newest)).collect();
        let (secrets, orders) = (vec![new_secret("s1".to_owned(), now_ms)], Vec::new());
        let instance = rand::random();
        Self { form, secrets, instance, starts, created_ms: now_ms, paused: false, orders, last_order: 0 }
    }

    /// Decodes a stored endpoint, whose form may have fields of a newer version; `None` if this version can't read it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut it: Decoded = serde_json::from_slice(bytes).ok()?;
        it.form.retain(|name, _| FORM_FIELDS.contains(&name.as_str()));
        let form = serde_json::from_value(Value::Object(it.form)).ok()?;
        let Decoded { secrets, instance, starts, created_ms, paused, orders, last_order, .. } = it;
        Some(Self { form, secrets, instance, starts, created_ms, paused, orders, last_order })
    }

    /// Encodes the endpoint.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the name under which its cursors are stored.
    pub fn consumer(&self, id: &str) -> Option<ConsumerName> {
        ConsumerName::new(format!("{CONSUMER_PREFIX}{id}.{:08x}", self.instance)).ok()
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

    /// Adds an order, and forgets those up to `done`, which all partitions have carried out. Returns false if too many wait.
    pub fn order(&mut self, action: StoredAction, done: u64) -> bool {
        self.orders.retain(|it| it.number > done);
        if self.orders.len() >= ORDERS_MAX {
            return false;
        }
        self.last_order += 1;
        self.orders.push(StoredOrder { number: self.last_order, action });
        true
    }
}

fn new_secret(id: String, created_ms: u64) -> EndpointSecret {
    let bytes: [u8; SECRET_BYTES] = rand::random();
    EndpointSecret { id, secret: format!("whsec_{}", STANDARD.encode(bytes)), created_ms, ends_ms: None }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form(more: Value) -> Result<EndpointForm, String> {
        let mut fields = json!({"url": "https://crm.example/tg", "types": ["tidegate.message.*"]});
        if let (Some(fields), Some(more)) = (fields.as_object_mut(), more.as_object()) {
            fields.extend(more.clone());
        }
        serde_json::from_value(fields).map_err(|error| error.to_string())
    }

    fn endpoint() -> StoredEndpoint {
        StoredEndpoint::new(form(json!({})).unwrap(), &[], 1_000)
    }

    #[test]
    fn start_is_a_word_or_a_time() {
        for (from, start) in [
            (json!("now"), StartForm::Now),
            (json!("oldest"), StartForm::Oldest),
            (json!({"time": 5}), StartForm::At(5)),
        ] {
            let form = form(json!({ "from": from })).unwrap();
            assert_eq!(form.from, start);
            assert_eq!(serde_json::to_value(&form).unwrap()["from"], Value::from(start));
        }
        for wrong in [json!("start"), json!({"time": -1}), json!({"time": 1, "x": 2}), json!(3), json!(null)]
        {
            let error = form(json!({ "from": wrong })).unwrap_err();
            assert!(error.contains("from: \"now\", \"oldest\""), "{error}");
        }
    }

    #[test]
    fn numbers_have_bounds() {
        assert_eq!(form(json!({})).unwrap().problems(), [""; 0]);
        for (fields, problem) in [
            (json!({"batch": {"max": 0}}), "batch.max"),
            (json!({"batch": {"max": 101}}), "batch.max"),
            (json!({"batch": {"waitMs": 10_001}}), "batch.waitMs"),
            (json!({"parallel": 33}), "parallel"),
            (json!({"timeoutMs": 60_001}), "timeoutMs"),
            (json!({"asideAfterMs": 59_999}), "asideAfterMs"),
            (json!({"users": vec!["u"; 65]}), "users"),
        ] {
            let problems = form(fields).unwrap().problems();
            assert!(problems.len() == 1 && problems[0].starts_with(problem), "{problems:?}");
        }
        assert!(form(json!({"pararell": 2})).unwrap_err().contains("unknown field"));
    }

    #[test]
    fn stored_form_is_fixed_and_fields_of_newer_versions_are_ignored() {
        let text = r#"{"form":{"url":"https://crm.example/tg","types":["tidegate.*"],"batch":{"max":100,"waitMs":50},"parallel":4,"timeoutMs":15000,"asideAfterMs":86400000,"from":"now"},"secrets":[{"id":"s1","secret":"whsec_x","createdMs":1,"endsMs":9},{"id":"s2","secret":"whsec_y","createdMs":2}],"instance":7,"starts":{"0":12},"createdMs":1,"paused":true,"orders":[{"number":1,"do":{"replay":"oldest"}},{"number":2,"do":{"drop":["g:team",3]}},{"number":3,"do":"resume"}],"lastOrder":3}"#;
        let stored = StoredEndpoint::decode(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(stored.encode()).unwrap(), text);
        assert_eq!(stored.consumer("crm").unwrap().as_str(), "w.crm.00000007");
        assert_eq!(stored.orders[1].action.dropped(), Some((ConversationId::parse("g:team").unwrap(), 3)));
        let newer = text.replacen("\"url\"", "\"later\":1,\"url\"", 1).replacen(
            "\"paused\"",
            "\"other\":{},\"paused\"",
            1,
        );
        assert_eq!(StoredEndpoint::decode(newer.as_bytes()), Some(stored));
        assert_eq!(StoredEndpoint::decode(b"{}"), None);
    }

    #[test]
    fn former_secret_signs_for_a_day_or_until_it_is_removed() {
        let mut it = endpoint();
        assert_eq!(it.remove_secret("s1"), Some(false), "it is the only one");
        let added = it.add_secret(None, 2_000).unwrap().clone();
        assert_eq!((added.id.as_str(), it.signing(2_000).len()), ("s2", 2));
        assert!(added.secret.starts_with("whsec_") && added.secret != it.secrets[0].secret);
        assert_eq!(it.add_secret(None, 3_000), None, "two are in force");
        assert_eq!(it.next_end(2_000), Some(2_000 + SECRET_OVERLAP_MS));
        assert_eq!(it.signing(2_000 + SECRET_OVERLAP_MS), [added.secret.as_str()]);
        assert_eq!(it.remove_secret("s2"), Some(false), "the former one ends");
        assert_eq!(it.remove_secret("s1"), Some(true));
        assert_eq!(it.remove_secret("s1"), None);
        let given = format!("whsec_{}", STANDARD.encode([1; 32]));
        assert_eq!(it.add_secret(Some(given.clone()), 4_000).unwrap().secret, given);
        assert!(!format!("{it:?}").contains("whsec_"), "{it:?}");
    }

    #[test]
    fn orders_are_bounded_and_forgotten_once_carried_out() {
        let mut it = endpoint();
        for number in 1..=ORDERS_MAX as u64 {
            assert!(it.order(StoredAction::Resume, 0));
            assert_eq!(it.last_order, number);
        }
        assert!(!it.order(StoredAction::Resume, 0));
        assert!(it.order(StoredAction::Replay(StartForm::Oldest), 3));
        assert_eq!(it.orders.first().map(|it| it.number), Some(4));
        assert_eq!(it.orders.last().map(|it| it.number), Some(17));
    }
}

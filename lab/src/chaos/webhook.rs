//! Endpoint of webhooks in a run: a receiver that records what it takes, fails, refuses single events, goes away and rotates
//! its secrets, and that has to have everything at the end.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    time::sleep,
};

use super::{
    admin::Admin,
    record::Recorder,
    taken::{CATCH_UP_MAX, Taken},
    world::World,
};
use crate::{
    checker::HistoryEvent,
    webhook_request::{self, field},
};

/// Id of the endpoint.
const ID: &str = "chaos";

/// Settings that let nodes call the receiver.
pub(super) const WEBHOOK_SETS: &[&str] = &["webhooks.allow_plain=true", "webhooks.content_hosts=[127.0.0.1]"];

/// Share of requests that are answered with an error, and of those that are taken without an answer, in percent.
const ERRORS: u32 = 2;
const LOST_ANSWERS: u32 = 2;

/// Shortest and longest time between two outages of the receiver, and of an outage, in ms.
const BETWEEN_MS: std::ops::Range<u64> = 2_000..8_000;
const OUTAGE_MS: std::ops::Range<u64> = 300..3_000;

/// Longest time between two tries of a parked event.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Longest time of a request.
const REQUEST_MAX: Duration = Duration::from_secs(2);

/// How long the nodes of a cluster may sign with a secret that was removed, as docs/webhooks.md says: one that is cut off from
/// the store and from its peers meanwhile signs with what it knows.
const FORMER_SECRETS_FOR: Duration = Duration::from_secs(60);

/// Outages between two rotations of the secret.
const ROTATE_EACH: u32 = 2;

/// Requests that are refused for one event. Within five of them it is found among up to 20 others, and its conversation parked.
const POISON_REFUSALS: u32 = 8;

/// Requests between two failing events.
const POISON_EACH: u32 = 200;

/// What the receiver did to its senders in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ReceiverFaults {
    /// Outages.
    pub(super) outages: u64,
    /// Rotations of the secret.
    pub(super) rotations: u64,
    /// Events that it refused in several requests while it took others.
    pub(super) poisons: u64,
}

/// Event that the receiver refuses again and again while it takes others: at most one at a time.
#[derive(Default)]
struct Poison {
    /// Id of the event, and the requests in which it will be refused still.
    event: Option<(String, u32)>,
    /// Requests since the last one.
    calm: u32,
    count: u64,
}

impl Poison {
    /// Returns whether a request is refused for an event of it.
    fn is_in(&mut self, events: &[Value]) -> bool {
        let id = |event: &Value| event["id"].as_str().map(str::to_owned);
        let Some((poison, left)) = &mut self.event else {
            self.calm += 1;
            if self.calm >= POISON_EACH {
                self.event = events.first().and_then(id).map(|id| (id, POISON_REFUSALS - 1));
                (self.calm, self.count) = (0, self.count + u64::from(self.event.is_some()));
            }
            return self.event.is_some();
        };
        if !events.iter().any(|event| event["id"] == *poison) {
            return false;
        }
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.event = None;
        }
        true
    }
}

/// Receiver of the events of all conversations.
pub(super) struct WebhookReceiver {
    address: SocketAddr,
    recorder: Arc<Recorder>,
    pub(super) taken: Taken,
    rng: Mutex<StdRng>,
    secrets: Mutex<Vec<KnownSecret>>,
    /// How long a secret is valid after it was removed.
    former_for: Duration,
    is_down: AtomicBool,
    /// Whether the receiver fails by itself.
    is_calm: AtomicBool,
    poison: Mutex<Poison>,
    outages: AtomicU64,
    rotations: AtomicU64,
    /// Requests without a valid signature.
    unsigned: AtomicU64,
}

/// Secret that signs requests.
struct KnownSecret {
    bytes: Vec<u8>,
    /// Time from which it must not sign any more, once it was removed.
    ends: Option<Instant>,
}

/// What the receiver does with a request.
enum Treatment {
    Take,
    TakeSilently,
    Refuse,
}

impl WebhookReceiver {
    /// Starts a receiver, and subscribes it to the events of all conversations, before there are any. Its faults follow from
    /// the seed.
    pub(super) async fn subscribed(seed: u64, world: &Arc<World>) -> anyhow::Result<Arc<Self>> {
        let is_cluster = world.client_addresses.len() > 1;
        // What was signed before is on its way for as long as a request may take.
        let former_for = if is_cluster { FORMER_SECRETS_FOR } else { REQUEST_MAX };
        let it = Self::start(seed, former_for, &world.recorder).await?;
        it.subscribe(world).await?;
        Ok(it)
    }

    async fn start(seed: u64, former_for: Duration, recorder: &Arc<Recorder>) -> anyhow::Result<Arc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let it = Arc::new(Self {
            address: listener.local_addr()?,
            recorder: Arc::clone(recorder),
            taken: Taken::new(ID, Arc::clone(recorder)),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
            secrets: Mutex::default(),
            former_for,
            is_down: AtomicBool::new(false),
            is_calm: AtomicBool::new(false),
            poison: Mutex::default(),
            outages: AtomicU64::new(0),
            rotations: AtomicU64::new(0),
            unsigned: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&it);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let it = Arc::clone(&accepting);
                if !it.is_down.load(Ordering::Acquire) {
                    tokio::spawn(async move { it.serve(stream).await });
                }
            }
        });
        Ok(it)
    }

    async fn subscribe(self: &Arc<Self>, world: &Arc<World>) -> anyhow::Result<()> {
        let form = json!({
            "url": format!("http://{}/tg", self.address),
            "types": ["tidegate.message.*", "tidegate.member.*", "tidegate.group.*"],
            "content": true,
            "batch": {"max": 20, "waitMs": 5},
            "timeoutMs": REQUEST_MAX.as_millis() as u64,
            "asideAfterMs": 604_800_000_u64,
            "from": "oldest",
        });
        let path = format!("/v1/webhooks/{ID}");
        // The answer with the secret may be lost, so the secret is one of ours.
        let (status, answer) = world.admin.settle("PUT", &path, &form).await?;
        if status > 299 {
            bail!("PUT {path}: {status} {answer}");
        }
        let secret = self.new_secret();
        self.rotate(&world.admin, &secret).await?;
        let (it, world) = (Arc::clone(self), Arc::clone(world));
        tokio::spawn(async move {
            if let Err(error) = it.fail_now_and_then(&world).await {
                world.fail(format!("the endpoint of webhooks: {error:#}"));
            }
        });
        Ok(())
    }

    fn new_secret(&self) -> String {
        let bytes: [u8; 32] = self.rng.lock().random();
        format!("whsec_{}", STANDARD.encode(bytes))
    }

    /// Adds a secret, and removes all others.
    async fn rotate(&self, admin: &Admin, secret: &str) -> anyhow::Result<()> {
        let bytes = secret.strip_prefix("whsec_").and_then(|text| STANDARD.decode(text).ok());
        let bytes = bytes.context("a secret")?;
        self.secrets.lock().push(KnownSecret { bytes: bytes.clone(), ends: None });
        let path = format!("/v1/webhooks/{ID}/secrets");
        let (status, answer) = admin.settle("POST", &path, &json!({ "secret": secret })).await?;
        // 409: the answer to the first try was lost.
        if ![201, 409].contains(&status) {
            bail!("POST {path}: {status} {answer}");
        }
        let (_, shown) = admin.settle("GET", &format!("/v1/webhooks/{ID}"), &Value::Null).await?;
        let ids: Vec<&str> =
            shown["secrets"].as_array().into_iter().flatten().filter_map(|it| it["id"].as_str()).collect();
        let newest = ids.last().copied().unwrap_or_default();
        for former in ids.iter().filter(|id| **id != newest) {
            let (status, answer) = admin.settle("DELETE", &format!("{path}/{former}"), &json!({})).await?;
            if ![200, 404].contains(&status) {
                bail!("DELETE {path}/{former}: {status} {answer}");
            }
        }
        let (now, mut secrets) = (Instant::now(), self.secrets.lock());
        secrets.retain(|it| it.ends.is_none_or(|ends| ends > now));
        for former in secrets.iter_mut().filter(|it| it.bytes != bytes) {
            former.ends.get_or_insert(now + self.former_for);
        }
        Ok(())
    }

    async fn fail_now_and_then(&self, world: &World) -> anyhow::Result<()> {
        for nth in 1_u32.. {
            let (pause, outage) = {
                let mut rng = self.rng.lock();
                (rng.random_range(BETWEEN_MS), rng.random_range(OUTAGE_MS))
            };
            sleep(Duration::from_millis(pause)).await;
            if self.is_calm.load(Ordering::Acquire) {
                return Ok(());
            }
            if nth % ROTATE_EACH == 0 {
                let secret = self.new_secret();
                self.rotate(&world.admin, &secret).await?;
                self.rotations.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            self.recorder.add(HistoryEvent::Nemesis { on: true, fault: "receiver" });
            self.outages.fetch_add(1, Ordering::Relaxed);
            self.is_down.store(true, Ordering::Release);
            sleep(Duration::from_millis(outage)).await;
            self.is_down.store(false, Ordering::Release);
            self.recorder.add(HistoryEvent::Nemesis { on: false, fault: "receiver" });
        }
        Ok(())
    }

    /// Returns what it did until now.
    pub(super) fn faults(&self) -> ReceiverFaults {
        ReceiverFaults {
            outages: self.outages.load(Ordering::Relaxed),
            rotations: self.rotations.load(Ordering::Relaxed),
            poisons: self.poison.lock().count,
        }
    }

    /// Stops to fail, and waits until the endpoint has taken everything, by the word of a node.
    pub(super) async fn catch_up(&self, world: &World) -> anyhow::Result<()> {
        self.is_calm.store(true, Ordering::Release);
        let began = Instant::now();
        let mut longest = CATCH_UP_MAX;
        loop {
            let (status, shown) =
                world.admin.settle("GET", &format!("/v1/webhooks/{ID}"), &Value::Null).await?;
            longest = longest.max(CATCH_UP_MAX + longest_retry(&shown["parked"]));
            let is_done = status == 200 && ["behind", "parkedCount"].iter().all(|key| shown[*key] == 0);
            if is_done && shown["asideCount"] == 0 {
                break;
            }
            if began.elapsed() > longest {
                bail!("the endpoint of webhooks has not taken everything: {shown}");
            }
            sleep(Duration::from_millis(200)).await;
        }
        let unsigned = self.unsigned.load(Ordering::Relaxed);
        if unsigned > 0 {
            bail!("{unsigned} requests to the endpoint of webhooks had no valid signature");
        }
        self.taken.catch_up();
        Ok(())
    }

    /// Serves one connection until its end.
    async fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let (head, body) = webhook_request::read(&mut stream).await?;
            if self.is_down.load(Ordering::Acquire) {
                return None;
            }
            let status = match self.treat(&head, &body)? {
                Treatment::Take => 204,
                Treatment::Refuse => 500,
                Treatment::TakeSilently => return None,
            };
            let answer = format!("HTTP/1.1 {status} Answer\r\ncontent-length: 0\r\n\r\n");
            stream.get_mut().write_all(answer.as_bytes()).await.ok()?;
        }
    }

    /// Verifies a request, and records its events if they are taken.
    fn treat(&self, head: &str, body: &[u8]) -> Option<Treatment> {
        if !self.is_signed(head, body)? {
            self.unsigned.fetch_add(1, Ordering::Relaxed);
            return Some(Treatment::Refuse);
        }
        let events: Value = serde_json::from_slice(body).ok()?;
        let events = events.as_array()?;
        let is_calm = self.is_calm.load(Ordering::Acquire);
        let draw = if is_calm { 99 } else { self.rng.lock().random_range(0..100) };
        if draw < ERRORS || (!is_calm && self.poison.lock().is_in(events)) {
            return Some(Treatment::Refuse);
        }
        events.iter().for_each(|event| self.taken.note(event));
        Some(if draw < ERRORS + LOST_ANSWERS { Treatment::TakeSilently } else { Treatment::Take })
    }

    fn is_signed(&self, head: &str, body: &[u8]) -> Option<bool> {
        let (id, time) = (field(head, "webhook-id")?, field(head, "webhook-timestamp")?);
        let signed = [id.as_bytes(), b".", time.as_bytes(), b".", body].concat();
        let given = field(head, "webhook-signature")?;
        let (now, secrets) = (Instant::now(), self.secrets.lock());
        let mut valid = secrets.iter().filter(|it| it.ends.is_none_or(|ends| ends > now));
        // Requests that were on their way before the first secret of ours are answered with an error.
        Some(valid.any(|secret| {
            let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret.bytes), &signed);
            let expected = format!("v1,{}", STANDARD.encode(tag));
            given.split(' ').any(|it| it == expected)
        }))
    }
}

/// Returns the longest time until the next try of a parked event, as docs/webhooks.md says.
fn longest_retry(parked: &Value) -> Duration {
    let tries = parked.as_array().into_iter().flatten().filter_map(|it| it["tries"].as_u64());
    let failed = tries.max().and_then(|tries| tries.checked_sub(1));
    failed.map_or(Duration::ZERO, |failed| Duration::from_secs(1 << failed.min(9)).min(RETRY_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(ids: &[u32]) -> Vec<Value> {
        ids.iter().map(|id| json!({"id": format!("g:a/{id}")})).collect()
    }

    #[test]
    fn the_next_try_of_a_parked_event_is_waited_for() {
        let after = |tries: &[u64]| {
            let parked: Vec<Value> = tries.iter().map(|tries| json!({"tries": tries})).collect();
            longest_retry(&parked.into()).as_secs()
        };
        assert_eq!(
            [after(&[]), after(&[0]), after(&[1, 0]), after(&[3, 8]), after(&[40])],
            [0, 0, 1, 128, 300]
        );
    }

    #[test]
    fn one_event_at_a_time_is_refused_some_times_while_others_are_taken() {
        let mut poison = Poison::default();
        let refused: Vec<u32> = (1..POISON_EACH + 20).filter(|nth| poison.is_in(&events(&[*nth]))).collect();
        assert_eq!(refused, [POISON_EACH], "only the first of them, in its first request");
        let with_others = events(&[7, POISON_EACH, 9]);
        let again = (0..20).filter(|_| poison.is_in(&with_others)).count();
        assert_eq!(again, POISON_REFUSALS as usize - 1);
        assert_eq!((poison.count, poison.event), (1, None));
    }
}

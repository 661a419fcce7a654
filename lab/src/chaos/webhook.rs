//! Endpoint of webhooks in a run: a receiver that records what it takes, fails, goes away and rotates its secrets, and
//! that has to have everything at the end.

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

/// Longest time of a request.
const REQUEST_MAX: Duration = Duration::from_secs(2);

/// Outages between two rotations of the secret.
const ROTATE_EACH: u32 = 2;

/// Receiver of the events of all conversations.
pub(super) struct WebhookReceiver {
    address: SocketAddr,
    recorder: Arc<Recorder>,
    pub(super) taken: Taken,
    rng: Mutex<StdRng>,
    secrets: Mutex<Vec<Vec<u8>>>,
    is_down: AtomicBool,
    /// Whether the receiver fails by itself.
    is_calm: AtomicBool,
    /// Requests without a valid signature.
    unsigned: AtomicU64,
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
        let it = Self::start(seed, &world.recorder).await?;
        it.subscribe(world).await?;
        Ok(it)
    }

    async fn start(seed: u64, recorder: &Arc<Recorder>) -> anyhow::Result<Arc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let it = Arc::new(Self {
            address: listener.local_addr()?,
            recorder: Arc::clone(recorder),
            taken: Taken::new(ID, Arc::clone(recorder)),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
            secrets: Mutex::default(),
            is_down: AtomicBool::new(false),
            is_calm: AtomicBool::new(false),
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
        self.secrets.lock().push(bytes.clone());
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
        // What was signed before is on its way for as long as a request may take.
        sleep(REQUEST_MAX).await;
        *self.secrets.lock() = vec![bytes];
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
                continue;
            }
            self.recorder.add(HistoryEvent::Nemesis { on: true, fault: "receiver" });
            self.is_down.store(true, Ordering::Release);
            sleep(Duration::from_millis(outage)).await;
            self.is_down.store(false, Ordering::Release);
            self.recorder.add(HistoryEvent::Nemesis { on: false, fault: "receiver" });
        }
        Ok(())
    }

    /// Stops to fail, and waits until the endpoint has taken everything, by the word of a node.
    pub(super) async fn catch_up(&self, world: &World) -> anyhow::Result<()> {
        self.is_calm.store(true, Ordering::Release);
        let end = Instant::now() + CATCH_UP_MAX;
        loop {
            let (status, shown) =
                world.admin.settle("GET", &format!("/v1/webhooks/{ID}"), &Value::Null).await?;
            let is_done = status == 200 && ["behind", "parkedCount"].iter().all(|key| shown[*key] == 0);
            if is_done && shown["asideCount"] == 0 {
                break;
            }
            if Instant::now() > end {
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
        let draw =
            if self.is_calm.load(Ordering::Acquire) { 99 } else { self.rng.lock().random_range(0..100) };
        if draw < ERRORS {
            return Some(Treatment::Refuse);
        }
        let events: Value = serde_json::from_slice(body).ok()?;
        events.as_array()?.iter().for_each(|event| self.taken.note(event));
        Some(if draw < ERRORS + LOST_ANSWERS { Treatment::TakeSilently } else { Treatment::Take })
    }

    fn is_signed(&self, head: &str, body: &[u8]) -> Option<bool> {
        let (id, time) = (field(head, "webhook-id")?, field(head, "webhook-timestamp")?);
        let signed = [id.as_bytes(), b".", time.as_bytes(), b".", body].concat();
        let given = field(head, "webhook-signature")?;
        let secrets = self.secrets.lock();
        // Requests that were on their way before the first secret of ours are answered with an error.
        Some(secrets.iter().any(|secret| {
            let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &signed);
            let expected = format!("v1,{}", STANDARD.encode(tag));
            given.split(' ').any(|it| it == expected)
        }))
    }
}

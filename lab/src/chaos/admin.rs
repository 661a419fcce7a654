//! Client of the admin ports of the running nodes. It repeats each change on one node after the other until it is
//! answered.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidegate::cli::http::Connection;
use tokio::time::timeout;

/// Time for one attempt, and for all attempts while no fault is active: a new fault may strike before the last one is
/// repaired.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(8);
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Addresses of the admin ports of the running nodes.
#[derive(Default)]
pub(super) struct Admin {
    /// Address by node.
    addresses: Mutex<BTreeMap<usize, SocketAddr>>,
    /// Counter by which the nodes take turns.
    turn: AtomicUsize,
}

impl Admin {
    /// Sets the address of a node from now on.
    pub(super) fn set_address(&self, node: usize, address: SocketAddr) {
        self.addresses.lock().insert(node, address);
    }

    /// Forgets the address of a node that has ended: another program may get its port.
    pub(super) fn forget_address(&self, node: usize) {
        self.addresses.lock().remove(&node);
    }

    /// Returns the address of the next node.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        let addresses = self.addresses.lock();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        addresses.values().nth(turn % addresses.len().max(1)).copied()
    }

    /// Repeats a change until it is answered, which is harmless because it has a request id. Returns the seq of the
    /// change.
    pub(super) async fn change(
        &self,
        path: &str,
        body: &Value,
        breaks: impl Fn() -> bool,
    ) -> anyhow::Result<u64> {
        let mut deadline = Instant::now() + CHANGE_TIMEOUT;
        loop {
            if breaks() {
                deadline = Instant::now() + CHANGE_TIMEOUT;
            }
            let address = self.address();
            let attempt = async { post(address.context("no node yet")?, path, &body.to_string()).await };
            match timeout(ATTEMPT_TIMEOUT, attempt).await {
                Ok(Ok((200 | 201, answer))) => {
                    let answer: Value = serde_json::from_str(&answer)?;
                    return answer["seq"].as_u64().with_context(|| format!("no seq in {answer}"));
                }
                Ok(Ok((503, _)) | Err(_)) | Err(_) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Ok(Ok((status, answer))) => {
                    // Names the run that has refused it.
                    let asked = address.context("no node")?;
                    let who = timeout(ATTEMPT_TIMEOUT, request(asked, "GET", "/v1/console", "")).await;
                    bail!("POST {path} {body}: {status} {answer}, by the node {who:?} at {asked}")
                }
                Ok(Err(error)) => return Err(error.context(format!("POST {path}"))),
                Err(_) => bail!("POST {path}: no answer"),
            }
        }
    }

    /// Repeats a request until it is answered with something other than a temporary refusal; returns status and body.
    pub(super) async fn settle(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<(u16, Value)> {
        let deadline = Instant::now() + 3 * CHANGE_TIMEOUT;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        loop {
            let address = self.address();
            let attempt = async { request(address.context("no node yet")?, method, path, &body).await };
            match timeout(ATTEMPT_TIMEOUT, attempt).await {
                Ok(Ok((status, answer))) if status != 503 => {
                    return Ok((status, serde_json::from_str(&answer).unwrap_or_default()));
                }
                _ if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(50)).await,
                answered => bail!("{method} {path}: {answered:?}"),
            }
        }
    }

    /// Returns the presence of users as a node reports it.
    pub(super) async fn presence(&self, node: usize, users: &BTreeSet<&str>) -> anyhow::Result<Value> {
        let address = self.addresses.lock().get(&node).copied();
        let body = json!({ "users": users }).to_string();
        let asked = post(address.context("no such node")?, "/v1/presence", &body);
        let (status, answer) = timeout(ATTEMPT_TIMEOUT, asked).await.context("no answer")??;
        if status != 200 {
            bail!("{status} {answer}");
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

async fn post(address: SocketAddr, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
    request(address, "POST", path, body).await
}

async fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
    Connection::open(&address.to_string(), ATTEMPT_TIMEOUT).await?.request(method, path, body).await
}

//! Client of the admin ports of the nodes that run: each change until it is answered, by whichever node is up.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tidegate::cli::http::Connection;
use tokio::time::timeout;

/// How long one try may take, and all of them while nothing breaks: what breaks may break again before it has recovered.
const TRY: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(60);

/// The way to the admin ports of the nodes that run now.
#[derive(Default)]
pub(super) struct Admin {
    /// By node.
    addresses: Mutex<BTreeMap<usize, SocketAddr>>,
    /// Whose turn it is.
    turn: AtomicUsize,
}

impl Admin {
    /// Where that of this node is from now on.
    pub(super) fn set_address(&self, node: usize, address: SocketAddr) {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).insert(node, address);
    }

    /// Of the next node.
    fn address(&self) -> Option<SocketAddr> {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        addresses.values().nth(turn % addresses.len().max(1)).copied()
    }

    /// Asks until there is an answer; the request's id makes that harmless. The seq of the change.
    pub(super) async fn change(
        &self,
        path: &str,
        body: &Value,
        breaks: impl Fn() -> bool,
    ) -> anyhow::Result<u64> {
        let mut deadline = Instant::now() + PATIENCE;
        loop {
            if breaks() {
                deadline = Instant::now() + PATIENCE;
            }
            match timeout(TRY, self.post(path, &body.to_string())).await {
                Ok(Ok((200 | 201, answer))) => {
                    let answer: Value = serde_json::from_str(&answer)?;
                    return answer["seq"].as_u64().with_context(|| format!("no seq in {answer}"));
                }
                Ok(Ok((503, _)) | Err(_)) | Err(_) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Ok(Ok((status, answer))) => bail!("POST {path} {body}: {status} {answer}"),
                Ok(Err(error)) => return Err(error.context(format!("POST {path}"))),
                Err(_) => bail!("POST {path}: no answer"),
            }
        }
    }

    /// Who of these users is connected, as this node says it.
    pub(super) async fn presence(&self, node: usize, users: &BTreeSet<&str>) -> anyhow::Result<Value> {
        let address = self.addresses.lock().unwrap_or_else(PoisonError::into_inner).get(&node).copied();
        let body = json!({ "users": users }).to_string();
        let asked = post(address.context("no such node")?, "/v1/presence", &body);
        let (status, answer) = timeout(TRY, asked).await.context("no answer")??;
        if status != 200 {
            bail!("{status} {answer}");
        }
        Ok(serde_json::from_str(&answer)?)
    }

    async fn post(&self, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
        post(self.address().context("no node yet")?, path, body).await
    }
}

async fn post(address: SocketAddr, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
    Connection::open(&address.to_string(), TRY).await?.request("POST", path, body).await
}

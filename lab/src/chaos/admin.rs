//! The administrator: makes the groups, then lets users come and go, each change until it is answered.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::world::{COMING_AND_GOING, Phase, World};
use crate::checker::{Change, Event};

/// How long one try may take, and all of them while nothing breaks: what breaks may break again before it has recovered.
const TRY: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two changes.
const PACE_MS: std::ops::Range<u64> = 20..250;

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
    async fn change(&self, path: &str, body: &Value, breaks: impl Fn() -> bool) -> anyhow::Result<u64> {
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

    /// Makes all groups, all users in.
    pub(super) async fn create_groups(&self, world: &World) -> anyhow::Result<()> {
        for group in &world.groups {
            let request = format!("create-{}", group.id);
            let body = json!({"id": group.id, "members": group.users, "requestId": request});
            let seq = self.change("/v1/groups", &body, || false).await?;
            for user in &group.users {
                let conv = format!("g:{}", group.id);
                world.recorder.add(Event::Member { conv: &conv, user, change: Change::Join, seq });
            }
        }
        Ok(())
    }
}

async fn post(address: SocketAddr, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: chaos\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("half an answer")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((status, body.to_owned()))
}

/// Removes and adds users as long as clients talk.
pub(super) async fn change_groups(world: Arc<World>, seed: u64) -> anyhow::Result<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut away = BTreeSet::new();
    for number in 0_u64.. {
        if world.phase() != Phase::Talk {
            break;
        }
        let group = &world.groups[rng.random_range(0..world.groups.len())];
        let user = &group.users[group.users.len() - 1 - rng.random_range(0..COMING_AND_GOING)];
        let place = (group.id.clone(), user.clone());
        let (verb, change) =
            if away.contains(&place) { ("add", Change::Join) } else { ("remove", Change::Kick) };
        let body = json!({verb: [user], "requestId": format!("change-{number}")});
        let path = format!("/v1/groups/{}/members", group.id);
        let seq = world.admin.change(&path, &body, || world.phase() == Phase::Talk).await?;
        let conv = format!("g:{}", group.id);
        world.recorder.add(Event::Member { conv: &conv, user, change, seq });
        if !away.remove(&place) {
            away.insert(place);
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(PACE_MS))).await;
    }
    Ok(())
}

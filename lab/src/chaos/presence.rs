//! Presence at the end, as each node reports it.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::Value;

use super::world::World;
use crate::checker::HistoryEvent;

/// Time for all nodes to report the right presence (reference, rule 11).
const PRESENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Polls every node until its report is right or the time is over, and records the last report.
pub(super) async fn observe(world: &World, there: &BTreeSet<(String, String)>) -> anyhow::Result<()> {
    let deadline = Instant::now() + PRESENCE_TIMEOUT;
    for node in 0..world.client_addresses.len() {
        let said = loop {
            let said = ask(world, node).await;
            let is_true = said.as_ref().is_ok_and(|said| said == there);
            if is_true || Instant::now() > deadline {
                break said.with_context(|| format!("the presence that {} tells", World::node(node)))?;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        };
        for client in &world.clients {
            let (user, device) = (client.profile.user.as_str(), client.profile.device.as_str());
            let online = said.contains(&(client.profile.user.clone(), client.profile.device.clone()));
            let node = World::node(node);
            world.recorder.add(HistoryEvent::Presence { node: node.as_str(), user, device, online });
        }
    }
    Ok(())
}

/// Returns the connected users and devices that a node reports.
async fn ask(world: &World, node: usize) -> anyhow::Result<BTreeSet<(String, String)>> {
    let answer = world.admin.presence(node, &world.users()).await?;
    let users = answer["users"].as_array().context("no users")?;
    let devices = |user: &Value| {
        let name = user["user"].as_str().unwrap_or_default().to_owned();
        let devices = user["devices"].as_array().cloned().unwrap_or_default();
        let named = devices.into_iter().filter_map(|it| Some(it["device"].as_str()?.to_owned()));
        named.map(move |device| (name.clone(), device)).collect::<Vec<_>>()
    };
    Ok(users.iter().flat_map(devices).collect())
}

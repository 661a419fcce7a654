//! Groups of a run: creates them, then adds and removes users, repeating each change until it is answered.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;

use super::world::{COMING_AND_GOING, World};
use crate::{
    checker::{Change, HistoryEvent},
    person::Phase,
};

/// Time between two changes.
const PACE_MS: std::ops::Range<u64> = 20..250;

/// Creates all groups with all their users.
pub(super) async fn create(world: &World) -> anyhow::Result<()> {
    for group in &world.groups {
        let request = format!("create-{}", group.id);
        let body = json!({"id": group.id, "members": group.users, "requestId": request});
        let seq = world.admin.change("/v1/groups", &body, || false).await?;
        for user in &group.users {
            let conv = format!("g:{}", group.id);
            world.recorder.add(HistoryEvent::Member { conv: &conv, user, change: Change::Join, seq });
        }
    }
    Ok(())
}

/// Removes and adds users while clients talk.
pub(super) async fn change(world: Arc<World>, seed: u64) -> anyhow::Result<()> {
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
        world.recorder.add(HistoryEvent::Member { conv: &conv, user, change, seq });
        if !away.remove(&place) {
            away.insert(place);
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(PACE_MS))).await;
    }
    Ok(())
}

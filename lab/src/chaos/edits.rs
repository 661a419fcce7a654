//! Edits of a run: a user now and then replaces the content of a message of its own, through the admin API.

use std::{sync::Arc, time::Duration};

use rand::{
    RngExt as _, SeedableRng as _,
    rngs::StdRng,
    seq::{IndexedRandom as _, IteratorRandom as _},
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::world::World;
use crate::{
    checker::HistoryEvent,
    person::{Phase, text_hash},
};

/// Time between two edits.
const PACE_MS: std::ops::Range<u64> = 20..250;

/// Time for one edit, which may be stored or not after that.
const EDIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Edits messages while clients talk. Libraries take part in no run with edits: an own message whose content is another one is
/// not recognised as their own.
pub(super) async fn edit(world: Arc<World>, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    if world.clients.iter().any(|client| client.library.is_some()) {
        return;
    }
    for number in 0_u64.. {
        if world.phase() != Phase::Talk {
            break;
        }
        sleep(Duration::from_millis(rng.random_range(PACE_MS))).await;
        let Some(profile) = world.clients.choose(&mut rng).map(|client| &client.profile) else { break };
        let Some(conv) = profile.places.choose(&mut rng) else { continue };
        let path = format!("/v1/conversations/{conv}/messages");
        let page = world.admin.settle("GET", &path, &Value::Null);
        let Ok(Ok((200, page))) = timeout(EDIT_TIMEOUT, page).await else { continue };
        let is_own = |it: &&Value| it["kind"] == "message" && it["sender"] == profile.user.as_str();
        let own = page["messages"].as_array().into_iter().flatten().filter(is_own);
        let Some(of) = own.filter_map(|it| it["seq"].as_u64()).choose(&mut rng) else { continue };
        let (cid, text) = (format!("edit-{number}"), format!("edit {number} of {of}"));
        world.recorder.add(HistoryEvent::EditInv {
            conv: conv.as_str(),
            of,
            cid: cid.as_str(),
            body: text_hash(&text),
        });
        let body = json!({"content": {"text": text}, "by": profile.user, "requestId": cid});
        // Refused if the user was removed from the group, or the edit comes too late.
        let path = format!("{path}/{of}");
        let edited = world.admin.settle("PATCH", &path, &body);
        if !matches!(timeout(EDIT_TIMEOUT, edited).await, Ok(Ok((200 | 201 | 403 | 404, _)))) {
            tracing::debug!(%path, "an edit was not answered");
        }
    }
}

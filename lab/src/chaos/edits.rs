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

/// Edits messages while clients talk.
pub(super) async fn edit(world: Arc<World>, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
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
        let Some(message) = own.choose(&mut rng) else { continue };
        let of = message["seq"].as_u64().unwrap_or_default();
        let (cid, text) = (format!("edit-{number}"), format!("edit {number} of {of}"));
        world.recorder.add(HistoryEvent::EditInv {
            conv: conv.as_str(),
            of,
            cid: cid.as_str(),
            body: text_hash(&text),
            was: message["content"]["text"].as_str().map_or(0, text_hash),
        });
        let body = json!({"content": {"text": text}, "by": profile.user, "requestId": cid});
        // Refused if the user was removed from the group, or the edit comes too late.
        let path = format!("{path}/{of}");
        let edited = world.admin.settle("PATCH", &path, &body);
        match timeout(EDIT_TIMEOUT, edited).await {
            Ok(Ok((200, answer))) => {
                let seq = answer["seq"].as_u64().unwrap_or_default();
                world.recorder.add(HistoryEvent::EditOk { cid: cid.as_str(), seq });
            }
            Ok(Ok((403 | 404, _))) => {}
            _ => tracing::debug!(%path, "an edit was not answered"),
        }
    }
}

//! Admin API of one user: what the nodes know of the user, its devices, and the chains of these.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{Extension, Json, extract::State};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tidegate_protocol::{
    Code,
    id::{DeviceId, UserId},
    settings::{UserSettings, Visibility},
};

use super::{
    connections::{names, parse_device, parse_user},
    lookup,
};
use crate::{
    api::{
        Api, Problem,
        access::{Caller, CallerPresence},
        blocks::{entries::bans_of, suspensions::suspensions_of},
        conversations::{
            marks,
            turns::{change_in_turn, in_turn, unavailable},
        },
        extract::{IdPath, JsonObject},
    },
    bans::BanSubject,
    link::{CloseOrder, ConnectionQuery, ConnectionSort, Selected},
    revocation::RevokedTokens,
    scratch::ScratchError,
    store::Store,
};

/// Wait that a device whose chain is removed is asked for before it connects again.
const RECONNECT_AFTER: Duration = Duration::from_secs(5);

/// Device of a user as the nodes know it.
#[derive(Default)]
struct KnownDevice {
    /// Node that it is connected to.
    node: Option<String>,
    /// Whether the state of its chain is saved.
    has_chain: bool,
}

/// Returns what the nodes know of a user. There is no registry: any id is a user.
pub(in crate::api) async fn show(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(name): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let user = parse_user(&name)?;
    let mut body = lookup(&api, std::slice::from_ref(&name)).await?.pop().unwrap_or_default();
    let of = user.clone();
    let work = move |store: Arc<dyn Store>, ()| async move {
        let found = store.settings_of(std::slice::from_ref(&of)).await.map_err(unavailable)?;
        Ok(found.first().copied().unwrap_or_default())
    };
    let stored: UserSettings = in_turn(&api, &caller, async {}, work).await?;
    let subject = BanSubject::User(user.clone());
    let bans = bans_of(&api, &subject);
    let before = |tokens: &RevokedTokens| match tokens {
        RevokedTokens::Before(ms) => Some(*ms),
        RevokedTokens::Id(_) | RevokedTokens::Device(..) | RevokedTokens::Cleared => None,
    };
    let revoked = api.cluster.revocations.of(&user);
    let prio = api.cluster.priorities.get(&user);
    body["banned"] = (!bans.is_empty()).into();
    body["bans"] = bans.into();
    body["suspensions"] = suspensions_of(&api, &subject).into();
    body["notBefore"] = revoked.iter().filter_map(|it| before(&it.tokens)).max().into();
    body["prio"] = prio.map(|it| json!({"prio": it.class, "untilMs": it.until_ms})).into();
    body["settings"] = settings(&stored);
    Ok(Json(body))
}

/// Settings of a user that a request changes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct PersonPatch {
    push: Option<String>,
    presence: Option<String>,
}

/// Changes the settings of a user that the application keeps, and returns all.
pub(in crate::api) async fn change(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Extension(presence): Extension<CallerPresence>,
    IdPath(name): IdPath<String>,
    JsonObject(body): JsonObject<PersonPatch>,
) -> Result<Json<Value>, Problem> {
    let user = parse_user(&name)?;
    let push = body.push.as_deref().map(marks::push).transpose()?;
    let visible = body.presence.as_deref().map(visibility).transpose()?;
    if push.is_none() && visible.is_none() {
        return Err(Problem(Code::BadContent, "set push or presence".into()));
    }
    let now = UserSettings { push, presence: visible, ..UserSettings::default() };
    let work = move |store: Arc<dyn Store>| async move {
        store.merge_settings(&user, now).await.map_err(unavailable)
    };
    let stored = change_in_turn(&api, &caller, presence, work).await?;
    Ok(Json(json!({"user": name, "settings": settings(&stored)})))
}

fn visibility(word: &str) -> Result<Visibility, Problem> {
    let cure = || Problem(Code::BadSetting, format!("presence: one of {}", Visibility::words()));
    Visibility::from_word(word).ok_or_else(cure)
}

/// Returns the settings that the user has set.
pub(in crate::api) fn settings(stored: &UserSettings) -> Value {
    let UserSettings { ack_timeout_ms, ack_tries, heartbeat_ms, unread, retention, search, push, presence } =
        stored;
    let numbers =
        [("ackTimeoutMs", *ack_timeout_ms), ("ackTries", *ack_tries), ("heartbeatMs", *heartbeat_ms)];
    let words = [
        ("unread", unread.map(|it| it.word())),
        ("retention", retention.map(|it| it.word())),
        ("search", search.map(|it| it.word())),
        ("push", push.map(|it| it.word())),
        ("presence", presence.map(|it| it.word())),
    ];
    let numbers = numbers.into_iter().filter(|(_, number)| *number > 0);
    let mut set: Map<String, Value> =
        numbers.map(|(name, number)| (name.to_owned(), number.into())).collect();
    set.extend(words.into_iter().filter_map(|(name, word)| Some((name.to_owned(), word?.into()))));
    Value::Object(set)
}

/// Returns the devices of a user that are connected, or whose chains are saved.
pub(in crate::api) async fn devices(
    State(api): State<Api>,
    IdPath(name): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let known = known_devices(&api, &parse_user(&name)?).await?;
    let devices: Vec<Value> = known.iter().map(|(device, it)| shown(device, it)).collect();
    Ok(Json(json!({"user": name, "devices": devices})))
}

/// Returns the devices with what is saved of their chains.
pub(in crate::api) async fn exported_devices(api: &Api, user: &UserId) -> Result<Vec<Value>, Problem> {
    let mut all = Vec::new();
    for (device, known) in known_devices(api, user).await? {
        let mut exported = shown(&device, &known);
        if known.has_chain {
            let saved = api.cluster.ports.scratch.load_chain(user, &device).await;
            exported["chain"] = saved.map_err(scratch_unavailable)?.map_or(Value::Null, |it| {
                json!({"expected": it.expected.as_str(), "done": it.done.len(), "skipped": it.skipped.len()})
            });
        } else {
            exported["chain"] = Value::Null;
        }
        all.push(exported);
    }
    Ok(all)
}

/// Removes the chains of all devices of a user; returns how many there were.
pub(in crate::api) async fn forget_chains(api: &Api, user: &UserId) -> Result<usize, Problem> {
    let scratch = &api.cluster.ports.scratch;
    let mut removed = 0;
    for device in scratch.chain_devices(user).await.map_err(scratch_unavailable)? {
        removed += usize::from(scratch.forget_chain(user, &device).await.map_err(scratch_unavailable)?);
    }
    Ok(removed)
}

/// Returns one device of a user.
pub(in crate::api) async fn device(
    State(api): State<Api>,
    IdPath((name, device)): IdPath<(String, String)>,
) -> Result<Json<Value>, Problem> {
    let (user, device) = (parse_user(&name)?, parse_device(&device)?);
    let known = known_devices(&api, &user).await?;
    known.get(&device).map(|it| Json(shown(&device, it))).ok_or_else(unknown_device)
}

async fn known_devices(api: &Api, user: &UserId) -> Result<BTreeMap<DeviceId, KnownDevice>, Problem> {
    let saved = api.cluster.ports.scratch.chain_devices(user).await.map_err(scratch_unavailable)?;
    let mut all: BTreeMap<DeviceId, KnownDevice> =
        saved.into_iter().map(|device| (device, KnownDevice { node: None, has_chain: true })).collect();
    let presence = lookup(api, &[user.as_str().to_owned()]).await?;
    let online = presence.iter().filter_map(|user| user["devices"].as_array()).flatten();
    for row in online {
        let (Some(device), Some(node)) = (row["device"].as_str(), row["node"].as_str()) else { continue };
        if let Ok(device) = DeviceId::new(device) {
            all.entry(device).or_default().node = Some(node.to_owned());
        }
    }
    Ok(all)
}

fn shown(device: &DeviceId, it: &KnownDevice) -> Value {
    json!({
        "device": device.as_str(),
        "online": it.node.is_some(),
        "node": it.node,
        "chain": it.has_chain,
    })
}

/// Returns the chain of a device as it was saved last, and what its connection holds.
pub(in crate::api) async fn chain(
    State(api): State<Api>,
    IdPath((name, device)): IdPath<(String, String)>,
) -> Result<Json<Value>, Problem> {
    let (user, device) = (parse_user(&name)?, parse_device(&device)?);
    let saved = api.cluster.ports.scratch.load_chain(&user, &device).await.map_err(scratch_unavailable)?;
    let saved = saved.ok_or_else(|| Problem(Code::NotFound, "no chain of this device is saved".into()))?;
    let selected = Selected::User(user, Some(device.clone()));
    let query = ConnectionQuery { selected, sort: ConnectionSort::Since, limit: 1 };
    let list = api.connections.list(&query, None).await;
    let connection = list.rows.first();
    Ok(Json(json!({
        "user": name,
        "device": device.as_str(),
        "expected": saved.expected.as_str(),
        "done": saved.done.len(),
        "skipped": saved.skipped.len(),
        "held": connection.map_or(0, |(_, row)| row.held),
        "blockedMs": connection.map_or(0, |(_, row)| row.blocked_ms),
        "node": connection.map(|(run, _)| run.node.as_str()),
        "silent": names(&list.silent),
    })))
}

/// Closes the connections of a device, which is not to reconnect by itself, and removes its chain.
pub(in crate::api) async fn forget(
    State(api): State<Api>,
    IdPath((name, device)): IdPath<(String, String)>,
) -> Result<Json<Value>, Problem> {
    end(&api, &parse_user(&name)?, &parse_device(&device)?, None).await
}

/// Removes the chain of a device, so that its next connection starts a new one. A connection that it has is closed first,
/// because its chain would go on.
pub(in crate::api) async fn forget_chain(
    State(api): State<Api>,
    IdPath((name, device)): IdPath<(String, String)>,
) -> Result<Json<Value>, Problem> {
    end(&api, &parse_user(&name)?, &parse_device(&device)?, Some(RECONNECT_AFTER)).await
}

async fn end(
    api: &Api,
    user: &UserId,
    device: &DeviceId,
    reconnect_after: Option<Duration>,
) -> Result<Json<Value>, Problem> {
    let selected = Selected::User(user.clone(), Some(device.clone()));
    let order = CloseOrder { selected, reason: String::new(), reconnect_after };
    let closed = api.connections.close(&order, None).await;
    let scratch = &api.cluster.ports.scratch;
    let is_removed = scratch.forget_chain(user, device).await.map_err(scratch_unavailable)?;
    if closed.count == 0 && !is_removed && closed.silent.is_empty() {
        return Err(unknown_device());
    }
    Ok(Json(json!({"closed": closed.count, "chain": is_removed, "silent": names(&closed.silent)})))
}

fn unknown_device() -> Problem {
    Problem(Code::NotFound, "the device is not connected, and no chain of it is saved".into())
}

fn scratch_unavailable(error: ScratchError) -> Problem {
    Problem(Code::StoreUnavailable, error.to_string())
}

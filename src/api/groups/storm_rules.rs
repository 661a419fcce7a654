//! Admin API of the rules by which single groups have storms, and of what is done about them.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_protocol::{Code, id::ConversationId, machine::storm::StormAction};

use super::super::{
    Api, Problem,
    extract::{IdPath, JsonObject, expected_version, tagged},
    refusal,
};
use crate::{
    cluster::{Cluster, GuardChange},
    store::{GuardBatch, GuardEntry, GuardKey, GuardKind, GuardOutcome, GuardPut, InvalidGuard, StoreError},
    storms::GroupStormRule,
};

/// Returns the rule of a group: its own values, and those in force. `ETag` has the version of its own.
pub(in crate::api) async fn show(
    State(api): State<Api>,
    IdPath(group): IdPath<String>,
) -> Result<Response, Problem> {
    let group = super::group(&group)?;
    let (own, version) = stored(&api.cluster, &group).await?;
    Ok(tagged(Json(shown(&api, &group, own.as_ref())).into_response(), version))
}

/// Returns the own rule of a group and its version, both of the same row. It is in force on this node.
async fn stored(
    cluster: &Cluster,
    group: &ConversationId,
) -> Result<(Option<GroupStormRule>, Option<u64>), Problem> {
    let row = cluster.ports.store.guard_get(&key(group)?).await.map_err(unavailable)?;
    cluster.read_guard().await.map_err(unavailable)?;
    let version = row.as_ref().map(|row| row.version);
    Ok((row.and_then(|row| row.value).and_then(|value| GroupStormRule::decode(&value)), version))
}

/// Replaces the rule of a group, if it has the version that the request names.
pub(in crate::api) async fn set(
    State(api): State<Api>,
    IdPath(group): IdPath<String>,
    headers: HeaderMap,
    JsonObject(rule): JsonObject<GroupStormRule>,
) -> Result<Response, Problem> {
    let (group, expected) = (super::group(&group)?, expected_version(&headers)?);
    rule.check().map_err(|why| Problem(Code::BadSetting, why.to_owned()))?;
    let value = serde_json::to_vec(&rule).map_err(|error| Problem(Code::Internal, error.to_string()))?;
    let entry = GuardEntry::new(key(&group)?, Bytes::from(value), None).map_err(internal)?;
    let batch = GuardBatch::from(GuardPut { entry, expected });
    let change = api.cluster.put_guard(&batch).await.map_err(unavailable)?;
    in_force(&api, &group, change)
}

/// Removes the rule of a group, if it has the version that the request names. The group then has that of the
/// configuration.
pub(in crate::api) async fn remove(
    State(api): State<Api>,
    IdPath(group): IdPath<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (group, expected) = (super::group(&group)?, expected_version(&headers)?);
    let change = api.cluster.remove_guard(&key(&group)?, expected).await.map_err(unavailable)?;
    in_force(&api, &group, change)
}

/// Returns the rule in force after a change, with the nodes that have not confirmed it.
fn in_force(api: &Api, group: &ConversationId, change: GuardChange) -> Result<Response, Problem> {
    let version = match change.outcome {
        GuardOutcome::Stored(version) => Some(version),
        GuardOutcome::Unchanged => None,
        GuardOutcome::Conflict(_, version) => {
            let is = if version > 0 { format!("version {version}") } else { "none".to_owned() };
            let message = format!("the storm rule of the group has another version: {is}");
            let cure = "Read the rule again, then repeat with its ETag.";
            return Ok(refusal(StatusCode::CONFLICT, Code::Conflict, &message, cure).into_response());
        }
        GuardOutcome::Full(_) => {
            let why = "too many groups have a rule of their own; remove one that is not needed";
            return Err(Problem(Code::BadSetting, why.to_owned()));
        }
    };
    if !change.is_in_force {
        let why = "stored; in force on this node once the store can be read";
        return Err(Problem(Code::Unknown, why.to_owned()));
    }
    let own = api.cluster.storms.rules().groups.get(group).cloned();
    let mut shown = shown(api, group, own.as_ref());
    shown["pending"] = json!(change.pending);
    // A removed rule has no version.
    Ok(tagged(Json(shown).into_response(), version.filter(|_| own.is_some())))
}

fn shown(api: &Api, group: &ConversationId, own: Option<&GroupStormRule>) -> Value {
    let rules = api.cluster.storms.rules();
    let rule = rules.rule_with(own);
    let mut actions = vec!["alert".to_owned()];
    actions.extend(rules.action_with(own).as_ref().map(StormAction::to_string));
    json!({
        "conversation": group.as_str(),
        "own": own,
        "threshold": rule.threshold(),
        "windowMs": u64::try_from(rule.window().as_millis()).unwrap_or(u64::MAX),
        "actions": actions,
    })
}

fn key(group: &ConversationId) -> Result<GuardKey, Problem> {
    GuardKey::new(GuardKind::StormRule, group.as_str()).map_err(internal)
}

fn internal(error: InvalidGuard) -> Problem {
    Problem(Code::Internal, error.to_string())
}

fn unavailable(error: StoreError) -> Problem {
    let code = if matches!(error, StoreError::Unknown(_)) { Code::Unknown } else { Code::StoreUnavailable };
    Problem(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_protocol::id::NodeId;

    use super::*;
    use crate::{
        cluster::StormHandler,
        fault::{Fault, FaultPlan, Faulty, Gate},
        link::LocalLink,
        ports::Ports,
        routes::NodeBoot,
        store::{MemoryStore, Store},
    };

    #[tokio::test]
    async fn rule_has_the_version_of_its_own_content() {
        let (memory, faults) = (Arc::new(MemoryStore::default()), FaultPlan::none());
        let store = Faulty::<dyn Store>::new(Arc::clone(&memory) as Arc<dyn Store>, Arc::clone(&faults));
        let ports = Ports { store: Arc::new(store), ..Ports::in_memory(Arc::new(LocalLink)) };
        let me = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
        let cluster = Arc::new(Cluster::new(me, ports));
        cluster.guard.add_handler(Arc::new(StormHandler::new(Arc::clone(&cluster.storms))));
        let group = ConversationId::parse("g:tea").unwrap();
        let put = async |threshold: u32| {
            let value = format!(r#"{{"threshold":{threshold}}}"#);
            let entry = GuardEntry::new(key(&group).ok().unwrap(), value.into(), None).unwrap();
            let batch = GuardBatch::from(GuardPut { entry, expected: None });
            let store: &dyn Store = &*memory;
            let GuardOutcome::Stored(version) = store.put_guard(&batch).await.unwrap() else { panic!() };
            version
        };
        let threshold = |own: Option<GroupStormRule>| own.and_then(|own| own.threshold);
        put(1).await;
        // Another change comes between the two reads, whichever of them waits.
        for (call, next) in [("guard_get", 2), ("guard_since", 3)] {
            let gate = Gate::new();
            faults.plan(call, Fault::Hold(gate.clone()));
            let (reader, of) = (Arc::clone(&cluster), group.clone());
            let reading = tokio::spawn(async move { stored(&reader, &of).await.ok() });
            while gate.reached() == 0 {
                tokio::task::yield_now().await;
            }
            let version = put(next).await;
            gate.open();
            let (own, shown) = reading.await.unwrap().unwrap();
            let shown_threshold = threshold(own);
            assert_eq!(shown == Some(version), shown_threshold == Some(next), "{call}");
            assert_eq!(cluster.storms.rules().of(&group).threshold(), next);
        }
    }
}

//! Admin API of unread counts.

use std::{sync::Arc, time::Duration};

use axum::{Extension, Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{Code, id::UserId};

use super::{NAMES_MAX, bad, turns::in_turn_of_all, user};
use crate::{
    api::{
        Api, Problem, ProblemDetails,
        access::Caller,
        extract::{IdPath, JsonObject},
        now_ms,
    },
    conversation::unread_counts::{UnreadCount, count},
    store::Store,
};

/// Time after which users of a request for many get no count.
const MANY_TIME_MAX: Duration = Duration::from_secs(2);

/// Time after which the count of a single user ends; shorter than the time of a read.
const ONE_TIME_MAX: Duration = Duration::from_secs(4);

/// Largest cap of a count.
const CAP_MAX: u64 = 1_000_000;

/// Users whose unread messages are counted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct UnreadRequest {
    users: Vec<String>,
    cap: Option<u64>,
}

/// Returns the unread count of one user.
pub(in crate::api) async fn of_user(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let users = vec![user(&id)?];
    let found = counts(&api, &caller, users, None, ONE_TIME_MAX).await?.pop().flatten();
    let late = || Problem(Code::StoreUnavailable, "the store did not answer in time".into());
    let found = found.ok_or_else(late)?;
    let mut body = counted(&id, &found);
    if let (true, Some(body)) = (found.is_partial, body.as_object_mut()) {
        body.insert("incomplete".into(), json!(true));
    }
    Ok(Json(body))
}

/// Returns the unread counts of many users, each with an outcome of its own, in the order of the request.
pub(in crate::api) async fn of_users(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    JsonObject(UnreadRequest { users, cap }): JsonObject<UnreadRequest>,
) -> Result<Json<Value>, Problem> {
    if users.len() > NAMES_MAX {
        return Err(bad(format!("users: at most {NAMES_MAX} in one request")));
    }
    if cap.is_some_and(|cap| !(1..=CAP_MAX).contains(&cap)) {
        return Err(bad(format!("cap: between 1 and {CAP_MAX}")));
    }
    let ids = users.iter().map(|id| user(id)).collect::<Result<Vec<UserId>, Problem>>()?;
    let found = counts(&api, &caller, ids, cap, MANY_TIME_MAX).await?;
    let outcome = |(user, found): (&String, Option<UnreadCount>)| match found.filter(|it| !it.is_partial) {
        Some(found) => counted(user, &found),
        None => {
            let busy = Problem(Code::Busy, "the user's conversations took too long".into());
            Value::Object(ProblemDetails::from(busy).with("user", user.as_str()).members())
        }
    };
    let outcomes: Vec<Value> = users.iter().zip(found).map(outcome).collect();
    Ok(Json(json!({"users": outcomes})))
}

async fn counts(
    api: &Api,
    caller: &Caller,
    users: Vec<UserId>,
    cap: Option<u64>,
    time_max: Duration,
) -> Result<Vec<Option<UnreadCount>>, Problem> {
    let work = move |store: Arc<dyn Store>, _| async move {
        Ok(count(&*store, &users, cap, now_ms(), time_max).await?)
    };
    in_turn_of_all(api, caller, work).await
}

fn counted(user: &str, found: &UnreadCount) -> Value {
    match found.is_capped {
        // The other conversations were not read.
        true => json!({"user": user, "unread": found.unread, "capped": true}),
        false => json!({"user": user, "unread": found.unread, "conversations": found.conversations}),
    }
}

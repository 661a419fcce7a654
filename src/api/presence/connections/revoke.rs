//! Admin API of revocations: tokens that are refused although they have not expired.

use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::Code;

use super::{names, parse_device, parse_user};
use crate::{
    api::{
        Api, Problem,
        extract::{IdPath, JsonObject},
        now_ms,
    },
    connections::RevokeError,
    revocation::{CLEARED_TTL_MS, Revocation, RevokedTokens, TOKEN_ID_BYTES_MAX, USER_REVOCATIONS_MAX},
};

/// Body of a revocation; exactly one field is set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct RevokeRequest {
    before: Option<Before>,
    token_id: Option<String>,
    device: Option<String>,
}

/// Time in ms since 1970, or `now`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Before {
    Ms(u64),
    Word(String),
}

/// Revokes tokens of a user on all nodes, and closes the connections that use them.
pub(in crate::api) async fn revoke(
    State(api): State<Api>,
    IdPath(user): IdPath<String>,
    JsonObject(request): JsonObject<RevokeRequest>,
) -> Result<Json<Value>, Problem> {
    let at_ms = now_ms();
    let (user, tokens) = (parse_user(&user)?, tokens(request, at_ms)?);
    let lifetime = api.token_lifetime.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX));
    let until_ms = lifetime.map(|lifetime| at_ms.saturating_add(lifetime));
    let revocation = Revocation { user, tokens, at_ms, until_ms };
    let revoked = api.connections.revoke(revocation).await.map_err(problem)?;
    Ok(Json(json!({"closed": revoked.count, "pending": names(&revoked.silent)})))
}

/// Takes back the revocations of a user on all nodes.
pub(in crate::api) async fn clear(
    State(api): State<Api>,
    IdPath(user): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let user = parse_user(&user)?;
    let known = api.cluster.revocations.of(&user);
    // Not before those that are known, whose nodes may have clocks that are ahead.
    let at_ms = known.first().map_or(0, |newest| newest.at_ms).max(now_ms());
    let until_ms = Some(at_ms.saturating_add(CLEARED_TTL_MS));
    let revocation = Revocation { user, tokens: RevokedTokens::Cleared, at_ms, until_ms };
    let cleared = api.connections.revoke(revocation).await.map_err(|error| match error {
        RevokeError::Store(error) => Problem(Code::StoreUnavailable, format!("nothing was removed: {error}")),
        error => problem(error),
    })?;
    Ok(Json(json!({"removed": known.len(), "pending": names(&cleared.silent)})))
}

/// Returns the revocations of a user that are in force on this node.
pub(in crate::api) async fn of_user(
    State(api): State<Api>,
    IdPath(user): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let rows: Vec<Value> = api.cluster.revocations.of(&parse_user(&user)?).iter().map(view).collect();
    Ok(Json(json!({"revocations": rows})))
}

fn tokens(request: RevokeRequest, now_ms: u64) -> Result<RevokedTokens, Problem> {
    let bad = |why: &str| Problem(Code::BadContent, why.into());
    match request {
        RevokeRequest { before: Some(before), token_id: None, device: None } => match before {
            Before::Ms(ms) if ms <= now_ms => Ok(RevokedTokens::Before(ms)),
            Before::Ms(_) => Err(bad("before: not in the future; such tokens are not issued yet")),
            Before::Word(word) if word == "now" => Ok(RevokedTokens::Before(now_ms)),
            Before::Word(_) => Err(bad("before: a time in ms since 1970, or \"now\"")),
        },
        RevokeRequest { before: None, token_id: Some(id), device: None } => {
            let is_id = (1..=TOKEN_ID_BYTES_MAX).contains(&id.len()) && !id.contains(char::is_control);
            let why = "tokenId: the claim jti, 1 to 128 bytes without control characters";
            if is_id { Ok(RevokedTokens::Id(id)) } else { Err(bad(why)) }
        }
        RevokeRequest { before: None, token_id: None, device: Some(device) } => {
            Ok(RevokedTokens::Device(parse_device(&device)?, now_ms))
        }
        _ => Err(bad("name exactly one of before, tokenId and device")),
    }
}

fn problem(error: RevokeError) -> Problem {
    match error {
        RevokeError::UserFull => {
            Problem(Code::TooManyRevocations, format!("the user has {USER_REVOCATIONS_MAX} revocations"))
        }
        RevokeError::Full => {
            Problem(Code::TooManyRevocations, "all users together have the maximum number".into())
        }
        RevokeError::Store(error) => Problem(Code::StoreUnavailable, format!("nothing was revoked: {error}")),
    }
}

/// Returns a revocation as JSON.
pub(in crate::api) fn view(it: &Revocation) -> Value {
    let (before, id, device) = match &it.tokens {
        RevokedTokens::Before(before) => (Some(before), None, None),
        RevokedTokens::Id(id) => (None, Some(id.as_str()), None),
        RevokedTokens::Device(device, before) => (Some(before), None, Some(device.as_str())),
        RevokedTokens::Cleared => (None, None, None),
    };
    json!({"before": before, "tokenId": id, "device": device, "atMs": it.at_ms, "untilMs": it.until_ms})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(body: &str) -> Option<RevokedTokens> {
        serde_json::from_str(body).ok().and_then(|request| tokens(request, 1_000).ok())
    }

    #[test]
    fn body_names_exactly_one_kind_of_tokens() {
        assert_eq!(parsed(r#"{"before":"now"}"#), Some(RevokedTokens::Before(1_000)));
        assert_eq!(parsed(r#"{"before":1000}"#), Some(RevokedTokens::Before(1_000)));
        assert_eq!(parsed(r#"{"tokenId":"t 1"}"#), Some(RevokedTokens::Id("t 1".into())));
        let phone = RevokedTokens::Device(parse_device("phone").ok().unwrap(), 1_000);
        assert_eq!(parsed(r#"{"device":"phone"}"#), Some(phone));
        let long = format!(r#"{{"tokenId":"{}"}}"#, "t".repeat(129));
        for wrong in [
            "{}",
            r#"{"before":1001}"#,
            r#"{"before":"later"}"#,
            r#"{"before":-1}"#,
            r#"{"before":"now","device":"phone"}"#,
            r#"{"tokenId":""}"#,
            r#"{"tokenId":"a\u0000"}"#,
            r#"{"device":"a b"}"#,
            r#"{"user":"x"}"#,
            &long,
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}

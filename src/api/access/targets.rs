//! Ids that a request names, for the audit log: path parameters, and the listed fields of its body or query.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use axum::{
    body::{self, Body},
    extract::{Query, Request},
};
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde_json::Value;

use super::{request_id::is_id, route::AdminRoute};
use crate::{bans::BanSubject, networks::Network};

/// Most ids of an entry.
const IDS_MAX: usize = 16;

/// Field with the id that makes a change idempotent.
const REQUEST_ID: &str = "requestId";

/// Ids that a request names. What has not the form of an id is left out.
#[derive(Default)]
pub(super) struct Targets {
    /// Ids by the names of their fields.
    pub(super) ids: BTreeMap<String, Vec<String>>,
    /// Number of ids beyond [`IDS_MAX`].
    pub(super) more: usize,
    /// Value of [`REQUEST_ID`].
    pub(super) request_id: Option<String>,
}

impl Targets {
    /// Reads the ids of a request, whose body is there already.
    pub(super) async fn of(route: &AdminRoute, request: &mut Request) -> Self {
        let mut found = Self::default();
        for (name, value) in route.path.split('/').zip(request.uri().path().split('/')) {
            if let Some(name) = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
                found.add(name, &unescaped(value));
            }
        }
        if let Ok(Query(query)) = Query::<BTreeMap<String, String>>::try_from_uri(request.uri()) {
            for (name, value) in &query {
                found.field(route, name, value);
            }
        }
        let bytes = std::mem::take(request.body_mut());
        // It is complete and bounded since the server read it.
        let bytes = body::to_bytes(bytes, usize::MAX).await.unwrap_or_default();
        if let Ok(Value::Object(fields)) = serde_json::from_slice(&bytes) {
            for (name, value) in &fields {
                let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
                for value in values {
                    match value {
                        Value::String(value) => found.field(route, name, value),
                        // Seqs in a list.
                        Value::Number(value) => found.field(route, name, &value.to_string()),
                        _ => {}
                    }
                }
            }
        }
        *request.body_mut() = Body::from(bytes);
        found
    }

    fn field(&mut self, route: &AdminRoute, name: &str, value: &str) {
        if name == REQUEST_ID {
            self.request_id = is_id(value).then(|| value.to_owned());
        } else if route.ids.contains(&name) {
            self.add(name, value);
        } else if route.ids.iter().any(|id| id.strip_prefix('#') == Some(name)) {
            self.add(name, &short_hash(value));
        }
    }

    fn add(&mut self, name: &str, value: &str) {
        if !is_id(value) && !is_subject(name, value) {
            return;
        }
        if self.ids.values().map(Vec::len).sum::<usize>() == IDS_MAX {
            self.more += 1;
            return;
        }
        self.ids.entry(name.to_owned()).or_default().push(value.to_owned());
    }
}

/// Returns whether the value is the subject of a ban, a network or a conversation, which are no ids.
fn is_subject(name: &str, value: &str) -> bool {
    match name {
        "subject" => value.parse::<BanSubject>().is_ok(),
        "network" => value.parse::<Network>().is_ok(),
        "conversation" => value.split(':').count() <= 3 && value.split(':').all(is_id),
        _ => false,
    }
}

/// Returns a part of a path as handlers get it, so that no caller hides an id from the log by escapes.
fn unescaped(part: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), part.as_bytes());
    while let [first, tail @ ..] = rest {
        if let [b'%', high, low, after @ ..] = rest
            && let Ok(byte) = HEXLOWER_PERMISSIVE.decode(&[*high, *low])
        {
            bytes.extend(byte);
            rest = after;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    // Handlers get no path that is no UTF-8, and its replacement characters are in no id.
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the first 16 hex digits of the SHA-256 of a text.
fn short_hash(text: &str) -> String {
    let hash = digest(&SHA256, text.as_bytes());
    HEXLOWER.encode(hash.as_ref().get(..8).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::{
        super::route::{Effect, RouteNeed},
        *,
    };

    async fn targets(path: &'static str, uri: &str, body: &str) -> (String, usize, Option<String>, String) {
        let ids = &["id", "by", "add", "members", "before", "#tokenId"];
        let route = AdminRoute { method: "post", path, need: RouteNeed::AnyKey, effect: Effect::Change, ids };
        let mut request = Request::builder().uri(uri).body(Body::from(body.to_owned())).unwrap();
        let found = Targets::of(&route, &mut request).await;
        let body = body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
        let ids = serde_json::to_string(&found.ids).unwrap();
        (ids, found.more, found.request_id, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn ids_of_path_query_and_body_are_found_and_nothing_else() {
        let body = r#"{"add":["alice","not an id",[7]],"by":"bob","text":"secret","requestId":"r1"}"#;
        let found = targets("/v1/groups/{id}/members", "/v1/groups/team/members?by=carol&x=y", body).await;
        let ids = r#"{"add":["alice"],"by":["carol","bob"],"id":["team"]}"#;
        assert_eq!(found, (ids.to_owned(), 0, Some("r1".to_owned()), body.to_owned()));
        let found = targets("/v1/groups", "/v1/groups", "no JSON").await;
        assert_eq!(found, ("{}".to_owned(), 0, None, "no JSON".to_owned()));
    }

    #[tokio::test]
    async fn escaped_id_of_a_path_is_found() {
        let key = crate::keys::SecretKey::random();
        let escaped_key = format!("%74{}", &key.text()[1..]);
        let team = r#"{"id":["team"]}"#;
        for (part, ids) in [
            ("team", team),
            ("%74e%61m", team),
            ("%2E%2d", r#"{"id":[".-"]}"#),
            ("te%2Fam", "{}"),
            ("team%", "{}"),
            ("te%fg", "{}"),
            ("te%ff", "{}"),
            (escaped_key.as_str(), "{}"),
        ] {
            assert_eq!(targets("/v1/groups/{id}", &format!("/v1/groups/{part}"), "").await.0, ids, "{part}");
        }
    }

    #[tokio::test]
    async fn times_and_hashes_of_token_ids_are_found() {
        let of = |body| targets("/v1/users/{user}/revoke", "/v1/users/ann/revoke", body);
        let found = of(r#"{"tokenId":"abc"}"#).await.0;
        // SHA-256 of "abc" in FIPS 180-4.
        assert_eq!(found, r#"{"tokenId":["ba7816bf8f01cfea"],"user":["ann"]}"#);
        let found = of(r#"{"before":1763712000000}"#).await.0;
        assert_eq!(found, r#"{"before":["1763712000000"],"user":["ann"]}"#);
        assert_eq!(of(r#"{"before":"now"}"#).await.0, r#"{"before":["now"],"user":["ann"]}"#);
    }

    #[tokio::test]
    async fn seqs_of_a_list_are_found() {
        let found = targets("/v1/hide", "/v1/hide", r#"{"members":[7,3]}"#).await;
        assert_eq!(found.0, r#"{"members":["7","3"]}"#);
    }

    #[tokio::test]
    async fn keys_are_no_ids_and_many_ids_are_counted() {
        let key = crate::keys::SecretKey::random();
        let many: Vec<String> = (0..100).map(|n| format!("u{n}")).collect();
        let body =
            serde_json::json!({"id": key.text(), "requestId": key.text(), "members": many}).to_string();
        let (ids, more, request_id, _) = targets("/v1/groups", "/v1/groups", &body).await;
        assert!(!ids.contains("tgk_") && ids.contains("u15") && !ids.contains("u16"), "{ids}");
        assert_eq!((more, request_id), (84, None));
    }
}

//! Ids that a request names, for the audit log: path parameters, and the listed fields of its body or query.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use aws_lc_rs::digest::{SHA256, digest};
use axum::{
    body::{self, Body},
    extract::{Query, Request},
};
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{
    Deserialize, Deserializer as _,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{
    request_id::{idempotency_key, is_id},
    route::AdminRoute,
};
use crate::{bans::BanSubject, networks::Network};

/// Most ids of one field in an entry, so that no field hides those of another.
const IDS_MAX: usize = 16;

/// Most values of a list that are read. No route takes more in a request.
const LIST_MAX: usize = 1_000;

/// Field with the id that makes a change idempotent.
const REQUEST_ID: &str = "requestId";

/// Routes that take the id from the header, too.
const IDEMPOTENT_PATHS: [&str; 8] = [
    "/v1/messages",
    "/v1/messages/broadcast",
    "/v1/groups",
    "/v1/groups/{id}",
    "/v1/groups/{id}/members",
    "/v1/groups/{id}/members/{user}",
    "/v1/groups/{id}/roles",
    "/v1/groups/{id}/settings",
];

/// Field whose list has requests of their own, with their targets.
const MESSAGES: &str = "messages";

/// Field whose list has numbers that name entries.
const SEQS: &str = "seqs";

/// Ids that a request names. What has not the form of an id is left out.
#[derive(Default)]
pub(super) struct Targets {
    /// Ids by the names of their fields.
    pub(super) ids: BTreeMap<String, Vec<String>>,
    /// Number of ids beyond [`IDS_MAX`] of their fields.
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
            // Lists are separated by commas, which no id has.
            for (name, value) in
                query.iter().flat_map(|(name, list)| list.split(',').map(move |it| (name, it)))
            {
                found.field(route, name, value);
            }
        }
        let bytes = std::mem::take(request.body_mut());
        // It is complete and bounded since the server read it.
        let bytes = body::to_bytes(bytes, usize::MAX).await.unwrap_or_default();
        // What is no JSON has no ids, and is refused later.
        serde_json::Deserializer::from_slice(&bytes)
            .deserialize_map(BodyFields { route, found: &mut found })
            .ok();
        let takes_key = IDEMPOTENT_PATHS.contains(&route.path);
        if let Ok(Some(key)) = idempotency_key(request.headers())
            && takes_key
        {
            found.field(route, REQUEST_ID, &key);
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

    /// Adds the value of a field of the body, or those of its list.
    fn value(&mut self, route: &AdminRoute, name: &str, value: &RawValue) {
        if value.get().starts_with('[') {
            let mut count = 0;
            let each = |value: &RawValue| {
                count += 1;
                self.single(route, name, value);
            };
            serde_json::Deserializer::from_str(value.get()).deserialize_seq(EachValue(each)).ok();
            if name == MESSAGES {
                self.ids.insert(MESSAGES.to_owned(), vec![count.to_string()]);
            }
        } else if value.get().starts_with(|first: char| first.is_ascii_digit()) {
            // A time, or another number.
            self.field(route, name, value.get());
        } else if ["true", "false"].contains(&value.get()) {
            self.field(route, name, value.get());
        } else {
            self.single(route, name, value);
        }
    }

    fn single(&mut self, route: &AdminRoute, name: &str, value: &RawValue) {
        match value.get().as_bytes().first() {
            Some(b'"') if name != MESSAGES => {
                if let Ok(text) = serde_json::from_str::<Cow<'_, str>>(value.get()) {
                    self.field(route, name, &text);
                }
            }
            Some(b'0'..=b'9') if name == SEQS => self.field(route, name, value.get()),
            Some(b'{') if name == MESSAGES => {
                let listed: ListedTargets<'_> = serde_json::from_str(value.get()).unwrap_or_default();
                let ListedTargets { to, from, request_id } = &listed;
                for (name, id) in [("to", to), ("from", from), (REQUEST_ID, request_id)] {
                    // Each once: a batch in the name of few users names them all.
                    let is_new =
                        |id: &&str| self.ids.get(name).is_none_or(|ids| !ids.iter().any(|it| it == id));
                    if let Some(id) = id.as_deref().filter(is_new) {
                        self.add(name, id);
                    }
                }
            }
            _ => {}
        }
    }

    fn add(&mut self, name: &str, value: &str) {
        if value.is_empty() || (!is_id(value) && !is_subject(name, value)) {
            return;
        }
        let ids = self.ids.entry(name.to_owned()).or_default();
        if ids.len() == IDS_MAX {
            self.more += 1;
        } else {
            ids.push(value.to_owned());
        }
    }
}

/// Visitor of the fields of a body, which keeps no more than their ids.
struct BodyFields<'a> {
    route: &'a AdminRoute,
    found: &'a mut Targets,
}

impl<'de> Visitor<'de> for BodyFields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let Self { route, found } = self;
        while let Some(name) = fields.next_key::<Cow<'_, str>>()? {
            let is_id = |id: &&str| id.strip_prefix('#').unwrap_or(id) == name;
            if name == REQUEST_ID || route.ids.iter().any(is_id) {
                found.value(route, &name, fields.next_value()?);
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Visitor of the values of a list, one after the other.
struct EachValue<F>(F);

impl<'de, F: FnMut(&RawValue)> Visitor<'de> for EachValue<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut values: A) -> Result<(), A::Error> {
        for _ in 0..LIST_MAX {
            let Some(value) = values.next_element()? else { return Ok(()) };
            (self.0)(value);
        }
        Err(A::Error::custom("a longer list is refused"))
    }
}

/// Targets of one request of a list.
#[derive(Default, Deserialize)]
struct ListedTargets<'a> {
    #[serde(borrow, default)]
    to: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    from: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "requestId")]
    request_id: Option<Cow<'a, str>>,
}

/// Returns whether the value is the subject of a ban, a network or a conversation, which are no ids.
fn is_subject(name: &str, value: &str) -> bool {
    match name {
        "subject" => value.parse::<BanSubject>().is_ok(),
        "network" => value.parse::<Network>().is_ok(),
        // Keys of conversations are ids with colons between them.
        "to" | "conversation" => value.split(':').count() <= 3 && value.split(':').all(is_id),
        "conversations" => {
            let key = value.strip_suffix('*').map_or(value, |beginning| beginning.trim_end_matches(':'));
            key.is_empty() || is_subject("conversation", key)
        }
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
        let ids = &["id", "by", "add", "members", "before", "#tokenId", "seqs"];
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
    async fn targets_of_messages_are_found_and_never_their_contents() {
        let ids = &["messages", "to", "from"];
        let route = AdminRoute {
            method: "post",
            path: "/v1/messages/batch",
            need: RouteNeed::AnyKey,
            effect: Effect::Change,
            ids,
        };
        let body = r#"{"messages":[{"to":"g:team","from":"ann","content":{"text":"to"},"requestId":"r1"},
            {"to":"not an id"},{"to":7},7,"text",["x"],{"to":"d:a:b:c"}],"to":["bob","d:zoe:ann"],"text":"secret"}"#;
        let mut request =
            Request::builder().header("Idempotency-Key", "\"k-1\"").body(Body::from(body)).unwrap();
        let found = Targets::of(&route, &mut request).await;
        let ids = r#"{"from":["ann"],"messages":["7"],"requestId":["r1"],"to":["g:team","bob","d:zoe:ann"]}"#;
        assert_eq!(serde_json::to_string(&found.ids).unwrap(), ids);
        assert_eq!(found.request_id, None, "a batch does not read the header");
        for (path, id) in [("/v1/messages", "k-1"), ("/v1/groups", "k-1"), ("/v1/bans", "r1")] {
            let route = AdminRoute { path, ..route };
            let mut request = Request::builder()
                .header("Idempotency-Key", "\"k-1\"")
                .body(Body::from(r#"{"requestId":"r1"}"#))
                .unwrap();
            assert_eq!(Targets::of(&route, &mut request).await.request_id.as_deref(), Some(id), "{path}");
        }
    }

    #[tokio::test]
    async fn many_targets_hide_neither_the_sender_nor_later_fields() {
        let ids = &["messages", "to", "from"];
        let (need, effect) = (RouteNeed::AnyKey, Effect::Change);
        let route = AdminRoute { method: "post", path: "/v1/messages/batch", need, effect, ids };
        let of = async |body: serde_json::Value| {
            let mut request = Request::builder().body(Body::from(body.to_string())).unwrap();
            Targets::of(&route, &mut request).await
        };
        let to: Vec<String> = (0..40).map(|n| format!("u{n}")).collect();
        // The fields of a map are in the order of their names, so `to` is put before `from` by hand.
        let body = format!(r#"{{"to":{},"from":"alice"}}"#, serde_json::json!(to));
        let mut request = Request::builder().body(Body::from(body)).unwrap();
        let found = Targets::of(&route, &mut request).await;
        assert_eq!(
            (&found.ids["from"][..], found.ids["to"].len(), found.more),
            (&["alice".to_owned()][..], 16, 24)
        );
        let message = |n: usize| {
            let from = if n == 999 { "alice" } else { "system" };
            serde_json::json!({"to": format!("u{n}"), "from": from, "requestId": format!("r{n}")})
        };
        let messages: Vec<_> = (0..1_000).map(message).collect();
        let found = of(serde_json::json!({"messages": messages})).await;
        assert_eq!(found.ids["from"], ["system", "alice"]);
        assert_eq!((&found.ids["messages"][0][..], found.ids["requestId"].len()), ("1000", 16));
        let endless: Vec<_> = (0..5_000).map(message).collect();
        let found = of(serde_json::json!({"messages": endless})).await;
        assert_eq!((&found.ids["messages"][0][..], found.more), ("1000", 2 * 984), "no more is read");
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
        let found = targets("/v1/hide", "/v1/hide", r#"{"seqs":[7,3],"members":[5]}"#).await;
        assert_eq!(found.0, r#"{"seqs":["7","3"]}"#);
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

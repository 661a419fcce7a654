//! Extractors of ids and bodies. What they refuse is a problem with a code, as all refusals of the admin API are.

use std::{fmt, marker::PhantomData};

use axum::{
    Json,
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{
        HeaderMap, HeaderValue,
        header::{ETAG, IF_MATCH, IF_NONE_MATCH},
        request::Parts,
    },
    response::Response,
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};
use tidegate_protocol::Code;

use super::Problem;

/// Parameters of the path as text.
pub(super) struct IdPath<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for IdPath<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let ids = Path::<T>::from_request_parts(parts, state).await;
        ids.map(|Path(ids)| Self(ids)).map_err(|rejection| Problem(Code::BadId, rejection.body_text()))
    }
}

/// Body that is a JSON object.
pub(super) struct JsonObject<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonObject<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let body = Json::<OnlyObject<T>>::from_request(request, state).await;
        body.map(|Json(OnlyObject(body))| Self(body)).map_err(|rejection| bad_body(&rejection.body_text()))
    }
}

/// Parses a body that is a JSON object.
pub(super) fn parse_object<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let parsed = serde_json::from_slice(body);
    parsed.map(|OnlyObject(body)| body).map_err(|error| bad_body(&error.to_string()))
}

/// Most bytes of what a parser says, which repeats names of the caller. A batch has it for each message.
const PARSE_ERROR_BYTES_MAX: usize = 300;

fn bad_body(why: &str) -> Problem {
    let why = &why[..why.floor_char_boundary(PARSE_ERROR_BYTES_MAX)];
    Problem(Code::BadContent, format!("the body has the wrong form: {why}"))
}

/// Returns the version that a stored rule must have: that of `If-Match`, 0 by `If-None-Match: *`; `None` if any will do.
pub(super) fn expected_version(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let bad = |why: &str| Problem(Code::BadContent, why.to_owned());
    if let Some(none) = headers.get(IF_NONE_MATCH) {
        return if none == "*" { Ok(Some(0)) } else { Err(bad("If-None-Match: only `*`")) };
    }
    let Some(value) = headers.get(IF_MATCH) else { return Ok(None) };
    let version = value.to_str().ok().map(|text| text.trim_matches('"')).and_then(|text| text.parse().ok());
    let version = version.filter(|version: &u64| *version > 0);
    version.map(Some).ok_or_else(|| bad("If-Match: the version of the rule, as ETag has it"))
}

/// Adds the version of a stored rule to a response, as `ETag`.
pub(super) fn tagged(mut response: Response, version: Option<u64>) -> Response {
    let tag = version.and_then(|version| HeaderValue::from_str(&format!("\"{version}\"")).ok());
    if let Some(tag) = tag {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

/// Reads a field that is there, also if it is `null`; with `#[serde(default)]` one that is not there is `None`.
pub(super) fn named<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Value of an object. Serde reads a struct also of an array, by the order of its fields, which no caller means.
struct OnlyObject<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OnlyObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}

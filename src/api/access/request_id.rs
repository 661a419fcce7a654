//! Id of an HTTP request: accepted in `X-Request-Id` or generated, returned, and named in the audit log.

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue},
    middleware::Next,
    response::Response,
};
use tidegate_protocol::{Code, id::check_id};

use crate::{
    api::{Problem, problem::name_instance},
    keys::KEY_PREFIX,
};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Id of the present request.
#[derive(Clone)]
pub(super) struct RequestId(String);

impl RequestId {
    /// Returns the id of the request; empty if it has none.
    pub(super) fn of(request: &Request) -> String {
        request.extensions().get::<Self>().map_or_else(String::new, |id| id.0.clone())
    }
}

/// Returns whether the text may be an id in the audit log. A key is none, although it has the form of one.
pub(super) fn is_id(text: &str) -> bool {
    check_id(text).is_ok() && !text.contains(KEY_PREFIX)
}

/// Header that means the same as the field `requestId` of a message.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Returns the value of the header `Idempotency-Key`, in quotation marks or not.
pub(in crate::api) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|_| values.next().is_none());
    let text = text.ok_or_else(|| Problem(Code::BadId, "Idempotency-Key: one value of ASCII".to_owned()))?;
    let text = text.trim();
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    Ok(Some(quoted.unwrap_or(text).to_owned()))
}

/// Gives the request an id, that of its header if it has the form of one, and names it in the response.
pub(in crate::api) async fn with_request_id(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(X_REQUEST_ID).and_then(|value| value.to_str().ok());
    let id = match given.filter(|id| is_id(id)) {
        Some(id) => id.to_owned(),
        None => format!("{:016x}", rand::random::<u64>()),
    };
    let value = HeaderValue::from_str(&id);
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = name_instance(next.run(request).await, &id);
    if let Ok(value) = value {
        response.headers_mut().insert(X_REQUEST_ID, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idempotency_key_is_one_value_in_quotation_marks_or_not() {
        let key = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static(value));
            }
            idempotency_key(&headers)
        };
        assert_eq!(key(&[]).ok(), Some(None));
        for value in ["m-1", "\"m-1\"", " m-1 "] {
            assert_eq!(key(&[value]).ok(), Some(Some("m-1".to_owned())), "{value}");
        }
        assert_eq!(key(&["\"\"m\"\""]).ok(), Some(Some("\"m\"".to_owned())), "one pair at most");
        assert_eq!(key(&["a", "b"]).err().map(|Problem(code, _)| code), Some(Code::BadId));
    }
}

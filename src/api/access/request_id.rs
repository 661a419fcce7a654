//! Id of an HTTP request: accepted in `X-Request-Id` or generated, returned, and named in the audit log.

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue},
    middleware::Next,
    response::Response,
};
use tidegate_protocol::id::check_id;

use crate::{api::problem::name_instance, keys::KEY_PREFIX};

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

//! Refusals of the admin API by RFC 9457: `application/problem+json` with the code, its cure, and when to try again.

use std::{borrow::Cow, time::Duration};

use axum::{
    Extension, Json,
    body::Body,
    http::{
        HeaderValue, StatusCode,
        header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER},
    },
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value};
use tidegate_protocol::{Code, code::RETRY_AFTER_MS};

pub(super) mod codes;

/// Media type of a refusal.
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Most bytes of what failed. Parsers repeat names that a caller may have made as long as the body.
const MESSAGE_BYTES_MAX: usize = 4_000;

/// Refusal of a request; the code determines the HTTP status and the cure.
pub(super) struct Problem(pub(super) Code, pub(super) String);

/// Refusal of a request, with a status, a cure and members of its own.
pub(super) struct ProblemDetails {
    status: StatusCode,
    code: Code,
    message: String,
    cure: Cow<'static, str>,
    wait: Option<Duration>,
    more: Map<String, Value>,
}

/// Members of a refusal, for the id of the request that is added to them on the way out.
#[derive(Clone)]
struct ProblemMembers(Map<String, Value>);

impl Problem {
    /// Returns the refusal with another status than that of its code.
    pub(super) fn with_status(self, status: StatusCode) -> ProblemDetails {
        ProblemDetails { status, ..self.into() }
    }
}

impl From<Problem> for ProblemDetails {
    fn from(Problem(code, message): Problem) -> Self {
        let mut message = if message.is_empty() { code.what().to_owned() } else { message };
        if message.len() > MESSAGE_BYTES_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
            message.push('…');
        }
        Self {
            status: status_of(code),
            code,
            message,
            cure: code.cure().into(),
            wait: None,
            more: Map::new(),
        }
    }
}

impl ProblemDetails {
    /// Returns the code.
    pub(super) const fn code(&self) -> Code {
        self.code
    }

    /// Adds a member.
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// Sets the status.
    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Sets the time to wait before the next try.
    pub(super) fn after(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// Returns the ms to wait before the next try; `None` if the same request can't succeed later.
    fn retry_after_ms(&self) -> Option<u64> {
        let stated =
            self.wait.map(|wait| u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX));
        stated.map(|ms| ms.max(1)).or_else(|| self.code.temporary().then_some(RETRY_AFTER_MS.into()))
    }

    /// Returns the members.
    pub(super) fn members(&self) -> Map<String, Value> {
        let code = self.code;
        let mut members = self.more.clone();
        let mut add = |name: &str, value: Value| drop(members.insert(name.to_owned(), value));
        add("type", format!("/errors/{}", code.number()).into());
        add("title", code.name().into());
        add("status", self.status.as_u16().into());
        add("detail", self.message.as_str().into());
        add("code", code.number().into());
        add("temporary", code.temporary().into());
        add("cure", (&*self.cure).into());
        // Names of these members in earlier versions.
        add("name", code.name().into());
        add("message", self.message.as_str().into());
        if let Some(ms) = self.retry_after_ms() {
            add("retryAfterMs", ms.into());
        }
        members
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        ProblemDetails::from(self).into_response()
    }
}

impl IntoResponse for ProblemDetails {
    fn into_response(self) -> Response {
        let members = self.members();
        let kept = Extension(ProblemMembers(members.clone()));
        // The audit log reads the code.
        let mut response =
            (self.status, Extension(self.code), kept, Json(Value::Object(members))).into_response();
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
        let may_succeed_soon =
            matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        if let Some(ms) = self.retry_after_ms().filter(|_| may_succeed_soon) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000)));
        }
        response
    }
}

/// Builds a refusal whose status or cure is not that of its code.
pub(super) fn refusal(status: StatusCode, code: Code, message: &str, cure: &str) -> ProblemDetails {
    let cure = cure.to_owned().into();
    ProblemDetails { status, cure, ..Problem(code, message.to_owned()).into() }
}

/// Adds the id of the request to a response that is a refusal.
pub(super) fn name_instance(mut response: Response, request: &str) -> Response {
    let Some(ProblemMembers(mut members)) = response.extensions_mut().remove::<ProblemMembers>() else {
        return response;
    };
    members.insert("instance".to_owned(), format!("/requests/{request}").into());
    response.headers_mut().remove(CONTENT_LENGTH);
    *response.body_mut() = Body::from(Value::Object(members).to_string());
    response
}

/// Returns the status of a code.
fn status_of(code: Code) -> StatusCode {
    match code {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists
        | Code::Conflict
        | Code::TooManyHidden
        | Code::TooManyRevocations
        | Code::TooManyBlocks
        | Code::TooManyBans
        | Code::LeftOut
        | Code::RoomClosed => StatusCode::CONFLICT,
        Code::KeyInvalid => StatusCode::UNAUTHORIZED,
        Code::Forbidden
        | Code::NotAMember
        | Code::ScopeMissing
        | Code::OriginRefused
        | Code::Banned
        | Code::Muted
        | Code::TooLate => StatusCode::FORBIDDEN,
        Code::ContentTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        code if code.temporary() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    async fn body(response: Response) -> Value {
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[tokio::test]
    async fn refusal_has_the_members_of_rfc_9457_and_those_of_before() {
        let response = name_instance(Problem(Code::Conflict, String::new()).into_response(), "9f2c");
        assert_eq!(response.status(), StatusCode::CONFLICT);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert!(!response.headers().contains_key(RETRY_AFTER));
        let expected = serde_json::json!({
            "type": "/errors/4000", "title": "CONFLICT", "status": 409, "instance": "/requests/9f2c",
            "detail": Code::Conflict.what(), "message": Code::Conflict.what(), "name": "CONFLICT",
            "code": 4000, "cure": Code::Conflict.cure(), "temporary": false,
        });
        assert_eq!(body(response).await, expected);
    }

    #[tokio::test]
    async fn temporary_refusal_says_when_to_try_again() {
        for (problem, ms, seconds) in [
            (Problem(Code::Unknown, String::new()).into(), 1_000, "1"),
            (ProblemDetails::from(Problem(Code::RateLimited, String::new())), 1_000, "1"),
            (
                ProblemDetails::from(Problem(Code::Busy, String::new()))
                    .after(Duration::from_micros(1_200_100)),
                1_201,
                "2",
            ),
            (ProblemDetails::from(Problem(Code::RateLimited, String::new())).after(Duration::ZERO), 1, "1"),
        ] {
            let response = problem.with("msgId", "m").into_response();
            assert_eq!(response.headers()[RETRY_AFTER], seconds);
            let body = body(response).await;
            assert_eq!((&body["retryAfterMs"], &body["msgId"]), (&ms.into(), &"m".into()));
        }
    }

    #[tokio::test]
    async fn long_text_of_a_caller_is_cut() {
        let body = body(Problem(Code::BadContent, "\u{200b}".repeat(100_000)).into_response()).await;
        let cut = "\u{200b}".repeat(MESSAGE_BYTES_MAX / 3) + "…";
        assert_eq!((&body["detail"], &body["message"]), (&cut.as_str().into(), &cut.as_str().into()));
    }

    #[test]
    fn status_of_each_code_is_one_that_its_kind_allows() {
        for code in Code::ALL {
            let status = status_of(*code);
            let allowed: &[u16] =
                if code.temporary() { &[429, 503] } else { &[400, 401, 403, 404, 409, 413] };
            assert!(allowed.contains(&status.as_u16()), "{code:?} {status}");
        }
    }

    /// A route may give a code another status than the usual one; those that do are named here.
    #[test]
    fn codes_of_each_route_in_the_description_exist_and_have_its_status() {
        let own = [
            ("400", Code::OriginRefused),
            ("404", Code::NotAMember),
            ("408", Code::FrameTimeout),
            ("409", Code::Unsupported),
            ("415", Code::BadContent),
            ("421", Code::OriginRefused),
            ("500", Code::Internal),
            ("504", Code::StoreUnavailable),
        ];
        let description = crate::api::routes::description().unwrap();
        let operations = description["paths"].as_object().unwrap().iter().flat_map(|(path, methods)| {
            methods.as_object().unwrap().iter().map(move |(method, it)| (format!("{method} {path}"), it))
        });
        let mut wrong = Vec::new();
        for (route, operation) in operations {
            for (status, response) in operation["responses"].as_object().unwrap() {
                let text = response["description"].as_str().unwrap();
                let names = text.split('`').skip(1).step_by(2).filter(|name| {
                    name.len() > 3 && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
                });
                for name in names {
                    let has_status = |code: Code| {
                        status_of(code).as_str() == status.as_str() || own.contains(&(status.as_str(), code))
                    };
                    if !Code::named(name).is_some_and(has_status) {
                        wrong.push(format!("{route}: {status} {name}"));
                    }
                }
            }
        }
        assert_eq!(wrong, Vec::<String>::new());
    }

    #[tokio::test]
    async fn response_that_is_no_refusal_keeps_its_body() {
        let response = name_instance("fine".into_response(), "9f2c");
        assert_eq!(to_bytes(response.into_body(), usize::MAX).await.unwrap(), "fine");
    }
}

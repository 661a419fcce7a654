//! Console: the web page on the admin port. Its files are in the program, and it has no rights but those of the API.
//!
//! A node in mode `read` refuses what a page asks it to change, so that an error in the page can't harm a cluster;
//! programs send neither `Origin` nor `Sec-Fetch-Site`, and are not affected.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{
        Method, StatusCode,
        header::{CACHE_CONTROL, HeaderName, HeaderValue, LOCATION, ORIGIN},
    },
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use tidegate_protocol::Code;

mod about;
mod files;
mod headers;

pub(super) use about::about;

use super::{Api, Problem, refusal};
use crate::config::{Config, ConsoleMode};

/// First segments of the page's paths; the page itself reads the rest of the path.
const VIEWS: [&str; 13] = [
    "try",
    "overview",
    "messages",
    "events",
    "errors",
    "nodes",
    "connections",
    "people",
    "groups",
    "rooms",
    "guard",
    "webhooks",
    "styleguide",
];

/// Requests of a page that change nothing that matters: queries with a body, and the traces of the messages to come.
const HARMLESS: [&str; 2] = ["/v1/presence", "/v1/trace"];

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Settings of the console.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    /// Rights of the page.
    pub mode: ConsoleMode,
    /// Whether the node is for development.
    pub is_development: bool,
    /// Whether the page may crash the node.
    pub may_abort: bool,
    /// Whether the node is one of a cluster.
    pub is_clustered: bool,
    /// Start of the node, in ms since 1970.
    pub started_ms: u64,
}

impl Console {
    /// Returns the settings of a node that starts now.
    pub fn new(config: &Config) -> Self {
        Self {
            mode: config.console(),
            is_development: config.is_development(),
            may_abort: config.admin.may_abort && config.is_development(),
            is_clustered: config.node.profile == "cluster",
            started_ms: super::now_ms(),
        }
    }
}

/// Target of a path that belongs to the console.
enum Target {
    /// Start of the page.
    Root,
    /// View of the page.
    View,
    /// File that the page loads, by its name.
    Asset(String),
}

impl Target {
    /// Returns the target of a path; `None` if the path is none of the console's. The path is compared as it was sent,
    /// so no spelling of `..` leads out of the table.
    fn of(path: &str) -> Option<Self> {
        if path == "/" {
            return Some(Self::Root);
        }
        let (first, rest) = path.strip_prefix('/').map(|path| path.split_once('/').unwrap_or((path, "")))?;
        match first {
            "assets" => Some(Self::Asset(rest.to_owned())),
            _ => VIEWS.contains(&first).then_some(Self::View),
        }
    }
}

/// Answers what no route of the API answers: the page and its files, or that there is no such path.
pub(super) async fn page(State(api): State<Api>, request: Request) -> Response {
    let Some(target) = Target::of(request.uri().path()) else {
        return Problem(Code::NotFound, "no such path; see docs/http.md".into()).into_response();
    };
    let console = &api.console;
    if console.mode == ConsoleMode::Off {
        let cure = "Set admin.console to `read` or `full`, and restart the node.";
        return refusal(StatusCode::NOT_FOUND, Code::NotFound, "the console of this node is off", cure)
            .into_response();
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return super::wrong_method().await.into_response();
    }
    let mut response = match target {
        Target::Root => {
            let start = if console.is_development { "/try" } else { "/overview" };
            let fields = [
                (LOCATION, HeaderValue::from_static(start)),
                (CACHE_CONTROL, HeaderValue::from_static("no-store")),
            ];
            (StatusCode::FOUND, fields).into_response()
        }
        Target::View => files::index(request.headers()),
        Target::Asset(name) => match files::asset(&name, request.headers()) {
            Some(response) => response,
            None => {
                let cure = "Reload the page: it is older or newer than the node.";
                let message = "the console has no such file";
                refusal(StatusCode::NOT_FOUND, Code::NotFound, message, cure).into_response()
            }
        },
    };
    headers::add(response.headers_mut(), &headers::policy(&about::sockets_of_all(&api)));
    response
}

/// Refuses changes that a page requests, unless the console has all rights.
pub(super) async fn refuse_changes(
    State(console): State<Arc<Console>>,
    request: Request,
    next: Next,
) -> Response {
    let is_page = [ORIGIN, SEC_FETCH_SITE].iter().any(|name| request.headers().contains_key(name));
    let is_change = !request.method().is_safe() && !HARMLESS.contains(&request.uri().path());
    if !is_page || !is_change || console.mode == ConsoleMode::Full {
        return next.run(request).await;
    }
    let message = "the console of this node may not change anything";
    let cure = "Send the request from a program, such as curl or `tidegate`, or set admin.console to `full`.";
    refusal(StatusCode::FORBIDDEN, Code::Forbidden, message, cure).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_page_are_known_by_their_first_segment() {
        let name = |path: &str| match Target::of(path) {
            None => "none".to_owned(),
            Some(Target::Root) => "root".to_owned(),
            Some(Target::View) => "view".to_owned(),
            Some(Target::Asset(name)) => format!("asset {name}"),
        };
        assert_eq!(name("/"), "root");
        for path in ["/try", "/try/", "/try/group", "/errors/4014", "/people/../../etc/passwd"] {
            assert_eq!(name(path), "view", "{path}");
        }
        for path in ["", "*", "//", "//try", "/TRY", "/%74ry", "/tryx", "/v1", "/v1/try", "/..", "/console"] {
            assert_eq!(name(path), "none", "{path}");
        }
        assert_eq!(name("/assets/../index.html"), "asset ../index.html");
        assert_eq!(name("/assets"), "asset ");
    }
}

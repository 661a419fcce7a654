//! Pages of the codes, to which the `type` of a refusal refers: JSON for programs, the console or a short page for browsers.

use axum::{
    Json,
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue,
        header::{ACCEPT, CACHE_CONTROL, VARY},
    },
    response::{Html, IntoResponse as _, Response},
};
use serde_json::json;
use tidegate_protocol::Code;

use super::Problem;
use crate::{
    api::{Api, console, extract::IdPath},
    config::ConsoleMode,
};

/// Describes a code by its number or name. A browser gets the page of the console if the node has one.
pub(in crate::api) async fn show(
    State(api): State<Api>,
    IdPath(code): IdPath<String>,
    request: Request,
) -> Result<Response, Problem> {
    let is_browser = wants_page(request.headers());
    if is_browser && api.console.mode != ConsoleMode::Off {
        return Ok(console::page(State(api), request).await);
    }
    let found = Code::named(&code).ok_or_else(|| {
        Problem(Code::NotFound, "there is no such code; docs/errors.md lists all of them".to_owned())
    })?;
    let mut response = if is_browser {
        let policy = [("content-security-policy", "default-src 'none'")];
        (policy, Html(page(found))).into_response()
    } else {
        Json(json!({
            "code": found.number(),
            "name": found.name(),
            "temporary": found.temporary(),
            "what": found.what(),
            "cure": found.cure(),
        }))
        .into_response()
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Returns whether the caller lists HTML among what it takes, as browsers do and programs do not.
fn wants_page(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.any(|value| {
        value.split(',').any(|range| {
            range.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case("text/html"))
        })
    })
}

fn page(code: Code) -> String {
    let (name, number) = (escaped(code.name()), code.number());
    let (what, cure) = (escaped(code.what()), escaped(code.cure()));
    let may = if code.temporary() { "may succeed" } else { "can't succeed" };
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{number} {name}</title>\
         <h1>{number} {name}</h1><p>{what}<p>{cure}<p>The same request {may} later.</html>\n"
    )
}

/// Returns a text without characters that have a meaning in HTML.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_for_those_who_name_html_and_has_no_markup_of_texts() {
        let accepts = |value: &'static str| {
            wants_page(&[(ACCEPT, HeaderValue::from_static(value))].into_iter().collect())
        };
        assert!(accepts("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8") && accepts("a/b, TEXT/HTML;q=1"));
        assert!(!accepts("*/*") && !accepts("application/json") && !wants_page(&HeaderMap::new()));
        assert_eq!(escaped("<a href=\"'&'\">"), "&lt;a href=&quot;&#39;&amp;&#39;&quot;&gt;");
        for code in Code::ALL {
            let page = page(*code);
            let body = page.split_once("<p>").unwrap().1.replace("<p>", "").replace("</html>", "");
            assert!(!body.contains(['<', '>', '"']), "{page}");
        }
    }
}

//! Logins by the cookie of a web page, over real sockets: taken from listed origins only, by listed names only.

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire, pb};

use super::{hook_server::App, hooks::Hooked};
use crate::support::{Client, ClientBody, Link, ServerBody, ask, code, hello, http};

const PAGE: &str = "https://chat.example";
const COOKIES: &str = "theme=dark; sid=ticket-of-ann; other=ticket-of-eve";

const SETS: [&str; 3] =
    ["hooks.allow_fail=closed", "hooks.login_cookies=[sid,unused]", "listen.origins=[https://chat.example]"];

/// Logs in without a token from a page with these headers; returns the code of a refusal.
fn try_page(it: &Hooked, token: &str, headers: &[(&'static str, &str)]) -> Result<Client, Code> {
    let link = Link::from_page(it.node.address(), headers).expect("an upgrade");
    let mut client = Client::over(link, Wire::WsText);
    match client.ask(ask::hello(hello(token, "phone"))) {
        ServerBody::Welcome(_) => Ok(client),
        ServerBody::Error(error) => Err(code(error.code)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn page_of_a_listed_origin_logs_in_by_its_cookie() {
    let app = App::start();
    let it = Hooked::start(app.address, &SETS);
    let page = [("Origin", PAGE), ("Cookie", COOKIES)];
    let mut ann = try_page(&it, "", &page).expect("a cookie");
    let asked = app.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    let body = json!({"credential": "", "device": "phone", "address": "127.0.0.1", "origin": PAGE,
        "cookies": {"sid": "ticket-of-ann"}});
    assert_eq!(asked[0].body, body, "no other cookie is passed on");
    // The cookies are for the login alone.
    assert_eq!(ann.refused(ClientBody::Refresh(pb::Refresh { token: String::new() })), Code::TokenInvalid);
    let refresh = app.asked();
    assert!(refresh.iter().all(|asked| asked.body["cookies"].is_null()), "{refresh:?}");
    drop(try_page(&it, "", &page).expect("a cached cookie"));
    assert_eq!(app.asked().len(), 0);
    let other = try_page(&it, "", &[("Origin", PAGE), ("Cookie", "sid=ticket of nobody")]);
    assert_eq!((other.err(), app.asked().len()), (Some(Code::TokenInvalid), 1));
    // A token needs no question, and another credential is passed on with the cookies.
    drop(try_page(&it, &it.node.token("bob"), &page).expect("a token"));
    assert_eq!(app.asked().len(), 0);
    drop(try_page(&it, "anything", &page).expect("a credential and a cookie"));
    assert_eq!(app.asked()[0].body["credential"], "anything");
}

#[test]
fn cookies_of_other_pages_and_of_programs_are_not_taken() {
    let app = App::start();
    let it = Hooked::start(app.address, &SETS);
    let foreign =
        Link::from_page(it.node.address(), &[("Origin", "https://evil.example"), ("Cookie", COOKIES)]);
    assert_eq!(foreign.err(), Some(403));
    assert_eq!(app.asked().len(), 0);
    for headers in [&[("Cookie", COOKIES)][..], &[("Origin", PAGE), ("Cookie", "other=ticket-of-eve")]] {
        let device = ["", "ticket of nobody"].map(|token| try_page(&it, token, headers).err());
        assert_eq!(device, [Some(Code::TokenInvalid); 2], "{headers:?}");
        let asked = app.asked();
        assert!(asked.iter().all(|asked| asked.body["cookies"] == Value::Null), "{asked:?}");
    }
}

#[test]
fn cookies_over_their_bound_are_refused_and_not_repeated() {
    let app = App::start();
    let it = Hooked::start(app.address, &SETS);
    let long = format!("sid={}", "s".repeat(4_094));
    assert_eq!(Link::from_page(it.node.address(), &[("Origin", PAGE), ("Cookie", &long)]).err(), Some(431));
    let head = format!(
        "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: {PAGE}\r\nCookie: {long}\r\n"
    );
    let answer = http::exchange(it.node.address(), &head, "");
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(
        body.contains("The cookies for the login are longer than 4 KiB.") && !body.contains("sss"),
        "{body}"
    );
    assert_eq!(app.asked().len(), 0);
}

#[test]
fn assignment_takes_the_cookie_of_a_listed_origin() {
    let app = App::start();
    let it = Hooked::start(app.address, &SETS);
    let get = |headers: &str| {
        let head = format!("GET /v1/assign HTTP/1.1\r\nHost: h\r\n{headers}");
        http::exchange(it.node.address(), &head, "")
    };
    let of_page = get(&format!("Origin: {PAGE}\r\nCookie: {COOKIES}\r\n"));
    assert_eq!((of_page.status, of_page.field("Access-Control-Allow-Credentials")), (200, Some("true")));
    let asked = app.asked();
    assert_eq!(asked[0].body["cookies"], json!({"sid": "ticket-of-ann"}), "{asked:?}");
    assert_eq!(get(&format!("Origin: https://evil.example\r\nCookie: {COOKIES}\r\n")).status, 403);
    let program = get(&format!("Cookie: {COOKIES}\r\n"));
    assert_eq!((program.status, program.field("Access-Control-Allow-Credentials")), (401, None));
    let asked = app.asked();
    assert!(asked.iter().all(|asked| asked.body["cookies"].is_null()), "{asked:?}");
}

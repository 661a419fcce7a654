//! Console on the admin port: its page, files and headers, and its rights.

use std::net::SocketAddr;

use serde_json::Value;

use crate::support::{
    Process,
    http::{self, Reply, exchange},
};

/// Setting that makes a node one for operation.
const OPERATED: &str = "admin.development=no";

/// Sends a request with these header fields and without a body.
fn request(port: SocketAddr, method: &str, path: &str, fields: &str) -> Reply {
    exchange(port, &format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}"), "")
}

fn get(node: &Process, path: &str) -> Reply {
    request(node.admin(), "GET", path, "")
}

/// Returns the code and the cure of a refusal.
fn refused(reply: &Reply) -> (String, String) {
    let body: Value = serde_json::from_slice(&reply.body).expect("JSON");
    let text = |key: &str| body[key].as_str().expect("a text").to_owned();
    (text("name"), text("cure"))
}

/// Returns the paths of the files that the page names.
fn assets(page: &Reply) -> Vec<String> {
    let text = std::str::from_utf8(&page.body).expect("text");
    let parts = text.split('"').filter(|part| part.starts_with("/assets/"));
    parts.map(str::to_owned).collect()
}

#[test]
fn page_is_served_at_its_views_and_nowhere_else() {
    let node = Process::start(&[]);
    let root = get(&node, "/");
    assert_eq!((root.status, root.field("location")), (302, Some("/try")));
    let page = get(&node, "/try");
    assert_eq!((page.status, page.field("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.body.starts_with(b"<!doctype html>"));
    for view in ["/overview", "/messages/m1?user=bob", "/errors", "/people/..%2f..%2fsecret", "/styleguide"] {
        let reply = get(&node, view);
        assert_eq!((reply.status, &reply.body), (200, &page.body), "{view}");
        assert_eq!(reply.field("cache-control"), Some("no-store"), "{view}");
    }
    // The page of a code is for browsers; programs get its description.
    let reply = request(node.admin(), "GET", "/errors/4014", "Accept: text/html,*/*\r\n");
    assert_eq!((reply.status, &reply.body), (200, &page.body));
    assert_eq!(get(&node, "/errors/4014").field("content-type"), Some("application/json"));
    for path in ["/index.html", "/tryx", "/TRY", "//try", "/v1/try", "/console", "/dist/index.html"] {
        let reply = get(&node, path);
        assert_eq!((reply.status, refused(&reply).0.as_str()), (404, "NOT_FOUND"), "{path}");
    }
    for method in ["POST", "PUT", "DELETE"] {
        let reply = request(node.admin(), method, "/try", "Content-Type: application/json\r\n");
        assert_eq!(reply.status, 405, "{method}");
    }
}

#[test]
fn assets_are_immutable_and_no_path_leads_out_of_them() {
    let node = Process::start(&[]);
    let assets = assets(&get(&node, "/try"));
    assert!(!assets.is_empty());
    for path in &assets {
        let reply = get(&node, path);
        assert_eq!(reply.status, 200, "{path}");
        assert_eq!(reply.field("cache-control"), Some("public, max-age=31536000, immutable"), "{path}");
        let kind = match path.rsplit_once('.').map(|(_, end)| end) {
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("svg") => "image/svg+xml",
            Some("woff2") => "font/woff2",
            _ => panic!("{path} is of no known kind"),
        };
        assert_eq!(reply.field("content-type"), Some(kind), "{path}");
    }
    for path in [
        "/assets",
        "/assets/",
        "/assets/none-00000000.js",
        "/assets/../index.html",
        "/assets/../assets/../../Cargo.toml",
        "/assets/%2e%2e/index.html",
        "/assets/..%2findex.html",
        "/assets/..\\index.html",
        "/assets//etc/passwd",
        "/assets/%00",
        "/assets/index.html",
    ] {
        let reply = get(&node, path);
        assert_eq!((reply.status, refused(&reply).0.as_str()), (404, "NOT_FOUND"), "{path}");
        assert_ne!(reply.field("cache-control"), Some("public, max-age=31536000, immutable"), "{path}");
    }
    let long = format!("/assets/{}.js", "a".repeat(4_000));
    assert_eq!(get(&node, &long).status, 404);
}

#[test]
fn page_is_compressed_for_clients_that_take_gzip() {
    let node = Process::start(&[]);
    let plain = get(&node, "/try");
    let packed = request(node.admin(), "GET", "/try", "Accept-Encoding: gzip, deflate, br\r\n");
    assert_eq!((plain.field("content-encoding"), packed.field("content-encoding")), (None, Some("gzip")));
    assert!(packed.body.starts_with(&[0x1f, 0x8b]), "the magic number of gzip");
    for reply in [&plain, &packed] {
        assert_eq!(reply.field("vary"), Some("accept-encoding"));
        assert_eq!(reply.field("content-length"), Some(reply.body.len().to_string().as_str()));
    }
    for (path, fields) in [("/try", ""), ("/try", "Accept-Encoding: gzip\r\n"), ("/assets/none.js", "")] {
        let of = |method: &str| request(node.admin(), method, path, fields);
        let (get, head) = (of("GET"), of("HEAD"));
        assert!(head.body.is_empty(), "{path}");
        assert_eq!(head.status, get.status, "{path}");
        assert_eq!(head.field("content-length"), get.field("content-length"), "{path}");
    }
}

#[test]
fn page_may_connect_to_its_node_and_its_clients_ports_only() {
    let clients = |node: &Process| format!("connect-src 'self' ws://{};", node.address());
    for (sets, is_development) in [(&[][..], true), (&[OPERATED][..], false)] {
        let node = Process::start(sets);
        let css = assets(&get(&node, "/overview")).remove(0);
        for path in ["/", "/overview", css.as_str(), "/assets/none.js"] {
            let reply = get(&node, path);
            let policy = reply.field("content-security-policy").expect("a policy");
            assert!(
                policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"),
                "{policy}"
            );
            for part in [
                "base-uri 'none'",
                "form-action 'none'",
                "frame-ancestors 'none'",
                "require-trusted-types-for 'script'",
                "trusted-types 'none'",
            ] {
                assert!(policy.split("; ").any(|it| it == part), "{part} is missing in {policy}");
            }
            let own = clients(&node);
            let sources = if is_development { own.as_str() } else { "connect-src 'self';" };
            assert!(policy.contains(sources), "{sources} is missing in {policy}");
            for (name, value) in [
                ("x-content-type-options", "nosniff"),
                ("referrer-policy", "no-referrer"),
                ("cross-origin-opener-policy", "same-origin"),
                ("cross-origin-resource-policy", "same-origin"),
            ] {
                assert_eq!(reply.field(name), Some(value), "{path}");
            }
            assert!(reply.field("permissions-policy").is_some(), "{path}");
        }
    }
}

#[test]
fn page_changes_nothing_on_a_node_for_operation_and_programs_do() {
    let node = Process::start(&[OPERATED]);
    assert_eq!(get(&node, "/").field("location"), Some("/overview"));
    let own = format!("Host: {}\r\n", node.admin());
    let send = |method: &str, path: &str, fields: &str, body: &str| {
        let head = format!("{method} {path} HTTP/1.1\r\n{own}Content-Type: application/json\r\n{fields}");
        exchange(node.admin(), &head, body)
    };
    let page = [format!("Origin: http://{}\r\n", node.admin()), "Sec-Fetch-Site: same-origin\r\n".into()];
    for fields in &page {
        for (method, path) in
            [("POST", "/v1/drain"), ("DELETE", "/v1/drain"), ("POST", "/v1/weight"), ("POST", "/v1/groups")]
        {
            let reply = send(method, path, fields, "{}");
            let (name, cure) = refused(&reply);
            assert_eq!((reply.status, name.as_str()), (403, "FORBIDDEN"), "{method} {path}");
            assert!(cure.contains("admin.console"), "{cure}");
        }
        assert_eq!(send("GET", "/v1/nodes", fields, "").status, 200);
        assert_eq!(send("POST", "/v1/presence", fields, r#"{"users":["bob"]}"#).status, 200);
        assert_eq!(send("POST", "/v1/trace", fields, r#"{"msg":"m1"}"#).status, 200);
    }
    assert_eq!(send("POST", "/v1/weight", "", "{}").status, 200);
    let full = Process::start(&[OPERATED, "admin.console=full"]);
    let fields =
        format!("Host: {0}\r\nOrigin: http://{0}\r\nContent-Type: application/json\r\n", full.admin());
    let reply = exchange(full.admin(), &format!("POST /v1/weight HTTP/1.1\r\n{fields}"), "{}");
    assert_eq!(reply.status, 200);
}

#[test]
fn console_that_is_off_serves_no_page() {
    let node = Process::start(&["admin.console=off"]);
    for path in ["/", "/try", "/overview", "/assets/none.js"] {
        let reply = get(&node, path);
        let (name, cure) = refused(&reply);
        assert_eq!((reply.status, name.as_str()), (404, "NOT_FOUND"), "{path}");
        assert!(cure.contains("admin.console"), "{cure}");
    }
    let about: Value = serde_json::from_str(&node.http("GET", "/v1/console", "")).expect("JSON");
    assert_eq!(about["console"], "off");
}

#[test]
fn console_gets_the_facts_of_its_node_and_its_rights() {
    let about = |node: &Process| -> Value {
        serde_json::from_str(&http::ask(node.admin(), "GET", "/v1/console", "").1).expect("JSON")
    };
    let node = Process::start(&[]);
    let facts = about(&node);
    assert_eq!((&facts["development"], &facts["console"]), (&true.into(), &"full".into()));
    assert_eq!(facts["clients"]["ws"][0], format!("ws://{}", node.address()));
    assert_eq!(facts["clients"]["tcp"][0], format!("tcp://{}", node.address()));
    assert_eq!((&facts["nodes"], &facts["node"], &facts["keys"]), (&1.into(), &"n1".into(), &false.into()));
    let plan = r#"{"clients":0,"deadlineMs":50000,"delayMs":0,"expectedMs":0,"perSecond":0,"raised":false,"slotsMs":0}"#;
    assert_eq!(facts["drainPlan"].to_string(), plan, "a node without clients ends at once");
    let has = |facts: &Value, name: &str| {
        facts["features"].as_array().expect("a list").iter().any(|feature| feature == name)
    };
    assert!(has(&facts, "token") && has(&facts, "cut") && !has(&facts, "abort"), "{facts}");
    let facts = about(&Process::start(&[OPERATED]));
    assert_eq!((&facts["development"], &facts["console"]), (&false.into(), &"read".into()));
    assert!(!["token", "cut", "abort"].iter().any(|name| has(&facts, name)), "{facts}");
}
